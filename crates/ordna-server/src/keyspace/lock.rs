//! The lock of the keyspace, which every command holds while it executes.
//!
//! # Concurrency
//! Commands share the lock; those that exclude all others hold it alone. A thread must not lock it
//! again while it holds it: a second lock, even a shared one, waits for a thread that waits to
//! exclude others, which waits for the first. Builds with debug assertions panic at a second lock.

use std::ops::Deref;
use std::sync::PoisonError;

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

use crate::keyspace::Keyspace;

#[derive(Debug)]
pub struct KeyspaceLock(ShardedLock<Keyspace>);

// A panic under the lock leaves the keyspace intact: each operation of the store is atomic.
impl KeyspaceLock {
    pub fn new(keyspace: Keyspace) -> Self {
        Self(ShardedLock::new(keyspace))
    }

    /// Locks the keyspace for a command that may run concurrently with others.
    pub fn shared(&self) -> KeyspaceGuard<'_> {
        let held = Held::new();
        KeyspaceGuard::Shared(self.0.read().unwrap_or_else(PoisonError::into_inner), held)
    }

    /// Locks the keyspace for a command that excludes all others.
    pub fn exclusive(&self) -> KeyspaceGuard<'_> {
        let held = Held::new();
        KeyspaceGuard::Exclusive(self.0.write().unwrap_or_else(PoisonError::into_inner), held)
    }
}

/// The locked keyspace.
pub enum KeyspaceGuard<'a> {
    /// Other commands run concurrently.
    Shared(ShardedLockReadGuard<'a, Keyspace>, Held),
    /// No other command runs.
    Exclusive(ShardedLockWriteGuard<'a, Keyspace>, Held),
    /// Neither, for the moment between the two in [`make_exclusive`](Self::make_exclusive).
    Released,
}

impl KeyspaceGuard<'_> {
    /// Whether no other command runs.
    pub fn is_exclusive(&self) -> bool {
        matches!(self, Self::Exclusive(..))
    }

    /// Lets commands in progress end, and excludes others: `lock` locks the keyspace for that. The keyspace
    /// may have changed in between.
    pub fn make_exclusive(&mut self, lock: impl FnOnce() -> Self) {
        if !self.is_exclusive() {
            *self = Self::Released;
            *self = lock();
        }
    }
}

impl Deref for KeyspaceGuard<'_> {
    type Target = Keyspace;

    fn deref(&self) -> &Keyspace {
        match self {
            Self::Shared(keys, _) => keys,
            Self::Exclusive(keys, _) => keys,
            Self::Released => unreachable!("only make_exclusive releases it, for a moment"),
        }
    }
}

/// Marks the current thread as one that holds the lock, if debug assertions are on.
pub struct Held(());

#[cfg(debug_assertions)]
thread_local! {
    static IS_HELD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Held {
    #[track_caller]
    fn new() -> Self {
        #[cfg(debug_assertions)]
        assert!(!IS_HELD.replace(true), "the thread holds the lock of the keyspace already");
        Self(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        IS_HELD.set(false);
    }
}
