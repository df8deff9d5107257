//! Counters of executed commands: calls, time and a histogram for each command.
//!
//! Each thread adds to a stripe of its own; a reader adds the stripes up. Sums are exact when no
//! command runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Stripes; threads beyond share.
const STRIPES: usize = 16;
/// Buckets of the histogram: up to 1 µs, 2 µs, 4 µs, …, and the rest.
pub const BUCKETS: usize = 24;

#[derive(Debug, Default)]
struct Cells {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// The counts of one command.
#[derive(Debug, Clone, Default)]
pub struct CommandCounts {
    pub calls: u64,
    pub time: Duration,
    /// Commands that ended in an error, and commands that were refused before they began.
    pub failed: u64,
    pub rejected: u64,
    pub buckets: [u64; BUCKETS],
}

/// Counts of all commands, by the command's number.
#[derive(Debug)]
pub struct CommandStats {
    stripes: Box<[Box<[Cells]>]>,
    bytes: Box<[Bytes]>,
}

/// Bytes received and sent. On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Bytes {
    received: AtomicU64,
    sent: AtomicU64,
}

fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    STRIPE.with(|stripe| {
        if stripe.get() == usize::MAX {
            stripe.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        stripe.get()
    })
}

/// The bucket of a time.
fn bucket(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let above = if micros <= 1 { 0 } else { 64 - (micros - 1).leading_zeros() as usize };
    above.min(BUCKETS - 1)
}

impl CommandStats {
    pub fn new(commands: usize) -> Self {
        let stripe = || (0..commands).map(|_| Cells::default()).collect();
        Self {
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
            bytes: (0..STRIPES).map(|_| Bytes::default()).collect(),
        }
    }

    pub fn received(&self, bytes: usize) {
        self.bytes[stripe()].received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn sent(&self, bytes: usize) {
        self.bytes[stripe()].sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn input_bytes(&self) -> u64 {
        self.bytes.iter().map(|bytes| bytes.received.load(Ordering::Relaxed)).sum()
    }

    pub fn output_bytes(&self) -> u64 {
        self.bytes.iter().map(|bytes| bytes.sent.load(Ordering::Relaxed)).sum()
    }

    /// Counts an execution.
    #[inline]
    pub fn executed(&self, command: usize, time: Duration, failed: bool) {
        let cells = &self.stripes[stripe()][command];
        cells.calls.fetch_add(1, Ordering::Relaxed);
        cells.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        cells.buckets[bucket(time)].fetch_add(1, Ordering::Relaxed);
        if failed {
            cells.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a refusal.
    pub fn rejected(&self, command: usize) {
        self.stripes[stripe()][command].rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub fn of(&self, command: usize) -> CommandCounts {
        let mut counts = CommandCounts::default();
        for cells in self.stripes.iter().map(|stripe| &stripe[command]) {
            let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
            counts.calls += load(&cells.calls);
            counts.time += Duration::from_nanos(load(&cells.nanoseconds));
            counts.failed += load(&cells.failed);
            counts.rejected += load(&cells.rejected);
            for (sum, bucket) in counts.buckets.iter_mut().zip(&cells.buckets) {
                *sum += load(bucket);
            }
        }
        counts
    }

    /// Commands executed so far.
    pub fn calls(&self) -> u64 {
        let cells = self.stripes.iter().flatten();
        cells.map(|cells| cells.calls.load(Ordering::Relaxed)).sum()
    }

    /// `CONFIG RESETSTAT`.
    pub fn reset(&self) {
        for cells in self.stripes.iter().flatten() {
            let all = [&cells.calls, &cells.nanoseconds, &cells.failed, &cells.rejected];
            all.into_iter().chain(&cells.buckets).for_each(|cell| cell.store(0, Ordering::Relaxed));
        }
        for bytes in &self.bytes {
            bytes.received.store(0, Ordering::Relaxed);
            bytes.sent.store(0, Ordering::Relaxed);
        }
    }
}

impl CommandCounts {
    /// The time in microseconds that this share of the calls did not exceed, to a factor of two.
    pub fn percentile(&self, share: f64) -> u64 {
        let wanted = (self.calls as f64 * share).ceil() as u64;
        let mut seen = 0;
        let reached = |bucket: &u64| {
            seen += bucket;
            seen >= wanted
        };
        1 << self.buckets.iter().position(reached).unwrap_or(BUCKETS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_buckets_by_their_upper_bound() {
        let micros = [0, 1, 2, 3, 4, 5, 1 << 40];
        let buckets = micros.map(|micros| bucket(Duration::from_micros(micros)));
        assert_eq!(buckets, [0, 0, 1, 2, 2, 3, BUCKETS - 1]);
        let stats = CommandStats::new(2);
        for micros in 1..=100 {
            stats.executed(1, Duration::from_micros(micros), micros > 90);
        }
        let counts = stats.of(1);
        assert_eq!((counts.calls, counts.failed, stats.calls()), (100, 10, 100));
        assert_eq!(counts.time, Duration::from_micros(5050));
        assert_eq!((counts.percentile(0.5), counts.percentile(0.99)), (64, 128));
        stats.reset();
        assert_eq!(stats.calls(), 0);
    }
}
