//! The state of a store's collection. `collection` has the protocol.

use std::sync::Weak;

use super::pool::{Collectors, Tended};
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
    pub fn new(collectors: Collectors, tended: Weak<dyn Tended>) -> Self {
        Self {
            number: collectors.join(tended),
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

    /// Has a thread look for work. Returns whether there is one.
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
        self.collectors.leave(self.number);
    }
}
