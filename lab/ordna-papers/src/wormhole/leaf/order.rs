//! The order of a leaf's entries by key, which is maintained lazily, and operations that use it.

#![expect(unsafe_code, reason = "compares the keys of entries that the caller's right keeps")]

use super::layout::{Leaf, Stale, Words};
use crate::wormhole::mode::Mode;
use ordna_base::key::{common_prefix, head_at};
use ordna_base::sync::atomic::Ordering;
use ordna_base::{Key, Value};

/// Positions of a leaf's entries in the order of their keys.
#[derive(Debug, Clone, Copy)]
pub struct Order<const LEAF: usize> {
    positions: [u8; LEAF],
    len: usize,
}

impl<const LEAF: usize> Order<LEAF> {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn position(&self, rank: usize) -> usize {
        usize::from(self.positions[rank])
    }

    /// Returns the rank of the entry at a position.
    pub fn rank_of(&self, position: usize) -> Option<usize> {
        // The loop has no early exit, so that sixteen positions are compared at once. A position
        // has a single rank.
        let ranks = self.positions[..self.len].iter().zip(0_u8..);
        let found = |p: u8| usize::from(p) == position;
        let (rank, any) = ranks.fold((0, false), |(rank, any), (p, at)| {
            (if found(*p) { at } else { rank }, any | found(*p))
        });
        any.then_some(usize::from(rank))
    }
}

/// All bytes of a word except the last.
const TOP: u64 = !0xFF;

