//! Two copies of a table: readers use the published one while the other takes in what is new.
//!
//! # Protocol
//! Readers load the published pointer under a guard and read the table as it is: no thread writes
//! to it. The one *keeper* (the thread that holds the lock around [`Standby`]) changes the copy in
//! standby and then swaps the two ([`Twin::publish`]). The copy that was published until then is
//! *busy*: readers may still be in it. A watch handed to the reclamation becomes true once every
//! guard of that moment is gone; only then does the keeper touch it again ([`Standby::is_quiet`]).
//!
//! No thread ever waits for readers. While the standby is busy, changes queue up (`upkeep`); if it
//! stays busy for too long, because a reader sleeps under its guard, the keeper leaves that copy to
//! the reclamation and makes another ([`Twin::renew`]).
//!
//! # Why it is safe
//! A reader's accesses happen before its guard ends, which happens before the watch becomes true
//! (the reclamation's promise: release store below, acquire load in `is_quiet`), which happens
//! before the keeper's next change. A reader that enters later cannot load the old pointer: its
//! load is ordered after the swap by the same argument by which retired memory is unreachable.
//!
//! Source: the Wormhole paper, §2.5; the grace period is taken off the writers' path.

#![expect(unsafe_code, reason = "shares a table between readers and its keeper in turns")]

use ordna_base::reclaim::{Guard, Retire};
use ordna_base::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use ordna_base::sync::{Shared, check, order};

/// Becomes true when every guard of the moment at which it was handed over is gone.
pub type Watch = Shared<AtomicBool>;

/// When readers are gone: the collector's guard, or a model of it.
pub trait Grace {
    /// Sets the watch, with release ordering, once every guard held now is gone.
    fn watch(&self, watch: Watch);

    /// Frees the table once every guard held now is gone.
    ///
    /// # Safety
    /// No reader that enters from now on can reach the table. It is owned and retired once.
    unsafe fn retire<T: Send>(&self, table: *mut T);
}

/// The published copy.
#[derive(Debug)]
pub struct Twin<T>(AtomicPtr<T>);

/// The other copy, and whether readers may still be in it. Its owner is the keeper.
#[derive(Debug)]
pub struct Standby<T> {
    table: *mut T,
    quiet: Watch,
}

// SAFETY: owns a table that is read by others only until it is quiet, through shared references.
unsafe impl<T: Send + Sync> Send for Standby<T> {}

impl<T: Clone + Send + Sync> Twin<T> {
    /// Publishes `table`, with a copy of it in standby.
    pub fn new(table: T) -> (Self, Standby<T>) {
        let standby = Standby {
            table: Box::into_raw(Box::new(table.clone())),
            quiet: Shared::new(AtomicBool::new(true)),
        };
        (Self(AtomicPtr::new(Box::into_raw(Box::new(table)))), standby)
    }

    /// The published copy.
    ///
    /// # Safety
    /// The caller holds a guard that it took before the call, for all of `'a`; or it is the keeper.
    #[inline]
    pub unsafe fn read<'a>(&self) -> &'a T {
        // SAFETY: published tables live until they are retired, and are not written before they are
        // quiet; the guard excludes both. Acquire: pairs with the swap in `publish`.
        unsafe { &*self.0.load(order!("twin.read.acquire", Acquire)) }
    }

    /// The published copy, to be changed.
    ///
    /// # Safety
    /// There is one thread only, and it holds no reference to the table.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's promise")]
    pub unsafe fn published_mut(&self) -> &mut T {
        // SAFETY: handed on from the caller; published tables live.
        unsafe { &mut *self.0.load(Ordering::Relaxed) }
    }

    /// Swaps the two copies. The other one is busy from then on.
    pub fn publish(&self, standby: &mut Standby<T>, grace: &impl Grace) {
        // Release: a reader of the pointer sees the changes. Acquire: none needed, for only the
        // keeper ever stores it, but a swap is both.
        standby.table = self.0.swap(standby.table, order!("twin.publish.release", AcqRel));
        standby.quiet = Shared::new(AtomicBool::new(false));
        grace.watch(standby.quiet.clone());
    }

    /// Gives up a standby that stays busy, and takes a fresh copy of the published table instead.
    pub fn renew(&self, standby: &mut Standby<T>, grace: &impl Grace) {
        // SAFETY: the caller is the keeper, by the exclusive reference.
        let copy = Box::into_raw(Box::new(unsafe { self.read() }.clone()));
        let busy = std::mem::replace(&mut standby.table, copy);
        standby.quiet = Shared::new(AtomicBool::new(true));
        // SAFETY: it has not been published since it became busy, so only readers of before are in
        // it.
        unsafe { grace.retire(busy) }
    }

    /// Frees both tables.
    ///
    /// # Safety
    /// No reader is left, and none of the two is used afterwards.
    pub unsafe fn free(&self, standby: &Standby<T>) {
        // SAFETY: both pointers came from boxes, and are the caller's alone.
        unsafe {
            drop(Box::from_raw(self.0.load(Ordering::Acquire)));
            drop(Box::from_raw(standby.table));
        }
    }
}

impl<T> Standby<T> {
    /// Whether no reader is left in it.
    pub fn is_quiet(&self) -> bool {
        // Acquire: what readers did there happened before what we do to it.
        let quiet = self.quiet.load(Ordering::Acquire);
        check!("twin.quiet.unchecked", quiet)
    }

    /// The table, to be changed.
    ///
    /// # Safety
    /// [`Standby::is_quiet`] has returned true since the last [`Twin::publish`].
    pub unsafe fn table(&mut self) -> &mut T {
        // SAFETY: no thread reads it any more by the caller's promise, and the keeper is one.
        unsafe { &mut *self.table }
    }

    /// The table, to be looked at. Readers may be in it.
    pub fn peek(&self) -> &T {
        // SAFETY: it lives as long as the keeper has it, and only the keeper writes to it.
        unsafe { &*self.table }
    }
}

impl Grace for Guard<'_> {
    fn watch(&self, watch: Watch) {
        Guard::watch(self, watch);
    }

    unsafe fn retire<T: Send>(&self, table: *mut T) {
        // SAFETY: handed on from the caller.
        unsafe { Guard::retire(self, table.cast::<Boxed<T>>()) }
    }
}

/// A boxed table, once it is retired.
#[repr(transparent)]
struct Boxed<T>(T);

impl<T> Retire for Boxed<T> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: it was boxed as a `T`, of the same layout, and is exclusively the collector's.
        drop(unsafe { Box::from_raw(memory) });
    }
}
