//! Collections: hashes, sets, sorted sets and lists of any size.
//!
//! # Forms
//! A small collection is one record ([`packed`], [`hash`](super::hash)). Of a large one the key holds a
//! [`Head`], and each element is an entry of the store of its own, under the head's id in the reserved
//! space of [`stored_key`](super::stored_key); values of a list share entries ([`nodes`]). Snapshots, log,
//! backups and memory limit are the store's.
//!
//! # Invariants
//! - An id names one collection as long as the process lives.
//! - A head is changed or removed only under the lock of its key, or under the exclusive lock of the
//!   keyspace, also if it has expired: who changes it has perhaps seen it before. A head comes into being
//!   only under the latter.
//! - Elements and head are written in one batch, or the elements before the head, while their id is
//!   in the list of removals. So in each state of the store, also after a crash, each id with
//!   elements has one head, or an entry in the list of removals, or a head that has expired and
//!   whose entry in the list of deadlines still exists.
//! - A head with a deadline has one entry in the list of deadlines, which names its key.
//!
//! # Order of locks
//! Keyspace, then key. A command that locks several keys holds the keyspace exclusively.
//!
//! # Removal
//! Whoever removes or overwrites a head adds its id to the list of removals in the same batch. A task
//! removes the elements in stretches, and then the entry; it also finds heads that have expired. After
//! a restart it continues with what the lists hold.
//!
//! # Long writes
//! A command that makes a large collection may store its elements in stretches, before a key has
//! it. Until then its id is in the list of removals ([`staging`](super::edits::staging)).

pub mod changes;
pub mod ends;
pub mod field_deadlines;
pub mod head;
pub mod large;
pub mod names;
pub mod nodes;
pub mod packed;
pub mod positions;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ordna::checksum::crc32c;
use ordna::sync::{Lock, StripedCounter};

use self::positions::Positions;

/// Number of locks of keys. Two keys with the same lock exclude each other for the time of a command.
const LOCKS: usize = 256;
/// Number of places that tell where heads may be.
const PLACES: usize = 1 << 13;
/// The id of the first large collection.
const FIRST_ID: u64 = 1;

/// What the collections of a keyspace share.
#[derive(Debug)]
pub struct Collections {
    locks: Vec<RwLock<()>>,
    /// Of each lock, whether the head of a list was seen under it.
    has_list: Vec<AtomicBool>,
    /// For each lock: whether the collection last seen under it was large.
    was_large: Vec<AtomicBool>,
    /// For each lock: whether the key under it that was last popped from was absent.
    was_absent: Vec<AtomicBool>,
    /// By checksum of stored keys: whether the head of a large collection may be at one. Set before
    /// the head is written.
    may_be_head: Vec<AtomicBool>,
    next_id: AtomicU64,
    /// Whether the version of the layout is stored, or need not be.
    has_layout: AtomicBool,
    /// Whether a large collection has a deadline, or had one since the start.
    may_expire: AtomicBool,
    /// Held while the version of the layout is stored. The caller may hold the lock of any key.
    pub(super) storing_layout: Lock<()>,
    /// Positions in large sorted sets.
    pub(super) positions: Positions,
    /// Number of entries in the reserved space of keys.
    pub reserved: StripedCounter,
    /// Number of entries in the list of removals.
    pub removals: StripedCounter,
    /// Held while elements are removed behind their key.
    pub(super) removing: Lock<()>,
    /// Ids in the list of removals whose elements are not removed, because a command is about to
    /// give them to a key. Held while the removal chooses an id.
    pub(super) unfinished: Mutex<BTreeSet<u64>>,
}

