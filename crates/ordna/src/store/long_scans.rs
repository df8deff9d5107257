//! Scans that are under way, and the long ones among them.
//!
//! # Contract
//! A scan is one call that visits entries. It is counted from its beginning to its end, however it
//! ends, on its thread's stripe: two changes of a word that other threads do not touch. One that
//! has come far is noted, once, with the time, under a lock of the stripe. Reads of single keys are
//! no scans.
//!
//! Statistics only: no protocol rests on it.

use std::time::{Duration, Instant};

use ordna_base::sync::{Lock, MutexGuard, StripedCounter, stripe_of_this_thread};

const STRIPES: usize = 16;

/// The scans of one store.
#[derive(Debug, Default)]
pub struct Scans {
    under_way: StripedCounter,
    /// Since when long ones are.
    long: [Lock<Vec<Instant>>; STRIPES],
}

impl Scans {
    /// A scan begins on this thread.
    #[inline]
    pub fn begin(&self) -> ScanInProgress<'_> {
        self.under_way.add(1);
        ScanInProgress { scans: self, long_since: None }
    }

    /// How many there are.
    pub fn under_way(&self) -> usize {
        self.under_way.sum()
    }

    /// For how long the long ones have been that, longest first.
    pub fn long(&self) -> Vec<Duration> {
        let list = |list: &Lock<Vec<Instant>>| -> Vec<Duration> {
            list.lock().iter().map(Instant::elapsed).collect()
        };
        let mut ages: Vec<Duration> = self.long.iter().flat_map(list).collect();
        ages.sort_unstable_by(|a, b| b.cmp(a));
        ages
    }
}

/// A scan under way, until it is dropped. Stays on its thread.
pub struct ScanInProgress<'a> {
    scans: &'a Scans,
    long_since: Option<Instant>,
}

impl ScanInProgress<'_> {
    fn list(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.scans.long[stripe_of_this_thread() % STRIPES].lock()
    }

    /// It has come far.
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
            // Of two noted at the same time either will do.
            if let Some(at) = list.iter().position(|noted| *noted == since) {
                list.swap_remove(at);
            }
        }
        self.scans.under_way.add(-1);
    }
}
