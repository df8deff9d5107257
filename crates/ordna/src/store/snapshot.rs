//! [`Snapshot`]: a state of the store that does not change.

use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::engine::{Engine, View};
use super::reentry;
use crate::entry::EntrySource;
use crate::entry::{Found, Put};
use crate::epoch::Epoch;
use crate::tree::ValueRef;
use ordna_base::index::{Bounds, Chunk, Direction, Range, Source, bounds_cross};
use ordna_base::sync::{fault, point};
use ordna_base::{AsData, Entries, Key, KeyRange, Value, key};

struct SharedSnapshot<K: Key + ?Sized, V: Value + ?Sized> {
    engine: Arc<Engine<K, V>>,
    epoch: Epoch,
    time: u64,
    metadata: Vec<u8>,
    taken: Instant,
    /// Number of items, once it was counted.
    counted: OnceLock<usize>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for SharedSnapshot<K, V> {
    fn drop(&mut self) {
        self.engine.epochs.release(self.epoch);
        self.engine.snapshot_ended();
    }
}

/// A registered snapshot that has no time yet. It is released if the caller's clock panics.
struct Registered<'a, K: Key + ?Sized, V: Value + ?Sized>(&'a Engine<K, V>, Epoch);

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Registered<'_, K, V> {
    fn drop(&mut self) {
        if fault!("store.snapshot.panics_release") {
            return;
        }
        self.0.epochs.release(self.1);
        self.0.snapshot_ended();
    }
}

/// The state of a [`Store`](super::Store) at the moment when the snapshot was taken.
///
/// Clones share the snapshot, which ends when the last one is dropped. It keeps the versions that
/// it sees in memory. The store may be dropped first.
///
/// A key that expires (by the store's clock) after the snapshot was taken stays in it. A key that
/// had expired earlier is not in it.
///
/// ```
/// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
/// names.put(1, "Lund")?;
/// names.put(2, "Uppsala")?;
/// let before = names.snapshot();
/// names.remove(1)?;
/// let other = before.clone();
/// drop(names);
/// assert_eq!((before.len(), other.len()), (2, 2));
/// # Ok::<(), ordna::Error>(())
/// ```
pub struct Snapshot<K: Key + ?Sized, V: Value + ?Sized>(Arc<SharedSnapshot<K, V>>);

impl<K: Key + ?Sized, V: Value + ?Sized> Clone for Snapshot<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> fmt::Debug for Snapshot<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Snapshot<K, V> {
    pub(super) fn take(engine: Arc<Engine<K, V>>, metadata: Vec<u8>) -> Self {
        let early = fault!("store.snapshot.time_last").then(|| engine.time.now());
        point("store.snapshot.half_taken");
        let epoch = engine.epochs.snapshot();
        let registered = Registered(&engine, epoch);
        // Read after the cut: a key that a write in the cut has seen expired is expired in the
        // snapshot.
        let time = early.unwrap_or_else(|| engine.time.now());
        std::mem::forget(registered);
        let (taken, counted) = (Instant::now(), OnceLock::new());
        Self(Arc::new(SharedSnapshot { engine, epoch, time, metadata, taken, counted }))
    }

    /// Returns the engine after all writes that belong to the snapshot are done.
    fn engine(&self) -> &Engine<K, V> {
        let engine = &self.0.engine;
        // Otherwise it would wait for the epoch of this thread's own write.
        reentry::check(Arc::as_ptr(engine));
        if !fault!("store.read.quiesces") {
            engine.epochs.wait_quiesced(self.0.epoch);
        }
        engine
    }

