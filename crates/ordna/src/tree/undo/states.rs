//! States before a change: of one key, and of all keys of a range.
//!
//! # Contract
//! These values never change after they were written.

use crate::tree::leaf::{FOREVER, LeafCopy, LeafEntry};
use ordna_base::sync::notice;
use ordna_base::{Key, Value};

/// The state of a key before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldState {
    /// The key was absent.
    Absent,
    /// The key's word and deadline.
    Present { word: u64, deadline: u64 },
}

/// The contents of a range version: the state of all keys of a range. Keys that are not listed are
/// absent.
#[derive(Clone, Copy)]
pub struct RangeVersion<'a> {
    pub lower: u64,
    /// Upper bound of the range, inclusive.
    pub upper: u64,
    /// The present keys in ascending order.
    pub keys: &'a [u64],
    pub words: &'a [u64],
}

impl RangeVersion<'_> {
    pub fn contains(&self, key: u64) -> bool {
        (self.lower..=self.upper).contains(&key)
    }

    pub fn state_of(&self, key: u64) -> OldState {
        match self.keys.binary_search(&key) {
            Ok(at) => OldState::Present { word: self.words[at], deadline: FOREVER },
            Err(_) => OldState::Absent,
        }
    }

    /// Replaces the entries of `range` by these, in the order of keys.
    pub fn copy_to<K: Key + ?Sized, V: Value + ?Sized>(&self, range: &mut LeafCopy<K, V>) {
        range.count = self.keys.len();
        range.keys[..range.count].copy_from_slice(self.keys);
        range.words[..range.count].copy_from_slice(self.words);
        range.deadlines = None;
    }

    /// Appends the states of its keys, and of the keys among `slots` that are absent. Replaces
    /// states of its range that were found in younger records.
    pub fn append_to(&self, slots: &[u64], old: &mut Vec<(LeafEntry, OldState)>) {
        old.retain(|(entry, _)| !self.contains(entry.key));
        let is_absent = |key: &u64| self.contains(*key) && self.state_of(*key) == OldState::Absent;
        let absent =
            slots.iter().filter(|key| notice!("undo.range_version.absent", is_absent(key)));
        old.extend(absent.chain(self.keys).map(|key| {
            let entry = LeafEntry { key: *key, word: 0, deadline: FOREVER };
            (entry, self.state_of(*key))
        }));
    }
}
