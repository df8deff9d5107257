//! Compaction: merges sparse leaves, and moves leaves and records out of sparse slabs to free
//! these.
//!
//! # Contract
//! [`Tree::compact`] runs concurrently with all other operations. It holds two neighbours' locks at
//! a time. A record moves under its leaf's lock: the copy takes its place in the slot, and the
//! record is retired. The copy has the same key, value and deadline, so readers need no new
//! version. If a word value is overwritten afterwards, only the copy changes: a reader that found
//! the record gets the value at the time of the move, or an older one.
//!
//! # Purpose
//! Removals merge a leaf when it is less than a quarter full, and only a slab without leaves is
//! freed. After random removals, all slabs would hold half-empty leaves.

use std::borrow::Borrow;

use ordna_base::arena::Arena;
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::atomic::{AtomicBool, Ordering};
use ordna_base::sync::{Backoff, fault, notice, point};
use ordna_base::{Key, Value};

use super::Tree;
use super::leaf::{Leaf, LeafMut};

/// Number of leaves that are examined in one reading section.
const SECTION: usize = 256;

/// The turn of a thread that compacts or prevents compaction. It ends on drop.
struct Compacting<'a>(&'a AtomicBool);

impl<'a> Compacting<'a> {
    fn begin(flag: &'a AtomicBool) -> Option<Self> {
        (!flag.swap(true, Ordering::AcqRel)).then_some(Self(flag))
    }
}

