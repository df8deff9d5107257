//! Reads of the latest state in addition to those of [`OrderedIndex`](crate::OrderedIndex):
//! deadlines, counts and positions.

use std::ops::{Bound, ControlFlow};

use super::engine::View;
use super::handle::Store;
use crate::entry::EntrySource;
use crate::entry::Put;
use ordna_base::index::{Direction, bounds_cross};
use ordna_base::{Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Calls `read` with the value of `key` and its deadline, without copying them. O(log n).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.get_entry_with(b"Lund", |entry| entry.expires_at), Some(None));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_entry_with<R>(&self, key: &K, read: impl FnOnce(Put<&V>) -> R) -> Option<R> {
        self.engine().get(View::Latest, key, |found| {
            read(Put { value: found.value, expires_at: found.expires_at })
        })
    }

    /// Works like [`visit`](ordna_base::OrderedIndex::visit), with the deadlines.
    ///
    /// ```
    /// use std::ops::{Bound, ControlFlow};
    /// use ordna::Direction;
    ///
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// let mut people = 0;
    /// towns.visit_entries(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |_, entry| {
    ///     people += entry.value;
    ///     ControlFlow::Continue(())
    /// });
    /// assert_eq!(people, 271_467);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn visit_entries(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        mut visit: impl FnMut(&K, Put<&V>) -> ControlFlow<()>,
    ) {
        if !bounds_cross(lower, upper) {
            let bounds = (lower, upper);
            self.engine().visit(View::Latest, bounds, direction, usize::MAX, |key, found| {
                visit(key, Put { value: found.value, expires_at: found.expires_at })
            });
        }
    }

    /// Returns the number of keys within the bounds. O(log n + l), where l is the number of leaves
    /// within the bounds, of about 40 entries each, that hold entries with deadlines or have
    /// changed since the last count that included them. The first count visits all leaves.
    /// Concurrent writes count as in a scan: a key that is present throughout counts once. At a
    /// [`Snapshot`](crate::Snapshot) the count is exact, and l is the number of all leaves within
    /// the bounds.
    ///
    /// ```
    /// use std::ops::Bound;
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// assert_eq!(names.count(Bound::Included(&2), Bound::Unbounded), 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn count(&self, lower: Bound<&K>, upper: Bound<&K>) -> usize {
        self.engine().count_range(View::Latest, (lower, upper))
    }

    /// Returns the number of keys below `key`: its position, if it is present. Same cost and
    /// guarantees as [`count`](Self::count).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// assert_eq!((names.rank(&1), names.rank(&2), names.rank(&9)), (0, 1, 2));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn rank(&self, key: &K) -> usize {
        self.count(Bound::Unbounded, Bound::Excluded(key))
    }

    /// Returns the entry at a position, counted from 0. Same cost and guarantees as
    /// [`count`](Self::count) of the entries before it.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// assert_eq!(names.select(1), Some((2, b"Uppsala".to_vec())));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn select(&self, position: usize) -> Option<(K::Owned, V::Owned)> {
        self.select_with(position, |key, value| (key.to_owned(), value.to_owned()))
    }

    /// Calls `read` with the entry at a position, see [`select`](Self::select).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// assert_eq!(names.select_with(0, |key, name| (*key, name.len())), Some((1, 4)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn select_with<R>(&self, position: usize, read: impl FnOnce(&K, &V) -> R) -> Option<R> {
        self.engine().select(View::Latest, position, read)
    }

    /// Calls `read` with an entry near `key`, which need not be present: one of about 40 entries
    /// with successive keys, selected by `place`. With random keys and places, all entries are
    /// about equally likely if the keys are distributed evenly. Returns `None` if there is no entry
    /// here or the selected one has expired; another key or place may then find one. The read is
    /// one step. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.insert(1, "Uppsala")?;
    /// assert_eq!(names.near_with(&7, 3, |key, _| *key), Some(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn near_with<R>(&self, key: &K, place: usize, read: impl FnOnce(&K, &V) -> R) -> Option<R> {
        self.engine().near(key, place, read)
    }

    /// Returns the deadline of `key`: `None` if it is absent, `Some(None)` if it does not expire.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// towns.set_expiry(b"Lund", Some(u64::MAX - 1))?;
    /// assert_eq!(towns.expiry(b"Lund"), Some(Some(u64::MAX - 1)));
    /// assert_eq!((towns.expiry(b"Uppsala"), towns.expiry(b"Oslo")), (Some(None), None));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn expiry(&self, key: &K) -> Option<Option<u64>> {
        self.engine().get(View::Latest, key, |found| found.expires_at)
    }

    /// Returns the keys that expire first, at most `limit`, in the order of their deadlines. Some
    /// may have changed or expired in the meantime. O(limit).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// towns.expire_in("Lund", Duration::from_secs(60))?;
    /// assert_eq!(towns.next_to_expire(10), [b"Lund".to_vec()]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn next_to_expire(&self, limit: usize) -> Vec<K::Owned> {
        self.engine().deadlines.soonest(limit)
    }

    /// Returns at most `parts - 1` keys, in order, that divide the store into parts with about
    /// equal numbers of entries. O(parts), except that a store of few leaves is read completely.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// for key in 0..1_000 {
    ///     store.put(key, key)?;
    /// }
    /// assert!(store.partition_points(4).len() <= 3);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn partition_points(&self, parts: usize) -> Vec<K::Owned> {
        self.check_reentry();
        let wanted = parts.saturating_mul(8);
        let mut sample = self.engine().tree.sample(wanted);
        if sample.len() < wanted {
            // With few leaves, keys divide the entries more evenly than low fences.
            sample.clear();
            let all = (Bound::Unbounded, Bound::Unbounded);
            self.engine().visit(View::Latest, all, Direction::Ascending, usize::MAX, |key, _| {
                sample.push(key.to_owned());
                ControlFlow::Continue(())
            });
        }
        let parts = parts.min(sample.len());
        let point = |part: usize| sample.get(part * sample.len() / parts).cloned();
        let mut points: Vec<K::Owned> = (1..parts).filter_map(point).collect();
        points.dedup();
        points
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> EntrySource<K, V> for Store<K, V> {
    fn read(&self, key: &K, read: &mut dyn FnMut(Option<Put<&V>>)) {
        if self.get_entry_with(key, |put| read(Some(put))).is_none() {
            read(None);
        }
    }

    fn scan_with(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        visit: &mut dyn FnMut(&K, Put<&V>) -> ControlFlow<()>,
    ) {
        self.visit_entries(lower, upper, Direction::Ascending, visit);
    }
}

