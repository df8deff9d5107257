//! The version number of snapshots, and a cell that holds one.
//!
//! # Contract
//! The epoch of a store never decreases. [`AtomicEpoch`] allows atomic access only, and each use
//! states its memory order.

use ordna_base::sync::atomic::{AtomicU64, Ordering};

/// The version number that each snapshot of a store increments.
///
/// A write belongs to the epoch that was current when the write began. The snapshot of an epoch
/// contains the writes of all epochs up to and including that one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// The number before all epochs: no write and no snapshot has it.
    pub const ZERO: Self = Self(0);
    /// The epoch in which a store begins.
    pub const FIRST: Self = Self(1);

    /// Creates the epoch with this number.
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

    /// Returns 0 or 1. It alternates between consecutive epochs.
    pub const fn parity(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// An [`Epoch`] that threads share.
#[derive(Debug)]
pub struct AtomicEpoch(AtomicU64);

impl AtomicEpoch {
    /// Creates a cell that holds `epoch`.
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

    /// Stores `epoch` if it is later than the epoch in the cell.
    pub fn raise(&self, epoch: Epoch, order: Ordering) {
        self.0.fetch_max(epoch.0, order);
    }
}
