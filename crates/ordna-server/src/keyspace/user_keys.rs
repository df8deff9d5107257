//! Operations on user keys: those of the store, with keys in the form in which users name them.
//!
//! # Large collections
//! The head of a large collection is written only under the lock of its key (see
//! [`collections`](super::collections)). So a write here that would overwrite or remove a head
//! first declines. It is then repeated under that lock, and its batch passes the elements to the
//! background removal. Writes of other values take no lock and cost one comparison of two bytes. If
//! a large collection has a deadline, or has had one, writes of absent keys take the lock as well,
//! because the key may hold an expired head.

use std::borrow::{Borrow, Cow};
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};

use ordna::index::bounds_cross;
use ordna::sync::{check, notice, point};
use ordna::{Change, Direction, Error, Found, OrderedIndex, Put, Write};

use super::KeyspaceStore;
use super::collections::head::{Head, NEVER};
use super::stored_key::{self, Visit, borrowed, stored, stored_bounds};

/// A key and its value in its stored form.
pub type Entry = (Vec<u8>, Vec<u8>);

// The store's operations are compiled for each type of closure, which takes long and makes the
// binary large. So the many closures of commands are passed as trait objects, except in reads of
// one key.

/// A function that decides on a write.
type Decide<'a, T> = dyn FnMut(Option<Found<'_, [u8]>>) -> Change<Put<T>> + 'a;
/// Visits keys and values with deadlines.
pub type VisitEntries<'a> = dyn FnMut(&[u8], Put<&[u8]>) -> ControlFlow<()> + 'a;

impl KeyspaceStore {
    /// Stores the version of the layout before an entry that needs it.
    pub(super) fn ensure_layout(&self) -> Result<(), Error> {
        if self.collections.has_layout() { Ok(()) } else { self.store_layout() }
    }

