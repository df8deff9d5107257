//! Reads and changes of hashes in either form.

use std::ops::ControlFlow;

use ordna::{Change, Put};

use super::collection::{Attempt, Edited, Effect, SmallForm};
use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::head::Head;
use crate::keyspace::collections::large::{Large, Source};
use crate::keyspace::collections::names::{MOST_NAME, Named, too_long};
use crate::keyspace::hash::{Edit, Hash};
use crate::keyspace::sample::{Draws, Sampled};
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::stored_value;
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;

type Result<T> = std::result::Result<T, CommandError>;

/// A hash that a command reads.
#[derive(Debug)]
pub enum HashView<'a> {
    Record(Hash<'a>),
    Large(Large<'a>),
}

impl HashView<'_> {
    /// Number of fields.
    pub fn len(&self) -> usize {
        match self {
            Self::Record(hash) => hash.len(),
            Self::Large(large) => large.head.len(),
        }
    }

    /// Calls `read` with the value of a field.
    pub fn get_with<R>(&self, field: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            Self::Record(hash) => hash.get(field).map(read),
            Self::Large(large) => large.get_named(field, read),
        }
    }

    /// Calls `each` with all fields and values. A list has them in the order of insertion.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], &[u8])) {
        match self {
            Self::Record(hash) => hash.iter().for_each(|(field, value)| each(field, value)),
            Self::Large(large) => large.visit_named(0, |field, value| {
                each(field, value);
                ControlFlow::Continue(())
            }),
        }
    }

    /// Returns some fields from a cursor on, and the next cursor (0: the end). A list is returned whole.
    pub fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<Named>) {
        let copy = |(field, value): (&[u8], &[u8])| (field.to_vec(), value.to_vec());
        match self {
            Self::Record(hash) if hash.is_table() => {
                let (next, found) = hash.scan(cursor, count);
                (next, found.into_iter().map(copy).collect())
            }
            Self::Record(hash) => (0, hash.iter().map(copy).collect()),
            Self::Large(large) => large.scan_named(cursor, count),
        }
    }
}

impl Sampled for HashView<'_> {
    fn len(&self) -> usize {
        HashView::len(self)
    }

    fn all(&self) -> Vec<Named> {
        let mut all = Vec::new();
        self.for_each(|field, value| all.push((field.to_vec(), value.to_vec())));
        all
    }

    fn one(&self, draws: &mut Draws) -> Option<Named> {
        match self {
            Self::Record(_) => None,
            Self::Large(large) => large.random_named(&mut |end| draws.below(end)),
        }
    }
}

/// A hash that a command changes.
#[derive(Debug)]
pub enum HashChange<'a> {
    Record { edit: Edit<'a>, is_changed: bool },
    Large(Large<'a>),
}

impl HashChange<'_> {
    /// Calls `read` with the value of a field, with the changes so far.
    pub fn get_with<R>(&self, field: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            Self::Record { edit, .. } => edit.get(field).map(read),
            Self::Large(large) => large.get_named(field, read),
        }
    }

    /// Sets a field. Returns whether it is new.
    ///
    /// # Errors
    /// The name is too long.
    pub fn set(&mut self, field: &[u8], value: &[u8]) -> Result<bool> {
        if field.len() > MOST_NAME {
            return Err(too_long(field.len()));
        }
        Ok(match self {
            Self::Record { edit, is_changed } => {
                *is_changed = true;
                edit.set(field, value)
            }
            Self::Large(large) => {
                let is_new = large.get_named(field, |_| ()).is_none();
                large.put_named(field, value, is_new);
                large.head.count += u64::from(is_new);
                is_new
            }
        })
    }

    /// Removes a field. Returns whether it existed.
    pub fn remove(&mut self, field: &[u8]) -> bool {
        match self {
            Self::Record { edit, is_changed } => {
                let was_there = edit.remove(field);
                *is_changed |= was_there;
                was_there
            }
            Self::Large(large) => {
                let was_there = large.get_named(field, |_| ()).is_some();
                if was_there {
                    large.remove_named(field);
                    large.head.count -= 1;
                }
                was_there
            }
        }
    }
}

impl SmallForm for Edit<'_> {
    fn spread(&self, into: &mut Large<'_>) {
        into.head.count = self.len() as u64;
        self.for_each(|field, value| into.put_named(field, value, true));
    }
}

/// A small hash that becomes large.
struct OldHash(Vec<(Vec<u8>, Vec<u8>)>);

impl SmallForm for OldHash {
    fn spread(&self, into: &mut Large<'_>) {
        into.head.count = self.0.len() as u64;
        self.0.iter().for_each(|(field, value)| into.put_named(field, value, true));
    }
}

