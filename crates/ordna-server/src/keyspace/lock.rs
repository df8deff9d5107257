//! The lock of the keyspace, which every command holds while it executes.
//!
//! # Concurrency
//! Commands share the lock; those that exclude all others hold it alone. A thread must not lock it
//! again while it holds it: a second lock, even a shared one, waits for a thread that waits to
//! exclude others, which waits for the first. Builds with debug assertions panic at a second lock.
//!
//! # Long holders
//! A script may hold the lock for long, and the server has to serve the client that ends it. So no thread of the
//! runtime waits for a long holder, except in a place of its own. A thread that is about to wait announces that
//! first; a long holder announces itself first, and then waits until all threads that had announced
//! themselves have their turn. Either the thread sees the long holder, or that one sees the thread.

use std::ops::Deref;
use std::sync::PoisonError;
use std::sync::TryLockError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use tokio::sync::Notify;

use crate::keyspace::Keyspace;

#[derive(Debug)]
pub struct KeyspaceLock {
    lock: ShardedLock<Keyspace>,
    /// Milliseconds from `created` to the announcement of the long holder, and one more; 0: there is none.
    long_since: AtomicU64,
    created: Instant,
    /// Threads that wait for a holder that is not a long one.
    waiting: AtomicUsize,
    /// Notified when a long holder has ended.
    released: Notify,
}

// A panic under the lock leaves the keyspace intact: each operation of the store is atomic.
impl KeyspaceLock {
    pub fn new(keyspace: Keyspace) -> Self {
        Self {
            lock: ShardedLock::new(keyspace),
            long_since: AtomicU64::new(0),
            created: Instant::now(),
            waiting: AtomicUsize::new(0),
            released: Notify::new(),
        }
    }

    /// Locks the keyspace for a command that may run concurrently with others.
    #[inline]
    pub fn shared(&self) -> KeyspaceGuard<'_> {
        let held = Held::new(None);
        let guard = match self.lock.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.wait(|| self.lock.read().unwrap_or_else(PoisonError::into_inner))
            }
        };
        KeyspaceGuard::Shared(guard, held)
    }

    /// Locks the keyspace for a command that excludes all others.
    pub fn exclusive(&self) -> KeyspaceGuard<'_> {
        let held = Held::new(None);
        let guard = self.wait(|| self.lock.write().unwrap_or_else(PoisonError::into_inner));
        KeyspaceGuard::Exclusive(guard, held)
    }

    /// Locks the keyspace for a command that excludes all others and may take long.
    pub fn exclusive_for_long(&self) -> KeyspaceGuard<'_> {
        let write = || self.lock.write().unwrap_or_else(PoisonError::into_inner);
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        let taken =
            self.long_since.compare_exchange(0, now + 1, Ordering::SeqCst, Ordering::SeqCst);
        let guard = if taken.is_ok() {
            while self.waiting.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
            write()
        } else {
            // After another one.
            let guard = apart(write);
            self.long_since.store(now + 1, Ordering::SeqCst);
            guard
        };
        KeyspaceGuard::Exclusive(guard, Held::new(Some(self)))
    }

    #[inline(never)]
    fn wait<T>(&self, lock: impl FnOnce() -> T) -> T {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.is_held_long() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return apart(lock);
        }
        let guard = lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// Whether there is a long holder.
    #[inline]
    pub fn is_held_long(&self) -> bool {
        self.long_since.load(Ordering::SeqCst) != 0
    }

    /// For how long the long holder has the lock.
    pub fn held_long_for(&self) -> Option<Duration> {
        let since = self.long_since.load(Ordering::SeqCst).checked_sub(1)?;
        Some(self.created.elapsed().saturating_sub(Duration::from_millis(since)))
    }

    /// Waits until there is no long holder, or it has the lock for this time.
    pub async fn not_held_long(&self, patience: Duration) {
        loop {
            let released = self.released.notified();
            let left = match self.held_long_for() {
                Some(time) if time < patience => patience - time,
                _ => return,
            };
            // If it ends before the wait begins, this notices it.
            let _ = tokio::time::timeout(left.min(Duration::from_secs(1)), released).await;
        }
    }
}

/// Waits where no other task waits for this thread.
fn apart<T>(wait: impl FnOnce() -> T) -> T {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => tokio::task::block_in_place(wait),
        Err(_) => wait(),
    }
}

/// The locked keyspace.
pub enum KeyspaceGuard<'a> {
    /// Other commands run concurrently.
    Shared(
        ShardedLockReadGuard<'a, Keyspace>,
        #[expect(dead_code, reason = "dropped after the guard")] Held<'a>,
    ),
    /// No other command runs.
    Exclusive(
        ShardedLockWriteGuard<'a, Keyspace>,
        #[expect(dead_code, reason = "dropped after the guard")] Held<'a>,
    ),
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

/// Marks the current thread as one that holds the lock, if debug assertions are on; dropped after the lock.
pub struct Held<'a>(Option<&'a KeyspaceLock>);

#[cfg(debug_assertions)]
thread_local! {
    static IS_HELD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl<'a> Held<'a> {
    #[track_caller]
    fn new(long: Option<&'a KeyspaceLock>) -> Self {
        #[cfg(debug_assertions)]
        assert!(!IS_HELD.replace(true), "the thread holds the lock of the keyspace already");
        Self(long)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        IS_HELD.set(false);
        if let Some(lock) = self.0 {
            lock.long_since.store(0, Ordering::SeqCst);
            lock.released.notify_waiters();
        }
    }
}
