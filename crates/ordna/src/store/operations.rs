//! Reads, writes and iterators of a store under their usual names. They work like those of
//! [`OrderedIndex`], take keys and values in any form that implements [`AsData`], and report a
//! failed log.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use super::engine::View;
use super::handle::Store;
use crate::entry::{Found, Put};
use crate::tree::ValueRef;
use ordna_base::index::{Bounds, Change, Direction, InvariantReport, MemoryUsage, Range};
use ordna_base::key::prefix_end;
use ordna_base::sync::notice;
use ordna_base::{AsData, Error, Key, KeyRange, OrderedIndex, Value, Violation};

/// A copy of an entry.
type Entry<K, V> = (<K as ToOwned>::Owned, <V as ToOwned>::Owned);

/// Converts a change of a value to a change of the entry that keeps its deadline.
pub(super) fn keeping_deadline<T, V: ?Sized>(
    change: Change<T>,
    found: Option<Found<'_, V>>,
) -> Change<Put<T>> {
    match change {
        Change::Keep => Change::Keep,
        Change::Remove => Change::Remove,
        Change::Put(value) => {
            let found = found.filter(|_| notice!("store.modify.keeps_the_deadline", true));
            Change::Put(Put { value, expires_at: found.and_then(|found| found.expires_at) })
        }
    }
}

