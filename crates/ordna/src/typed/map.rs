//! The typed map [`Map`]: its constructors and writes.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::cursor::Cursor;
use super::iter::{ByteStore, Iter, Keys, Values};
use super::mode::{Mode, Own, Shared, Types};
use super::range::{ByteBounds, MapRange, PrefixRange, from_key, key_of, to_key};
use super::reads::reads;
use super::scratch::with_scratch;
use super::snapshot::MapSnapshot;
use super::stored::{StoreAs, Stored};
use crate::durability::{BackupOptions, OpenOptions, Summary};
use crate::tuple::{Decode, Like, Prefix, encode};
use crate::{
    BackupError, Change, Direction, Error, MemoryUsage, Options, Snapshot, Statistics, Store,
};

/// An ordered map of typed keys and values for concurrent use by many threads.
///
/// `Map<K, V>` owns its store, so its reads return plain values. [`Table<K, V>`](Table) is a map in
/// a store that holds others, too; its reads return a `Result`, because an entry may have other
/// types. In the signatures below, `M::Read<T>` is `T` for the former and `Result<T, Error>` for
/// the latter.
///
/// A map is a handle: its clones refer to the same map. Writes take `&self`. Keys and values are
/// passed by value, by reference, or in a borrowed form (`&str` for `String`). Point operations are
/// linearizable; iteration is live, see [`OrderedIndex`](crate::OrderedIndex); a
/// [`snapshot`](Self::snapshot) does not change.
///
/// ```
/// use ordna::Map;
///
/// let scores: Map<String, u64> = Map::new();
/// scores.insert("ann", 5)?;
/// scores.insert("bob", 7)?;
/// scores.entry("ann").and_modify(|score| *score += 1).or_insert(1)?;
/// assert_eq!(scores.get("ann"), Some(6));
/// for (name, score) in &scores {
///     println!("{name}: {score}");
/// }
/// let last: Vec<_> = scores.range("b"..).rev().collect();
/// assert_eq!(last, [("bob".to_owned(), 7)]);
/// # Ok::<(), ordna::Error>(())
/// ```
///
/// # Errors
/// Writes fail with [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::MemoryLimit`] or
/// [`Error::LogFailed`]. Only after [`Error::LogFailed`] may the write have been made. A write to a
/// `Table` fails with [`Error::WrongValue`] if the entry has a value of another type; nothing is
/// then changed.
///
/// # Panics
/// Reads of a `Map<K, V>` panic if a value cannot be decoded, that is, if the type's [`Stored`] or
/// serde implementation cannot read what it has written.
pub struct Map<K, V, M = Own> {
    pub(super) store: Arc<Store<[u8], [u8]>>,
    pub(super) lead: Box<[u8]>,
    types: Types<K, V, M>,
}

/// A [`Map`] in a store that it shares with other maps, or with code that uses the store directly.
///
/// ```
/// use std::sync::Arc;
/// use ordna::{Store, Table};
///
/// let store = Arc::new(Store::new());
/// let towns: Table<String, u64> = Table::named(&store, "towns")?;
/// let rivers: Table<String, f64> = Table::named(&store, "rivers")?;
/// towns.insert("Lund", 94_393)?;
/// assert_eq!(towns.get("Lund")?, Some(94_393));
/// assert!(rivers.is_empty());
/// # Ok::<(), ordna::Error>(())
/// ```
pub type Table<K, V> = Map<K, V, Shared>;

/// Returns another handle of the same map; the entries are not copied.
impl<K, V, M> Clone for Map<K, V, M> {
    fn clone(&self) -> Self {
        Self::with_lead(Arc::clone(&self.store), &self.lead)
    }
}

impl<K: Decode, V: Stored> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V, M> fmt::Debug for Map<K, V, M>
where
    K: Decode + fmt::Debug,
    V: Stored + fmt::Debug,
    M: Mode,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        self.iter().for_each(|entry| M::debug::<K, V>(&mut map, entry));
        map.finish()
    }
}

impl<K, V, M> Map<K, V, M> {
    fn with_lead(store: Arc<Store<[u8], [u8]>>, lead: &[u8]) -> Self {
        Self { store, lead: lead.into(), types: PhantomData }
    }
}

/// # A map that owns its store
impl<K: Decode, V: Stored> Map<K, V> {
    /// Creates an empty map.
    pub fn new() -> Self {
        Self::with_options(Options::new())
    }

    /// Creates an empty map.
    pub fn with_options(options: Options) -> Self {
        Self::with_lead(Arc::new(Store::with_options(options)), &[])
    }

