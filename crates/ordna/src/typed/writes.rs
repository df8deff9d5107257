//! The writes of maps.

use std::ops::ControlFlow;
use std::time::Duration;

use super::map::Map;
use super::mode::Mode;
use super::range::{ByteBounds, MapRange, key_of};
use super::stored::{StoreAs, Stored};
use crate::tuple::{Decode, Like};
use crate::{Change, Direction, Error};

/// # Writes
///
/// The errors are those of [`Map`].
impl<K: Decode, V: Stored, M: Mode> Map<K, V, M> {
    /// Sets the value of `key`. The entry does not expire. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = ordna::Map::new();
    /// ages.put("ann", 31)?;
    /// assert_eq!(ages.get("ann"), Some(31));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn put(&self, key: impl Like<K>, value: impl StoreAs<V>) -> Result<(), Error> {
        self.with_key(key, |key| value.with_bytes(|value| self.store.put(key, value)))?
    }

    /// Sets the value of `key` and returns its former value, which [`put`](Self::put) does not
    /// read. The entry does not expire. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = ordna::Map::new();
    /// assert_eq!(ages.insert("ann", 31)?, None);
    /// assert_eq!(ages.insert("ann", 32)?, Some(31));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert!(ages.expire_in("ann", Duration::from_secs(60))?);
    /// assert!(!ages.expire_in("eve", Duration::from_secs(60))?);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn expire_in(&self, key: impl Like<K>, life: Duration) -> Result<bool, Error> {
        self.with_key(key, |key| self.store.expire_in(key, life))
    }

    /// Removes the deadline of `key`. Returns whether the key is present. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// ages.expire_in("ann", Duration::from_secs(60))?;
    /// ages.persist("ann")?;
    /// assert_eq!(ages.expires_in("ann"), Some(None));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn persist(&self, key: impl Like<K>) -> Result<bool, Error> {
        self.with_key(key, |key| self.store.set_expiry(key, None))
    }

    /// Inserts all pairs in groups, each pair as a separate write. If a key occurs twice, the later
    /// pair wins. O(log n) for each pair.
    ///
    /// # Errors
    /// See [errors](Map#errors): the pairs before the group that failed are inserted.
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = ordna::Map::new();
    /// ages.try_extend([("ann", 31), ("bob", 27)])?;
    /// assert_eq!(ages.len(), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = ordna::Map::new();
    /// assert_eq!(ages.insert_if_absent("ann", 31)?, None);
    /// assert_eq!(ages.insert_if_absent("ann", 32)?, Some(31));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = ordna::Map::new();
    /// assert_eq!(ages.get_or_insert_with("ann", || 31)?, 31);
    /// assert_eq!(ages.get_or_insert_with("ann", || 99)?, 31);
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// use ordna::Change;
    ///
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// ages.modify("ann", |age| age.map_or(Change::Keep, |age| Change::Put(age + 1)))?;
    /// assert_eq!(ages.get("ann"), Some(32));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.update("ann", |age| age + 1)?, Some(32));
    /// assert_eq!(ages.update("eve", |age| age + 1)?, None);
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert!(ages.compare_and_set("ann", Some(31), Some(32))?);
    /// assert!(!ages.compare_and_set("ann", Some(31), Some(33))?);
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!((ages.remove("ann")?, ages.remove("ann")?), (Some(31), None));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.retain(|_, age| *age > 30)?, 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.pop_first()?, Some(("ann".to_owned(), 31)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn pop_first(&self) -> Result<Option<(K, V)>, Error> {
        self.pop(Direction::Ascending)
    }

    /// Removes the entry with the largest key and returns it. O(log n).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.pop_last()?, Some(("bob".to_owned(), 27)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    /// them or none. See [`Store::remove_range`](crate::Store::remove_range).
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// assert_eq!(ages.remove_range("b"..)?, 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn remove_range(&self, range: impl MapRange<K>) -> Result<usize, Error> {
        let byte_bounds = range.byte_bounds(&self.lead);
        let (lower, upper) = byte_bounds.as_ref();
        self.store.remove_range((lower, upper))
    }

    /// Removes every entry. Every snapshot holds all of them or none.
    ///
    /// # Errors
    /// See [errors](Map#errors).
    ///
    /// ```
    /// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
    /// ages.clear()?;
    /// assert!(ages.is_empty());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn clear(&self) -> Result<(), Error> {
        self.remove_range(..).map(|_| ())
    }
}
