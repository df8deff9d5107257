//! The store as an index: its latest state, with nodes of the usual sizes and with tiny ones.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ordna::{Options, Snapshot, Store};
use ordna_base::reclaim::Guard;
use ordna_base::{
    Audit, Change, Direction, Error, Key, MemoryUsage, OrderedIndex, Value, Violation,
};

ordna_testkit::conformance! {
    mod u64_words: Store<u64, u64> = Store::new();
    mod u64_bytes: Store<u64, [u8]> = Store::new();
    mod bytes_words: Store<[u8], u64> = Store::new();
    mod bytes_bytes: Store<[u8], [u8]> = Store::new();
    mod tiny_u64_words: Store<u64, u64> = tiny(2, 3);
    mod tiny_u64_bytes: Store<u64, [u8]> = tiny(4, 4);
    mod tiny_bytes_words: Store<[u8], u64> = tiny(3, 3);
    mod tiny_bytes_bytes: Store<[u8], [u8]> = tiny(4, 3);
    mod snapped_u64_words: Snapped<u64, u64> = Snapped::new(Options::new());
    mod snapped_bytes_bytes: Snapped<[u8], [u8]> = Snapped::new(Options::new());
    mod snapped_tiny: Snapped<[u8], u64> = Snapped::new(Options::new().sizes(4, 3));
}

/// A store of small nodes: splits and merges on nearly every write.
fn tiny<K: Key + ?Sized, V: Value + ?Sized>(slots: usize, fanout: usize) -> Store<K, V> {
    Store::with_options(Options::new().sizes(slots, fanout))
}

/// A store whose every third write is followed by a snapshot. A few are kept, and dropped out of
/// order, so that keys have several versions and the term changes all the time.
struct Snapped<K: Key + ?Sized, V: Value + ?Sized> {
    store: Store<K, V>,
    live: Mutex<VecDeque<Snapshot<K, V>>>,
    writes: AtomicUsize,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Snapped<K, V> {
    fn new(options: Options) -> Self {
        // Collection on the calling thread: `memory_returns` counts what that frees.
        let store = Store::with_options(options.collectors(0));
        Self { store, live: Mutex::default(), writes: AtomicUsize::new(0) }
    }

    fn settle_snapshots(&self) {
        self.live.lock().unwrap().clear();
        self.store.collect_garbage();
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Snapped<K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.store.get_with(key, read)
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        self.store.modify(key, change)?;
        let writes = self.writes.fetch_add(1, Ordering::Relaxed);
        if writes.is_multiple_of(3) {
            let snapshot = self.store.snapshot();
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
        bounds: ordna::index::Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.store.walk(bounds, direction, limit, visit);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        self.store.pin()
    }

    fn approximate_len(&self) -> usize {
        self.store.approximate_len()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.store.memory_usage()
    }

    fn validate(&self) -> Result<Audit, Violation> {
        self.store.validate()?;
        self.settle_snapshots();
        let kept = self.store.statistics().dead;
        if kept > 0 {
            return Err(Violation(format!("no snapshot lives, and {kept} undo records do")));
        }
        self.store.validate()
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.store.get_many_with(keys, each);
    }
}
