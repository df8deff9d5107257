//! Collection: frees undo records that no snapshot needs, removes expired keys, and compacts the
//! tree.
//!
//! # Contract
//! Undo records are freed when no live snapshot is older than their end epochs (`tree::undo`). All
//! methods may run concurrently.
//!
//! # Protocol
//! The end of a snapshot may leave undo records that nobody reads. Records of the current epoch
//! cannot be freed, because its writers still push some. So when no snapshot is left, the epoch is
//! closed, and its records are freed when its writers have finished. A thread of the store's
//! [`Collectors`](super::Collectors) does this and removes expired keys. Without such a thread, the
//! thread that ends a snapshot frees the records or, if writers are in progress, the next writer
//! does.

use std::borrow::Borrow;
use std::thread;
use std::time::Duration;

use super::collectors::CollectorTask;
use super::engine::Engine;
use super::expiry::Deadlines;
use super::reentry;
use ordna_base::sync::atomic::{AtomicBool, Ordering};
use ordna_base::sync::{MutexGuard, fault, notice, point};
use ordna_base::{Key, Value};

/// Number of expired keys that are removed before the clock is read again.
const DUE: usize = 256;

impl<K: Key + ?Sized, V: Value + ?Sized> Engine<K, V> {
    /// Called after the end of a snapshot.
    pub fn snapshot_ended(&self) {
        if self.tree.log().is_empty() {
            return;
        }
        if !self.collection.wake() {
            self.free_undo(false);
        }
    }

    /// Called after a write: frees records that waited for the writers of their epoch.
    #[inline]
    pub fn help(&self) {
        if self.collection.pending.load(Ordering::Relaxed) && self.collection.is_unattended() {
            self.free_undo(false);
        }
        if self.tree.is_sparse() && !self.collection.is_unattended() {
            self.wake_to_compact();
        }
    }

    /// Wakes the thread to compact the tree.
    #[cold]
    fn wake_to_compact(&self) {
        if !self.collection.compacting.swap(true, Ordering::Relaxed) {
            self.collection.wake();
        }
    }

    /// Frees the undo records that no snapshot needs. If `wait`, waits for the writers of their
    /// epoch.
    fn free_undo(&self, wait: bool) {
        if self.tree.log().is_empty() && !wait {
            return;
        }
        let freeing = &self.collection.freeing;
        let _freeing = match freeing.try_lock() {
            Some(locked) => locked,
            None if notice!("store.collect.does_not_wait", !wait) => {
                // The holder of the lock may be waiting for this thread, whose write's closure ends
                // a snapshot. If it has not seen the end of that snapshot, the next writer frees
                // the records.
                self.collection.pending.store(true, Ordering::Relaxed);
                return;
            }
            None => freeing.lock(),
        };
        // Cleared before the horizon is read, so that later requests are kept.
        self.collection.pending.store(false, Ordering::Relaxed);
        if self.tree.log().is_empty() {
            return;
        }
        point("store.collect.begins");
        let closed = self.epochs.close_if_unseen();
        if wait && let Some(epoch) = closed {
            self.epochs.wait_quiesced(epoch);
        }
        let horizon = self.epochs.horizon();
        let guard = self.collector.pin();
        let freed = self.tree.log().free(horizon, &guard);
        self.collection.freed.fetch_add(freed, Ordering::Relaxed);
        self.budget.release(freed);
        // The other records of a closed epoch wait for its writers.
        if closed.is_some_and(|epoch| epoch > horizon) {
            self.collection.pending.store(true, Ordering::Relaxed);
        }
        drop(guard);
    }

    /// Removes up to [`DUE`] expired keys and frees the undo records that no snapshot needs, to
    /// make room within the memory limit. Does not compact, because compaction gives the limit
    /// nothing back. Returns whether there may be more expired keys.
    pub fn free_some_bytes(&self) -> bool {
        reentry::check(self);
        let removed = self.expire();
        self.free_undo(true);
        removed > 0
    }

    /// Calls [`free_some_bytes`](Self::free_some_bytes) until nothing is left.
    fn free_bytes(&self) {
        while self.free_some_bytes() {}
    }

    /// Calls [`free_bytes`](Self::free_bytes), passes retired memory to the collector, and
    /// compacts.
    pub fn collect(&self) {
        self.free_bytes();
        self.collector.pin().flush_all();
        self.tree.look_for_room();
        while self.tree.compact(&self.collector) {}
    }

    /// Compacts the tree if it is sparse, and wakes the thread if it became sparse again.
    fn compact(&self) {
        if self.tree.compact(&self.collector) {
            self.collection.wake();
        }
    }

    /// Removes a limited number of expired keys and returns how many were examined. One caller runs
    /// at a time. A caller that gets 0 can rely on it that the keys of former callers are removed.
    fn expire(&self) -> usize {
        let now = self.time.now();
        point("store.expire.begins");
        let _removing = lock_removal(&self.deadlines);
        let due = self.deadlines.due(now, DUE);
        self.wake_again();
        point("store.expire.due");
        let mut unfinished = Unfinished { deadlines: &self.deadlines, now: Some(now) };
        for key in &due {
            if self.remove_expired(key.borrow())
                && let Some(report) = self.deadlines.report.get()
            {
                (report.0)(key.borrow());
            }
        }
        unfinished.now = None;
        self.deadlines.expired.fetch_add(due.len() as u64, Ordering::Relaxed);
        due.len()
    }

    /// Wakes the thread, which may have found no deadline while [`Deadlines::due`] ran and gone to
    /// sleep.
    fn wake_again(&self) {
        if notice!("store.expire.wakes", self.deadlines.earliest() < u64::MAX) {
            self.collection.wake();
        }
    }

    /// Wakes the thread because a deadline has become the earliest one.
    pub fn wake_for_deadline(&self) {
        self.collection.wake();
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> CollectorTask for Engine<K, V> {
    /// Removes expired keys and frees undo records that no snapshot needs.
    fn run_task(&self) -> Option<Duration> {
        let _attendance = Attendance(&self.collection.unattended);
        self.free_undo(true);
        self.collection.compacting.store(false, Ordering::Relaxed);
        self.compact();
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
fn lock_removal<K: Key + ?Sized>(deadlines: &Deadlines<K>) -> Option<MutexGuard<'_, ()>> {
    if fault!("store.expire.turn") { None } else { Some(deadlines.lock_removal()) }
}

/// Restores the earliest deadline if the thread that removes keys panics in the caller's clock, so
/// that the next thread looks again.
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

/// Leaves the collection to callers if the thread panics in the caller's clock.
struct Attendance<'a>(&'a AtomicBool);

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
