//! Wraps indexes for one thread in a lock, so that the suite can check their contract, too.

use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ordna_base::index::Bounds;
use ordna_base::reclaim::Guard;
use ordna_base::{Direction, OrderedIndex};
use ordna_papers::Unshared;

/// An index for one thread behind a mutex.
pub struct Alone<I>(Mutex<I>);

impl<I> Alone<I> {
    /// Wraps an index.
    pub fn new(index: I) -> Self {
        Self(Mutex::new(index))
    }

    fn lock(&self) -> MutexGuard<'_, I> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Unshared + Send> OrderedIndex for Alone<I> {
    type Key = I::Key;
    type Value = I::Value;

    ordna_testkit::forward!(self, self.lock(); get_with, modify, get_many_with, memory_usage, check_invariants);

    fn scan_with(
        &self,
        (lower, upper): Bounds<'_, I::Key>,
        direction: Direction,
        _limit: usize,
        visit: impl FnMut(&I::Key, &I::Value) -> ControlFlow<()>,
    ) {
        self.lock().visit(lower, upper, direction, visit);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        None
    }

    fn approximate_len(&self) -> usize {
        self.lock().len()
    }
}
