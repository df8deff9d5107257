//! Why a call failed.

use std::sync::Arc;
use std::time::Duration;

/// Why a call of this crate failed. Nothing was changed, unless the variant says otherwise.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An index of this name exists.
    #[error("an index named {0:?} exists")]
    DuplicateIndex(String),
    /// No index has this name.
    #[error("no index is named {0:?}")]
    UnknownIndex(String),
    /// The definition of an index cannot be used.
    #[error("index {name:?}: {reason}")]
    BadDefinition {
        /// Name of the index.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The text of a filter cannot be parsed.
    #[error("filter, at byte {at}: expected {expected}")]
    BadFilter {
        /// Position in the text.
        at: usize,
        /// The token expected there.
        expected: &'static str,
    },
    /// A document's field has a type that its index refuses.
    #[error("index {index:?}: the field {field:?} has the wrong type")]
    WrongType {
        /// Name of the index.
        index: String,
        /// Name of the field.
        field: String,
    },
    /// A document makes a key that is too long, or too many entries.
    #[error("index {index:?}: the document is too large: {reason}")]
    DocumentTooLarge {
        /// Name of the index.
        index: String,
        /// The limit that it exceeds.
        reason: String,
    },
    /// The index is being built, and the query did not ask to wait.
    #[error("index {index:?} is being built: {done} documents done")]
    Building {
        /// Name of the index.
        index: String,
        /// Documents done.
        done: u64,
    },
    /// The index is incomplete and answers no query. Drop it and create it again.
    #[error("index {index:?} is incomplete: {reason}")]
    Failed {
        /// Name of the index.
        index: String,
        /// The first failure.
        reason: String,
    },
    /// The state that a query asked for did not come in time.
    #[error("the state asked for is not there after {waited:?}")]
    Timeout {
        /// How long the query waited.
        waited: Duration,
    },
    /// The vector has another number of partitions than the source.
    #[error("the vector has {found} positions, the source {expected} partitions")]
    PartitionCount {
        /// Positions of the vector.
        found: usize,
        /// Partitions of the source.
        expected: usize,
    },
    /// A vector of a history that the source does not have.
    #[error("partition {partition} has the identity {expected:016x}, the vector says {found:016x}")]
    OtherHistory {
        /// The partition.
        partition: usize,
        /// Its identity in the vector.
        found: u64,
        /// Its identity now.
        expected: u64,
    },
    /// Text that is no vector.
    #[error("{0:?} is no vector of positions")]
    BadVector(String),
    /// Bytes that are no cursor, or a cursor of another query.
    #[error("the cursor is not one of this query: {0}")]
    BadCursor(&'static str),
    /// A cursor of an index that was dropped.
    #[error("the index of the cursor was dropped")]
    CursorOfDroppedIndex,
    /// A query that the index cannot answer.
    #[error("index {index:?} cannot answer: {reason}")]
    BadQuery {
        /// Name of the index.
        index: String,
        /// The reason.
        reason: String,
    },
    /// The source failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A backup or its recovery failed.
    #[error(transparent)]
    Backup(Arc<ordna::durability::BackupError>),
    /// A file operation failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// The service has stopped.
    #[error("the service has stopped")]
    Stopped,
    /// A thread of the service panicked, which is a bug. The service has ended and answers no query.
    #[error("the thread {thread:?} of the indexes panicked: {message}")]
    Panicked {
        /// Name of the thread.
        thread: String,
        /// Message of the panic.
        message: String,
    },
}

impl From<ordna::durability::BackupError> for Error {
    fn from(error: ordna::durability::BackupError) -> Self {
        Self::Backup(Arc::new(error))
    }
}

impl Error {
    /// An error of a file operation, with the file.
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source: Arc::new(source) }
    }
}

/// Why a source cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The service has stopped: the source must end.
    #[error("the service has stopped")]
    Stopped,
    /// The source read something that cannot be used.
    #[error("the source failed at {place}: {reason}")]
    Failed {
        /// File and offset, or partition and offset.
        place: String,
        /// The reason.
        reason: String,
    },
    /// The source does not have the partition.
    #[error("partition {partition} does not exist; the source has {partitions}")]
    UnknownPartition {
        /// The partition.
        partition: u32,
        /// How many there are.
        partitions: u32,
    },
}
