//! The errors of this crate.

use std::sync::Arc;
use std::time::Duration;

/// The error of a call of this crate. The call changed nothing, unless the variant says otherwise.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An index with this name already exists.
    #[error("an index named {0:?} exists")]
    DuplicateIndex(String),
    /// There is no index with this name.
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
    /// A field of a document has a type that the index does not accept.
    #[error("index {index:?}: the field {field:?} has the wrong type")]
    WrongType {
        /// Name of the index.
        index: String,
        /// Name of the field.
        field: String,
    },
    /// A key of the document would be too long, or it would have too many entries.
    #[error("index {index:?}: the document is too large: {reason}")]
    DocumentTooLarge {
        /// Name of the index.
        index: String,
        /// The limit that was exceeded.
        reason: String,
    },
    /// The index is still being built, and the query was not set to wait.
    #[error("index {index:?} is being built: {done} documents done")]
    Building {
        /// Name of the index.
        index: String,
        /// Number of documents indexed so far.
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
    /// The state that a query requested was not reached in time.
    #[error("the state asked for is not there after {waited:?}")]
    Timeout {
        /// How long the query waited.
        waited: Duration,
    },
    /// The number of positions in the vector is not the number of partitions of the source.
    #[error("the vector has {found} positions, the source {expected} partitions")]
    PartitionCount {
        /// Number of positions in the vector.
        found: usize,
        /// Number of partitions of the source.
        expected: usize,
    },
    /// The vector belongs to a history that the source does not have.
    #[error("partition {partition} has the identity {expected:016x}, the vector says {found:016x}")]
    OtherHistory {
        /// The partition.
        partition: usize,
        /// Its identity in the vector.
        found: u64,
        /// Its identity now.
        expected: u64,
    },
    /// The text is not a version vector.
    #[error("{0:?} is not a vector of positions")]
    BadVector(String),
    /// The bytes are not a cursor, or the cursor belongs to another query.
    #[error("the cursor is not one of this query: {0}")]
    BadCursor(&'static str),
    /// The cursor belongs to an index that was dropped.
    #[error("the index of the cursor was dropped")]
    CursorOfDroppedIndex,
    /// The index cannot answer the query.
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
    /// A backup, or the recovery from one, failed.
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
    /// A thread of the service panicked, which is a bug. The service has ended and answers no
    /// further queries.
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
    /// Returns a function that adds the path of the file to an error of a file operation.
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source: Arc::new(source) }
    }
}

/// The reason why a source cannot continue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The service has stopped, so the source must end.
    #[error("the service has stopped")]
    Stopped,
    /// The source read something that it cannot process.
    #[error("the source failed at {place}: {reason}")]
    Failed {
        /// The place: file and offset, or partition and offset.
        place: String,
        /// The reason.
        reason: String,
    },
    /// The source has no such partition.
    #[error("partition {partition} does not exist; the source has {partitions}")]
    UnknownPartition {
        /// The partition.
        partition: u32,
        /// Number of partitions of the source.
        partitions: u32,
    },
}
