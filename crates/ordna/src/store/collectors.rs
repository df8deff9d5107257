//! The state of a store's collector thread. [`super::collect`] has the protocol.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ordna_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[derive(Default)]
pub struct State {
    /// Records may be free, or a deadline came nearer.
    pub work: bool,
    pub stop: bool,
    pub started: bool,
    pub thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
pub struct Shared {
    pub state: Mutex<State>,
    pub wake: Condvar,
}

/// The collector thread of a store, and the work left to callers.
pub struct Collectors {
    pub shared: Arc<Shared>,
    /// Callers collect: no thread is wanted, the system gave none, or it has panicked.
    pub unattended: AtomicBool,
    /// Records of an ended term wait for its writers.
    pub pending: AtomicBool,
    /// Bytes of undo records freed.
    pub freed: AtomicUsize,
    /// Held by the thread that frees: another one that looks later finds its work done.
    pub turn: Mutex<()>,
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collectors {
    pub fn new(threads: usize) -> Self {
        Self {
            shared: Arc::default(),
            unattended: AtomicBool::new(threads == 0),
            pending: AtomicBool::new(false),
            freed: AtomicUsize::new(0),
            turn: Mutex::new(()),
        }
    }

    /// Bytes of undo records freed so far.
    pub fn freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }

    pub fn is_unattended(&self) -> bool {
        self.unattended.load(Ordering::Relaxed)
    }
}
