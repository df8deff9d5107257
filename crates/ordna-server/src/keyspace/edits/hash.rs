//! Reads and changes of hashes in all forms: list, table and large.

use std::ops::ControlFlow;

use ordna::sync::check;
use ordna::{Change, Put};

use super::collection::{Attempt, Edited, Effect, SmallForm};
use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::head::{Head, NEVER};
use crate::keyspace::collections::large::{Large, Source};
use crate::keyspace::collections::names::{MOST_NAME, Named, too_long};
use crate::keyspace::expiring_hash::{self, DeadlineMap, Deadlines};
use crate::keyspace::hash::{Edit, Hash};
use crate::keyspace::sample::{Draws, Sampled, Visit};
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::stored_value;
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;

type Result<T> = std::result::Result<T, CommandError>;

/// A hash that a command reads. Expired fields are hidden.
#[expect(clippy::large_enum_variant, reason = "a command has one, on its stack")]
#[derive(Debug)]
pub enum HashView<'a> {
    Record(Hash<'a>, Deadlines<'a>),
    Large(Large<'a>),
}

impl HashView<'_> {
    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        match self {
            Self::Record(hash, _) => hash.len(),
            Self::Large(large) => large.shown_len(),
        }
    }

    /// Calls `read` with the value of a field.
    pub fn get_with<R>(&self, field: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            Self::Record(hash, _) => hash.get(field).map(read),
            Self::Large(large) => large.get_named(field, read),
        }
    }

    /// Returns the deadline of a field, [`NEVER`] if it does not expire, or `None` if it is absent.
    pub fn deadline(&self, field: &[u8]) -> Option<u64> {
        self.get_with(field, |_| ())?;
        let deadline = match self {
            Self::Record(_, deadlines) => deadlines.of(field),
            Self::Large(large) => large.deadline_of(field),
        };
        Some(deadline.unwrap_or(NEVER))
    }

    /// Returns whether some field may expire.
    pub fn expires(&self) -> bool {
        match self {
            Self::Record(_, deadlines) => !deadlines.is_empty(),
            Self::Large(large) => large.head.soonest != NEVER,
        }
    }

    /// Calls `each` with all fields and values. A list has them in the order of insertion.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], &[u8])) {
        self.visit(&mut |field, value| {
            each(field, value);
            ControlFlow::Continue(())
        });
    }

    /// Returns some fields from a cursor on, and the next cursor, or 0 at the end. A list is
    /// returned as a whole.
    pub fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<Named>) {
        let copy = |(field, value): (&[u8], &[u8])| (field.to_vec(), value.to_vec());
        match self {
            Self::Record(hash, _) if hash.is_table() => {
                let (next, found) = hash.scan(cursor, count);
                (next, found.into_iter().map(copy).collect())
            }
            Self::Record(hash, _) => (0, hash.iter().map(copy).collect()),
            Self::Large(large) => large.scan_named(cursor, count),
        }
    }
}

impl Sampled for HashView<'_> {
    fn len(&self) -> usize {
        HashView::len(self)
    }

    fn visit(&self, visit: &mut Visit<'_>) {
        match self {
            Self::Record(hash, _) => {
                let _ = hash.iter().try_for_each(|(field, value)| visit(field, value));
            }
            Self::Large(large) => large.visit_named(0, visit),
        }
    }

    fn one(&self, draws: &mut Draws) -> Option<Named> {
        match self {
            Self::Record(..) => None,
            Self::Large(large) => large.random_named(&mut |end| draws.below(end)),
        }
    }
}

/// A small hash that a command changes.
#[derive(Debug)]
pub struct SmallHash<'a> {
    edit: Edit<'a>,
    deadlines: DeadlineMap,
    /// The time with which the command compares deadlines.
    now: u64,
    is_changed: bool,
}

