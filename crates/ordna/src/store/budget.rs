//! The memory limit.
//!
//! # Contract
//! The bytes reserved never exceed the limit, but by forced reservations. A reservation is refused
//! only if the limit has no room for it beside the reserved bytes and those that other threads are
//! taking in advance.
//!
//! # Protocol
//! One counter holds the bytes taken from the limit. Each thread takes a chunk in advance and keeps
//! the rest as its stripe's credit, so that it changes the shared counter once per chunk. When the
//! limit has no room, a thread returns the credits of all stores that share it, under a lock,
//! before it is refused. While more is taken than the limit, released bytes first repay that; only
//! the rest becomes credit.

use std::sync::{Arc, Weak};

use ordna_base::Error;
use ordna_base::sync::atomic::{AtomicUsize, Ordering};
use ordna_base::sync::{Lock, fault, notice, stripe_of_this_thread};

const STRIPES: usize = 64;
/// Bytes that a thread takes in advance.
const CHUNK: usize = 64 << 10;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Credit(AtomicUsize);

/// Bytes that the versions of some stores may take together; see
/// [`Options::memory_budget`](super::Options::memory_budget). Clones are one budget.
#[derive(Debug, Clone)]
pub struct MemoryBudget(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    /// Bytes; `usize::MAX`: no limit. Next to `taken`, which every change of `taken` reads it with.
    limit: AtomicUsize,
    /// The sum of the bytes that all shares have taken.
    taken: AtomicUsize,
    /// Number of guards that lift the limit.
    lifting: AtomicUsize,
    /// The shares of the stores that live. The lock's holder may return the credits of all.
    shares: Lock<Vec<Weak<Share>>>,
}

/// The bytes that one store has taken.
#[derive(Debug)]
struct Share {
    taken: AtomicUsize,
    credits: [Credit; STRIPES],
}

impl MemoryBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Pool {
            limit: AtomicUsize::new(bytes),
            taken: AtomicUsize::new(0),
            lifting: AtomicUsize::new(0),
            shares: Lock::default(),
        }))
    }

    /// Changes the limit; `usize::MAX` is none. Below what is taken, writes are refused until
    /// enough is freed.
    pub fn set_limit(&self, bytes: usize) {
        self.0.limit.store(bytes, Ordering::Relaxed);
        // What threads have taken in advance is within the former limit only.
        self.0.end_credits();
    }

    /// Bytes that the stores have taken, with those that threads have taken in advance: an upper
    /// bound of what is used. One load.
    #[inline]
    pub fn taken(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// Bytes that the stores use. Takes a lock, and back what threads have taken in advance.
    pub fn used(&self) -> usize {
        self.0.end_credits();
        self.taken()
    }

    /// Lifts the limit, for writers of all threads, until what this returns is dropped: for writes
    /// of which either all are to be done or none. What they take beyond the limit is made up for
    /// by what is freed, before anything else is written.
    pub fn lift(&self) -> Lifted {
        self.0.lifting.fetch_add(1, Ordering::Relaxed);
        Lifted(Arc::clone(&self.0))
    }
}

/// Lifts a memory limit until it is dropped: nothing is refused for it.
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

    /// `shares` are those of this pool, locked.
    fn end_credits_of(&self, shares: &[Weak<Share>]) {
        for share in shares.iter().filter_map(Weak::upgrade) {
            let credits = share.end_credits();
            share.taken.fetch_sub(credits, Ordering::Relaxed);
            self.taken.fetch_sub(credits, Ordering::Relaxed);
        }
    }
}

impl Share {
    /// Ends all credits; returns their sum.
    fn end_credits(&self) -> usize {
        self.credits.iter().map(|credit| credit.0.swap(0, Ordering::Relaxed)).sum()
    }
}

/// Bytes in use by one store, within a limit.
#[derive(Debug)]
pub struct Budget {
    pool: Arc<Pool>,
    share: Arc<Share>,
}

impl Drop for Budget {
    fn drop(&mut self) {
        // Under the lock: no thread returns this share's credits meanwhile.
        let mut shares = self.pool.shares.lock();
        shares.retain(|share| !std::ptr::eq(share.as_ptr(), &*self.share));
        self.pool.taken.fetch_sub(self.share.taken.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self::within(&MemoryBudget::new(limit))
    }

    /// A store's part of a budget, nothing so far; given back when it is dropped.
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

    /// Takes `bytes` from the limit, or refuses.
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

    /// The limit that the store is under, with others perhaps.
    pub fn shared(&self) -> MemoryBudget {
        MemoryBudget(Arc::clone(&self.pool))
    }

    /// Takes `bytes`, beyond the limit if it has no room for them.
    pub fn reserve_forced(&self, bytes: usize) {
        if self.reserve(bytes).is_err() {
            self.force(bytes);
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let limit = self.pool.limit();
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

    /// Bytes reserved by the store; exact while no thread writes.
    pub fn used(&self) -> usize {
        let credits = self.share.credits.iter().map(|credit| credit.0.load(Ordering::Relaxed));
        let credits: usize = credits.sum();
        self.share.taken.load(Ordering::Relaxed).saturating_sub(credits)
    }
}

fn draw(credit: &AtomicUsize, bytes: usize) -> bool {
    let rest = |credit: usize| credit.checked_sub(bytes);
    // Overwrites mostly take nothing: that changes no counter.
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
        budget.reserve(1).unwrap();
        both.set_limit(10 * CHUNK + 1);
        let limit = 10 * CHUNK + 1;
        assert_eq!(budget.limit(), Some(limit));
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
        // The last thread is not refused while a whole reservation fits.
        let fits = (10 * CHUNK - granted * 100) / 100;
        assert_eq!((0..10).filter(|_| budget.reserve(100).is_ok()).count(), fits.min(10));
    }
}
