//! Errors of backups, restores, verification and opening.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// The reason why a backup, a restore, a verification or an opening failed. The previous backup is
/// unchanged.
///
/// ```
/// use ordna::{BackupError, OpenOptions, Store};
///
/// let missing = Store::<[u8], u64>::restore("no such directory", OpenOptions::new());
/// assert!(matches!(missing, Err(BackupError::Io { .. } | BackupError::Missing { .. })));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BackupError {
    /// The system reported an error for an operation on a file.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The contents of a file are not what was written to it.
    Damaged {
        /// The file.
        path: PathBuf,
        /// Position in bytes at which the damaged part begins.
        offset: u64,
        /// The reason.
        what: String,
    },
    /// A later version of this program wrote the file.
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The latest version that this program can read.
        known: u32,
    },
    /// The file needs a feature that this build does not have.
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The cargo feature.
        feature: &'static str,
    },
    /// The types of keys or values in the file are not those of the store.
    OtherKind {
        /// The file.
        path: PathBuf,
        /// Types of keys and values in the file.
        found: String,
        /// Types of keys and values of the store.
        expected: String,
    },
    /// A file that another one names does not exist.
    Missing {
        /// The missing file.
        path: PathBuf,
        /// The file or directory that needs it.
        needed_by: PathBuf,
    },
    /// Another process, or another store of this process, has used the directory for at least half
    /// a second.
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The target of a backup already exists.
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// The directory contains other directories, and no store was ever opened in it.
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// One of the directories in it.
        name: String,
    },
    /// A backup of the same store is in progress.
    Busy,
    /// The thread is inside a [`log_group`](crate::Store::log_group), whose writes are not logged
    /// yet.
    InGroup,
    /// Another store has replaced this one in its directory, see
    /// [`Store::successor`](crate::Store::successor). Back up that one.
    Replaced,
    /// The caller cancelled the backup.
    Cancelled,
    /// The store was not opened in a directory.
    NoDirectory,
    /// The store could not take an entry that was read, probably because of its memory limit.
    Store(crate::Error),
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, doing, source } => {
                write!(f, "{}: cannot {doing}: {source}", path.display())
            }
            Self::Damaged { path, offset, what } => {
                write!(f, "{}: damaged at byte {offset}: {what}", path.display())
            }
            Self::NewerFormat { path, found, known } => write!(
                f,
                "{}: format version {found}; this program reads versions up to {known}",
                path.display()
            ),
            Self::Unsupported { path, feature } => write!(
                f,
                "{}: needs the feature `{feature}`, which this build does not have",
                path.display()
            ),
            Self::OtherKind { path, found, expected } => {
                write!(f, "{}: holds {found}, the store {expected}", path.display())
            }
            Self::Missing { path, needed_by } => {
                write!(f, "{}: missing, though {} needs it", path.display(), needed_by.display())
            }
            Self::InUse { dir } => {
                write!(f, "{}: in use by another store or process", dir.display())
            }
            Self::Exists { path } => write!(f, "{}: exists already", path.display()),
            Self::Foreign { dir, name } => write!(
                f,
                "{}: holds `{name}`, which is not Ordna's: use an empty directory",
                dir.display()
            ),
            Self::Busy => f.write_str("another backup is in progress"),
            Self::InGroup => f.write_str("a backup cannot be made inside a group of the log"),
            Self::Replaced => f.write_str("the store was replaced by its successor"),
            Self::Cancelled => f.write_str("the backup was cancelled"),
            Self::NoDirectory => {
                f.write_str("the store has no directory; `Store::open` gives it one")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl From<BackupError> for ordna_base::Error {
    fn from(error: BackupError) -> Self {
        Self::Durability(ordna_base::Cause(std::sync::Arc::new(error)))
    }
}

impl std::error::Error for BackupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<crate::Error> for BackupError {
    fn from(error: crate::Error) -> Self {
        Self::Store(error)
    }
}

impl BackupError {
    /// Adds the file and the operation to an I/O error.
    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, doing, source }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset, what: what.into() }
    }
}
