//! Reverse maps lead from a document to its entries. Each worker has one for each index.
//!
//! # Contract
//! A map belongs to one worker. It knows the entries of the worker's documents, and it alone writes
//! them.
//!
//! Source: the Nitro paper (VLDB 2016), §9, "Optimizations for reverse-map data structure" and
//! "Storage Optimization".

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;
use ordna::store::{EntryHash, OwnedStore, Owner, Wanted};
use ordna::sync::notice;
use ordna::{Error, Snapshot, Store};

use crate::define::{Keys, id_of, partition_of};

/// What reverse maps hold for each entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reverse {
    /// A pointer to the record of each entry.
    #[default]
    Pointers,
    /// A copy of each document's id and keys.
    Copies,
}

/// The store of an index.
pub(crate) enum IndexStore {
    Pointers(Arc<OwnedStore>),
    Copies(Arc<Store<[u8], u64>>),
}

impl IndexStore {
    pub fn new(reverse: Reverse, options: ordna::Options) -> Self {
        match reverse {
            Reverse::Pointers => Self::Pointers(Arc::new(OwnedStore::new(options))),
            Reverse::Copies => Self::Copies(Arc::new(Store::with_options(options))),
        }
    }

    pub fn snapshot(&self) -> Snapshot<[u8], u64> {
        match self {
            Self::Pointers(store) => store.snapshot(),
            Self::Copies(store) => store.snapshot(),
        }
    }

    pub fn memory(&self) -> usize {
        match self {
            Self::Pointers(store) => store.memory_usage().total(),
            Self::Copies(store) => store.memory_usage().total(),
        }
    }

    /// Removes all entries, whole leaves at a time. All workers must have
    /// [forgotten](ReverseMap::forget) them, and no worker may write during the call.
    pub fn clear(&self) {
        match self {
            Self::Pointers(store) => store.clear(),
            Self::Copies(store) => drop(store.clear()),
        }
    }

    /// Creates an empty map for a worker.
    pub fn map(&self, hasher: &Hasher) -> ReverseMap {
        match self {
            Self::Pointers(store) => ReverseMap::Pointers(Owner::new(store, hasher.of_entries())),
            Self::Copies(store) => {
                ReverseMap::Copies { store: Arc::clone(store), map: HashMap::default(), memory: 0 }
            }
        }
    }
}

/// Computes hashes of ids. The key of the hash function is random for each process.
#[derive(Clone, Default)]
pub(crate) struct Hasher(DefaultHashBuilder);

impl Hasher {
    pub fn of(&self, id: &[u8]) -> u64 {
        self.0.hash_one(id)
    }

    pub fn of_entries(&self) -> EntryHash {
        let state = self.0.clone();
        Arc::new(move |key: &[u8], value| state.hash_one(id_of(key, value)))
    }
}

type Copies = HashMap<Box<[u8]>, (u32, Box<[Box<[u8]>]>), DefaultHashBuilder>;

/// Replaces the entries of a document by entries with these keys.
fn copy(
    store: &Store<[u8], u64>,
    (map, memory): (&mut Copies, &mut usize),
    document: &Wanted<'_>,
    keys: &[&[u8]],
) -> Result<u64, Error> {
    let Wanted { id, value, .. } = *document;
    let mut writes = 0;
    let old = map.get(id).map_or(&[][..], |(_, keys)| keys);
    for gone in old.iter().filter(|old| !keys.contains(&&***old)) {
        store.remove(gone)?;
        writes += 1;
    }
    for new in keys.iter().filter(|new| !old.iter().any(|old| &**old == **new)) {
        store.insert(new, &value)?;
        writes += 1;
    }
    let bytes = |id: &[u8], keys: &[Box<[u8]>]| -> usize {
        id.len() + size_of_val(keys) + keys.iter().map(|key| key.len()).sum::<usize>()
    };
    if let Some((id, (_, keys))) = map.remove_entry(id) {
        *memory -= bytes(&id, &keys);
    }
    if !keys.is_empty() {
        let keys: Box<[Box<[u8]>]> = keys.iter().copied().map(Box::from).collect();
        *memory += bytes(id, &keys);
        map.insert(Box::from(id), (partition_of(value), keys));
    }
    Ok(writes)
}

/// The entries of a worker's documents in one index.
pub(crate) enum ReverseMap {
    Pointers(Owner),
    Copies { store: Arc<Store<[u8], u64>>, map: Copies, memory: usize },
}

impl ReverseMap {
    /// Replaces the entries of each document by entries with its new keys, and returns how many
    /// entries were inserted and removed. No document may occur twice. Entries whose key stays the
    /// same are not touched. O(log n) for each entry that is inserted or removed.
    ///
    /// # Errors
    /// The memory limit is reached. Entries may be missing from then on.
    pub fn set(&mut self, documents: &[Wanted<'_>], keys: &Keys) -> Result<u64, Error> {
        let keys: Vec<&[u8]> = keys.iter().collect();
        match self {
            Self::Pointers(owner) => {
                let is_of = |document: &Wanted<'_>, key: &[u8], value| {
                    notice!("pipeline.reverse.removes", id_of(key, value) == document.id)
                };
                owner.set_many(documents, &keys, is_of).map(|writes| writes as u64)
            }
            Self::Copies { store, map, memory } => {
                let set = |document: &Wanted<'_>| {
                    let keys = &keys[document.keys.clone()];
                    copy(store, (map, memory), document, keys)
                };
                documents.iter().map(set).sum()
            }
        }
    }

    /// Removes the entries of all documents of a partition. O(documents).
    pub fn clear_partition(&mut self, partition: u32) {
        match self {
            Self::Pointers(owner) => {
                owner.retain(|_, value| partition_of(value) != partition);
            }
            Self::Copies { store, map, .. } => map.retain(|_, (of, keys)| {
                if *of == partition {
                    for key in keys {
                        // This cannot fail, as the store is only in memory and has no log.
                        _ = store.remove(key);
                    }
                }
                *of != partition
            }),
        }
    }

    /// Forgets the entries of all documents. They remain in the index until [`IndexStore::clear`].
    pub fn forget(&mut self) {
        match self {
            Self::Pointers(owner) => owner.forget(),
            Self::Copies { map, memory, .. } => {
                *map = HashMap::default();
                *memory = 0;
            }
        }
    }

    /// Returns the bytes that the map occupies, without those of the index.
    pub fn memory(&self) -> usize {
        match self {
            Self::Pointers(owner) => owner.memory(),
            Self::Copies { map, memory, .. } => {
                // The table of a standard hash map has one control byte and one slot for each
                // bucket.
                let slot = size_of::<Box<[u8]>>() + size_of::<(u32, Box<[Box<[u8]>]>)>() + 1;
                (map.capacity() * 8 / 7).next_power_of_two() * slot + memory
            }
        }
    }
}
