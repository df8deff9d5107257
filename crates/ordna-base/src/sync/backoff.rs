//! Waiting for another thread with growing pauses.

use super::{point, spin_hint, yield_now};

/// Waits a little longer each time: spins at first, then yields the processor.
///
/// For waiting on another thread's short critical section. It has no limit: a caller that retries
/// asks [`Backoff::is_long`] and then takes a lock.
#[derive(Debug, Default)]
pub struct Backoff {
    step: u32,
}

impl Backoff {
    const SPIN_STEPS: u32 = 6;

    /// Starts with the shortest wait.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits: 1, 2, 4 … 64 spins, from then on one yield a call.
    pub fn wait(&mut self) {
        point("sync.waits");
        if self.step <= Self::SPIN_STEPS {
            for _ in 0..1_u32 << self.step {
                spin_hint();
            }
        } else {
            yield_now();
        }
        self.step = self.step.saturating_add(1);
    }

    /// Whether the spinning phase is over: the retries have been many.
    pub fn is_long(&self) -> bool {
        self.step > Self::SPIN_STEPS
    }
}
