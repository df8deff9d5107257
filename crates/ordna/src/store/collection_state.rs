//! The state of a store's collection. The module `collection` describes the protocol.

use std::sync::Weak;

use super::collectors::{CollectorTask, Collectors};
use ordna_base::sync::Lock;
use ordna_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// State that collector threads and callers share.
pub struct Collection {
    collectors: Collectors,
    /// Number of the store among the members of its collectors.
    number: u64,
    /// Whether callers collect, because no thread is wanted, the system gave none, or the clock
    /// panicked.
    pub unattended: AtomicBool,
    /// Whether records of an ended epoch wait for its writers.
    pub pending: AtomicBool,
    /// Whether the thread was woken to compact the tree.
    pub compacting: AtomicBool,
    /// Total size in bytes of the undo records freed.
    pub freed: AtomicUsize,
    /// Locked by the thread that frees undo records. A thread that waits for it finds the work
    /// done.
    pub freeing: Lock<()>,
}

impl Collection {
    pub fn new(collectors: Collectors, task: Weak<dyn CollectorTask>) -> Self {
        Self {
            number: collectors.register(task),
            unattended: AtomicBool::new(collectors.threads() == 0),
            collectors,
            pending: AtomicBool::new(false),
            compacting: AtomicBool::new(false),
            freed: AtomicUsize::new(0),
            freeing: Lock::new(()),
        }
    }

    /// Returns the total size in bytes of the undo records freed so far.
    pub fn freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }

    pub fn is_unattended(&self) -> bool {
        self.unattended.load(Ordering::Relaxed)
    }

    /// Wakes a thread to look for work. Returns whether there is a thread.
    pub fn wake(&self) -> bool {
        let attended = !self.is_unattended() && self.collectors.wake(self.number);
        if !attended {
            self.unattended.store(true, Ordering::Relaxed);
        }
        attended
    }
}

impl Drop for Collection {
    fn drop(&mut self) {
        self.collectors.unregister(self.number);
    }
}
