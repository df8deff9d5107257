//! Removal of large collections: a batch removes the head, and the elements are removed afterwards.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

use ordna::key::prefix_end;
use ordna::sync::{fault, notice, point};
use ordna::{Change, Direction, Error, OrderedIndex, Put, Write};

use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::head::{Head, NEVER};
use crate::keyspace::collections::large::{Large, Source};
use crate::keyspace::expiring_hash::{self, DeadlineMap};
use crate::keyspace::stored_key::{
    self, DEADLINES, REMOVALS, USER_END, is_deadline, removal, stored,
};
use crate::keyspace::stored_value;
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;

/// Maximum number of elements that one call removes; this takes some tenths of a millisecond.
const STRETCH: usize = 512;

/// The effect of the removal of expired fields on a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiredFields {
    /// Number of fields that were removed.
    pub count: usize,
    /// Whether no field is left, so that the key is removed, too.
    pub is_gone: bool,
}

impl KeyspaceStore {
    /// Removes or replaces the head of a locked key. The elements are removed later.
    pub(in crate::keyspace) fn replace_head(
        &self,
        key: &[u8],
        head: Head,
        former: Option<u64>,
        put: Option<Put<Vec<u8>>>,
    ) -> Result<(), Error> {
        let key = stored(key);
        let write = match &put {
            Some(put) => {
                Write::Put(&*key, Put { value: put.value.as_slice(), expires_at: put.expires_at })
            }
            None => Write::Remove(&*key),
        };
        self.write_with_removals(vec![write], &[(head, former)], 0, 0)
    }

    /// Writes a batch, with keys in their stored form, that removes or overwrites these heads,
    /// which are given with their deadlines. The batch itself adds `added` entries to the reserved
    /// space, of which `listed` are in the list of removals.
    pub(in crate::keyspace) fn write_with_removals(
        &self,
        batch: Vec<Write<'_, [u8], [u8]>>,
        gone: &[(Head, Option<u64>)],
        added: i64,
        listed: i64,
    ) -> Result<(), Error> {
        let removals: Vec<Vec<u8>> = gone.iter().map(|(head, _)| removal(head.id)).collect();
        let deadlines: Vec<Vec<u8>> =
            gone.iter().filter_map(|(head, at)| head.deadline_entry(*at)).collect();
        // Shortens the lifetime to that of the keys above.
        let mut batch: Vec<Write<'_, [u8], [u8]>> = batch;
        let only_removes = batch.iter().all(|write| matches!(write, Write::Remove(_)));
        batch.extend(removals.iter().map(|key| Write::put(key.as_slice(), &[][..])));
        batch.extend(deadlines.iter().map(|key| Write::Remove(key.as_slice())));
        let added = added + removals.len() as i64 - deadlines.len() as i64;
        // Also if only the log fails, because the batch may still have been applied.
        gone.iter().for_each(|(head, _)| self.collections.positions.forget(head.id));
        self.write_elements(&batch, added, listed + gone.len() as i64, only_removes)
    }

