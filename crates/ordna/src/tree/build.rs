//! Construction of leaves from sorted entries, for recovery and bulk loads.
//!
//! # Contract
//! A [`Run`] belongs to one thread. [`Tree::from_runs`] takes runs in ascending order. O(n).
//!
//! Source: Nitro §5.2: runs are built bottom-up in parallel and then linked.

use std::borrow::Borrow;

use ordna_base::arena::Arena;
use ordna_base::record::Record;
use ordna_base::slabs::Pool;
use ordna_base::sync::atomic::Ordering;
use ordna_base::{Key, Value};

use super::leaf::{Leaf, LeafEntry, LeafMut, Probe, is_inline};
use super::reshape::separator;
use super::{LARGE, Sizes, Tree, TreeMemory};

/// A chain of leaves that is filled in ascending order.
pub struct Run<K: Key + ?Sized, V: Value + ?Sized> {
    pool: Pool,
    arena: Option<Arena>,
    /// Number of entries that are stored before the arena is used.
    plain: usize,
    leaves: Vec<LeafMut<'static, K, V>>,
    first: Option<K::Owned>,
    last: Option<K::Owned>,
    /// Number of entries after which the next leaf begins.
    fill: usize,
    /// Number of entries in the last leaf.
    filled: usize,
    entries: usize,
}

// SAFETY: the run owns its leaves, and keys and values are Send.
#[expect(unsafe_code, reason = "the run owns its leaves")]
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for Run<K, V> {}

impl<K: Key + ?Sized, V: Value + ?Sized> Run<K, V> {
    /// Creates an empty run. Leaves are filled to seven eighths, so that later inserts find room.
    /// The run is one of `runs` runs, which share the memory of leaves and records.
    pub fn new(sizes: Sizes, memory: &TreeMemory, runs: usize) -> Self {
        Self {
            pool: memory.pool.clone(),
            arena: memory.arena.clone(),
            plain: LARGE / runs.max(1),
            leaves: Vec::new(),
            first: None,
            last: None,
            fill: (sizes.slots * 7 / 8).max(1),
            filled: 0,
            entries: 0,
        }
    }

    /// Returns the number of entries so far.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Appends an entry. Returns `false` if its key is not above the last one.
    pub fn push(&mut self, key: &K, value: &V, deadline: u64) -> bool {
        if self.last.as_ref().is_some_and(|last| key <= last.borrow()) {
            return false;
        }
        if self.leaves.is_empty() || self.filled == self.fill {
            let low_fence = match &self.last {
                Some(last) => separator(last.borrow(), key),
                None => key.to_owned(),
            };
            let leaf = Leaf::create(Some(low_fence.borrow()), &self.pool);
            if let Some(before) = self.leaves.last() {
                before.set_next(Some(leaf.leaf()));
                before.set_high_fence(low_fence.borrow().head());
            }
            self.leaves.push(leaf);
            self.filled = 0;
        }
        let probe = Probe::new(key);
        let arena = self.arena.as_ref().filter(|_| self.entries >= self.plain);
        let word = match value.to_word() {
            Some(word) if K::HEAD_IS_KEY => word,
            _ => Leaf::word_of(&probe, Record::<K, V>::new_in(arena, key, value)),
        };
        let leaf = self.leaves.last().expect("just pushed");
        let done = leaf.put(&probe, LeafEntry { key: probe.head, word, deadline });
        debug_assert!(done, "the leaf has room");
        self.filled += 1;
        self.entries += 1;
        self.first.get_or_insert_with(|| key.to_owned());
        match &mut self.last {
            // Reuses the memory of the former key.
            Some(last) => key.clone_into(last),
            None => self.last = Some(key.to_owned()),
        }
        true
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Creates a tree of the runs, whose leaves and records are in this memory.
    ///
    /// # Errors
    /// The number of the first run whose keys are not above those of the previous runs.
    pub fn from_runs(
        sizes: Sizes,
        memory: TreeMemory,
        runs: Vec<Run<K, V>>,
    ) -> Result<Self, usize> {
        let tree = Self::new(sizes, memory);
        let mut before = LeafMut::exclusive(tree.first);
        let mut last: Option<K::Owned> = None;
        for (number, mut run) in runs.into_iter().enumerate() {
            if let (Some(last), Some(first)) = (&last, &run.first)
                && first <= last
            {
                return Err(number);
            }
            last = run.last.take().or(last);
            for leaf in std::mem::take(&mut run.leaves) {
                leaf.with_low_fence(|low_fence| {
                    let low_fence = low_fence.expect("leaves of runs have low fences");
                    before.set_next(Some(leaf.leaf()));
                    before.set_high_fence(low_fence.head());
                    tree.search.insert(low_fence, leaf.address());
                });
                tree.leaves.fetch_add(1, Ordering::Relaxed);
                before = leaf;
            }
        }
        Ok(tree)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Run<K, V> {
    #[expect(unsafe_code, reason = "the run owns its leaves")]
    fn drop(&mut self) {
        for leaf in &self.leaves {
            let copy = leaf.copy();
            if !is_inline::<K, V>() {
                for word in &copy.words[..copy.count] {
                    // SAFETY: no other thread knows the run.
                    let _ = Leaf::<K, V>::record(*word).map(|record| unsafe { record.free() });
                }
            }
            // SAFETY: as above.
            unsafe { leaf.free() };
        }
    }
}
