//! Reads and changes of collections in both forms: small, in one record, and large, in many
//! entries.

use std::ops::Bound;

use ordna::sync::point;
use ordna::{Change, Found, Put, Write};
use smallvec::SmallVec;

use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::Body;
use crate::keyspace::collections::ends::Ends;
use crate::keyspace::collections::head::{Head, NEVER};
use crate::keyspace::collections::large::{Large, Source};
use crate::keyspace::collections::packed::Packed;
use crate::keyspace::list::End;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::sorted_set;
use crate::keyspace::stored_key::{self, stored};
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;

/// Number of entries above which a collection that loses its last elements is removed in the
/// background.
const AT_ONCE: usize = 512;

type Result<T> = std::result::Result<T, CommandError>;

/// What a change did to the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// The key did not exist before.
    Made,
    Changed,
    Removed,
}

/// The outcome of a change: the result of `change`, and its effect on the key.
#[derive(Debug)]
pub struct Edited<R> {
    pub result: R,
    pub effect: Effect,
}

/// A large collection that was changed on a snapshot.
#[derive(Debug)]
pub struct Changed<'a> {
    pub before: Head,
    pub expires_at: Option<u64>,
    pub large: Large<'a>,
}

/// What an attempt to change a small collection found.
pub(super) enum Attempt<R> {
    Done(Edited<R>),
    /// The collection is large: its head must be changed under the lock of its key.
    IsLarge,
    /// The collection would become larger than a record may be.
    Grows,
}

/// The small form of a collection, which is stored in one record.
pub trait SmallForm: Sized {
    /// Adds the elements to a large collection.
    fn spread(&self, into: &mut Large<'_>);
}

impl SmallForm for Packed {
    fn spread(&self, into: &mut Large<'_>) {
        match self.kind {
            ValueKind::ZSet => self.iter().for_each(|entry| {
                sorted_set::spread(entry, into);
            }),
            ValueKind::List => self.iter().for_each(|value| into.push_value(value, End::Back)),
            _ => self.iter().for_each(|member| into.put_named(member, &[], true)),
        }
        into.head.count = self.len() as u64;
    }
}

impl KeyspaceStore {
    /// Calls `read` with the collection of a key, or returns `None` if the key is absent. If the
    /// collection is large, `read` runs under the lock of the key.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn read_collection<R>(
        &self,
        key: &[u8],
        kind: ValueKind,
        read: impl FnOnce(&Body<'_>) -> R,
    ) -> Result<Option<R>> {
        let mut read = Some(read);
        let small = |stored: &[u8]| -> Result<Option<R>> {
            if ValueKind::of(stored) != kind {
                return Err(CommandError::WrongType);
            }
            let packed = Packed::read(stored);
            let body = packed.map(Body::Packed);
            Ok(body.and_then(|body| read.take().map(|read| read(&body))))
        };
        if !self.collections.may_be_large(key) {
            let Some(done) = self.get_with(key, small) else { return Ok(None) };
            if let Some(done) = done? {
                return Ok(Some(done));
            }
        }
        let _locked = self.collections.lock_shared(key);
        let body = self.store_body(key, kind)?;
        self.collections.saw(key, matches!(body, Some(Body::Large(_))));
        Ok(body.zip(read).map(|(body, read)| read(&body)))
    }

    /// Returns the collection of a key that the caller has locked because it probably is large.
    fn store_body(&self, key: &[u8], kind: ValueKind) -> Result<Option<Body<'_>>> {
        let source = Source::Live(&self.store, &self.collections.positions);
        let body = self.get_with(key, |stored| match Large::of_stored(source, stored) {
            Some(large) if large.head.kind == kind => Ok(Body::Large(large)),
            Some(_) => Err(CommandError::WrongType),
            None => Packed::read(stored)
                .filter(|packed| packed.kind == kind)
                .map(Body::Packed)
                .ok_or(CommandError::WrongType),
        });
        body.transpose()
    }

    /// Returns whether a command that pops will find nothing, if a single read shows it: the key is
    /// absent, and the last such command on a key with the same lock found nothing, too.
    pub fn is_absent_again(&self, key: &[u8]) -> bool {
        if !self.collections.may_be_absent(key) {
            return false;
        }
        let is_absent = !self.contains(key);
        self.collections.saw_absent(key, is_absent);
        is_absent
    }

