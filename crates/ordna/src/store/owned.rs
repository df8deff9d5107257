//! A store whose entries belong to owners: what needs the way back from something to its entries
//! keeps pointers to their records, not copies of their keys.
//!
//! # Contract
//! An [`OwnedStore`] is written through its [`Owner`]s only. An owner belongs to one thread at a
//! time;
//! owners of one store work at once. Snapshots and statistics are those of [`Store`].
//!
//! # Invariants
//! 1. Each entry of the store is in the table of one owner at most: an insert succeeds only if the
//!    key is absent.
//! 2. The record of an entry in a table is not freed: it does not move while its entry lives,
//!    nothing overwrites it, and its owner alone removes the entry, after it has left the table.
//!
//! Source: the Nitro paper (VLDB 2016), §9: the reverse map points at the index's nodes.

#![expect(unsafe_code, reason = "owners read the records of their entries")]

use std::sync::Arc;
use std::thread;

use hashbrown::HashTable;

use super::engine::Payment;
use super::entry::Put;
use super::handle::{Statistics, Store};
use super::options::Options;
use super::snapshot::Snapshot;
use crate::tree::Tree;
use ordna_base::index::Change;
use ordna_base::record::Record;
use ordna_base::{Error, Key, MemoryUsage, OrderedIndex};

/// A record of an entry, and the entry's hash.
type Hashed = (u64, Record<[u8], u64>);

/// Computes the hash of an entry, by which its owner finds it.
pub type EntryHash = Arc<dyn Fn(&[u8], u64) -> u64 + Send + Sync>;

/// A store that its [`Owner`]s write.
///
/// ```
/// use std::sync::Arc;
/// use ordna::store::{Options, OwnedStore, Owner};
///
/// // Towns by their number of letters; the number is the hash.
/// let store = Arc::new(OwnedStore::new(Options::new()));
/// let mut owner = Owner::new(&store, Arc::new(|key: &[u8], _| key.len() as u64));
/// assert!(owner.insert(b"Lund", 4)?);
/// assert!(owner.insert(b"Oslo", 4)?);
/// assert_eq!(owner.remove_where(4, |key, _| key == b"Lund"), 1);
/// assert_eq!(store.snapshot().len(), 1);
/// # Ok::<(), ordna::Error>(())
/// ```
#[derive(Debug)]
pub struct OwnedStore(Store<[u8], u64>);

impl OwnedStore {
    /// An empty store.
    pub fn new(options: Options) -> Self {
        Self(Store::with_options(options))
    }

    /// Divides the entries of a store among owners. O(n), in parallel. The store has no journal.
    pub(crate) fn adopt(
        store: Store<[u8], u64>,
        owners: usize,
        owner_of: &(dyn Fn(&[u8], u64) -> usize + Sync),
        hash: &EntryHash,
    ) -> (Arc<Self>, Vec<Owner>) {
        let store = Arc::new(Self(store));
        let leaves = store.0.engine().tree.words();
        let share = leaves.len().div_ceil(thread::available_parallelism().map_or(1, usize::from));
        let sort = |leaves: &[Vec<u64>]| {
            let mut sorted = vec![Vec::new(); owners];
            for leaf in leaves {
                let records = leaf.iter().filter_map(|word| Tree::<[u8], u64>::record(*word));
                records.clone().for_each(Record::prefetch);
                for record in records {
                    let (owner, hash) =
                        // SAFETY: invariant 2; the entry is in no table yet, so nothing removes it.
                        unsafe { with(record, |key, value| (owner_of(key, value), hash(key, value))) };
                    sorted[owner % owners].push((hash, record));
                }
            }
            sorted
        };
        let sorted: Vec<Vec<Vec<Hashed>>> = thread::scope(|scope| {
            let parts = leaves.chunks(share.max(1)).map(|part| scope.spawn(move || sort(part)));
            let parts: Vec<_> = parts.collect();
            parts.into_iter().map(|part| part.join().expect("the closures do not panic")).collect()
        });
        let fill = |number: usize| {
            let mut owner = Owner::new(&store, Arc::clone(hash));
            let mine = sorted.iter().map(|part| &part[number]);
            owner.reserve(mine.clone().map(Vec::len).sum());
            for (hash, record) in mine.flatten() {
                owner.table.insert_unique(*hash, *record, |_| unreachable!("reserved above"));
            }
            owner
        };
        let owners = thread::scope(|scope| {
            let owners = (0..owners).map(|number| scope.spawn(move || fill(number)));
            let owners: Vec<_> = owners.collect();
            owners.into_iter().map(|owner| owner.join().expect("filling does not panic")).collect()
        });
        (store, owners)
    }

    /// The store, to be read.
    pub(crate) fn store(&self) -> &Store<[u8], u64> {
        &self.0
    }