    /// Writes a batch that adds `added` entries to the reserved space, of which `listed` are in the
    /// list of removals. If `forced`, the memory limit does not refuse it.
    pub(in crate::keyspace) fn write_elements(
        &self,
        batch: &[Write<'_, [u8], [u8]>],
        added: i64,
        listed: i64,
        forced: bool,
    ) -> Result<(), Error> {
        self.ensure_layout()?;
        for write in batch {
            match write {
                Write::Put(key, _) if is_deadline(key) => self.collections.will_expire(),
                Write::Put(key, put) if *key < USER_END && Head::is_head(put.value) => {
                    self.collections.will_be_head(key);
                }
                _ => {}
            }
        }
        let done = match self.store.write_batch(batch) {
            Err(Error::MemoryLimit { .. }) if forced => {
                let _lifted = self.store.lift_limit();
                self.store.write_batch(batch)
            }
            done => done,
        };
        // If only the log fails, the batch stays in memory.
        let stays = || {
            let failed = matches!(done, Err(Error::LogFailed { .. })) && self.is_done(batch);
            notice!("concurrent.log_failure.counts", failed)
        };
        if done.is_ok() || stays() {
            self.collections.reserved.add(added);
            self.collections.removals.add(listed);
        }
        done
    }

    /// Returns whether the reserved entries are in the state after the batch.
    fn is_done(&self, batch: &[Write<'_, [u8], [u8]>]) -> bool {
        let mut reserved = batch.iter().filter(|write| write.key() >= USER_END);
        reserved.all(|write| match write {
            Write::Put(key, put) => {
                self.store.get_with(*key, |found| found == put.value) == Some(true)
            }
            Write::Remove(key) => !self.store.contains_key(*key),
        })
    }

    /// Sets or removes the deadline of a head that is stored as `value` and whose key the caller
    /// has locked.
    pub(in crate::keyspace) fn set_expiry_of_head(
        &self,
        key: &[u8],
        head: Head,
        value: &[u8],
        former: Option<u64>,
        expires_at: Option<u64>,
    ) -> Result<(), Error> {
        let stored_key = stored(key);
        let mut batch = vec![Write::Put(&*stored_key, Put { value, expires_at })];
        let former = head.deadline_entry(former);
        let present = head.deadline_entry(expires_at);
        let mut added = 0;
        if former != present {
            batch.extend(former.as_ref().map(|entry| Write::Remove(entry.as_slice())));
            batch.extend(present.as_ref().map(|entry| Write::put(entry.as_slice(), key)));
            added = i64::from(present.is_some()) - i64::from(former.is_some());
        }
        match self.write_elements(&batch, added, 0, false) {
            Err(Error::MemoryLimit { .. }) => {}
            done => return done,
        }
        // A snapshot may keep a copy of the former head. Such copies may exceed the limit only by a
        // bounded number of bytes.
        let is_kept = !self.store.statistics().snapshots.is_empty();
        if notice!("memory_limit.heads.are_bounded", is_kept) {
            let entries = present.as_ref().map_or(0, |entry| entry.len() + key.len());
            self.store.check_room_for_deadline(value.len() + 2 * (key.len() + entries))?;
        }
        self.write_elements(&batch, added, 0, true)
    }

    /// Moves a value of any form to another key. The caller excludes other commands.
    pub fn rename(
        &self,
        from: &[u8],
        to: &[u8],
        value: &[u8],
        expires_at: Option<u64>,
    ) -> Result<(), Error> {
        let (from, stored_to) = (stored(from), self.stored_to_write(to)?);
        let read = |put: Put<&[u8]>| Some((Head::read(put.value)?, put.expires_at));
        let gone = self.store.get_entry_with(&stored_to, read).flatten();
        let mut batch =
            vec![Write::Put(&*stored_to, Put { value, expires_at }), Write::Remove(&*from)];
        // The entry of its deadline must name the new key.
        let moved = Head::read(value).filter(|_| !fault!("expiry_tests.rename.moves_deadline"));
        let moved = moved.and_then(|head| head.deadline_entry(expires_at));
        batch.extend(moved.as_ref().map(|entry| Write::put(entry.as_slice(), to)));
        self.write_with_removals(batch, gone.as_slice(), 0, 0)
    }

    /// Removes expired fields, and adds the ids of expired heads to the list of removals. The
    /// number of both is bounded in each call. Calls `report` with each key that has lost fields.
    /// Returns whether there may be more.
    ///
    /// # Errors
    /// The log has failed.
    pub fn remove_expired(
        &self,
        mut report: impl FnMut(&[u8], ExpiredFields),
    ) -> Result<bool, CommandError> {
        const MOST: usize = 64;
        let (now, mut due) = (self.store.now(), Vec::new());
        self.store.scan_with(DEADLINES, Direction::Ascending, MOST, |entry, key| {
            match stored_key::of_deadline(entry) {
                Some((at, id)) if at <= now => due.push((entry.to_vec(), id, key.to_vec())),
                _ => return ControlFlow::Break(()),
            }
            ControlFlow::Continue(())
        });
        let (is_full, mut left) = (due.len() == MOST, STRETCH);
        for (entry, id, key) in due {
            let locked = self.collections.lock(&key);
            // The entry may have been replaced in the meantime.
            if !self.store.contains_key(&entry) {
                continue;
            }
            let read = |put: Put<&[u8]>| {
                let inline = Head::inline(put.value).map(<[u8]>::to_vec);
                Some((Head::read(put.value)?, inline, put.expires_at))
            };
            let found = self.store.get_entry_with(&stored(&key), read).flatten();
            if let Some((head, inline, expires_at)) = found.filter(|(head, ..)| head.id == id) {
                // Otherwise the key itself expires, and by its clock it has not yet.
                if head.soonest <= now {
                    let inline = inline.as_deref();
                    let expired = self.expire_fields(&key, head, inline, expires_at, now)?;
                    drop(locked);
                    if expired.count > 0 {
                        report(&key, expired);
                    }
                    left = left.saturating_sub(expired.count.max(1));
                    if left == 0 {
                        return Ok(true);
                    }
                }
                continue;
            }
            let (removal, key) = (removal(id), stored(&key));
            let mut batch =
                vec![Write::Remove(entry.as_slice()), Write::put(removal.as_slice(), &[][..])];
            if notice!("concurrent.expired.is_logged", !self.store.contains_key(&key)) {
                // Expiry is not logged. A start whose clock is behind would find a head without
                // elements and could assign its id to another collection.
                batch.push(Write::Remove(&*key));
            }
            self.collections.positions.forget(id);
            self.write_elements(&batch, 0, 1, true)?;
        }
        Ok(is_full)
    }

    /// Removes fields of a hash that have expired at a time, in a large hash at most [`STRETCH`],
    /// and updates the time of the next one. The key is locked.
    fn expire_fields(
        &self,
        key: &[u8],
        head: Head,
        inline: Option<&[u8]>,
        expires_at: Option<u64>,
        now: u64,
    ) -> Result<ExpiredFields, CommandError> {
        let mut large = self.live(head);
        let mut count = 0;
        match inline {
            None => {
                let due = large.due_fields(now, STRETCH);
                for (_, part) in &due.fields {
                    large.set_deadline_of_part(part, None);
                    large.remove(&[part.as_slice()]);
                    large.head.count = large.head.count.saturating_sub(1);
                }
                count = due.fields.len();
                large.head.soonest = due.next;
                self.write_large(key, Some(head), expires_at, &large, false)?;
            }
            Some(inline) => {
                let Some((hash, deadlines)) = expiring_hash::read(inline) else {
                    return Ok(ExpiredFields { count, is_gone: false });
                };
                let record = expiring_hash::shown(hash, deadlines, now);
                let left = deadlines.iter().filter(|(_, deadline)| *deadline > now);
                let left = left.map(|(field, deadline)| (field.to_vec(), deadline)).collect();
                let len = stored_value::elements(&record);
                count = hash.len().saturating_sub(len);
                self.write_small(key, Some(head), expires_at, (&record, len), &left, false)?;
                large.head.count = len as u64;
            }
        }
        Ok(ExpiredFields { count, is_gone: large.head.count == 0 })
    }

    /// Replaces the head `before` of a locked key by a small hash, a record of `len` fields. It
    /// gets a head if some field expires.
    pub(super) fn write_small(
        &self,
        key: &[u8],
        before: Option<Head>,
        expires_at: Option<u64>,
        (record, len): (&[u8], usize),
        deadlines: &DeadlineMap,
        grows: bool,
    ) -> Result<(), CommandError> {
        let id = before.map_or_else(|| self.collections.new_id(), |head| head.id);
        let soonest = expiring_hash::soonest(deadlines);
        if soonest == NEVER && len > 0 {
            let (stored_key, entry) =
                (stored(key), before.and_then(|head| head.deadline_entry(expires_at)));
            let mut batch = vec![Write::Put(&*stored_key, Put { value: record, expires_at })];
            batch.extend(entry.as_ref().map(|entry| Write::Remove(entry.as_slice())));
            self.write_elements(&batch, -i64::from(entry.is_some()), 0, !grows)?;
            return Ok(());
        }
        let head = Head { count: len as u64, soonest, ..Head::new(ValueKind::Hash, id) };
        let mut small = Large::new(Source::New, head);
        small.inline = Some(expiring_hash::stored(record, deadlines));
        self.write_large(key, before, expires_at, &small, grows)
    }

    /// Returns whether there are removed collections with elements that are still to be removed.
    pub fn has_removals(&self) -> bool {
        self.collections.removals.sum() != 0
    }

    /// Removes some elements of a removed collection. Returns their number, or 0 if none are left.
    ///
    /// # Errors
    /// The log has failed.
    pub fn remove_elements(&self) -> Result<usize, Error> {
        if !self.has_removals() {
            return Ok(0);
        }
        let _one = self.collections.removing.lock();
        let mut next = None;
        let unfinished = self.collections.unfinished();
        self.store.scan_with(REMOVALS, Direction::Ascending, 1 + unfinished.len(), |entry, _| {
            next = stored_key::of_removal(entry).filter(|id| !unfinished.contains(id));
            if next.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        drop(unfinished);
        let Some(id) = next else { return Ok(0) };
        let (mut removed, mut is_last) = (0, true);
        let prefixes = [
            stored_key::elements_of(id),
            stored_key::deadlines_of_fields(id),
            stored_key::fields_by_deadline(id),
        ];
        for prefix in &prefixes {
            let end = prefix_end(prefix);
            let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let (mut met, mut first, mut last) = (removed, None, None);
            let bounds = (Bound::Included(prefix.as_slice()), upper);
            self.store.scan_with(bounds, Direction::Ascending, STRETCH, |key, _| {
                met += 1;
                first.get_or_insert_with(|| key.to_vec());
                if met < STRETCH {
                    return ControlFlow::Continue(());
                }
                last = Some(key.to_vec());
                ControlFlow::Break(())
            });
            if let Some(first) = first {
                point("collections.removal.stretch");
                let upper = last.as_deref().map_or(upper, Bound::Included);
                let done = self.store.remove_range((bounds.0, upper));
                // If only the log fails, they are still removed from memory.
                if done.is_ok() || !self.store.contains_key(&first) {
                    self.collections.reserved.add(removed as i64 - met as i64);
                }
                done?;
                removed = met;
            }
            is_last = last.is_none();
            if !is_last {
                break;
            }
        }
        if notice!("collections.removal.ends", is_last) {
            point("collections.removal.entry");
            let entry = removal(id);
            let done = self.store.modify_entry::<Cow<'_, [u8]>, _>(&entry, |_| Change::Remove);
            if !self.store.contains_key(&entry) {
                self.collections.reserved.add(-1);
                self.collections.removals.add(-1);
            }
            done?;
        }
        Ok(removed.max(1))
    }
}
