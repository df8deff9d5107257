//! The bit that marks a leaf as counted by the search layer, see `tree::search::ranks`.
//!
//! # Contract
//! While the bit is set and the leaf is not locked, the search layer knows the number of the leaf's
//! entries and whether they have deadlines. [`Leaf::count_once`] sets the bit; one thread calls it
//! at a time. It clears the bit again if the leaf was locked or changed in the meantime. Otherwise
//! only the holder of the leaf's lock clears it, by [`LeafMut::forget_count`], before it changes
//! what was counted.
//!
//! # Orderings
//! A writer locks the leaf, then loads the bit. A count sets the bit, then loads the lock. All four
//! operations are sequentially consistent or have such a fence between them. So either the writer
//! sees the bit and reports its change, or the count sees the lock or the version after the change.
//! If the lock is held, the count clears the bit again.

use ordna_base::sync::atomic::{Ordering, fence};
use ordna_base::sync::{check, point};
use ordna_base::{Key, Value};

use super::{COUNTED, Leaf, LeafMut};
use crate::tree::search::{ChildCount, LeafCount};

impl<K: Key + ?Sized, V: Value + ?Sized> Leaf<K, V> {
    /// Returns whether the leaf is counted. The holder of its lock must then report a change of the
    /// number of entries, or the first deadline, before making it.
    #[inline]
    pub fn is_counted(self) -> bool {
        self.header().next.load(Ordering::SeqCst) & COUNTED != 0
    }

    /// Returns what a count would find. To be validated.
    pub fn entries(self) -> ChildCount {
        ChildCount { entries: self.count() as u64, timed: self.has_deadlines() }
    }

    /// Counts the leaf unless it is already counted. The caller excludes other callers.
    pub fn count_once(self) -> LeafCount {
        let header = self.header();
        if self.is_counted() {
            return LeafCount::Known;
        }
        let Ok(Some(version)) = header.lock.try_read() else { return LeafCount::Busy };
        header.next.fetch_or(COUNTED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        point("tree.count.bit_set");
        // Validated, because a split empties a leaf before it fills it again.
        let found = self.entries();
        if check!("tree.count.validates_leaf", header.lock.validate(version)) {
            LeafCount::Counted(found)
        } else {
            header.next.fetch_and(!COUNTED, Ordering::SeqCst);
            LeafCount::Busy
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> LeafMut<'_, K, V> {
    /// Clears the bit. The holder of the lock must then mark the search layer's counts as stale.
    pub fn forget_count(&self) {
        if self.leaf().is_counted() {
            self.header().next.fetch_and(!COUNTED, Ordering::SeqCst);
        }
    }
}
