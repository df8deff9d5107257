//! Changes of single members of large sorted sets.
//!
//! As in [`single`](super::single), only the necessary entries are built: the entry of the member
//! by name, the one by score, and the head if the number of members changes.

use std::ops::{Bound, ControlFlow};

use ordna::checksum::crc32c;
use ordna::sync::fault;
use ordna::{Direction, Error, OrderedIndex, Put, Write};
use smallvec::SmallVec;

use super::collection::Effect;
use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::changes::{EntryKey, key_of};
use crate::keyspace::collections::head::Head;
use crate::keyspace::collections::key_locks::{commands, forget_outer, keep_outer, take_outer};
use crate::keyspace::collections::names::MOST_NAME;
use crate::keyspace::sorted_set::{ENTRY, Scored, ordered, score_of};
use crate::keyspace::stored_key::{KeyPrefix, elements_of, stored};
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;

/// Returns the key of a member by its name.
fn by_name(prefix: &KeyPrefix, member: &[u8]) -> EntryKey {
    key_of(&[prefix, b"m", &crc32c(member).to_be_bytes(), member])
}

/// Returns the key of a member by its score.
fn by_score(prefix: &KeyPrefix, score: f64, member: &[u8]) -> EntryKey {
    key_of(&[prefix, &[ENTRY], &ordered(score), member])
}

impl KeyspaceStore {
    /// Sets the score of a member of a large sorted set to the result of `decide`, which is called
    /// with the former score, or does nothing if that is `None`. Returns `None` if the key holds
    /// something else; the caller then uses a general write.
    ///
    /// # Errors
    /// Those of `decide`; the memory limit is reached, or the log has failed.
    pub fn set_score(
        &self,
        key: &[u8],
        member: &[u8],
        decide: impl FnOnce(Option<f64>) -> Result<Option<f64>, CommandError>,
    ) -> Result<Option<Effect>, CommandError> {
        if member.len() > MOST_NAME || !self.collections.may_be_large(key) {
            return Ok(None);
        }
        let _locked = self.collections.lock(key);
        let Some((head, expires_at)) = self.plain_head(key, ValueKind::ZSet) else {
            return Ok(None);
        };
        let prefix = elements_of(head.id);
        let by_name = by_name(&prefix, member);
        let former = self.store.get_with(&by_name[..], score_of);
        let Some(score) = decide(former)? else { return Ok(Some(Effect::Nothing)) };
        let present = by_score(&prefix, score, member);
        let former = former.map(|former| by_score(&prefix, former, member));
        let (value, stored_key) = (ordered(score), stored(key));
        let head_now = Head { count: head.count + 1, ..head }.fixed();
        let mut batch: SmallVec<[Write<'_, [u8], [u8]>; 3]> = SmallVec::new();
        batch.extend(former.as_ref().map(|former| Write::Remove(&former[..])));
        batch.push(Write::put(&by_name[..], &value[..]));
        batch.push(Write::put(&present[..], &[][..]));
        let is_new = former.is_none();
        if is_new && !fault!("collections.scored.counts") {
            batch.push(Write::Put(&*stored_key, Put { value: &head_now[..], expires_at }));
        }
        self.write_scored(head, &batch, 2 * i64::from(is_new), false)?;
        let gone = former.iter().map(|former| (&former[..], -1));
        let change = gone.chain([(&present[..], 1)]);
        self.collections.positions.change(&self.store, head.id, change);
        Ok(Some(Effect::Changed))
    }

    /// Removes and returns the member at an end of a large sorted set with its score, unless it is
    /// the last member. Returns `None` if nothing was done; the caller then uses a general write.
    ///
    /// # Errors
    /// The log has failed.
    pub fn pop_scored(&self, key: &[u8], direction: Direction) -> Result<Option<Scored>, Error> {
        if !self.collections.may_be_large(key) {
            return Ok(None);
        }
        let _locked = self.collections.lock_to_pop(key);
        let found = self.plain_head(key, ValueKind::ZSet).filter(|(head, _)| head.count > 1);
        let Some((head, expires_at)) = found else { return Ok(None) };
        let prefix = elements_of(head.id);
        let Some(entry) = self.outer_entry(&prefix, direction) else { return Ok(None) };
        let (score, member) = entry[prefix.len() + 1..].split_at_checked(8).unwrap_or_default();
        let (by_name, stored_key) = (by_name(&prefix, member), stored(key));
        let head_now = Head { count: head.count - 1, ..head }.fixed();
        let batch = [
            Write::Remove(&entry[..]),
            Write::Remove(&by_name[..]),
            Write::Put(&*stored_key, Put { value: &head_now[..], expires_at }),
        ];
        self.write_scored(head, &batch, -2, true).inspect_err(|_| forget_outer())?;
        self.collections.positions.change(&self.store, head.id, [(&entry[..], -1)].into_iter());
        Ok(Some((member.to_vec(), score_of(score))))
    }

    /// Returns the key of the member that is first or last by its score.
    fn outer_entry(&self, prefix: &KeyPrefix, direction: Direction) -> Option<EntryKey> {
        if let Some(entry) = take_outer(prefix, direction) {
            return Some(entry);
        }
        /// Maximum number of entries that are read at once if more pops will follow.
        const AHEAD: usize = 16;
        let limit = commands().min(AHEAD);
        let (lower, upper) = (key_of(&[prefix, &[ENTRY]]), key_of(&[prefix, &[ENTRY + 1]]));
        let bounds = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
        let mut found: SmallVec<[EntryKey; 1]> = SmallVec::new();
        self.store.scan_with(bounds, direction, limit, |key, _| {
            found.push(EntryKey::from_slice(key));
            if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if limit > 1 {
            let member = |entry: &EntryKey| {
                by_name(prefix, entry.get(prefix.len() + 1 + 8..).unwrap_or_default())
            };
            self.fetch(&found.iter().map(member).collect::<SmallVec<[_; AHEAD]>>());
            keep_outer(direction, found.drain(1.min(found.len())..).rev());
        }
        found.pop()
    }

    /// Prefetches the members with these names, if a key holds a large sorted set.
    pub fn fetch_members(&self, key: &[u8], names: &[&[u8]]) {
        let Some((head, _)) = self.plain_head(key, ValueKind::ZSet) else { return };
        let prefix = elements_of(head.id);
        let names = names.iter().map(|name| by_name(&prefix, name));
        self.fetch(&names.collect::<SmallVec<[_; 16]>>());
    }

    /// Prefetches entries.
    fn fetch(&self, keys: &[EntryKey]) {
        let keys: SmallVec<[&[u8]; 16]> = keys.iter().map(|key| &key[..]).collect();
        self.store.get_many_with(&keys, |_, _| ());
    }

    fn write_scored(
        &self,
        head: Head,
        batch: &[Write<'_, [u8], [u8]>],
        added: i64,
        forced: bool,
    ) -> Result<(), Error> {
        self.write_elements(batch, added, 0, forced).inspect_err(|error| {
            // The batch may still have been applied, so the blocks are rebuilt.
            if matches!(error, Error::LogFailed { .. }) {
                self.collections.positions.forget(head.id);
            }
        })
    }
}