    /// As [`Store::snapshot`].
    pub fn snapshot(&self) -> Snapshot<[u8], u64> {
        self.0.snapshot()
    }

    /// As [`Store::statistics`].
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// As [`OrderedIndex::memory_usage`].
    pub fn memory_usage(&self) -> MemoryUsage {
        self.0.memory_usage()
    }

    /// As [`Store::collect_garbage`].
    pub fn collect_garbage(&self) {
        self.0.collect_garbage();
    }
}

/// Calls `f` with key and value of a record.
///
/// # Safety
/// The record is not freed during the call.
unsafe fn with<R>(record: Record<[u8], u64>, f: impl FnOnce(&[u8], u64) -> R) -> R {
    // SAFETY: as the caller says.
    unsafe { record.with_value(|value| f(record.key(), *value)) }
}

/// The only writer of some entries of an [`OwnedStore`]: a hash table of pointers to their records.
///
/// Entries are found by a hash that the caller computes from key and value; several may have the
/// same one. The entries of a dropped owner stay in the store for good.
pub struct Owner {
    store: Arc<OwnedStore>,
    table: HashTable<Record<[u8], u64>>,
    hash: EntryHash,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").field("entries", &self.table.len()).finish_non_exhaustive()
    }
}

impl Owner {
    /// An owner of no entries yet.
    pub fn new(store: &Arc<OwnedStore>, hash: EntryHash) -> Self {
        Self { store: Arc::clone(store), table: HashTable::new(), hash }
    }

    /// The hash of a record in the table or about to enter it.
    fn hash_of(hash: &EntryHash, record: Record<[u8], u64>) -> u64 {
        // SAFETY: invariant 2.
        unsafe { with(record, |key, value| hash(key, value)) }
    }

    fn reserve(&mut self, entries: usize) {
        let hash = &self.hash;
        self.table.reserve(entries, |record| Self::hash_of(hash, *record));
    }

    /// Inserts an entry; `false` if the key is there already, whoever owns it. O(log n).
    ///
    /// # Errors
    /// The key is too long, or the store's memory limit is reached.
    pub fn insert(&mut self, key: &[u8], value: u64) -> Result<bool, Error> {
        key.check()?;
        self.reserve(1);
        let word = self.store.0.within_limit(|engine| {
            let done = engine.writing(|turn| {
                engine.apply(key, turn, Payment::Due, |found| match found {
                    None => Change::Put(Put::forever(value)),
                    Some(_) => Change::Keep,
                })
            });
            done.map(|outcome| outcome.word)
        })?;
        let Some(record) = Tree::<[u8], u64>::record(word) else { return Ok(false) };
        let hash = (self.hash)(key, value);
        let hasher = &self.hash;
        self.table.insert_unique(hash, record, |record| Self::hash_of(hasher, *record));
        Ok(true)
    }

    /// Calls `each` with the owner's entries of this hash. O(1) for each entry.
    pub fn visit(&self, hash: u64, mut each: impl FnMut(&[u8], u64)) {
        for record in self.table.iter_hash(hash) {
            // SAFETY: invariant 2.
            unsafe { with(*record, &mut each) };
        }
    }

    /// Removes the owner's entries of this hash for which `gone` answers `true`; returns how many.
    /// Their
    /// keys are not copied. O(log n) for each.
    pub fn remove_where(&mut self, hash: u64, mut gone: impl FnMut(&[u8], u64) -> bool) -> usize {
        let mut removed = 0;
        // SAFETY: invariant 2.
        let matches = |record: &Record<[u8], u64>| unsafe { with(*record, &mut gone) };
        let mut matches = matches;
        while let Ok(found) = self.table.find_entry(hash, &mut matches) {
            let record = found.remove().0;
            self.store.remove(record);
            removed += 1;
        }
        removed
    }

    /// Removes all of the owner's entries but those for which `keep` answers `true`. O(owned).
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8], u64) -> bool) -> usize {
        let store = &self.store;
        // SAFETY: invariant 2.
        let gone = |record: &mut Record<[u8], u64>| unsafe { !with(*record, &mut keep) };
        let gone = self.table.extract_if(gone);
        gone.map(|record| store.remove(record)).count()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether it owns nothing.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of the table.
    pub fn memory(&self) -> usize {
        self.table.allocation_size()
    }
}

impl OwnedStore {
    /// Removes the entry of a record that has just left the table of its owner.
    fn remove(&self, record: Record<[u8], u64>) {
        let engine = self.0.engine();
        let _guard = engine.collector.pin();
        // SAFETY: invariant 2 up to the removal below; the guard keeps the record from there on.
        let key: &[u8] = unsafe { record.key() };
        let done = engine
            .writing(|turn| engine.apply::<&u64, _>(key, turn, Payment::Due, |_| Change::Remove));
        debug_assert!(done.is_ok_and(|outcome| outcome.changed), "the entry of a record");
    }
}
