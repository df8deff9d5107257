//! The memory limit of one store or several.
//!
//! # Contract
//! The reserved bytes never exceed the limit, except by forced reservations. A reservation fails
//! only if the limit has no room for it in addition to the reserved bytes and those that other
//! threads are just taking in advance.
//!
//! # Protocol
//! One counter holds the bytes taken from the limit. Each thread takes a chunk in advance and keeps
//! the unused part as the credit of its stripe, so that it changes the shared counter only once per
//! chunk. When the limit has no room, a thread first returns the credits of all stores that share
//! the limit, under a lock; only if that is not enough does its reservation fail. While more is
//! taken than the limit, released bytes reduce the excess first, and only the rest becomes credit.

use std::sync::{Arc, Weak};

use ordna_base::Error;
use ordna_base::sync::atomic::{AtomicUsize, Ordering};
use ordna_base::sync::{Lock, fault, notice, stripe_of_this_thread};

const STRIPES: usize = 64;
/// Number of bytes that a thread takes in advance.
const CHUNK: usize = 64 << 10;
/// Minimum of [`most_excess`], so that small stores can be emptied by expiry while a snapshot is
/// kept.
const LEAST_EXCESS: usize = 256 << 10;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Credit(AtomicUsize);

/// The number of bytes that the versions of one or more stores may take together; see
/// [`Options::memory_budget`](super::Options::memory_budget). Clones share the budget.
///
/// ```
/// use ordna::{MemoryBudget, Options, Store};
///
/// let budget = MemoryBudget::new(1 << 20);
/// let store: Store<u64, u64> = Store::with_options(Options::new().memory_budget(&budget));
/// store.put(1, 1)?;
/// assert!(budget.used() > 0 && budget.used() <= budget.taken());
/// # Ok::<(), ordna::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    /// Limit in bytes; `usize::MAX` means no limit. On the same cache line as `taken`, because
    /// every change of `taken` reads it.
    limit: AtomicUsize,
    /// Total number of bytes that all shares have taken.
    taken: AtomicUsize,
    /// Number of guards that lift the limit.
    lifting: AtomicUsize,
    /// The shares of live stores. The holder of the lock may return the credits of all of them.
    shares: Lock<Vec<Weak<Share>>>,
}

/// The bytes that one store has taken.
#[derive(Debug)]
struct Share {
    taken: AtomicUsize,
    credits: [Credit; STRIPES],
}

impl MemoryBudget {
    /// Creates a budget of `bytes`.
    ///
    /// ```
    /// let budget = ordna::MemoryBudget::new(1 << 20);
    /// assert_eq!(budget.used(), 0);
    /// ```
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Pool {
            limit: AtomicUsize::new(bytes),
            taken: AtomicUsize::new(0),
            lifting: AtomicUsize::new(0),
            shares: Lock::default(),
        }))
    }

    /// Changes the limit; `usize::MAX` means no limit. If more than the new limit is taken, writes
    /// fail until enough is freed.
    ///
    /// ```
    /// use ordna::{MemoryBudget, Options, Store};
    ///
    /// let budget = MemoryBudget::new(0);
    /// let store: Store<u64, u64> = Store::with_options(Options::new().memory_budget(&budget));
    /// assert!(store.put(1, 1).is_err());
    /// budget.set_limit(1 << 20);
    /// assert!(store.put(1, 1).is_ok());
    /// ```
    pub fn set_limit(&self, bytes: usize) {
        self.0.limit.store(bytes, Ordering::Relaxed);
        // The bytes that threads have taken in advance fit the former limit only.
        self.0.end_credits();
    }

    /// Returns the number of bytes that the stores have taken, including those that threads have
    /// taken in advance: an upper bound of the bytes in use. Costs one load.
    ///
    /// ```
    /// let budget = ordna::MemoryBudget::new(1 << 20);
    /// assert_eq!(budget.taken(), 0);
    /// ```
    #[inline]
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes in use. Takes a lock and ends the credits of all threads.
    ///
    /// ```
    /// let budget = ordna::MemoryBudget::new(1 << 20);
    /// assert_eq!(budget.used(), 0);
    /// ```
    pub fn used(&self) -> usize {
        self.0.end_credits();
        self.taken()
    }

    /// Returns the bytes that are free below the limit; `None` without a limit.
    pub(crate) fn room(&self) -> Option<usize> {
        let limit = self.0.limit();
        (limit < usize::MAX).then(|| limit.saturating_sub(self.taken()))
    }

    /// Lifts the limit for the writers of all threads until the result is dropped. This is for
    /// writes of which either all or none must succeed. The bytes taken beyond the limit must be
    /// freed before other writes succeed again.
    ///
    /// ```
    /// use ordna::{MemoryBudget, Options, Store};
    ///
    /// let budget = MemoryBudget::new(0);
    /// let store: Store<u64, u64> = Store::with_options(Options::new().memory_budget(&budget));
    /// let lifted = budget.lift();
    /// store.put(1, 1)?;
    /// drop(lifted);
    /// assert!(store.put(2, 2).is_err());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn lift(&self) -> Lifted {
        self.0.lifting.fetch_add(1, Ordering::Relaxed);
        Lifted(Arc::clone(&self.0))
    }
}