impl KeyspaceStore {
    /// Calls `read` with the hash of a key; `None` if the key is absent. Under the lock of the key if the
    /// hash is large.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn read_hash<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(&HashView<'_>) -> R,
    ) -> Result<Option<R>> {
        let mut read = Some(read);
        let mut small = |stored: &[u8]| -> Result<Option<R>> {
            match stored_value::hash(stored) {
                Some(hash) => Ok(read.take().map(|read| read(&HashView::Record(hash)))),
                None if Head::read(stored).is_some_and(|head| head.kind == ValueKind::Hash) => {
                    Ok(None)
                }
                None => Err(CommandError::WrongType),
            }
        };
        let Some(done) = self.get_with(key, &mut small) else { return Ok(None) };
        if let Some(done) = done? {
            return Ok(Some(done));
        }
        let _locked = self.collections.lock_shared(key);
        let Some(read) = read else { return Ok(None) };
        // It may have become another value since.
        let head = self.get_with(key, |stored| match Head::read(stored) {
            Some(head) if head.kind == ValueKind::Hash => Ok(Ok(head)),
            _ if stored_value::hash(stored).is_some() => Ok(Err(stored.to_vec())),
            _ => Err(CommandError::WrongType),
        });
        Ok(match head.transpose()? {
            None => None,
            Some(Ok(head)) => Some(read(&HashView::Large(Large::new(
                Source::Live(&self.store, &self.collections.positions),
                head,
            )))),
            Some(Err(stored)) => {
                stored_value::hash(&stored).map(|hash| read(&HashView::Record(hash)))
            }
        })
    }

    /// Changes the hash of a key, or makes one. As
    /// [`edit_collection`](KeyspaceStore::edit_collection).
    ///
    /// # Errors
    /// As there.
    pub fn edit_hash<R>(
        &self,
        key: &[u8],
        is_exclusive: bool,
        mut change: impl FnMut(&mut HashChange<'_>) -> Result<R>,
    ) -> Result<Edited<R>> {
        loop {
            match self.edit_record(key, &mut change)? {
                Attempt::Done(edited) => return Ok(edited),
                Attempt::Grows if !is_exclusive => return Err(CommandError::NeedsExclusive),
                Attempt::Grows => {
                    let fields = |stored: &[u8]| {
                        let copy =
                            |(field, value): (&[u8], &[u8])| (field.to_vec(), value.to_vec());
                        Some(OldHash(stored_value::hash(stored)?.iter().map(copy).collect()))
                    };
                    return self.make_large(key, ValueKind::Hash, fields, |large| {
                        with_change(large, &mut change)
                    });
                }
                Attempt::IsLarge => {
                    let edit = |large: &mut Large<'_>| with_change(large, &mut change);
                    if let Some(edited) = self.edit_large(key, ValueKind::Hash, edit)? {
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
            let mut body = HashChange::Record { edit: Edit::of(hash), is_changed: false };
            let result = match change(&mut body) {
                Ok(result) => result,
                Err(error) => {
                    attempt = Err(error);
                    return Change::Keep;
                }
            };
            let HashChange::Record { edit, is_changed } = body else { return Change::Keep };
            let (mut put, mut effect) = (Change::Keep, Effect::Nothing);
            if is_changed {
                let record = edit.finish();
                if edit.is_large(&record) {
                    attempt = Ok(Attempt::Grows);
                    return Change::Keep;
                }
                (put, effect) = match (edit.len(), found) {
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
}

impl KeyspaceSnapshot {
    /// Calls `read` with the hash that a key holds in this snapshot; `None` if it holds none.
    pub fn read_hash<R>(&self, key: &[u8], read: impl FnOnce(&HashView<'_>) -> R) -> Option<R> {
        self.get_with(key, |stored| {
            if let Some(hash) = stored_value::hash(stored) {
                return Some(read(&HashView::Record(hash)));
            }
            let head = Head::read(stored).filter(|head| head.kind == ValueKind::Hash)?;
            Some(read(&HashView::Large(Large::new(Source::Snapshot(self.stored()), head))))
        })
        .flatten()
    }
}

impl KeyspaceSnapshot {
    /// Calls `read` with the hash of a key as one record, which is made if the hash is large; `None` if the
    /// key holds no hash.
    pub fn with_whole_hash<R>(&self, key: &[u8], read: impl FnOnce(Hash<'_>) -> R) -> Option<R> {
        self.read_hash(key, |view| match view {
            HashView::Record(hash) => Some(read(*hash)),
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
