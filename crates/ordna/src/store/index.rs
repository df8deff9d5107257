//! The store as an [`OrderedIndex`]: its latest state.

use std::borrow::Borrow;
use std::ops::ControlFlow;

use super::batch::Write;
use super::engine::View;
use super::handle::Store;
use crate::entry::Put;
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

    fn modify<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        self.modify_entry(key, |found| match change(found.map(|found| found.value)) {
            Change::Keep => Change::Keep,
            Change::Put(value) => Change::Put(Put::forever(value)),
            Change::Remove => Change::Remove,
        })
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
        let report = {
            // Keys that expire and undo records that end would change what the audit compares; the
            // guard keeps what it reads even beside a writer.
            let _expiry = engine.deadlines.lock_removal();
            let _freeing = engine.collection.freeing.lock();
            let _guard = (!fault!("store.check.pins")).then(|| engine.collector.pin());
            engine.tree.check_invariants()
        };
        // A compaction that was turned away meanwhile.
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
        // Each pair is asked for its key and value once: what is checked is what is written.
        let writes: Vec<Write<'_, K, V>> =
            pairs.iter().map(|(key, value)| Write::put(key.borrow(), value.borrow())).collect();
        writes.iter().try_for_each(Write::check)?;
        let progress = self.write_many(&writes)?;
        Ok(progress.done - progress.present)
    }

    fn remove_many<Q: Borrow<K>>(&self, keys: &[Q]) -> usize {
        let keys = keys.iter().map(Borrow::borrow).filter(|key: &&K| key.check().is_ok());
        let writes: Vec<Write<'_, K, V>> = keys.map(Write::Remove).collect();
        self.write_many(&writes).map_or(0, |progress| progress.present)
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.engine().get_many(View::Latest, keys, each);
    }
}

ordna_base::impl_versioned!(Store<K, V>, super::Snapshot<K, V>);
