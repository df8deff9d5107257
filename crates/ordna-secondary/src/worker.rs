//! Workers: each applies the changes of its documents to all indexes, in the order of its queue.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::define::Keys;
use crate::document::Mutation;
use crate::index::Index;
use crate::lanes::{Lanes, Message};
use crate::reverse::{Hasher, ReverseMap};

/// An index as one worker has it.
pub(crate) struct Local {
    pub index: Arc<Index>,
    pub map: ReverseMap,
    /// Entries inserted and removed since the last cut.
    pub writes: u64,
    /// While the index is built from a snapshot: what the snapshot's documents must not overwrite.
    pub newer: Option<Newer>,
}

/// What came by the stream while an index is being built.
#[derive(Default)]
pub(crate) struct Newer {
    documents: HashSet<Box<[u8]>>,
    buckets: HashSet<u32>,
}

impl Local {
    /// Makes the document's present keys its entries.
    fn apply(&mut self, hash: u64, mutation: &Mutation, keys: &mut Keys) {
        let index = &*self.index;
        if !index.definition.covers(&mutation.id) || index.failure.get().is_some() {
            return;
        }
        let made = match &mutation.document {
            Some(document) => index.definition.keys(&mutation.id, document, keys),
            None => {
                keys.clear();
                Ok(())
            }
        };
        if let Err(error) = made {
            index.leave_out(&mutation.id, error);
        }
        match self.map.set(hash, mutation.bucket, &mutation.id, keys) {
            Ok(writes) => self.writes += writes,
            Err(error) => index.fail(error),
        }
    }
}

/// Works until the service stops.
pub(crate) fn work(number: usize, lanes: &Lanes, hasher: &Hasher, mut indexes: Vec<Local>) {
    let (mut messages, mut keys) = (VecDeque::new(), Keys::default());
    while lanes.take(number, &mut messages) {
        for message in messages.drain(..) {
            match message {
                Message::Change(mutation) => {
                    let hash = hasher.of(&mutation.id);
                    for local in &mut indexes {
                        if let Some(newer) = &mut local.newer {
                            newer.documents.insert(mutation.id.clone());
                        }
                        local.apply(hash, &mutation, &mut keys);
                    }
                }
                Message::Fill(index, mutations) => {
                    let Some(local) = find(&mut indexes, &index) else { continue };
                    for mutation in &mutations {
                        let is_newer = local.newer.as_ref().is_none_or(|newer| {
                            newer.documents.contains(&mutation.id)
                                || newer.buckets.contains(&mutation.bucket)
                        });
                        if !is_newer {
                            local.apply(hasher.of(&mutation.id), mutation, &mut keys);
                        }
                    }
                    index.built.fetch_add(mutations.len() as u64, Ordering::Relaxed);
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
                Message::Remove(index) => indexes.retain(|local| local.index.uid != index.uid),
                Message::Clear(bucket) => {
                    for local in &mut indexes {
                        local.map.clear_bucket(bucket);
                        if let Some(newer) = &mut local.newer {
                            newer.buckets.insert(bucket);
                        }
                    }
                }
                Message::Cut(meeting) => {
                    for local in &mut indexes {
                        let writes = std::mem::take(&mut local.writes);
                        local.index.writes.fetch_add(writes, Ordering::Relaxed);
                        let bytes = &local.index.reverse_bytes[number];
                        bytes.store(local.map.memory(), Ordering::Relaxed);
                    }
                    meeting.attend();
                }
            }
        }
    }
}

fn find<'a>(indexes: &'a mut [Local], index: &Index) -> Option<&'a mut Local> {
    indexes.iter_mut().find(|local| local.index.uid == index.uid)
}
