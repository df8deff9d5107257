//! A store whose entries belong to owners. A reverse map, which leads from a subject to its
//! entries, can hold pointers to their records instead of copies of their keys.
//!
//! # Contract
//! An [`OwnedStore`] is written only through its [`Owner`]s. An owner belongs to one thread at a
//! time; the owners of a store work concurrently. Snapshots and statistics are those of [`Store`].
//!
//! # Invariants
//! 1. Each entry of the store is in the table of at most one owner: an insert succeeds only if the
//!    key is absent.
//! 2. The record of an entry in a table is not freed. It does not move during its entry's life,
//!    nothing overwrites it, and only its owner removes the entry, after removing it from the
//!    table.
//!
//! Source: the Nitro paper (VLDB 2016), §9, whose reverse map points at the index's nodes.

#![expect(unsafe_code, reason = "owners read the records of their entries")]

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::thread;

use hashbrown::HashTable;

use super::engine::Payment;
use super::handle::Store;
use super::options::Options;
use super::snapshot::Snapshot;
use super::statistics::Statistics;
use crate::entry::Put;
use crate::tree::{GROUP, Probe, Tree};
use ordna_base::index::Change;
use ordna_base::record::Record;
use ordna_base::{Error, Key, MemoryUsage};

/// The record of an entry, and the entry's hash.
type Hashed = (u64, Record<[u8], u64>);

/// A function that computes the hash by which an owner finds an entry.
pub type EntryHash = Arc<dyn Fn(&[u8], u64) -> u64 + Send + Sync>;

/// A store that is written by [`Owner`]s.
///
/// ```
/// use std::sync::Arc;
/// use ordna::store::{Options, OwnedStore, Owner, Wanted};
///
/// // Towns by their number of letters, which is the hash.
/// let store = Arc::new(OwnedStore::new(Options::new()));
/// let mut owner = Owner::new(&store, Arc::new(|key: &[u8], _| key.len() as u64));
/// let four = Wanted { id: b"4", hash: 4, value: 4, keys: 0..2 };
/// let is_of = |_: &Wanted, key: &[u8], value: u64| key.len() as u64 == value;
/// assert_eq!(owner.set_many(&[four.clone()], &[b"Lund", b"Oslo"], is_of)?, 2);
/// // Lund goes, Oslo stays, Rome comes.
/// assert_eq!(owner.set_many(&[four], &[b"Oslo", b"Rome"], is_of)?, 2);
/// assert_eq!(store.snapshot().len(), 2);
/// # Ok::<(), ordna::Error>(())
/// ```
#[derive(Debug)]
pub struct OwnedStore(Store<[u8], u64>);

impl OwnedStore {
    /// Creates an empty store.
    pub fn new(options: Options) -> Self {
        Self(Store::with_options(options.records_stay()))
    }

    /// Divides the entries of a store among owners. O(n), in parallel. The store must have no log,
    /// and its records must keep their addresses.
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
                    let place = |key: &_, value| (owner_of(key, value), hash(key, value));
                    // SAFETY: invariant 2; the entry is not in any table yet, so nothing removes
                    // it.
                    let (owner, hash) = unsafe { with(record, place) };
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

    /// Returns the store, for reads.
    pub(crate) fn store(&self) -> &Store<[u8], u64> {
        &self.0
    }

    /// Takes a snapshot, like [`Store::snapshot`].
    pub fn snapshot(&self) -> Snapshot<[u8], u64> {
        self.0.snapshot()
    }

    /// Returns the statistics, like [`Store::statistics`].
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// Returns the memory use, like
    /// [`OrderedIndex::memory_usage`](ordna_base::OrderedIndex::memory_usage).
    pub fn memory_usage(&self) -> MemoryUsage {
        self.0.memory_usage()
    }

    /// Collects garbage, like [`Store::collect_garbage`].
    pub fn collect_garbage(&self) {
        self.0.collect_garbage();
    }
}

