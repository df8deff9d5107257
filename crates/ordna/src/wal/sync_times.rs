//! A histogram of the durations of the log's fsyncs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of buckets of the histogram of syncs: up to 1 µs, 2 µs, 4 µs, …, 4 s, and the rest.
const SYNC_BUCKETS: usize = 24;

/// Durations of the log's fsyncs, including failed ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncCounts {
    /// Number of fsyncs that took at most 2^n µs and did not fit into an earlier bucket. The last
    /// bucket has all longer ones.
    pub buckets: [u64; SYNC_BUCKETS],
    /// Sum of the durations.
    pub total: Duration,
}

impl SyncCounts {
    /// Returns the number of microseconds that `share` of the fsyncs did not exceed, rounded up to
    /// a power of two. Returns 0 if there were no fsyncs.
    pub fn percentile(&self, share: f64) -> u64 {
        let all: u64 = self.buckets.iter().sum();
        let wanted = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|bucket| {
            seen += bucket;
            seen >= wanted
        });
        if all == 0 { 0 } else { 1 << bucket.unwrap_or(SYNC_BUCKETS - 1) }
    }
}

/// Counters of [`SyncCounts`].
#[derive(Debug, Default)]
pub(crate) struct SyncTimes {
    buckets: [AtomicU64; SYNC_BUCKETS],
    nanoseconds: AtomicU64,
}

impl SyncTimes {
    pub fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let above = if micros <= 1 { 0 } else { 64 - (micros - 1).leading_zeros() as usize };
        if let Some(bucket) = self.buckets.get(above.min(SYNC_BUCKETS - 1)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub fn counts(&self) -> SyncCounts {
        SyncCounts {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            total: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_upper_limits_of_buckets() {
        let times = SyncTimes::default();
        assert_eq!(times.counts().percentile(0.5), 0);
        // 1 µs belongs to the first bucket, 2 µs to the second, 3 µs to the third.
        for micros in [1, 2, 3, 900] {
            times.add(Duration::from_micros(micros));
        }
        let counts = times.counts();
        assert_eq!(counts.total, Duration::from_micros(906));
        assert_eq!(
            [0.25, 0.5, 0.75, 0.76, 1.0].map(|share| counts.percentile(share)),
            [1, 2, 4, 1024, 1024]
        );
        times.add(Duration::from_secs(60));
        assert_eq!(times.counts().percentile(1.0), 1 << (SYNC_BUCKETS - 1));
    }
}