/// A guard that lifts a memory limit until it is dropped.
///
/// ```
/// let budget = ordna::MemoryBudget::new(0);
/// let lifted = budget.lift();
/// // Writes succeed until the guard is dropped.
/// drop(lifted);
/// ```
#[derive(Debug)]
#[must_use]
pub struct Lifted(Arc<Pool>);

impl Drop for Lifted {
    fn drop(&mut self) {
        self.0.lifting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns the credits of all shares to the limit.
    fn end_credits(&self) {
        self.end_credits_of(&self.shares.lock());
    }

    /// Returns the credits of `shares`, which are those of this pool, locked.
    fn end_credits_of(&self, shares: &[Weak<Share>]) {
        for share in shares.iter().filter_map(Weak::upgrade) {
            let credits = share.end_credits();
            share.taken.fetch_sub(credits, Ordering::Relaxed);
            self.taken.fetch_sub(credits, Ordering::Relaxed);
        }
    }
}

impl Share {
    /// Ends all credits and returns their sum.
    fn end_credits(&self) -> usize {
        self.credits.iter().map(|credit| credit.0.swap(0, Ordering::Relaxed)).sum()
    }
}

/// The bytes that one store uses of a budget.
#[derive(Debug)]
pub struct Budget {
    pool: Arc<Pool>,
    share: Arc<Share>,
}

impl Drop for Budget {
    fn drop(&mut self) {
        // Taken under the lock, so that no thread returns the credits of this share concurrently.
        let mut shares = self.pool.shares.lock();
        shares.retain(|share| !std::ptr::eq(share.as_ptr(), &*self.share));
        self.pool.taken.fetch_sub(self.share.taken.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self::within(&MemoryBudget::new(limit))
    }

    /// Creates a store's part of a budget, initially empty. Its bytes are given back on drop.
    pub fn within(budget: &MemoryBudget) -> Self {
        let credits = std::array::from_fn(|_| Credit::default());
        let share = Arc::new(Share { taken: AtomicUsize::new(0), credits });
        let pool = Arc::clone(&budget.0);
        let mut shares = pool.shares.lock();
        shares.push(Arc::downgrade(&share));
        drop(shares);
        Self { pool, share }
    }

    pub fn limit(&self) -> Option<usize> {
        Some(self.pool.limit()).filter(|limit| *limit < usize::MAX)
    }

    fn credit(&self) -> &AtomicUsize {
        &self.share.credits[stripe_of_this_thread() % STRIPES].0
    }

    /// Takes `bytes` from the limit, or fails if there is no room.
    #[inline]
    pub fn reserve(&self, bytes: usize) -> Result<(), Error> {
        if draw(self.credit(), bytes) { Ok(()) } else { self.reserve_more(bytes) }
    }

    #[cold]
    fn reserve_more(&self, bytes: usize) -> Result<(), Error> {
        let wanted = bytes.saturating_add(CHUNK);
        if self.take(wanted) {
            self.credit().fetch_add(CHUNK, Ordering::Relaxed);
            return Ok(());
        }
        let shares = self.pool.shares.lock();
        if !fault!("store.budget.credits_return") {
            self.pool.end_credits_of(&shares);
        }
        if self.take(bytes) {
            return Ok(());
        }
        if self.pool.lifting.load(Ordering::Relaxed) == 0 {
            return Err(Error::MemoryLimit { limit: self.pool.limit() });
        }
        self.force(bytes);
        Ok(())
    }

    /// Returns the budget, which other stores may share.
    pub fn shared(&self) -> MemoryBudget {
        MemoryBudget(Arc::clone(&self.pool))
    }

    /// Takes `bytes`, even if that exceeds the limit.
    pub fn reserve_forced(&self, bytes: usize) {
        if self.reserve(bytes).is_err() {
            self.force(bytes);
        }
    }

    /// Takes `grows` bytes for a change of a deadline, beyond the limit if need be. If a snapshot
    /// keeps the former version, which takes `undo` bytes more later, all together may exceed the
    /// limit by [`most_excess`] only; otherwise this is refused.
    pub fn reserve_for_deadline(&self, grows: usize, undo: usize) -> Result<(), Error> {
        if undo == 0 {
            self.reserve_forced(grows);
            return Ok(());
        }
        if self.reserve(grows + undo).is_err() {
            let most = self.pool.limit().saturating_add(most_excess(self.pool.limit()));
            let is_taken = self.take_within(grows + undo, most);
            if notice!("store.limit.bounds_copies", !is_taken) {
                return Err(Error::MemoryLimit { limit: self.pool.limit() });
            }
            if !is_taken {
                self.force(grows + undo);
            }
        }
        self.release(undo);
        Ok(())
    }

    /// Checks whether [`reserve_for_deadline`](Self::reserve_for_deadline) has room for a copy of
    /// `bytes`.
    pub fn check_room_for_deadline(&self, bytes: usize) -> Result<(), Error> {
        self.reserve_for_deadline(0, bytes)
    }

    fn take(&self, bytes: usize) -> bool {
        self.take_within(bytes, self.pool.limit())
    }

    fn take_within(&self, bytes: usize, limit: usize) -> bool {
        let within = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= limit);
        let done = self.pool.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within);
        if done.is_ok() {
            self.share.taken.fetch_add(bytes, Ordering::Relaxed);
        }
        done.is_ok()
    }

