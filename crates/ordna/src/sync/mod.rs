//! What synchronizes threads, and the seam at which a model checker takes over.
//!
//! Concurrent code here takes its atomics, fences and spinning from this module and never from
//! `std` directly: with `--cfg loom` or `--cfg shuttle` they become the checker's.

mod backoff;
mod counter;
mod fault;
#[cfg(feature = "schedule")]
pub mod schedule;
mod timestamp;
mod version_lock;

pub use backoff::Backoff;
pub use counter::StripedCounter;
pub(crate) use counter::{THREAD_STRIPES, stripe_of_this_thread};
pub(crate) use fault::fault;
#[doc(hidden)]
pub use fault::is_planted;
pub use timestamp::Clock;
pub use version_lock::{Obsolete, Version, VersionLock, WriteGuard};

/// The atomics of the platform, or of the model checker.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::*;
    #[cfg(shuttle)]
    pub use shuttle::sync::atomic::*;
    #[cfg(not(any(loom, shuttle)))]
    pub use std::sync::atomic::*;
}

/// `Arc`, or the model checker's.
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::Arc as Shared;

#[cfg(loom)]
pub use loom::sync::Arc as Shared;
#[cfg(shuttle)]
pub use shuttle::sync::Arc as Shared;

pub(crate) use lock::{Mutex, MutexGuard};

/// Locks that sleep: of the platform, or of the model checker.
pub mod lock {
    #[cfg(loom)]
    pub use loom::sync::{Condvar, Mutex, MutexGuard};
    #[cfg(shuttle)]
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
    #[cfg(not(any(loom, shuttle)))]
    pub use std::sync::{Condvar, Mutex, MutexGuard};
}

/// Tells the processor, or the model checker, that this thread waits for another.
#[inline]
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
}

/// Lets another thread run.
#[inline]
pub fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    std::thread::yield_now();
}

/// A named place at which a test can hold a thread ([`schedule`]). Nothing without that feature.
#[cfg(not(feature = "schedule"))]
#[inline(always)]
pub(crate) fn point(_name: &'static str) {}
/// Has a thread of the index's own run under the role of the one that starts it ([`schedule`]).
#[cfg(not(feature = "schedule"))]
#[inline(always)]
pub(crate) fn handed_on<F>(body: F) -> F {
    body
}
#[cfg(feature = "schedule")]
pub(crate) use schedule::{handed_on, point};
