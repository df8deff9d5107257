//! Typed maps within transactions.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use super::cursor::Cursor;
use super::iter::{Iter, Keys, Values};
use super::map::Map;
use super::mode::{Mode, Own, Types};
use super::range::{ByteBounds, MapRange, PrefixRange, from_key, key_of, to_key};
use super::reads::reads;
use super::scratch::with_scratch;
use super::stored::{StoreAs, Stored};
use crate::store::Transaction;
use crate::tuple::{Decode, Like, Prefix};
use crate::{Direction, Error, Put};

/// A [`Map`] within a transaction, created by [`Map::transaction`] or [`Transaction::map`].
///
/// The reads are those of a map, at the transaction's snapshot and including its own writes; see
/// [`Transaction`].
///
/// ```
/// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
/// ages.transaction(|tx| {
///     let age = tx.get("ann").unwrap_or(0);
///     tx.put("ann", age + 1)
/// })?;
/// assert_eq!(ages.get("ann"), Some(32));
/// # Ok::<(), ordna::Error>(())
/// ```
pub struct MapTransaction<'t, K, V, M = Own> {
    transaction: &'t Transaction<'t, [u8], [u8]>,
    lead: &'t [u8],
    types: Types<K, V, M>,
}

impl<K, V, M> Clone for MapTransaction<'_, K, V, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K, V, M> Copy for MapTransaction<'_, K, V, M> {}

impl<K, V, M> fmt::Debug for MapTransaction<'_, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapTransaction")
            .field("transaction", self.transaction)
            .finish_non_exhaustive()
    }
}

impl<K: Decode, V: Stored, M: Mode> Map<K, V, M> {
    /// Runs `work` in a transaction of this map and commits it, see
    /// [`Store::transaction`](crate::Store::transaction).
    ///
    /// # Errors
    /// Those of [`Store::transaction`](crate::Store::transaction).
    ///
    /// ```
    /// let seats: ordna::Map<(String, u32), String> = ordna::Map::new();
    /// let book = |train: &str, name: &str| {
    ///     seats.transaction(|tx| {
    ///         let taken = tx.prefix((train,)).count();
    ///         if taken == 2 {
    ///             return Ok(false);
    ///         }
    ///         tx.put((train, taken as u32), name)?;
    ///         Ok(true)
    ///     })
    /// };
    /// assert!(book("X2000", "ann")? && book("X2000", "bob")? && !book("X2000", "eve")?);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn transaction<R>(
        &self,
        mut work: impl FnMut(MapTransaction<'_, K, V, M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.store.transaction(|transaction| work(MapTransaction::new(transaction, &self.lead)))
    }
}

impl Transaction<'_, [u8], [u8]> {
    /// Returns a map within this transaction.
    ///
    /// # Errors
    /// [`Error::OtherStore`] if the map belongs to another store.
    ///
    /// ```
    /// use std::cmp::Reverse;
    /// use std::sync::Arc;
    /// use ordna::{Error, Store, Table};
    ///
    /// let store = Arc::new(Store::new());
    /// let scores: Table<String, u64> = Table::named(&store, "scores")?;
    /// let ranking: Table<(Reverse<u64>, String), ()> = Table::named(&store, "ranking")?;
    /// let set = |player: &str, score: u64| {
    ///     store.transaction(|tx| {
    ///         let (scores, ranking) = (tx.map(&scores)?, tx.map(&ranking)?);
    ///         if let Some(old) = scores.insert(player, score)? {
    ///             ranking.remove((Reverse(old), player))?;
    ///         }
    ///         ranking.put((Reverse(score), player), ())
    ///     })
    /// };
    /// set("ann", 5)?;
    /// set("ann", 9)?;
    /// set("bob", 7)?;
    /// let best: Vec<String> = ranking.keys().map(|key| Ok(key?.1)).collect::<Result<_, Error>>()?;
    /// assert_eq!(best, ["ann", "bob"]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn map<'t, K, V, M>(
        &'t self,
        map: &'t Map<K, V, M>,
    ) -> Result<MapTransaction<'t, K, V, M>, Error> {
        if !std::ptr::eq(self.store(), &*map.store) {
            return Err(Error::OtherStore);
        }
        Ok(MapTransaction::new(self, &map.lead))
    }
}

impl<'t, K, V, M> MapTransaction<'t, K, V, M> {
    fn new(transaction: &'t Transaction<'t, [u8], [u8]>, lead: &'t [u8]) -> Self {
        Self { transaction, lead, types: PhantomData }
    }
}

