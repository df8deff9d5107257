//! Scans of more than one step, for `INFO` and the console.
//!
//! Such a scan runs on several threads, one after another. The store itself counts calls, which run
//! on one thread, see `Statistics::long_scans`.

use std::time::{Duration, Instant};

use ordna::sync::Lock;

/// Start times of the long scans in progress.
#[derive(Debug, Default)]
pub struct LongScans(Lock<Vec<Instant>>);

impl LongScans {
    /// Counts a scan until the result is dropped.
    pub fn note(&self) -> LongScanGuard<'_> {
        let since = Instant::now();
        self.0.lock().push(since);
        LongScanGuard { scans: self, since }
    }

    /// Returns the number of scans, and the age of the oldest.
    pub fn count(&self) -> (usize, Duration) {
        let list = self.0.lock();
        (list.len(), list.iter().min().map(Instant::elapsed).unwrap_or_default())
    }
}

/// A long scan in progress; dropping it ends the count.
#[derive(Debug)]
pub struct LongScanGuard<'a> {
    scans: &'a LongScans,
    since: Instant,
}

impl Drop for LongScanGuard<'_> {
    fn drop(&mut self) {
        let mut list = self.scans.0.lock();
        // If two scans have the same start time, either entry may be removed.
        if let Some(at) = list.iter().position(|noted| *noted == self.since) {
            list.swap_remove(at);
        }
    }
}
