//! The typed map.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

use super::iter::{ByteBounds, all_with_lead, by_ref, byte_bounds, key_of, reads};
use super::{Iter, MapError, MapSnapshot, StoreAs, Stored, with_scratch};
use crate::tuple::{Decode, Like, Prefix, encode};
use crate::{Change, Direction, Error, Options, OrderedIndex, Snapshot, Store};

/// An ordered map of typed keys and values that many threads use at once.
///
/// A handle: its clones, and maps of the same name, are one map. Writes take `&self`. Point
/// operations are linearizable, iteration is live, as [`OrderedIndex`] says of both; a
/// [`snapshot`](Self::snapshot) does not change. See the [module](super) for an example.
pub struct Map<K, V> {
    pub(super) store: Arc<Store<[u8], [u8]>>,
    pub(super) lead: Box<[u8]>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Self::with_lead(Arc::clone(&self.store), &self.lead)
    }
}

impl<K: Decode, V: Stored> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Decode + fmt::Debug, V: Stored + fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for entry in self {
            match entry {
                Ok((key, value)) => map.entry(&key, &value),
                Err(error) => map.entry(&"error", &error),
            };
        }
        map.finish()
    }
}

impl<K, V> Map<K, V> {
    fn with_lead(store: Arc<Store<[u8], [u8]>>, lead: &[u8]) -> Self {
        Self { store, lead: lead.into(), types: PhantomData }
    }

    /// The store under the map.
    pub fn store(&self) -> &Arc<Store<[u8], [u8]>> {
        &self.store
    }
}

impl<K: Decode, V: Stored> Map<K, V> {
    /// An empty map in a store of its own.
    pub fn new() -> Self {
        Self::with_options(Options::new())
    }

    /// An empty map in a store of its own.
    pub fn with_options(options: Options) -> Self {
        Self::over(Arc::new(Store::with_options(options)))
    }

    /// The map that is all of a store. Every key of the store is a key of the map.
    pub fn over(store: Arc<Store<[u8], [u8]>>) -> Self {
        Self::with_lead(store, &[])
    }

    /// The map of this name in a store, made if there is none. O(log n).
    ///
    /// Types are not written down: a map that is opened with other ones than before gives errors
    /// where it reads older entries.
    ///
    /// # Errors
    /// The memory limit is reached, or the name is longer than a key may be.
    pub fn named(store: &Arc<Store<[u8], [u8]>>, name: &str) -> Result<Self, MapError> {
        const LAST: &[u8] = &[0];
        // Behind the counter's own key, whatever the name is.
        let entry = [LAST, &[1], name.as_bytes()].concat();
        let mut number = store.get(&entry);
        if number.is_none() {
            let mut next = Err(MapError::TooManyMaps);
            store.modify(LAST, |last| {
                next = match last.map_or(Ok(0), u32::load) {
                    Ok(last) => last.checked_add(1).ok_or(MapError::TooManyMaps),
                    Err(damaged) => Err(damaged.into()),
                };
                match next {
                    Ok(next) => Change::Put(next.to_le_bytes().to_vec()),
                    Err(_) => Change::Keep,
                }
            })?;
            // Another thread may have named it meanwhile; then this number stays unused.
            let mine = next?.to_le_bytes();
            number = store.insert_if_absent(&entry, &mine)?.or(Some(mine.to_vec()));
        }
        let number = u32::load(&number.unwrap_or_default())?;
        Ok(Self::with_lead(Arc::clone(store), &encode(&number)))
    }

    reads!(store: Store<[u8], [u8]>);

    /// Number of entries: O(1) and exact while no thread writes, if the map is all of its store;
    /// otherwise they are counted, O(n).
    pub fn len(&self) -> usize {
        if self.lead.is_empty() {
            return self.store.approximate_len();
        }
        self.count(&all_with_lead(&self.lead))
    }

    /// Whether there are no entries. O(log n).
    pub fn is_empty(&self) -> bool {
        let (byte_bounds, mut empty) = (all_with_lead(&self.lead), true);
        let (lower, upper) = by_ref(&byte_bounds);
        self.store.visit(lower, upper, Direction::Ascending, |_, _| {
            empty = false;
            ControlFlow::Break(())
        });
        empty
    }

