//! Why a backup, a restore or an opening failed.

use std::io;
use std::path::{Path, PathBuf};

/// Why a backup, a restore, a verification or an opening failed. The previous backup is untouched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The system refused an operation on a file.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A file does not hold what was written to it.
    #[error("{}: damaged at byte {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damaged part begins, in bytes.
        offset: u64,
        /// The reason.
        what: String,
    },
    /// A later version of this program wrote the file.
    #[error("{}: format version {found}; this program reads versions up to {known}", path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The latest version known here.
        known: u32,
    },
    /// The file needs a feature that this build does not have.
    #[error("{}: needs the feature `{feature}`, which this build does not have", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The cargo feature.
        feature: &'static str,
    },
    /// The file holds other kinds of keys or values than the store.
    #[error("{}: holds {found}, the store {expected}", path.display())]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// Kinds of keys and values in the file.
        found: String,
        /// Kinds of keys and values of the store.
        expected: String,
    },
    /// A file that another one names is not there.
    #[error("{}: missing, though {} needs it", path.display(), needed_by.display())]
    Missing {
        /// The missing file.
        path: PathBuf,
        /// The file or directory that needs it.
        needed_by: PathBuf,
    },
    /// Another process, or another store of this one, uses the directory, and did for half a
    /// second.
    #[error("{}: in use by another store or process", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The target of a backup is there already.
    #[error("{}: exists already", path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// A backup of the same store is under way.
    #[error("a backup is under way")]
    Busy,
    /// The thread is in a [`log_group`](crate::Store::log_group), whose writes are not logged yet.
    #[error("a backup cannot be made inside a group of the log")]
    InGroup,
    /// The caller cancelled the backup.
    #[error("the backup was cancelled")]
    Cancelled,
    /// The store was not opened in a directory.
    #[error("the store has no directory; `Store::open` gives it one")]
    NoDirectory,
    /// The store refused what was read: its memory limit, most likely.
    #[error("{0}")]
    Store(#[from] crate::Error),
}

impl BackupError {
    /// Adds the file and the operation to an answer of the system.
    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, doing, source }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset, what: what.into() }
    }
}
