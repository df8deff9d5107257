//! The typed map [`Map`]: its constructors and reads.

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
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = ordna::Map::new();
    /// ages.insert("ann", 31)?;
    /// assert_eq!(ages.len(), 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::with_options(Options::new())
    }

    /// Creates an empty map.
    ///
    /// ```
    /// use ordna::{Map, Options};
    ///
    /// let ages: Map<String, u32> = Map::with_options(Options::new().memory_limit(64 << 20));
    /// assert_eq!(ages.statistics().memory_limit, Some(64 << 20));
    /// ```
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
    ///
    /// ```
    /// use ordna::{Error, Map, Options};
    ///
    /// let ages: Map<String, u32> = Map::from_sorted(Options::new(), [("ann", 31), ("bob", 27)])?;
    /// assert_eq!(ages.len(), 2);
    /// let unsorted = Map::<String, u32>::from_sorted(Options::new(), [("bob", 27), ("ann", 31)]);
    /// assert!(matches!(unsorted, Err(Error::NotSorted { .. })));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.statistics().items, 2);
    /// ```
    pub fn statistics(&self) -> Statistics {
        self.store.statistics()
    }

    /// Returns the memory use in bytes, by part. O(n).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert!(ages.memory_usage().total() > 0);
    /// ```
    pub fn memory_usage(&self) -> MemoryUsage {
        self.store.memory_usage()
    }

    /// Backs up the map into its directory, see [`Store::backup`].
    ///
    /// # Errors
    /// [`BackupError`].
    ///
    /// ```
    /// use ordna::{BackupOptions, Map, OpenOptions};
    ///
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x14-{}", std::process::id()));
    /// let ages: Map<String, u32> = Map::open(&dir, OpenOptions::new())?;
    /// ages.insert("ann", 31)?;
    /// assert_eq!(ages.backup(&BackupOptions::new())?.entries, 1);
    /// # drop(ages);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup(&self, options: &BackupOptions) -> Result<Summary, BackupError> {
        self.store.backup(options)
    }

    /// Makes everything written so far durable, see [`Store::sync_log`].
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    ///
    /// ```
    /// use ordna::{Map, OpenOptions};
    ///
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-map-sync-{}", std::process::id()));
    /// let ages: Map<String, u32> = Map::open(&dir, OpenOptions::new())?;
    /// ages.insert("ann", 31)?;
    /// ages.sync_log()?; // From now on a crash of the machine does not lose the entry.
    /// # drop(ages);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// let same: Table<String, u32> = Table::named(&store, "ages")?;
    /// assert_eq!(same.get("ann")?, Some(31));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let ages: Table<String, u32> = Table::over(Arc::new(Store::new()));
    /// ages.put("ann", 31)?;
    /// assert_eq!(ages.store().len(), 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn over(store: Arc<Store<[u8], [u8]>>) -> Self {
        Self::with_lead(store, &[])
    }

    /// Returns the store of the map.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// assert!(Arc::ptr_eq(ages.store(), &store));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn store(&self) -> &Arc<Store<[u8], [u8]>> {
        &self.store
    }
}

/// # Reads
impl<K: Decode, V: Stored, M: Mode> Map<K, V, M> {
    reads!(store: Store<[u8], [u8]>);

    /// Returns the number of entries. O(1), and exact while no thread writes, if the map covers its
    /// whole store; otherwise see [`count`](Self::count).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        if self.lead.is_empty() {
            return self.store.len();
        }
        self.count(..)
    }

    /// Returns the time until `key` expires: `None` if it is absent, `Some(None)` if it does not
    /// expire. O(log n).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!((ages.expires_in("ann"), ages.expires_in("eve")), (Some(None), None));
    /// ```
    pub fn expires_in(&self, key: impl Like<K>) -> Option<Option<Duration>> {
        self.with_key(key, |key| self.store.expires_in(key))
    }

    /// Returns an iterator over the entries of a range that owns this handle. It is `Send +
    /// 'static`.
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// let tail = ages.clone().into_range("b"..);
    /// let count = std::thread::spawn(move || tail.count()).join().unwrap();
    /// assert_eq!(count, 1);
    /// ```
    pub fn into_range(self, range: impl MapRange<K>) -> Iter<K, V, M, Arc<ByteStore>> {
        let (byte_bounds, lead) = (range.byte_bounds(&self.lead), self.lead.len());
        Iter::new(self.store, byte_bounds, lead)
    }

    /// Returns a state of the map that does not change. O(log s) with s live snapshots.
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// let before = ages.snapshot();
    /// ages.remove("ann")?;
    /// assert_eq!((before.len(), ages.len()), (2, 1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn snapshot(&self) -> MapSnapshot<K, V, M> {
        MapSnapshot::new(self.store.snapshot(), &self.lead)
    }

    /// Returns this map as it is in a snapshot of its store.
    ///
    /// # Errors
    /// [`Error::OtherStore`] if the snapshot was taken of another store.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::{Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let ages: Table<String, u32> = Table::named(&store, "ages")?;
    /// ages.put("ann", 31)?;
    /// let snapshot = store.snapshot();
    /// ages.put("bob", 27)?;
    /// assert_eq!(ages.at(&snapshot)?.len(), 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
