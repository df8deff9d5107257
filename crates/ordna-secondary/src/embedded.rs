//! The embedded source: documents that this process writes.
//!
//! # Contract
//! Every write of a document goes through [`Embedded::write`], which holds the document's partition
//! from before the write until its change is queued. So the queue has the order of the writes. The
//! lock order is partition, then the gate of snapshot points, then queue. The closure of a write
//! must not write another document.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

use ordna::sync::Lock;

use crate::document::{Document, Mutation};
use crate::error::SourceError;
use crate::shard_queues::SnapshotHold;
use crate::source::{ChangeSource, Documents, Feed};
use crate::version_vector::{Position, VersionVector};

/// A document and its name.
pub type Named = (Box<[u8]>, Document);

/// The documents of an embedded source.
pub trait DocumentStore: Send + Sync {
    /// The document of this name as it is now.
    fn get(&self, id: &[u8]) -> Option<Document>;

    /// All documents as of this call, in about `parts` parts. The call must be short, as all writes
    /// wait for it; the iterators do the work, concurrently with later writes.
    fn snapshot(&self, parts: usize) -> Vec<Box<dyn Iterator<Item = Named> + Send>>;
}

/// Documents that changed after a position, as the log of a restarted process reports them.
#[derive(Debug, Clone, Default)]
pub struct Changed {
    /// The position in each partition.
    pub behind: u64,
    /// Names of all documents that changed later, and of any others.
    pub ids: Vec<Box<[u8]>>,
}

struct WrittenPartition {
    seq: u64,
    /// Whether all documents that existed at the start were fed; the position is valid from then
    /// on.
    is_fed: bool,
}

/// A source whose documents are written by this process.
///
/// Sequence numbers come from `next_seq`, which is called under the partition's lock after each
/// write: the position in a log of the documents can be used, as it continues after a restart.
/// Without one, a counter and a new identity at each start cause all indexes to be rebuilt.
pub struct Embedded {
    partitions: Vec<Lock<WrittenPartition>>,
    identity: u64,
    documents: Arc<dyn DocumentStore>,
    next_seq: Option<Box<dyn Fn() -> u64 + Send + Sync>>,
    changed: Option<Changed>,
    feed: OnceLock<Feed>,
    /// Whether a [`Transaction`] lives.
    in_transaction: AtomicBool,
}

/// Writes that belong together, see [`Embedded::transaction`].
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
    /// A source of this number of partitions, whose history has this identity, not 0.
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

    /// With sequence numbers from elsewhere: at each call larger than what it returned for the
    /// partition before, and at least 1.
    #[must_use]
    pub fn sequence(mut self, next_seq: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let now = next_seq().max(1);
        for partition in &mut self.partitions {
            partition.get_mut().seq = now;
        }
        self.next_seq = Some(Box::new(next_seq));
        self
    }

    /// Sets what changed after a position of a former run of the process. An index backup at or
    /// after that position is brought up to date with these documents only.
    #[must_use]
    pub fn resume(mut self, changed: Changed) -> Self {
        self.changed = Some(changed);
        self
    }

    /// The identity of its history.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    fn partition_of(&self, id: &[u8]) -> u32 {
        // Other bits than those that choose the worker.
        (ordna::checksum::crc32(id) >> 8) % self.partitions.len() as u32
    }

    fn lock(&self, partition: u32) -> MutexGuard<'_, WrittenPartition> {
        self.partitions[partition as usize].lock()
    }

    /// Runs a write of the document `id`; its change, if there is one, is queued before any later
    /// write of the document. Waits while the queue is full, and at the start until a service
    /// follows this source.
    ///
    /// `write` returns its result and the document as it is afterwards: `None`, if nothing changed;
    /// `Some(None)`, if it is gone.
    ///
    /// # Errors
    /// The service has stopped; the write itself is done.
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

    /// Makes all writes one until the result is dropped: no snapshot point is taken in between, so
    /// a query that waits for one waits for the end of the transaction. The caller must ensure that
    /// only its own thread writes.
    pub fn transaction(&self) -> Transaction<'_> {
        let hold_snapshots = self.feed.wait().queues.hold_snapshots();
        self.in_transaction.store(true, Ordering::Relaxed);
        Transaction { flag: &self.in_transaction, _hold: hold_snapshots }
    }

    /// Delays snapshot points, unless a transaction does.
    fn hold_snapshots<'f>(&self, feed: &'f Feed) -> Option<SnapshotHold<'f>> {
        (!self.in_transaction.load(Ordering::Relaxed)).then(|| feed.queues.hold_snapshots())
    }

    /// Runs a write of several documents, as one: no snapshot point and no other write of them
    /// comes between. `write` returns its result and, in the order of `ids`, what
    /// [`write`](Self::write) says.
    ///
    /// # Errors
    /// As [`write`](Self::write).
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
        // A single change is either in a snapshot point or not.
        let _hold = if ids.len() > 1 { self.hold_snapshots(feed) } else { None };
        for (id, change) in ids.iter().zip(changes) {
            let partition = self.partition_of(id);
            if let (Some(document), Ok(at)) = (change, partitions.binary_search(&partition)) {
                self.push(feed, partition, &mut held[at], id, document)?;
            }
        }
        Ok(result)
    }

    /// Runs a write that removes all documents, and drops all entries. O(documents) in the workers,
    /// which remove them leaf by leaf.
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
        // From here on writes are fed, without positions until the old documents are.
        let _ = self.feed.set(feed.clone());
        let tell = |id: &[u8]| {
            let partition = self.partition_of(id);
            // A document that is written concurrently is fed as it is now.
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