/// # Reads
impl<'t, K: Decode, V: Stored, M: Mode> MapTransaction<'t, K, V, M> {
    reads!(transaction: Transaction<'t, [u8], [u8]>);

    /// Returns the number of entries. O(n).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// ages.transaction(|tx| {
    ///     tx.put("eve", 40)?;
    ///     assert_eq!(tx.len(), 3);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.count(..)
    }
}

/// # Writes
///
/// Writes are buffered until the commit, and fail with [`Error::KeyTooLong`],
/// [`Error::ValueTooLong`] and [`Error::WrongValue`] only.
impl<K: Decode, V: Stored, M: Mode> MapTransaction<'_, K, V, M> {
    /// Sets the value of `key`, without a read. The entry does not expire.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// ages.transaction(|tx| tx.put("eve", 40))?;
    /// assert_eq!(ages.len(), 3);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn put(&self, key: impl Like<K>, value: impl StoreAs<V>) -> Result<(), Error> {
        self.with_key(key, |key| value.with_bytes(|value| self.transaction.put(key, value)))?
    }

    /// Sets the value of `key`, which expires after `life`, counted from now.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// ages.transaction(|tx| tx.put_for("eve", 40, Duration::from_secs(60)))?;
    /// assert!(ages.expires_in("eve").unwrap().is_some());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn put_for(
        &self,
        key: impl Like<K>,
        value: impl StoreAs<V>,
        life: Duration,
    ) -> Result<(), Error> {
        self.with_key(key, |key| {
            value.with_bytes(|value| self.transaction.put_for(key, value, life))
        })?
    }

    /// Sets the value of `key` and returns its former value.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.transaction(|tx| tx.insert("ann", 32))?, Some(31));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn insert(&self, key: impl Like<K>, value: impl StoreAs<V>) -> Result<Option<V>, Error> {
        self.with_key(key, |key| {
            let old = self.transaction.get_with(key, V::load).transpose()?;
            value.with_bytes(|value| self.transaction.put(key, value))??;
            Ok(old)
        })
    }

    /// Replaces the value of `key` by the result of `update` and returns it, or `None` if the key
    /// is absent. The entry keeps its deadline.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.transaction(|tx| tx.update("ann", |age| age + 1))?, Some(32));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn update(&self, key: impl Like<K>, update: impl FnOnce(V) -> V) -> Result<Option<V>, Error>
    where
        V: StoreAs<V>,
    {
        self.with_key(key, |key| {
            let load = |entry: Put<&[u8]>| (V::load(entry.value), entry.expires_at);
            let found = self.transaction.get_entry_with(key, load);
            let Some((old, expires_at)) = found else { return Ok(None) };
            let new = update(old?);
            new.with_bytes(|value| self.transaction.put_entry(key, Put { value, expires_at }))??;
            Ok(Some(new))
        })
    }

    /// Removes `key` and returns its former value.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.transaction(|tx| tx.remove("ann"))?, Some(31));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn remove(&self, key: impl Like<K>) -> Result<Option<V>, Error> {
        self.with_key(key, |key| {
            let old = self.transaction.get_with(key, V::load).transpose()?;
            self.transaction.remove(key)?;
            Ok(old)
        })
    }

    /// Removes every key of a range and returns how many there were. O(n) with n entries in the
    /// range.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.transaction(|tx| tx.remove_range("b"..))?, 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn remove_range(&self, range: impl MapRange<K>) -> Result<usize, Error> {
        let byte_bounds = range.byte_bounds(self.lead);
        let (lower, upper) = byte_bounds.as_ref();
        self.transaction.remove_range((lower, upper))
    }

    /// Removes the entry with the smallest key and returns it.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.transaction(|tx| tx.pop_first())?, Some(("ann".to_owned(), 31)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn pop_first(&self) -> Result<Option<(K, V)>, Error> {
        self.pop(Direction::Ascending)
    }

    /// Removes the entry with the largest key and returns it.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.transaction(|tx| tx.pop_last())?, Some(("bob".to_owned(), 27)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn pop_last(&self) -> Result<Option<(K, V)>, Error> {
        self.pop(Direction::Descending)
    }

    fn pop(&self, direction: Direction) -> Result<Option<(K, V)>, Error> {
        let byte_bounds = ByteBounds::with_lead(self.lead);
        let (mut found, (lower, upper)) = (None, byte_bounds.as_ref());
        self.transaction.visit(lower, upper, direction, |key, value| {
            found = Some((key.to_vec(), value.to_vec()));
            ControlFlow::Break(())
        });
        let Some((key, value)) = found else { return Ok(None) };
        let entry = (key_of(&key, self.lead.len())?, V::load(&value)?);
        self.transaction.remove(&key)?;
        Ok(Some(entry))
    }
}
