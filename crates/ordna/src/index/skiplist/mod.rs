//! A lock-free skip list: the safe shell over `raw`, whose top states the protocol.
//!
//! Point operations O(log n) expected, linearizable at one CAS or load on a level-0 link. Ascending
//! walks follow level 0; descending walks search for a predecessor a stretch of some sixteen nodes
//! back and walk it forwards. Nodes are immutable: a new value comes with a new node, put in the
//! old one's place in one step. 32 bytes per `u64` pair on average, before the allocator's rounding.
//!
//! Source: the Nitro paper (VLDB 2016), §2.

pub(crate) mod item;
pub(crate) mod raw;

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use self::item::Pair;
use self::raw::{List, NodeRef};
use super::{
    Audit, Change, Direction, MemoryUsage, OrderedIndex, bounds_cross, is_above, is_below,
};
use crate::reclaim::{Collector, Guard};
use crate::sync::StripedCounter;
use crate::{Error, Key, Value, Violation};

/// Descending walks go back by nodes with towers above this level: 2^4 nodes on average.
const STRETCH_LEVEL: usize = 4;

/// A lock-free ordered map; see the [module](self).
pub struct SkipList<K: Key + ?Sized, V: Value + ?Sized> {
    // Before the collector: dropping the list frees what is linked, the collector the rest.
    list: List<Pair<K, V>>,
    collector: Collector,
    len: StripedCounter,
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for SkipList<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SkipList")
            .field("approximate_len", &self.approximate_len())
            .finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Default for SkipList<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> SkipList<K, V> {
    /// An empty index.
    pub fn new() -> Self {
        Self { list: List::new(), collector: Collector::new(), len: StripedCounter::new() }
    }

    fn ascend(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        guard: &Guard<'_>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let from = match lower {
            Bound::Unbounded => None,
            Bound::Included(key) => Some((key, true)),
            Bound::Excluded(key) => Some((key, false)),
        };
        let mut at = self.list.locate(from, guard);
        let mut last: Option<NodeRef<Pair<K, V>>> = None;
        while let Some(node) = at {
            if is_above(node.key(), upper) {
                return;
            }
            // A removed node hands on to its successor, which after a replacement has the same
            // key. If that comes after the old node was already visited, the key has been returned.
            let repeated = last.is_some_and(|last| last.key() == node.key());
            if node.is_live() && !repeated && !is_below(node.key(), lower) {
                last = Some(node);
                if node.with_value(|value| visit(node.key(), value)).is_break() {
                    return;
                }
            }
            at = self.list.next(node, guard);
        }
    }

    fn descend(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        guard: &Guard<'_>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut stretch: Vec<NodeRef<Pair<K, V>>> = Vec::new();
        let mut upper = upper;
        let mut start;
        loop {
            let key = match upper {
                Bound::Unbounded => None,
                Bound::Included(key) | Bound::Excluded(key) => Some(key),
            };
            start = self.list.stretch_before(key, STRETCH_LEVEL, guard);
            let mut at = match start {
                Some(node) => Some(node),
                None => self.list.locate(None, guard),
            };
            while let Some(node) = at.filter(|node| !is_above(node.key(), upper)) {
                let repeated = stretch.last().is_some_and(|last| last.key() == node.key());
                if node.is_live() && !repeated && !is_below(node.key(), lower) {
                    stretch.push(node);
                }
                at = self.list.next(node, guard);
            }
            for node in stretch.drain(..).rev() {
                if node.with_value(|value| visit(node.key(), value)).is_break() {
                    return;
                }
            }
            match &start {
                Some(node) if !is_below(node.key(), lower) => {
                    upper = Bound::Excluded(node.rank_under(guard));
                }
                _ => return,
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for SkipList<K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        let guard = self.collector.pin();
        self.list.get(key, &guard).map(|node| node.with_value(read))
    }

    fn modify<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        key.check()?;
        let guard = self.collector.pin();
        loop {
            let mut place = self.list.find(key, &guard);
            let Some(node) = place.found else {
                let Change::Put(value) = change(None) else { return Ok(()) };
                value.borrow().check()?;
                if self.list.insert(&mut place, &(key, value.borrow()), &guard) {
                    self.len.add(1);
                    return Ok(());
                }
                continue;
            };
            match node.with_value(|value| change(Some(value))) {
                Change::Keep => return Ok(()),
                Change::Put(value) => {
                    value.borrow().check()?;
                    if self.list.replace(&mut place, node, &(key, value.borrow()), &guard) {
                        return Ok(());
                    }
                }
                Change::Remove => {
                    if self.list.remove(&mut place, node, &guard) {
                        self.len.add(-1);
                        return Ok(());
                    }
                }
            }
        }
    }

    fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        if bounds_cross(lower, upper) {
            return;
        }
        let guard = self.collector.pin();
        match direction {
            Direction::Ascending => self.ascend(lower, upper, &guard, visit),
            Direction::Descending => self.descend(lower, upper, &guard, visit),
        }
    }

    fn pin(&self) -> Option<Guard<'_>> {
        Some(self.collector.pin())
    }

    fn approximate_len(&self) -> usize {
        self.len.sum()
    }

    fn memory_usage(&self) -> MemoryUsage {
        let guard = self.collector.pin();
        let mut nodes = 0;
        let mut at = self.list.locate(None, &guard);
        while let Some(node) = at {
            nodes += node.size();
            at = self.list.next(node, &guard);
        }
        let head = raw::MAX_HEIGHT * size_of::<usize>();
        MemoryUsage { parts: vec![("nodes", nodes), ("head", head)] }
    }

    fn validate(&self) -> Result<Audit, Violation> {
        let (entries, nodes) = self.list.validate()?;
        if entries != self.approximate_len() {
            let counted = self.approximate_len();
            return Err(Violation(format!("skip list: {entries} entries, {counted} counted")));
        }
        Ok(Audit { entries, nodes })
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let guard = self.collector.pin();
        self.list.get_many(keys.iter().map(Borrow::borrow), &guard, |at, node| match node {
            Some(node) => node.with_value(|value| each(at, Some(value))),
            None => each(at, None),
        });
    }
}
