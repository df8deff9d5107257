//! The lock of the keyspace, which every command holds while it executes.
//!
//! # Concurrency
//! Commands share the lock; a command that excludes all others holds it alone. A thread that holds
//! the lock must not lock it again, not even in shared mode: the second lock would wait for a
//! thread that waits to exclude others, which waits for the first. Builds with debug assertions
//! panic at a second lock.
//!
//! # Long holders
//! A script may hold the lock for a long time, and the server has to serve the client that ends it.
//! So worker threads of the runtime must not wait for a long holder; threads for blocking tasks
//! may. A thread that is about to wait announces this first. A long holder announces itself and
//! then waits until all threads with earlier announcements have had the lock. So either the thread
//! sees the long holder, or the long holder sees the thread.
//!
//! Long holders take turns: a long holder has its [`Turn`] from before its announcement until it
//! has withdrawn it. Tasks wait for the turn without a thread, in the order of their arrival. Tasks
//! that have waited for a long holder ([`Delayed`]) come before the next one, so that scripts do
//! not keep out other commands.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use ordna::sync::point;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::keyspace::Keyspace;
use crate::keyspace::snapshot::KeyspaceSnapshot;

/// Interval at which those that wait for a long holder check again.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct KeyspaceLock {
    lock: ShardedLock<Keyspace>,
    /// One plus the milliseconds from `created` to the announcement of the long holder; 0 if there
    /// is none.
    long_since: AtomicU64,
    created: Instant,
    /// Number of threads that wait for a holder that is not a long one.
    waiting: AtomicUsize,
    /// Notified when a long holder has ended.
    released: Notify,
    /// The turn of the long holders.
    turns: Arc<Semaphore>,
    /// Number of tasks that wait for a long holder or have just waited for it.
    delayed: AtomicUsize,
    /// Notified when there are no such tasks any more.
    passed: Notify,
}

/// A task that waits, or has waited, for a long holder. The next long holder waits until this is
/// dropped.
#[derive(Debug)]
pub struct Delayed<'a>(&'a KeyspaceLock);

impl Drop for Delayed<'_> {
    fn drop(&mut self) {
        if self.0.delayed.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.passed.notify_one();
        }
    }
}

/// The turn of a long holder. There is one at a time.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

// A panic under the lock leaves the keyspace intact, because each operation of the store is atomic.
impl KeyspaceLock {
    pub fn new(keyspace: Keyspace) -> Self {
        Self {
            lock: ShardedLock::new(keyspace),
            long_since: AtomicU64::new(0),
            created: Instant::now(),
            waiting: AtomicUsize::new(0),
            released: Notify::new(),
            turns: Arc::new(Semaphore::new(1)),
            delayed: AtomicUsize::new(0),
            passed: Notify::new(),
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

    /// Works like [`shared`](Self::shared), but returns `None` if a command excludes others.
    #[inline]
    pub fn try_shared(&self) -> Option<KeyspaceGuard<'_>> {
        let guard = match self.lock.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(KeyspaceGuard::Shared(guard, Held::new(None)))
    }

    /// Locks the keyspace for a command that excludes all others.
    pub fn exclusive(&self) -> KeyspaceGuard<'_> {
        let held = Held::new(None);
        let guard = self.wait(|| self.lock.write().unwrap_or_else(PoisonError::into_inner));
        KeyspaceGuard::Exclusive(guard, held)
    }

    /// Locks the keyspace for a command that excludes all others and may take long.
    pub fn exclusive_for_long(&self, turn: Turn) -> KeyspaceGuard<'_> {
        let now = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.long_since.store(now + 1, Ordering::SeqCst);
        while self.waiting.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        let guard = self.lock.write().unwrap_or_else(PoisonError::into_inner);
        KeyspaceGuard::Exclusive(guard, Held::new(Some((self, turn))))
    }

    /// Returns the turn of a long holder if no other task waits for it or must come before it.
    pub fn try_turn(&self) -> Option<Turn> {
        if self.delayed.load(Ordering::SeqCst) > 0 {
            return None;
        }
        Arc::clone(&self.turns).try_acquire_owned().ok().map(Turn)
    }

    /// Waits for the turn of a long holder. Returns `None` if the current one has held the lock for
    /// `patience`.
    pub async fn turn(&self, patience: Duration) -> Option<Turn> {
        let ready = async {
            let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
            while self.delayed.load(Ordering::SeqCst) > 0 {
                self.passed.notified().await;
            }
            Some(Turn(turn))
        };
        tokio::select! {
            turn = ready => turn,
            () = self.held_long(patience) => None,
        }
    }

    /// Waits until a long holder has held the lock for `patience`.
    async fn held_long(&self, patience: Duration) {
        loop {
            let left = patience.saturating_sub(self.held_long_for().unwrap_or_default());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
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

    /// Returns whether there is a long holder.
    #[inline]
    pub fn is_held_long(&self) -> bool {
        self.long_since.load(Ordering::SeqCst) != 0
    }

    /// Returns how long the long holder has held the lock.
    pub fn held_long_for(&self) -> Option<Duration> {
        let since = self.long_since.load(Ordering::SeqCst).checked_sub(1)?;
        Some(self.created.elapsed().saturating_sub(Duration::from_millis(since)))
    }

    /// Waits until there is no long holder, or until it has held the lock for `patience`. The next
    /// long holder waits until the result is dropped.
    pub async fn not_held_long(&self, patience: Duration) -> Delayed<'_> {
        self.delayed.fetch_add(1, Ordering::SeqCst);
        let delayed = Delayed(self);
        loop {
            let released = self.released.notified();
            let left = match self.held_long_for() {
                Some(time) if time < patience => patience - time,
                _ => return delayed,
            };
            // If the holder ends before the wait begins, this notices it later.
            let _ = tokio::time::timeout(left.min(LOOK), released).await;
        }
    }
}

