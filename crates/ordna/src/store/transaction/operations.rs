//! Reads and writes of a transaction. The commit is in [`super`].

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use super::super::handle::Store;
use super::super::snapshot::Snapshot;
use super::{Entry, SuspendedTransaction, Transaction};
use crate::entry::Put;
use ordna_base::index::{Direction, Range};
use ordna_base::{AsData, Error, Key, KeyRange, Value};

/// # Reads
impl<K: Key + ?Sized, V: Value + ?Sized> Transaction<'_, K, V> {
    /// Returns the value of `key`, copied. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!((tx.get(3), names.get(3)), (Some(b"Visby".to_vec()), None));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get(&self, key: impl AsData<K>) -> Option<V::Owned> {
        self.get_with(key, ToOwned::to_owned)
    }

    /// Calls `read` with the value of `key`. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.get_with(1, |name| name.len()), Some(4));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_with<R>(&self, key: impl AsData<K>, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.get_entry_with(key.as_data(), |entry| read(entry.value))
    }

    /// Calls `read` with value and deadline of `key`. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.get_entry_with(&3, |entry| entry.expires_at), Some(None));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_entry_with<R>(&self, key: &K, read: impl FnOnce(Put<&V>) -> R) -> Option<R> {
        let own = {
            let mut footprint = self.footprint.borrow_mut();
            let own = footprint.writes.get(key).cloned();
            if own.is_none() {
                footprint.reads.note_key(key);
            }
            own
        };
        match own {
            Some(put) => {
                put.map(|Put { value, expires_at }| read(Put { value: value.borrow(), expires_at }))
            }
            None => self.snapshot.get_entry_with(key, read),
        }
    }

    /// Calls `each` with the position and value of every key, in the order of `keys`.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// let mut letters = Vec::new();
    /// tx.get_many_with(&[3, 9], |_, name| letters.push(name.map(<[u8]>::len)));
    /// assert_eq!(letters, [Some(5), None]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn get_many_with<Q: AsData<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        for (at, key) in keys.iter().enumerate() {
            if self.get_with(key, |value| each(at, Some(value))).is_none() {
                each(at, None);
            }
        }
    }

    /// Returns whether `key` is present. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert!(tx.contains_key(3) && !names.contains_key(3));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn contains_key(&self, key: impl AsData<K>) -> bool {
        self.get_with(key, |_| ()).is_some()
    }

    /// Returns an iterator over the entries of a range, in order, from both ends. The entries that
    /// it reads ahead, at most as many as it has returned, count as read. O(log n), then amortized
    /// O(1) per entry.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.range(2..).count(), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn range(&self, range: impl KeyRange<K>) -> Range<'_, Self> {
        let (lower, upper) = range.ends();
        Range::new(self, lower.map(ToOwned::to_owned), upper.map(ToOwned::to_owned))
    }

    /// Returns all entries, in order, from both ends; see [`range`](Self::range).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.iter().map(|(key, _)| key).collect::<Vec<_>>(), [1, 2, 3]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn iter(&self) -> Range<'_, Self> {
        self.range(..)
    }

    /// Returns the entry with the smallest key. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.first().map(|(key, _)| key), Some(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn first(&self) -> Option<Entry<K, V>> {
        self.iter().next()
    }

    /// Returns the entry with the largest key. O(log n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.last().map(|(key, _)| key), Some(3));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn last(&self) -> Option<Entry<K, V>> {
        self.iter().next_back()
    }

    /// Calls `visit` with the entries within the bounds, in order, until it breaks.
    ///
    /// ```
    /// use std::ops::{Bound, ControlFlow};
    /// use ordna::Direction;
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// let mut keys = Vec::new();
    /// tx.visit(Bound::Unbounded, Bound::Unbounded, Direction::Descending, |key, _| {
    ///     keys.push(*key);
    ///     ControlFlow::Continue(())
    /// });
    /// assert_eq!(keys, [3, 2, 1]);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut entries = self.range((lower, upper));
        loop {
            let next = match direction {
                Direction::Ascending => entries.next_ref(),
                Direction::Descending => entries.next_back_ref(),
            };
            let Some((key, value)) = next else { return };
            if visit(key, value).is_break() {
                return;
            }
        }
    }

    /// Returns the number of keys within the bounds. O(n).
    ///
    /// ```
    /// use std::ops::Bound;
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.count(Bound::Included(&2), Bound::Unbounded), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn count(&self, lower: Bound<&K>, upper: Bound<&K>) -> usize {
        let mut count = 0;
        self.visit(lower, upper, Direction::Ascending, |_, _| {
            count += 1;
            ControlFlow::Continue(())
        });
        count
    }

    /// Returns the number of keys below `key`. O(n).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.rank(&3), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn rank(&self, key: &K) -> usize {
        self.count(Bound::Unbounded, Bound::Excluded(key))
    }

    /// Calls `read` with the entry at a position, counted from 0. O(position).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.select_with(2, |key, _| *key), Some(3));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn select_with<R>(&self, position: usize, read: impl FnOnce(&K, &V) -> R) -> Option<R> {
        let mut entries = self.iter();
        for _ in 0..position {
            entries.next_ref()?;
        }
        entries.next_ref().map(|(key, value)| read(key, value))
    }

    /// Returns the snapshot that the transaction reads. Reads of the snapshot itself do not count
    /// as reads of the transaction.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.snapshot().len(), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn snapshot(&self) -> &Snapshot<K, V> {
        &self.snapshot
    }

    /// Returns the transaction without its store; [`Store::resume`] continues it. O(1).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// let suspended = tx.suspend();
    /// assert!(names.resume(suspended)?.contains_key(3));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn suspend(self) -> SuspendedTransaction<K, V> {
        let Self { snapshot, began, age_limit, footprint, .. } = self;
        SuspendedTransaction { snapshot, began, age_limit, footprint: footprint.into_inner() }
    }

    /// Returns the store of the transaction.
    pub(crate) fn store(&self) -> &Store<K, V> {
        self.store
    }
}

