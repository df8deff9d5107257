//! The counts that a node of the search layer keeps of the entries below its children.
//!
//! # Contract
//! The contract is that of [`skip`](super::ranks): the writers' lock excludes changes, except for
//! the marks of stale children, which reports set without it.

use ordna_base::sync::atomic::{AtomicU64, Ordering, fence};

/// Maximum number of children of a node: one bit of a word for each.
pub(super) const CHILDREN: usize = u64::BITS as usize;

/// What a node knows about a child.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChildCount {
    pub entries: u64,
    /// Whether a leaf below has or had entries with deadlines.
    pub timed: bool,
}

/// The counts of a node's children.
pub(super) struct Counts {
    entries: [AtomicU64; CHILDREN],
    /// Stale children: one bit for each.
    stale: AtomicU64,
    /// Children with deadlines: one bit for each.
    timed: AtomicU64,
}

/// The result of counting a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafCount {
    /// The leaf was already counted.
    Known,
    /// The leaf is counted from now on.
    Counted(ChildCount),
    /// A writer holds the leaf's lock.
    Busy,
}

impl ChildCount {
    /// Adds the entries of another child.
    pub(super) fn add(&mut self, other: Self) {
        self.entries += other.entries;
        self.timed |= other.timed;
    }
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            entries: std::array::from_fn(|_| AtomicU64::new(0)),
            stale: AtomicU64::new(u64::MAX),
            timed: AtomicU64::new(0),
        }
    }

    pub(super) fn get(&self, at: usize) -> ChildCount {
        let timed = self.timed.load(Ordering::Relaxed) >> at & 1 == 1;
        ChildCount { entries: self.entries[at].load(Ordering::Relaxed), timed }
    }

    pub(super) fn set(&self, at: usize, count: ChildCount) {
        self.entries[at].store(count.entries, Ordering::Relaxed);
        let timed = self.timed.load(Ordering::Relaxed) & !(1 << at) | u64::from(count.timed) << at;
        self.timed.store(timed, Ordering::Relaxed);
    }

    /// Marks all children, because some have moved. Release: a report that finds one of these bits
    /// set also sees that the node's version has changed.
    pub(super) fn mark_all(&self) {
        self.stale.store(u64::MAX, Ordering::SeqCst);
    }

    /// Returns the bits of all stale children.
    pub(super) fn stale(&self) -> u64 {
        self.stale.load(Ordering::SeqCst)
    }

    /// Clears the bit of a child.
    pub(super) fn unmark(&self, at: usize) {
        self.stale.fetch_and(!(1 << at), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns whether a child is stale.
    pub(super) fn is_stale(&self, at: usize) -> bool {
        self.stale() >> at & 1 == 1
    }

    /// Sets the bit of a child unless it is set.
    pub(super) fn mark(&self, at: usize) {
        if !self.is_stale(at) {
            self.stale.fetch_or(1 << at, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }
}
