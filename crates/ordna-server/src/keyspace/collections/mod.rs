//! Collections: hashes, sets, sorted sets and lists of any size.
//!
//! # Forms
//! A small collection is one record ([`packed`], [`hash`](super::hash)). The key of a large
//! collection holds a [`Head`], and each element is a separate entry of the store, under the head's
//! id in the reserved space of [`stored_key`](super::stored_key). Values of a list share entries
//! ([`nodes`]). Snapshots, log, backups and memory limit are those of the store.
//!
//! # Invariants
//! - An id belongs to one collection during the life of the process.
//! - A head is changed or removed only under the lock of its key or under the exclusive lock of the
//!   keyspace, even if it has expired, because a thread that changes it may have read it earlier. A
//!   head is created only under the exclusive lock.
//! - Elements and head are written in one batch, or the elements before the head, while their id is
//!   in the list of removals. So in each state of the store, also after a crash, each id with
//!   elements has a head, or an entry in the list of removals, or an expired head whose entry in
//!   the list of deadlines still exists.
//! - A head with a deadline has one entry in the list of deadlines, which names its key.
//!
//! # Order of locks
//! Keyspace, then key. A command that locks several keys holds the keyspace exclusively. A run of
//! commands on one key may hold both locks until it ends.
//!
//! # Removal
//! Removing or overwriting a head adds its id to the list of removals in the same batch. A task
//! then removes the elements in several steps, and finally the entry; it also finds heads that have
//! expired. After a restart it continues with the contents of the lists.
//!
//! # Long writes
//! A command that creates a large collection may store its elements in several steps, before a key
//! holds the collection. Until then its id is in the list of removals
//! ([`staging`](super::edits::staging)).

pub mod changes;
pub mod ends;
pub mod field_deadlines;
pub mod head;
pub mod key_locks;
pub mod large;
pub mod names;
pub mod nodes;
pub mod packed;
pub mod positions;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ordna::checksum::crc32c;
use ordna::sync::{Lock, StripedCounter};

use self::key_locks::{HeldKey, KeyLocks, LOCKS, LockedKey, SharedKey};
use self::positions::Positions;

/// Number of flags that say where heads may be.
const PLACES: usize = 1 << 13;
/// The id of the first large collection.
const FIRST_ID: u64 = 1;

/// The state that the collections of a keyspace share.
#[derive(Debug)]
pub struct Collections {
    locks: KeyLocks,
    /// For each lock: whether the head of a list was seen under it.
    has_list: Vec<AtomicBool>,
    /// For each lock: whether the collection that was last seen under it was large.
    was_large: Vec<AtomicBool>,
    /// For each lock: whether the key under it that was last popped from was absent.
    was_absent: Vec<AtomicBool>,
    /// For each checksum of stored keys: whether such a key may hold the head of a large
    /// collection. Set before the head is written.
    may_be_head: Vec<AtomicBool>,
    next_id: AtomicU64,
    /// Whether the version of the layout is stored, or need not be stored.
    has_layout: AtomicBool,
    /// Whether a large collection has a deadline, or has had one since the start.
    may_expire: AtomicBool,
    /// Held while the version of the layout is stored. The caller may hold the lock of any key.
    pub(super) storing_layout: Lock<()>,
    /// Positions in large sorted sets.
    pub(super) positions: Positions,
    /// Number of entries in the reserved space of keys.
    pub reserved: StripedCounter,
    /// Number of entries in the list of removals.
    pub removals: StripedCounter,
    /// Held while elements of removed collections are removed.
    pub(super) removing: Lock<()>,
    /// Ids in the list of removals whose elements must not be removed yet, because a command is
    /// about to assign them to a key. Held while the removal chooses an id.
    pub(super) unfinished: Mutex<BTreeSet<u64>>,
}

impl Default for Collections {
    fn default() -> Self {
        Self {
            locks: KeyLocks::default(),
            has_list: (0..LOCKS).map(|_| AtomicBool::default()).collect(),
            was_large: (0..LOCKS).map(|_| AtomicBool::default()).collect(),
            was_absent: (0..LOCKS).map(|_| AtomicBool::default()).collect(),
            may_be_head: (0..PLACES).map(|_| AtomicBool::default()).collect(),
            next_id: AtomicU64::new(FIRST_ID),
            has_layout: AtomicBool::new(false),
            may_expire: AtomicBool::new(false),
            storing_layout: Lock::default(),
            positions: Positions::default(),
            reserved: StripedCounter::new(),
            removals: StripedCounter::new(),
            removing: Lock::default(),
            unfinished: Mutex::default(),
        }
    }
}

impl Collections {
    /// Returns whether a key may hold the head of a list, because one was seen under its lock. A
    /// hint that decides which write is tried first.
    pub(super) fn may_hold_list(&self, key: &[u8]) -> bool {
        self.has_list[crc32c(key) as usize % LOCKS].load(Ordering::Relaxed)
    }

