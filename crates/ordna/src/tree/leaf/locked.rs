//! Handles for changes of leaves: [`LeafMut`], [`LockedLeaf`].
//!
//! # Contract
//! A [`LeafMut`] is borrowed from a [`LockedLeaf`], or belongs to a leaf that no other thread
//! knows. Readers of a locked leaf validate, so all changes except those of [`LeafMut::set_word`]
//! become visible when the leaf is unlocked.

#![expect(unsafe_code, reason = "reads the line of deadlines and the low fence by address")]

use std::alloc::{alloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use ordna_base::record::Record;
use ordna_base::simd::{LANES, Line};
use ordna_base::slabs::Pool;
use ordna_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use ordna_base::sync::{VersionLock, WriteGuard};
use ordna_base::{Key, Value};

use super::{
    BUCKETS, COUNTED, DeadlineLine, FOREVER, Leaf, LeafEntry, LeafHeader, OVERFLOW_BITS, POOLED,
    Probe, SLOT_BITS, SLOTS, bucket_of, hash_of, is_inline,
};
use crate::epoch::{AtomicEpoch, Epoch};

/// Number of overflow bits at which an insert that finds room in a bucket with such a bit
/// recomputes all of them. A leaf at its usual fill needs two of its seven bits; fewer than this
/// many cost a search little.
const STALE: u32 = 3;

/// A leaf that its holder may change.
pub struct LeafMut<'a, K: Key + ?Sized, V: Value + ?Sized> {
    leaf: Leaf<K, V>,
    lock: PhantomData<&'a ()>,
}

