//! Streams of changes.

use std::sync::Arc;

use ordna::sync::notice;

use crate::document::Mutation;
use crate::error::SourceError;
use crate::shard_queues::{Message, ShardQueues};
use crate::version_vector::{Position, VersionVector};

/// Documents of a snapshot.
pub type Documents = Box<dyn Iterator<Item = Result<Mutation, SourceError>> + Send>;

/// A stream of changes of documents, in partitions.
///
/// # Contract
/// A document belongs to one partition, for good. The changes of a partition have ascending
/// sequence numbers, from 1 on, not necessarily dense. A partition's history has an identity, not
/// 0; it changes when the history is no longer an extension of the former one. An older change of a
/// document may be left out if a later one follows.
///
/// # A partitioned message log (Kafka)
/// | here | there |
/// |---|---|
/// | partition | partition of the topic |
/// | sequence number | offset + 1 (offsets begin at 0) |
/// | [`Mutation::id`] | record key |
/// | [`Mutation::document`] | record value; a null value is a deletion |
/// | identity | a hash of topic id and partition, so that a recreated topic has others |
/// | [`newest`](Self::newest) | high watermark; under `read_committed` the last stable offset |
/// | [`continues`](Self::continues) | log start offset ≤ position ≤ newest |
/// | [`documents`](Self::documents) | a second consumer, from the log start to the vector |
/// | [`run`](Self::run) | the poll loop: seek to the positions, [`Feed::push`] each record |
/// | gaps (aborted transactions, markers) | [`Feed::advance`] to the position after a batch |
/// | truncation, recreation | [`Feed::reset`] with the new identity, seek to the log start |
/// | partition revoked | [`Feed::reset`] with identity 0 |
/// | partition assigned | [`Feed::reset`] with its identity, then from its first record |
/// | poison record | `run` counts it, keeps it aside, and continues with [`Feed::advance`] |
///
/// In a compacted topic the log start does not matter to `continues`: later records overtake what
/// compaction drops. `documents` has a part for each partition. The back-pressure of `push` pauses
/// the partition. After a partition is revoked its entries are removed, and queries
/// see that it is empty. A service for each partition restores the backup of that partition alone.
///
/// Source: the Nitro paper (VLDB 2016), §8.2.
pub trait ChangeSource: Send + Sync {
    /// Number of partitions; constant.
    fn partitions(&self) -> u32;

    /// The newest position of a partition: what `request_plus` waits for. May ask another machine.
    ///
    /// # Errors
    /// The source cannot find out.
    fn newest(&self, partition: u32) -> Result<Position, SourceError>;

    /// Whether the source still has all changes after this position, in the same history. If not,
    /// the partition is rebuilt: its entries are removed, and `run` feeds its history from the
    /// start.
    ///
    /// # Errors
    /// The source cannot find out.
    fn continues(&self, partition: u32, from: Position) -> Result<bool, SourceError>;

    /// The documents of all partitions as of some moment, in about `parts` parts that are read at
    /// once. The state holds every change up to `at`, and no change that was not fed before this
    /// call returns. A part may give several states of a document, and deletions; the last one
    /// counts. All states of a document are in one part.
    ///
    /// # Errors
    /// The source cannot read them. An iterator ends after an error.
    fn documents(&self, at: &VersionVector, parts: usize) -> Result<Vec<Documents>, SourceError>;

    /// Feeds all changes after `from`, and then those to come, until [`Feed::is_stopped`]
    /// or [`SourceError::Stopped`]. Runs on its own thread. May return at once if other
    /// threads feed through a clone of `feed`. Checks at least every 100 ms whether it has to stop.
    ///
    /// # Errors
    /// The source cannot continue; queries that wait for more of it get the error.
    fn run(&self, feed: &Feed, from: &VersionVector) -> Result<(), SourceError>;
}

/// The handle through which a source feeds changes. Clones feed the same service.
///
/// Changes of one partition are fed by one thread at a time.
#[derive(Clone)]
pub struct Feed {
    pub(crate) queues: Arc<ShardQueues>,
    pub(crate) has_indexes: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("vector", &self.queues.vector()).finish_non_exhaustive()
    }
}

impl Feed {
    /// Feeds a change. Waits while the queue of the document's shard is full. Returns `false` if
    /// its sequence number is not above the partition's position: the change is then ignored and
    /// counted. O(1).
    ///
    /// # Errors
    /// The service has stopped, or the partition does not exist.
    pub fn push(&self, mutation: Mutation) -> Result<bool, SourceError> {
        self.queues.feed(mutation)
    }

    /// Moves a partition's position forward without a change. O(workers).
    pub fn advance(&self, partition: u32, seq: u64) {
        let mut locked = self.queues.lock_all();
        if let Some(position) = self.queues.position(partition)
            && position.seq < seq
        {
            locked.set_position(partition, Position { seq, ..position });
        }
    }

    /// Drops all entries of a partition and begins a new history of it. O(documents), in the
    /// workers.
    pub fn reset(&self, partition: u32, identity: u64) {
        let mut locked = self.queues.lock_all();
        locked.set_position(partition, Position { identity, seq: 0 });
        locked.send(|_| Message::Clear(partition));
    }

    /// Drops all entries and begins a new history of all partitions. The workers forget theirs one by
    /// one, and remove them from the indexes in bulk.
    pub fn reset_all(&self, identity: u64) {
        let mut locked = self.queues.lock_all();
        for partition in 0..self.queues.partitions() {
            locked.set_position(partition, Position { identity, seq: 0 });
        }
        if notice!("pipeline.end.flushes", self.queues.is_stopped()) {
            // Workers that have ended do not come to a meeting.
            return;
        }
        locked.send(|_| Message::ClearAll);
    }

    /// The position up to which a partition was fed.
    pub fn position(&self, partition: u32) -> Option<Position> {
        self.queues.position(partition)
    }

    /// Whether there is any index. Without one a source need not feed old documents: a later
    /// index asks for [`ChangeSource::documents`].
    pub fn has_indexes(&self) -> bool {
        (self.has_indexes)()
    }

    /// Whether the service has stopped.
    pub fn is_stopped(&self) -> bool {
        self.queues.is_stopped()
    }
}
