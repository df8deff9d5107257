//! The entries of a leaf: search, insertion, removal.

#![expect(
    unsafe_code,
    reason = "a leaf is one allocation of parts whose size depends on the kinds"
)]

use std::ptr;

use super::layout::{HIGH, LANES, LOW, Leaf, Stale, Words};
use crate::wormhole::hash;
use crate::wormhole::mode::Mode;
use ordna_base::sync::atomic::{AtomicU64, Ordering};
use ordna_base::{Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Leaf<K, V, S, LEAF> {
    /// Calls `f` with the key of an entry.
    ///
    /// # Safety
    /// The words were read under the lock, or under a ticket that was valid afterwards, within a
    /// guard that is still held.
    #[inline]
    pub unsafe fn with_key<R>(words: Words, f: impl FnOnce(&K) -> R) -> R {
        // SAFETY: the caller guarantees that a record is alive. For inline entries, the type of the
        // key is `u64`, whose cell is the word itself.
        unsafe {
            match Self::record(words) {
                Some(record) => f(record.key()),
                None => f(K::view((&raw const words.0).cast(), ptr::null())),
            }
        }
    }

    /// Calls `f` with the value of an entry.
    ///
    /// # Safety
    /// As for [`Leaf::with_key`].
    #[inline]
    pub unsafe fn with_value<R>(words: Words, f: impl FnOnce(&V) -> R) -> R {
        match Self::record(words) {
            // SAFETY: the caller upholds the contract.
            Some(record) => unsafe { record.with_value(f) },
            None => {
                let cell = AtomicU64::new(words.1);
                // SAFETY: for inline entries, the type of the value is `u64`, whose cell is an
                // `AtomicU64`.
                unsafe { V::with(&*(&raw const cell).cast::<V::Cell>(), ptr::null(), f) }
            }
        }
    }

    /// Returns the position of a key with this tag. `valid` returns whether everything read so far
    /// counts; if it does not, neither does the result.
    ///
    /// # Safety
    /// `valid` is true only if the lock is held or the caller's ticket is valid, within a guard.
    #[inline]
    pub unsafe fn find(
        self,
        key: &K,
        tag: u16,
        valid: impl Fn() -> bool,
    ) -> Result<Option<(usize, Words)>, Stale> {
        let mut group = Self::home(tag);
        for _ in 0..Self::GROUPS {
            let tags = self.tags(group).load(Ordering::Relaxed);
            let mut lanes = lanes_with(tags, tag);
            while lanes != 0 {
                let position = group * LANES + lanes.trailing_zeros() as usize / 16;
                lanes &= lanes - 1;
                let words = self.words(position);
                if Self::INLINE {
                    if words.0 == key.head() {
                        return Ok(Some((position, words)));
                    }
                    continue;
                }
                // All of its cache lines at once, because the comparison would learn the length
                // only from the first one.
                Self::prefetch_words(&words, key.tail().len());
                if !valid() {
                    return Err(Stale);
                }
                // SAFETY: the words were read before `valid` returned `true`, as the caller
                // guarantees.
                if unsafe { Self::with_key(words, |other| other == key) } {
                    return Ok(Some((position, words)));
                }
            }
            if lanes_with(tags, 0) != 0 {
                return Ok(None);
            }
            group = Self::after(group);
        }
        Ok(None)
    }

    /// Works like [`Leaf::find`], by tags but from the first group on (the paper without direct
    /// positioning).
    ///
    /// # Safety
    /// As for [`Leaf::find`].
    pub unsafe fn find_by_all_tags(
        self,
        key: &K,
        tag: u16,
        valid: impl Fn() -> bool,
    ) -> Result<Option<(usize, Words)>, Stale> {
        for position in 0..Self::SLOTS {
            if self.tag_at(position) == tag {
                let words = self.words(position);
                if !valid() {
                    return Err(Stale);
                }
                // SAFETY: the caller upholds the contract.
                if unsafe { Self::with_key(words, |other| other == key) } {
                    return Ok(Some((position, words)));
                }
            }
        }
        Ok(None)
    }

    /// Prefetches the record that the key, with this tag, probably has.
    #[inline]
    pub fn prefetch_record(self, tag: u16, key: &K) {
        let group = Self::home(tag);
        let lanes = lanes_with(self.tags(group).load(Ordering::Relaxed), tag);
        if !Self::INLINE && lanes != 0 {
            let position = group * LANES + lanes.trailing_zeros() as usize / 16;
            Self::prefetch_words(&self.words(position), key.tail().len());
        }
    }

    pub(super) fn tag_at(self, position: usize) -> u16 {
        let tags = self.tags(position / LANES).load(Ordering::Relaxed);
        (tags >> (position % LANES * 16)) as u16
    }

    pub(super) fn set_tag(self, position: usize, tag: u16) {
        let word = self.tags(position / LANES);
        let shift = position % LANES * 16;
        let tags = word.load(Ordering::Relaxed) & !(0xFFFF << shift) | u64::from(tag) << shift;
        word.store(tags, Ordering::Relaxed);
    }

    /// Stores an entry in the first group with room. Under the lock; the leaf is not full.
    pub(super) fn place(self, tag: u16, words: Words) -> usize {
        let mut group = Self::home(tag);
        loop {
            let vacant = lanes_with(self.tags(group).load(Ordering::Relaxed), 0);
            if vacant != 0 {
                let position = group * LANES + vacant.trailing_zeros() as usize / 16;
                self.set_words(position, words);
                self.set_tag(position, tag);
                return position;
            }
            group = Self::after(group);
        }
    }

    /// Adds an entry whose key is absent. Under the lock, or before other threads know the leaf;
    /// the leaf is not full.
    pub fn insert(self, tag: u16, words: Words) {
        let position = self.place(tag, words);
        let (len, sorted) = self.fill();
        let word = self.word_at(Self::ORDER, len / 8);
        let shift = len % 8 * 8;
        let order = word.load(Ordering::Relaxed) & !(0xFF << shift) | (position as u64) << shift;
        word.store(order, Ordering::Relaxed);
        self.set_fill(len + 1, sorted);
    }

    /// Removes an entry, and moves back entries that did not fit into their group. Under the lock.
    pub fn remove(self, position: usize) {
        let (len, sorted) = self.fill();
        let mut order = self.load_order(len);
        let order = &mut order[..len];
        let rank = |order: &[u8], position| order.iter().position(|p| usize::from(*p) == position);
        if let Some(at) = rank(order, position) {
            order.copy_within(at + 1.., at);
            self.set_fill(len - 1, if at < sorted { sorted - 1 } else { sorted });
        }
        let order = &mut order[..len - 1];
        let mut hole = position;
        let mut group = position / LANES;
        let full = |group| lanes_with(self.tags(group).load(Ordering::Relaxed), 0) == 0;
        let mut goes_on = full(group);
        self.set_tag(hole, 0);
        while goes_on {
            group = Self::after(group);
            goes_on = full(group);
            let way = (group + Self::GROUPS - hole / LANES) % Self::GROUPS;
            let displaced = (group * LANES..(group + 1) * LANES).find(|position| {
                let tag = self.tag_at(*position);
                tag != 0 && (group + Self::GROUPS - Self::home(tag)) % Self::GROUPS >= way
            });
            if let Some(position) = displaced {
                self.set_words(hole, self.words(position));
                self.set_tag(hole, self.tag_at(position));
                self.set_tag(position, 0);
                if let Some(at) = rank(order, position) {
                    order[at] = hole as u8;
                }
                hole = position;
            }
        }
        self.store_order(order);
    }

    /// Returns the words of all entries, in no order. Under the lock, or while no thread writes.
    pub fn entries(self) -> impl Iterator<Item = (u16, Words)> {
        (0..Self::SLOTS)
            .map(move |position| (self.tag_at(position), position))
            .filter(|(tag, _)| *tag != 0)
            .map(move |(tag, position)| (tag, self.words(position)))
    }

    /// Checks the leaf's own invariants: counts, tags and their places, order.
    pub fn check_invariants(self) -> Result<(), String> {
        let (len, sorted) = self.fill();
        if len != self.entries().count() || sorted > len || len > LEAF {
            return Err(format!(
                "a leaf of {len}, {sorted} sorted, {} found",
                self.entries().count()
            ));
        }
        let order = self.load_order(len);
        let mut seen = [false; 256];
        let mut before: Option<Words> = None;
        for (rank, position) in order[..len].iter().map(|p| usize::from(*p)).enumerate() {
            if self.tag_at(position) == 0 || std::mem::replace(&mut seen[position], true) {
                return Err(format!("rank {rank} is position {position}: vacant or ranked twice"));
            }
            let words = self.words(position);
            // SAFETY: no thread writes, as the caller of the audit guarantees, and the leaf's
            // entries are alive.
            unsafe {
                let hash = Self::with_key(words, |k| hash::extend(hash::EMPTY, k.radix().as_ref()));
                if Self::tag(hash) != self.tag_at(position) {
                    return Err(format!("the tag at {position} is not its key's"));
                }
                let ascends = before
                    .is_none_or(|b| Self::with_key(b, |b| Self::with_key(words, |key| b < key)));
                if rank < sorted && !ascends {
                    return Err(format!("rank {rank} of {sorted} sorted ones is out of order"));
                }
                let found = Self::with_key(words, |key| self.find(key, Self::tag(hash), || true));
                if found != Ok(Some((position, words))) {
                    return Err(format!("the entry at {position} is not found there: {found:?}"));
                }
            }
            before = Some(words);
        }
        Ok(())
    }
}

/// Returns the lanes of a word of tags that equal `tag`, by their top bits.
#[inline]
fn lanes_with(tags: u64, tag: u16) -> u64 {
    let differ = tags ^ (u64::from(tag) * LOW);
    // Exact, because no borrow or carry crosses a lane.
    !((differ & !HIGH).wrapping_add(!HIGH) | differ | !HIGH)
}