    fn force(&self, bytes: usize) {
        self.pool.taken.fetch_add(bytes, Ordering::Relaxed);
        self.share.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        let before = self.share.taken.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "{bytes} bytes of {before} are given back");
        self.pool.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Gives back reserved bytes.
    #[inline]
    pub fn release(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let exceeded = self.pool.taken.load(Ordering::Relaxed) > self.pool.limit();
        if notice!("store.budget.makes_up", exceeded) {
            self.give_back(bytes);
            return;
        }
        let credit = self.credit();
        let before = credit.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > 4 * CHUNK && draw(credit, before + bytes - CHUNK) {
            self.give_back(before + bytes - CHUNK);
        }
    }

    /// Returns the number of bytes that the store has reserved. Exact while no thread writes.
    pub fn used(&self) -> usize {
        let credits = self.share.credits.iter().map(|credit| credit.0.load(Ordering::Relaxed));
        let credits: usize = credits.sum();
        self.share.taken.load(Ordering::Relaxed).saturating_sub(credits)
    }
}

/// Returns the maximum number of bytes by which copies for deadlines exceed a limit.
fn most_excess(limit: usize) -> usize {
    (limit / 16).max(LEAST_EXCESS)
}

fn draw(credit: &AtomicUsize, bytes: usize) -> bool {
    let rest = |credit: usize| credit.checked_sub(bytes);
    // Most overwrites need no bytes and then change no counter.
    bytes == 0 || credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact_whatever_was_taken_in_advance() {
        let budget = Budget::new(3 * CHUNK);
        // Another thread takes a chunk in advance and uses ten bytes of it.
        std::thread::scope(|scope| {
            scope.spawn(|| budget.reserve(10).unwrap());
        });
        assert_eq!(budget.reserve(3 * CHUNK - 10), Ok(()));
        assert_eq!(budget.reserve(1), Err(Error::MemoryLimit { limit: 3 * CHUNK }));
        budget.release(1);
        assert_eq!(budget.reserve(2), Err(Error::MemoryLimit { limit: 3 * CHUNK }));
        assert_eq!(budget.reserve(1), Ok(()));
        budget.release(3 * CHUNK);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_one_has_not_used_or_has_given_back_is_there_for_the_other() {
        let both = MemoryBudget::new(3 * CHUNK);
        let (one, other) = (Budget::within(&both), Budget::within(&both));
        let limit = Error::MemoryLimit { limit: 3 * CHUNK };
        one.reserve(10).unwrap();
        assert_eq!(other.reserve(3 * CHUNK - 9), Err(limit.clone()));
        other.reserve(3 * CHUNK - 10).unwrap();
        assert_eq!((one.used(), other.used()), (10, 3 * CHUNK - 10));
        assert_eq!(one.reserve(1), Err(limit.clone()));
        drop(other);
        one.reserve(CHUNK).unwrap();
        let other = Budget::within(&both);
        assert_eq!(other.reserve(2 * CHUNK), Err(limit));
        drop(one);
        other.reserve(3 * CHUNK).unwrap();
    }

    #[test]
    fn a_limit_that_changes_holds_for_what_was_taken_in_advance() {
        let both = MemoryBudget::new(usize::MAX);
        let budget = Budget::within(&both);
        assert_eq!(budget.limit(), None);
        budget.reserve(10 * CHUNK).unwrap();
        assert_eq!((both.taken(), both.used()), (11 * CHUNK, 10 * CHUNK));
        assert_eq!(both.room(), None);
        budget.reserve(1).unwrap();
        both.set_limit(10 * CHUNK + 1);
        let limit = 10 * CHUNK + 1;
        assert_eq!((budget.limit(), both.room()), (Some(limit), Some(0)));
        assert_eq!(budget.reserve(1), Err(Error::MemoryLimit { limit }));
        both.set_limit(5 * CHUNK);
        budget.release(CHUNK + 1);
        assert_eq!(budget.reserve(1), Err(Error::MemoryLimit { limit: 5 * CHUNK }));
        both.set_limit(usize::MAX);
        budget.reserve(CHUNK).unwrap();
        budget.release(10 * CHUNK);
        assert_eq!(both.used(), 0);
    }

    #[test]
    fn threads_together_stay_within_the_limit() {
        let budget = Budget::new(10 * CHUNK);
        let granted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..100_000).filter(|_| budget.reserve(100).is_ok()).count())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(granted * 100 <= 10 * CHUNK, "{granted} grants");
        assert_eq!(budget.used(), granted * 100);
        // A reservation of the last thread succeeds if all of it fits.
        let fits = (10 * CHUNK - granted * 100) / 100;
        assert_eq!((0..10).filter(|_| budget.reserve(100).is_ok()).count(), fits.min(10));
    }
}