    /// Sets the value of `key`; returns the one it had. O(log n).
    ///
    /// # Errors
    /// Key or value too long, the memory limit is reached, or the old value is of another type
    /// (then the new one is in place).
    pub fn insert<Q, W>(&self, key: &Q, value: &W) -> Result<Option<V>, MapError>
    where
        Q: Like<K> + ?Sized,
        W: StoreAs<V> + ?Sized,
    {
        let mut old = None;
        self.with_key(key, |key| {
            value.with_bytes(|value| {
                self.store.modify(key, |current| {
                    old = current.map(V::load);
                    Change::Put(value)
                })
            })
        })??;
        Ok(old.transpose()?)
    }

    /// Inserts `key` unless it is present; returns the value that is in the way, if one is.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_if_absent<Q, W>(&self, key: &Q, value: &W) -> Result<Option<V>, MapError>
    where
        Q: Like<K> + ?Sized,
        W: StoreAs<V> + ?Sized,
    {
        let mut present = None;
        self.with_key(key, |key| {
            value.with_bytes(|value| {
                self.store.modify(key, |current| {
                    present = current.map(V::load);
                    if present.is_some() { Change::Keep } else { Change::Put(value) }
                })
            })
        })??;
        Ok(present.transpose()?)
    }

    /// The value of `key`; if it is absent, what `make` gives is inserted first. If another thread
    /// inserts a value meanwhile, its value is returned and the made one dropped.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn get_or_insert_with<Q>(&self, key: &Q, make: impl FnOnce() -> V) -> Result<V, MapError>
    where
        Q: Like<K> + ?Sized,
        V: StoreAs<V>,
    {
        if let Some(value) = self.get(key)? {
            return Ok(value);
        }
        let made = make();
        Ok(self.insert_if_absent(key, &made)?.unwrap_or(made))
    }

