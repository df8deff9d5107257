//! The optimistic lock: mutual exclusion for writers, a version check for readers.
//!
//! # Contract
//! Writers hold the lock through a [`WriteGuard`]. Readers take a [`Version`], read the protected
//! fields (all of them atomics) and validate. A validated reader saw the fields as they were at one
//! moment between the two calls. Readers write nothing. A lock that was made *obsolete*, because
//! its node is unlinked, can never be taken or read again.
//!
//! # Orderings
//! Reader: acquire-load of the version, relaxed reads, acquire fence, relaxed re-read of the
//! version. Writer: CAS to locked (acquire), release fence, relaxed writes, release store of the
//! next version. The two fences pair: if a reader's relaxed read returned a written value, then the
//! reader's fence sees the writer's release fence. So the re-read returns the locked version or a
//! later one, and validation fails. Without the writer's fence its data may become visible before
//! the lock bit; without the reader's fence the re-read may run before the reads.
//!
//! # Progress
//! Readers are obstruction-free: the caller limits its restarts and then takes the lock. A thread
//! that waits spins, then yields ([`Backoff`]).
//!
//! Source: "The ART of Practical Synchronization" (Leis et al., DaMoN 2016), appendix A. The fences
//! are our own, because the paper's pseudo-code assumes sequential consistency.

use super::atomic::{AtomicU64, Ordering, fence};
use super::{Backoff, check, fault, notice, order};

const OBSOLETE: u64 = 1;
const LOCKED: u64 = 2;
const STEP: u64 = 4;

/// A state of the lock that was neither locked nor obsolete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(u64);

impl Version {
    /// Returns a number that increases with every write, for data that is valid for one version
    /// only. Its lowest two bits are zero.
    #[inline]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The lock's node is unlinked; the operation must start again from the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Obsolete;

/// One 64-bit word: version, locked bit, obsolete bit.
#[derive(Debug, Default)]
pub struct VersionLock(AtomicU64);

impl VersionLock {
    /// Creates an unlocked lock with version 0.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns a version to read under, without waiting, or `None` if a writer holds the lock.
    ///
    /// # Errors
    /// [`Obsolete`] if the node is unlinked.
    #[inline]
    pub fn try_read(&self) -> Result<Option<Version>, Obsolete> {
        let word = self.0.load(order!("version_lock.read.acquire", Acquire));
        match word & (LOCKED | OBSOLETE) {
            0 => Ok(Some(Version(word))),
            LOCKED => Ok(None),
            _ => Err(Obsolete),
        }
    }

    /// Returns a version to read under. Waits while a writer holds the lock.
    ///
    /// # Errors
    /// [`Obsolete`] if the node is unlinked.
    #[inline]
    pub fn read(&self) -> Result<Version, Obsolete> {
        if let Some(version) = self.try_read()? {
            return Ok(version);
        }
        let mut backoff = Backoff::new();
        loop {
            backoff.wait();
            if let Some(version) = self.try_read()? {
                return Ok(version);
            }
        }
    }

    /// Returns whether no writer has taken the lock since `version` was taken. If so, all reads
    /// since then are consistent.
    #[inline]
    #[must_use]
    pub fn validate(&self, version: Version) -> bool {
        if !fault!("version_lock.validate.fence") {
            fence(Ordering::Acquire);
        }
        check!("version_lock.validate", self.0.load(Ordering::Relaxed) == version.0)
    }

    /// Takes the lock if nothing was written since `version` was taken.
    #[inline]
    pub fn try_upgrade(&self, version: Version) -> Option<WriteGuard<'_>> {
        // Acquire: this thread sees what earlier writers wrote. `SeqCst`: a later `SeqCst` load of
        // the holder is ordered after the lock bit, for protocols in which another thread stores
        // the loaded value and then checks whether the lock is held. On x86-64 that costs nothing.
        self.0
            .compare_exchange(version.0, version.0 | LOCKED, Ordering::SeqCst, Ordering::Relaxed)
            .ok()?;
        if !fault!("version_lock.upgrade.fence") {
            // Orders the lock bit before the data; pairs with the fence in `validate`.
            fence(Ordering::Release);
        }
        Some(WriteGuard { lock: self, obsolete: false })
    }

