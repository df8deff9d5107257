//! The modes in which threads share a leaf, which is the only difference between the three types.
//!
//! | mode | readers of a leaf | writers of a leaf |
//! |---|---|---|
//! | [`Optimistic`] | take a version, read, validate; write nothing | the version lock |
//! | [`Faithful`] | the shared half of a reader-writer lock, as published (§2.5) | its other half |
//! | [`Single`] | nothing | nothing: there is one thread ([`WormholeUnsafe`](super::WormholeUnsafe)) |

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use ordna_base::sync::{Obsolete, Version, VersionLock, WriteGuard, check};

/// The mode in which the leaves of an index are shared. Sealed.
pub trait Mode: sealed::Sealed + Send + Sync + Sized + 'static {
    /// Whether several threads may use the index concurrently. If not, there is one table and no
    /// collector, and removed memory is freed at once.
    const SHARED: bool;
    /// The lock of every leaf.
    #[doc(hidden)]
    type Lock: Default + Send + Sync;
    /// The right to read a leaf. What was read counts if the ticket is still valid afterwards.
    #[doc(hidden)]
    type Ticket<'a>;
    /// The right to write a leaf, until it is dropped.
    #[doc(hidden)]
    type Held<'a>;

    #[doc(hidden)]
    fn read(lock: &Self::Lock) -> Result<Self::Ticket<'_>, Obsolete>;
    #[doc(hidden)]
    fn is_valid(ticket: &Self::Ticket<'_>) -> bool;
    #[doc(hidden)]
    fn lock(lock: &Self::Lock) -> Result<Self::Held<'_>, Obsolete>;
    /// Takes the lock, if it is free and the leaf is not obsolete.
    #[doc(hidden)]
    fn try_lock(lock: &Self::Lock) -> Option<Self::Held<'_>>;
    /// Unlocks the leaf and makes it obsolete.
    #[doc(hidden)]
    fn unlock_obsolete(held: Self::Held<'_>);
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Optimistic {}
    impl Sealed for super::Faithful {}
    impl Sealed for super::Single {}
}

/// Readers validate the leaf's version.
#[derive(Debug)]
pub struct Optimistic;

impl Mode for Optimistic {
    const SHARED: bool = true;
    type Lock = VersionLock;
    type Ticket<'a> = (&'a VersionLock, Version);
    type Held<'a> = WriteGuard<'a>;

    #[inline]
    fn read(lock: &VersionLock) -> Result<Self::Ticket<'_>, Obsolete> {
        Ok((lock, lock.read()?))
    }
    #[inline]
    fn is_valid((lock, version): &Self::Ticket<'_>) -> bool {
        check!("wormhole.leaf.validate", lock.validate(*version))
    }
    #[inline]
    fn lock(lock: &VersionLock) -> Result<WriteGuard<'_>, Obsolete> {
        lock.lock()
    }
    #[inline]
    fn try_lock(lock: &VersionLock) -> Option<WriteGuard<'_>> {
        lock.try_upgrade(lock.try_read().ok()??)
    }
    fn unlock_obsolete(held: WriteGuard<'_>) {
        held.unlock_obsolete();
    }
}

/// Readers hold a shared lock of the leaf.
#[derive(Debug)]
pub struct Faithful;

impl Mode for Faithful {
    const SHARED: bool = true;
    /// The lock protects whether the leaf is obsolete.
    type Lock = RwLock<bool>;
    type Ticket<'a> = RwLockReadGuard<'a, bool>;
    type Held<'a> = RwLockWriteGuard<'a, bool>;

    // If a caller's closure panics, the leaf is still consistent, so a poisoned lock is accepted.
    fn read(lock: &RwLock<bool>) -> Result<Self::Ticket<'_>, Obsolete> {
        let ticket = lock.read().unwrap_or_else(PoisonError::into_inner);
        if *ticket { Err(Obsolete) } else { Ok(ticket) }
    }
    fn is_valid(_: &Self::Ticket<'_>) -> bool {
        true
    }
    fn lock(lock: &RwLock<bool>) -> Result<Self::Held<'_>, Obsolete> {
        let held = lock.write().unwrap_or_else(PoisonError::into_inner);
        if *held { Err(Obsolete) } else { Ok(held) }
    }
    fn try_lock(lock: &RwLock<bool>) -> Option<Self::Held<'_>> {
        let held = match lock.try_write() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (!*held).then_some(held)
    }
    fn unlock_obsolete(mut held: Self::Held<'_>) {
        *held = true;
    }
}

/// No synchronization.
#[derive(Debug)]
pub struct Single;

impl Mode for Single {
    const SHARED: bool = false;
    type Lock = ();
    type Ticket<'a> = ();
    type Held<'a> = ();

    #[inline]
    fn read(_: &()) -> Result<Self::Ticket<'_>, Obsolete> {
        Ok(())
    }
    #[inline]
    fn is_valid(_: &Self::Ticket<'_>) -> bool {
        true
    }
    #[inline]
    fn lock(_: &()) -> Result<Self::Held<'_>, Obsolete> {
        Ok(())
    }
    #[inline]
    fn try_lock(_: &()) -> Option<Self::Held<'_>> {
        Some(())
    }
    #[inline]
    fn unlock_obsolete(_: Self::Held<'_>) {}
}
