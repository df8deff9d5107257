//! The embedded source, for documents that are written by this process.
//!
//! # Contract
//! Every write of a document goes through [`Embedded::write`], which locks the document's partition
//! before the write and unlocks it after the change is queued. So the changes are queued in the
//! order of the writes. The locks are taken in this order: partition, gate of the snapshot points,
//! queue. The closure of a write must not write another document.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

use ordna::sync::Lock;

use crate::document::{Document, Mutation};
use crate::error::SourceError;
use crate::shard_queues::SnapshotHold;
use crate::source::{ChangeSource, Documents, Feed};
use crate::version_vector::{Position, VersionVector};

/// The id of a document, and the document.
pub type Named = (Box<[u8]>, Document);

/// The documents of an embedded source.
pub trait DocumentStore: Send + Sync {
    /// Returns the present state of the document with this id.
    fn get(&self, id: &[u8]) -> Option<Document>;

    /// Returns all documents as of this call, split into about `parts` iterators. All writes wait
    /// for this call, so it must be short. The iterators do the actual reading, concurrently with
    /// later writes.
    fn snapshot(&self, parts: usize) -> Vec<Box<dyn Iterator<Item = Named> + Send>>;
}

/// The documents that changed after a position, as the log of a restarted process reports them.
#[derive(Debug, Clone, Default)]
pub struct Changed {
    /// The position. It applies to every partition.
    pub behind: u64,
    /// Ids of all documents that changed after the position. It may contain other ids, too.
    pub ids: Vec<Box<[u8]>>,
}

struct WrittenPartition {
    seq: u64,
    /// Whether all documents that existed at the start were fed. Positions are valid from then on.
    is_fed: bool,
}

/// A source whose documents are written by this process.
///
/// With [`sequence`](Self::sequence), sequence numbers come from the caller's function, which is
/// called after each write, under the partition's lock. They can then be positions in a log of the
/// documents, which continue after a restart. Without it, a counter supplies them, and every start
/// of the process needs a new identity, so all indexes are rebuilt.
pub struct Embedded {
    partitions: Vec<Lock<WrittenPartition>>,
    identity: u64,
    documents: Arc<dyn DocumentStore>,
    next_seq: Option<Box<dyn Fn() -> u64 + Send + Sync>>,
    changed: Option<Changed>,
    feed: OnceLock<Feed>,
    /// Whether a [`Transaction`] exists.
    in_transaction: AtomicBool,
}

/// A group of writes that become visible together, see [`Embedded::transaction`].
#[derive(Debug)]
pub struct Transaction<'a> {
    flag: &'a AtomicBool,
    _hold: SnapshotHold<'a>,
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.flag.store(false, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded")
            .field("partitions", &self.partitions.len())
            .finish_non_exhaustive()
    }
}

impl Embedded {
    /// Creates a source with this number of partitions. `identity` identifies its history and must
    /// not be 0.
    pub fn new(partitions: u32, identity: u64, documents: Arc<dyn DocumentStore>) -> Self {
        let partition = |_| Lock::new(WrittenPartition { seq: 1, is_fed: false });
        Self {
            partitions: (0..partitions.max(1)).map(partition).collect(),
            identity: identity.max(1),
            documents,
            next_seq: None,
            changed: None,
            feed: OnceLock::new(),
            in_transaction: AtomicBool::new(false),
        }
    }

    /// Takes sequence numbers from `next_seq`. Each call must return a number that is at least 1,
    /// and larger than what it returned for the same partition before.
    #[must_use]
    pub fn sequence(mut self, next_seq: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let now = next_seq().max(1);
        for partition in &mut self.partitions {
            partition.get_mut().seq = now;
        }
        self.next_seq = Some(Box::new(next_seq));
        self
    }

    /// Sets which documents changed after a position of a former run of the process. An index
    /// backup taken at or after that position is then brought up to date with these documents
    /// alone.
    #[must_use]
    pub fn resume(mut self, changed: Changed) -> Self {
        self.changed = Some(changed);
        self
    }

