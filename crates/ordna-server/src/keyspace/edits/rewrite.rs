//! Extensive changes of a large collection that were made on a snapshot.

use std::ops::{Bound, ControlFlow};

use ordna::key::prefix_end;
use ordna::sync::{fault, notice};
use ordna::{Direction, Put};

use crate::keyspace::KeyspaceStore;
use crate::keyspace::collections::head::Head;
use crate::keyspace::collections::large::{Large, Source};
use crate::keyspace::edits::collection::Changed;
use crate::keyspace::edits::staging::Staged;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::stored_key::{self, KeyPrefix, stored};
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;

type Result<T> = std::result::Result<T, CommandError>;

/// Number of changed entries from which on the remaining entries are rewritten under another id.
/// A batch of that size takes some milliseconds, during which no other client writes.
const MANY_CHANGES: usize = 8192;
/// Size in bytes of changed keys and values from which on the remaining entries are rewritten.
const MANY_BYTES: usize = 4 << 20;
/// Maximum number of elements that are rewritten for each removed one.
const LEFT_FOR_REMOVED: usize = 256;
/// Maximum number of elements that are rewritten for each added or changed one, if there are at
/// least [`VERY_MANY_CHANGES`]. Below that it is 1: clients fill collections by many commands of
/// some thousand elements, each of which would store everything again.
const LEFT_FOR_ADDED: usize = 16;
/// Number of changed entries whose batch takes about 50 milliseconds.
const VERY_MANY_CHANGES: usize = 1 << 16;

/// Number of entries that are read in one step before the keyspace is locked.
const STRETCH: usize = 1024;
/// Size in bytes of keys and values after which such a step ends.
const STRETCH_BYTES: usize = 512 << 10;

/// The remaining entries of a changed collection, under a new id.
#[derive(Debug)]
pub struct Rewritten<'a> {
    /// The collection without its elements.
    pub large: Large<'static>,
    from: &'a Large<'a>,
    /// The prefixes of the collection's keys, under the former and the new id.
    prefixes: [(KeyPrefix, KeyPrefix); 3],
    /// Number of prefixes that are finished.
    done: usize,
    /// The last key that was read.
    last: Option<Vec<u8>>,
    /// The last changed key that was stored, after all prefixes.
    last_changed: Option<Vec<u8>>,
}

impl Changed<'_> {
    /// Returns the remaining entries of the collection if they should be rewritten.
    pub fn rewritten(&self, keys: &KeyspaceStore) -> Option<Rewritten<'_>> {
        let (from, count) = (&self.large, self.large.changes.len());
        let sizes = from.changes.iter();
        let sizes = sizes
            .map(|(key, (value, _))| key.len() + value.as_ref().map_or(0, |value| value.len()));
        let is_small = count < MANY_CHANGES && sizes.sum::<usize>() < MANY_BYTES;
        // A node of a list holds many elements.
        let added = from.head.len().saturating_sub(self.before.len());
        let is_shorter = from.head.count < self.before.count;
        let most_left = match (is_shorter, count < VERY_MANY_CHANGES) {
            (true, _) => LEFT_FOR_REMOVED,
            (false, true) if !fault!("large_writes.fills") => 1,
            (false, _) => LEFT_FOR_ADDED,
        };
        if is_small || from.head.len() / most_left > count.max(added) || from.head.count == 0 {
            return None;
        }
        let mut large = keys.new_large(from.head.kind);
        let id = large.head.id;
        let pair = |prefix: fn(u64) -> KeyPrefix| (prefix(from.head.id), prefix(id));
        let prefixes = [
            pair(stored_key::elements_of),
            pair(stored_key::deadlines_of_fields),
            pair(stored_key::fields_by_deadline),
        ];
        large.head = Head { id, ..from.head };
        large.ends = from.ends.clone();
        Some(Rewritten { large, from, prefixes, done: 0, last: None, last_changed: None })
    }
}

