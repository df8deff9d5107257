//! [`Backoff`]: waits for another thread with increasing pauses.

use std::time::Duration;

use super::{point, sleep, spin_hint, yield_now};

/// Waits a little longer each time: it spins at first, then yields the processor, then sleeps.
///
/// For waiting for another thread's critical section, which usually is short. It may be long if the
/// thread has lost its processor, runs a caller's closure, or writes a large batch. A waiting
/// thread then uses almost no processor time, and notices the end at most [`Backoff::LONGEST`]
/// late. The number of waits is not limited: a caller that retries checks [`Backoff::is_long`] and
/// then takes a lock.
#[derive(Debug, Default)]
pub struct Backoff {
    step: u32,
}

impl Backoff {
    const SPIN_STEPS: u32 = 6;
    /// The last step that yields. Each yield is a system call; all together take about 10 µs if
    /// nothing else runs.
    const YIELD_STEPS: u32 = Self::SPIN_STEPS + 24;
    /// Shortest sleep. A wake-up takes about 50 µs, so less would not be shorter.
    const SHORTEST: Duration = Duration::from_micros(50);
    /// Longest sleep.
    pub const LONGEST: Duration = Duration::from_millis(1);

    /// Starts with the shortest wait.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits: 1, 2, 4 … 64 spins, then one yield in each of 24 calls, then sleeps of 50 µs to 1 ms.
    pub fn wait(&mut self) {
        point("sync.waits");
        if self.step <= Self::SPIN_STEPS {
            for _ in 0..1_u32 << self.step {
                spin_hint();
            }
        } else if self.step <= Self::YIELD_STEPS {
            yield_now();
        } else {
            let doubled = (self.step - Self::YIELD_STEPS - 1).min(5);
            sleep((Self::SHORTEST * (1 << doubled)).min(Self::LONGEST));
        }
        self.step = self.step.saturating_add(1);
    }

    /// Returns whether the spinning phase is over, that is, whether there were many retries.
    pub fn is_long(&self) -> bool {
        self.step > Self::SPIN_STEPS
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_long_wait_sleeps() {
        let (mut backoff, begin, mut waits) = (Backoff::new(), Instant::now(), 0);
        while begin.elapsed() < Duration::from_millis(100) {
            backoff.wait();
            waits += 1;
        }
        assert!(backoff.is_long());
        // With spins and yields alone there would be many thousands.
        assert!(waits < 300, "{waits} waits in 100 ms");
    }
}