impl<'a> SmallHash<'a> {
    /// Wraps a hash without deadlines, or an absent one.
    pub(super) fn of(hash: Option<Hash<'a>>) -> Self {
        Self { edit: Edit::of(hash), deadlines: DeadlineMap::new(), now: 0, is_changed: false }
    }

    /// Returns the fields if a record cannot hold them and none of them expires.
    pub(super) fn outgrown(self) -> Option<Edit<'a>> {
        self.edit.finish_small().err().filter(|_| self.deadlines.is_empty())
    }

    fn is_due(&self, field: &[u8]) -> bool {
        self.deadlines.get(field).is_some_and(|deadline| *deadline <= self.now)
    }
}

/// A hash that a command changes. Expired fields count as absent; a task removes and reports them
/// later.
#[expect(clippy::large_enum_variant, reason = "a command has one, on its stack")]
#[derive(Debug)]
pub enum HashChange<'a> {
    Small(SmallHash<'a>),
    Large(Large<'a>),
}

impl HashChange<'_> {
    /// Calls `read` with the value of a field, with the changes so far.
    pub fn get_with<R>(&self, field: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            Self::Small(small) if small.is_due(field) => None,
            Self::Small(small) => small.edit.get(field).map(read),
            Self::Large(large) => large.get_named(field, read),
        }
    }

    /// Returns the deadline of a field, [`NEVER`] if it does not expire, or `None` if it is absent.
    pub fn deadline(&self, field: &[u8]) -> Option<u64> {
        self.get_with(field, |_| ())?;
        let deadline = match self {
            Self::Small(small) => small.deadlines.get(field).copied(),
            Self::Large(large) => large.deadline_of(field),
        };
        Some(deadline.unwrap_or(NEVER))
    }

    /// Sets a field without a deadline. Returns whether it is new.
    ///
    /// # Errors
    /// The name is too long.
    pub fn set(&mut self, field: &[u8], value: &[u8]) -> Result<bool> {
        self.set_and(field, value, false)
    }

    /// Sets a field, which keeps its deadline. Returns whether it is new.
    ///
    /// # Errors
    /// The name is too long.
    pub fn set_keeping_deadline(&mut self, field: &[u8], value: &[u8]) -> Result<bool> {
        self.set_and(field, value, true)
    }

    fn set_and(&mut self, field: &[u8], value: &[u8], keeps_deadline: bool) -> Result<bool> {
        if field.len() > MOST_NAME {
            return Err(too_long(field.len()));
        }
        Ok(match self {
            Self::Small(small) => {
                small.is_changed = true;
                let is_due = small.is_due(field);
                if !keeps_deadline || is_due {
                    small.deadlines.remove(field);
                }
                small.edit.set(field, value) || is_due
            }
            Self::Large(large) => {
                let (is_there, is_due) = (large.holds_named(field), large.is_due_named(field));
                large.put_named(field, value, !is_there);
                large.head.count += u64::from(!is_there);
                if !keeps_deadline || is_due {
                    large.set_deadline(field, None);
                }
                !is_there || is_due
            }
        })
    }

    /// Sets the deadline of a present field, or removes it if it is [`NEVER`].
    pub fn set_deadline(&mut self, field: &[u8], deadline: u64) {
        let deadline = Some(deadline).filter(|deadline| *deadline != NEVER);
        match self {
            Self::Small(small) => {
                small.is_changed = true;
                match deadline {
                    Some(deadline) => small.deadlines.insert(field.to_vec(), deadline),
                    None => small.deadlines.remove(field),
                };
            }
            Self::Large(large) => large.set_deadline(field, deadline),
        }
    }

    /// Removes a field. Returns whether it existed.
    pub fn remove(&mut self, field: &[u8]) -> bool {
        if self.get_with(field, |_| ()).is_none() {
            return false;
        }
        match self {
            Self::Small(small) => {
                small.is_changed = true;
                small.deadlines.remove(field);
                small.edit.remove(field)
            }
            Self::Large(large) => {
                large.set_deadline(field, None);
                large.remove_named(field);
                large.head.count -= 1;
                true
            }
        }
    }
}

