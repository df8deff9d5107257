//! Why a backup, a restore or an opening failed.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why a backup, a restore, a verification or an opening failed. The previous backup is untouched.
#[derive(Debug)]
#[non_exhaustive]
pub enum BackupError {
    /// The system refused an operation on a file.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A file does not hold what was written to it.
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damaged part begins, in bytes.
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
        /// The latest version known here.
        known: u32,
    },
    /// The file needs a feature that this build does not have.
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The cargo feature.
        feature: &'static str,
    },
    /// The file holds other kinds of keys or values than the store.
    OtherKind {
        /// The file.
        path: PathBuf,
        /// Kinds of keys and values in the file.
        found: String,
        /// Kinds of keys and values of the store.
        expected: String,
    },
    /// A file that another one names is not there.
    Missing {
        /// The missing file.
        path: PathBuf,
        /// The file or directory that needs it.
        needed_by: PathBuf,
    },
    /// Another process, or another store of this one, uses the directory, and did for half a
    /// second.
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The target of a backup is there already.
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// A directory that no store was opened in has other directories in it.
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// One of the directories in it.
        name: String,
    },
    /// A backup of the same store is under way.
    Busy,
    /// The thread is in a [`log_group`](crate::Store::log_group), whose writes are not logged yet.
    InGroup,
    /// Another store has replaced this one in its directory, see
    /// [`Store::successor`](crate::Store::successor). Back up that one.
    Replaced,
    /// The caller cancelled the backup.
    Cancelled,
    /// The store was not opened in a directory.
    NoDirectory,
    /// The store refused what was read: its memory limit, most likely.
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
            Self::Busy => f.write_str("a backup is under way"),
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
    /// Adds the file and the operation to an answer of the system.
    pub(crate) fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, doing, source }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset, what: what.into() }
    }
}