/// # Writes
///
/// Writes are buffered until the commit, and fail with [`Error::KeyTooLong`] and
/// [`Error::ValueTooLong`] only.
impl<K: Key + ?Sized, V: Value + ?Sized> Transaction<'_, K, V> {
    /// Sets the value of `key`, without a read. The entry does not expire.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// tx.put(4, "Kiruna")?;
    /// assert_eq!((tx.iter().count(), names.len()), (4, 2));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn put(&self, key: impl AsData<K>, value: impl AsData<V>) -> Result<(), Error> {
        self.put_entry(key.as_data(), Put::forever(value.as_data()))
    }

    /// Sets the value of `key`, which expires after `life`, counted from now.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// tx.put_for(4, "Kiruna", Duration::from_secs(60))?;
    /// tx.commit()?;
    /// assert!(names.expires_in(4).unwrap().is_some());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn put_for(
        &self,
        key: impl AsData<K>,
        value: impl AsData<V>,
        life: Duration,
    ) -> Result<(), Error> {
        let expires_at = Some(self.store.deadline_after(life));
        self.put_entry(key.as_data(), Put { value: value.as_data(), expires_at })
    }

    /// Sets value and deadline of `key`.
    pub(crate) fn put_entry(&self, key: &K, put: Put<&V>) -> Result<(), Error> {
        key.check()?;
        put.value.check()?;
        let put = Put { value: put.value.to_owned(), expires_at: put.expires_at };
        self.footprint.borrow_mut().writes.insert(key.to_owned(), Some(put));
        Ok(())
    }

    /// Sets the value of `key` and returns its former value.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.insert(1, "Malmö")?, Some(b"Lund".to_vec()));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn insert(
        &self,
        key: impl AsData<K>,
        value: impl AsData<V>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = key.as_data();
        let old = self.get(key);
        self.put(key, value)?;
        Ok(old)
    }

    /// Replaces the value of `key` by the result of `update` and returns it, or `None` if the key
    /// is absent. The entry keeps its deadline.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.update(1, |name| [name, b"!"].concat())?, Some(b"Lund!".to_vec()));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn update(
        &self,
        key: impl AsData<K>,
        update: impl FnOnce(&V) -> V::Owned,
    ) -> Result<Option<V::Owned>, Error> {
        let key = key.as_data();
        let updated = |entry: Put<&V>| (update(entry.value), entry.expires_at);
        let Some((value, expires_at)) = self.get_entry_with(key, updated) else { return Ok(None) };
        self.put_entry(key, Put { value: value.borrow(), expires_at })?;
        Ok(Some(value))
    }

    /// Removes `key` and returns its former value.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.remove(1)?, Some(b"Lund".to_vec()));
    /// assert!(names.contains_key(1) && !tx.contains_key(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn remove(&self, key: impl AsData<K>) -> Result<Option<V::Owned>, Error> {
        let key = key.as_data();
        let old = self.get(key);
        if old.is_some() {
            self.footprint.borrow_mut().writes.insert(key.to_owned(), None);
        }
        Ok(old)
    }

    /// Removes every key of a range and returns how many there were. O(n) with n entries in the
    /// range.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.remove_range(..3)?, 2);
    /// tx.commit()?;
    /// assert_eq!(names.len(), 1);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn remove_range(&self, range: impl KeyRange<K>) -> Result<usize, Error> {
        let keys: Vec<K::Owned> = self.range(range).map(|(key, _)| key).collect();
        let removed = keys.len();
        let mut footprint = self.footprint.borrow_mut();
        footprint.writes.extend(keys.into_iter().map(|key| (key, None)));
        Ok(removed)
    }

    /// Removes the entry with the smallest key and returns it.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.pop_first()?, Some((1, b"Lund".to_vec())));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn pop_first(&self) -> Result<Option<Entry<K, V>>, Error> {
        let first = self.first();
        if let Some((key, _)) = &first {
            self.remove(Borrow::<K>::borrow(key))?;
        }
        Ok(first)
    }

    /// Removes the entry with the largest key and returns it.
    ///
    /// # Errors
    /// See [writes](#writes).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// assert_eq!(tx.pop_last()?, Some((3, b"Visby".to_vec())));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn pop_last(&self) -> Result<Option<Entry<K, V>>, Error> {
        let last = self.last();
        if let Some((key, _)) = &last {
            self.remove(Borrow::<K>::borrow(key))?;
        }
        Ok(last)
    }

    /// Discards all writes: the transaction ends without a change and never conflicts. Later writes
    /// are discarded, too.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// tx.abandon();
    /// tx.commit()?;
    /// assert_eq!(names.len(), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn abandon(&self) {
        self.footprint.borrow_mut().is_abandoned = true;
    }

    /// Applies the writes as one step if nothing that the transaction has read has changed since it
    /// began; see [`Store::transaction`] for the cost. After a crash, a store that was opened in a
    /// directory holds all of the writes or none. The linearization point is within this call.
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::TransactionTooOld`], and those of
    /// [`write_batch`](Store::write_batch). Nothing is written, except that after
    /// [`Error::LogFailed`] the writes may have been applied.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let tx = names.begin();
    /// tx.put(3, "Visby")?;
    /// tx.commit()?;
    /// assert_eq!(names.get(3), Some(b"Visby".to_vec()));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn commit(self) -> Result<(), Error> {
        let footprint = self.footprint.into_inner();
        if footprint.is_abandoned || footprint.writes.is_empty() {
            return Ok(());
        }
        if self.began.elapsed() > self.age_limit {
            return Err(Error::TransactionTooOld { limit: self.age_limit });
        }
        self.store.commit(&self.snapshot, &footprint)
    }
}