    /// Takes the lock. Waits while a writer holds it.
    ///
    /// # Errors
    /// [`Obsolete`] if the node is unlinked.
    #[inline]
    pub fn lock(&self) -> Result<WriteGuard<'_>, Obsolete> {
        let mut backoff = Backoff::new();
        loop {
            let version = self.read()?;
            if let Some(guard) = self.try_upgrade(version) {
                return Ok(guard);
            }
            backoff.wait();
        }
    }

    /// Takes the lock without competing for it, that is, without an atomic read-modify-write.
    ///
    /// For structures that ensure by other means that each node has one writer at a time. A second
    /// writer would not be noticed, except in builds with debug assertions, which panic.
    #[inline]
    pub fn enter_owned(&self) -> WriteGuard<'_> {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert_eq!(word & (LOCKED | OBSOLETE), 0, "a node with two writers, or unlinked");
        self.0.store(word | LOCKED, Ordering::Relaxed);
        if !fault!("version_lock.owned.fence") {
            // Orders the lock bit before the data; pairs with the fence in `validate`.
            fence(Ordering::Release);
        }
        WriteGuard { lock: self, obsolete: false }
    }

    /// Returns whether the node is unlinked.
    #[inline]
    pub fn is_obsolete(&self) -> bool {
        self.0.load(Ordering::Acquire) & OBSOLETE != 0
    }
}

/// The guard of a held lock. Unlocks on drop, with the next version.
#[derive(Debug)]
pub struct WriteGuard<'a> {
    lock: &'a VersionLock,
    obsolete: bool,
}

impl WriteGuard<'_> {
    /// Unlocks with the former version. For a holder that has changed nothing, or only fields of
    /// which a reader may see the old or the new state.
    #[inline]
    pub fn unlock_unchanged(self) {
        let lock = self.lock;
        std::mem::forget(self);
        let locked = lock.0.load(Ordering::Relaxed);
        // Release: the next holder sees what this one has written.
        lock.0.store(locked & !LOCKED, Ordering::Release);
    }

    /// Unlocks and makes the lock obsolete: every later reader and writer gets [`Obsolete`].
    #[inline]
    pub fn unlock_obsolete(mut self) {
        self.obsolete = true;
    }
}

/// Returns the number by which a write section increases the version.
#[inline]
fn version_step() -> u64 {
    if fault!("version_lock.unlock.same_version") { 0 } else { STEP }
}

impl Drop for WriteGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Only the holder writes the word while it is locked, so a plain load returns the current
        // value.
        let locked = self.lock.0.load(Ordering::Relaxed);
        let step = version_step();
        let obsolete = notice!("version_lock.unlock.obsolete", self.obsolete);
        let next = (locked & !LOCKED).wrapping_add(step) | (u64::from(obsolete) * OBSOLETE);
        // Release: a reader of the new version sees the data.
        self.lock.0.store(next, order!("version_lock.unlock.release", Release));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_write_between_read_and_validate_is_noticed() {
        let lock = VersionLock::new();
        let version = lock.read().unwrap();
        assert!(lock.validate(version));
        let guard = lock.lock().unwrap();
        assert!(!lock.validate(version));
        assert_eq!(lock.try_read(), Ok(None));
        drop(guard);
        assert!(!lock.validate(version));
        assert!(lock.try_upgrade(version).is_none());
    }

    #[test]
    fn an_obsolete_lock_is_never_taken_again() {
        let lock = VersionLock::new();
        let version = lock.read().unwrap();
        lock.lock().unwrap().unlock_obsolete();
        assert_eq!(lock.read(), Err(Obsolete));
        assert!(lock.lock().is_err() && lock.try_upgrade(version).is_none());
        assert!(lock.is_obsolete());
    }
}