/// Merges two sorted parts that have no items in common.
fn merge(left: &[u64], right: &[u64], merged: &mut [u64]) {
    let (mut i, mut j) = (0, 0);
    let mut at = 0;
    while i < left.len() && j < right.len() {
        let from_left = left[i] < right[j];
        merged[at] = if from_left { left[i] } else { right[j] };
        (i, j, at) = (i + usize::from(from_left), j + usize::from(!from_left), at + 1);
    }
    let rest = if i < left.len() { &left[i..] } else { &right[j..] };
    merged[at..at + rest.len()].copy_from_slice(rest);
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Leaf<K, V, S, LEAF> {
    pub(super) fn load_order(self, len: usize) -> [u8; LEAF] {
        let mut positions = [0; LEAF];
        for (at, bytes) in positions.chunks_mut(8).enumerate().take(len.div_ceil(8)) {
            let word = self.word_at(Self::ORDER, at).load(Ordering::Relaxed).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
        positions
    }

    pub(super) fn store_order(self, positions: &[u8]) {
        for (at, bytes) in positions.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.word_at(Self::ORDER, at).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// Returns the entries in the order of their keys. Sorts those that the leaf's own order has
    /// not sorted.
    ///
    /// # Safety
    /// As for [`Leaf::find`].
    pub unsafe fn order(self, valid: impl Fn() -> bool) -> Result<Order<LEAF>, Stale> {
        // Whatever was written concurrently, these are a fill and positions that the leaf once had,
        // so they are within its bounds.
        let (len, sorted) = self.fill();
        let positions = self.load_order(len);
        if sorted == len {
            return Ok(Order { positions, len });
        }
        // The keys of a leaf usually differ shortly after its anchor.
        let tail = self.anchor_bytes().len() + 32;
        let words: [Words; LEAF] = std::array::from_fn(|at| {
            if at >= len {
                return Words::default();
            }
            let words = self.words(usize::from(positions[at]));
            Self::prefetch_words(&words, tail);
            words
        });
        let upper = self.header().upper_head.load(Ordering::Relaxed);
        let next = self.next();
        if !valid() {
            return Err(Stale);
        }
        // Seven bytes of a key and its position, in one word. Comparing records, which are far
        // apart, or byte strings is slow, and words are sorted without branches that depend on
        // their contents.
        let mut items = [0_u64; LEAF];
        if K::HEAD_IS_KEY {
            let shared = (self.header().anchor_head ^ upper).leading_zeros().min(56);
            for (at, (item, words)) in items.iter_mut().zip(&words[..len]).enumerate() {
                // SAFETY: all words were read before `valid` returned `true`, as the caller
                // guarantees.
                let head = unsafe { Self::with_key(*words, Key::head) };
                *item = head << shared & TOP | at as u64;
            }
        } else {
            let shared = self.shared_length(next);
            for (at, (item, words)) in items.iter_mut().zip(&words[..len]).enumerate() {
                // SAFETY: as above.
                let head = unsafe { Self::with_key(*words, |key| head_at(key.tail(), shared)) };
                *item = head & TOP | at as u64;
            }
        }
        items[sorted..len].sort_unstable();
        let mut merged = [0_u64; LEAF];
        merge(&items[..sorted], &items[sorted..len], &mut merged[..len]);
        // SAFETY: as above.
        let compare =
            |a: Words, b: Words| unsafe { Self::with_key(a, |a| Self::with_key(b, |b| a.cmp(b))) };
        for alike in merged[..len].chunk_by_mut(|a, b| (a ^ b) & TOP == 0) {
            if alike.len() > 1 {
                alike.sort_unstable_by(|a, b| {
                    let [a, b] = [a, b].map(|item| words[usize::from(*item as u8)]);
                    compare(a, b)
                });
            }
        }
        let mut order = Order { positions: [0; LEAF], len };
        for (position, item) in order.positions[..len].iter_mut().zip(&merged) {
            *position = positions[usize::from(*item as u8)];
        }
        Ok(order)
    }

    /// Returns the minimum length of the prefix that all keys of the leaf share, because they are
    /// between its anchor and the next leaf's. The next leaf is the one that existed when the
    /// caller's right was valid.
    fn shared_length(self, next: Option<Self>) -> usize {
        next.map_or(0, |next| {
            let [own, upper] = [self, next].map(|leaf| leaf.header().anchor_head);
            // Padding after the shorter anchor does not count as shared.
            let short = self.anchor_bytes().len().min(8);
            let alike = (own ^ upper).leading_zeros() as usize / 8;
            if alike < short {
                alike
            } else {
                common_prefix(self.anchor_bytes(), next.anchor_bytes())
            }
        })
    }

    /// Sorts the order. Under the lock.
    ///
    /// # Safety
    /// The lock is held, within a guard.
    pub unsafe fn sort(self) {
        if !self.is_sorted() {
            // SAFETY: the caller upholds the contract; under the lock, everything that is read
            // counts.
            if let Ok(order) = unsafe { self.order(|| true) } {
                self.store_order(&order.positions[..order.len]);
                self.set_fill(order.len, order.len);
            }
        }
    }

    /// Moves the entries from `at` on in the order to `to`, which is new. Both are then sorted.
    /// Under the lock.
    ///
    /// # Safety
    /// The lock is held, within a guard.
    pub unsafe fn move_from(self, order: &Order<LEAF>, at: usize, to: Self) {
        let entries: [(u16, Words); LEAF] = std::array::from_fn(|rank| {
            let position = order.position(rank);
            (self.tag_at(position), self.words(position))
        });
        for group in 0..Self::GROUPS {
            self.tags(group).store(0, Ordering::Relaxed);
        }
        let (left, right) = entries[..order.len].split_at(at);
        for (leaf, entries) in [(self, left), (to, right)] {
            let mut positions = [0; LEAF];
            for (position, (tag, words)) in positions.iter_mut().zip(entries) {
                *position = leaf.place(*tag, *words) as u8;
            }
            leaf.store_order(&positions[..entries.len()]);
            leaf.set_fill(entries.len(), entries.len());
        }
    }

    /// Moves all entries to `to`, which has room and only smaller keys. Both locks are held.
    pub fn move_all(self, to: Self) {
        let (len, sorted) = self.fill();
        let to_sorted = to.is_sorted();
        let order = self.load_order(len);
        for position in &order[..len] {
            let position = usize::from(*position);
            to.insert(self.tag_at(position), self.words(position));
        }
        if to_sorted {
            to.set_fill(to.len(), to.len() - (len - sorted));
        }
    }

    /// Works like [`Leaf::find`], by the order and without tags (the paper without sorting by tag).
    ///
    /// # Safety
    /// As for [`Leaf::find`].
    pub unsafe fn find_by_key(
        self,
        key: &K,
        valid: impl Fn() -> bool + Copy,
    ) -> Result<Option<(usize, Words)>, Stale> {
        // SAFETY: the caller upholds the contract.
        unsafe {
            let order = self.order(valid)?;
            let rank = self.rank(&order, valid, |other| other < key)?;
            if rank == order.len() {
                return Ok(None);
            }
            let position = order.position(rank);
            let words = self.words(position);
            if !valid() {
                return Err(Stale);
            }
            let same = Self::with_key(words, |other| other == key);
            Ok(same.then_some((position, words)))
        }
    }

    /// Returns how many entries, from the first in the order on, are `below`.
    ///
    /// # Safety
    /// As for [`Leaf::find`].
    pub unsafe fn rank(
        self,
        order: &Order<LEAF>,
        valid: impl Fn() -> bool,
        below: impl Fn(&K) -> bool,
    ) -> Result<usize, Stale> {
        let (mut from, mut to) = (0, order.len());
        while from < to {
            let middle = from.midpoint(to);
            let words = self.words(order.position(middle));
            if !valid() {
                return Err(Stale);
            }
            // SAFETY: the caller upholds the contract.
            if unsafe { Self::with_key(words, &below) } {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        Ok(from)
    }
}