    /// Records that a command that pops found nothing, for
    /// [`is_absent_again`](Self::is_absent_again).
    pub fn saw_absent(&self, key: &[u8]) {
        self.collections.saw_absent(key, true);
    }

    /// Changes the collection of a key, or creates one. `change` may be called several times; its
    /// last result is returned. A collection that becomes empty is removed. The deadline of the key
    /// is kept.
    ///
    /// # Errors
    /// Those of `change`; the key holds a value of another type; [`CommandError::NeedsExclusive`]
    /// if the collection becomes large and the caller has not excluded other commands.
    pub fn edit_collection<R>(
        &self,
        key: &[u8],
        kind: ValueKind,
        is_exclusive: bool,
        mut change: impl FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<Edited<R>> {
        self.edit_body(key, kind, is_exclusive, &mut change)
    }

    // A separate function, so that it is compiled for each type of result and not for each closure.
    fn edit_body<R>(
        &self,
        key: &[u8],
        kind: ValueKind,
        is_exclusive: bool,
        mut change: &mut dyn FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<Edited<R>> {
        if self.collections.may_be_large(key) {
            // Otherwise the first attempt finds out whether the collection is large.
            let edit = |large: &mut Large<'_>| with_body(large, &mut change);
            if let Some(edited) = self.edit_large(key, kind, edit)? {
                return Ok(edited);
            }
            self.collections.saw(key, false);
        }
        loop {
            match self.edit_packed(key, kind, &mut change)? {
                Attempt::Done(edited) => return Ok(edited),
                Attempt::Grows if !is_exclusive => return Err(CommandError::NeedsExclusive),
                Attempt::Grows => {
                    let present = |stored: &[u8]| Packed::read(stored);
                    return self
                        .make_large(key, kind, present, |large| with_body(large, &mut change));
                }
                Attempt::IsLarge => {
                    self.collections.saw(key, true);
                    let edit = |large: &mut Large<'_>| with_body(large, &mut change);
                    if let Some(edited) = self.edit_large(key, kind, edit)? {
                        return Ok(edited);
                    }
                }
            }
        }
    }

    fn edit_packed<R>(
        &self,
        key: &[u8],
        kind: ValueKind,
        mut change: impl FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<Attempt<R>> {
        let mut attempt = Err(CommandError::WrongType);
        self.modify_entry::<Vec<u8>>(key, |found| {
            let (put, done) = attempt_packed(found, kind, &mut change);
            attempt = done;
            put
        })?;
        attempt
    }

    /// Changes a large collection. Returns `None` if it no longer exists.
    pub(in crate::keyspace) fn edit_large<R>(
        &self,
        key: &[u8],
        kind: ValueKind,
        change: impl FnOnce(&mut Large<'_>) -> Result<R>,
    ) -> Result<Option<Edited<R>>> {
        let _locked = self.collections.lock(key);
        let stored_key = stored(key);
        let read =
            |put: Put<&[u8]>| Some((Head::read(put.value)?, Ends::of(put.value), put.expires_at));
        let Some((head, ends, expires_at)) = self.store.get_entry_with(&stored_key, read).flatten()
        else {
            return Ok(None);
        };
        if head.kind != kind {
            return Err(CommandError::WrongType);
        }
        if kind == ValueKind::List {
            self.collections.saw_list(key);
        }
        let mut large = self.live(head);
        large.ends = ends;
        self.change_loaded(key, large, expires_at, change).map(Some)
    }

    /// Opens the collection of a head at the current time. Its key is locked.
    pub(in crate::keyspace) fn live(&self, head: Head) -> Large<'_> {
        let now = if head.soonest == NEVER { 0 } else { self.now() };
        Large::new(Source::Live(&self.store, &self.collections.positions), head).at(now)
    }

    /// Changes a large collection other than a list, whose key the caller has locked.
    pub(super) fn change_large<R>(
        &self,
        key: &[u8],
        head: Head,
        expires_at: Option<u64>,
        change: impl FnOnce(&mut Large<'_>) -> Result<R>,
    ) -> Result<Edited<R>> {
        self.change_loaded(key, self.live(head), expires_at, change)
    }

    fn change_loaded<R>(
        &self,
        key: &[u8],
        mut large: Large<'_>,
        expires_at: Option<u64>,
        change: impl FnOnce(&mut Large<'_>) -> Result<R>,
    ) -> Result<Edited<R>> {
        let head = large.head;
        point("collections.head.read");
        let result = change(&mut large)?;
        large.keep_id();
        let effect = match large.is_changed() {
            false => Effect::Nothing,
            true if large.head.count == 0 => Effect::Removed,
            true => Effect::Changed,
        };
        if effect != Effect::Nothing {
            self.write_large(key, Some(head), expires_at, &large, false)?;
        }
        Ok(Edited { result, effect })
    }

    /// Converts a small collection, or none, to a large one. The caller excludes other commands.
    pub(in crate::keyspace) fn make_large<R, S: SmallForm>(
        &self,
        key: &[u8],
        kind: ValueKind,
        small: impl FnOnce(&[u8]) -> Option<S>,
        change: impl FnOnce(&mut Large<'_>) -> Result<R>,
    ) -> Result<Edited<R>> {
        let read = |put: Put<&[u8]>| (small(put.value), put.expires_at);
        let found = self.get_entry_with(key, read);
        let effect = if found.is_some() { Effect::Changed } else { Effect::Made };
        let (small, expires_at) = found.unwrap_or((None, None));
        let mut large = self.new_large(kind);
        if let Some(small) = small {
            small.spread(&mut large);
        }
        let result = change(&mut large)?;
        large.keep_id();
        self.write_large(key, None, expires_at, &large, false)?;
        Ok(Edited { result, effect })
    }

    /// Returns whether each change must write the head, even if the head stays the same. After a
    /// restart, the indexes are updated with the keys of hashes that the log names, so the log must
    /// name them.
    pub(super) fn logs_heads(&self, kind: ValueKind) -> bool {
        kind == ValueKind::Hash && self.is_durable
    }

    /// Creates an empty large collection with a new id.
    pub fn new_large(&self, kind: ValueKind) -> Large<'static> {
        Large::new(Source::New, Head::new(kind, self.collections.new_id()))
    }

    /// Writes the changes of a large collection and its head, which was `before`, as one batch. If
    /// the batch puts no element, the memory limit does not refuse it, unless `inline_grows`, that
    /// is, the fields in the head grow.
    pub(in crate::keyspace) fn write_large(
        &self,
        key: &[u8],
        before: Option<Head>,
        expires_at: Option<u64>,
        large: &Large<'_>,
        inline_grows: bool,
    ) -> Result<()> {
        if let Some(before) = before
            && large.head.count == 0
            && large.changes.len() > AT_ONCE
        {
            return Ok(self.replace_head(key, before, expires_at, None)?);
        }
        let (stored_key, head) = (stored(key), large.stored_head());
        let former = before.and_then(|head| head.deadline_entry(expires_at));
        let present = large.head.deadline_entry(expires_at).filter(|_| large.head.count > 0);
        // A list that becomes shorter may still put a node that was cut.
        let is_list = large.head.kind == ValueKind::List;
        let is_shorter = is_list && before.is_some_and(|head| large.head.count < head.count);
        let mut only_removes = !inline_grows && is_list == is_shorter;
        let mut batch: SmallVec<[Write<'_, [u8], [u8]>; 6]> = SmallVec::new();
        for (key, (value, _)) in large.changes.iter() {
            match value {
                Some(value) => {
                    only_removes &= is_shorter;
                    batch.push(Write::put(key, value.as_slice()));
                }
                None => batch.push(Write::Remove(key)),
            }
        }
        let mut added = large.added;
        if large.head.count == 0 {
            batch.push(Write::Remove(&*stored_key));
        } else if before != Some(large.head)
            || large.inline.is_some()
            || is_list
            || self.logs_heads(large.head.kind)
        {
            batch.push(Write::Put(&*stored_key, Put { value: &head[..], expires_at }));
        }
        if former != present {
            batch.extend(former.as_ref().map(|entry| Write::Remove(entry.as_slice())));
            batch.extend(present.as_ref().map(|entry| Write::put(entry.as_slice(), key)));
            added += i64::from(present.is_some()) - i64::from(former.is_some());
        }
        let positions = &self.collections.positions;
        self.write_elements(&batch, added, 0, only_removes).inspect_err(|error| {
            // If the log has failed, the batch may have been applied, so the blocks are rebuilt.
            // After any other error, nothing has changed.
            if matches!(error, ordna::Error::LogFailed { .. }) {
                positions.forget(large.head.id);
            }
        })?;
        match large.head.count {
            0 => positions.forget(large.head.id),
            _ if large.head.kind == ValueKind::ZSet => {
                let changes = large.changes.iter().filter(|(key, (_, by))| {
                    *by != 0 && key.get(large.prefix_len()) == Some(&sorted_set::ENTRY)
                });
                let changes = changes.map(|(key, (_, by))| (key, *by));
                positions.change(&self.store, large.head.id, changes);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the size of a key and its value in bytes, with `overhead` bytes for each entry, or
    /// `None` if the key is absent. For a large collection it is estimated from the first elements.
    pub fn bytes_of(&self, key: &[u8], overhead: usize) -> Option<usize> {
        /// Number of entries from which the size is estimated.
        const SAMPLE: usize = 64;
        let source = Source::Live(&self.store, &self.collections.positions);
        let read = |value: &[u8]| (value.len(), Large::of_stored(source, value));
        let (value, large) = self.get_with(key, read)?;
        let own = key.len() + value + overhead;
        let Some(large) = large else { return Some(own) };
        Some(own.saturating_add(large.estimated_bytes(SAMPLE, large.prefix_len() + overhead)))
    }

    /// Counts the entries of the reserved key space. Used at the start and in tests.
    pub fn count_reserved(&self) -> usize {
        self.store.count(Bound::Included(stored_key::USER_END), Bound::Unbounded)
    }
}

impl KeyspaceSnapshot {
    /// Calls `read` with the collection of a key in this snapshot, or returns `None` if the key is
    /// absent.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn read_collection<R>(
        &self,
        key: &[u8],
        kind: ValueKind,
        read: impl FnOnce(&Body<'_>) -> R,
    ) -> Result<Option<R>> {
        let body = self.get_with(key, |stored| {
            if ValueKind::of(stored) != kind {
                return Err(CommandError::WrongType);
            }
            let source = Source::Snapshot(self.stored());
            let large = || Large::of_stored(source, stored).map(Body::Large);
            Ok(Packed::read(stored).map(Body::Packed).or_else(large))
        });
        Ok(body.transpose()?.flatten().map(|body| read(&body)))
    }
}

/// Calls `change` with a large collection, wrapped as a body.
fn with_body<R>(
    large: &mut Large<'_>,
    change: &mut impl FnMut(&mut Body<'_>) -> Result<R>,
) -> Result<R> {
    let head = large.head;
    let mut body = Body::Large(std::mem::replace(large, Large::new(Source::New, head)));
    let result = change(&mut body);
    if let Body::Large(changed) = body {
        *large = changed;
    }
    result
}

/// Applies `change` to a small collection if the result fits into one record.
fn attempt_packed<R>(
    found: Option<Found<'_, [u8]>>,
    kind: ValueKind,
    change: &mut impl FnMut(&mut Body<'_>) -> Result<R>,
) -> (Change<Put<Vec<u8>>>, Result<Attempt<R>>) {
    let packed = match found {
        None => Packed::new(kind),
        Some(found) if ValueKind::of(found.value) != kind => {
            return (Change::Keep, Err(CommandError::WrongType));
        }
        Some(found) => match Packed::read(found.value) {
            Some(packed) => packed,
            None => return (Change::Keep, Ok(Attempt::IsLarge)),
        },
    };
    let mut body = Body::Packed(packed);
    let result = match change(&mut body) {
        Ok(result) => result,
        Err(error) => return (Change::Keep, Err(error)),
    };
    let Body::Packed(packed) = body else { return (Change::Keep, Ok(Attempt::IsLarge)) };
    if packed.is_full {
        return (Change::Keep, Ok(Attempt::Grows));
    }
    let (put, effect) = match (packed.len(), found) {
        _ if !packed.is_changed => (Change::Keep, Effect::Nothing),
        (0, None) => (Change::Keep, Effect::Nothing),
        (0, Some(_)) => (Change::Remove, Effect::Removed),
        (_, found) => {
            let effect = if found.is_some() { Effect::Changed } else { Effect::Made };
            let expires_at = found.and_then(|found| found.expires_at);
            (Change::Put(Put { value: packed.stored(), expires_at }), effect)
        }
    };
    (put, Ok(Attempt::Done(Edited { result, effect })))
}
