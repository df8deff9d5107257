//! The walks that take more than one stretch, for `INFO` and the console.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The long walks under way, by their begin.
#[derive(Debug, Default)]
pub struct LongWalks(Mutex<Vec<Instant>>);

impl LongWalks {
    fn list(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a walk until the result is dropped.
    pub fn note(&self) -> Noted<'_> {
        let since = Instant::now();
        self.list().push(since);
        Noted { walks: self, since }
    }

    /// Number of walks, and the age of the oldest.
    pub fn count(&self) -> (usize, Duration) {
        let list = self.list();
        (list.len(), list.iter().min().map(Instant::elapsed).unwrap_or_default())
    }
}

/// A long walk under way.
#[derive(Debug)]
pub struct Noted<'a> {
    walks: &'a LongWalks,
    since: Instant,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let mut list = self.walks.list();
        // Of two walks noted at the same time either entry will do.
        if let Some(at) = list.iter().position(|noted| *noted == self.since) {
            list.swap_remove(at);
        }
    }
}