    /// Shows the value of `key` (`None`: absent) to `change` and does what it says, as one step.
    /// `change` may run several times and must not use this map; see [`OrderedIndex::modify`].
    ///
    /// # Errors
    /// As [`insert`](Self::insert); a present value of another type is left as it is.
    pub fn modify<Q>(
        &self,
        key: &Q,
        mut change: impl FnMut(Option<V>) -> Change<V>,
    ) -> Result<(), MapError>
    where
        Q: Like<K> + ?Sized,
        V: StoreAs<V>,
    {
        let mut refused = None;
        let done = self.with_key(key, |key| {
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
            })
        });
        done?;
        refused.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Sets `key` to `new` (`None`: removes it) if its value is `expected` (`None`: if it is
    /// absent); returns whether it was. Values are compared as they are stored.
    ///
    /// # Errors
    /// Key or value too long, or the memory limit is reached.
    pub fn compare_and_set<Q, W>(
        &self,
        key: &Q,
        expected: Option<&W>,
        new: Option<&W>,
    ) -> Result<bool, MapError>
    where
        Q: Like<K> + ?Sized,
        W: StoreAs<V> + ?Sized,
    {
        let bytes = |value: Option<&W>| value.map(|value| value.with_bytes(<[u8]>::to_vec));
        let (expected, new) = (bytes(expected).transpose()?, bytes(new).transpose()?);
        let done = self.with_key(key, |key| {
            self.store.compare_exchange(key, expected.as_deref(), new.as_deref())
        });
        Ok(done?.is_ok())
    }

    /// Removes `key`; returns the value it had. A key that is too long is absent. O(log n).
    ///
    /// # Errors
    /// The value was of another type; it is removed. Or the log has failed.
    pub fn remove<Q: Like<K> + ?Sized>(&self, key: &Q) -> Result<Option<V>, MapError> {
        let mut old = None;
        let removed = self.with_key(key, |key| {
            self.store.modify::<&[u8], _>(key, |current| {
                old = current.map(V::load);
                Change::Remove
            })
        });
        match removed {
            Ok(()) | Err(Error::KeyTooLong { .. }) => Ok(old.transpose()?),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the entries of which `keep` says no; returns how many. An entry that changes
    /// meanwhile stays. O(n).
    ///
    /// # Errors
    /// An entry is of other types, or the log has failed: the entries before it are gone.
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) -> Result<usize, MapError> {
        let (byte_bounds, mut removed) = (all_with_lead(&self.lead), 0);
        for (key, value) in self.store.range(by_ref(&byte_bounds)) {
            if !keep(&key_of(&key, self.lead.len())?, &V::load(&value)?) {
                let done = self.store.compare_exchange(&key, Some(&value), None)?;
                removed += usize::from(done.is_ok());
            }
        }
        Ok(removed)
    }

    /// Removes the entry with the smallest key and returns it. O(log n).
    ///
    /// # Errors
    /// It is of other types; it stays.
    pub fn pop_first(&self) -> Result<Option<(K, V)>, MapError> {
        self.pop(Direction::Ascending)
    }

    /// Removes the entry with the largest key and returns it. O(log n).
    ///
    /// # Errors
    /// It is of other types; it stays.
    pub fn pop_last(&self) -> Result<Option<(K, V)>, MapError> {
        self.pop(Direction::Descending)
    }

    fn pop(&self, direction: Direction) -> Result<Option<(K, V)>, MapError> {
        let byte_bounds = all_with_lead(&self.lead);
        loop {
            let (mut found, (lower, upper)) = (None, by_ref(&byte_bounds));
            self.store.visit(lower, upper, direction, |key, value| {
                found = Some((key.to_vec(), value.to_vec()));
                ControlFlow::Break(())
            });
            let Some((key, value)) = found else { return Ok(None) };
            let entry = (key_of(&key, self.lead.len())?, V::load(&value)?);
            // Another thread may have taken or changed it.
            if self.store.compare_exchange(&key, Some(&value), None)?.is_ok() {
                return Ok(Some(entry));
            }
        }
    }

    /// Removes every key within the bounds; returns how many. See [`Store::try_remove_range`].
    ///
    /// # Errors
    /// The log has failed.
    pub fn remove_range<Q, R>(&self, bounds: R) -> Result<usize, MapError>
    where
        Q: Like<K> + ?Sized,
        R: RangeBounds<Q>,
    {
        let byte_bounds = byte_bounds(&self.lead, &bounds);
        let (lower, upper) = by_ref(&byte_bounds);
        Ok(self.store.try_remove_range(lower, upper)?)
    }

    /// Removes every entry. Every snapshot holds all of them or none.
    ///
    /// # Errors
    /// The log has failed.
    pub fn clear(&self) -> Result<(), MapError> {
        let byte_bounds = all_with_lead(&self.lead);
        let (lower, upper) = by_ref(&byte_bounds);
        self.store.try_remove_range(lower, upper)?;
        Ok(())
    }

    /// The value of every key, in the order of `keys`; their memory accesses overlap.
    ///
    /// # Errors
    /// A value is of another type.
    pub fn get_many<Q: Like<K>>(&self, keys: &[Q]) -> Result<Vec<Option<V>>, MapError> {
        let keys: Vec<Vec<u8>> =
            keys.iter().map(|key| self.with_key(key, <[u8]>::to_vec)).collect();
        let mut values = Vec::with_capacity(keys.len());
        self.store.get_many_with(&keys, |_, value| values.push(value.map(V::load).transpose()));
        Ok(values.into_iter().collect::<Result<_, _>>()?)
    }

    /// A state of the map that does not change. O(log s) with s live snapshots.
    pub fn snapshot(&self) -> MapSnapshot<K, V> {
        self.at(self.store.snapshot())
    }

    /// This map as a snapshot of its store has it. The snapshot must be of the same store.
    pub fn at(&self, snapshot: impl Borrow<Snapshot<[u8], [u8]>>) -> MapSnapshot<K, V> {
        MapSnapshot::new(snapshot.borrow().clone(), &self.lead)
    }
}

impl<'a, K: Decode, V: Stored> IntoIterator for &'a Map<K, V> {
    type Item = Result<(K, V), MapError>;
    type IntoIter = Iter<'a, K, V, Store<[u8], [u8]>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Inserts all pairs.
///
/// # Panics
/// If the map refuses a pair; [`Map::insert`] returns the error instead.
impl<K: Decode, V: Stored, Q: Like<K>, W: StoreAs<V>> Extend<(Q, W)> for Map<K, V> {
    fn extend<I: IntoIterator<Item = (Q, W)>>(&mut self, pairs: I) {
        for (key, value) in pairs {
            let inserted = self.insert(&key, &value);
            inserted.unwrap_or_else(|error| panic!("a pair was refused: {error}"));
        }
    }
}

/// Creates a map of all pairs in a new store.
///
/// # Panics
/// If the map refuses a pair; [`Map::insert`] returns the error instead.
impl<K: Decode, V: Stored, Q: Like<K>, W: StoreAs<V>> FromIterator<(Q, W)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (Q, W)>>(pairs: I) -> Self {
        let mut map = Self::new();
        map.extend(pairs);
        map
    }
}