/// Runs a wait so that no other task of the runtime has to wait for this thread.
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
    /// The command is part of a run, which has locked the keyspace in shared mode.
    OfRun(&'a Keyspace),
    /// Nothing is locked: the command reads this snapshot.
    Snapshot(Arc<KeyspaceSnapshot>),
    /// Nothing is locked and no key accessed, because the command needs none or is inside
    /// [`release_for_a_moment`](Self::release_for_a_moment).
    Released,
}

impl KeyspaceGuard<'_> {
    /// Returns whether no other command runs.
    pub fn is_exclusive(&self) -> bool {
        matches!(self, Self::Exclusive(..))
    }

    /// Whether the command is part of a run, which holds the lock.
    pub fn is_of_run(&self) -> bool {
        matches!(self, Self::OfRun(_))
    }

    /// Lets other commands use the keyspace, and then locks it again with `lock`. The keyspace may
    /// have changed in between.
    pub fn release_for_a_moment(&mut self, lock: impl FnOnce() -> Self) {
        debug_assert!(!self.is_of_run(), "the run would still hold the lock");
        *self = Self::Released;
        *self = lock();
    }

    /// Returns the snapshot that the command reads, if it reads one.
    pub fn snapshot(&self) -> Option<&KeyspaceSnapshot> {
        match self {
            Self::Snapshot(snapshot) => Some(snapshot),
            _ => None,
        }
    }

    /// Waits for the commands in progress and excludes others: `lock` locks the keyspace for that.
    /// The keyspace may have changed in between.
    pub fn make_exclusive(&mut self, lock: impl FnOnce() -> Self) {
        if !self.is_exclusive() {
            self.release_for_a_moment(lock);
        }
    }
}

impl Deref for KeyspaceGuard<'_> {
    type Target = Keyspace;

    fn deref(&self) -> &Keyspace {
        match self {
            Self::Shared(keys, _) => keys,
            Self::Exclusive(keys, _) => keys,
            Self::OfRun(keys) => keys,
            Self::Snapshot(snapshot) => snapshot.keyspace(),
            Self::Released => unreachable!("nothing accesses keys that are not locked"),
        }
    }
}

/// Marks the current thread as one that holds the lock, if debug assertions are on. Dropped after
/// the lock.
pub struct Held<'a>(Option<(&'a KeyspaceLock, Turn)>);

#[cfg(debug_assertions)]
thread_local! {
    static IS_HELD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl<'a> Held<'a> {
    #[track_caller]
    fn new(long: Option<(&'a KeyspaceLock, Turn)>) -> Self {
        #[cfg(debug_assertions)]
        assert!(!IS_HELD.replace(true), "the thread holds the lock of the keyspace already");
        Self(long)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        IS_HELD.set(false);
        if let Some((lock, _turn)) = self.0.take() {
            point("keyspace.lock.withdraws");
            lock.long_since.store(0, Ordering::SeqCst);
            lock.released.notify_waiters();
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::sync::mpsc::channel;

    use ordna::Options;
    use ordna::sync::schedule::held;

    use super::*;

    /// A thread that has not seen a long holder would wait for it in a worker of the runtime.
    #[test]
    fn a_long_holder_right_after_another_is_known() {
        let lock = KeyspaceLock::new(Keyspace::with_options(Options::new()));
        let for_long = || loop {
            match lock.try_turn() {
                Some(turn) => break lock.exclusive_for_long(turn),
                None => std::thread::yield_now(),
            }
        };
        let (holds, told) = channel();
        std::thread::scope(|scope| {
            let first = held("keyspace.lock.withdraws", || drop(for_long()));
            let second = || {
                scope.spawn(|| {
                    let guard = for_long();
                    holds.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(100));
                    assert!(lock.is_held_long(), "nobody knows of the second holder");
                    drop(guard);
                });
                // The second holder may wait for the end of the first one.
                let _ = told.recv_timeout(Duration::from_millis(50));
            };
            first.meanwhile(second);
        });
        assert!(!lock.is_held_long());
    }
}
