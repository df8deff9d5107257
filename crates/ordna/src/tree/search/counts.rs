//! What a node of the search layer knows of the entries below its children.
//!
//! # Contract
//! That of [`skip`](super::ranks): the writers' lock excludes changes, but for the marks of stale
//! children, which reports set without it.

use ordna_base::sync::atomic::{AtomicU64, Ordering, fence};

/// Children of a node at most: a bit of a word for each.
pub(super) const CHILDREN: usize = u64::BITS as usize;

/// What a node knows of a child.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChildCount {
    pub entries: u64,
    /// Whether a leaf below has or had entries with deadlines.
    pub timed: bool,
}

/// The counts of a node's children.
pub(super) struct Counts {
    entries: [AtomicU64; CHILDREN],
    /// A bit for each child.
    stale: AtomicU64,
    /// A bit for each child.
    timed: AtomicU64,
}

/// What a caller finds in a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeafCount {
    /// The leaf is counted already.
    Known,
    /// The leaf is counted from now on.
    Counted(ChildCount),
    /// A writer is inside.
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

    /// Marks all children: some have moved. Release: a report that finds a bit set that this has
    /// set finds the node's version changed.
    pub(super) fn mark_all(&self) {
        self.stale.store(u64::MAX, Ordering::SeqCst);
    }

    /// The bits of all stale children.
    pub(super) fn stale(&self) -> u64 {
        self.stale.load(Ordering::SeqCst)
    }

    /// Clears the bit of a child.
    pub(super) fn unmark(&self, at: usize) {
        self.stale.fetch_and(!(1 << at), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether a child is stale.
    pub(super) fn is_stale(&self, at: usize) -> bool {
        self.stale() >> at & 1 == 1
    }

    /// Sets the bit of a child, unless it is set.
    pub(super) fn mark(&self, at: usize) {
        if !self.is_stale(at) {
            self.stale.fetch_or(1 << at, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }
}
