//! Counts of the scans in progress, and start times of the long ones.
//!
//! # Contract
//! A scan is one call that visits entries. It is counted on its thread's stripe from its beginning
//! to its end, however it ends. This costs two changes of a word that other threads rarely touch. A
//! scan that becomes long registers its start time once, under a lock of the stripe. Reads of
//! single keys are not counted.
//!
//! For statistics only: no protocol depends on these counts.

use std::time::{Duration, Instant};

use ordna_base::sync::{Lock, MutexGuard, StripedCounter, stripe_of_this_thread};

const STRIPES: usize = 16;

/// The scans of one store.
#[derive(Debug, Default)]
pub struct Scans {
    under_way: StripedCounter,
    /// The times since when scans have been long, by stripe.
    long: [Lock<Vec<Instant>>; STRIPES],
}

impl Scans {
    /// Counts a scan that begins on this thread.
    #[inline]
    pub fn begin(&self) -> ScanInProgress<'_> {
        self.under_way.add(1);
        ScanInProgress { scans: self, long_since: None }
    }

    /// Returns the number of scans in progress.
    pub fn under_way(&self) -> usize {
        self.under_way.sum()
    }

    /// Returns how long the long scans have been long, longest first.
    pub fn long(&self) -> Vec<Duration> {
        let list = |list: &Lock<Vec<Instant>>| -> Vec<Duration> {
            list.lock().iter().map(Instant::elapsed).collect()
        };
        let mut ages: Vec<Duration> = self.long.iter().flat_map(list).collect();
        ages.sort_unstable_by(|a, b| b.cmp(a));
        ages
    }
}

/// A scan in progress. It ends when this is dropped, on the same thread.
pub struct ScanInProgress<'a> {
    scans: &'a Scans,
    long_since: Option<Instant>,
}

impl ScanInProgress<'_> {
    fn list(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.scans.long[stripe_of_this_thread() % STRIPES].lock()
    }

    /// Registers the scan as long.
    pub fn note_as_long(&mut self) {
        if self.long_since.is_none() {
            let now = Instant::now();
            self.list().push(now);
            self.long_since = Some(now);
        }
    }
}

impl Drop for ScanInProgress<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(since) = self.long_since {
            let mut list = self.list();
            // If two scans were registered at the same time, it does not matter which is removed.
            if let Some(at) = list.iter().position(|noted| *noted == since) {
                list.swap_remove(at);
            }
        }
        self.scans.under_way.add(-1);
    }
}
