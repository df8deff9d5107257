//! The documents that indexes cover: hashes of the keyspace, by key.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, PoisonError, RwLock};

use ordna::Direction;
use ordna::sync::Lock;
use ordna::tuple::Value;
use ordna_secondary::{Document, DocumentStore, Named};

use crate::keyspace::Keyspace;
use crate::keyspace::edits::hash::HashView;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::user_keys::next_deadline;

/// Number of entries that a snapshot's iterator reads at a time.
const CHUNK: usize = 256;

/// Deadlines of covered keys, one for each key: the earliest one of the key and its fields.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    due: BinaryHeap<Reverse<(u64, Box<[u8]>)>>,
    /// The time at which each key must be read again: its deadline, or an earlier time.
    by_key: HashMap<Box<[u8]>, u64>,
    /// Keys that have become due since the current backup began; `None` without a backup.
    due_since_backup: Option<Vec<Box<[u8]>>>,
}

impl Deadlines {
    /// Adds a key, or makes its deadline earlier. A later deadline is noticed when the earlier one
    /// is due.
    fn add(&mut self, key: &[u8], deadline: u64) {
        if self.by_key.get(key).is_none_or(|known| *known > deadline) {
            self.by_key.insert(key.into(), deadline);
            self.due.push(Reverse((deadline, key.into())));
        }
    }

    /// Removes and returns the keys that are due at `now`.
    pub fn take_due(&mut self, now: u64) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        while self.due.peek().is_some_and(|Reverse((deadline, _))| *deadline <= now) {
            let Some(Reverse((deadline, key))) = self.due.pop() else { break };
            if self.by_key.get(&key) == Some(&deadline) {
                self.by_key.remove(&key);
                if let Some(due) = &mut self.due_since_backup {
                    due.push(key.clone());
                }
                keys.push(key);
            }
        }
        keys
    }

    /// Begins to record the keys that become due during a backup.
    pub fn begin_backup(&mut self) {
        self.due_since_backup = Some(Vec::new());
    }

    /// Returns all keys with a deadline, and those that have become due since the backup began.
    pub fn end_backup(&mut self) -> Vec<Box<[u8]>> {
        let due = self.due_since_backup.take().unwrap_or_default();
        self.by_key.keys().cloned().chain(due).collect()
    }
}

/// The keyspace, and the prefixes of covered keys. Shared by writers, which report keys, and the
/// library, which reads documents.
#[derive(Debug, Default)]
pub(super) struct CoveredKeys {
    pub keyspace: Lock<Option<Keyspace>>,
    pub prefixes: RwLock<Vec<Vec<u8>>>,
    pub deadlines: Lock<Deadlines>,
}

impl CoveredKeys {
    /// Returns whether an index covers the key.
    pub fn contain(&self, key: &[u8]) -> bool {
        let prefixes = self.prefixes.read().unwrap_or_else(PoisonError::into_inner);
        prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// Records the earliest deadline of a key whose document was read, and of its fields.
    fn note_deadline(&self, key: &[u8], deadline: Option<u64>) {
        if let Some(deadline) = deadline {
            self.deadlines.lock().add(key, deadline);
        }
    }

    /// Returns the current document of a key, or `None` if the key holds no hash.
    pub fn present(&self, keyspace: &Keyspace, key: &[u8]) -> Option<Document> {
        // A key that is absent or has another type has no document.
        let document = keyspace.read_hash(key, document).ok().flatten()?;
        self.note_deadline(key, keyspace.next_deadline(key));
        Some(document)
    }

    /// Takes a snapshot of the keyspace without the lock that commands hold. Returns `None` while
    /// the keyspace is being loaded.
    pub fn snapshot(&self) -> Option<KeyspaceSnapshot> {
        self.keyspace.lock().as_ref().map(KeyspaceSnapshot::of)
    }
}

/// Returns the document of a hash. Fields whose name is not UTF-8 are left out; values that are not
/// UTF-8 become byte strings.
fn document(hash: &HashView<'_>) -> Document {
    let mut document = Document::new();
    hash.for_each(|field, value| {
        if let Ok(field) = std::str::from_utf8(field) {
            let value = match std::str::from_utf8(value) {
                Ok(text) => Value::String(text.to_owned()),
                Err(_) => Value::Bytes(value.to_vec()),
            };
            document.push(field, value);
        }
    });
    document
}

/// The documents, in the form in which the library reads them.
pub(super) struct Documents(pub Arc<CoveredKeys>);

impl DocumentStore for Documents {
    fn get(&self, id: &[u8]) -> Option<Document> {
        let keyspace = self.0.keyspace.lock().clone();
        self.0.present(&keyspace?, id)
    }

    fn snapshot(&self, parts: usize) -> Vec<Box<dyn Iterator<Item = Named> + Send>> {
        let Some(keyspace) = self.0.keyspace.lock().clone() else { return Vec::new() };
        let snapshot = KeyspaceSnapshot::of(&keyspace);
        let mut ends: Vec<Bound<Vec<u8>>> =
            keyspace.partition_points(parts).into_iter().map(Bound::Excluded).collect();
        ends.push(Bound::Unbounded);
        let mut lower = Bound::Unbounded;
        let part = |upper: Bound<Vec<u8>>| {
            let next = match &upper {
                Bound::Excluded(key) => Bound::Included(key.clone()),
                _ => Bound::Unbounded,
            };
            let lower = std::mem::replace(&mut lower, next);
            let (snapshot, covered) = (snapshot.clone(), Arc::clone(&self.0));
            let (read, is_over) = (VecDeque::new(), false);
            Box::new(DocumentRange { covered, snapshot, lower, upper, read, is_over })
                as Box<dyn Iterator<Item = Named> + Send>
        };
        ends.into_iter().map(part).collect()
    }
}

/// Iterator over the documents of a range of keys.
struct DocumentRange {
    covered: Arc<CoveredKeys>,
    snapshot: KeyspaceSnapshot,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// Documents that were read but not returned yet.
    read: VecDeque<Named>,
    is_over: bool,
}

impl Iterator for DocumentRange {
    type Item = Named;

    fn next(&mut self) -> Option<Named> {
        while self.read.is_empty() && !self.is_over {
            let Self { covered, snapshot, lower, upper, read, .. } = self;
            let (mut visited, mut last) = (0, None);
            let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
            snapshot.visit_entries(bounds.0, bounds.1, Direction::Ascending, |key, put| {
                visited += 1;
                if covered.contain(key)
                    && let Some(document) = snapshot.read_hash(key, document)
                {
                    covered.note_deadline(key, next_deadline(put));
                    read.push_back((key.into(), document));
                }
                if visited < CHUNK {
                    return ControlFlow::Continue(());
                }
                last = Some(key.to_vec());
                ControlFlow::Break(())
            });
            match last {
                Some(key) => self.lower = Bound::Excluded(key),
                None => self.is_over = true,
            }
        }
        self.read.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_takes_no_more_memory() {
        let mut deadlines = Deadlines::default();
        for deadline in 10..1000 {
            deadlines.add(b"key", deadline);
        }
        assert_eq!((deadlines.due.len(), deadlines.by_key.len()), (1, 1));
        deadlines.add(b"key", 5);
        assert!(deadlines.take_due(4).is_empty());
        assert_eq!(deadlines.take_due(5), [Box::from(&b"key"[..])]);
        assert!(deadlines.take_due(1000).is_empty());
        assert!(deadlines.due.is_empty() && deadlines.by_key.is_empty());
    }
}