    /// Returns the identity of the source's history.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    fn partition_of(&self, id: &[u8]) -> u32 {
        // These bits are not the ones that choose the worker, so the two choices are independent.
        (ordna::checksum::crc32(id) >> 8) % self.partitions.len() as u32
    }

    fn lock(&self, partition: u32) -> MutexGuard<'_, WrittenPartition> {
        self.partitions[partition as usize].lock()
    }

    /// Runs a write of the document `id`, and queues its change before any later write of the
    /// document can run. Waits while the queue is full; after the start, also until a service
    /// follows this source.
    ///
    /// `write` returns its result, and the state of the document after the write: `None` if nothing
    /// changed, `Some(None)` if the document was deleted.
    ///
    /// # Errors
    /// The service has stopped. The write itself has taken place.
    pub fn write<R>(
        &self,
        id: &[u8],
        write: impl FnOnce() -> (R, Option<Option<Document>>),
    ) -> Result<R, SourceError> {
        let feed = self.feed.wait();
        let partition = self.partition_of(id);
        let mut held = self.lock(partition);
        let (result, change) = write();
        if let Some(document) = change {
            self.push(feed, partition, &mut held, id, document)?;
        }
        Ok(result)
    }

    /// Makes all writes visible together: no snapshot point is taken until the returned guard is
    /// dropped, so a query that waits for one waits for the end of the transaction. The caller must
    /// ensure that only this thread writes while the guard exists.
    pub fn transaction(&self) -> Transaction<'_> {
        let hold_snapshots = self.feed.wait().queues.hold_snapshots();
        self.in_transaction.store(true, Ordering::Relaxed);
        Transaction { flag: &self.in_transaction, _hold: hold_snapshots }
    }

    /// Delays snapshot points until the result is dropped. Returns `None` if a transaction delays
    /// them already.
    fn hold_snapshots<'f>(&self, feed: &'f Feed) -> Option<SnapshotHold<'f>> {
        (!self.in_transaction.load(Ordering::Relaxed)).then(|| feed.queues.hold_snapshots())
    }

    /// Runs a write of several documents that become visible together: no snapshot point, and no
    /// other write of these documents, takes place in between. `write` returns its result and, in
    /// the order of `ids`, the state of each document, as for [`write`](Self::write).
    ///
    /// # Errors
    /// The same as [`write`](Self::write).
    pub fn write_many<R>(
        &self,
        ids: &[&[u8]],
        write: impl FnOnce() -> (R, Vec<Option<Option<Document>>>),
    ) -> Result<R, SourceError> {
        let feed = self.feed.wait();
        let mut partitions: Vec<u32> = ids.iter().map(|id| self.partition_of(id)).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let mut held: Vec<_> = partitions.iter().map(|partition| self.lock(*partition)).collect();
        let (result, changes) = write();
        // A single change is always either completely in a snapshot point or not at all.
        let _hold = if ids.len() > 1 { self.hold_snapshots(feed) } else { None };
        for (id, change) in ids.iter().zip(changes) {
            let partition = self.partition_of(id);
            if let (Some(document), Ok(at)) = (change, partitions.binary_search(&partition)) {
                self.push(feed, partition, &mut held[at], id, document)?;
            }
        }
        Ok(result)
    }

    /// Runs a write that removes all documents, and removes all entries. O(documents) on the
    /// workers, which remove whole leaves at a time.
    pub fn clear<R>(&self, write: impl FnOnce() -> R) -> R {
        let feed = self.feed.wait();
        let mut held: Vec<_> =
            (0..self.partitions()).map(|partition| self.lock(partition)).collect();
        let result = write();
        let _hold = self.hold_snapshots(feed);
        feed.reset_all(self.identity);
        for (partition, held) in (0..self.partitions()).zip(&mut held) {
            let next = self.next_seq.as_ref().map_or(0, |next| next());
            held.seq = next.max(held.seq + 1);
            if held.is_fed {
                feed.advance(partition, held.seq);
            }
        }
        result
    }

    fn push(
        &self,
        feed: &Feed,
        partition: u32,
        held: &mut WrittenPartition,
        id: &[u8],
        document: Option<Document>,
    ) -> Result<(), SourceError> {
        let next = self.next_seq.as_ref().map_or(0, |next| next());
        held.seq = next.max(held.seq + 1);
        let seq = if held.is_fed { held.seq } else { 0 };
        feed.push(Mutation { partition, seq, id: id.into(), document }).map(|_| ())
    }
}

impl ChangeSource for Embedded {
    fn partitions(&self) -> u32 {
        self.partitions.len() as u32
    }

    fn newest(&self, partition: u32) -> Result<Position, SourceError> {
        let seq = self.lock(partition).seq;
        Ok(Position { identity: self.identity, seq })
    }

    fn continues(&self, partition: u32, from: Position) -> Result<bool, SourceError> {
        let changed = self.changed.as_ref().filter(|changed| changed.behind <= from.seq);
        let newest = self.newest(partition)?;
        Ok(changed.is_some() && from.identity == newest.identity && from.seq <= newest.seq)
    }

    fn documents(&self, _: &VersionVector, parts: usize) -> Result<Vec<Documents>, SourceError> {
        let held: Vec<_> = (0..self.partitions()).map(|partition| self.lock(partition)).collect();
        let parts = self.documents.snapshot(parts);
        drop(held);
        let partitions = self.partitions.len() as u32;
        let documents = |part: Box<dyn Iterator<Item = Named> + Send>| -> Documents {
            Box::new(part.map(move |(id, document)| {
                let partition = (ordna::checksum::crc32(&id) >> 8) % partitions;
                Ok(Mutation { partition, seq: 0, id, document: Some(document) })
            }))
        };
        Ok(parts.into_iter().map(documents).collect())
    }

    fn run(&self, feed: &Feed, from: &VersionVector) -> Result<(), SourceError> {
        let goes_on = |partition: u32| from.positions()[partition as usize].seq > 0;
        // From here on writes are fed. They get no positions until all old documents have been fed.
        let _ = self.feed.set(feed.clone());
        let tell = |id: &[u8]| {
            let partition = self.partition_of(id);
            // The lock ensures that a document that is being written is fed in its latest state.
            let _held = self.lock(partition);
            let document = self.documents.get(id);
            feed.push(Mutation { partition, seq: 0, id: id.into(), document }).map(|_| ())
        };
        let changed = self.changed.iter().flat_map(|changed| &changed.ids);
        for id in changed.filter(|id| goes_on(self.partition_of(id))) {
            tell(id)?;
        }
        if feed.has_indexes() && (0..self.partitions()).any(|partition| !goes_on(partition)) {
            for (id, _) in self.documents.snapshot(1).into_iter().flatten() {
                if !goes_on(self.partition_of(&id)) {
                    tell(&id)?;
                }
            }
        }
        for partition in 0..self.partitions() {
            let mut held = self.lock(partition);
            held.is_fed = true;
            feed.advance(partition, held.seq);
        }
        Ok(())
    }
}
