//! The locks of keys, and holding one over several commands.
//!
//! # Concurrency
//! A lock covers all keys with the same checksum modulo [`LOCKS`]. A thread that writes one key
//! several times in succession can [hold](KeyLocks::hold) its lock: until it releases the lock, its
//! own commands find the lock held and do not lock it again. Otherwise a waiting thread would have
//! to be woken after each of these writes.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ptr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ordna::Direction;
use ordna::checksum::crc32c;

use super::changes::EntryKey;

/// Number of locks of keys. Commands on two keys with the same lock exclude each other.
pub(super) const LOCKS: usize = 256;

thread_local! {
    /// The lock that the thread holds over several commands, as an address that is only compared.
    static HELD: Cell<*const RwLock<()>> = const { Cell::new(ptr::null()) };
    /// Number of commands for which it holds the lock.
    static COMMANDS: Cell<usize> = const { Cell::new(1) };
}

/// Entries at one end of a sorted set, which successive pops will remove. Empty unless the thread
/// holds the lock of the set's key and has only popped since it read them.
#[derive(Debug)]
struct OuterEntries {
    direction: Direction,
    /// The next one is the last.
    entries: Vec<EntryKey>,
}

thread_local! {
    static OUTER: RefCell<OuterEntries> = const {
        RefCell::new(OuterEntries { direction: Direction::Ascending, entries: Vec::new() })
    };
}

#[derive(Debug)]
pub(super) struct KeyLocks(Vec<RwLock<()>>);

/// A locked key, to write its collection.
#[must_use]
#[derive(Debug)]
pub struct LockedKey<'a> {
    /// `None` if the thread holds the lock over several commands.
    _guard: Option<RwLockWriteGuard<'a, ()>>,
}

/// A locked key, to read its collection.
#[must_use]
#[derive(Debug)]
pub struct SharedKey<'a> {
    /// `None` if the thread holds the lock over several commands.
    _guard: Option<RwLockReadGuard<'a, ()>>,
}

/// A lock that the thread holds over several commands. It must be dropped on the same thread.
#[must_use]
#[derive(Debug)]
pub struct HeldKey<'a> {
    _guard: RwLockWriteGuard<'a, ()>,
    _stays_on_thread: PhantomData<*const ()>,
}

/// Returns whether the thread holds a lock over several commands.
fn is_held() -> bool {
    !HELD.get().is_null()
}

/// Returns for how many commands the thread locks a key: those for which it holds the lock, or one.
pub fn commands() -> usize {
    if is_held() { COMMANDS.get() } else { 1 }
}

/// Returns the next outer entry of the sorted set with this prefix, if it is known. The caller has
/// locked the key with [`KeyLocks::lock_to_pop`], and removes the entry.
pub fn take_outer(prefix: &[u8], direction: Direction) -> Option<EntryKey> {
    OUTER.with_borrow_mut(|outer| {
        let is_next = outer.direction == direction
            && outer.entries.last().is_some_and(|entry| entry.starts_with(prefix));
        if is_next { outer.entries.pop() } else { None }
    })
}

/// Keeps outer entries, the last of which is the next one.
pub fn keep_outer(direction: Direction, entries: impl Iterator<Item = EntryKey>) {
    OUTER.with_borrow_mut(|outer| {
        outer.direction = direction;
        outer.entries.clear();
        outer.entries.extend(entries);
    });
}

/// Forgets outer entries.
pub fn forget_outer() {
    OUTER.with_borrow_mut(|outer| outer.entries.clear());
}

impl Drop for HeldKey<'_> {
    fn drop(&mut self) {
        forget_outer();
        HELD.set(ptr::null());
    }
}

impl Default for KeyLocks {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| RwLock::default()).collect())
    }
}

// A panic under a lock leaves the collection intact: a batch is all or nothing.
impl KeyLocks {
    fn of(&self, key: &[u8]) -> &RwLock<()> {
        &self.0[crc32c(key) as usize % LOCKS]
    }

    pub fn lock(&self, key: &[u8]) -> LockedKey<'_> {
        if is_held() {
            forget_outer();
        }
        self.lock_to_pop(key)
    }

    /// Locks a key to pop from a sorted set: outer entries that are known stay known.
    pub fn lock_to_pop(&self, key: &[u8]) -> LockedKey<'_> {
        let lock = self.of(key);
        let is_held = ptr::eq(HELD.get(), lock);
        let guard = (!is_held).then(|| lock.write().unwrap_or_else(PoisonError::into_inner));
        LockedKey { _guard: guard }
    }

    pub fn lock_shared(&self, key: &[u8]) -> SharedKey<'_> {
        let lock = self.of(key);
        let is_held = ptr::eq(HELD.get(), lock);
        let guard = (!is_held).then(|| lock.read().unwrap_or_else(PoisonError::into_inner));
        SharedKey { _guard: guard }
    }

    /// Locks a key for a number of commands, until the result is dropped. The thread must not hold a
    /// lock yet, and must lock only this key until then, because another thread may hold the other
    /// one and wait for this.
    pub fn hold(&self, key: &[u8], commands: usize) -> HeldKey<'_> {
        let lock = self.of(key);
        debug_assert!(HELD.get().is_null(), "the thread holds the lock of a key already");
        let guard = lock.write().unwrap_or_else(PoisonError::into_inner);
        HELD.set(lock);
        COMMANDS.set(commands);
        HeldKey { _guard: guard, _stays_on_thread: PhantomData }
    }
}