    /// Opens the map in a directory, which is created if it does not exist; see [`Store::open`].
    /// Checks that all entries have these types. O(n).
    ///
    /// # Errors
    /// [`Error::Durability`], or [`Error::WrongKey`] or [`Error::WrongValue`] if the directory
    /// holds entries of other types.
    ///
    /// ```
    /// use ordna::{Map, OpenOptions};
    ///
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-map-{}", std::process::id()));
    /// let events: Map<u64, String> = Map::open(&dir, OpenOptions::new())?;
    /// events.insert(1, "started")?;
    /// drop(events);
    /// let events: Map<u64, String> = Map::open(&dir, OpenOptions::new())?;
    /// assert_eq!(events.last(), Some((1, "started".to_owned())));
    /// # drop(events);
    /// # std::fs::remove_dir_all(dir).unwrap();
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn open(dir: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        let opened: Table<K, V> = Table::over(Arc::new(Store::open(dir, options)?));
        opened.for_each(.., |_: K, _: &V::Ref| ControlFlow::Continue(()))?;
        Ok(Self::with_lead(opened.store, &[]))
    }

    /// Creates a map of pairs in ascending order of distinct keys, bottom-up. O(n).
    ///
    /// # Errors
    /// [`Error::NotSorted`] with the number of the first pair whose key is not above the previous
    /// one.
    pub fn from_sorted<Q: Like<K>, W: StoreAs<V>>(
        options: Options,
        pairs: impl IntoIterator<Item = (Q, W)>,
    ) -> Result<Self, Error> {
        let bytes = pairs
            .into_iter()
            .map(|(key, value)| Ok((encode(&key), value.with_bytes(<[u8]>::to_vec)?)));
        let bytes = bytes.collect::<Result<Vec<(Vec<u8>, Vec<u8>)>, Error>>()?;
        Ok(Self::with_lead(Arc::new(Store::from_sorted(options, vec![bytes])?), &[]))
    }

    /// Returns the statistics of the store.
    pub fn statistics(&self) -> Statistics {
        self.store.statistics()
    }

    /// Returns the memory use in bytes, by part. O(n).
    pub fn memory_usage(&self) -> MemoryUsage {
        self.store.memory_usage()
    }

    /// Backs up the map into its directory, see [`Store::backup`].
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn backup(&self, options: &BackupOptions) -> Result<Summary, BackupError> {
        self.store.backup(options)
    }

    /// Makes everything written so far durable, see [`Store::sync_log`].
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn sync_log(&self) -> Result<(), Error> {
        self.store.sync_log()
    }
}

/// # A map in a shared store
impl<K: Decode, V: Stored> Table<K, V> {
    /// Opens the map with a name in a store. The map is created if it does not exist. O(log n).
    ///
    /// The types are not stored: if a map is opened with other types than before, reads of older
    /// entries return errors.
    ///
    /// # Errors
    /// The memory limit is reached, or the name is longer than a key may be.
    pub fn named(store: &Arc<Store<[u8], [u8]>>, name: &str) -> Result<Self, Error> {
        const LAST: &[u8] = &[0];
        // Stored after the counter's own key, whatever the name is.
        let entry = [LAST, &[1], name.as_bytes()].concat();
        let mut number = store.get(&entry);
        if number.is_none() {
            let mut next = Err(Error::TooManyMaps);
            store.modify(LAST, |last| {
                next = match last.map_or(Ok(0), u32::load) {
                    Ok(last) => last.checked_add(1).ok_or(Error::TooManyMaps),
                    Err(damaged) => Err(damaged.into()),
                };
                match next {
                    Ok(next) => Change::Put(next.to_le_bytes().to_vec()),
                    Err(_) => Change::Keep,
                }
            })?;
            // Another thread may have created the map in the meantime; this number then stays
            // unused.
            let mine = next?.to_le_bytes();
            number = store.insert_if_absent(&entry, mine)?.or(Some(mine.to_vec()));
        }
        let number = u32::load(&number.unwrap_or_default())?;
        Ok(Self::with_lead(Arc::clone(store), &encode(&number)))
    }

    /// Returns the map that covers a whole store: every key of the store is a key of the map.
    pub fn over(store: Arc<Store<[u8], [u8]>>) -> Self {
        Self::with_lead(store, &[])
    }

    /// Returns the store of the map.
    pub fn store(&self) -> &Arc<Store<[u8], [u8]>> {
        &self.store
    }
}

/// # Reads
impl<K: Decode, V: Stored, M: Mode> Map<K, V, M> {
    reads!(store: Store<[u8], [u8]>);

