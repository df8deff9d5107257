//! Two copies of a table: readers use the published one, while updates are applied to the other.
//!
//! # Protocol
//! Readers load the published pointer under a guard and read the table, to which no thread writes.
//! The *keeper*, the thread that holds the lock around [`Standby`], changes the standby copy and
//! then swaps the two ([`Twin::publish`]). The copy that was published before is then *busy*:
//! readers may still use it. A watch that is passed to the collector becomes true when every guard
//! of that moment has ended. Only then does the keeper change this copy ([`Standby::is_quiet`]).
//!
//! No thread ever waits for readers. While the standby is busy, changes are queued (`upkeep`). If
//! it stays busy for too long, because a reader sleeps under its guard, the keeper leaves that copy
//! to the collector and creates another one ([`Twin::renew`]).
//!
//! # Why this is safe
//! A reader's accesses happen before the end of its guard, which happens before the watch becomes
//! true (the collector guarantees this: release store below, acquire load in `is_quiet`), which
//! happens before the keeper's next change. A reader that enters later cannot load the old pointer:
//! its load is ordered after the swap, for the same reason for which retired memory is unreachable.
//!
//! Source: the Wormhole paper, §2.5. Here, writers do not wait for the grace period.

#![expect(unsafe_code, reason = "shares a table between readers and its keeper in turns")]

use ordna_base::reclaim::{Guard, Retire};
use ordna_base::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use ordna_base::sync::{Shared, check, order};

/// Becomes true when every guard of the moment at which it was passed on has ended.
pub type Watch = Shared<AtomicBool>;

/// Determines when readers have ended: the collector's guard, or a model of it.
pub trait Grace {
    /// Sets the watch, with release ordering, when every guard that is held now has ended.
    fn watch(&self, watch: Watch);

    /// Frees the table when every guard that is held now has ended.
    ///
    /// # Safety
    /// No reader that enters from now on can reach the table. It is boxed and retired once.
    unsafe fn retire<T: Send>(&self, table: *mut T);
}

/// The published copy.
#[derive(Debug)]
pub struct Twin<T>(AtomicPtr<T>);

/// The other copy, and whether readers may still use it. Its owner is the keeper.
#[derive(Debug)]
pub struct Standby<T> {
    table: *mut T,
    quiet: Watch,
}

// SAFETY: owns a table that other threads read through shared references only until it is quiet.
unsafe impl<T: Send + Sync> Send for Standby<T> {}

impl<T: Clone + Send + Sync> Twin<T> {
    /// Publishes `table`, with a copy of it as the standby.
    pub fn new(table: T) -> (Self, Standby<T>) {
        let standby = Standby {
            table: Box::into_raw(Box::new(table.clone())),
            quiet: Shared::new(AtomicBool::new(true)),
        };
        (Self(AtomicPtr::new(Box::into_raw(Box::new(table)))), standby)
    }

    /// Returns the published copy.
    ///
    /// # Safety
    /// The caller holds a guard that it took before the call, for all of `'a`, or it is the keeper.
    #[inline]
    pub unsafe fn read<'a>(&self) -> &'a T {
        // SAFETY: published tables are alive until they are retired, and are not written before
        // they are quiet; the guard excludes both. Acquire: pairs with the swap in `publish`.
        unsafe { &*self.0.load(order!("twin.read.acquire", Acquire)) }
    }

    /// Returns the published copy for changes.
    ///
    /// # Safety
    /// There is only one thread, and it holds no reference to the table.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub unsafe fn published_mut(&self) -> &mut T {
        // SAFETY: the caller upholds the contract, and published tables are alive.
        unsafe { &mut *self.0.load(Ordering::Relaxed) }
    }

    /// Swaps the two copies. The other one is busy from then on.
    pub fn publish(&self, standby: &mut Standby<T>, grace: &impl Grace) {
        // Release: a reader of the pointer sees the changes. Acquire is not needed, because only
        // the keeper stores the pointer, but a swap has both.
        standby.table = self.0.swap(standby.table, order!("twin.publish.release", AcqRel));
        standby.quiet = Shared::new(AtomicBool::new(false));
        grace.watch(standby.quiet.clone());
    }

    /// Gives up a standby that stays busy, and replaces it by a new copy of the published table.
    pub fn renew(&self, standby: &mut Standby<T>, grace: &impl Grace) {
        // SAFETY: the exclusive reference shows that the caller is the keeper.
        let copy = Box::into_raw(Box::new(unsafe { self.read() }.clone()));
        let busy = std::mem::replace(&mut standby.table, copy);
        standby.quiet = Shared::new(AtomicBool::new(true));
        // SAFETY: the copy has not been published since it became busy, so only earlier readers use
        // it.
        unsafe { grace.retire(busy) }
    }

    /// Frees both tables.
    ///
    /// # Safety
    /// No reader is left, and neither table is used afterwards.
    pub unsafe fn free(&self, standby: &Standby<T>) {
        // SAFETY: both pointers came from boxes, and belong to the caller alone.
        unsafe {
            drop(Box::from_raw(self.0.load(Ordering::Acquire)));
            drop(Box::from_raw(standby.table));
        }
    }
}

impl<T> Standby<T> {
    /// Returns whether no reader uses the standby any more.
    pub fn is_quiet(&self) -> bool {
        // Acquire: accesses of readers happen before the keeper's changes.
        let quiet = self.quiet.load(Ordering::Acquire);
        check!("twin.quiet.unchecked", quiet)
    }

    /// Returns the table for changes.
    ///
    /// # Safety
    /// [`Standby::is_quiet`] has returned `true` since the last [`Twin::publish`].
    pub unsafe fn table(&mut self) -> &mut T {
        // SAFETY: the caller guarantees that no thread reads it any more, and there is one keeper.
        unsafe { &mut *self.table }
    }

    /// Returns the table for reading. Readers may use it as well.
    pub fn peek(&self) -> &T {
        // SAFETY: the table is alive as long as the keeper has it, and only the keeper writes to
        // it.
        unsafe { &*self.table }
    }
}

impl Grace for Guard<'_> {
    fn watch(&self, watch: Watch) {
        Guard::watch(self, watch);
    }

    unsafe fn retire<T: Send>(&self, table: *mut T) {
        // SAFETY: the caller upholds the contract.
        unsafe { Guard::retire(self, table.cast::<Boxed<T>>()) }
    }
}

/// A retired table in its box.
#[repr(transparent)]
struct Boxed<T>(T);

impl<T> Retire for Boxed<T> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: it was boxed as a `T`, which has the same layout, and belongs to the collector
        // alone.
        drop(unsafe { Box::from_raw(memory) });
    }
}
