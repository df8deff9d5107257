//! The version number of snapshots, and a cell that holds one.
//!
//! # Contract
//! An [`Epoch`] never decreases over the life of a store. [`AtomicEpoch`] allows atomic access only;
//! each use states its memory order.

use ordna_base::sync::atomic::{AtomicU64, Ordering};

/// The version number that each snapshot of a store increments.
///
/// A write belongs to the epoch that was the current one when it began. The snapshot of an epoch
/// holds the writes of all epochs up to and including that one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// Precedes all epochs: no write and no snapshot has it.
    pub const ZERO: Self = Self(0);
    /// The epoch in which a store begins.
    pub const FIRST: Self = Self(1);

    /// The epoch with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the epoch that follows.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the epoch before this one, which must not be [`Epoch::ZERO`].
    pub const fn previous(self) -> Self {
        Self(self.0 - 1)
    }

    /// Returns 0 or 1: two epochs in a row differ in it.
    pub const fn parity(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// An [`Epoch`] that threads share.
#[derive(Debug)]
pub struct AtomicEpoch(AtomicU64);

impl AtomicEpoch {
    /// A cell that holds `epoch`.
    pub fn new(epoch: Epoch) -> Self {
        Self(AtomicU64::new(epoch.0))
    }

    /// Loads the epoch.
    #[inline]
    pub fn load(&self, order: Ordering) -> Epoch {
        Epoch(self.0.load(order))
    }

    /// Stores an epoch.
    #[inline]
    pub fn store(&self, epoch: Epoch, order: Ordering) {
        self.0.store(epoch.0, order);
    }

    /// Stores the later of the epoch in the cell and this one.
    pub fn raise(&self, epoch: Epoch, order: Ordering) {
        self.0.fetch_max(epoch.0, order);
    }
}