    /// Returns the number of entries. O(1), and exact while no thread writes, if the map covers its
    /// whole store; otherwise see [`count`](Self::count).
    pub fn len(&self) -> usize {
        if self.lead.is_empty() {
            return self.store.len();
        }
        self.count(..)
    }

    /// Returns the time until `key` expires: `None` if it is absent, `Some(None)` if it does not
    /// expire. O(log n).
    pub fn expires_in(&self, key: impl Like<K>) -> Option<Option<Duration>> {
        self.with_key(key, |key| self.store.expires_in(key))
    }

    /// Returns an iterator over the entries of a range that owns this handle. It is `Send +
    /// 'static`.
    pub fn into_range(self, range: impl MapRange<K>) -> Iter<K, V, M, Arc<ByteStore>> {
        let (byte_bounds, lead) = (range.byte_bounds(&self.lead), self.lead.len());
        Iter::new(self.store, byte_bounds, lead)
    }

    /// Returns a state of the map that does not change. O(log s) with s live snapshots.
    pub fn snapshot(&self) -> MapSnapshot<K, V, M> {
        MapSnapshot::new(self.store.snapshot(), &self.lead)
    }

    /// Returns this map as it is in a snapshot of its store.
    ///
    /// # Errors
    /// [`Error::OtherStore`] if the snapshot was taken of another store.
    pub fn at(
        &self,
        snapshot: impl Borrow<Snapshot<[u8], [u8]>>,
    ) -> Result<MapSnapshot<K, V, M>, Error> {
        let snapshot = snapshot.borrow();
        if !self.store.has_taken(snapshot) {
            return Err(Error::OtherStore);
        }
        Ok(MapSnapshot::new(snapshot.clone(), &self.lead))
    }
}