/// # Reads
impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Returns the value of `key`, copied. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// assert_eq!(names.get(1).as_deref(), Some(&b"Lund"[..]));
    /// assert_eq!(names.get(3), None);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    #[inline]
    pub fn get(&self, key: impl AsData<K>) -> Option<V::Owned> {
        self.get_with(key, ToOwned::to_owned)
    }

    /// Calls `read` with the value of `key`, without copying it; `None` if the key is absent.
    /// `read` must be short and must not write to this store. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.insert(1, "Uppsala")?;
    /// assert_eq!(names.get_with(1, |name| name.len()), Some(7));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    #[inline]
    pub fn get_with<R>(&self, key: impl AsData<K>, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.engine().get(View::Latest, key.as_data(), |found| read(found.value))
    }

    /// Returns the value of `key`, borrowed without a copy. It does not change when the key does,
    /// and keeps memory from being freed while it lives. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Uppsala")?;
    /// let name = names.get_ref(1).unwrap();
    /// names.remove(1)?;
    /// assert_eq!(&name[..3], b"Upp");
    /// # Ok::<(), ordna::Error>(())
    /// ```
    #[inline]
    pub fn get_ref(&self, key: impl AsData<K>) -> Option<ValueRef<'_, V>> {
        self.engine().get_ref(View::Latest, key.as_data())
    }

    /// Returns whether `key` is present. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// assert!(names.contains_key(2) && !names.contains_key(3));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    #[inline]
    pub fn contains_key(&self, key: impl AsData<K>) -> bool {
        self.get_with(key, |_| ()).is_some()
    }

    /// Appends the value of every key to `out`, in the order of `keys`. Their memory accesses
    /// overlap.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// let mut people = Vec::new();
    /// towns.get_many(&["Uppsala", "Oslo"], &mut people);
    /// assert_eq!(people, [Some(177_074), None]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_many<Q: AsData<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.reserve(keys.len());
        self.get_many_with(keys, |_, value| out.push(value.map(ToOwned::to_owned)));
    }

    /// Calls `each` with the position and value of every key, in the order of `keys`. Their memory
    /// accesses overlap.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// let mut sum = 0;
    /// towns.get_many_with(&["Uppsala", "Lund"], |_, people| sum += people.unwrap_or(&0));
    /// assert_eq!(sum, 271_467);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_many_with<Q: AsData<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.engine().get_many(View::Latest, keys.iter().map(AsData::as_data), each);
    }

    /// Calls `each` with the position of a range and the range's entries in order, range by range.
    /// The number next to each range is the maximum number of its entries. The memory accesses of
    /// all ranges overlap.
    ///
    /// ```
    /// use std::ops::Bound::{Excluded, Included, Unbounded};
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let mut keys = Vec::new();
    /// let ranges = [((Included(&2), Unbounded), 10), ((Unbounded, Excluded(&2)), 10)];
    /// names.scan_many(&ranges, |range, key, _| keys.push((range, *key)));
    /// assert_eq!(keys, [(0, 2), (1, 1)]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn scan_many(&self, ranges: &[(Bounds<'_, K>, usize)], each: impl FnMut(usize, &K, &V)) {
        self.engine().scan_many(View::Latest, ranges, each);
    }

    /// Returns the number of entries. Exact while no thread writes; otherwise it is off by at most
    /// the writes in progress. O(1).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.len(), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.approximate_len()
    }

    /// Returns whether there are no entries, see [`len`](Self::len).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// assert!(towns.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the entry with the smallest key. O(log n).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.first(), Some((b"Lund".to_vec(), 94_393)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn first(&self) -> Option<Entry<K, V>> {
        OrderedIndex::first(self)
    }

    /// Returns the entry with the largest key. O(log n).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.last(), Some((b"Uppsala".to_vec(), 177_074)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn last(&self) -> Option<Entry<K, V>> {
        OrderedIndex::last(self)
    }

    /// Returns the entry with the largest key that is at most `key`. O(log n).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.floor("M"), Some((b"Lund".to_vec(), 94_393)));
    /// assert_eq!(towns.floor("A"), None);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn floor(&self, key: impl AsData<K>) -> Option<Entry<K, V>> {
        OrderedIndex::floor(self, key.as_data())
    }

    /// Returns the entry with the smallest key that is at least `key`. O(log n).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.ceiling("M"), Some((b"Uppsala".to_vec(), 177_074)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn ceiling(&self, key: impl AsData<K>) -> Option<Entry<K, V>> {
        OrderedIndex::ceiling(self, key.as_data())
    }

    /// Returns an iterator over the entries of a range, in order, from both ends. It reads ahead in
    /// chunks and holds no lock between calls. A live scan: see [`OrderedIndex`]. O(log n), then
    /// amortized O(1) per entry. The iterator copies entries; [`Range::next_ref`] lends them.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.insert("Lund", 94_393)?;
    /// towns.insert("Uppsala", 177_074)?;
    /// assert_eq!(towns.range("A".."M").count(), 1);
    /// assert_eq!(towns.range(..).next_back().unwrap().1, 177_074);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn range(&self, range: impl KeyRange<K>) -> Range<'_, Self> {
        let (lower, upper) = range.ends();
        Range::new(self, lower.map(ToOwned::to_owned), upper.map(ToOwned::to_owned))
    }

    /// Returns all entries, in order, from both ends; see [`range`](Self::range).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.iter().map(|(_, people)| people).sum::<u64>(), 271_467);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn iter(&self) -> Range<'_, Self> {
        Range::new(self, Bound::Unbounded, Bound::Unbounded)
    }

    /// Calls `visit` with the entries within the bounds, in order, until it breaks. This is the
    /// fastest scan, without a copy. Crossed bounds hold no entries. `visit` must not write to this
    /// store, and long work in it delays the freeing of memory. O(log n), then O(1) per entry.
    ///
    /// ```
    /// use std::ops::{Bound, ControlFlow};
    /// use ordna::Direction;
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let mut letters = 0;
    /// names.visit(Bound::Unbounded, Bound::Unbounded, Direction::Descending, |_, name| {
    ///     letters += name.len();
    ///     ControlFlow::Continue(())
    /// });
    /// assert_eq!(letters, 11);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        OrderedIndex::visit(self, lower, upper, direction, visit);
    }

    /// Returns the memory use in bytes, by part. O(n). Exact while no thread writes.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// let usage = towns.memory_usage();
    /// assert_eq!(usage.total(), usage.parts.iter().map(|(_, bytes)| bytes).sum::<usize>());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn memory_usage(&self) -> MemoryUsage {
        OrderedIndex::memory_usage(self)
    }

    /// Audits the structure: order, links and counts. O(n); call it while no thread writes.
    ///
    /// # Errors
    /// The first violated invariant.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.check_invariants().unwrap().entries, 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        OrderedIndex::check_invariants(self)
    }
}

