//! The list of threads that wait for a log, and its leader. The lock of the queue's state protects
//! both. The module `waiting` describes the protocol.

use std::mem;
use std::thread::Thread;
use std::time::Duration;

/// Threads that wait for a position to be durable.
#[derive(Default)]
pub(super) struct Waiting {
    pub threads: Vec<(u64, Thread)>,
    /// Whether one of the waiting threads, which is not in the list, writes and syncs.
    pub has_leader: bool,
    /// Number of threads that the last sync served, and its duration.
    served: usize,
    pub took: Duration,
}

impl Waiting {
    /// Removes and returns the threads to wake after a sync: those whose positions are durable and,
    /// if there is no leader, one that leads next. A leader would wake one at its end. The thread
    /// that was to lead may be among the former.
    pub fn synced(&mut self, position: u64, took: Duration) -> Vec<Thread> {
        let served = self.threads.extract_if(.., |(at, _)| *at <= position);
        let mut woken: Vec<Thread> = served.map(|(_, thread)| thread).collect();
        (self.served, self.took) = (woken.len() + usize::from(self.has_leader), took);
        if !self.has_leader {
            woken.extend(self.threads.pop().map(|(_, thread)| thread));
        }
        woken
    }

    /// Removes and returns all threads.
    pub fn take_all(&mut self) -> Vec<Thread> {
        mem::take(&mut self.threads).into_iter().map(|(_, thread)| thread).collect()
    }

    /// Returns whether the leader should wait for other threads, because the last sync served more
    /// threads, which may be about to append again.
    pub fn is_small(&self) -> bool {
        self.threads.len() + 1 < self.served
    }
}
