//! Writes at a position within a value: appends and overwrites of a part.

use std::borrow::Cow;

use super::engine::{Engine, Payment, StoreWrite, expiry};
use super::handle::Store;
use super::reentry;
use super::writes::put_of;
use crate::entry::{Found, Put};
use crate::tree::{Probe, Splice, Spliced, WriteCost, WriteScope};
use crate::wal::buffer::WrittenKeys;
use ordna_base::sync::notice;
use ordna_base::value::MAX_LEN;
use ordna_base::{Change, Error, Key};

/// The bytes that a splice has written, for the log.
struct Written<T> {
    splice: Splice<T>,
    /// The new length of the value.
    len: usize,
    /// Whether the key was absent. The value then consists of zeros and the written bytes.
    is_new: bool,
}

impl<K: Key + ?Sized> Engine<K, [u8]> {
    fn splice<T: AsRef<[u8]>>(
        &self,
        key: &K,
        scope: &WriteScope<'_>,
        mut decide: impl FnMut(Option<Found<'_, [u8]>>) -> Option<(usize, T)>,
    ) -> Result<Option<Written<T>>, Error> {
        loop {
            let (mut write, mut kept) = (StoreWrite::new(self, key, Payment::Due, ()), false);
            let decide_present = |value: &[u8], deadline| {
                if self.is_expired(deadline) {
                    return None;
                }
                let found = Found { value, expires_at: expiry(deadline) };
                let decided = decide(Some(found));
                kept = decided.is_none();
                decided.map(|(at, bytes)| Splice { at, bytes })
            };
            let prepare = |cost: WriteCost| {
                let needs = cost.grows.saturating_sub(cost.shrinks);
                // Even while the limit is lifted, spare room is taken only within it.
                if let Some(limit) = self.budget.limit()
                    && cost.room
                    && self.budget.used() + needs > limit
                {
                    return Err(Error::MemoryLimit { limit });
                }
                write.reserve(cost)
            };
            let probe = Probe::new(key);
            let done = self.tree.splice(&probe, scope, decide_present, prepare, || self.live())?;
            if let Some(Spliced { splice, len, outcome }) = done {
                write.commit(&outcome);
                return Ok(Some(Written { splice, len, is_new: false }));
            }
            if kept {
                return Ok(None);
            }
            // The entry is absent or expired: insert a new one, unless another thread inserts it
            // first.
            let (mut written, mut refused, mut came) = (None, None, false);
            self.apply::<Vec<u8>, _>(key, scope, Payment::Due, |found| {
                came = found.is_some();
                let Some((at, bytes)) = (if came { None } else { decide(None) }) else {
                    return Change::Keep;
                };
                let len = at.saturating_add(bytes.as_ref().len());
                if len > MAX_LEN {
                    refused = Some(Error::ValueTooLong { len });
                    return Change::Keep;
                }
                let value = [Cow::from(vec![0; at]), bytes.as_ref().into()].concat();
                written = Some(Written { splice: Splice { at, bytes }, len, is_new: true });
                Change::Put(Put::forever(value))
            })?;
            if let Some(refused) = refused {
                return Err(refused);
            }
            if !came {
                return Ok(written);
            }
        }
    }
}

impl<K: Key + ?Sized> Store<K, [u8]> {
    /// Appends to the value of `key`, which is created if it is absent, and returns the new length.
    /// A snapshot keeps the value as it was. Amortized O(log n) and the bytes appended: a value of
    /// 256 bytes or more that grows gets spare room of its own size, at most 1 MiB. Spare room
    /// counts against the memory limit.
    ///
    /// # Errors
    /// Those of [`modify_entry`](Self::modify_entry).
    ///
    /// ```
    /// let log: ordna::Store<[u8], [u8]> = ordna::Store::new();
    /// assert_eq!(log.append(b"today", b"sunny")?, 5);
    /// assert_eq!(log.append(b"today", b", then rain")?, 16);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn append(&self, key: &K, bytes: &[u8]) -> Result<usize, Error> {
        let at_end = |found: Option<Found<'_, [u8]>>| found.map_or(0, |found| found.value.len());
        let written = self.splice(key, |found| Some((at_end(found), bytes)))?;
        Ok(written.unwrap_or_default())
    }

    /// Calls `decide` with the entry of `key`, and writes the bytes that it returns at the position
    /// that it returns, as one step. `None` changes nothing. Returns the new length if it wrote. A
    /// gap between the end of the value and the position is filled with zeros. The deadline is
    /// kept. A write past the end costs as much as [`append`](Self::append); a write inside the
    /// value copies it, O(length). `decide` may run several times and runs under the lock of the
    /// key's leaf.
    ///
    /// # Errors
    /// Those of [`modify_entry`](Self::modify_entry).
    ///
    /// ```
    /// let notes: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// notes.put(1, "a red car")?;
    /// let len = notes.splice(&1, |found| found.map(|_| (2, "new")))?;
    /// assert_eq!((len, notes.get(1)), (Some(9), Some(b"a new car".to_vec())));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn splice<T: AsRef<[u8]>>(
        &self,
        key: &K,
        mut decide: impl FnMut(Option<Found<'_, [u8]>>) -> Option<(usize, T)>,
    ) -> Result<Option<usize>, Error> {
        key.check()?;
        let engine = self.engine();
        let mut decide =
            |found: Option<Found<'_, [u8]>>| reentry::deciding(engine, || decide(found));
        let Some(wal) = self.wal() else {
            return Ok(self.splice_unlogged(key, decide)?.map(|written| written.len));
        };
        let mut len = None;
        wal.write(&WrittenKeys::Key(key), self, &mut |buffer| {
            let written = self.splice_unlogged(key, |found| {
                let decided = decide(found);
                if notice!("live.splice.spills", decided.is_some()) {
                    buffer.was(key, found.map(put_of));
                }
                decided
            })?;
            let Some(Written { splice: Splice { at, bytes }, len: new, is_new }) = written else {
                return Ok(());
            };
            len = Some(new);
            if is_new {
                let value = [Cow::from(vec![0; at]), bytes.as_ref().into()].concat();
                buffer.put(key, Put::forever(value.as_slice()));
            } else {
                buffer.splice(key, at, bytes.as_ref());
            }
            Ok(())
        })?;
        Ok(len)
    }

    /// Works like [`splice`](Self::splice), without the log, for a validated key.
    fn splice_unlogged<T: AsRef<[u8]>>(
        &self,
        key: &K,
        mut decide: impl FnMut(Option<Found<'_, [u8]>>) -> Option<(usize, T)>,
    ) -> Result<Option<Written<T>>, Error> {
        self.within_limit(|engine| engine.writing(|scope| engine.splice(key, scope, &mut decide)))
    }
}
