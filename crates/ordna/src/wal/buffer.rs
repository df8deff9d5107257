//! The buffer of a stripe: records of the log, and states saved for a backup.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use ordna_base::sync::fault;
use ordna_base::{Key, Value};

use crate::entry::EntrySource;
use crate::entry::Put;
use crate::files::codec::{
    encode_expire, encode_put, encode_remove, encode_remove_range, encode_splice, encode_was,
};
use crate::wal::copy_before_write::CopyBeforeWrite;

/// Size in bytes at which a stripe passes its saved states to the copy-before-write set. The
/// buffers of all stripes together fit into the cache of a core.
const GATHERED: usize = 4 << 10;

/// The keys that a write may change.
pub(crate) enum WrittenKeys<'a, K: ?Sized> {
    Key(&'a K),
    Keys(&'a [&'a K]),
    Range(Bound<&'a K>, Bound<&'a K>),
    /// The keys that a transaction writes. No other write of these keys, or of keys that the
    /// transaction has read, runs concurrently.
    Transaction {
        written: &'a [&'a K],
        read: &'a [&'a K],
        /// Whether the transaction has read ranges, which may contain any key.
        reads_any: bool,
    },
}

/// The records and saved states of a stripe, for writes in its critical section.
pub(crate) struct StripeBuffer<K: Key + ?Sized> {
    /// The copy-before-write set of the backup in progress. It is the same in all stripes.
    pub(super) copies: Option<Arc<CopyBeforeWrite<K>>>,
    /// Whether the current write must save the state of its keys before the change.
    pub(super) saves_old_state: bool,
    /// Saved states that the set has not received yet.
    states: Vec<u8>,
    /// Beginning and end of each saved state in `states`.
    ends: Vec<(usize, usize)>,
    /// Records of the current write or, in a group, of its writes so far.
    pub(super) records: Vec<u8>,
    pub(super) count: u64,
    /// Whether one of the writes of a group has replaced the store.
    pub(super) cleared: bool,
}

impl<K: Key + ?Sized> Default for StripeBuffer<K> {
    fn default() -> Self {
        Self {
            copies: None,
            saves_old_state: false,
            states: Vec::new(),
            ends: Vec::new(),
            records: Vec::new(),
            count: 0,
            cleared: false,
        }
    }
}

pub fn hash<K: Key + ?Sized>(key: &K) -> u64 {
    // Uses only the first and last eight bytes and the length. This is cheap, and keys with a
    // common prefix usually differ at their end.
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    let tail = key.tail();
    let last = tail.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
    let word = key.head() ^ last.rotate_left(29) ^ tail.len() as u64;
    let mixed = word.wrapping_mul(MIX);
    (mixed ^ (mixed >> 32)).wrapping_mul(MIX)
}

impl<K: Key + ?Sized> StripeBuffer<K> {
    /// Drops the records of the current write, but keeps the state that [`was`](Self::was) has
    /// saved.
    pub fn start_over(&mut self) {
        self.records.clear();
        self.count = 0;
    }

    /// Saves the state of the write's only key just before it changes, if a backup needs it.
    pub fn was<V: Value + ?Sized>(&mut self, key: &K, old: Option<Put<&V>>) {
        let absent_is_lost = old.is_none() && fault!("live.absent.spills");
        if self.saves_old_state && !absent_is_lost {
            self.save_state(key, old);
        }
    }

    pub fn put<V: Value + ?Sized>(&mut self, key: &K, put: Put<&V>) {
        encode_put(key, put, &mut self.records);
        self.count += 1;
    }

    /// Records that bytes were written at a position of an existing value.
    pub fn splice(&mut self, key: &K, at: usize, bytes: &[u8]) {
        encode_splice(key, at, bytes, &mut self.records);
        self.count += 1;
    }

    pub fn expire(&mut self, key: &K, expires_at: Option<u64>) {
        encode_expire(key, expires_at, &mut self.records);
        self.count += 1;
    }

    pub fn remove(&mut self, key: &K) {
        encode_remove(key, &mut self.records);
        self.count += 1;
    }

    pub fn remove_range(&mut self, lower: Bound<&K>, upper: Bound<&K>) {
        encode_remove_range(lower, upper, &mut self.records);
        self.count += 1;
    }
}

impl<K: Key + ?Sized> StripeBuffer<K> {
    /// Attaches the buffer to another backup, or to none. Its saved states are passed to the former
    /// set.
    pub(super) fn attach(&mut self, copies: Option<Arc<CopyBeforeWrite<K>>>) {
        self.flush_states();
        self.copies = copies;
        (self.states, self.ends) = (Vec::new(), Vec::new());
    }

    /// Passes the saved states to the copy-before-write set.
    fn flush_states(&mut self) {
        let mut begin = 0;
        for (range, end) in self.ends.drain(..) {
            if let (Some(copies), Some(state)) = (&self.copies, self.states.get(begin..end)) {
                copies.append(range, state);
            }
            begin = end;
        }
        self.states.clear();
    }

    /// Saves the state of all keys that a write may change.
    pub(super) fn save_scope<V: Value + ?Sized>(
        &mut self,
        scope: &WrittenKeys<'_, K>,
        store: &dyn EntrySource<K, V>,
    ) {
        if self.copies.is_none() {
            return;
        }
        match *scope {
            WrittenKeys::Key(key) => self.save_key(key, store),
            WrittenKeys::Keys(_) if fault!("live.batch.spills") => {}
            WrittenKeys::Keys(keys) | WrittenKeys::Transaction { written: keys, .. } => {
                keys.iter().for_each(|key| self.save_key(*key, store))
            }
            WrittenKeys::Range(..) if fault!("live.range.spills") => {}
            WrittenKeys::Range(lower, upper) => store.scan_with(lower, upper, &mut |key, put| {
                if self.needs_state(key) {
                    self.save_state(key, Some(put));
                }
                ControlFlow::Continue(())
            }),
        }
    }

    fn save_key<V: Value + ?Sized>(&mut self, key: &K, store: &dyn EntrySource<K, V>) {
        if self.needs_state(key) {
            store.read(key, &mut |old| self.save_state(key, old));
        }
    }

    /// Returns whether a write of `key` must save its state.
    pub(super) fn needs_state(&self, key: &K) -> bool {
        self.copies.as_ref().is_some_and(|copies| copies.needs_copy(key))
    }

    /// Saves the state that `key` has before the current write.
    fn save_state<V: Value + ?Sized>(&mut self, key: &K, old: Option<Put<&V>>) {
        let Some(copies) = &self.copies else { return };
        // If the write was restarted, the state is already saved.
        let Some(end) = copies.saves(key) else { return };
        encode_was(key, end, old, &mut self.states);
        self.ends.push((copies.range_of(key), self.states.len()));
    }

    /// Passes the saved states to the copy-before-write set if they have reached [`GATHERED`]
    /// bytes.
    pub(super) fn flush_full_states(&mut self) {
        if self.states.len() >= GATHERED {
            self.flush_states();
        }
    }
}
