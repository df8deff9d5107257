//! Streams of changes.

use std::sync::Arc;

use crate::document::Mutation;
use crate::error::SourceError;
use crate::lanes::{Lanes, Message};
use crate::vector::{Position, Vector};

/// Documents of a snapshot.
pub type Documents = Box<dyn Iterator<Item = Result<Mutation, SourceError>> + Send>;

/// A stream of changes of documents, in buckets.
///
/// # Contract
/// A document belongs to one bucket, for good. The changes of a bucket have ascending sequence
/// numbers, from 1 on, not necessarily dense. A bucket's history has an identity, not 0; it changes
/// when the history is no longer an extension of the former one. An older change of a document may
/// be left out if a later one follows.
///
/// # A partitioned message log (Kafka)
/// | here | there |
/// |---|---|
/// | bucket | partition of the topic |
/// | sequence number | offset + 1 (offsets begin at 0) |
/// | [`Mutation::id`] | record key |
/// | [`Mutation::document`] | record value; a null value is a deletion |
/// | identity | a hash of topic id and partition, so that a recreated topic has others |
/// | [`newest`](Self::newest) | high watermark; under `read_committed` the last stable offset |
/// | [`continues`](Self::continues) | log start offset ≤ position ≤ newest |
/// | [`documents`](Self::documents) | a second consumer, from the log start to the vector |
/// | [`run`](Self::run) | the poll loop: seek to the positions, [`Feed::push`] each record |
/// | gaps (aborted transactions, markers) | [`Feed::advance`] to the position behind a batch |
/// | truncation, recreation | [`Feed::reset`] with the new identity, seek to the log start |
/// | partition revoked | [`Feed::reset`] with identity 0 |
/// | partition assigned | [`Feed::reset`] with its identity, then from its first record |
/// | poison record | `run` counts it, keeps it aside, and goes on with [`Feed::advance`] |
///
/// In a compacted topic the log start does not matter to `continues`: later records overtake what
/// compaction drops. `documents` has a part for each partition. The back-pressure of `push` pauses
/// the partition. After a partition is revoked its entries go; queries see that nothing of the
/// bucket is there. A service for each partition restores that partition's backup alone.
///
/// Source: the Nitro paper (VLDB 2016), §8.2.
pub trait ChangeSource: Send + Sync {
    /// Number of buckets; constant.
    fn buckets(&self) -> u32;

    /// The newest position of a bucket: what `request_plus` waits for. May ask another machine.
    ///
    /// # Errors
    /// The source cannot tell.
    fn newest(&self, bucket: u32) -> Result<Position, SourceError>;

    /// Whether the changes behind this position can still be told, as an extension of it. If not,
    /// the bucket is rebuilt: its entries go, and `run` tells its history from the start.
    ///
    /// # Errors
    /// The source cannot tell.
    fn continues(&self, bucket: u32, from: Position) -> Result<bool, SourceError>;

    /// The documents of all buckets as of some moment, in about `parts` parts that are read at
    /// once. The state holds every change up to `at`, and no change that was not fed before this
    /// call returns. A part may give several states of a document, and deletions; the last one
    /// counts. All states of a document are in one part.
    ///
    /// # Errors
    /// The source cannot read them. An iterator ends behind an error.
    fn documents(&self, at: &Vector, parts: usize) -> Result<Vec<Documents>, SourceError>;

    /// Feeds all changes behind `from`, and goes on with those to come, until [`Feed::is_stopped`]
    /// or [`SourceError::Stopped`]. Runs on a thread of its own. May return at once if other
    /// threads feed through a clone of `feed`. Looks at least each 100 ms whether it has to stop.
    ///
    /// # Errors
    /// The source cannot go on; queries that wait for more of it get the error.
    fn run(&self, feed: &Feed, from: &Vector) -> Result<(), SourceError>;
}

/// Where a source hands in changes. Clones feed the same service.
///
/// Changes of one bucket are handed in by one thread at a time.
#[derive(Clone)]
pub struct Feed {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) has_indexes: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("vector", &self.lanes.vector()).finish_non_exhaustive()
    }
}

impl Feed {
    /// Hands in a change. Waits while the queue of the document's worker is full. `false`: its
    /// sequence number is not above the bucket's position; the change is ignored and counted. O(1).
    ///
    /// # Errors
    /// The service has stopped, or the bucket does not exist.
    pub fn push(&self, mutation: Mutation) -> Result<bool, SourceError> {
        self.lanes.feed(mutation)
    }

    /// Moves a bucket's position forward without a change. O(workers).
    pub fn advance(&self, bucket: u32, seq: u64) {
        let mut stopped = self.lanes.stop();
        if let Some(position) = self.lanes.position(bucket)
            && position.seq < seq
        {
            stopped.set_position(bucket, Position { seq, ..position });
        }
    }

    /// Drops all entries of a bucket and begins a new history of it. O(documents), in the workers.
    pub fn reset(&self, bucket: u32, identity: u64) {
        let mut stopped = self.lanes.stop();
        stopped.set_position(bucket, Position { identity, seq: 0 });
        stopped.send(|_| Message::Clear(bucket));
    }

    /// The position up to which a bucket was fed.
    pub fn position(&self, bucket: u32) -> Option<Position> {
        self.lanes.position(bucket)
    }

    /// Whether there is any index. Without one a source need not tell old documents: an index to
    /// come asks for [`ChangeSource::documents`].
    pub fn has_indexes(&self) -> bool {
        (self.has_indexes)()
    }

    /// Whether the service has stopped.
    pub fn is_stopped(&self) -> bool {
        self.lanes.is_stopped()
    }
}
