//! The embedded source: documents that this process writes.
//!
//! # Contract
//! Every write of a document goes through [`Embedded::write`], which holds the document's bucket
//! from before the write until its change is queued. So the queue has the order of the writes. The
//! lock order is bucket, then the gate of cuts, then lane. The closure of a write must not write
//! another document.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::document::{Document, Mutation};
use crate::error::SourceError;
use crate::lanes::Together;
use crate::source::{ChangeSource, Documents, Feed};
use crate::vector::{Position, Vector};

/// A document and its name.
pub type Named = (Box<[u8]>, Document);

/// The documents behind an embedded source.
pub trait DocumentStore: Send + Sync {
    /// The document of this name as it is now.
    fn get(&self, id: &[u8]) -> Option<Document>;

    /// All documents as of this call, in about so many parts. The call is short, as all writes wait
    /// for it; the iterators do the work, beside later writes.
    fn snapshot(&self, parts: usize) -> Vec<Box<dyn Iterator<Item = Named> + Send>>;
}

/// Documents that changed behind a position: what the log of a restarted process tells.
#[derive(Debug, Clone, Default)]
pub struct Changed {
    /// The position in each bucket.
    pub behind: u64,
    /// Names of all documents that changed later, and of any others.
    pub ids: Vec<Box<[u8]>>,
}

struct Bucket {
    seq: u64,
    /// Whether all documents that were there at the start are fed; the position then counts.
    is_fed: bool,
}

/// A source whose documents are written by this process.
///
/// Sequence numbers come from `next_seq`, which is called under the bucket's lock after each write:
/// the position of a log of the documents serves, as it goes on after a restart. Without one, a
/// counter and a new identity at each start have all indexes rebuilt.
pub struct Embedded {
    buckets: Vec<Mutex<Bucket>>,
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
    _together: Together<'a>,
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.flag.store(false, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("buckets", &self.buckets.len()).finish_non_exhaustive()
    }
}

impl Embedded {
    /// A source of so many buckets, whose history has this identity, not 0.
    pub fn new(buckets: u32, identity: u64, documents: Arc<dyn DocumentStore>) -> Self {
        let bucket = |_| Mutex::new(Bucket { seq: 1, is_fed: false });
        Self {
            buckets: (0..buckets.max(1)).map(bucket).collect(),
            identity: identity.max(1),
            documents,
            next_seq: None,
            changed: None,
            feed: OnceLock::new(),
            in_transaction: AtomicBool::new(false),
        }
    }

    /// With sequence numbers from elsewhere: at each call larger than what it returned for the
    /// bucket before, and at least 1.
    #[must_use]
    pub fn sequence(mut self, next_seq: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let now = next_seq().max(1);
        for bucket in &mut self.buckets {
            bucket.get_mut().unwrap_or_else(PoisonError::into_inner).seq = now;
        }
        self.next_seq = Some(Box::new(next_seq));
        self
    }

    /// With what changed behind a position of a former run of the process. An index backup from
    /// there on is brought up to date with these documents only.
    #[must_use]
    pub fn resume(mut self, changed: Changed) -> Self {
        self.changed = Some(changed);
        self
    }

