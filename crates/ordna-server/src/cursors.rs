//! SCAN cursors: numbers that stand for the last key returned.
//!
//! Clients send cursors back as unsigned numbers, so a key cannot stand in one. A cursor names a
//! position between keys and not a slot of a table: inserts and deletes leave it valid, and it may
//! be used more than once. The oldest are forgotten beyond [`KEPT`].

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Cursors remembered at once, of all clients together.
pub const KEPT: usize = 16_384;

#[derive(Debug, Default)]
pub struct Cursors(Mutex<Positions>);

#[derive(Debug, Default)]
struct Positions {
    last: u64,
    keys: BTreeMap<u64, Vec<u8>>,
}

impl Cursors {
    /// A cursor behind this key. Never 0.
    pub fn remember(&self, key: Vec<u8>) -> u64 {
        let mut positions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        positions.last += 1;
        let cursor = positions.last;
        positions.keys.insert(cursor, key);
        if positions.keys.len() > KEPT {
            positions.keys.pop_first();
        }
        cursor
    }

    /// The key behind which to go on; `None` if the cursor is forgotten or was never given.
    pub fn recall(&self, cursor: u64) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys.get(&cursor).cloned()
    }
}
