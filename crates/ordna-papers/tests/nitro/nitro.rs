//! Nitro as an index: its latest state.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ordna_base::reclaim::Guard;
use ordna_base::{
    Audit, Change, Direction, Error, Key, MemoryUsage, OrderedIndex, Value, Violation,
};
use ordna_papers::Nitro;
use ordna_papers::nitro::{Order, Snapshot};

ordna_testkit::conformance! {
    mod u64_words: Nitro<u64, u64> = Nitro::new();
    mod u64_bytes: Nitro<u64, [u8]> = Nitro::new();
    mod bytes_words: Nitro<[u8], u64> = Nitro::new();
    mod bytes_bytes: Nitro<[u8], [u8]> = Nitro::new();
    mod snapped_u64_words: Snapped<u64, u64> = Snapped::new(Order::LiveSet);
    mod snapped_bytes_bytes: Snapped<[u8], [u8]> = Snapped::new(Order::LiveSet);
    mod snapped_by_terms: Snapped<u64, u64> = Snapped::new(Order::Terms);
}

/// An index whose every third write is followed by a snapshot. A few are kept, and dropped out of
/// order, so that keys have several versions and the term changes all the time.
struct Snapped<K: Key + ?Sized, V: Value + ?Sized> {
    index: Nitro<K, V>,
    live: Mutex<VecDeque<Snapshot<K, V>>>,
    writes: AtomicUsize,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Snapped<K, V> {
    fn new(order: Order) -> Self {
        // Collection on the calling thread: `memory_returns` counts what that frees.
        let index = Nitro::with(0, order);
        Self { index, live: Mutex::default(), writes: AtomicUsize::new(0) }
    }

    fn settle_snapshots(&self) {
        self.live.lock().unwrap().clear();
        self.index.collect_garbage();
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Snapped<K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.index.get_with(key, read)
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        self.index.modify(key, change)?;
        let writes = self.writes.fetch_add(1, Ordering::Relaxed);
        if writes.is_multiple_of(3) {
            let snapshot = self.index.snapshot();
            let mut live = self.live.lock().unwrap();
            live.push_back(snapshot);
            let dropped = if live.len() > 4 { live.remove(writes % 5) } else { None };
            drop(live);
            drop(dropped);
        }
        Ok(())
    }

    fn walk(
        &self,
        bounds: ordna_base::index::Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.index.walk(bounds, direction, limit, visit);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        self.index.pin()
    }

    fn approximate_len(&self) -> usize {
        self.index.approximate_len()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.index.memory_usage()
    }

    fn validate(&self) -> Result<Audit, Violation> {
        self.index.validate()?;
        self.settle_snapshots();
        let audit = self.index.validate()?;
        if audit.nodes != audit.entries {
            return Err(Violation(format!("no snapshot lives, and {audit:?}")));
        }
        Ok(audit)
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.index.get_many_with(keys, each);
    }
}