impl Rewritten<'_> {
    /// Returns the next entries, with keys in their stored form. Empty if all are done.
    pub fn next_stretch(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some((before, after)) = self.prefixes.get(self.done) {
            let mut add = |key: &[u8], value: &[u8]| {
                let key = [&after[..], &key[before.len()..]].concat();
                bytes += key.len() + value.len();
                found.push((key, value.to_vec()));
                found.len() >= STRETCH || bytes >= STRETCH_BYTES
            };
            let lower = self.last.take();
            let lower = match &lower {
                Some(last) => Bound::Excluded(last.as_slice()),
                None => Bound::Included(before.as_slice()),
            };
            let end = prefix_end(before);
            let bounds = (lower, end.as_deref().map_or(Bound::Unbounded, Bound::Excluded));
            let changed = self.from.changes.range(bounds);
            let mut changed = changed.map(|(key, _)| key).peekable();
            let mut last = None;
            self.from.visit_source(bounds, Direction::Ascending, usize::MAX, &mut |key, value| {
                while changed.next_if(|changed| *changed < key).is_some() {}
                if changed.next_if_eq(&key).is_none() && add(key, value) {
                    last = Some(key.to_vec());
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            self.last = last;
            if self.last.is_some() {
                return found;
            }
            self.done += 1;
        }
        // The entries that the command has put.
        let lower = self.last_changed.take();
        let lower =
            lower.as_ref().map_or(Bound::Unbounded, |last| Bound::Excluded(last.as_slice()));
        for (key, (value, _)) in self.from.changes.range((lower, Bound::Unbounded)) {
            let Some(value) = value else { continue };
            let prefix = self.prefixes.iter().find(|(before, _)| key.starts_with(&before[..]));
            let Some((before, after)) = prefix else { continue };
            bytes += key.len() + value.len();
            found.push(([&after[..], &key[before.len()..]].concat(), value.to_vec()));
            if found.len() >= STRETCH || bytes >= STRETCH_BYTES {
                self.last_changed = Some(key.to_vec());
                return found;
            }
        }
        self.last_changed = self.from.changes.iter().next_back().map(|(key, _)| key.to_vec());
        found
    }
}

impl KeyspaceStore {
    /// Writes the changes of a large collection. `anew` has the remaining entries, if they were
    /// rewritten. The caller excludes other commands. Returns `false`, without a change, if the
    /// head is not the one that was read.
    ///
    /// # Errors
    /// The memory limit is reached, or the log has failed.
    pub fn put_changed(
        &self,
        key: &[u8],
        changed: &Changed<'_>,
        anew: Option<(&Large<'static>, &Staged)>,
    ) -> Result<bool> {
        let read = |put: Put<&[u8]>| Some((Head::read(put.value)?, put.expires_at));
        let found = self.store.get_entry_with(&stored(key), read).flatten();
        let Changed { before, expires_at, large } = changed;
        let is_other = found != Some((*before, *expires_at));
        if notice!("large_writes.sees_head", is_other) {
            return Ok(false);
        }
        match anew {
            Some((anew, staged)) => self.put_large(key, anew, *expires_at, Some(staged))?,
            None => self.write_large(key, Some(*before), *expires_at, large, false)?,
        }
        Ok(true)
    }
}

impl KeyspaceSnapshot {
    /// Returns the large collection that a key holds in this snapshot, with the deadline of the
    /// key, or `None` if it holds none.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn large(&self, key: &[u8], kind: ValueKind) -> Result<Option<(Large<'_>, Option<u64>)>> {
        let Some((value, expires_at)) = self.get_entry(key) else { return Ok(None) };
        if ValueKind::of(&value) != kind {
            return Err(CommandError::WrongType);
        }
        if Head::inline(&value).is_some() {
            return Ok(None);
        }
        let large = Large::of_stored(Source::Snapshot(self.stored()), &value);
        Ok(large.map(|large| (large.at(self.time()), expires_at)))
    }
}