/// Only for keys of bytes: the removal of a range of integers may drop whole leaves without reading
/// their keys.
impl<V: Value + ?Sized> Store<[u8], V> {
    /// Starts to count the items whose keys are less than `end`, for [`len_below`](Self::len_below).
    ///
    /// Returns `true` for the first call. Later calls return `false` and change nothing. O(n) for n
    /// items below `end`; writers wait until it returns.
    ///
    /// # Examples
    ///
    /// ```
    /// let store: ordna::Store<[u8], u64> = ordna::Store::new();
    /// store.insert("Lund", 94_393)?;
    /// assert!(store.count_below(b"M"));
    /// store.insert("Uppsala", 177_074)?;
    /// assert_eq!((store.len_below(), store.len()), (Some(1), 2));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn count_below(&self, end: &[u8]) -> bool {
        self.check_reentry();
        self.engine().count_below(end)
    }

    /// Returns the number of items below the key given to [`count_below`](Self::count_below), or
    /// `None` if it was not called.
    ///
    /// The number is exact while no thread writes below that key. Writes in progress below it may
    /// or may not be included; other writes do not matter. O(1).
    ///
    /// ```
    /// let store: ordna::Store<[u8], u64> = ordna::Store::new();
    /// assert_eq!(store.len_below(), None);
    /// store.count_below(b"M");
    /// store.put("Lund", 94_393)?;
    /// assert_eq!(store.len_below(), Some(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn len_below(&self) -> Option<usize> {
        self.engine().below.get().map(|below| below.items.sum())
    }
}
