//! Collection: the end of undo records that no snapshot needs, and of expired keys.
//!
//! # Contract
//! Undo records are freed once no live snapshot is older than their deaths (`tree::undo`).
//! Everything here may run at once.
//!
//! # Protocol
//! The end of a snapshot may leave records without a reader. Records of the current term cannot go,
//! as its writers still push; so when no snapshot is left the term is closed, and its records go
//! once its writers are done. A thread of the store's own does this and removes expired keys; it is
//! started when there is something to do. Without it, the thread that ends a snapshot frees, or, if
//! writers are under way, the next thread that writes.
//!
//! The thread holds the store weakly: the store ends with its last handle and snapshot, and then
//! stops the thread.

use std::borrow::Borrow;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::collectors::Shared;
use super::engine::Engine;
use super::ttl::Deadlines;
use ordna_base::sync::atomic::{AtomicBool, Ordering};
use ordna_base::sync::{fault, notice, point};
use ordna_base::{Key, Value};

/// Expired keys removed between two looks at the clock.
const DUE: usize = 256;

impl<K: Key + ?Sized, V: Value + ?Sized> Engine<K, V> {
    /// A snapshot has ended.
    pub fn snapshot_ended(&self) {
        if self.tree.log().is_empty() {
            return;
        }
        if self.wake() {
            return;
        }
        self.free_undo(false);
    }

    /// After a write: frees records that waited for the writers of its term.
    #[inline]
    pub fn help(&self) {
        if self.collectors.pending.load(Ordering::Relaxed) && self.collectors.is_unattended() {
            self.free_undo(false);
        }
    }

    /// Frees the undo records that no snapshot needs. If `wait`, waits for the writers of their
    /// term.
    fn free_undo(&self, wait: bool) {
        if self.tree.log().is_empty() && !wait {
            return;
        }
        let _turn = self.collectors.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.tree.log().is_empty() {
            return;
        }
        point("store.collect.begins");
        let closed = self.terms.close_if_unseen();
        if wait && let Some(term) = closed {
            self.terms.settle(term);
        }
        let horizon = self.terms.horizon();
        let guard = self.collector.pin();
        let freed = self.tree.log().free(horizon, &guard);
        self.collectors.freed.fetch_add(freed, Ordering::Relaxed);
        self.budget.release(freed);
        // The other records of a closed term wait for its writers.
        let pending = closed.is_some_and(|term| term > horizon);
        self.collectors.pending.store(pending, Ordering::Relaxed);
        drop(guard);
    }

    /// Removes expired keys and frees undo records, all that can be, and hands retired memory over.
    pub fn collect(&self) {
        while self.expire() > 0 {}
        self.free_undo(true);
        self.collector.pin().flush();
    }

    /// Removes expired keys, up to a number. Returns how many were looked at. One caller at a time:
    /// a caller that is told of none finds those of the others gone.
    fn expire(&self) -> usize {
        let now = self.time.now();
        let _turn = turn(&self.deadlines);
        let due = self.deadlines.due(now, DUE);
        self.wake_again();
        point("store.expire.due");
        let mut unfinished = Unfinished { deadlines: &self.deadlines, now: Some(now) };
        for key in &due {
            self.remove_expired(key.borrow());
        }
        unfinished.now = None;
        due.len()
    }

    /// Wakes the thread: while [`Deadlines::due`] ran it may have found no deadline and gone to
    /// sleep.
    fn wake_again(&self) {
        if notice!("store.expire.wakes", self.deadlines.earliest() < u64::MAX) {
            self.wake();
        }
    }

    /// A deadline came nearer.
    pub fn wake_for_deadline(&self) {
        self.wake();
    }

    /// Has the thread look for work. Returns whether there is one.
    fn wake(&self) -> bool {
        if self.collectors.is_unattended() {
            return false;
        }
        let mut state = self.collectors.shared.state();
        if !state.started && !state.stop {
            state.started = true;
            let (shared, engine) = (Arc::clone(&self.collectors.shared), self.me.clone());
            let run = move || run(&shared, &engine);
            let thread = thread::Builder::new().name("ordna collector".to_owned()).spawn(run);
            state.thread = thread.ok();
            if state.thread.is_none() {
                self.collectors.unattended.store(true, Ordering::Relaxed);
                return false;
            }
        }
        state.work = true;
        drop(state);
        self.collectors.shared.wake.notify_one();
        true
    }

    /// Removes expired keys and frees undo records that no snapshot needs. Returns how long the
    /// thread may sleep.
    fn tend(&self) -> Option<Duration> {
        let _attendance = Attendance(&self.collectors.unattended);
        self.free_undo(true);
        let earliest = self.deadlines.earliest();
        if earliest == u64::MAX {
            return None;
        }
        let left = self.time.until(earliest);
        if left.is_zero() {
            self.expire();
        }
        Some(left)
    }
}

/// Excludes other threads that remove expired keys.
fn turn<K: Key + ?Sized>(deadlines: &Deadlines<K>) -> Option<MutexGuard<'_, ()>> {
    if fault!("store.expire.turn") { None } else { Some(deadlines.turn()) }
}

/// The thread's life: it tends the store while that lives.
fn run<K: Key + ?Sized, V: Value + ?Sized>(shared: &Shared, engine: &Weak<Engine<K, V>>) {
    loop {
        let Some(alive) = engine.upgrade() else { return };
        let left = alive.tend();
        drop(alive);
        let mut state = shared.state();
        while !state.work && !state.stop {
            match left {
                None => state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = shared.wake.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    break;
                }
            }
        }
        state.work = false;
        if state.stop {
            return;
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Engine<K, V> {
    fn drop(&mut self) {
        let thread = {
            let mut state = self.collectors.shared.state();
            state.stop = true;
            self.collectors.shared.wake.notify_all();
            state.thread.take()
        };
        // The last handle may be the thread's own, for a moment.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id())
        {
            // A thread that panicked in the caller's clock has said so.
            let _ = thread.join();
        }
    }
}

/// Keeps the time whose expired keys a thread removes. If the thread panics, in the caller's clock,
/// the next one looks again.
struct Unfinished<'a, K: Key + ?Sized> {
    deadlines: &'a Deadlines<K>,
    now: Option<u64>,
}

impl<K: Key + ?Sized> Drop for Unfinished<'_, K> {
    fn drop(&mut self) {
        if let Some(now) = self.now {
            look_again(self.deadlines, now);
        }
    }
}

fn look_again<K: Key + ?Sized>(deadlines: &Deadlines<K>, now: u64) {
    if !fault!("store.expire.panics") {
        deadlines.schedule(now);
    }
}

/// Leaves the work to callers when the thread panics, in the caller's clock.
struct Attendance<'a>(&'a AtomicBool);

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