/// Calls `f` with key and value of a record.
///
/// # Safety
/// The record is not freed during the call.
unsafe fn with<R>(record: Record<[u8], u64>, f: impl FnOnce(&[u8], u64) -> R) -> R {
    // SAFETY: the caller upholds the contract.
    unsafe { record.with_value(|value| f(record.key(), *value)) }
}

/// The entries that a subject should have, see [`Owner::set_many`].
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// Name of the subject.
    pub id: &'a [u8],
    /// The hash of its entries.
    pub hash: u64,
    /// The value of its entries.
    pub value: u64,
    /// Positions of its keys in the list of keys.
    pub keys: Range<usize>,
}

/// The only writer of some entries of an [`OwnedStore`], with a hash table of pointers to their
/// records.
///
/// Entries are found by a hash that the caller computes from key and value; several entries may
/// have the same hash. The entries of a dropped owner stay in the store permanently.
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
    /// Creates an owner without entries.
    pub fn new(store: &Arc<OwnedStore>, hash: EntryHash) -> Self {
        Self { store: Arc::clone(store), table: HashTable::new(), hash }
    }

    /// Returns the hash of a record that is in the table or about to enter it.
    fn hash_of(hash: &EntryHash, record: Record<[u8], u64>) -> u64 {
        // SAFETY: invariant 2.
        unsafe { with(record, |key, value| hash(key, value)) }
    }

    /// Makes room in the table. A growing table needs the hash of each record; the records of a
    /// batch are prefetched together, so that their cache misses overlap.
    fn reserve(&mut self, entries: usize) {
        const BATCH: usize = 64;
        let needed = self.table.len() + entries;
        if needed <= self.table.capacity() {
            return;
        }
        let whole = self.table.num_buckets() / 8 * 7;
        // A table with many tombstones keeps its size.
        let size = if needed > whole / 2 { needed.max(whole + 1) } else { whole };
        let mut grown = HashTable::with_capacity(size);
        let (mut old, mut batch) = (self.table.iter().copied(), Vec::with_capacity(BATCH));
        loop {
            batch.extend(old.by_ref().take(BATCH));
            if batch.is_empty() {
                break;
            }
            batch.iter().for_each(|record: &Record<_, _>| record.prefetch());
            for record in batch.drain(..) {
                let hash = Self::hash_of(&self.hash, record);
                grown.insert_unique(hash, record, |_| unreachable!("the table has the capacity"));
            }
        }
        drop(old);
        self.table = grown;
    }

    /// Makes the given keys of each subject its entries, and returns how many entries were inserted
    /// or removed. Other entries are not changed. `is_of` returns whether an entry belongs to a
    /// subject. Subjects must differ and must not have keys in common. O(log n) for each inserted
    /// or removed entry; the memory accesses of the subjects overlap.
    ///
    /// # Errors
    /// A key is too long; nothing was changed. Or the memory limit of the store is reached; some
    /// entries are missing.
    pub fn set_many(
        &mut self,
        subjects: &[Wanted<'_>],
        keys: &[&[u8]],
        is_of: impl Fn(&Wanted<'_>, &[u8], u64) -> bool,
    ) -> Result<usize, Error> {
        keys.iter().try_for_each(|key| key.check())?;
        let mut found = Vec::with_capacity(subjects.len());
        for (at, subject) in subjects.iter().enumerate() {
            for record in self.table.iter_hash(subject.hash) {
                record.prefetch();
                found.push((at, *record));
            }
        }
        let mut is_there = vec![false; keys.len()];
        let mut gone = Vec::new();
        for (at, record) in found {
            let subject = &subjects[at];
            let stays = |key: &[u8], value| {
                if !is_of(subject, key, value) {
                    return true;
                }
                let stays = keys[subject.keys.clone()].iter().position(|wanted| *wanted == key);
                stays.map(|position| is_there[subject.keys.start + position] = true).is_some()
            };
            // SAFETY: invariant 2.
            if !unsafe { with(record, stays) }
                && let Ok(entry) = self.table.find_entry(subject.hash, |other| *other == record)
            {
                entry.remove();
                gone.push(record);
            }
        }
        self.store.remove_many(&gone);
        let new = |subject: &Wanted<'_>| {
            let (hash, value) = (subject.hash, subject.value);
            let absent = subject.keys.clone().filter(|at| !is_there[*at]);
            absent.map(move |at| (keys[at], value, hash)).collect::<Vec<_>>()
        };
        let new: Vec<_> = subjects.iter().flat_map(new).collect();
        Ok(gone.len() + self.insert_many(&new)?)
    }

    /// Inserts entries of key, value and hash in groups. Returns how many keys were absent.
    fn insert_many(&mut self, entries: &[(&[u8], u64, u64)]) -> Result<usize, Error> {
        self.reserve(entries.len());
        let (mut done, mut inserted) = (0, 0);
        let (store, table) = (&self.store.0, &mut self.table);
        store.within_limit(|engine| {
            for group in entries[done..].chunks(GROUP) {
                let probes: Vec<_> = group.iter().map(|(key, ..)| Probe::new(*key)).collect();
                engine.writing(|scope| {
                    let addresses = engine.tree.locate_many(&probes, scope.guard);
                    for ((probe, (_, value, hash)), address) in
                        probes.iter().zip(group).zip(addresses)
                    {
                        let word = engine.apply_from(
                            probe,
                            Some(address),
                            scope,
                            Payment::Due,
                            |found| match found {
                                None => Change::Put(Put::forever(*value)),
                                Some(_) => Change::Keep,
                            },
                        )?;
                        done += 1;
                        if let Some(record) = Tree::<[u8], u64>::record(word) {
                            table.insert_unique(*hash, record, |_| unreachable!("reserved above"));
                            inserted += 1;
                        }
                    }
                    Ok::<(), Error>(())
                })?;
            }
            Ok(())
        })?;
        Ok(inserted)
    }

    /// Removes the owner's entries for which `keep` returns `false`. O(owned).
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8], u64) -> bool) -> usize {
        let store = &self.store;
        // SAFETY: invariant 2.
        let gone = |record: &mut Record<[u8], u64>| unsafe { !with(*record, &mut keep) };
        let gone: Vec<_> = self.table.extract_if(gone).collect();
        store.remove_many(&gone);
        gone.len()
    }

    /// Clears the owner's table. The entries stay in the store until [`OwnedStore::clear`].
    pub fn forget(&mut self) {
        self.table = HashTable::new();
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether the owner has no entries.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the size of the table in bytes.
    pub fn memory(&self) -> usize {
        self.table.allocation_size()
    }
}

