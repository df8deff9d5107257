//! The store as an [`OrderedIndex`]: its latest state.

use std::borrow::Borrow;
use std::ops::ControlFlow;

use super::engine::View;
use super::handle::Store;
use super::write::Put;
use ordna_base::index::{Bounds, Change, Direction};
use ordna_base::reclaim::Guard;
use ordna_base::{Audit, Error, Key, MemoryUsage, OrderedIndex, Value, Violation};

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Store<K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        let engine = self.engine();
        let guard = engine.collector.pin();
        engine.get(View::Latest, key, &guard).map(|node| node.with_value(read))
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

    fn walk(
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
        self.engine().terms.items.sum()
    }

    fn memory_usage(&self) -> MemoryUsage {
        let (live, dead) = self.engine().bytes();
        let (shortcuts, held) = self.engine().overhead();
        let parts = vec![
            ("versions", live),
            ("dead versions", dead),
            ("held versions", held),
            ("shortcuts", shortcuts),
            ("deadlines", self.engine().deadlines.size().1),
        ];
        MemoryUsage { parts }
    }

    fn validate(&self) -> Result<Audit, Violation> {
        let (entries, nodes) = self.engine().validate()?;
        Ok(Audit { entries, nodes })
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.engine().get_many(View::Latest, keys, each);
    }
}
