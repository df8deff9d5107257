//! The list itself, its audit and its drop. The top of [`super`] describes the protocol.

#![expect(unsafe_code, reason = "the list owns its nodes")]

use std::collections::HashSet;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::node::{LINKED, Link, MAX_HEIGHT, NodeRef, Tower, is_marked, unmarked};
use super::options::ListOptions;
use super::shortcuts::{LEVEL, Shortcuts};
use crate::skiplist::item::Item;
use ordna_base::Violation;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The stages of a scan: the number of lanes, and the level above which the towers of their first
/// nodes are, so that these are about 2^level nodes apart. Short scans end before many lanes run;
/// in long ones, the misses of sixteen lanes overlap.
pub const LANES: [(usize, usize); 4] = [(1, 3), (1, 5), (4, 5), (16, 5)];

/// The list itself, without a collector: each call takes a guard of the collector with which the
/// list is used.
pub struct List<I: Item> {
    head: Box<[Link<I>; MAX_HEIGHT]>,
    /// Upper bound of the heights of all nodes. Raised before a higher node is published.
    pub(super) height: AtomicUsize,
    pub(super) shortcuts: Shortcuts<I>,
    pub(super) options: ListOptions,
    kinds: PhantomData<I>,
}

// SAFETY: nodes contain plain data and atomics of types that are Send + Sync.
unsafe impl<I: Item> Send for List<I> {}
// SAFETY: as above; shared access follows the protocol at the top of the module.
unsafe impl<I: Item> Sync for List<I> {}

impl<I: Item> List<I> {
    #[cfg(test)]
    pub fn new() -> Self {
        Self::with(ListOptions::default())
    }

    pub fn with(options: ListOptions) -> Self {
        Self {
            options,
            head: Box::new(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut()))),
            height: AtomicUsize::new(1),
            shortcuts: Shortcuts::new(),
            kinds: PhantomData,
        }
    }

    pub(super) fn head(&self) -> Tower<I> {
        // SAFETY: the pointer is to the end of the array, and has its provenance.
        Tower(unsafe { NonNull::from(&*self.head).cast::<Link<I>>().add(MAX_HEIGHT) })
    }

    pub(super) fn height(&self) -> usize {
        // A thread that reaches a node through its links sees the height that the inserter
        // published before, because the CAS that linked the node releases it.
        self.height.load(Ordering::Relaxed)
    }

    /// Returns the numbers of bytes in addition to the linked nodes: those of the shortcuts, and of
    /// removed nodes that the shortcuts keep.
    pub fn overhead(&self, guard: &Guard<'_>) -> (usize, usize) {
        self.shortcuts.bytes(guard)
    }

    /// Checks the order and the links. Returns the numbers of entries and of nodes. No other thread
    /// may use the list.
    pub fn check_invariants(&self) -> Result<(usize, usize), Violation> {
        let broken = |what: String| Err(Violation(format!("skip list: {what}")));
        let mut below: HashSet<usize> = HashSet::new();
        let mut counts = (0, 0);
        for level in 0..MAX_HEIGHT {
            let mut here = HashSet::new();
            let mut last: Option<NodeRef<I>> = None;
            let mut at = self.head().load(level);
            while let Some(node) = NonNull::new(at).map(NodeRef) {
                if is_marked(node.tower().load(level)) {
                    return broken(format!("a removed node is linked at level {level}"));
                }
                if last.is_some_and(|last| I::compare(last.rank(), node.rank()).is_ge()) {
                    return broken(format!("level {level} is out of order at {:?}", node.rank()));
                }
                if node.height() <= level {
                    return broken(format!("a node of height {} at level {level}", node.height()));
                }
                if level > 0 && !below.contains(&node.0.as_ptr().addr()) {
                    return broken(format!("a node of level {level} is not at the level below"));
                }
                if !node.tower().has(0, LINKED) {
                    return broken("a live node's inserter has not ended".to_owned());
                }
                here.insert(node.0.as_ptr().addr());
                last = Some(node);
                at = unmarked(node.tower().load(level));
            }
            if level == 0 {
                counts = (here.len(), here.len());
            }
            if level == LEVEL {
                let is_linked = |node: NodeRef<I>| here.contains(&node.0.as_ptr().addr());
                self.shortcuts.check_invariants(is_linked)?;
            }
            below = here;
        }
        Ok(counts)
    }
}

impl<I: Item> Drop for List<I> {
    fn drop(&mut self) {
        let mut at = unmarked(self.head().load(0));
        while let Some(node) = NonNull::new(at).map(NodeRef) {
            at = unmarked(node.tower().load(0));
            // A removed node that is still linked was not retired: no call is in progress, and the
            // later of its inserter and its remover would have unlinked it before retiring it.
            // SAFETY: `&mut self`, so no other thread can reach the nodes, and each is visited
            // once.
            unsafe { node.free() };
        }
    }
}