    /// Returns whether the snapshot was taken of the store of this engine.
    pub(super) fn is_of(&self, engine: &Engine<K, V>) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.0.engine), engine)
    }

    /// Returns the epoch. The caller has read the snapshot, so its writes are done.
    pub(super) fn quiesced_epoch(&self) -> Epoch {
        self.engine();
        self.0.epoch
    }

    fn view(&self) -> View {
        View::At { epoch: self.0.epoch, time: self.0.time }
    }

    /// Returns the last epoch whose writes are in the snapshot. It increases from one snapshot to
    /// the next, but two snapshots without a write between them may share it and then hold the same
    /// versions. A plain number for logs and comparisons; no method takes it as an argument.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// let one = store.snapshot();
    /// store.put(1, 1)?;
    /// assert!(one.epoch() < store.snapshot().epoch());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn epoch(&self) -> u64 {
        self.0.epoch.get()
    }

    /// Returns the bytes that the caller attached to the snapshot.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// assert_eq!(store.snapshot_with("offset 17").metadata(), b"offset 17");
    /// ```
    pub fn metadata(&self) -> &[u8] {
        &self.0.metadata
    }

    /// Returns the time when the snapshot was taken.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// let begin = std::time::Instant::now();
    /// assert!(store.snapshot().taken() >= begin);
    /// ```
    pub fn taken(&self) -> Instant {
        self.0.taken
    }

    /// Returns the exact number of items. O(1) if no entry of the store ever had a deadline;
    /// otherwise the first call counts them.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!((before.len(), names.len()), (2, 1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        let engine = self.engine();
        if !engine.deadlines.are_used() {
            return engine.epochs.len_at(self.0.epoch);
        }
        *self.0.counted.get_or_init(|| {
            let mut count = 0;
            self.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |_, _| {
                count += 1;
                ControlFlow::Continue(())
            });
            count
        })
    }

    /// Returns whether there are no items.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// assert!(store.snapshot().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `read` with the value of `key`, without copying it. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.get_with(1, |name| name.len()), Some(4));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_with<R>(&self, key: impl AsData<K>, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.get_entry_with(key.as_data(), |entry| read(entry.value))
    }

    /// Calls `read` with the value and the deadline of `key`. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.get_entry_with(&1, |entry| entry.expires_at), Some(None));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_entry_with<R>(&self, key: &K, read: impl FnOnce(Put<&V>) -> R) -> Option<R> {
        self.engine().get(self.view(), key, |found| {
            read(Put { value: found.value, expires_at: found.expires_at })
        })
    }

    /// Returns the value of `key`, copied. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!((before.get(1), names.get(1)), (Some(b"Lund".to_vec()), None));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get(&self, key: impl AsData<K>) -> Option<V::Owned> {
        self.get_with(key, ToOwned::to_owned)
    }

    /// Returns the value of `key`, borrowed without a copy; see
    /// [`Store::get_ref`](super::Store::get_ref).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(&*before.get_ref(1).unwrap(), b"Lund");
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_ref(&self, key: impl AsData<K>) -> Option<ValueRef<'_, V>> {
        self.engine().get_ref(self.view(), key.as_data())
    }

    /// Returns whether `key` is present. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert!(before.contains_key(1) && !names.contains_key(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn contains_key(&self, key: impl AsData<K>) -> bool {
        self.get_with(key, |_| ()).is_some()
    }

    /// Calls `each` with the position and value of every key, in the order of `keys`. Their memory
    /// accesses overlap.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// let mut letters = Vec::new();
    /// before.get_many_with(&[2, 1, 3], |_, name| letters.push(name.map(<[u8]>::len)));
    /// assert_eq!(letters, [Some(7), Some(4), None]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_many_with<Q: AsData<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.engine().get_many(self.view(), keys.iter().map(AsData::as_data), each);
    }

    /// Appends the value of every key to `out`, in the order of `keys`.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// let mut found = Vec::new();
    /// before.get_many(&[1, 3], &mut found);
    /// assert_eq!(found, [Some(b"Lund".to_vec()), None]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_many<Q: AsData<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.reserve(keys.len());
        self.get_many_with(keys, |_, value| out.push(value.map(ToOwned::to_owned)));
    }

    /// Calls `each` with the position of a range and the range's entries in order, range by range.
    /// The number next to each range is the maximum number of its entries. The memory accesses of
    /// all ranges overlap.
    ///
    /// ```
    /// use std::ops::Bound::{Included, Unbounded};
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// let mut keys = Vec::new();
    /// let ranges = [((Included(&1), Unbounded), 1)];
    /// before.scan_many(&ranges, |range, key, _| keys.push((range, *key)));
    /// assert_eq!(keys, [(0, 1)]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn scan_many(&self, ranges: &[(Bounds<'_, K>, usize)], each: impl FnMut(usize, &K, &V)) {
        self.engine().scan_many(self.view(), ranges, each);
    }

    /// Returns the exact number of keys within the bounds. O(log n + l) with l leaves within the
    /// bounds, and O(1) for each entry of a leaf that has changed since the snapshot.
    ///
    /// ```
    /// use std::ops::Bound;
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.count(Bound::Unbounded, Bound::Included(&2)), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn count(&self, lower: Bound<&K>, upper: Bound<&K>) -> usize {
        self.engine().count_range(self.view(), (lower, upper))
    }

    /// Returns the exact number of keys below `key`: its position, if it is present. Same cost as
    /// [`count`](Self::count).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!((before.rank(&2), names.rank(&2)), (1, 0));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn rank(&self, key: &K) -> usize {
        self.count(Bound::Unbounded, Bound::Excluded(key))
    }

    /// Returns the entry at a position, counted from 0. Same cost as [`count`](Self::count).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.select(0), Some((1, b"Lund".to_vec())));
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
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.select_with(1, |key, _| *key), Some(2));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn select_with<R>(&self, position: usize, read: impl FnOnce(&K, &V) -> R) -> Option<R> {
        self.engine().select(self.view(), position, read)
    }

    /// Calls `visit` with the entries within the bounds, in order, until it breaks. O(log n), and
    /// amortized O(1) for each version on the way. Even a long scan delays the freeing of memory
    /// only for short periods.
    ///
    /// ```
    /// use std::ops::{Bound, ControlFlow};
    /// use ordna::Direction;
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// let mut keys = Vec::new();
    /// before.visit(Bound::Unbounded, Bound::Unbounded, Direction::Descending, |key, _| {
    ///     keys.push(*key);
    ///     ControlFlow::Continue(())
    /// });
    /// assert_eq!(keys, [2, 1]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.scan_with((lower, upper), direction, usize::MAX, |key, found| visit(key, found.value));
    }

    /// Works like [`visit`](Self::visit), with the deadlines.
    ///
    /// ```
    /// use std::ops::{Bound, ControlFlow};
    /// use ordna::Direction;
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// let mut forever = 0;
    /// before.visit_entries(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |_, entry| {
    ///     forever += usize::from(entry.expires_at.is_none());
    ///     ControlFlow::Continue(())
    /// });
    /// assert_eq!(forever, 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn visit_entries(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        mut visit: impl FnMut(&K, Put<&V>) -> ControlFlow<()>,
    ) {
        self.scan_with((lower, upper), direction, usize::MAX, |key, found| {
            visit(key, Put { value: found.value, expires_at: found.expires_at })
        });
    }

    /// Calls `visit` with at most `limit` entries; no further ones are prefetched.
    fn scan_with(
        &self,
        (lower, upper): Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&K, Found<'_, V>) -> ControlFlow<()>,
    ) {
        if !bounds_cross(lower, upper) {
            self.engine().visit(self.view(), (lower, upper), direction, limit, visit);
        }
    }

    /// Returns the entry with the smallest key. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.first().map(|(key, _)| key), Some(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn first(&self) -> Option<(K::Owned, V::Owned)> {
        self.nearest(Bound::Unbounded, Bound::Unbounded, Direction::Ascending)
    }

    /// Returns the entry with the largest key. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.last().map(|(key, _)| key), Some(2));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn last(&self) -> Option<(K::Owned, V::Owned)> {
        self.nearest(Bound::Unbounded, Bound::Unbounded, Direction::Descending)
    }

    /// Returns the entry with the largest key that is at most `key`. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.floor(9).map(|(key, _)| key), Some(2));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn floor(&self, key: impl AsData<K>) -> Option<(K::Owned, V::Owned)> {
        self.nearest(Bound::Unbounded, Bound::Included(key.as_data()), Direction::Descending)
    }

    /// Returns the entry with the smallest key that is at least `key`. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.ceiling(0).map(|(key, _)| key), Some(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn ceiling(&self, key: impl AsData<K>) -> Option<(K::Owned, V::Owned)> {
        self.nearest(Bound::Included(key.as_data()), Bound::Unbounded, Direction::Ascending)
    }

    /// Returns the first entry within the bounds in the given direction.
    fn nearest(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
    ) -> Option<(K::Owned, V::Owned)> {
        let mut found = None;
        self.scan_with((lower, upper), direction, 1, |key, entry| {
            found = Some((key.to_owned(), entry.value.to_owned()));
            ControlFlow::Break(())
        });
        found
    }

    /// Returns an iterator over the entries of a range, in order, from both ends; see
    /// [`Store::range`](super::Store::range).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.range(..2).count(), 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn range(&self, range: impl KeyRange<K>) -> Range<'_, Self> {
        let (lower, upper) = range.ends();
        Range::new(self, lower.map(ToOwned::to_owned), upper.map(ToOwned::to_owned))
    }

    /// Returns an iterator over all entries, in order, from both ends.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.iter().map(|(key, _)| key).collect::<Vec<_>>(), [1, 2]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn iter(&self) -> Range<'_, Self> {
        Range::new(self, Bound::Unbounded, Bound::Unbounded)
    }
}

