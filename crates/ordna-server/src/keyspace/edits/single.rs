//! Changes of single elements of large hashes and sets.
//!
//! Most commands change one element. It is found and changed in one descent, and the head is
//! written in the same step if the number of elements changes. No further batch is built.

use ordna::checksum::crc32c;
use ordna::sync::{fault, notice, point};
use ordna::{Change, Error, Put};

use super::collection::{Edited, Effect};
use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::changes::key_of;
use crate::keyspace::collections::head::{Head, NEVER};
use crate::keyspace::collections::names::MOST_NAME;
use crate::keyspace::sample::Draws;
use crate::keyspace::stored_key::{elements_of, stored};
use crate::keyspace::value_kind::ValueKind;

/// The head of a large hash or set, and the deadline of its key.
pub(super) type FoundHead = (Head, Option<u64>);

impl KeyspaceStore {
    /// Sets a field of a large hash, or adds a member without a value to a large set. Returns
    /// whether it is new. Returns `None` if the key holds something else, or a hash with fields
    /// that expire; the caller then uses a general write.
    ///
    /// # Errors
    /// The memory limit is reached, or the log has failed.
    pub fn put_element(
        &self,
        key: &[u8],
        kind: ValueKind,
        name: &[u8],
        value: &[u8],
    ) -> Result<Option<Edited<bool>>, Error> {
        if name.len() > MOST_NAME || !self.collections.may_be_large(key) {
            return Ok(None);
        }
        let _locked = self.collections.lock(key);
        let Some(found) = self.plain_head(key, kind) else { return Ok(None) };
        let put = |is_there: bool| match is_there && kind == ValueKind::Set {
            true => Change::Keep,
            false => Change::Put(value),
        };
        self.change_element(key, found, name, put).map(Some)
    }

    /// Removes a field of a large hash or a member of a large set, unless it is the last one.
    /// Returns whether it was present, or `None` as in [`put_element`](Self::put_element).
    ///
    /// # Errors
    /// The log has failed.
    pub fn remove_element(
        &self,
        key: &[u8],
        kind: ValueKind,
        name: &[u8],
    ) -> Result<Option<Edited<bool>>, Error> {
        if name.len() > MOST_NAME || !self.collections.may_be_large(key) {
            return Ok(None);
        }
        let _locked = self.collections.lock(key);
        match self.plain_head(key, kind).filter(|(head, _)| head.count > 1) {
            Some(found) => self.change_element(key, found, name, |_| Change::Remove).map(Some),
            None => Ok(None),
        }
    }

    /// Removes and returns a random member of a large set, unless it is the last one. Returns
    /// `None` as in [`put_element`](Self::put_element).
    ///
    /// # Errors
    /// The log has failed.
    pub fn pop_member(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        if !self.collections.may_be_large(key) {
            return Ok(None);
        }
        let _locked = self.collections.lock(key);
        let found = self.plain_head(key, ValueKind::Set).filter(|(head, _)| head.count > 1);
        let Some((head, expires_at)) = found else { return Ok(None) };
        let mut draws = Draws::new();
        let Some((member, _)) = self.live(head).random_named(&mut |end| draws.below(end)) else {
            return Ok(None);
        };
        let done = self.change_element(key, (head, expires_at), &member, |_| Change::Remove)?;
        Ok(done.result.then_some(member))
    }

    /// Returns the head of a large set or sorted set, or of a large hash without fields that
    /// expire. The caller has locked the key.
    pub(super) fn plain_head(&self, key: &[u8], kind: ValueKind) -> Option<FoundHead> {
        let read = |put: Put<&[u8]>| Some((Head::read(put.value)?, put.expires_at));
        let found = self.get_entry_with(key, read).flatten();
        point("collections.head.read");
        found.filter(|(head, _)| head.kind == kind && head.soonest == NEVER)
    }

    /// Applies `change` to an element and updates the head. `change` is called with whether the
    /// element is present. The caller has locked the key. Returns whether the number of elements
    /// has changed.
    fn change_element<'v>(
        &self,
        key: &[u8],
        (head, expires_at): FoundHead,
        name: &[u8],
        change: impl Fn(bool) -> Change<&'v [u8]>,
    ) -> Result<Edited<bool>, Error> {
        let (stored_key, kind) = (stored(key), head.kind);
        let element = key_of(&[&elements_of(head.id), &crc32c(name).to_be_bytes(), name]);
        let heads = [-1, 0, 1].map(|by| {
            let count = head.count.saturating_add_signed(by);
            Head { count, ..head }.fixed()
        });
        let (mut effect, mut added) = (Effect::Nothing, 0);
        let done = self.store.modify_two([&element[..], &*stored_key], |found| {
            let is_there = found.is_some();
            let change = match change(is_there) {
                Change::Remove if !is_there => Change::Keep,
                change => change,
            };
            added = match change {
                Change::Put(_) => i64::from(!is_there),
                Change::Remove => -1,
                Change::Keep => 0,
            };
            let writes = !matches!(change, Change::Keep);
            effect = if writes { Effect::Changed } else { Effect::Nothing };
            let head = match added {
                -1 => &heads[0],
                0 => &heads[1],
                _ => &heads[2],
            };
            let writes_head = added != 0 && !fault!("collections.single.counts")
                || writes && self.logs_heads(kind);
            let change = match change {
                Change::Put(value) => Change::Put(Put::forever(value)),
                Change::Remove => Change::Remove,
                Change::Keep => Change::Keep,
            };
            match writes_head {
                true => [change, Change::Put(Put { value: &head[..], expires_at })],
                false => [change, Change::Keep],
            }
        });
        // If only the log fails, both stay in memory.
        let stays = || {
            let failed = matches!(done, Err(Error::LogFailed { .. }))
                && self.store.contains_key(&element[..]) == (added > 0);
            notice!("concurrent.log_failure.counts", failed)
        };
        if added != 0 && (done.is_ok() || stays()) {
            self.collections.reserved.add(added);
        }
        done.map(|()| Edited { result: added != 0, effect })
    }
}
