//! The scans that take more than one stretch, for `INFO` and the console.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The long scans under way, by their begin.
#[derive(Debug, Default)]
pub struct LongScans(Mutex<Vec<Instant>>);

impl LongScans {
    fn list(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a scan until the result is dropped.
    pub fn note(&self) -> LongScanGuard<'_> {
        let since = Instant::now();
        self.list().push(since);
        LongScanGuard { scans: self, since }
    }

    /// Number of scans, and the age of the oldest.
    pub fn count(&self) -> (usize, Duration) {
        let list = self.list();
        (list.len(), list.iter().min().map(Instant::elapsed).unwrap_or_default())
    }
}

/// A long scan under way.
#[derive(Debug)]
pub struct LongScanGuard<'a> {
    scans: &'a LongScans,
    since: Instant,
}

impl Drop for LongScanGuard<'_> {
    fn drop(&mut self) {
        let mut list = self.scans.list();
        // Of two scans noted at the same time either entry will do.
        if let Some(at) = list.iter().position(|noted| *noted == self.since) {
            list.swap_remove(at);
        }
    }
}