/// The result of a read of a stored value.
enum Looked<R> {
    /// `None` if all fields have expired.
    Done(Option<R>),
    IsLarge(Head),
}

/// Calls `read`, which it takes, with a stored hash, unless the hash is large.
fn look<R, F: FnOnce(&HashView<'_>) -> R>(
    stored: &[u8],
    now: impl FnOnce() -> u64,
    read: &mut Option<F>,
) -> Result<Looked<R>> {
    let mut call = |view: &HashView<'_>| Looked::Done(read.take().map(|read| read(view)));
    if let Some(hash) = stored_value::hash(stored) {
        return Ok(call(&HashView::Record(hash, Deadlines::default())));
    }
    let head = Head::read(stored).filter(|head| head.kind == ValueKind::Hash);
    let head = head.ok_or(CommandError::WrongType)?;
    let Some((hash, deadlines)) = Head::inline(stored).and_then(expiring_hash::read) else {
        return Ok(Looked::IsLarge(head));
    };
    let now = now();
    if check!("field_expiry.small_hides", head.soonest > now) {
        return Ok(call(&HashView::Record(hash, deadlines)));
    }
    let record = expiring_hash::shown(hash, deadlines, now);
    match stored_value::hash(&record).filter(|hash| hash.len() > 0) {
        Some(hash) => Ok(call(&HashView::Record(hash, deadlines))),
        None => Ok(Looked::Done(None)),
    }
}

/// Calls `read` with a large hash. Returns `None` if all fields have expired.
fn look_at_large<R>(large: Large<'_>, read: impl FnOnce(&HashView<'_>) -> R) -> Option<R> {
    (large.shown_len() > 0).then(|| read(&HashView::Large(large)))
}