impl<V: Value + ?Sized> Store<[u8], V> {
    /// Returns the entries whose key starts with `prefix`, in order, from both ends; see
    /// [`range`](Self::range).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// towns.put("Lunde", 1_000)?;
    /// assert_eq!(towns.prefix("Lund").count(), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn prefix(&self, prefix: impl AsData<[u8]>) -> Range<'_, Self> {
        let prefix = prefix.as_data();
        let end = prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        Range::new(self, Bound::Included(prefix.to_vec()), end)
    }
}

/// # Writes
///
/// Writes of single keys are linearizable. They fail with [`Error::KeyTooLong`],
/// [`Error::ValueTooLong`], [`Error::MemoryLimit`] or, in a store that was opened in a directory,
/// [`Error::LogFailed`]. Only after [`Error::LogFailed`] may the write have been made.
impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Sets the value of `key`. The entry does not expire. O(log n).
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// assert_eq!(towns.get("Lund"), Some(94_393));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    #[inline]
    pub fn put(&self, key: impl AsData<K>, value: impl AsData<V>) -> Result<(), Error> {
        let put = Put::forever(value.as_data());
        self.change_entry(key.as_data(), |_| Change::Put(put))
    }

    /// Sets the value of `key` and returns its former value. [`put`](Self::put) does the same
    /// without a copy of the former value. The entry does not expire. O(log n).
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// assert_eq!(towns.insert("Lund", 94_000)?, None);
    /// assert_eq!(towns.insert("Lund", 94_393)?, Some(94_000));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn insert(
        &self,
        key: impl AsData<K>,
        value: impl AsData<V>,
    ) -> Result<Option<V::Owned>, Error> {
        let (mut old, put) = (None, Put::forever(value.as_data()));
        self.change_entry(key.as_data(), |found| {
            old = found.map(|found| found.value.to_owned());
            Change::Put(put)
        })?;
        Ok(old)
    }

    /// Sets the value of `key`, which expires after `life`. O(log n).
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let sessions: ordna::Store<[u8], [u8]> = ordna::Store::new();
    /// sessions.insert_for("id", "ann", Duration::from_secs(60))?;
    /// assert!(sessions.expires_in("id").unwrap().unwrap() <= Duration::from_secs(60));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn insert_for(
        &self,
        key: impl AsData<K>,
        value: impl AsData<V>,
        life: Duration,
    ) -> Result<(), Error> {
        self.insert_until(key.as_data(), value.as_data(), self.deadline_after(life))
    }

    /// Sets a deadline after `life` for the entry of `key`, replacing any other deadline. Returns
    /// whether the key is present. [`set_expiry`](Self::set_expiry) with `None` removes a deadline.
    /// O(log n).
    ///
    /// # Errors
    /// As [`modify_expiry`](Self::modify_expiry).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert!(towns.expire_in("Lund", Duration::from_secs(60))?);
    /// assert!(!towns.expire_in("Oslo", Duration::from_secs(60))?);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn expire_in(&self, key: impl AsData<K>, life: Duration) -> Result<bool, Error> {
        self.set_expiry(key.as_data(), Some(self.deadline_after(life)))
    }

    /// Returns the time of the store's clock after a span, rounded up to a millisecond: the
    /// deadline of an entry that is to live for that span.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let store: ordna::Store<u64, u64> =
    ///     ordna::Store::with_options(ordna::Options::new().clock(|| 1_000));
    /// assert_eq!(store.deadline_after(Duration::from_secs(2)), 3_000);
    /// ```
    pub fn deadline_after(&self, span: Duration) -> u64 {
        let millis = u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        self.now().saturating_add(millis)
    }

    /// Returns the time until `key` expires: `None` if it is absent, `Some(None)` if it does not
    /// expire. O(log n).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.expires_in("Lund"), Some(None));
    /// assert_eq!(towns.expires_in("Oslo"), None);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn expires_in(&self, key: impl AsData<K>) -> Option<Option<Duration>> {
        let left = |at: u64| Duration::from_millis(at.saturating_sub(self.now()));
        self.expiry(key.as_data()).map(|expires_at| expires_at.map(left))
    }

    /// Inserts `key` unless it is present; if it is, returns its value. O(log n).
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// assert_eq!(towns.insert_if_absent("Lund", 1)?, None);
    /// assert_eq!(towns.insert_if_absent("Lund", 2)?, Some(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn insert_if_absent(
        &self,
        key: impl AsData<K>,
        value: impl AsData<V>,
    ) -> Result<Option<V::Owned>, Error> {
        OrderedIndex::insert_if_absent(self, key.as_data(), value.as_data())
    }

    /// Returns the value of `key`. If the key is absent, first inserts the value that `make`
    /// returns. If another thread inserts one at the same time, its value is returned. O(log n).
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// assert_eq!(towns.get_or_insert_with("Lund", || 1)?, 1);
    /// assert_eq!(towns.get_or_insert_with("Lund", || 2)?, 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_or_insert_with(
        &self,
        key: impl AsData<K>,
        make: impl FnOnce() -> V::Owned,
    ) -> Result<V::Owned, Error> {
        let key = key.as_data();
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        let made = make();
        Ok(self.insert_if_absent(key, Borrow::<V>::borrow(&made))?.unwrap_or(made))
    }

    /// Removes `key` and returns its former value. A key that is too long is absent. O(log n).
    ///
    /// # Errors
    /// [`Error::LogFailed`]. If the log had failed earlier, the key is still present.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.remove("Lund")?, Some(94_393));
    /// assert_eq!(towns.remove("Lund")?, None);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn remove(&self, key: impl AsData<K>) -> Result<Option<V::Owned>, Error> {
        let mut old = None;
        let done = self.change_entry::<&V, _>(key.as_data(), |found| {
            old = found.map(|found| found.value.to_owned());
            Change::Remove
        });
        match done {
            Ok(()) => Ok(old),
            Err(Error::KeyTooLong { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Calls `change` with the value of `key`, or `None` if the key is absent, and applies the
    /// returned change, as one step. A new value keeps the deadline of the former one. O(log n).
    ///
    /// `change` may run several times; the result of the last run counts. It runs under the lock of
    /// a leaf, so it must be short and must not use this store or its snapshots. If it panics,
    /// nothing is changed.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// # Panics
    /// If `change` panics, or if it uses this store or a snapshot of it, which would otherwise
    /// deadlock.
    ///
    /// ```
    /// use ordna::{Change, Store};
    ///
    /// let counts: Store<[u8], u64> = Store::new();
    /// counts.modify("a", |count| Change::Put(count.map_or(1, |count| count + 1)))?;
    /// assert_eq!(counts.get("a"), Some(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn modify<T, F>(&self, key: impl AsData<K>, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        self.modify_entry(key.as_data(), |found| {
            keeping_deadline(change(found.map(|found| found.value)), found)
        })
    }

    /// Replaces the value of `key` by the result of `update` and returns it, or `None` if the key
    /// is absent. The rules for `update` are those for the closure of [`modify`](Self::modify).
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.update("Lund", |people| people + 1)?, Some(94_394));
    /// assert_eq!(towns.update("Oslo", |people| people + 1)?, None);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn update(
        &self,
        key: impl AsData<K>,
        update: impl FnMut(&V) -> V::Owned,
    ) -> Result<Option<V::Owned>, Error> {
        OrderedIndex::update(self, key.as_data(), update)
    }

    /// Sets `key` to `new`, or removes it if `new` is `None`, provided that its value is
    /// `expected`, or that it is absent if `expected` is `None`. Otherwise returns
    /// `Ok(Err(actual))`. O(log n).
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.compare_exchange("Lund", Some(&94_393), Some(&1))?, Ok(()));
    /// assert_eq!(towns.compare_exchange("Lund", None, Some(&2))?, Err(Some(1)));
    /// assert_eq!(towns.compare_exchange("Lund", Some(&1), None)?, Ok(()));
    /// assert!(!towns.contains_key("Lund"));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn compare_exchange(
        &self,
        key: impl AsData<K>,
        expected: Option<&V>,
        new: Option<&V>,
    ) -> Result<Result<(), Option<V::Owned>>, Error> {
        OrderedIndex::compare_exchange(self, key.as_data(), expected, new)
    }

    /// Inserts every pair and returns how many keys were new. If a key occurs twice, the later pair
    /// wins. Each pair is a separate write, and their memory accesses overlap;
    /// [`write_batch`](Self::write_batch) makes them one step.
    ///
    /// # Errors
    /// A key or value is too long, and nothing is written. Otherwise see [writes](#writes): the
    /// pairs before the one that failed are written.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// assert_eq!(towns.insert_many(&[("Lund", 1), ("Oslo", 2), ("Lund", 3)])?, 2);
    /// assert_eq!(towns.get("Lund"), Some(3));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn insert_many<Q: AsData<K>, W: AsData<V>>(
        &self,
        pairs: &[(Q, W)],
    ) -> Result<usize, Error> {
        self.insert_pairs(pairs.iter().map(|(key, value)| (key.as_data(), value.as_data())))
    }

    /// Removes every key and returns how many were present. Each removal is a separate write, and
    /// their memory accesses overlap.
    ///
    /// # Errors
    /// [`Error::LogFailed`]: the keys before the one that failed are removed.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.remove_many(&["Lund", "Oslo"])?, 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn remove_many<Q: AsData<K>>(&self, keys: &[Q]) -> Result<usize, Error> {
        self.remove_keys(keys.iter().map(AsData::as_data))
    }

    /// Removes every key of a range and returns how many there were. Every snapshot holds all of
    /// them or none. Keys that are inserted concurrently may stay. O(log n) for each key.
    ///
    /// # Errors
    /// [`Error::LogFailed`]. If the log had failed earlier, nothing is removed. If it fails at this
    /// write, the keys are removed from memory, and a crash may bring them back.
    ///
    /// ```
    /// let log: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// log.insert_many(&[(1, "a"), (2, "b"), (3, "c")])?;
    /// assert_eq!(log.remove_range(..3)?, 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn remove_range(&self, range: impl KeyRange<K>) -> Result<usize, Error> {
        let (lower, upper) = range.ends();
        self.remove_within(lower, upper)
    }

    /// Removes every entry, see [`remove_range`](Self::remove_range).
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// towns.clear()?;
    /// assert!(towns.is_empty());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn clear(&self) -> Result<(), Error> {
        self.remove_range(..).map(|_| ())
    }

    /// Removes the entry with the smallest key and returns it. O(log n).
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.pop_first()?, Some((b"Lund".to_vec(), 94_393)));
    /// assert_eq!(towns.len(), 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn pop_first(&self) -> Result<Option<Entry<K, V>>, Error> {
        self.pop(Self::first)
    }

    /// Removes the entry with the largest key and returns it. O(log n).
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.pop_last()?, Some((b"Uppsala".to_vec(), 177_074)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn pop_last(&self) -> Result<Option<Entry<K, V>>, Error> {
        self.pop(Self::last)
    }

    fn pop(
        &self,
        find: impl Fn(&Self) -> Option<Entry<K, V>>,
    ) -> Result<Option<Entry<K, V>>, Error> {
        while let Some((key, value)) = find(self) {
            // Another thread may have taken or changed the entry.
            let value_now = Some(Borrow::<V>::borrow(&value));
            if self.compare_exchange(Borrow::<K>::borrow(&key), value_now, None)?.is_ok() {
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }

    /// Removes the entries for which `keep` returns `false` and returns how many were removed. An
    /// entry that changes concurrently stays. O(n).
    ///
    /// # Errors
    /// [`Error::LogFailed`]: the entries before the one that failed are removed.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.retain(|_, people| *people > 100_000)?, 1);
    /// assert!(towns.contains_key("Uppsala"));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) -> Result<usize, Error> {
        let (mut removed, mut entries) = (0, self.iter());
        while let Some((key, value)) = entries.next_ref() {
            if !keep(key, value) {
                removed += usize::from(self.compare_exchange(key, Some(value), None)?.is_ok());
            }
        }
        Ok(removed)
    }
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> IntoIterator for &'a Store<K, V> {
    type Item = Entry<K, V>;
    type IntoIter = Range<'a, Store<K, V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
