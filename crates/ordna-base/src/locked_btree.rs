//! [`Locked`]: the standard library's B-tree behind one reader-writer lock.
//!
//! It is the oracle to which every other index is compared, and the baseline that it has to beat.
//! Every operation is linearizable, including scans: a scan holds the read lock, so its closure
//! must not write to the index, which would deadlock. O(log n) for point operations.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::index::{Bounds, Change, Direction, InvariantReport, MemoryUsage, OrderedIndex};
use crate::reclaim::Guard;
use crate::{Error, Key, Value, Violation};

type Map<K, V> = BTreeMap<<K as ToOwned>::Owned, <V as ToOwned>::Owned>;

/// An index that is a `RwLock<BTreeMap>`.
pub struct Locked<K: Key + ?Sized, V: Value + ?Sized> {
    map: RwLock<Map<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Default for Locked<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for Locked<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locked").field("len", &self.approximate_len()).finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Locked<K, V> {
    /// Creates an empty index.
    pub fn new() -> Self {
        Self { map: RwLock::new(Map::<K, V>::new()) }
    }

    // A panic in a caller's closure leaves the map intact, so poisoning can be ignored.
    fn read(&self) -> RwLockReadGuard<'_, Map<K, V>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map<K, V>> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Locked<K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.read().get(key).map(|value| read(value.borrow()))
    }

    fn modify<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        key.check()?;
        let mut map = self.write();
        let Some(stored) = map.get_mut(key) else {
            if let Change::Put(value) = change(None) {
                let value = value.borrow();
                value.check()?;
                map.insert(key.to_owned(), value.to_owned());
            }
            return Ok(());
        };
        match change(Some((*stored).borrow())) {
            Change::Keep => {}
            Change::Put(value) => {
                let value = value.borrow();
                value.check()?;
                *stored = value.to_owned();
            }
            Change::Remove => {
                map.remove(key);
            }
        }
        Ok(())
    }

    fn scan_with(
        &self,
        (lower, upper): Bounds<'_, K>,
        direction: Direction,
        _limit: usize,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let map = self.read();
        let mut entries = map.range::<K, _>((lower, upper));
        while let Some((key, value)) = match direction {
            Direction::Ascending => entries.next(),
            Direction::Descending => entries.next_back(),
        } {
            if visit(key.borrow(), value.borrow()).is_break() {
                return;
            }
        }
    }

    fn pin(&self) -> Option<Guard<'_>> {
        None
    }

    fn approximate_len(&self) -> usize {
        self.read().len()
    }

    fn memory_usage(&self) -> MemoryUsage {
        let map = self.read();
        let heap: usize = map
            .iter()
            .map(|(key, value)| {
                let (key, value): (&K, &V) = (key.borrow(), value.borrow());
                key.tail().len() + value.tail().len()
            })
            .sum();
        let entry = size_of::<K::Owned>() + size_of::<V::Owned>();
        // The standard library's B-tree fills its nodes to about 7/10 under random inserts.
        MemoryUsage {
            parts: vec![("nodes (estimated)", map.len() * entry * 10 / 7), ("heap", heap)],
        }
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        Ok(InvariantReport { entries: self.read().len(), nodes: 0 })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Bound;

    use super::*;
    use crate::Entries;
    use crate::index::{READ_AHEAD_BYTES, Range, Source};
    use crate::value::MAX_LEN;

    #[test]
    fn the_contract_in_one_scan() {
        let index = Locked::<[u8], u64>::new();
        assert_eq!(index.insert(b"b", &2), Ok(None));
        assert_eq!(index.insert(b"b", &3), Ok(Some(2)));
        assert_eq!(index.insert_if_absent(b"b", &4), Ok(Some(3)));
        assert_eq!(index.compare_exchange(b"b", Some(&3), Some(&5)), Ok(Ok(())));
        assert_eq!(index.compare_exchange(b"b", Some(&3), None), Ok(Err(Some(5))));
        assert_eq!(index.update(b"b", |value| value + 1), Ok(Some(6)));
        assert_eq!(index.insert_many(&[(b"a".as_slice(), 1), (b"c", 3), (b"b", 2)]), Ok(2));
        assert_eq!(index.floor(b"bb"), Some((b"b".to_vec(), 2)));
        assert_eq!(index.ceiling(b"bb"), Some((b"c".to_vec(), 3)));
        let mut range =
            index.range::<(Bound<&[u8]>, Bound<&[u8]>)>((Bound::Unbounded, Bound::Unbounded));
        assert_eq!(range.next().unwrap().1, 1);
        assert_eq!(range.next_back().unwrap().1, 3);
        assert_eq!(range.next_back().unwrap().1, 2);
        assert!(range.next().is_none() && range.next_back().is_none());
        let mut found = Vec::new();
        index.get_many(&[b"c".as_slice(), b"x"], &mut found);
        assert_eq!(found, [Some(3), None]);
        assert_eq!(index.remove_many(&[b"a".as_slice(), b"x"]), 1);
        assert_eq!(index.remove(b"b"), Some(2));
        assert_eq!(index.approximate_len(), 1);
    }

    #[test]
    fn bounds_that_cross_hold_nothing() {
        let index = Locked::<u64, u64>::new();
        index.insert(&5, &5).unwrap();
        assert_eq!(index.range((Bound::Included(7), Bound::Included(3))).count(), 0);
        assert_eq!(index.range((Bound::Excluded(5), Bound::Excluded(5))).count(), 0);
        assert_eq!(index.range(5..=5).count(), 1);
    }

    /// In whatever order the two ends are read, and however far each has read ahead, they return
    /// each entry exactly once.
    #[test]
    fn the_ends_of_a_range_meet() {
        let take = |len: u64, from_back: &dyn Fn(u64) -> bool| {
            let index = Locked::<u64, u64>::new();
            (0..len).for_each(|key| drop(index.insert(&key, &key)));
            let mut range = index.range(..);
            let (mut front, mut back) = (Vec::new(), Vec::new());
            for turn in 0.. {
                let (entry, side) = match from_back(turn) {
                    true => (range.next_back(), &mut back),
                    false => (range.next(), &mut front),
                };
                let Some((key, _)) = entry else { break };
                side.push(key);
            }
            assert!(range.next().is_none() && range.next_back().is_none());
            front.extend(back.into_iter().rev());
            assert_eq!(front, (0..len).collect::<Vec<_>>());
        };
        for len in [0, 1, 2, 3, 10, 100, 1000] {
            for first in [0, 1, len / 2, len] {
                for period in 1..5 {
                    take(len, &|turn| turn < first || turn % period == 0);
                    take(len, &|turn| turn >= first && turn % period > 0);
                }
            }
        }
    }

    #[test]
    fn a_value_that_is_too_long_changes_nothing() {
        let index = Locked::<[u8], [u8]>::new();
        // Its pages are never written, so they take no memory.
        let long = vec![0; MAX_LEN + 1];
        let refused = Error::ValueTooLong { len: long.len() };
        for stored in [None, Some(b"old".to_vec())] {
            if let Some(old) = &stored {
                index.insert(b"key", old).unwrap();
            }
            assert_eq!(index.insert(b"key", &long), Err(refused.clone()));
            let exchanged =
                index.compare_exchange(b"key", stored.as_deref(), Some(long.as_slice()));
            assert_eq!(exchanged, Err(refused.clone()));
            assert_eq!(index.get(b"key".as_slice()), stored);
        }
        assert_eq!(index.insert_if_absent(b"other", &long), Err(refused));
        assert_eq!(index.get(b"other".as_slice()), None);
    }

    /// An index that records how much was read ahead at a time.
    struct Noting {
        index: Locked<[u8], [u8]>,
        most: Cell<usize>,
    }

    impl Source for Noting {
        type Key = [u8];
        type Value = [u8];

        fn read_ahead(
            &self,
            lower: Bound<&[u8]>,
            upper: Bound<&[u8]>,
            direction: Direction,
            limit: usize,
            out: &mut Entries<[u8], [u8]>,
        ) -> bool {
            let more = self.index.read_ahead(lower, upper, direction, limit, out);
            self.most.set(self.most.get().max(out.byte_len()));
            more
        }
    }

    #[test]
    fn large_values_are_read_ahead_one_at_a_time() {
        let (index, value) = (Locked::<[u8], [u8]>::default(), vec![7; READ_AHEAD_BYTES]);
        for key in 0..64_u8 {
            index.insert(&[key], &value).unwrap();
        }
        let noting = Noting { index, most: Cell::new(0) };
        let mut range = Range::new(&noting, Bound::Unbounded, Bound::Excluded(vec![60]));
        let mut keys = Vec::new();
        while let Some((key, value)) = range.next() {
            assert_eq!(value.len(), READ_AHEAD_BYTES);
            keys.extend(key);
            keys.extend(range.next_back().map(|(key, _)| key[0]));
        }
        keys.sort_unstable();
        assert_eq!(keys, (0..60).collect::<Vec<u8>>());
        assert_eq!(noting.most.get(), READ_AHEAD_BYTES + 1);
    }

    #[test]
    fn a_limit_says_that_more_may_follow() {
        let index = Locked::<u64, u64>::default();
        for key in 0..5 {
            index.insert(&key, &key).unwrap();
        }
        let read = |limit| {
            let mut out = Entries::new();
            let bounds = (Bound::Included(&1), Bound::Excluded(&4));
            let more = index.read_ahead(bounds.0, bounds.1, Direction::Ascending, limit, &mut out);
            (out.len(), more)
        };
        assert_eq!([read(2), read(3), read(4)], [(2, true), (3, true), (3, false)]);
    }
}
