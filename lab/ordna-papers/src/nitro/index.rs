//! The latest state of Nitro as an [`OrderedIndex`].

use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::engine::{Engine, View};
use super::garbage::Order;
use super::options::NitroOptions;
use super::snapshot::{Owner, Snapshot};
use ordna_base::index::{Bounds, Change, Direction};
use ordna_base::reclaim::Guard;
use ordna_base::sync::stripe_of_this_thread;
use ordna_base::{Error, InvariantReport, Key, MemoryUsage, OrderedIndex, Value, Violation};

/// The counts of an index, which are exact while no thread writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NitroStatistics {
    /// Number of keys in the latest state.
    pub items: usize,
    /// Number of dead versions that live snapshots keep, or that wait for their examination.
    pub dead: usize,
    /// Number of versions that were unlinked because no snapshot saw them any more.
    pub collected: usize,
}

/// An ordered index with snapshots; see the [module](super).
pub struct Nitro<K: Key + ?Sized, V: Value + ?Sized> {
    owner: Arc<Owner<K, V>>,
}

crate::shell!("Nitro" [K: Key + ?Sized, V: Value + ?Sized] Nitro<K, V>);

impl<K: Key + ?Sized, V: Value + ?Sized> Nitro<K, V> {
    /// Creates an empty index with one collector, and collection by the live set.
    pub fn new() -> Self {
        Self::with_options(NitroOptions::default())
    }

    /// Creates an empty index with `collectors` threads that collect dead versions. With 0, the
    /// threads that end snapshots collect, and so do writers after their writes.
    pub fn with(collectors: usize, order: Order) -> Self {
        Self::with_options(NitroOptions { collectors, order, ..NitroOptions::default() })
    }

    /// Creates an empty index with these options.
    pub fn with_options(options: NitroOptions) -> Self {
        let engine = Arc::new_cyclic(|me| Engine::new(options, me.clone()));
        Self { owner: Arc::new(Owner(engine)) }
    }

    fn engine(&self) -> &Engine<K, V> {
        &self.owner.0
    }

    /// Takes a snapshot of every write that ended before this call, and of no write that begins
    /// after it. O(log s) with s live snapshots. The call does not wait for writers. The first read
    /// of the snapshot waits for writes that were in progress.
    pub fn snapshot(&self) -> Snapshot<K, V> {
        Snapshot::take(Arc::clone(&self.owner))
    }

    /// Collects all garbage that no snapshot needs, and waits for busy collectors. Releases the
    /// removed versions to which shortcuts refer, in O(n).
    pub fn collect_garbage(&self) {
        let engine = self.engine();
        engine.collect();
        let guard = engine.collector.pin();
        if engine.versions.overhead(&guard).1 > 0 {
            engine.versions.renew_shortcuts(&guard);
        }
        guard.flush();
    }

    /// Returns the counts of the index. O(live snapshots).
    pub fn statistics(&self) -> NitroStatistics {
        let engine = self.engine();
        let (items, dead) = (engine.epochs.items.sum(), engine.dead());
        NitroStatistics { items, dead, collected: engine.garbage.collected() }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Nitro<K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        let engine = self.engine();
        let guard = engine.collector.pin();
        engine.get(View::Latest, key, &guard).map(|node| node.with_value(read))
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        key.check()?;
        let engine = self.engine();
        let done = {
            let writing = engine.epochs.enter(stripe_of_this_thread());
            let guard = engine.collector.pin();
            engine.apply(key, writing.epoch.get(), &guard, change)
        };
        engine.help();
        done
    }

    fn scan_with(
        &self,
        (lower, upper): Bounds<'_, K>,
        direction: Direction,
        _limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.engine().visit(View::Latest, lower, upper, direction, visit);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        Some(self.engine().collector.pin())
    }

    fn approximate_len(&self) -> usize {
        self.engine().epochs.items.sum()
    }

    fn memory_usage(&self) -> MemoryUsage {
        let engine = self.engine();
        let (live, dead) = engine.bytes();
        let (shortcuts, held) = engine.versions.overhead(&engine.collector.pin());
        let parts = [
            ("versions", live),
            ("dead versions", dead),
            ("held versions", held),
            ("shortcuts", shortcuts),
        ];
        MemoryUsage { parts: parts.into() }
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        let (entries, nodes) = self.engine().check_invariants()?;
        Ok(InvariantReport { entries, nodes })
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.engine().get_many(View::Latest, keys, each);
    }
}
