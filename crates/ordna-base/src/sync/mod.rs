//! Synchronization of threads, and the seam at which a model checker takes control.
//!
//! Concurrent code of this workspace takes its atomics, fences and spinning from this module and
//! never directly from `std`: with `--cfg loom` or `--cfg shuttle` they are those of the model
//! checker.

mod backoff;
#[cfg(loom)]
mod loom_explore;
mod planted_fault;
#[cfg(debug_assertions)]
pub mod schedule;
mod striped_counter;
mod unpoisoned_lock;
mod version_lock;

#[doc(hidden)]
pub use crate::{check, fault, notice, order};
pub use backoff::Backoff;
#[cfg(loom)]
#[doc(hidden)]
pub use loom_explore::explore;
#[doc(hidden)]
pub use planted_fault::is_planted;
pub use striped_counter::StripedCounter;
#[doc(hidden)]
pub use striped_counter::{THREAD_STRIPES, stripe_of_this_thread};
pub use unpoisoned_lock::Lock;
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

#[doc(hidden)]
pub use lock::{Mutex, MutexGuard};

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

/// Sleeps. A model checker lets other threads run instead.
#[inline]
pub fn sleep(time: std::time::Duration) {
    #[cfg(any(loom, shuttle))]
    {
        let _ = time;
        yield_now();
    }
    #[cfg(not(any(loom, shuttle)))]
    std::thread::sleep(time);
}

/// Waits until this thread of a scope has ended, including the destructors of its thread-locals,
/// and propagates a panic. The scope itself waits for the closures only, and their threads may
/// outlive it by a moment.
pub fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A named stop at which a test can hold a thread. Does nothing without `debug_assertions`.
#[doc(hidden)]
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_name: &'static str) {}
/// Runs `body` under the test role of the calling thread. Does nothing without `debug_assertions`.
#[doc(hidden)]
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn handed_on<F>(body: F) -> F {
    body
}
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use schedule::{handed_on, point};
