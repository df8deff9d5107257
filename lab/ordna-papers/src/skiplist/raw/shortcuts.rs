//! Shortcuts: the nodes at which searches begin.
//!
//! The upper levels of a large list take a third of a search's time or more, and are similar for
//! all searches. So a sorted table lists the nodes with towers above [`LEVEL`], which are one of
//! sixteen, by the heads of their keys. A search begins at the last of them below its rank. The
//! table is PI's index layer (§3.1), which is packed and rebuilt after updates, for Nitro's list.
//!
//! # Contract
//! Any number of threads may concurrently search and record changes, each under a guard of the
//! list's collector. A table in use never changes. It may lag: a missing node costs a step, too
//! many of them cost a search from the head, and no search begins at a removed node.
//!
//! # Invariants
//! 1. A node of the table stays in memory while a guard from before the table's replacement is
//!    held. A remover pushes a node that may be in a table on a stack instead of retiring it. The
//!    thread that builds a table first takes the stack, then collects nodes that are not marked,
//!    publishes the table, and only then retires the nodes that it has taken. They were marked
//!    before it collected the first node, so the new table does not contain them. Nodes that are
//!    removed later are on the stack for the next table. So a table that is being built may outlive
//!    guards.
//! 2. A search begins at a node whose link on `LEVEL` it saw unmarked under its own guard. The node
//!    was in the list at that time (invariant 2 of [`super`]), as if the search had reached it from
//!    above.
//!
//! # Progress
//! A table is due when a quarter of its nodes have been added or removed. The thread that records a
//! change builds a piece of it, which takes some microseconds, or continues if another thread is
//! building: no thread waits. The stack has at most a fiftieth of the list's nodes, plus a few.

#![expect(unsafe_code, reason = "tables and stacked nodes are owned through pointers")]

use std::cmp::Ordering as Order;
use std::collections::HashSet;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use super::node::{Node, NodeRef, is_marked, unmarked};
use crate::skiplist::item::Item;
use ordna_base::Violation;
use ordna_base::reclaim::{Guard, Retire};
use ordna_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use ordna_base::sync::{Mutex, check};

/// Level on which searches begin. Nodes with a link on this level are in the table.
pub(super) const LEVEL: usize = 4;

/// Number of entries that are prefetched together.
pub(super) const BLOCK: usize = 32;

/// Number of removed entries that a search skips before it begins at the head.
const TRIES: usize = 4;

/// Number of nodes on [`LEVEL`] after which a search restarts at the head. The table may lag by a
/// quarter of its nodes, and with ascending keys all of them are after a single entry.
pub(super) const FAR: usize = 16;

/// The shortcuts of a list.
pub(super) struct Shortcuts<I: Item> {
    /// The table, or null if there is none yet.
    pub(super) table: AtomicPtr<ShortcutTable<I>>,
    /// Removed nodes that may be in the table, or in the next one.
    dead: AtomicPtr<Dead<I>>,
    /// Size of these nodes in bytes.
    pub(super) held: AtomicUsize,
    /// Number of tall nodes that were added or removed since the construction of the last table
    /// began.
    pub(super) changes: AtomicUsize,
    pub(super) upkeep: Mutex<Upkeep<I>>,
}

pub(super) struct Upkeep<I: Item> {
    /// The part of the next table that is already built.
    pub(super) next: Option<ShortcutTable<I>>,
    /// The nodes taken from the stack, which are retired when that table is published.
    pub(super) taken: *mut Dead<I>,
}

// SAFETY: no other thread has the nodes that were taken, and nodes are plain data and atomics.
unsafe impl<I: Item> Send for Upkeep<I> {}

pub(super) struct Dead<I: Item> {
    node: NodeRef<I>,
    next: *mut Self,
}

pub(super) struct ShortcutTable<I: Item> {
    /// The heads of the first entries of all blocks.
    pub(super) firsts: Vec<u64>,
    /// Entries in the order of the nodes.
    pub(super) entries: Vec<Shortcut<I>>,
}

pub(super) struct Shortcut<I: Item> {
    /// [`Item::head`] of the node.
    pub(super) head: u64,
    pub(super) node: NodeRef<I>,
}

/// The start of a search on [`LEVEL`]: a node below the rank, and the next node.
pub(super) struct Start<I: Item> {
    pub before: NodeRef<I>,
    pub at: *mut Node<I>,
}