impl Drop for Compacting<'_> {
    fn drop(&mut self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Returns whether removals have left more than a quarter of the leaves' slabs, or more than a
    /// third of the records' slabs, empty.
    #[inline]
    pub fn is_sparse(&self) -> bool {
        self.sparse.load(Ordering::Relaxed) || self.arena.as_ref().is_some_and(Arena::has_much_room)
    }

    /// Counts an unlinked leaf.
    pub(super) fn forget_leaf(&self) {
        self.pool.forget();
        if !self.sparse.load(Ordering::Relaxed) && self.pool.has_much_room() {
            self.sparse.store(true, Ordering::Relaxed);
        }
    }

    /// If slabs are sparse, merges neighbours that fit into one leaf, and moves leaves and records
    /// of the emptiest slabs to other slabs. O(n). One thread runs at a time; another one returns
    /// immediately. Returns whether another compaction is worthwhile, because removals or the
    /// merges have requested it or slabs of records are still sparse.
    pub fn compact(&self, collector: &Collector) -> bool {
        // Release: the thread that compacts sees the request of a thread that returns here.
        if !self.is_sparse() {
            return false;
        }
        let Some(compacting) = Compacting::begin(&self.compacting) else { return false };
        // The flag is cleared only here: removals during a compaction request the next one. The
        // merges below request one too, which then finds nothing to do.
        if self.sparse.swap(false, Ordering::Relaxed) {
            self.compact_leaves(collector);
        }
        let arena = self.arena.as_ref();
        let is_worth_it = arena.is_some_and(|arena| arena.choose_sparse(!self.is_large()));
        if notice!("tree.compact.moves_records", is_worth_it) {
            self.for_each_leaf(collector, |leaf, guard| self.move_records(leaf, guard));
        }
        // Retired memory that waits in the lists of idle threads would keep its slabs alive.
        collector.pin().flush_all();
        self.look_for_room();
        drop(compacting);
        self.is_sparse()
    }

    /// Recomputes whether slabs of records are sparse. O(slabs).
    pub fn look_for_room(&self) {
        if let Some(arena) = &self.arena {
            arena.look();
        }
    }

    /// Merges neighbours that fit into one leaf, and moves the leaves of the emptiest slabs.
    fn compact_leaves(&self, collector: &Collector) {
        // Merges come first, because they determine how many leaves need room.
        self.for_each_leaf(collector, |leaf, guard| while self.absorb_next(leaf, guard) {});
        collector.pin().flush_all();
        let is_worth_it = self.pool.begin_compaction();
        if notice!("tree.compact.moves", is_worth_it) {
            self.for_each_leaf(collector, |leaf, guard| self.move_next(leaf, guard));
        }
        point("tree.compact.moved");
        self.pool.end_compaction();
        if fault!("tree.compact.keeps_calls") {
            self.sparse.store(false, Ordering::Relaxed);
        }
    }

    /// Calls `f` while no compaction runs.
    pub(super) fn without_compaction<R>(&self, f: impl FnOnce() -> R) -> R {
        let mut backoff = Backoff::new();
        let _compacting = loop {
            if let Some(compacting) = Compacting::begin(&self.compacting) {
                break compacting;
            }
            backoff.wait();
        };
        f()
    }

    /// Calls `each` with every leaf from left to right. Leaves that split or merge concurrently may
    /// be left out.
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
                // An unlinked leaf still has a link to the right.
                let Some(next) = leaf.next() else { return };
                leaf = next;
            }
            from = leaf.with_low_fence(|low_fence| low_fence.map(ToOwned::to_owned));
        }
    }

    /// Moves the records of a leaf that are in sparse slabs.
    fn move_records(&self, leaf: Leaf<K, V>, guard: &Guard<'_>) {
        // If another thread locks the leaf, its words may name records that have already moved.
        if fault!("tree.compact.locks") {
            return self.move_locked_records(&LeafMut::exclusive(leaf), guard);
        }
        let Ok(locked) = Self::lock_leaf(leaf, guard) else { return };
        self.move_locked_records(&locked, guard);
        locked.unlock_unchanged();
    }

    /// Works like [`Tree::move_records`], for a locked leaf.
    fn move_locked_records(&self, leaf: &LeafMut<'_, K, V>, guard: &Guard<'_>) {
        let sparse = |slot: &usize| {
            #[expect(unsafe_code, reason = "the record of a locked entry")]
            // SAFETY: see the reason at the top of the file.
            Leaf::<K, V>::record(leaf.word(*slot))
                .is_some_and(|record| unsafe { record.is_in_sparse_slab() })
        };
        for slot in leaf.slots().filter(sparse) {
            let word = leaf.word(slot);
            let record = Leaf::<K, V>::record(word).expect("a slot in use has a record");
            #[expect(unsafe_code, reason = "the record of a locked entry")]
            // SAFETY: the entry's record; its leaf is locked.
            unsafe {
                let copy = record.moved(self.arena_if_large());
                point("tree.compact.copied");
                leaf.set_word(slot, Leaf::<K, V>::word_with(word, copy));
                record.retire_without_share(guard);
            }
        }
    }

    /// Moves the next leaf out of its slab if that slab should become empty.
    fn move_next(&self, left: Leaf<K, V>, guard: &Guard<'_>) {
        // Read without a lock: a leaf that another thread links here concurrently stays until the
        // next compaction.
        if left.next().is_none_or(|next| !next.is_in_sparse_slab()) {
            return;
        }
        let Ok(left) = Self::lock_leaf(left, guard) else { return };
        let Some(right) = left.next().filter(|next| next.is_in_sparse_slab()) else {
            return left.unlock_unchanged();
        };
        let right_locked = Self::lock_right(right, guard);
        let copy = right.with_low_fence(|low_fence| {
            let copy = Leaf::create(low_fence, &self.pool);
            copy.copy_from(right);
            self.log.merge(&copy, &right_locked);
            left.set_next(Some(copy.leaf()));
            point("tree.compact.before_replace");
            self.search
                .replace(low_fence.expect("only the first leaf lacks a low fence"), copy.address());
            copy
        });
        debug_assert!(copy.leaf() != right);
        right_locked.unlock_obsolete();
        drop(left);
        self.pool.forget();
        #[expect(unsafe_code, reason = "the leaf is unlinked")]
        // SAFETY: neither the list nor the search layer leads to the leaf any longer.
        unsafe {
            guard.retire(right.as_retired())
        };
    }
}