impl Default for Collections {
    fn default() -> Self {
        Self {
            locks: (0..LOCKS).map(|_| RwLock::default()).collect(),
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
    fn lock_of(&self, key: &[u8]) -> &RwLock<()> {
        &self.locks[crc32c(key) as usize % LOCKS]
    }

    /// Whether a key may hold the head of a list: one was seen under its lock. A hint, by which the write is chosen
    /// that is tried first.
    pub(super) fn may_hold_list(&self, key: &[u8]) -> bool {
        self.has_list[crc32c(key) as usize % LOCKS].load(Ordering::Relaxed)
    }

    /// Notes that a key holds the head of a list.
    pub(super) fn saw_list(&self, key: &[u8]) {
        let seen = &self.has_list[crc32c(key) as usize % LOCKS];
        if !seen.load(Ordering::Relaxed) {
            seen.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the collection of a key is probably large. A hint: it decides which form is tried first.
    pub(super) fn may_be_large(&self, key: &[u8]) -> bool {
        self.was_large[crc32c(key) as usize % LOCKS].load(Ordering::Relaxed)
    }

    /// Notes whether the collection of a key is large.
    pub(super) fn saw(&self, key: &[u8], is_large: bool) {
        let seen = &self.was_large[crc32c(key) as usize % LOCKS];
        if seen.load(Ordering::Relaxed) != is_large {
            seen.store(is_large, Ordering::Relaxed);
        }
    }

    /// Whether a key from which a command pops is probably absent. A hint: then it is read first.
    pub(super) fn may_be_absent(&self, key: &[u8]) -> bool {
        self.was_absent[crc32c(key) as usize % LOCKS].load(Ordering::Relaxed)
    }

    /// Notes whether a key from which a command pops is absent.
    pub(super) fn saw_absent(&self, key: &[u8], is_absent: bool) {
        let seen = &self.was_absent[crc32c(key) as usize % LOCKS];
        if seen.load(Ordering::Relaxed) != is_absent {
            seen.store(is_absent, Ordering::Relaxed);
        }
    }

    /// Whether the head of a large collection may be at a key in its stored form. `false` is certain, for who
    /// excludes other commands.
    pub(super) fn may_be_head(&self, stored_key: &[u8]) -> bool {
        self.has_large()
            && self.may_be_head[crc32c(stored_key) as usize % PLACES].load(Ordering::Relaxed)
    }

    /// Notes that a head is about to be written at a key in its stored form.
    pub(super) fn will_be_head(&self, stored_key: &[u8]) {
        let place = &self.may_be_head[crc32c(stored_key) as usize % PLACES];
        if !place.load(Ordering::Relaxed) {
            place.store(true, Ordering::Relaxed);
        }
    }

    /// Locks a key, to write the collection that it holds.
    pub fn lock(&self, key: &[u8]) -> RwLockWriteGuard<'_, ()> {
        // A panic under the lock leaves the collection intact: a batch is all or nothing.
        self.lock_of(key).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a key, to read several elements of the collection that it holds.
    pub fn lock_shared(&self, key: &[u8]) -> RwLockReadGuard<'_, ()> {
        self.lock_of(key).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ids of collections that are stored before a key has them.
    pub(super) fn unfinished(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was a large collection since the start. One relaxed load.
    pub fn has_large(&self) -> bool {
        self.next_id.load(Ordering::Relaxed) > FIRST_ID
    }

    /// Whether the version of the layout is stored, or need not be. One relaxed load.
    #[inline]
    pub(super) fn has_layout(&self) -> bool {
        self.has_layout.load(Ordering::Relaxed)
    }

    /// Notes that the version of the layout is stored, or need not be.
    pub(super) fn layout_is_stored(&self) {
        self.has_layout.store(true, Ordering::Relaxed);
    }

    /// Whether a key that is absent may hold a head that has expired. One relaxed load.
    #[inline]
    pub(super) fn may_expire(&self) -> bool {
        self.may_expire.load(Ordering::Relaxed)
    }

    /// Notes that a large collection is about to have a deadline.
    pub(super) fn will_expire(&self) {
        self.may_expire.store(true, Ordering::Relaxed);
    }

    pub(super) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Continues after the ids and entries of a store that was opened.
    pub(super) fn resume(&self, last_id: u64, reserved: usize, removals: usize) {
        self.next_id.store(last_id + 1, Ordering::Relaxed);
        if last_id > 0 {
            // Which keys have heads is not known.
            self.may_be_head.iter().for_each(|place| place.store(true, Ordering::Relaxed));
        }
        self.reserved.add(i64::try_from(reserved).unwrap_or(i64::MAX));
        self.removals.add(i64::try_from(removals).unwrap_or(i64::MAX));
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
    /// Number of fields, members or values.
    pub fn len(&self) -> usize {
        match self {
            Self::Packed(packed) => packed.len(),
            Self::Large(large) => large.head.len(),
        }
    }
}