    /// Records that a key holds the head of a list.
    pub(super) fn saw_list(&self, key: &[u8]) {
        let seen = &self.has_list[crc32c(key) as usize % LOCKS];
        if !seen.load(Ordering::Relaxed) {
            seen.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the collection of a key is probably large. A hint that decides which form is
    /// tried first.
    pub(super) fn may_be_large(&self, key: &[u8]) -> bool {
        self.was_large[crc32c(key) as usize % LOCKS].load(Ordering::Relaxed)
    }

    /// Records whether the collection of a key is large.
    pub(super) fn saw(&self, key: &[u8], is_large: bool) {
        let seen = &self.was_large[crc32c(key) as usize % LOCKS];
        if seen.load(Ordering::Relaxed) != is_large {
            seen.store(is_large, Ordering::Relaxed);
        }
    }

    /// Returns whether a key from which a command pops is probably absent. A hint: if so, the key
    /// is read first.
    pub(super) fn may_be_absent(&self, key: &[u8]) -> bool {
        self.was_absent[crc32c(key) as usize % LOCKS].load(Ordering::Relaxed)
    }

    /// Records whether a key from which a command pops is absent.
    pub(super) fn saw_absent(&self, key: &[u8], is_absent: bool) {
        let seen = &self.was_absent[crc32c(key) as usize % LOCKS];
        if seen.load(Ordering::Relaxed) != is_absent {
            seen.store(is_absent, Ordering::Relaxed);
        }
    }

    /// Returns whether a stored key may hold the head of a large collection. `false` is certain if
    /// the caller excludes other commands.
    pub(super) fn may_be_head(&self, stored_key: &[u8]) -> bool {
        self.has_large()
            && self.may_be_head[crc32c(stored_key) as usize % PLACES].load(Ordering::Relaxed)
    }

    /// Records that a head is about to be written under a stored key.
    pub(super) fn will_be_head(&self, stored_key: &[u8]) {
        let place = &self.may_be_head[crc32c(stored_key) as usize % PLACES];
        if !place.load(Ordering::Relaxed) {
            place.store(true, Ordering::Relaxed);
        }
    }

    /// Locks a key, to write the collection that it holds.
    pub fn lock(&self, key: &[u8]) -> LockedKey<'_> {
        self.locks.lock(key)
    }

    /// Locks a key to pop from the sorted set that it holds.
    pub(super) fn lock_to_pop(&self, key: &[u8]) -> LockedKey<'_> {
        self.locks.lock_to_pop(key)
    }

    /// Locks a key for several writes of the collection that it holds, if that is probably large.
    /// Until the result is dropped, the thread must lock no other key.
    pub fn hold(&self, key: &[u8], commands: usize) -> Option<HeldKey<'_>> {
        self.may_be_large(key).then(|| self.locks.hold(key, commands))
    }

    /// Locks a key, to read several elements of the collection that it holds.
    pub fn lock_shared(&self, key: &[u8]) -> SharedKey<'_> {
        self.locks.lock_shared(key)
    }

    /// Returns the ids of collections that are stored before a key holds them.
    pub(super) fn unfinished(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there was a large collection since the start. One relaxed load.
    pub fn has_large(&self) -> bool {
        self.next_id.load(Ordering::Relaxed) > FIRST_ID
    }

    /// Returns whether the version of the layout is stored, or need not be stored. One relaxed
    /// load.
    #[inline]
    pub(super) fn has_layout(&self) -> bool {
        self.has_layout.load(Ordering::Relaxed)
    }

    /// Records that the version of the layout is stored, or need not be stored.
    pub(super) fn layout_is_stored(&self) {
        self.has_layout.store(true, Ordering::Relaxed);
    }

    /// Returns whether a key that is absent may hold an expired head. One relaxed load.
    #[inline]
    pub(super) fn may_expire(&self) -> bool {
        self.may_expire.load(Ordering::Relaxed)
    }

    /// Records that a large collection is about to have a deadline.
    pub(super) fn will_expire(&self) {
        self.may_expire.store(true, Ordering::Relaxed);
    }

    pub(super) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Continues with the ids and entries of an opened store.
    pub(super) fn resume(&self, last_id: u64, reserved: usize, removals: usize) {
        self.next_id.store(last_id + 1, Ordering::Relaxed);
        if last_id > 0 {
            // It is not known which keys have heads.
            self.may_be_head.iter().for_each(|place| place.store(true, Ordering::Relaxed));
        }
        // A follower has counted before what it found at its start.
        for (counter, count) in [(&self.reserved, reserved), (&self.removals, removals)] {
            counter.add(count as i64 - counter.sum() as i64);
        }
    }

    /// Prepares for writes that do not come from commands: all that is known of keys and sets is
    /// given up.
    pub fn follow(&self) {
        self.positions.stop();
        self.next_id.fetch_max(FIRST_ID + 1, Ordering::Relaxed);
        self.may_be_head.iter().for_each(|place| place.store(true, Ordering::Relaxed));
        self.layout_is_stored();
        self.will_expire();
    }

    /// Commands write again. The caller has [resumed](Self::resume).
    pub(super) fn lead(&self) {
        self.positions.resume();
    }
}

/// A collection that a command reads or changes.
#[expect(clippy::large_enum_variant, reason = "a command has one, on its stack")]
#[derive(Debug)]
pub enum Body<'a> {
    Packed(packed::Packed),
    Large(large::Large<'a>),
}

impl Body<'_> {
    /// Returns the number of fields, members or values.
    pub fn len(&self) -> usize {
        match self {
            Self::Packed(packed) => packed.len(),
            Self::Large(large) => large.head.len(),
        }
    }
}
