//! Compaction: sparse leaves merge, and leaves leave sparse slabs, which then go.
//!
//! # Contract
//! [`Tree::compact`] runs beside everything. It holds two neighbours' locks at a time.
//!
//! # Why
//! Removals merge a leaf once it is under a quarter, and only a slab without leaves is freed. After
//! random removals half-empty leaves stand in all slabs.

use std::borrow::Borrow;

use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{fault, notice, point};
use ordna_base::{Key, Value};

use super::Tree;
use super::leaf::Leaf;

/// Leaves that are looked at in one reading section.
const SECTION: usize = 256;

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Whether removals have left slabs more than a quarter empty.
    #[inline]
    pub fn is_sparse(&self) -> bool {
        self.sparse.load(Ordering::Relaxed)
    }

    /// Counts an unlinked leaf.
    pub(super) fn forget_leaf(&self) {
        self.pool.forget();
        if !self.is_sparse() && self.pool.has_much_room() {
            self.sparse.store(true, Ordering::Relaxed);
        }
    }

    /// Merges neighbours that fit, and moves the leaves of the emptiest slabs to others, if slabs
    /// are sparse. O(n). One thread at a time; another one returns at once. Returns whether removals
    /// or the merges have called for another compaction meanwhile.
    pub fn compact(&self, collector: &Collector) -> bool {
        // Release: the thread that compacts sees the call of a thread that it turns away.
        if !self.is_sparse() || self.compacting.swap(true, Ordering::AcqRel) {
            return false;
        }
        // This is the only clear: removals beside a compaction call for the next one. The merges
        // below call for it too; it then finds none.
        self.sparse.store(false, Ordering::Relaxed);
        // Merges first: they decide how many leaves need a place.
        self.for_each_leaf(collector, |leaf, guard| while self.absorb_next(leaf, guard) {});
        collector.pin().flush();
        let is_worth_it = self.pool.begin_compaction();
        if notice!("tree.compact.moves", is_worth_it) {
            self.for_each_leaf(collector, |leaf, guard| self.move_next(leaf, guard));
        }
        point("tree.compact.moved");
        self.pool.end_compaction();
        if fault!("tree.compact.keeps_calls") {
            self.sparse.store(false, Ordering::Relaxed);
        }
        self.compacting.swap(false, Ordering::AcqRel);
        collector.pin().flush();
        self.is_sparse()
    }

    /// Calls `each` with every leaf from left to right; leaves that split meanwhile may be left
    /// out.
    fn for_each_leaf(&self, collector: &Collector, mut each: impl FnMut(Leaf<K, V>, &Guard<'_>)) {
        let mut from: Option<K::Owned> = None;
        loop {
            let guard = collector.pin();
            let mut leaf = match &from {
                None => self.first,
                Some(key) => Self::leaf_at(self.search.find(key.borrow(), false, &guard)),
            };
            for _ in 0..SECTION {
                each(leaf, &guard);
                // An unlinked leaf still leads to the right.
                let Some(next) = leaf.next() else { return };
                leaf = next;
            }
            from = leaf.with_anchor(|anchor| anchor.map(ToOwned::to_owned));
        }
    }

    /// Moves the leaf behind this one out of its slab, if that is to become empty.
    fn move_next(&self, left: Leaf<K, V>, guard: &Guard<'_>) {
        // Unlocked: a leaf that another thread puts here meanwhile stays until the next compaction.
        if left.next().is_none_or(|next| !next.is_in_sparse_slab()) {
            return;
        }
        let Ok(lock) = Self::header(&left, guard).lock.lock() else { return };
        let Some(right) = left.next().filter(|next| next.is_in_sparse_slab()) else {
            return lock.unlock_unchanged();
        };
        let Ok(right_lock) = Self::header(&right, guard).lock.lock() else {
            unreachable!("a leaf is unlinked under the lock of the leaf on its left")
        };
        let copy = right.with_anchor(|anchor| {
            let copy = Leaf::new(anchor, &self.pool);
            copy.copy_from(right);
            self.log.merge(copy, right);
            left.set_next(Some(copy));
            point("tree.compact.before_replace");
            self.search.replace(anchor.expect("only the first leaf lacks an anchor"), copy.place());
            copy
        });
        debug_assert!(copy != right);
        right_lock.unlock_obsolete();
        drop(lock);
        self.pool.forget();
        #[expect(unsafe_code, reason = "the leaf is unlinked")]
        // SAFETY: neither the list nor the search layer leads to it any more.
        unsafe {
            guard.retire(right.as_retired())
        };
    }
}