impl OwnedStore {
    /// Removes all entries, leaf by leaf. Every owner must have [forgotten](Owner::forget) its
    /// entries, and no owner may write concurrently.
    pub fn clear(&self) {
        self.0.remove_range_unlogged(Bound::Unbounded, Bound::Unbounded);
    }

    /// Removes the entries of records that have just been removed from their owner's table.
    fn remove_many(&self, records: &[Record<[u8], u64>]) {
        let engine = self.0.engine();
        let _guard = engine.collector.pin();
        for group in records.chunks(GROUP) {
            // SAFETY: invariant 2 up to the removal below; afterwards the guard keeps the record
            // alive.
            let key = |record: &Record<[u8], u64>| unsafe { record.key() };
            let probes: Vec<_> = group.iter().map(|record| Probe::new(key(record))).collect();
            engine.writing(|scope| {
                let addresses = engine.tree.locate_many(&probes, scope.guard);
                for (probe, address) in probes.iter().zip(addresses) {
                    let mut is_there = false;
                    let (from, payment) = (Some(address), Payment::Due);
                    let done = engine.apply_from::<&u64, _>(probe, from, scope, payment, |found| {
                        is_there = found.is_some();
                        Change::Remove
                    });
                    debug_assert!(done.is_ok() && is_there, "a record's entry");
                }
            });
        }
    }
}
