//! The time for which a snapshot is kept for a client, and the task that ends it.

use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

/// A lease; dropping it cancels its task.
#[derive(Debug)]
pub struct Lease {
    until: Instant,
    task: AbortHandle,
}

impl Lease {
    /// Starts a lease that ends at `until`. A task then calls `ended`. If the lease was renewed,
    /// `ended` returns the new end, and the task calls it again at that time.
    pub fn new(
        until: Instant,
        mut ended: impl FnMut() -> Option<Instant> + Send + 'static,
    ) -> Self {
        let wait = async move {
            let mut next = Some(until);
            while let Some(until) = next {
                tokio::time::sleep_until(until.into()).await;
                next = ended();
            }
        };
        Self { until, task: tokio::spawn(wait).abort_handle() }
    }

    /// Returns the time when the lease ends.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Moves the end of the lease. The task notices this at the former end.
    pub fn renew(&mut self, until: Instant) {
        self.until = until;
    }

    /// Returns the time until the end.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.task.abort();
    }
}
