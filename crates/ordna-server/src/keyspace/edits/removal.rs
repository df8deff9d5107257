//! Removal of large collections: the batch that removes a head, and the removal of its elements behind it.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

use ordna::key::prefix_end;
use ordna::sync::{fault, notice};
use ordna::{Direction, Error, OrderedIndex, Put, Write};

use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::head::Head;
use crate::keyspace::stored_key::{self, DEADLINES, REMOVALS, deadline, removal, stored};

/// Elements that one call removes at most: some tenths of a millisecond.
const STRETCH: usize = 512;

impl KeyspaceStore {
    /// Removes or replaces the head of a key, which the caller has locked. The elements follow.
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
        self.write_with_removals(vec![write], &[(head, former)], 0)
    }

    /// Writes a batch, whose keys are in their stored form, that removes or overwrites these heads. Each
    /// comes with its deadline. The batch itself adds `added` entries to the reserved space.
    pub(in crate::keyspace) fn write_with_removals(
        &self,
        batch: Vec<Write<'_, [u8], [u8]>>,
        gone: &[(Head, Option<u64>)],
        added: i64,
    ) -> Result<(), Error> {
        let removals: Vec<Vec<u8>> = gone.iter().map(|(head, _)| removal(head.id)).collect();
        let deadlines: Vec<Vec<u8>> =
            gone.iter().filter_map(|(head, at)| Some(deadline((*at)?, head.id))).collect();
        // With the shorter lifetime of the keys above.
        let mut batch: Vec<Write<'_, [u8], [u8]>> = batch;
        let only_removes = batch.iter().all(|write| matches!(write, Write::Remove(_)));
        batch.extend(removals.iter().map(|key| Write::put(key.as_slice(), &[][..])));
        batch.extend(deadlines.iter().map(|key| Write::Remove(key.as_slice())));
        let added = added + removals.len() as i64 - deadlines.len() as i64;
        self.write_elements(&batch, added, only_removes)?;
        self.collections.removals.add(gone.len() as i64);
        gone.iter().for_each(|(head, _)| self.collections.positions.forget(head.id));
        Ok(())
    }

    /// Writes a batch that adds `added` entries to the reserved space. `forced`: the memory limit does not
    /// refuse it.
    pub(in crate::keyspace) fn write_elements(
        &self,
        batch: &[Write<'_, [u8], [u8]>],
        added: i64,
        forced: bool,
    ) -> Result<(), Error> {
        self.ensure_layout()?;
        match self.store.write_batch(batch) {
            Err(Error::MemoryLimit { .. }) if forced => {
                let _lifted = self.store.lift_limit();
                self.store.write_batch(batch)?;
            }
            Err(error @ Error::LogFailed { .. }) => {
                // The batch may be done although it is not in the log: count again.
                let (counted, known) = (self.count_reserved(), self.collections.reserved.sum());
                self.collections.reserved.add(counted as i64 - known as i64);
                return Err(error);
            }
            done => done?,
        }
        self.collections.reserved.add(added);
        Ok(())
    }

    /// Sets or lifts the deadline of a head, whose key the caller has locked.
    pub(in crate::keyspace) fn set_expiry_of_head(
        &self,
        key: &[u8],
        head: Head,
        former: Option<u64>,
        expires_at: Option<u64>,
    ) -> Result<(), Error> {
        let (stored_key, value) = (stored(key), head.stored());
        let mut batch = vec![Write::Put(&*stored_key, Put { value: &value[..], expires_at })];
        let former = former.map(|at| deadline(at, head.id));
        let present = expires_at.map(|at| deadline(at, head.id));
        batch.extend(former.as_ref().map(|entry| Write::Remove(entry.as_slice())));
        batch.extend(present.as_ref().map(|entry| Write::put(entry.as_slice(), key)));
        let added = i64::from(present.is_some()) - i64::from(former.is_some());
        self.write_elements(&batch, added, true)
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
        // The entry of its deadline names the new key.
        let moved = Head::read(value).filter(|_| !fault!("collections.rename.moves_deadline"));
        let moved = moved.zip(expires_at).map(|(head, at)| deadline(at, head.id));
        batch.extend(moved.as_ref().map(|entry| Write::put(entry.as_slice(), to)));
        self.write_with_removals(batch, gone.as_slice(), 0)
    }

    /// Adds the ids of heads that have expired to the list of removals, some at a time. Returns whether
    /// there may be more.
    ///
    /// # Errors
    /// The log has failed.
    pub fn remove_expired_heads(&self) -> Result<bool, Error> {
        const MOST: usize = 64;
        let (now, mut due) = (self.store.now(), Vec::new());
        self.store.scan_with(DEADLINES, Direction::Ascending, MOST, |entry, key| {
            match stored_key::of_deadline(entry) {
                Some((at, id)) if at <= now => due.push((entry.to_vec(), id, key.to_vec())),
                _ => return ControlFlow::Break(()),
            }
            ControlFlow::Continue(())
        });
        let is_full = due.len() == MOST;
        for (entry, id, key) in due {
            let _locked = self.collections.lock(&key);
            // The entry may be another one by now.
            if !self.store.contains(&entry) {
                continue;
            }
            let head = self.store.get_with(&stored(&key), Head::read).flatten();
            if head.is_some_and(|head| head.id == id) {
                // By the clock of the key it has not expired.
                continue;
            }
            let removal = removal(id);
            let batch = [Write::Remove(entry.as_slice()), Write::put(removal.as_slice(), &[][..])];
            self.write_elements(&batch, 0, true)?;
            self.collections.positions.forget(id);
            self.collections.removals.add(1);
        }
        Ok(is_full)
    }

    /// Removes some elements of a collection that is being removed. Returns their number, 0 if there is
    /// none left.
    ///
    /// # Errors
    /// The log has failed.
    pub fn remove_elements(&self) -> Result<usize, Error> {
        if self.collections.removals.sum() == 0 {
            return Ok(0);
        }
        let mut next = None;
        self.store.scan_with(REMOVALS, Direction::Ascending, 1, |entry, _| {
            next = stored_key::of_removal(entry);
            ControlFlow::Break(())
        });
        let Some(id) = next else { return Ok(0) };
        let prefix = stored_key::elements_of(id);
        let end = prefix_end(&prefix);
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (mut met, mut last) = (0, None);
        let bounds = (Bound::Included(prefix.as_slice()), upper);
        self.store.scan_with(bounds, Direction::Ascending, STRETCH, |key, _| {
            met += 1;
            if met < STRETCH {
                return ControlFlow::Continue(());
            }
            last = Some(key.to_vec());
            ControlFlow::Break(())
        });
        let removed = match met {
            0 => 0,
            _ => {
                let upper = last.as_deref().map_or(upper, Bound::Included);
                self.store.try_remove_range(bounds.0, upper)?
            }
        };
        self.collections.reserved.add(-(removed as i64));
        if notice!("collections.removal.ends", last.is_none()) {
            // Two tasks may do this at once.
            let entry = removal(id);
            let mut was_there = false;
            self.store.modify_entry::<Cow<'_, [u8]>, _>(&entry, |found| {
                was_there = found.is_some();
                ordna::Change::Remove
            })?;
            if was_there {
                self.collections.reserved.add(-1);
                self.collections.removals.add(-1);
            }
        }
        Ok(removed.max(1))
    }
}
