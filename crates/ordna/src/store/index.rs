//! The store as an [`OrderedIndex`]: its latest state.

use std::borrow::Borrow;
use std::ops::ControlFlow;

use super::engine::View;
use super::handle::Store;
use ordna_base::index::{Bounds, Change, Direction};
use ordna_base::reclaim::Guard;
use ordna_base::sync::fault;
use ordna_base::{Error, InvariantReport, Key, MemoryUsage, OrderedIndex, Value, Violation};

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Store<K, V> {
    type Key = K;
    type Value = V;

    #[inline]
    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.engine().get(View::Latest, key, |found| read(found.value))
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        Self::modify(self, key, change)
    }

    fn insert(&self, key: &K, value: &V) -> Result<Option<V::Owned>, Error> {
        // Does not use `modify`, which keeps the deadline of the entry that it replaces.
        Self::insert(self, key, value)
    }

    fn scan_with(
        &self,
        bounds: Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.engine()
            .visit(View::Latest, bounds, direction, limit, |key, found| visit(key, found.value));
    }

    fn pin(&self) -> Option<Guard<'_>> {
        Some(self.engine().collector.pin())
    }

    fn approximate_len(&self) -> usize {
        self.engine().epochs.items.sum()
    }

    fn memory_usage(&self) -> MemoryUsage {
        let engine = self.engine();
        self.check_reentry();
        let _guard = engine.collector.pin();
        let (leaves, records, search) = engine.tree.memory_usage();
        let (without_leaf, without_record) = engine.tree.spare_bytes();
        let parts = vec![
            ("leaves", leaves),
            ("slabs without a leaf", without_leaf),
            ("records", records),
            ("slabs without a record", without_record),
            ("search layer", search),
            ("undo records", engine.tree.log().size().1),
            ("deadlines", engine.deadlines.size().1),
        ];
        MemoryUsage { parts }
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        let engine = self.engine();
        self.check_reentry();
        let report = {
            // Expired keys and freed undo records would change what the audit compares. The guard
            // keeps the memory that the audit reads alive, even if a thread writes.
            let _expiry = engine.deadlines.lock_removal();
            let _freeing = engine.collection.freeing.lock();
            let _guard = (!fault!("store.check.pins")).then(|| engine.collector.pin());
            engine.tree.check_invariants()
        };
        // Makes up for a compaction that was refused during the audit.
        engine.help();
        report
    }

    fn scan_many(&self, ranges: &[(Bounds<'_, K>, usize)], each: impl FnMut(usize, &K, &V)) {
        self.engine().scan_many(View::Latest, ranges, each);
    }

    fn insert_many<Q, W>(&self, pairs: &[(Q, W)]) -> Result<usize, Error>
    where
        Q: Borrow<K>,
        W: Borrow<V>,
    {
        self.insert_pairs(pairs.iter().map(|(key, value)| (key.borrow(), value.borrow())))
    }

    fn remove_many<Q: Borrow<K>>(&self, keys: &[Q]) -> usize {
        self.remove_keys(keys.iter().map(Borrow::borrow)).unwrap_or(0)
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.engine().get_many(View::Latest, keys.iter().map(Borrow::borrow), each);
    }
}

ordna_base::impl_versioned!(Store<K, V>, super::Snapshot<K, V>);