/// # Writes
///
/// The errors are those of [`Map`].
impl<K: Decode, V: Stored, M: Mode> Map<K, V, M> {
    /// Sets the value of `key`. The entry does not expire. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn put(&self, key: impl Like<K>, value: impl StoreAs<V>) -> Result<(), Error> {
        self.with_key(key, |key| value.with_bytes(|value| self.store.put(key, value)))?
    }

    /// Sets the value of `key` and returns its former value, which [`put`](Self::put) does not
    /// read. The entry does not expire. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn insert(&self, key: impl Like<K>, value: impl StoreAs<V>) -> Result<Option<V>, Error> {
        self.with_key(key, |key| {
            value.with_bytes(|value| {
                let mut old = Ok(None);
                self.store.modify_entry(key, |found| {
                    old = found.map(|found| V::load(found.value)).transpose();
                    match &old {
                        Ok(_) => Change::Put(crate::Put::forever(value)),
                        Err(_) => Change::Keep,
                    }
                })?;
                Ok(old?)
            })
        })?
    }

    /// Sets the value of `key`, which expires after `life`. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let sessions: ordna::Map<u64, String> = ordna::Map::new();
    /// sessions.insert_for(1, "ann", Duration::from_secs(60))?;
    /// // Neither this nor `modify` makes the entry immortal; `insert` would.
    /// sessions.entry(1).and_modify(|name| name.push('a')).or_insert("")?;
    /// assert!(sessions.expires_in(1).unwrap().is_some());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn insert_for(
        &self,
        key: impl Like<K>,
        value: impl StoreAs<V>,
        life: Duration,
    ) -> Result<(), Error> {
        self.with_key(key, |key| value.with_bytes(|value| self.store.insert_for(key, value, life)))?
    }

    /// Sets a deadline after `life` for the entry of `key`, replacing any other deadline. Returns
    /// whether the key is present. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn expire_in(&self, key: impl Like<K>, life: Duration) -> Result<bool, Error> {
        self.with_key(key, |key| self.store.expire_in(key, life))
    }

    /// Removes the deadline of `key`. Returns whether the key is present. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn persist(&self, key: impl Like<K>) -> Result<bool, Error> {
        self.with_key(key, |key| self.store.set_expiry(key, None))
    }

    /// Inserts all pairs in groups, each pair as a separate write. If a key occurs twice, the later
    /// pair wins. O(log n) for each pair.
    ///
    /// # Errors
    /// See [errors](Map#errors): the pairs before the group that failed are inserted.
    pub fn try_extend<Q: Like<K>, W: StoreAs<V>>(
        &self,
        pairs: impl IntoIterator<Item = (Q, W)>,
    ) -> Result<(), Error> {
        /// Number of pairs in a group: enough for overlapping memory accesses.
        const AT_ONCE: usize = 256;
        let mut pairs = pairs.into_iter();
        let mut group: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        loop {
            group.clear();
            for (key, value) in pairs.by_ref().take(AT_ONCE) {
                let key = self.with_key(key, <[u8]>::to_vec);
                group.push((key, value.with_bytes(<[u8]>::to_vec)?));
            }
            if group.is_empty() {
                return Ok(());
            }
            self.store.insert_many(&group)?;
        }
    }

    /// Inserts `key` unless it is present; if it is, returns its value. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn insert_if_absent(
        &self,
        key: impl Like<K>,
        value: impl StoreAs<V>,
    ) -> Result<Option<V>, Error> {
        self.with_key(key, |key| {
            value.with_bytes(|value| {
                let mut present = None;
                self.store.modify(key, |current| {
                    present = current.map(V::load);
                    if present.is_some() { Change::Keep } else { Change::Put(value) }
                })?;
                Ok(present.transpose()?)
            })
        })?
    }

    /// Returns the value of `key`. If the key is absent, first inserts the value that `make`
    /// returns. If another thread inserts one at the same time, its value is returned.
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn get_or_insert_with(
        &self,
        key: impl Like<K>,
        make: impl FnOnce() -> V,
    ) -> Result<V, Error>
    where
        V: StoreAs<V>,
    {
        self.entry(key).or_insert_with(make)
    }

    /// Calls `change` with the value of `key`, or `None` if the key is absent, and applies the
    /// returned change, as one step. A new value keeps the deadline of the former one. O(log n).
    ///
    /// `change` may run several times; the result of the last run counts. It must be short and must
    /// not use the map, its store or its snapshots.
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// # Panics
    /// If `change` panics, or if it uses the map, its store or a snapshot. Nothing is then changed.
    pub fn modify(
        &self,
        key: impl Like<K>,
        change: impl FnMut(Option<V>) -> Change<V>,
    ) -> Result<(), Error>
    where
        V: StoreAs<V>,
    {
        self.with_key(key, |key| self.modify_bytes(key, change))
    }

    /// Works like [`modify`](Self::modify), for a key in its encoded form.
    pub(super) fn modify_bytes(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<V>) -> Change<V>,
    ) -> Result<(), Error>
    where
        V: StoreAs<V>,
    {
        let mut refused = None;
        self.store.modify(key, |current| {
            refused = None;
            let decided = current.map(V::load).transpose().map(&mut change);
            let stored = match decided {
                Ok(Change::Put(value)) => value.with_bytes(<[u8]>::to_vec).map(Change::Put),
                Ok(Change::Remove) => Ok(Change::Remove),
                Ok(Change::Keep) => Ok(Change::Keep),
                Err(error) => Err(error),
            };
            stored.unwrap_or_else(|error| {
                refused = Some(error);
                Change::Keep
            })
        })?;
        refused.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Replaces the value of `key` by the result of `update` and returns it, or `None` if the key
    /// is absent. The rules for `update` are those for the closure of [`modify`](Self::modify).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn update(
        &self,
        key: impl Like<K>,
        mut update: impl FnMut(V) -> V,
    ) -> Result<Option<V>, Error>
    where
        V: StoreAs<V> + Clone,
    {
        let mut new = None;
        self.modify(key, |current| {
            new = current.map(&mut update);
            new.clone().map_or(Change::Keep, Change::Put)
        })?;
        Ok(new)
    }

    /// Sets `key` to `new`, or removes it if `new` is `None`, provided that its value is
    /// `expected`, or that it is absent if `expected` is `None`. Returns whether it did. Values are
    /// compared in their encoded form. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn compare_and_set<W: StoreAs<V>>(
        &self,
        key: impl Like<K>,
        expected: Option<W>,
        new: Option<W>,
    ) -> Result<bool, Error> {
        let bytes = |value: Option<W>| value.map(|value| value.with_bytes(<[u8]>::to_vec));
        let (expected, new) = (bytes(expected).transpose()?, bytes(new).transpose()?);
        let done = self.with_key(key, |key| {
            self.store.compare_exchange(key, expected.as_deref(), new.as_deref())
        });
        Ok(done?.is_ok())
    }

    /// Removes `key` and returns its former value. A key that is too long is absent. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn remove(&self, key: impl Like<K>) -> Result<Option<V>, Error> {
        let mut old = Ok(None);
        let removed = self.with_key(key, |key| {
            self.store.modify::<&[u8], _>(key, |current| {
                old = current.map(V::load).transpose();
                if old.is_ok() { Change::Remove } else { Change::Keep }
            })
        });
        match removed {
            Ok(()) | Err(Error::KeyTooLong { .. }) => Ok(old?),
            Err(error) => Err(error),
        }
    }

    /// Removes the entries for which `keep` returns `false` and returns how many were removed. An
    /// entry that changes concurrently stays. O(n).
    ///
    /// # Errors
    /// See [errors](Map#errors): the entries before the one that failed are removed.
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) -> Result<usize, Error> {
        let (byte_bounds, mut removed) = (ByteBounds::with_lead(&self.lead), 0);
        let (lower, upper) = byte_bounds.as_ref();
        let mut entries = self.store.range((lower, upper));
        while let Some((key, value)) = entries.next_ref() {
            if !keep(&key_of(key, self.lead.len())?, &V::load(value)?) {
                let done = self.store.compare_exchange(key, Some(value), None)?;
                removed += usize::from(done.is_ok());
            }
        }
        Ok(removed)
    }

    /// Removes the entry with the smallest key and returns it. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn pop_first(&self) -> Result<Option<(K, V)>, Error> {
        self.pop(Direction::Ascending)
    }

    /// Removes the entry with the largest key and returns it. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn pop_last(&self) -> Result<Option<(K, V)>, Error> {
        self.pop(Direction::Descending)
    }

    fn pop(&self, direction: Direction) -> Result<Option<(K, V)>, Error> {
        let byte_bounds = ByteBounds::with_lead(&self.lead);
        loop {
            let (mut found, (lower, upper)) = (None, byte_bounds.as_ref());
            self.store.visit(lower, upper, direction, |key, value| {
                found = Some((key.to_vec(), value.to_vec()));
                ControlFlow::Break(())
            });
            let Some((key, value)) = found else { return Ok(None) };
            let entry = (key_of(&key, self.lead.len())?, V::load(&value)?);
            // Another thread may have taken or changed the entry.
            if self.store.compare_exchange(&key, Some(&value), None)?.is_ok() {
                return Ok(Some(entry));
            }
        }
    }

    /// Removes every key of a range and returns how many there were. Every snapshot holds all of
    /// them or none. See [`Store::remove_range`].
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn remove_range(&self, range: impl MapRange<K>) -> Result<usize, Error> {
        let byte_bounds = range.byte_bounds(&self.lead);
        let (lower, upper) = byte_bounds.as_ref();
        self.store.remove_range((lower, upper))
    }

    /// Removes every entry. Every snapshot holds all of them or none.
    ///
    /// # Errors
    /// See [errors](Map#errors).
    pub fn clear(&self) -> Result<(), Error> {
        self.remove_range(..).map(|_| ())
    }
}