impl KeyspaceStore {
    /// Calls `read` with the hash of a key. Returns `None` if the key is absent or all fields have
    /// expired. If the hash is large, `read` runs under the lock of the key.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn read_hash<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(&HashView<'_>) -> R,
    ) -> Result<Option<R>> {
        let mut read = Some(read);
        let mut look = || self.get_with(key, |stored| look(stored, || self.now(), &mut read));
        if !self.collections.may_be_large(key) {
            match look().transpose()? {
                None => return Ok(None),
                Some(Looked::Done(found)) => return Ok(found),
                Some(Looked::IsLarge(_)) => self.collections.saw(key, true),
            }
        }
        let _locked = self.collections.lock_shared(key);
        // The key may have got another value in the meantime.
        let looked = look().transpose()?;
        if let Some(Looked::IsLarge(head)) = looked {
            return Ok(read.and_then(|read| look_at_large(self.live(head), read)));
        }
        self.collections.saw(key, false);
        match looked {
            Some(Looked::Done(found)) => Ok(found),
            _ => Ok(None),
        }
    }

    /// Changes the hash of a key, or creates one. See
    /// [`edit_collection`](KeyspaceStore::edit_collection).
    ///
    /// # Errors
    /// Those of `edit_collection`.
    pub fn edit_hash<R>(
        &self,
        key: &[u8],
        is_exclusive: bool,
        mut change: impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<Edited<R>> {
        self.edit_fields(key, is_exclusive, &mut change)
    }

    // A separate function, so that it is compiled for each type of result and not for each closure.
    fn edit_fields<R>(
        &self,
        key: &[u8],
        is_exclusive: bool,
        mut change: &mut dyn FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<Edited<R>> {
        if self.collections.may_be_large(key) {
            // Otherwise the first attempt finds out whether the hash is large.
            if let Some(edited) = self.edit_head(key, &mut change)? {
                return Ok(edited);
            }
            self.collections.saw(key, false);
        }
        loop {
            match self.edit_record(key, &mut change)? {
                Attempt::Done(edited) => return Ok(edited),
                Attempt::Grows if !is_exclusive => return Err(CommandError::NeedsExclusive),
                Attempt::Grows => {
                    let read = |put: Put<&[u8]>| (put.value.to_vec(), put.expires_at);
                    let found = self.get_entry_with(key, read);
                    let (record, expires_at) = found.unzip();
                    let record = record.as_deref();
                    return self.edit_small(key, None, record, expires_at.flatten(), &mut change);
                }
                Attempt::IsLarge => {
                    self.collections.saw(key, true);
                    if let Some(edited) = self.edit_head(key, &mut change)? {
                        return Ok(edited);
                    }
                }
            }
        }
    }

    fn edit_record<R>(
        &self,
        key: &[u8],
        change: &mut impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<Attempt<R>> {
        let mut attempt = Err(CommandError::WrongType);
        self.modify_entry::<Vec<u8>>(key, |found| {
            let hash = match found {
                None => None,
                Some(found) => match stored_value::hash(found.value) {
                    Some(hash) => Some(hash),
                    None => {
                        let head = Head::read(found.value);
                        attempt = match head.filter(|head| head.kind == ValueKind::Hash) {
                            Some(_) => Ok(Attempt::IsLarge),
                            None => Err(CommandError::WrongType),
                        };
                        return Change::Keep;
                    }
                },
            };
            let mut body = HashChange::Small(SmallHash::of(hash));
            let result = match change(&mut body) {
                Ok(result) => result,
                Err(error) => {
                    attempt = Err(error);
                    return Change::Keep;
                }
            };
            let HashChange::Small(small) = body else { return Change::Keep };
            let (mut put, mut effect) = (Change::Keep, Effect::Nothing);
            if small.is_changed {
                let (len, has_deadlines) = (small.edit.len(), !small.deadlines.is_empty());
                let Some(record) = small.edit.finish_small().ok().filter(|_| !has_deadlines) else {
                    attempt = Ok(Attempt::Grows);
                    return Change::Keep;
                };
                (put, effect) = match (len, found) {
                    (0, None) => (Change::Keep, Effect::Nothing),
                    (0, Some(_)) => (Change::Remove, Effect::Removed),
                    (_, found) => {
                        let effect = if found.is_some() { Effect::Changed } else { Effect::Made };
                        let expires_at = found.and_then(|found| found.expires_at);
                        (Change::Put(Put { value: record, expires_at }), effect)
                    }
                };
            }
            attempt = Ok(Attempt::Done(Edited { result, effect }));
            put
        })?;
        attempt
    }

    /// Changes a hash that has a head. Returns `None` if it no longer exists.
    fn edit_head<R>(
        &self,
        key: &[u8],
        change: &mut impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<Option<Edited<R>>> {
        let _locked = self.collections.lock(key);
        let read = |put: Put<&[u8]>| {
            let inline = Head::inline(put.value).map(<[u8]>::to_vec);
            Some((Head::read(put.value)?, inline, put.expires_at))
        };
        let Some((head, inline, expires_at)) = self.get_entry_with(key, read).flatten() else {
            return Ok(None);
        };
        if head.kind != ValueKind::Hash {
            return Err(CommandError::WrongType);
        }
        match inline.as_deref() {
            Some(inline) => self.edit_small(key, Some(head), Some(inline), expires_at, change),
            None => self.change_large(key, head, expires_at, |large| with_change(large, change)),
        }
        .map(Some)
    }

    /// Changes or creates a small hash that has a head before or after the change. If there is a
    /// head `before`, the caller has locked the key; otherwise it excludes other commands. `stored`
    /// is the record, or the data after that head.
    fn edit_small<R>(
        &self,
        key: &[u8],
        before: Option<Head>,
        stored: Option<&[u8]>,
        expires_at: Option<u64>,
        change: &mut impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<Edited<R>> {
        let found = match before {
            Some(_) => stored.and_then(expiring_hash::read),
            None => stored.and_then(stored_value::hash).map(|hash| (hash, Deadlines::default())),
        };
        let deadlines = found.iter().flat_map(|(_, deadlines)| deadlines.iter());
        let mut body = HashChange::Small(SmallHash {
            edit: Edit::of(found.map(|(hash, _)| hash)),
            deadlines: deadlines.map(|(field, at)| (field.to_vec(), at)).collect(),
            now: self.now(),
            is_changed: false,
        });
        let result = change(&mut body)?;
        let HashChange::Small(small) = body else { return Err(CommandError::WrongType) };
        let len = small.edit.len();
        let effect = match (small.is_changed, len, stored) {
            (false, ..) | (_, 0, None) => {
                return Ok(Edited { result, effect: Effect::Nothing });
            }
            (_, 0, Some(_)) => Effect::Removed,
            (_, _, None) => Effect::Made,
            (_, _, Some(_)) => Effect::Changed,
        };
        match small.edit.finish_small() {
            Err(edit) => {
                let id = before.map_or_else(|| self.collections.new_id(), |head| head.id);
                let mut large = Large::new(Source::New, Head::new(ValueKind::Hash, id));
                edit.spread(&mut large);
                for (field, deadline) in &small.deadlines {
                    large.set_deadline(field, Some(*deadline));
                }
                self.write_large(key, before, expires_at, &large, false)?;
            }
            Ok(record) => {
                let grows = record.len() > stored.map_or(0, <[u8]>::len);
                let fields = (record.as_slice(), len);
                self.write_small(key, before, expires_at, fields, &small.deadlines, grows)?;
            }
        }
        Ok(Edited { result, effect })
    }
}

impl SmallForm for Edit<'_> {
    fn spread(&self, into: &mut Large<'_>) {
        into.head.count = self.len() as u64;
        self.for_each(|field, value| into.put_named(field, value, true));
    }
}

impl KeyspaceSnapshot {
    /// Calls `read` with the hash of a key in this snapshot. Returns `None` if the key holds no
    /// hash.
    pub fn read_hash<R>(&self, key: &[u8], read: impl FnOnce(&HashView<'_>) -> R) -> Option<R> {
        self.read_typed_hash(key, read).ok().flatten()
    }

    /// Calls `read` with the hash of a key. Returns `None` if the key is absent.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn read_typed_hash<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(&HashView<'_>) -> R,
    ) -> Result<Option<R>> {
        let mut read = Some(read);
        let looked = self.get_with(key, |stored| look(stored, || self.time(), &mut read));
        let Some(looked) = looked else { return Ok(None) };
        Ok(match looked? {
            Looked::Done(found) => found,
            Looked::IsLarge(head) => {
                let large = Large::new(Source::Snapshot(self.stored()), head).at(self.time());
                read.and_then(|read| look_at_large(large, read))
            }
        })
    }

    /// Calls `read` with the hash of a key in the form of one record, to which a large hash is
    /// converted. Returns `None` if the key holds no hash.
    pub fn with_whole_hash<R>(&self, key: &[u8], read: impl FnOnce(Hash<'_>) -> R) -> Option<R> {
        self.read_hash(key, |view| match view {
            HashView::Record(hash, _) => Some(read(*hash)),
            HashView::Large(_) => {
                let mut edit = Edit::of(None);
                view.for_each(|field, value| {
                    edit.set(field, value);
                });
                stored_value::hash(&edit.finish()).map(read)
            }
        })
        .flatten()
    }
}

/// Calls `change` with a large hash.
fn with_change<R>(
    large: &mut Large<'_>,
    change: &mut impl FnMut(&mut HashChange<'_>) -> Result<R>,
) -> Result<R> {
    let head = large.head;
    let mut body = HashChange::Large(std::mem::replace(large, Large::new(Source::New, head)));
    let result = change(&mut body);
    if let HashChange::Large(changed) = body {
        *large = changed;
    }
    result
}