    /// The identity of its history.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    fn bucket_of(&self, id: &[u8]) -> u32 {
        // Other bits than those that choose the worker.
        (ordna::checksum::crc32(id) >> 8) % self.buckets.len() as u32
    }

    fn lock(&self, bucket: u32) -> MutexGuard<'_, Bucket> {
        self.buckets[bucket as usize].lock().unwrap_or_else(PoisonError::into_inner)
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
        let bucket = self.bucket_of(id);
        let mut held = self.lock(bucket);
        let (result, change) = write();
        if let Some(document) = change {
            self.push(feed, bucket, &mut held, id, document)?;
        }
        Ok(result)
    }

    /// Makes all writes one until the result is dropped: no cut of the indexes comes between, so a
    /// query that waits for a cut meanwhile waits for the end. The caller must see to it that only
    /// its own thread writes.
    pub fn transaction(&self) -> Transaction<'_> {
        let together = self.feed.wait().lanes.together();
        self.in_transaction.store(true, Ordering::Relaxed);
        Transaction { flag: &self.in_transaction, _together: together }
    }

    /// Holds back cuts, unless a transaction does.
    fn together<'f>(&self, feed: &'f Feed) -> Option<Together<'f>> {
        (!self.in_transaction.load(Ordering::Relaxed)).then(|| feed.lanes.together())
    }

    /// Runs a write of several documents, as one: no cut of the indexes and no other write of them
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
        let mut buckets: Vec<u32> = ids.iter().map(|id| self.bucket_of(id)).collect();
        buckets.sort_unstable();
        buckets.dedup();
        let mut held: Vec<_> = buckets.iter().map(|bucket| self.lock(*bucket)).collect();
        let (result, changes) = write();
        // One change is in a cut or not.
        let _together = if ids.len() > 1 { self.together(feed) } else { None };
        for (id, change) in ids.iter().zip(changes) {
            let bucket = self.bucket_of(id);
            if let (Some(document), Ok(at)) = (change, buckets.binary_search(&bucket)) {
                self.push(feed, bucket, &mut held[at], id, document)?;
            }
        }
        Ok(result)
    }

    /// Runs a write that removes all documents, and drops all entries. O(documents) in the workers,
    /// for each bucket.
    pub fn clear<R>(&self, write: impl FnOnce() -> R) -> R {
        let feed = self.feed.wait();
        let mut held: Vec<_> = (0..self.buckets()).map(|bucket| self.lock(bucket)).collect();
        let result = write();
        let _together = self.together(feed);
        for (bucket, held) in (0..self.buckets()).zip(&mut held) {
            feed.reset(bucket, self.identity);
            let next = self.next_seq.as_ref().map_or(0, |next| next());
            held.seq = next.max(held.seq + 1);
            if held.is_fed {
                feed.advance(bucket, held.seq);
            }
        }
        result
    }

    fn push(
        &self,
        feed: &Feed,
        bucket: u32,
        held: &mut Bucket,
        id: &[u8],
        document: Option<Document>,
    ) -> Result<(), SourceError> {
        let next = self.next_seq.as_ref().map_or(0, |next| next());
        held.seq = next.max(held.seq + 1);
        let seq = if held.is_fed { held.seq } else { 0 };
        feed.push(Mutation { bucket, seq, id: id.into(), document }).map(|_| ())
    }
}

impl ChangeSource for Embedded {
    fn buckets(&self) -> u32 {
        self.buckets.len() as u32
    }

    fn newest(&self, bucket: u32) -> Result<Position, SourceError> {
        let seq = self.lock(bucket).seq;
        Ok(Position { identity: self.identity, seq })
    }

    fn continues(&self, bucket: u32, from: Position) -> Result<bool, SourceError> {
        let changed = self.changed.as_ref().filter(|changed| changed.behind <= from.seq);
        let newest = self.newest(bucket)?;
        Ok(changed.is_some() && from.identity == newest.identity && from.seq <= newest.seq)
    }

    fn documents(&self, _: &Vector, parts: usize) -> Result<Vec<Documents>, SourceError> {
        let held: Vec<_> = (0..self.buckets()).map(|bucket| self.lock(bucket)).collect();
        let parts = self.documents.snapshot(parts);
        drop(held);
        let buckets = self.buckets.len() as u32;
        let documents = |part: Box<dyn Iterator<Item = Named> + Send>| -> Documents {
            Box::new(part.map(move |(id, document)| {
                let bucket = (ordna::checksum::crc32(&id) >> 8) % buckets;
                Ok(Mutation { bucket, seq: 0, id, document: Some(document) })
            }))
        };
        Ok(parts.into_iter().map(documents).collect())
    }

    fn run(&self, feed: &Feed, from: &Vector) -> Result<(), SourceError> {
        let goes_on = |bucket: u32| from.positions()[bucket as usize].seq > 0;
        // From here on writes are fed, without positions until the old documents are.
        let _ = self.feed.set(feed.clone());
        let tell = |id: &[u8]| {
            let bucket = self.bucket_of(id);
            // A document that is written meanwhile is told as it is now.
            let _held = self.lock(bucket);
            let document = self.documents.get(id);
            feed.push(Mutation { bucket, seq: 0, id: id.into(), document }).map(|_| ())
        };
        let changed = self.changed.iter().flat_map(|changed| &changed.ids);
        for id in changed.filter(|id| goes_on(self.bucket_of(id))) {
            tell(id)?;
        }
        if feed.has_indexes() && (0..self.buckets()).any(|bucket| !goes_on(bucket)) {
            for (id, _) in self.documents.snapshot(1).into_iter().flatten() {
                if !goes_on(self.bucket_of(&id)) {
                    tell(&id)?;
                }
            }
        }
        for bucket in 0..self.buckets() {
            let mut held = self.lock(bucket);
            held.is_fed = true;
            feed.advance(bucket, held.seq);
        }
        Ok(())
    }
}