impl<'a, K: Decode, V: Stored, M: Mode> IntoIterator for &'a Map<K, V, M> {
    type Item = M::Read<(K, V)>;
    type IntoIter = Iter<K, V, M, &'a Store<[u8], [u8]>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The iterator owns this handle and is `Send + 'static`. The entries stay in the map.
impl<K: Decode, V: Stored, M: Mode> IntoIterator for Map<K, V, M> {
    type Item = M::Read<(K, V)>;
    type IntoIter = Iter<K, V, M, Arc<ByteStore>>;

    fn into_iter(self) -> Self::IntoIter {
        self.into_range(..)
    }
}

/// Inserts all pairs.
///
/// # Panics
/// If a pair cannot be inserted; [`Map::try_extend`] returns the error instead.
impl<K: Decode, V: Stored, M: Mode, Q: Like<K>, W: StoreAs<V>> Extend<(Q, W)> for Map<K, V, M> {
    fn extend<I: IntoIterator<Item = (Q, W)>>(&mut self, pairs: I) {
        let inserted = self.try_extend(pairs);
        inserted.unwrap_or_else(|error| panic!("a pair was refused: {error}"));
    }
}

/// Creates a map of all pairs.
///
/// # Panics
/// If a pair cannot be inserted; [`Map::try_extend`] returns the error instead.
impl<K: Decode, V: Stored, Q: Like<K>, W: StoreAs<V>> FromIterator<(Q, W)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (Q, W)>>(pairs: I) -> Self {
        let mut map = Self::new();
        map.extend(pairs);
        map
    }
}

/// Creates a map of all pairs.
///
/// # Panics
/// Like [`from_iter`](Self::from_iter).
impl<K: Decode, V: Stored, Q: Like<K>, W: StoreAs<V>, const N: usize> From<[(Q, W); N]>
    for Map<K, V>
{
    fn from(pairs: [(Q, W); N]) -> Self {
        pairs.into_iter().collect()
    }
}
