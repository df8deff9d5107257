//! The public writes of a store, each of which passes the log. `insert`, `remove` and `modify` of
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
    /// Shows the entry of `key` (`None`: absent or expired) to `change` and does what it says, as
    /// one step. As [`OrderedIndex::modify`](ordna_base::OrderedIndex::modify), which puts values
    /// that do not expire, and under the same rules. O(log n).
    ///
    /// # Errors
    /// Key or value too long, or the memory limit is reached: nothing is changed. Or
    /// [`Error::LogFailed`].
    pub fn modify_entry<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    {
        let engine = self.engine();
        self.change_entry(key, |found| reentry::deciding(engine, || change(found)))
    }

    /// [`modify_entry`](Self::modify_entry) with a closure of this crate, which does not use the
    /// store.
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

    /// Shows the entry of the first key (`None`: absent or expired) to `change`, and does to both keys
    /// what it says, as one step: every snapshot, and after a crash a store that was opened in a directory, holds
    /// both changes or none. The entry of the second key is not shown, so the caller knows it, or does not need to.
    /// A [`write_batch`](Self::write_batch) of two writes that depend on one of them, without a look before. The
    /// rules for `change` are those of [`modify_entry`](Self::modify_entry). The memory limit may refuse the
    /// first change, and then nothing is changed; it counts the second one, and does not refuse it. Readers
    /// of the latest state may see the first change before the second. O(log n).
    ///
    /// # Errors
    /// As [`modify_entry`](Self::modify_entry).
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

    /// [`modify_two`](Self::modify_two) without the log, of keys that were checked. Returns what was done.
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

    /// As [`modify_entry`](Self::modify_entry), but what `change` puts is a deadline for the value
    /// as it is (`None`: it does not expire). Of an absent key there is none to be put.
    ///
    /// If a snapshot keeps the version that had the former deadline, the new one is a copy. The memory
    /// limit refuses that of an entry of more than a KiB. It refuses nothing else, and may be exceeded:
    /// by a deadline's eight bytes or by the copy.
    ///
    /// # Errors
    /// Key too long, or the memory limit has no room for the copy: nothing is changed. Or
    /// [`Error::LogFailed`].
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

    /// Sets the value of `key`, which expires at `expires_at`, in milliseconds on the store's
    /// clock.
    ///
    /// # Errors
    /// As [`modify_entry`](Self::modify_entry).
    pub fn insert_until(&self, key: &K, value: &V, expires_at: u64) -> Result<(), Error> {
        let put = Put { value, expires_at: Some(expires_at) };
        self.change_entry(key, |_| Change::Put(put))
    }

    /// Sets or removes (`None`) the deadline of `key`; returns whether the key is present.
    ///
    /// # Errors
    /// As [`modify_expiry`](Self::modify_expiry).
    pub fn set_expiry(&self, key: &K, expires_at: Option<u64>) -> Result<bool, Error> {
        let mut present = false;
        self.modify_expiry(key, |found| {
            present = found.is_some();
            Change::Put(expires_at)
        })?;
        Ok(present)
    }

    /// Applies the writes in order. Every snapshot holds all of them or none. Readers of the latest
    /// state may see some before the others. O(log n) each; snapshots taken meanwhile are readable
    /// when it is done. After a crash, a store that was opened in a directory holds all or none.
    ///
    /// # Errors
    /// A key or value is too long, or the batch would exceed the memory limit (what it overwrites
    /// does not count against what it adds): nothing is applied. Or [`Error::LogFailed`].
    ///
    /// # Panics
    /// If the store's clock does. Then some of the writes may be applied, and the log refuses further
    /// ones until a backup.
    pub fn write_batch(&self, writes: &[Write<'_, K, V>]) -> Result<(), Error> {
        let Some(wal) = self.wal() else { return self.write_batch_unlogged(writes) };
        let keys: Vec<&K> = writes.iter().map(Write::key).collect();
        wal.write(&WrittenKeys::Keys(&keys), self, &mut |buffer| {
            self.write_batch_unlogged(writes)?;
            writes.iter().for_each(|write| write.record(buffer));
            Ok(())
        })
    }

    /// Applies the writes in order, each a step of its own. Keys and values were checked.
    ///
    /// # Errors
    /// The memory limit is reached, or [`Error::LogFailed`]: the writes before are done.
    pub(super) fn write_many(&self, writes: &[Write<'_, K, V>]) -> Result<WriteProgress, Error> {
        /// Writes that are recorded together.
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

    /// [`insert_many`](Self::insert_many) of pairs that are asked for once: what is checked is
    /// what is written.
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

    /// [`remove_many`](Self::remove_many). Keys beyond the limit are absent.
    pub(super) fn remove_keys<'a>(
        &self,
        keys: impl Iterator<Item = &'a K>,
    ) -> Result<usize, Error> {
        let keys = keys.filter(|key| key.check().is_ok());
        let writes: Vec<Write<'_, K, V>> = keys.map(Write::Remove).collect();
        Ok(self.write_many(&writes)?.present)
    }

    /// [`remove_range`](Self::remove_range).
    pub(crate) fn remove_within(&self, lower: Bound<&K>, upper: Bound<&K>) -> Result<usize, Error> {
        let Some(wal) = self.wal() else {
            return Ok(self.remove_range_unlogged(lower, upper));
        };
        if bounds_cross(lower, upper) {
            // Like any other write that changes nothing: refused if the log has failed.
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

    /// Runs `work`; after a crash, a store that was opened in a directory holds all writes of this
    /// thread in it, or none. No other thread writes meanwhile. Without a directory: only runs
    /// `work`. For readers and snapshots the writes stay single; [`write_batch`](Self::write_batch)
    /// joins them.
    ///
    /// # Errors
    /// [`Error::LogFailed`], before `work` ran or after. After it, the writes are in memory, and a
    /// [`successor`](Self::successor) that was made in it has the directory.
    pub fn log_group<R>(&self, work: impl FnOnce() -> R) -> Result<R, Error> {
        match self.wal() {
            Some(wal) => wal.group(work),
            None => Ok(work()),
        }
    }
}

/// The put that gives this entry.
pub(super) fn put_of<V: ?Sized>(found: Found<'_, V>) -> Put<&V> {
    Put { value: found.value, expires_at: found.expires_at }
}
