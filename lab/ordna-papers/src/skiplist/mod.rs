//! A lock-free skip list: the safe interface to `raw`, whose top describes the protocol.
//!
//! ```
//! use ordna_papers::{OrderedIndex, SkipList};
//!
//! let index: SkipList<[u8], u64> = SkipList::new();
//! index.insert(b"Lund", &94_393)?;
//! index.insert(b"Uppsala", &177_074)?;
//! assert_eq!(index.get(b"Lund"), Some(94_393));
//! assert_eq!(index.range(..).rev().next(), Some((b"Uppsala".to_vec(), 177_074)));
//! # Ok::<(), ordna_papers::Error>(())
//! ```
//!
//! Point operations take expected O(log n), and are linearizable at one CAS or load of a level-0
//! link. Scans follow level 0; long ones do so in several concurrent lanes. Descending scans go
//! back by sections of up to about five hundred nodes and scan each of them forwards. Nodes are
//! immutable: a new value is stored in a new node, which replaces the old one in a single step. A
//! `u64` pair takes 32 bytes on average, before the allocator's rounding, and one byte for the
//! table at which searches begin (`raw::shortcuts`).
//!
//! Removed nodes of that table, which are at most a fiftieth of the list's nodes, are freed when
//! the next table is built: after a quarter of its nodes have been added or removed.
//!
//! Source: the Nitro paper (VLDB 2016), §2. The table is the index layer of the PI paper (2016),
//! §3.1.

pub(crate) mod item;
pub(crate) mod raw;

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use self::item::Pair;
pub use self::raw::{Fanout, ListOptions};
use self::raw::{LANES, List, MAX_HEIGHT, NodeRef};
use ordna_base::index::{
    Bounds, Change, Direction, InvariantReport, MemoryUsage, OrderedIndex, is_above, is_below,
};
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::StripedCounter;
use ordna_base::{Error, Key, Value, Violation};

/// Length of the first section of an ascending scan, in which many scans end.
const SECTION: usize = 64;

/// A lock-free ordered map; see the [module](self).
pub struct SkipList<K: Key + ?Sized, V: Value + ?Sized> {
    // Declared before the collector: dropping the list frees linked nodes, and the collector frees
    // the others.
    list: List<Pair<K, V>>,
    collector: Collector,
    len: StripedCounter,
}

crate::shell!("SkipList" [K: Key + ?Sized, V: Value + ?Sized] SkipList<K, V>);

impl<K: Key + ?Sized, V: Value + ?Sized> SkipList<K, V> {
    /// Creates an empty index.
    pub fn new() -> Self {
        Self::with(ListOptions::default())
    }

    /// Creates an empty index whose list has these options.
    pub fn with(options: ListOptions) -> Self {
        let (list, collector) = (List::with(options), Collector::new());
        Self { list, collector, len: StripedCounter::new() }
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
        let Some(mut at) = self.list.locate(from, guard) else { return };
        let mut last: Option<NodeRef<Pair<K, V>>> = None;
        let mut pass = |node: NodeRef<Pair<K, V>>, is_live: bool| {
            if is_above(node.key(), upper) {
                return ControlFlow::Break(());
            }
            // A removed node leads to its successor, which has the same key after a replacement. If
            // the scan has visited the old node, it has returned the key.
            let repeated = last.is_some_and(|last| last.key() == node.key());
            if is_live && !repeated && !is_below(node.key(), lower) {
                last = Some(node);
                node.with_value(|value| visit(node.key(), value))?;
            }
            ControlFlow::Continue(())
        };
        let mut lanes = Vec::new();
        let (count, level) = LANES[LANES.len() - 1];
        loop {
            for _ in 0..SECTION {
                if pass(at, at.is_live()).is_break() {
                    return;
                }
                let Some(next) = self.list.next(at, guard) else { return };
                at = next;
            }
            loop {
                let mut row = self.list.tall_behind(at.rank(), level, count, guard);
                row.truncate(row.iter().take_while(|node| !is_above(node.key(), upper)).count());
                let Some(end) = row.pop() else { break };
                row.insert(0, at);
                let beyond = |node: NodeRef<Pair<K, V>>| node.key() >= end.key();
                self.list.scan_lanes(&row, beyond, &mut lanes, guard, |node| node.is_live());
                if lanes.iter().flatten().any(|node| pass(*node, true).is_break()) {
                    return;
                }
                at = end;
            }
        }
    }

    fn descend(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        guard: &Guard<'_>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut lanes = Vec::new();
        let mut upper = upper;
        for section in 0.. {
            let to = match upper {
                Bound::Unbounded => None,
                Bound::Included(key) | Bound::Excluded(key) => Some(key),
            };
            let (count, level) = LANES[section.min(LANES.len() - 1)];
            let mut row = self.list.tall_before(to, level, count, guard);
            // Of the nodes below the bound, the row needs only the last one.
            let below = row.iter().take_while(|node| is_below(node.key(), lower)).count();
            row.drain(..below.saturating_sub(1));
            let start = row.first().copied();
            if start.is_none() {
                row.extend(self.list.locate(None, guard));
            }
            let beyond = |node: NodeRef<Pair<K, V>>| is_above(node.key(), upper);
            self.list.scan_lanes(&row, beyond, &mut lanes, guard, |node| node.is_live());
            let begins_behind = start.map(|start| start.rank_under(guard));
            let mut last: Option<NodeRef<Pair<K, V>>> = None;
            for node in lanes.iter().rev().flat_map(|lane| lane.iter().rev()) {
                let key = node.key();
                if is_below(key, lower) || begins_behind.is_some_and(|start| key <= start) {
                    break;
                }
                // The lanes may have found both nodes of a replacement.
                let repeated = last.is_some_and(|last| last.key() == key);
                if !repeated && node.with_value(|value| visit(key, value)).is_break() {
                    return;
                }
                last = Some(*node);
            }
            match begins_behind {
                Some(start) if !is_below(start, lower) => upper = Bound::Included(start),
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
                let value = value.borrow();
                value.check()?;
                if self.list.insert(&mut place, &(key, value), &guard) {
                    self.len.add(1);
                    return Ok(());
                }
                continue;
            };
            match node.with_value(|value| change(Some(value))) {
                Change::Keep => return Ok(()),
                Change::Put(value) => {
                    let value = value.borrow();
                    value.check()?;
                    if self.list.replace(&mut place, node, &(key, value), &guard) {
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

    fn scan_with(
        &self,
        (lower, upper): Bounds<'_, K>,
        direction: Direction,
        _limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
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
        let head = MAX_HEIGHT * size_of::<usize>();
        let (shortcuts, held) = self.list.overhead(&guard);
        let parts =
            [("nodes", nodes), ("head", head), ("shortcuts", shortcuts), ("held nodes", held)];
        MemoryUsage { parts: parts.into() }
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        let (entries, nodes) = self.list.check_invariants()?;
        if entries != self.approximate_len() {
            let counted = self.approximate_len();
            return Err(Violation(format!("skip list: {entries} entries, {counted} counted")));
        }
        Ok(InvariantReport { entries, nodes })
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let guard = self.collector.pin();
        self.list.get_many(keys.iter().map(Borrow::borrow), &guard, |at, node| match node {
            Some(node) => node.with_value(|value| each(at, Some(value))),
            None => each(at, None),
        });
    }
}