impl<I: Item> ShortcutTable<I> {
    pub(super) fn with_room_for(entries: usize) -> Self {
        Self {
            firsts: Vec::with_capacity(entries.div_ceil(BLOCK)),
            entries: Vec::with_capacity(entries),
        }
    }

    /// Returns the block in which heads are no longer below `head`, and prefetches it.
    pub(super) fn block(&self, head: u64) -> usize {
        let block = self.firsts.partition_point(|first| *first < head).saturating_sub(1);
        let start = self.entries.as_ptr().wrapping_add(block * BLOCK);
        for line in 0..BLOCK * size_of::<Shortcut<I>>() / 64 {
            ordna_base::simd::prefetch(start.cast::<u8>().wrapping_add(line * 64));
        }
        block
    }

    /// Returns how many entries are below the rank, whose head is in this block. O(log n).
    pub(super) fn below(&self, block: usize, rank: I::Rank<'_>) -> usize {
        let head = I::head(rank);
        let block = block * BLOCK;
        let rest = self.entries.get(block..).unwrap_or_default();
        let from = block + rest[..rest.len().min(BLOCK)].partition_point(|entry| entry.head < head);
        // Usually no entry has the same head, and rarely do many.
        let rest = &self.entries[from..];
        let mut reach = 1;
        while rest.get(reach - 1).is_some_and(|entry| entry.head == head) {
            reach *= 2;
        }
        let is_below = |entry: &Shortcut<I>| {
            entry.head == head && I::compare(entry.node.rank(), rank) == Order::Less
        };
        from + rest[..rest.len().min(reach - 1)].partition_point(is_below)
    }

    /// Returns the start for a rank above `below` entries. Returns `None` after the last entry,
    /// because with ascending keys, all nodes that the table lacks are there.
    fn start(&self, below: usize) -> Option<Start<I>> {
        if below == self.entries.len() {
            return None;
        }
        self.entries[..below].iter().rev().take(TRIES).find_map(|entry| {
            let at = entry.node.tower().load(LEVEL);
            begins_at(at).then_some(Start { before: entry.node, at: unmarked(at) })
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.firsts.capacity() * size_of::<u64>()
            + self.entries.capacity() * size_of::<Shortcut<I>>()
    }
}

impl<I: Item> Retire for ShortcutTable<I> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: boxed by `keep_up`, and it belongs to the caller alone.
        drop(unsafe { Box::from_raw(memory) });
    }
}

impl<I: Item> Shortcuts<I> {
    pub fn new() -> Self {
        Self {
            table: AtomicPtr::new(ptr::null_mut()),
            dead: AtomicPtr::new(ptr::null_mut()),
            held: AtomicUsize::new(0),
            changes: AtomicUsize::new(0),
            upkeep: Mutex::new(Upkeep { next: None, taken: ptr::null_mut() }),
        }
    }

