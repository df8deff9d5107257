//! Counters of commands: calls, time and a histogram for each command, and bytes of all.
//!
//! Each thread adds to its stripe, and a reader sums the stripes. A connection adds successive
//! calls of one command together, before it sends their replies or executes another command. So the
//! sums are exact when no command runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ordna::sync::stripe_of_this_thread;

/// Number of stripes. More threads than this share them.
const STRIPES: usize = 16;
/// Number of buckets of the histogram: up to 1 µs, 2 µs, 4 µs, …, and the rest.
pub const BUCKETS: usize = 24;

/// Counters of one command on one stripe.
#[derive(Debug, Default)]
struct CounterCells {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Successive short, successful calls of one command by one connection that are not counted yet.
#[derive(Debug, Default)]
pub struct CallRun {
    command: usize,
    nanoseconds: u64,
    /// The first buckets of the histogram.
    buckets: [u64; SHORT],
}

/// Number of buckets of a [`CallRun`]: up to 8 µs.
const SHORT: usize = 4;

/// Counts of one command.
#[derive(Debug, Clone, Default)]
pub struct CommandCounts {
    pub calls: u64,
    pub time: Duration,
    /// Calls that ended in an error.
    pub failed: u64,
    /// Number of calls that were refused before they began.
    pub rejected: u64,
    pub buckets: [u64; BUCKETS],
}

/// Counts of all commands and subcommands, by [`CommandSpec::id`](crate::state::command_spec::CommandSpec::id).
#[derive(Debug)]
pub struct CommandStats {
    stripes: Box<[Box<[CounterCells]>]>,
    bytes: Box<[Traffic]>,
}

/// Bytes received and sent, on a separate cache line for each stripe.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
}

/// Returns the stripe of this thread.
fn stripe() -> usize {
    stripe_of_this_thread() % STRIPES
}

/// Returns the bucket of a time.
fn bucket(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let above = if micros <= 1 { 0 } else { 64 - (micros - 1).leading_zeros() as usize };
    above.min(BUCKETS - 1)
}

impl CommandStats {
    pub fn new(commands: usize) -> Self {
        let stripe = || (0..commands).map(|_| CounterCells::default()).collect();
        Self {
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
            bytes: (0..STRIPES).map(|_| Traffic::default()).collect(),
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

    /// Counts a call.
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

    /// Counts a call together with those of `run`: immediately if it was long or failed, and
    /// otherwise in [`end_run`](Self::end_run).
    #[inline]
    pub fn executed_in_run(&self, run: &mut CallRun, command: usize, time: Duration, failed: bool) {
        // The command may itself have executed others.
        self.end_run_before(run, command);
        let place = run.buckets.get_mut(bucket(time)).filter(|_| !failed);
        let Some(place) = place else { return self.executed(command, time, failed) };
        *place += 1;
        run.nanoseconds += u64::from(time.subsec_nanos());
    }

    /// Ends a run, if a command other than `next` is executed.
    #[inline]
    pub fn end_run_before(&self, run: &mut CallRun, next: usize) {
        if run.command != next {
            self.end_run(run);
            run.command = next;
        }
    }

    /// Counts the calls of a run and clears it.
    pub fn end_run(&self, run: &mut CallRun) {
        let CallRun { command, nanoseconds, buckets } = std::mem::take(run);
        let calls = buckets.iter().sum();
        if calls > 0 {
            let cells = &self.stripes[stripe()][command];
            cells.calls.fetch_add(calls, Ordering::Relaxed);
            cells.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
            let counted = cells.buckets.iter().zip(buckets).filter(|(_, calls)| *calls > 0);
            counted.for_each(|(bucket, calls)| _ = bucket.fetch_add(calls, Ordering::Relaxed));
        }
    }

    /// Adds to a call that was already counted: work that followed, and whether it failed.
    pub fn continued(&self, command: usize, time: Duration, failed: bool) {
        let cells = &self.stripes[stripe()][command];
        cells.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        cells.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
    }

    /// Counts a refusal.
    pub fn rejected(&self, command: usize) {
        self.stripes[stripe()][command].rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts of a command.
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

    /// Returns the number of calls of all commands.
    pub fn calls(&self) -> u64 {
        let cells = self.stripes.iter().flatten();
        cells.map(|cells| cells.calls.load(Ordering::Relaxed)).sum()
    }

    /// Sets all counters to 0, for `CONFIG RESETSTAT`.
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
    /// Returns the time in microseconds that `share` of the calls did not exceed, rounded up to a
    /// power of two.
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

    #[test]
    fn calls_in_a_row_are_counted_together() {
        let (one, row) = (CommandStats::new(3), CommandStats::new(3));
        let mut run = CallRun::default();
        for micros in 0..100 {
            let (command, time) = (usize::from(micros > 6), Duration::from_micros(micros));
            one.executed(command, time, micros % 5 == 0);
            row.end_run_before(&mut run, command);
            row.executed_in_run(&mut run, command, time, micros % 5 == 0);
        }
        assert!(row.calls() < one.calls(), "those of the run are not counted yet");
        row.end_run_before(&mut run, 2);
        row.end_run(&mut run);
        for command in 0..2 {
            let (one, row) = (one.of(command), row.of(command));
            assert_eq!((one.calls, one.time, one.failed), (row.calls, row.time, row.failed));
            assert_eq!(one.buckets, row.buckets);
        }
    }
}
