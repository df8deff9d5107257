//! The state of a store's collection. The module `collection` has the protocol.

use std::sync::Weak;

use super::collectors::{CollectorTask, Collectors};
use ordna_base::sync::Lock;
use ordna_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The work for the threads that collect, and for callers.
pub struct Collection {
    collectors: Collectors,
    /// The store's number among those of the collectors.
    number: u64,
    /// Callers collect: no thread is wanted, the system gave none, or the store's clock panicked.
    pub unattended: AtomicBool,
    /// Records of an ended epoch wait for its writers.
    pub pending: AtomicBool,
    /// The thread was woken to compact the tree.
    pub compacting: AtomicBool,
    /// Bytes of undo records freed.
    pub freed: AtomicUsize,
    /// Locked by the thread that frees undo records. A thread that waits finds the work done.
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

    /// Bytes of undo records freed so far.
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
