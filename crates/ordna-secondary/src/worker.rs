//! Workers. Each worker applies the changes of its documents to all indexes, in the order of its
//! queue.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ordna::store::Wanted;

use crate::define::{Keys, entry_value};
use crate::document::Mutation;
use crate::index::{Index, WorkerMark};
use crate::reverse::{Hasher, ReverseMap};
use crate::shard_queues::{Message, ShardQueues};

/// A worker's own data about an index.
pub(crate) struct Local {
    pub index: Arc<Index>,
    pub map: ReverseMap,
    /// Number of entries inserted and removed since the last snapshot point.
    pub writes: u64,
    /// While the index is built from a snapshot: the documents that the snapshot must not
    /// overwrite.
    pub newer: Option<Newer>,
}

/// Documents that changed while an index is being built.
#[derive(Default)]
pub(crate) struct Newer {
    documents: HashSet<Box<[u8]>>,
    partitions: HashSet<u32>,
    /// Whether all documents of the snapshot have been deleted.
    all: bool,
}

/// Changes of different documents, which are applied together so that their cache misses overlap.
#[derive(Default)]
struct Group {
    changes: Vec<(u64, Mutation)>,
    /// The keys of all these documents in one index.
    keys: Keys,
}

impl Group {
    /// Maximum number of changes in a group.
    const MOST: usize = 64;

    /// Returns whether a change of a document with this hash can be added.
    fn has_room(&self, hash: u64) -> bool {
        self.changes.len() < Self::MOST && self.changes.iter().all(|(other, _)| *other != hash)
    }

    /// Updates the entries of the documents in each index, and empties the group.
    fn apply<'a>(&mut self, indexes: impl IntoIterator<Item = &'a mut Local>) {
        if !self.changes.is_empty() {
            indexes.into_iter().for_each(|local| local.apply(&self.changes, &mut self.keys));
            self.changes.clear();
        }
    }
}

impl Local {
    /// Updates the entries of each document. No document may occur twice.
    fn apply(&mut self, changes: &[(u64, Mutation)], keys: &mut Keys) {
        let index = &*self.index;
        if index.failure.get().is_some() {
            return;
        }
        keys.clear();
        let mut wanted = Vec::with_capacity(changes.len());
        for (hash, Mutation { partition, id, document, .. }) in changes {
            if !index.definition.covers(id) {
                continue;
            }
            let start = keys.len();
            if let Some(document) = document
                && let Err(error) = index.definition.append_keys(id, document, keys)
            {
                index.leave_out(id, error);
            }
            let value = entry_value(*partition, id);
            wanted.push(Wanted { id, hash: *hash, value, keys: start..keys.len() });
        }
        match self.map.set(&wanted, keys) {
            Ok(writes) => self.writes += writes,
            Err(error) => index.fail(error),
        }
    }
}

/// Runs a worker until the service stops.
pub(crate) fn work(number: usize, queues: &ShardQueues, hasher: &Hasher, mut indexes: Vec<Local>) {
    let _worker = WorkerMark::set();
    let (mut messages, mut group) = (VecDeque::new(), Group::default());
    while queues.take(number, &mut messages) {
        for message in messages.drain(..) {
            if !matches!(message, Message::Change(_)) {
                group.apply(&mut indexes);
            }
            match message {
                Message::Change(mutation) => {
                    for newer in indexes.iter_mut().filter_map(|local| local.newer.as_mut()) {
                        newer.documents.insert(mutation.id.clone());
                    }
                    let hash = hasher.of(&mutation.id);
                    if !group.has_room(hash) {
                        group.apply(&mut indexes);
                    }
                    group.changes.push((hash, mutation));
                }
                Message::Fill(index, mutations) => {
                    let Some(local) = find(&mut indexes, &index) else { continue };
                    index.built.fetch_add(mutations.len() as u64, Ordering::Relaxed);
                    for mutation in mutations {
                        let is_newer = local.newer.as_ref().is_none_or(|newer| {
                            newer.all
                                || newer.documents.contains(&mutation.id)
                                || newer.partitions.contains(&mutation.partition)
                        });
                        if !is_newer {
                            let hash = hasher.of(&mutation.id);
                            if !group.has_room(hash) {
                                group.apply([&mut *local]);
                            }
                            group.changes.push((hash, mutation));
                        }
                    }
                    group.apply([local]);
                }
                Message::Filled(index) => {
                    if let Some(local) = find(&mut indexes, &index) {
                        local.newer = None;
                        index.filled.fetch_add(1, Ordering::Release);
                    }
                }
                Message::Add(index, map) => {
                    let newer = (!index.is_filled()).then(Newer::default);
                    indexes.push(Local { index, map: *map, writes: 0, newer });
                }
                Message::Remove(index, removed) => {
                    // The thread that drops the index frees it. If this worker did, the other
                    // workers would have to wait for it at the next snapshot point.
                    let at = indexes.iter().position(|local| local.index.uid == index.uid);
                    removed.lock().extend(at.map(|at| indexes.remove(at).map));
                }
                Message::Clear(partition) => {
                    for local in &mut indexes {
                        local.map.clear_partition(partition);
                        if let Some(newer) = &mut local.newer {
                            newer.partitions.insert(partition);
                        }
                    }
                }
                Message::ClearAll => {
                    for local in &mut indexes {
                        local.map.forget();
                        if let Some(newer) = &mut local.newer {
                            newer.all = true;
                        }
                    }
                    // Once all workers have forgotten the entries, one of them removes all entries
                    // in bulk. All workers have the same indexes at this point.
                    let clear = || indexes.iter().for_each(|local| local.index.entries.clear());
                    if !queues.meet(clear) {
                        return;
                    }
                }
                Message::SnapshotPoint(take) => {
                    for local in &mut indexes {
                        let writes = std::mem::take(&mut local.writes);
                        local.index.writes.fetch_add(writes, Ordering::Relaxed);
                        let bytes = &local.index.reverse_bytes[number];
                        bytes.store(local.map.memory(), Ordering::Relaxed);
                    }
                    if !queues.meet(|| take()) {
                        return;
                    }
                }
            }
        }
        group.apply(&mut indexes);
    }
}

fn find<'a>(indexes: &'a mut [Local], index: &Index) -> Option<&'a mut Local> {
    indexes.iter_mut().find(|local| local.index.uid == index.uid)
}
