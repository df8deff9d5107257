//! The public writes of a store, all of which are logged. `insert`, `remove` and `modify` of
//! [`OrderedIndex`](crate::OrderedIndex) end here too: they call [`Store::modify_entry`].

use std::borrow::Borrow;
use std::ops::Bound;

use super::batch::Write;
use super::engine::{Payment, WriteProgress};
use super::handle::Store;
use super::reentry;
use crate::entry::{Found, Put};
use crate::wal::buffer::WrittenKeys;
use ordna_base::index::{Change, bounds_cross};
use ordna_base::sync::point;
use ordna_base::{Error, Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Calls `change` with the entry of `key`, or `None` if the key is absent or expired, and
    /// applies the returned change, as one step. The rules for `change` are those of
    /// [`OrderedIndex::modify`](ordna_base::OrderedIndex::modify), which puts values that do not
    /// expire. O(log n).
    ///
    /// # Errors
    /// The key or value is too long, or the memory limit is reached; nothing is changed. Or
    /// [`Error::LogFailed`].
    ///
    /// ```
    /// use ordna::{Change, Put};
    ///
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// let until = towns.now() + 60_000;
    /// towns.modify_entry(b"Lund", |found| match found {
    ///     Some(entry) => Change::Put(Put { value: entry.value + 1, expires_at: Some(until) }),
    ///     None => Change::Keep,
    /// })?;
    /// assert_eq!((towns.get("Lund"), towns.expiry(b"Lund")), (Some(94_394), Some(Some(until))));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn modify_entry<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    {
        let engine = self.engine();
        self.change_entry(key, |found| reentry::deciding(engine, || change(found)))
    }

    /// Works like [`modify_entry`](Self::modify_entry), for closures of this crate, which do not
    /// use the store.
    #[inline]
    pub(super) fn change_entry<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    {
        key.check()?;
        let Some(wal) = self.wal() else { return self.modify_entry_unlogged(key, change) };
        wal.write(&WrittenKeys::Key(key), self, &mut |buffer| {
            self.modify_entry_unlogged(key, |found| {
                let decided = change(found);
                buffer.start_over();
                match &decided {
                    Change::Put(Put { value, expires_at }) => {
                        buffer.was(key, found.map(put_of));
                        let value = value.borrow();
                        buffer.put(key, Put { value, expires_at: *expires_at });
                    }
                    Change::Remove if found.is_some() => {
                        buffer.was(key, found.map(put_of));
                        buffer.remove(key);
                    }
                    Change::Remove | Change::Keep => {}
                }
                decided
            })
        })
    }

    /// Calls `change` with the entry of the first key, or `None` if it is absent or expired, and
    /// applies the two returned changes to both keys, as one step. Every snapshot holds both
    /// changes or none, and so does a store that was opened in a directory after a crash. `change`
    /// does not see the entry of the second key. This is a [`write_batch`](Self::write_batch) of
    /// two writes that depend on the state of one key, without a separate read. The rules for
    /// `change` are those of [`modify_entry`](Self::modify_entry). If the memory limit refuses the
    /// first change, nothing is changed; the second change counts against the limit, but is never
    /// refused. Readers of the latest state may see the first change before the second. O(log n).
    ///
    /// # Errors
    /// Those of [`modify_entry`](Self::modify_entry).
    ///
    /// ```
    /// use ordna::{Change, Put};
    ///
    /// let store = ordna::Store::<[u8], [u8]>::new();
    /// let one = Change::Put(Put::forever(&b"1"[..]));
    /// store.modify_two([b"member", b"count"], |found| match found {
    ///     None => [one, one],
    ///     Some(_) => [Change::Keep, Change::Keep],
    /// })?;
    /// assert_eq!(store.get("count").as_deref(), Some(&b"1"[..]));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn modify_two<'v, F>(&self, keys: [&K; 2], mut change: F) -> Result<(), Error>
    where
        V: 'v,
        F: FnMut(Option<Found<'_, V>>) -> [Change<Put<&'v V>>; 2],
    {
        keys.iter().try_for_each(|key| key.check())?;
        let engine = self.engine();
        let mut change = |found: Option<Found<'_, V>>| reentry::deciding(engine, || change(found));
        let Some(wal) = self.wal() else {
            return self.modify_two_unlogged(keys, change).map(|_| ());
        };
        wal.write(&WrittenKeys::Keys(&keys), self, &mut |buffer| {
            let changes = self.modify_two_unlogged(keys, &mut change)?;
            for (key, change) in keys.into_iter().zip(changes) {
                match change {
                    Change::Put(put) => buffer.put(key, put),
                    Change::Remove => buffer.remove(key),
                    Change::Keep => {}
                }
            }
            Ok(())
        })
    }

    /// Works like [`modify_two`](Self::modify_two), without the log, for validated keys. Returns
    /// the result.
    fn modify_two_unlogged<'v, F>(
        &self,
        keys: [&K; 2],
        mut change: F,
    ) -> Result<[Change<Put<&'v V>>; 2], Error>
    where
        V: 'v,
        F: FnMut(Option<Found<'_, V>>) -> [Change<Put<&'v V>>; 2],
    {
        let mut changes = [Change::Keep; 2];
        self.within_limit(|engine| {
            engine.writing(|scope| {
                let mut refused = Ok(());
                engine.apply(keys[0], scope, Payment::Due, |found| {
                    changes = change(found);
                    refused = match changes[1] {
                        Change::Put(put) => put.value.check(),
                        _ => Ok(()),
                    };
                    if refused.is_ok() { changes[0] } else { Change::Keep }
                })?;
                refused?;
                point("store.batch.between_writes");
                if !matches!(changes[1], Change::Keep) {
                    engine.apply(keys[1], scope, Payment::Forced, |_| changes[1])?;
                }
                Ok(())
            })
        })?;
        Ok(changes)
    }

    /// Works like [`modify_entry`](Self::modify_entry), but `change` returns a new deadline for the
    /// existing value, or `None` for no deadline. An absent key stays absent.
    ///
    /// If a snapshot keeps the version that had the former deadline, the new one is a copy. At the
    /// memory limit a copy of an entry of more than 1 KiB is refused. Copies of smaller entries may
    /// exceed the limit, by a sixteenth of it (at least 256 KiB) in all. A deadline that needs no
    /// copy is never refused; its eight bytes may exceed the limit.
    ///
    /// # Errors
    /// The key is too long, or the memory limit has no room for the copy; nothing is changed. Or
    /// [`Error::LogFailed`].
    ///
    /// ```
    /// use ordna::Change;
    ///
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// let until = towns.now() + 60_000;
    /// towns.modify_expiry(b"Lund", |_| Change::Put(Some(until)))?;
    /// assert_eq!(towns.expiry(b"Lund"), Some(Some(until)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn modify_expiry<F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        F: FnMut(Option<Found<'_, V>>) -> Change<Option<u64>>,
    {
        key.check()?;
        let engine = self.engine();
        let mut change = |found: Option<Found<'_, V>>| reentry::deciding(engine, || change(found));
        let Some(wal) = self.wal() else { return self.modify_expiry_unlogged(key, change) };
        wal.write(&WrittenKeys::Key(key), self, &mut |buffer| {
            self.modify_expiry_unlogged(key, |found| {
                let decided = change(found);
                buffer.start_over();
                match (&decided, found) {
                    (Change::Put(expires_at), Some(old)) => {
                        buffer.was(key, Some(put_of(old)));
                        buffer.expire(key, *expires_at);
                    }
                    (Change::Remove, Some(old)) => {
                        buffer.was(key, Some(put_of(old)));
                        buffer.remove(key);
                    }
                    _ => {}
                }
                decided
            })
        })
    }

    /// Sets the value of `key`, which expires at `expires_at`, in milliseconds of the store's
    /// clock.
    ///
    /// # Errors
    /// Those of [`modify_entry`](Self::modify_entry).
    ///
    /// ```
    /// let sessions: ordna::Store<u64, u64> = ordna::Store::new();
    /// let until = sessions.now() + 60_000;
    /// sessions.insert_until(&1, &17, until)?;
    /// assert_eq!(sessions.expiry(&1), Some(Some(until)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn insert_until(&self, key: &K, value: &V, expires_at: u64) -> Result<(), Error> {
        let put = Put { value, expires_at: Some(expires_at) };
        self.change_entry(key, |_| Change::Put(put))
    }

    /// Sets the deadline of `key`, or removes it if `expires_at` is `None`. Returns whether the key
    /// is present.
    ///
    /// # Errors
    /// Those of [`modify_expiry`](Self::modify_expiry).
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let until = names.now() + 60_000;
    /// assert!(names.set_expiry(&1, Some(until))? && !names.set_expiry(&9, None)?);
    /// assert_eq!(names.expiry(&1), Some(Some(until)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn set_expiry(&self, key: &K, expires_at: Option<u64>) -> Result<bool, Error> {
        let mut present = false;
        self.modify_expiry(key, |found| {
            present = found.is_some();
            Change::Put(expires_at)
        })?;
        Ok(present)
    }

    /// Applies the writes in order. Every snapshot holds all of them or none, and so does a store
    /// that was opened in a directory after a crash. Readers of the latest state may see some
    /// writes before the others. O(log n) for each; a snapshot that is taken during the call can be
    /// read when it has ended.
    ///
    /// # Errors
    /// A key or value is too long, or the batch would exceed the memory limit (overwritten entries
    /// do not make room for added ones); nothing is applied. Or [`Error::LogFailed`].
    ///
    /// # Panics
    /// If the store's clock panics. Some of the writes may then be applied, and the log refuses
    /// further writes until a backup.
    ///
    /// ```
    /// use ordna::{Store, Write};
    ///
    /// let store: Store<u64, u64> = Store::new();
    /// store.write_batch(&[Write::put(&1, &10), Write::put(&2, &20), Write::Remove(&1)])?;
    /// assert_eq!((store.get(1), store.get(2)), (None, Some(20)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn write_batch(&self, writes: &[Write<'_, K, V>]) -> Result<(), Error> {
        let Some(wal) = self.wal() else { return self.write_batch_unlogged(writes) };
        let keys: Vec<&K> = writes.iter().map(Write::key).collect();
        wal.write(&WrittenKeys::Keys(&keys), self, &mut |buffer| {
            self.write_batch_unlogged(writes)?;
            writes.iter().for_each(|write| write.record(buffer));
            Ok(())
        })
    }

    /// Applies the writes in order, each as a separate step. Keys and values are validated.
    ///
    /// # Errors
    /// The memory limit is reached, or [`Error::LogFailed`]; earlier writes are applied.
    pub(super) fn write_many(&self, writes: &[Write<'_, K, V>]) -> Result<WriteProgress, Error> {
        /// Number of writes that are logged together.
        const AT_ONCE: usize = 256;
        let mut all = WriteProgress::default();
        let run = |writes, progress: &mut WriteProgress| {
            self.write_many_unlogged(writes, Write::key, |write| write.change(), progress)
        };
        let Some(wal) = self.wal() else { return run(writes, &mut all).map(|()| all) };
        for writes in writes.chunks(AT_ONCE) {
            let keys: Vec<&K> = writes.iter().map(Write::key).collect();
            let (mut progress, mut refused) = (WriteProgress::default(), Ok(()));
            wal.write(&WrittenKeys::Keys(&keys), self, &mut |buffer| {
                refused = run(writes, &mut progress);
                writes[..progress.done].iter().for_each(|write| write.record(buffer));
                Ok(())
            })?;
            all.done += progress.done;
            all.present += progress.present;
            refused?;
        }
        Ok(all)
    }

    /// Works like [`insert_many`](Self::insert_many), for pairs that are converted only once, so
    /// that the validated bytes are the ones that are written.
    pub(super) fn insert_pairs<'a>(
        &self,
        pairs: impl Iterator<Item = (&'a K, &'a V)>,
    ) -> Result<usize, Error> {
        let writes: Vec<Write<'_, K, V>> =
            pairs.map(|(key, value)| Write::put(key, value)).collect();
        writes.iter().try_for_each(Write::check)?;
        let progress = self.write_many(&writes)?;
        Ok(progress.done - progress.present)
    }

    /// Works like [`remove_many`](Self::remove_many). Keys that are too long are absent.
    pub(super) fn remove_keys<'a>(
        &self,
        keys: impl Iterator<Item = &'a K>,
    ) -> Result<usize, Error> {
        let keys = keys.filter(|key| key.check().is_ok());
        let writes: Vec<Write<'_, K, V>> = keys.map(Write::Remove).collect();
        Ok(self.write_many(&writes)?.present)
    }

    /// Works like [`remove_range`](Self::remove_range).
    pub(crate) fn remove_within(&self, lower: Bound<&K>, upper: Bound<&K>) -> Result<usize, Error> {
        let Some(wal) = self.wal() else {
            return Ok(self.remove_range_unlogged(lower, upper));
        };
        if bounds_cross(lower, upper) {
            // Like any other write that changes nothing, it fails if the log has failed.
            return self.check_log().map(|()| 0);
        }
        let mut removed = 0;
        let done = wal.write(&WrittenKeys::Range(lower, upper), self, &mut |buffer| {
            removed = self.remove_range_unlogged(lower, upper);
            if removed > 0 {
                buffer.remove_range(lower, upper);
            }
            Ok(())
        });
        done.map(|()| removed)
    }

    /// Runs `work` and logs all writes that this thread makes in it as one group: after a crash, a
    /// store that was opened in a directory holds all of them or none. No other thread writes
    /// during the call. Without a directory, this only runs `work`. Readers and snapshots see the
    /// writes one by one; [`write_batch`](Self::write_batch) makes them one step for them, too.
    ///
    /// # Errors
    /// [`Error::LogFailed`], before or after `work` ran. If `work` ran, its writes are in memory,
    /// and a [`successor`](Self::successor) that it created has the directory.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// store.log_group(|| {
    ///     store.put(1, 10)?;
    ///     store.put(2, 20)
    /// })??;
    /// assert_eq!(store.len(), 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn log_group<R>(&self, work: impl FnOnce() -> R) -> Result<R, Error> {
        match self.wal() {
            Some(wal) => wal.group(work),
            None => Ok(work()),
        }
    }
}

/// Returns the put that reproduces this entry.
pub(super) fn put_of<V: ?Sized>(found: Found<'_, V>) -> Put<&V> {
    Put { value: found.value, expires_at: found.expires_at }
}