    /// Returns the stored form of a user key that is about to be written.
    #[inline]
    pub(super) fn stored_to_write<'k>(&self, key: &'k [u8]) -> Result<Cow<'k, [u8]>, Error> {
        let key = stored(key);
        if matches!(key, Cow::Owned(_)) {
            self.ensure_layout()?;
        }
        Ok(key)
    }

    /// Works like [`OrderedIndex::get_with`], for user keys.
    #[inline]
    pub fn get_with<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.store.get_with(&stored(key), read)
    }

    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.store.contains(&stored(key))
    }

    /// Works like [`ordna::Store::get_entry_with`], for user keys.
    pub fn get_entry_with<R>(&self, key: &[u8], read: impl FnOnce(Put<&[u8]>) -> R) -> Option<R> {
        self.store.get_entry_with(&stored(key), read)
    }

    /// Works like [`OrderedIndex::get_many_with`], for user keys.
    pub fn get_many_with(&self, keys: &[&[u8]], each: impl FnMut(usize, Option<&[u8]>)) {
        if keys.iter().all(|key| matches!(stored(key), Cow::Borrowed(_))) {
            return self.store.get_many_with(keys, each);
        }
        let keys: Vec<Cow<'_, [u8]>> = keys.iter().map(|key| stored(key)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        self.store.get_many_with(&keys, each);
    }

    /// Returns the deadline of a key, if it is present.
    pub fn expiry(&self, key: &[u8]) -> Option<Option<u64>> {
        self.store.expiry(&stored(key))
    }

    /// Returns the earliest deadline of a key and its fields, if there is any.
    pub fn next_deadline(&self, key: &[u8]) -> Option<u64> {
        self.get_entry_with(key, next_deadline).flatten()
    }

    /// Returns whether a key has expired fields that are not removed yet. After a field has lost
    /// its deadline, the result may briefly be wrong.
    pub fn has_expired_fields(&self, key: &[u8]) -> bool {
        let head = self.get_with(key, Head::read).flatten();
        let expired = head.is_some_and(|head| head.soonest != NEVER && head.soonest <= self.now());
        notice!("field_expiry.exec_fails", expired)
    }

    /// Returns the number of user keys. Exact while no user key is written, whatever elements are
    /// written or removed.
    pub fn approximate_len(&self) -> usize {
        self.store.len_below().unwrap_or_default()
    }

    /// Works like [`ordna::Store::modify_entry`], for user keys.
    #[inline]
    pub fn modify_entry<T: Borrow<[u8]>>(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<Found<'_, [u8]>>) -> Change<Put<T>>,
    ) -> Result<(), Error> {
        let mut declines = false;
        let mut decide = |found: Option<Found<'_, [u8]>>| {
            let change = change(found);
            declines = match (&change, found) {
                (Change::Keep, _) | (Change::Remove, None) => false,
                (_, Some(found)) => {
                    notice!("collections.overwrite.declines", Head::is_head(found.value))
                }
                // The key may hold an expired head that a command, which has read it earlier, is
                // changing.
                (Change::Put(_), None) => {
                    notice!("concurrent.expired.declines", self.collections.may_expire())
                }
            };
            if declines { Change::Keep } else { change }
        };
        let decide: &mut Decide<'_, T> = &mut decide;
        match self.store.modify_entry(&self.stored_to_write(key)?, decide) {
            // No stored key is that long, so a change that would not write finds no value.
            Err(Error::KeyTooLong { .. }) if !matches!(change(None), Change::Put(_)) => {
                return Ok(());
            }
            done => done?,
        }
        if declines { self.modify_head_entry(key, &mut change) } else { Ok(()) }
    }

    /// Works like [`modify_entry`](Self::modify_entry), for a key that holds, or held, the head of
    /// a large collection.
    #[cold]
    fn modify_head_entry<T: Borrow<[u8]>>(
        &self,
        key: &[u8],
        change: &mut Decide<'_, T>,
    ) -> Result<(), Error> {
        let _locked = self.collections.lock(key);
        let mut removed = None;
        self.store.modify_entry(&stored(key), |found| {
            let change = change(found);
            let head = found.and_then(|found| Some((Head::read(found.value)?, found.expires_at)));
            let Some((head, expires_at)) = head.filter(|_| !matches!(change, Change::Keep)) else {
                return change;
            };
            let put = match change {
                Change::Put(Put { value, expires_at }) => {
                    Some(Put { value: value.borrow().to_vec(), expires_at })
                }
                Change::Remove | Change::Keep => None,
            };
            removed = Some((head, expires_at, put));
            Change::Keep
        })?;
        // While the lock is held, no other thread changes the head.
        match removed {
            Some((head, expires_at, put)) => self.replace_head(key, head, expires_at, put),
            None => Ok(()),
        }
    }

    /// Works like [`ordna::Store::modify_expiry`], for user keys.
    pub fn modify_expiry(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<Found<'_, [u8]>>) -> Change<Option<u64>>,
    ) -> Result<(), Error> {
        let mut is_head = false;
        let done = self.store.modify_expiry(&stored(key), |found| {
            let change = change(found);
            is_head = !matches!(change, Change::Keep)
                && found.is_some_and(|found| Head::is_head(found.value));
            if is_head { Change::Keep } else { change }
        });
        if let Err(Error::KeyTooLong { .. }) = done {
            // No stored key is that long, so the key is absent.
            _ = change(None);
            return Ok(());
        }
        done?;
        if !is_head {
            return Ok(());
        }
        let _locked = self.collections.lock(key);
        let mut decided = None;
        self.store.modify_expiry(&stored(key), |found| {
            let change = change(found);
            let head = found.and_then(|found| Some((Head::read(found.value)?, found)));
            let Some((head, found)) = head.filter(|_| !matches!(change, Change::Keep)) else {
                return change;
            };
            decided = Some((head, found.value.to_vec(), found.expires_at, change));
            Change::Keep
        })?;
        point("collections.head.read");
        match decided {
            Some((head, value, former, Change::Put(expires_at))) => {
                self.set_expiry_of_head(key, head, &value, former, expires_at)
            }
            Some((head, _, former, _)) => self.replace_head(key, head, former, None),
            None => Ok(()),
        }
    }

    /// Works like [`ordna::Store::splice`], for user keys. `decide` declines everything that is not
    /// a string, so it is never applied to a head.
    pub fn splice<T: AsRef<[u8]>>(
        &self,
        key: &[u8],
        decide: impl FnMut(Option<Found<'_, [u8]>>) -> Option<(usize, T)>,
    ) -> Result<Option<usize>, Error> {
        self.store.splice(&stored(key), decide)
    }

    /// Works like [`ordna::Store::write_batch`], for user keys. The caller excludes other commands.
    pub fn write_batch(&self, writes: &[Write<'_, [u8], [u8]>]) -> Result<(), Error> {
        let is_plain = |write: &Write<'_, [u8], [u8]>| {
            let key = stored(write.key());
            let may_be_head = self.collections.may_be_head(&key);
            matches!(key, Cow::Borrowed(_)) && check!("collections.batch.looks", !may_be_head)
        };
        if writes.iter().all(is_plain) {
            return self.store.write_batch(writes);
        }
        let keys = writes.iter().map(|write| self.stored_to_write(write.key()));
        let keys = keys.collect::<Result<Vec<Cow<'_, [u8]>>, Error>>()?;
        let mut gone: Vec<(Head, Option<u64>)> = Vec::new();
        // Writes may name a key more than once.
        let mut ids = HashSet::new();
        let mut batch = Vec::with_capacity(writes.len());
        for (write, key) in writes.iter().zip(&keys) {
            let head = |put: Put<&[u8]>| Some((Head::read(put.value)?, put.expires_at));
            if self.collections.may_be_head(key)
                && let Some(head) = self.store.get_entry_with(key, head).flatten()
                && ids.insert(head.0.id)
            {
                gone.push(head);
            }
            batch.push(match write {
                Write::Put(_, put) => Write::Put(&**key, *put),
                Write::Remove(_) => Write::Remove(&**key),
            });
        }
        if gone.is_empty() {
            self.store.write_batch(&batch)
        } else {
            self.write_with_removals(batch, &gone, 0, 0)
        }
    }

    /// Works like [`ordna::Store::remove_range`], for user keys.
    pub fn try_remove_range(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<usize, Error> {
        let (lower, upper) = stored_bounds(lower, upper);
        let (lower, upper) = (borrowed(&lower), borrowed(&upper));
        if bounds_cross(lower, upper) {
            return Ok(0);
        }
        let mut heads = Vec::new();
        if self.collections.has_large() {
            self.store.visit(lower, upper, Direction::Ascending, |key, value| {
                if Head::is_head(value) {
                    heads.push(key.to_vec());
                }
                ControlFlow::Continue(())
            });
        }
        // No head is created concurrently, because that requires the exclusive lock.
        let mut removed = 0;
        for key in heads {
            let mut was_there = false;
            self.modify_entry::<&[u8]>(&stored_key::user(&key), |found| {
                was_there = found.is_some();
                Change::Remove
            })?;
            removed += usize::from(was_there);
        }
        Ok(removed + self.store.remove_range((lower, upper))?)
    }

    /// Works like [`OrderedIndex::scan_with`], for user keys and bounds that may cross.
    pub fn scan_with(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        let (lower, upper) = stored_bounds(lower, upper);
        let (lower, upper) = (borrowed(&lower), borrowed(&upper));
        if !bounds_cross(lower, upper) {
            let visit: &mut Visit<'_> = &mut |key, value| visit(&stored_key::user(key), value);
            self.store.scan_with((lower, upper), direction, limit, visit);
        }
    }

    /// Visits the entries within the bounds until `visit` breaks.
    pub fn visit(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        self.scan_with((lower, upper), direction, usize::MAX, visit);
    }

    /// Returns the entry within the bounds that comes first in this direction.
    pub fn nearest(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
    ) -> Option<Entry> {
        let mut found = None;
        self.scan_with((lower, upper), direction, 1, |key, value| {
            found = Some((key.to_vec(), value.to_vec()));
            ControlFlow::Break(())
        });
        found
    }

    pub fn first(&self) -> Option<Entry> {
        self.nearest(Bound::Unbounded, Bound::Unbounded, Direction::Ascending)
    }

    pub fn last(&self) -> Option<Entry> {
        self.nearest(Bound::Unbounded, Bound::Unbounded, Direction::Descending)
    }

    pub fn floor(&self, key: &[u8]) -> Option<Entry> {
        self.nearest(Bound::Unbounded, Bound::Included(key), Direction::Descending)
    }

    pub fn ceiling(&self, key: &[u8]) -> Option<Entry> {
        self.nearest(Bound::Included(key), Bound::Unbounded, Direction::Ascending)
    }

    /// Works like [`ordna::Store::on_expiry`], for user keys.
    pub fn on_expiry(&self, report: impl Fn(&[u8]) + Send + Sync + 'static) {
        // A keyspace registers only once.
        let _ = self.store.on_expiry(move |key: &[u8]| report(&stored_key::user(key)));
    }

    /// Returns the user keys that expire next. Elements have no deadline.
    pub fn next_to_expire(&self, limit: usize) -> Vec<Vec<u8>> {
        let keys = self.store.next_to_expire(limit);
        keys.iter().map(|key| stored_key::user(key).into_owned()).collect()
    }

    /// Returns user keys that divide all user keys into about `parts` parts of about the same size.
    pub fn partition_points(&self, parts: usize) -> Vec<Vec<u8>> {
        let users = self.approximate_len().max(1);
        let all = self.store.approximate_len().max(users);
        // The store's points are distributed over the elements, too.
        let wanted = parts.saturating_mul(all.div_ceil(users)).min(parts.max(MOST_POINTS));
        let points = self.store.partition_points(wanted);
        let users = points.iter().filter(|key| key.as_slice() < stored_key::USER_END);
        users.map(|key| stored_key::user(key).into_owned()).collect()
    }
}

/// Returns the earliest deadline of an entry and its fields, if there is any.
pub fn next_deadline(entry: Put<&[u8]>) -> Option<u64> {
    match Head::read(entry.value) {
        Some(head) => head.next_deadline(entry.expires_at),
        None => entry.expires_at,
    }
}

/// Maximum number of partition points that are requested beyond the number that a caller wants.
/// That many take some milliseconds.
const MOST_POINTS: usize = 1 << 14;
