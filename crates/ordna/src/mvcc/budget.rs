//! The memory limit.
//!
//! # Contract
//! The bytes reserved never exceed the limit, whoever reserves at once, but by what was forced. A
//! reservation is refused only if the limit has no room for it beside what is reserved and what
//! other threads are just taking in advance.
//!
//! # Protocol
//! One counter holds what was taken from the limit; threads take a chunk in advance each and keep
//! the rest as their stripe's credit, so that the shared counter is touched once per chunk. When
//! the limit has no room, all credits are returned to it, under a lock, before anybody is refused.
//! While more is taken than the limit, what is given back is nobody's credit: it makes up for that.

use std::sync::{Arc, Mutex, PoisonError};

use crate::Error;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{fault, stripe_of_this_thread};

const STRIPES: usize = 64;
/// What a thread takes in advance.
const CHUNK: usize = 64 << 10;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Credit(AtomicUsize);

/// Bytes in use, within a limit.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    taken: AtomicUsize,
    credits: Box<[Credit]>,
    returning: Mutex<()>,
    /// Those who lift the limit.
    lifting: Arc<AtomicUsize>,
}

/// Lifts the memory limit of a store until it is dropped: nothing is refused for it.
#[derive(Debug)]
#[must_use]
pub struct Lifted(Arc<AtomicUsize>);

impl Drop for Lifted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            taken: AtomicUsize::new(0),
            credits: (0..STRIPES).map(|_| Credit::default()).collect(),
            returning: Mutex::new(()),
            lifting: Arc::default(),
        }
    }

    pub fn limit(&self) -> Option<usize> {
        (self.limit < usize::MAX).then_some(self.limit)
    }

    fn credit(&self) -> &AtomicUsize {
        &self.credits[stripe_of_this_thread() % STRIPES].0
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
        let _returning = self.returning.lock().unwrap_or_else(PoisonError::into_inner);
        if !fault!("mvcc.budget.credits_return") {
            let credits = self.credits.iter().map(|credit| credit.0.swap(0, Ordering::Relaxed));
            self.taken.fetch_sub(credits.sum(), Ordering::Relaxed);
        }
        if self.take(bytes) {
            return Ok(());
        }
        if self.lifting.load(Ordering::Relaxed) == 0 {
            return Err(Error::MemoryLimit { limit: self.limit });
        }
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Has all that is reserved meanwhile be forced.
    pub fn lift(&self) -> Lifted {
        self.lifting.fetch_add(1, Ordering::Relaxed);
        Lifted(Arc::clone(&self.lifting))
    }

    /// Takes `bytes`, beyond the limit if it has no room for them.
    pub fn reserve_forced(&self, bytes: usize) {
        if self.reserve(bytes).is_err() {
            self.taken.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let within = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= self.limit);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    /// Gives back what was reserved.
    #[inline]
    pub fn release(&self, bytes: usize) {
        if self.taken.load(Ordering::Relaxed) > self.limit && !fault!("mvcc.budget.makes_up") {
            self.taken.fetch_sub(bytes, Ordering::Relaxed);
            return;
        }
        let credit = self.credit();
        let before = credit.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > 4 * CHUNK && draw(credit, before + bytes - CHUNK) {
            self.taken.fetch_sub(before + bytes - CHUNK, Ordering::Relaxed);
        }
    }

    /// Bytes reserved; exact while nobody writes.
    pub fn used(&self) -> usize {
        let credits = self.credits.iter().map(|credit| credit.0.load(Ordering::Relaxed));
        let credits: usize = credits.sum();
        self.taken.load(Ordering::Relaxed).saturating_sub(credits)
    }
}

fn draw(credit: &AtomicUsize, bytes: usize) -> bool {
    let rest = |credit: usize| credit.checked_sub(bytes);
    credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).is_ok()
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
        // Whoever is last is not refused while a whole reservation fits.
        let fits = (10 * CHUNK - granted * 100) / 100;
        assert_eq!((0..10).filter(|_| budget.reserve(100).is_ok()).count(), fits.min(10));
    }
}