impl<V: Value + ?Sized> Snapshot<[u8], V> {
    /// Returns an iterator over the entries whose key starts with `prefix`, in order, from both
    /// ends.
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// let before = towns.snapshot();
    /// towns.clear()?;
    /// assert_eq!(before.prefix("Up").count(), 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn prefix(&self, prefix: impl AsData<[u8]>) -> Range<'_, Self> {
        let prefix = prefix.as_data();
        let end = key::prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        Range::new(self, Bound::Included(prefix.to_vec()), end)
    }
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> IntoIterator for &'a Snapshot<K, V> {
    type Item = (K::Owned, V::Owned);
    type IntoIter = Range<'a, Snapshot<K, V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Source for Snapshot<K, V> {
    type Key = K;
    type Value = V;

    fn read_ahead(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        limit: usize,
        out: &mut Entries<K, V>,
    ) -> bool {
        let mut chunk = Chunk::new(out, limit);
        self.scan_with((lower, upper), direction, limit, |key, found| chunk.push(key, found.value));
        chunk.is_full()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> EntrySource<K, V> for Snapshot<K, V> {
    fn read(&self, key: &K, read: &mut dyn FnMut(Option<Put<&V>>)) {
        let mut entry = Some(read);
        let bounds = (Bound::Included(key), Bound::Included(key));
        self.visit_entries(bounds.0, bounds.1, Direction::Ascending, |_, put| {
            if let Some(read) = entry.take() {
                read(Some(put));
            }
            ControlFlow::Break(())
        });
        if let Some(read) = entry {
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
