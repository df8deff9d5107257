//! Sources of changes.

use std::sync::Arc;

use ordna::sync::notice;

use crate::document::Mutation;
use crate::error::SourceError;
use crate::shard_queues::{Message, ShardQueues};
use crate::version_vector::{Position, VersionVector};

/// Documents of a snapshot of a source.
pub type Documents = Box<dyn Iterator<Item = Result<Mutation, SourceError>> + Send>;

/// A stream of changes of documents, in partitions.
///
/// # Contract
/// A document always belongs to the same partition. The changes of a partition have ascending
/// sequence numbers, which begin at 1 or above and may have gaps. The history of a partition has an
/// identity other than 0. The identity changes if the history is replaced by one that does not
/// extend it. A source may leave out a change of a document if a later change of the same document
/// follows.
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
/// In a compacted topic `continues` need not check the log start, as compaction only drops records
/// that later records supersede. `documents` returns one iterator for each partition. When `push`
/// waits, the consumer pauses the partition. After a partition is revoked its entries are removed,
/// and queries can tell from the vector that it is empty. A service for a single partition restores
/// the backup of that partition alone.
///
/// Source: the Nitro paper (VLDB 2016), §8.2.
pub trait ChangeSource: Send + Sync {
    /// Returns the number of partitions, which never changes.
    fn partitions(&self) -> u32;

    /// Returns the newest position of a partition, which queries with `request_plus` wait for. May
    /// block on a request to another machine.
    ///
    /// # Errors
    /// The source cannot determine it.
    fn newest(&self, partition: u32) -> Result<Position, SourceError>;

    /// Returns whether the source still has all changes after this position, in the same history.
    /// If not, the partition is rebuilt: its entries are removed, and `run` feeds the history from
    /// its start.
    ///
    /// # Errors
    /// The source cannot determine it.
    fn continues(&self, partition: u32, from: Position) -> Result<bool, SourceError>;

    /// Returns the documents of all partitions as of some moment, split into about `parts`
    /// iterators that are read concurrently. They must contain every change up to `at`, and must
    /// not contain a change that is fed only after this call returns. An iterator may return
    /// several states of the same document, and deletions; the last one counts. All states of a
    /// document must come from the same iterator.
    ///
    /// # Errors
    /// The source cannot read the documents. An iterator ends after an error.
    fn documents(&self, at: &VersionVector, parts: usize) -> Result<Vec<Documents>, SourceError>;

    /// Feeds all changes after `from`, and then new ones, until [`Feed::is_stopped`] returns `true`
    /// or a call fails with [`SourceError::Stopped`]. It runs on its own thread and must check at
    /// least every 100 ms whether the service has stopped. It may return at once if other threads
    /// feed the changes through a clone of `feed`.
    ///
    /// # Errors
    /// The source cannot continue. Queries that wait for further changes then fail with this error.
    fn run(&self, feed: &Feed, from: &VersionVector) -> Result<(), SourceError>;
}

/// The handle through which a source feeds changes. Clones feed the same service.
///
/// Only one thread at a time may feed changes of the same partition.
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
    /// the change was ignored, and counted as such, because its sequence number is not above the
    /// position of its partition. O(1).
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

    /// Removes all entries of a partition and begins a new history for it. O(documents) on the
    /// workers.
    pub fn reset(&self, partition: u32, identity: u64) {
        let mut locked = self.queues.lock_all();
        locked.set_position(partition, Position { identity, seq: 0 });
        locked.send(|_| Message::Clear(partition));
    }

    /// Removes all entries and begins a new history for every partition. The workers drop their own
    /// maps, and then remove the entries from the indexes in bulk.
    pub fn reset_all(&self, identity: u64) {
        let mut locked = self.queues.lock_all();
        for partition in 0..self.queues.partitions() {
            locked.set_position(partition, Position { identity, seq: 0 });
        }
        if notice!("pipeline.end.flushes", self.queues.is_stopped()) {
            // Workers that have ended would never reach the snapshot point.
            return;
        }
        locked.send(|_| Message::ClearAll);
    }

    /// Returns the position up to which a partition was fed.
    pub fn position(&self, partition: u32) -> Option<Position> {
        self.queues.position(partition)
    }

    /// Returns whether there is any index. Without one, a source need not feed old documents: an
    /// index that is created later calls [`ChangeSource::documents`].
    pub fn has_indexes(&self) -> bool {
        (self.has_indexes)()
    }

    /// Returns whether the service has stopped.
    pub fn is_stopped(&self) -> bool {
        self.queues.is_stopped()
    }
}