/// A leaf whose lock is held.
pub struct LockedLeaf<'a, K: Key + ?Sized, V: Value + ?Sized> {
    leaf: LeafMut<'a, K, V>,
    lock: WriteGuard<'a>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Deref for LeafMut<'_, K, V> {
    type Target = Leaf<K, V>;

    #[inline]
    fn deref(&self) -> &Leaf<K, V> {
        &self.leaf
    }
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> Deref for LockedLeaf<'a, K, V> {
    type Target = LeafMut<'a, K, V>;

    #[inline]
    fn deref(&self) -> &LeafMut<'a, K, V> {
        &self.leaf
    }
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> LockedLeaf<'a, K, V> {
    /// Creates a leaf with the guard of its lock.
    #[inline]
    pub fn new(leaf: Leaf<K, V>, lock: WriteGuard<'a>) -> Self {
        Self { leaf: LeafMut::exclusive(leaf), lock }
    }

    /// Unlocks the leaf with its former version, because nothing has changed that readers must
    /// notice.
    #[inline]
    pub fn unlock_unchanged(self) {
        self.lock.unlock_unchanged();
    }

    /// Unlocks an unlinked leaf, which becomes obsolete.
    pub fn unlock_obsolete(self) {
        self.lock.unlock_obsolete();
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Leaf<K, V> {
    /// Creates an empty leaf that no other thread knows. It covers the keys from `low_fence` on, or
    /// all keys if `low_fence` is `None`.
    pub fn create(low_fence: Option<&K>, pool: &Pool) -> LeafMut<'static, K, V> {
        let (memory, pooled) = match pool.allocate() {
            Some(memory) => (memory, POOLED),
            // SAFETY: the layout is not empty.
            None => match NonNull::new(unsafe { alloc(Self::LAYOUT) }) {
                Some(memory) => (memory, 0),
                None => handle_alloc_error(Self::LAYOUT),
            },
        };
        let header = LeafHeader {
            lock: VersionLock::new(),
            next: AtomicU64::new(0),
            used: AtomicU64::new(pooled),
            undo: AtomicU64::new(0),
            newest_end: AtomicEpoch::new(Epoch::ZERO),
            high_fence: AtomicU64::new(u64::MAX),
            low_fence: AtomicU64::new(0),
            deadlines: AtomicPtr::default(),
            order: Default::default(),
        };
        let _ = memory.as_ptr().expose_provenance();
        // SAFETY: new memory of the layout; the lines begin after the header and are aligned.
        unsafe {
            memory.cast::<LeafHeader>().write(header);
            let lines = memory.as_ptr().add(size_of::<LeafHeader>()).cast::<Line>();
            for at in 0..Self::LINES {
                lines.add(at).write(Line::filled(0));
            }
        }
        let leaf = LeafMut::exclusive(Self { header: memory.cast(), kinds: PhantomData });
        if let Some(low_fence) = low_fence {
            let _ = leaf.replace_low_fence(low_fence);
        }
        leaf
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> LeafMut<'_, K, V> {
    /// Wraps a leaf that the caller has locked or that no other thread knows.
    #[inline]
    pub fn exclusive(leaf: Leaf<K, V>) -> Self {
        Self { leaf, lock: PhantomData }
    }

    /// Returns the handle for reads.
    #[inline]
    pub fn leaf(&self) -> Leaf<K, V> {
        self.leaf
    }

    /// Sets the next leaf.
    pub fn set_next(&self, next: Option<Leaf<K, V>>) {
        let next = next.map_or(0, |next| next.address().get().get() as u64);
        let link = &self.header().next;
        // A count may concurrently set or clear its bit.
        let _ = link
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |old| Some(next | old & COUNTED));
    }

    /// Sets the head of the high fence.
    pub fn set_high_fence(&self, high: u64) {
        self.header().high_fence.store(high, Ordering::Relaxed);
    }

    /// Lowers the low fence. Returns the record of the former one, which the caller must retire.
    #[must_use]
    pub fn replace_low_fence(&self, low_fence: &K) -> Option<Record<K, u64>> {
        let new = if K::HEAD_IS_KEY {
            low_fence.head()
        } else {
            Record::<K, u64>::new(low_fence, &0).as_ptr().expose_provenance() as u64
        };
        let old = self.header().low_fence.swap(new, Ordering::AcqRel);
        if K::HEAD_IS_KEY {
            return None;
        }
        // SAFETY: as in `with_low_fence`.
        unsafe { Record::from_ptr(ptr::with_exposed_provenance_mut(old as usize)) }
    }

    /// Overwrites the word of a slot; the key stays. This needs no new version, because a reader
    /// gets either the old word or the new one. The release store publishes the undo record that
    /// was pushed before.
    #[inline]
    pub fn set_word(&self, slot: usize, word: u64) {
        self.words(slot / LANES).0[slot % LANES].store(word, Ordering::Release);
    }

    /// Sets the deadline of a slot. Returns the number of additional bytes.
    pub fn set_deadline(&self, slot: usize, deadline: u64) -> usize {
        let mut line = self.header().deadlines.load(Ordering::Relaxed);
        let mut taken = 0;
        if line.is_null() {
            if deadline == FOREVER {
                return 0;
            }
            taken = size_of::<DeadlineLine>();
            line = Box::into_raw(Box::new(std::array::from_fn(|_| AtomicU64::new(FOREVER))));
            self.header().deadlines.store(line, Ordering::Release);
        }
        // SAFETY: not null, because the branch above has stored a line if there was none. A line
        // lives as long as its leaf, and only the holder of the lock replaces it.
        let deadlines = unsafe { &*line };
        deadlines[slot].store(deadline, Ordering::Relaxed);
        taken
    }

    /// Puts an entry into a free slot of its probe order. Returns `false` if there is none.
    pub fn put(&self, probe: &Probe<'_, K>, entry: LeafEntry) -> bool {
        self.put_from(probe.bucket, entry)
    }

    /// Works like [`LeafMut::put`], for an entry of another leaf. Reads no record.
    pub fn put_entry(&self, entry: LeafEntry) -> bool {
        self.put_from(bucket_of(K::from_head(&entry.key).map_or(entry.word, hash_of)), entry)
    }

    fn put_from(&self, mut bucket: usize, entry: LeafEntry) -> bool {
        let mut used = self.header().used.load(Ordering::Relaxed);
        for _ in 0..BUCKETS {
            let here = (used >> (bucket * LANES)) as u32 & 0xFF;
            if here != 0xFF {
                let lane = (!here).trailing_zeros() as usize;
                let slot = bucket * LANES + lane;
                if K::HEAD_IS_KEY {
                    self.keys(bucket).set(lane, entry.key);
                }
                self.set_word(slot, entry.word);
                self.set_deadline(slot, entry.deadline);
                used |= 1 << slot;
                // A bucket that was passed can have room only after a removal.
                let is_passed = used >> (SLOTS + bucket) & 1 == 1;
                let are_many = (used & OVERFLOW_BITS).count_ones() >= STALE;
                if is_passed && are_many {
                    used = self.tidy(used);
                }
                // Release: a reader that sees the bit sees the entry.
                self.header().used.store(used, Ordering::Release);
                return true;
            }
            used |= 1 << (SLOTS + bucket);
            bucket = if bucket + 1 == BUCKETS { 0 } else { bucket + 1 };
        }
        false
    }

    /// Moves entries that had to pass a full bucket to the first bucket of their probe order that
    /// now has room, and recomputes the overflow bits. Returns the new `used`; the caller makes a
    /// new version. Reads no record. O(1), about 100 ns.
    fn tidy(&self, mut used: u64) -> u64 {
        used &= !OVERFLOW_BITS;
        for bucket in 0..BUCKETS {
            let mut here = (used >> (bucket * LANES)) as u32 & 0xFF;
            while here != 0 {
                let lane = here.trailing_zeros() as usize;
                here &= here - 1;
                let (key, word) = match K::HEAD_IS_KEY {
                    true => (self.keys(bucket).get(lane), 0),
                    false => (0, self.words(bucket).get(lane)),
                };
                let mut to = bucket_of(K::from_head(&key).map_or(word, hash_of));
                while to != bucket {
                    let room = !(used >> (to * LANES)) as u8;
                    if room != 0 {
                        let (from, to) = (bucket * LANES + lane, to * LANES);
                        let to = to + room.trailing_zeros() as usize;
                        self.relocate(from, to);
                        used = used & !(1 << from) | 1 << to;
                        break;
                    }
                    used |= 1 << (SLOTS + to);
                    to = if to + 1 == BUCKETS { 0 } else { to + 1 };
                }
            }
        }
        used
    }

    /// Copies an entry to a free slot and empties its former slot.
    fn relocate(&self, from: usize, to: usize) {
        let entry = self.entry(from);
        if K::HEAD_IS_KEY {
            self.keys(to / LANES).set(to % LANES, entry.key);
        }
        self.set_word(to, entry.word);
        self.set_deadline(to, entry.deadline);
        if !is_inline::<K, V>() {
            self.set_word(from, 0);
        }
        self.set_deadline(from, FOREVER);
    }

    /// Empties a slot.
    pub fn clear(&self, slot: usize) {
        let used = self.header().used.load(Ordering::Relaxed);
        debug_assert!(used >> slot & 1 == 1, "an entry is removed once");
        let mut left = used & !(1 << slot);
        if left & SLOT_BITS == 0 {
            left &= !OVERFLOW_BITS;
        }
        self.header().used.store(left, Ordering::Release);
        if !is_inline::<K, V>() {
            self.set_word(slot, 0);
        }
        self.set_deadline(slot, FOREVER);
    }

    /// Replaces all entries.
    pub fn fill(&self, entries: impl Iterator<Item = LeafEntry>) {
        let pooled = self.header().used.load(Ordering::Relaxed) & POOLED;
        if !is_inline::<K, V>() {
            (0..SLOTS).for_each(|slot| self.set_word(slot, 0));
        }
        self.header().used.store(pooled, Ordering::Release);
        for entry in entries {
            let done = self.put_entry(entry);
            debug_assert!(done, "a leaf has {SLOTS} slots");
        }
    }

    /// Copies everything but the low fence and undo records from `other`, and takes over its
    /// deadlines. Readers of `other` find its version changed.
    pub fn copy_from(&self, other: Leaf<K, V>) {
        let pooled = self.header().used.load(Ordering::Relaxed) & POOLED;
        for at in 0..Leaf::<K, V>::LINES {
            for (to, from) in self.line(at).0.iter().zip(&other.line(at).0) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        let (to, from) = (self.header(), other.header());
        to.deadlines
            .store(from.deadlines.swap(ptr::null_mut(), Ordering::Relaxed), Ordering::Release);
        to.used.store(from.used.load(Ordering::Relaxed) & !POOLED | pooled, Ordering::Release);
        self.set_next(other.next());
        self.set_high_fence(other.high_fence());
    }
}