    pub(super) fn table<'g>(&self, _guard: &'g Guard<'_>) -> Option<&'g ShortcutTable<I>> {
        // Acquire: the table was written before. SAFETY: it is retired after it was replaced, and
        // the guard was taken before it was loaded.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    /// Returns where a search for the rank begins, or `None` for the head. O(log n), with few cache
    /// misses.
    #[inline]
    pub fn start(&self, rank: I::Rank<'_>, guard: &Guard<'_>) -> Option<Start<I>> {
        let table = self.table(guard)?;
        table.start(table.below(table.block(I::head(rank)), rank))
    }

    /// Works like [`start`](Self::start) for several ranks, with overlapping misses. `each`
    /// receives the starts in order.
    pub fn starts<const N: usize>(
        &self,
        ranks: &[I::Rank<'_>],
        guard: &Guard<'_>,
        mut each: impl FnMut(usize, Option<Start<I>>),
    ) {
        let Some(table) = self.table(guard) else {
            return (0..ranks.len()).for_each(|at| each(at, None));
        };
        for (group, ranks) in ranks.chunks(N).enumerate() {
            let mut at = [0; N];
            for (at, rank) in at.iter_mut().zip(ranks) {
                *at = table.block(I::head(*rank));
            }
            for (at, rank) in at.iter_mut().zip(ranks) {
                *at = table.below(*at, *rank);
                if let Some(entry) = table.entries[..*at].last() {
                    let links = entry.node.tower().0.as_ptr();
                    ordna_base::simd::prefetch(links.wrapping_sub(LEVEL + 1));
                }
            }
            for (lane, at) in at.into_iter().take(ranks.len()).enumerate() {
                each(group * N + lane, table.start(at));
            }
        }
    }

    /// Returns the sizes in bytes of the table, and of removed nodes that are kept.
    pub fn bytes(&self, guard: &Guard<'_>) -> (usize, usize) {
        (self.table(guard).map_or(0, ShortcutTable::bytes), self.held.load(Ordering::Relaxed))
    }

    /// Checks the table, if there is one: entries must be in order, and each node linked on
    /// [`LEVEL`] (`is_linked`) or on the stack. No other thread may use the list concurrently.
    pub fn check_invariants(
        &self,
        is_linked: impl Fn(NodeRef<I>) -> bool,
    ) -> Result<(), Violation> {
        let broken = |what: &str, entry: &Shortcut<I>| {
            Err(Violation(format!("shortcuts: {what} at head {:#x}", entry.head)))
        };
        let upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner);
        // The nodes that were taken are retired when the next table, which contains none of them,
        // is published.
        let taken = if upkeep.next.is_some() { upkeep.taken } else { ptr::null_mut() };
        let mut held = HashSet::new();
        for mut at in [self.dead.load(Ordering::Acquire), taken] {
            // SAFETY: no other thread uses the list, so the stacks do not change.
            while let Some(top) = unsafe { at.as_ref() } {
                held.insert(top.node.0.as_ptr().addr());
                at = top.next;
            }
        }
        // SAFETY: as above.
        let Some(table) = (unsafe { self.table.load(Ordering::Acquire).as_ref() }) else {
            return Ok(());
        };
        let in_memory = |entry: &&Shortcut<I>| {
            is_linked(entry.node) || held.contains(&entry.node.0.as_ptr().addr())
        };
        if let Some(entry) = table.entries.iter().find(|entry| !in_memory(entry)) {
            return broken("a node that may be freed", entry);
        }
        for pair in table.entries.windows(2) {
            if I::compare(pair[0].node.rank(), pair[1].node.rank()).is_ge() {
                return broken("out of order", &pair[1]);
            }
        }
        for (at, entry) in table.entries.iter().enumerate() {
            let first = table.firsts.get(at / BLOCK);
            if entry.head != I::head(entry.node.rank())
                || at.is_multiple_of(BLOCK) && first != Some(&entry.head)
            {
                return broken("a wrong head", entry);
            }
        }
        Ok(())
    }

    /// Pushes a removed node on the stack.
    pub(super) fn hold(&self, node: NodeRef<I>) {
        self.held.fetch_add(node.size(), Ordering::Relaxed);
        let dead = Box::into_raw(Box::new(Dead { node, next: ptr::null_mut() }));
        let mut top = self.dead.load(Ordering::Relaxed);
        loop {
            // SAFETY: not published, so it belongs to this thread.
            unsafe { (*dead).next = top };
            // Release: the thread that takes the stack sees the node's marks.
            match self.dead.compare_exchange_weak(top, dead, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Takes the stack.
    pub(super) fn take(&self) -> *mut Dead<I> {
        // Acquire: see `hold`.
        self.dead.swap(ptr::null_mut(), Ordering::Acquire)
    }
}

/// Returns whether a search may begin at a node with this link on [`LEVEL`]: the node was not
/// removed.
fn begins_at<I: Item>(link: *mut Node<I>) -> bool {
    check!("skiplist.shortcuts.dead_start", !is_marked(link))
}

/// Pops a node from a stack that belongs to the caller.
pub(super) fn pop<I: Item>(stack: &mut *mut Dead<I>) -> Option<NodeRef<I>> {
    let top = NonNull::new(*stack)?;
    // SAFETY: boxed by `hold`; the stack belongs to the caller.
    let top = unsafe { Box::from_raw(top.as_ptr()) };
    *stack = top.next;
    Some(top.node)
}

impl<I: Item> Drop for Shortcuts<I> {
    fn drop(&mut self) {
        let table = self.table.load(Ordering::Acquire);
        if !table.is_null() {
            // SAFETY: `&mut self`, so no other thread uses the list.
            drop(unsafe { Box::from_raw(table) });
        }
        let taken = self.upkeep.lock().map_or(ptr::null_mut(), |upkeep| upkeep.taken);
        for mut stack in [self.take(), taken] {
            while let Some(node) = pop(&mut stack) {
                // SAFETY: as above, and the node is linked nowhere.
                unsafe { node.free() };
            }
        }
    }
}
