//! The exceptions for errors of the store.

use ordna::Error;
use ordna::durability::BackupError;
use pyo3::exceptions::{
    PyBlockingIOError, PyFileExistsError, PyFileNotFoundError, PyMemoryError, PyOSError,
    PyRuntimeError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;

pyo3::create_exception!(
    ordna,
    Conflict,
    PyRuntimeError,
    "Other writes changed what a transaction had read before it could commit."
);

/// Returns the exception for an error of the store.
pub fn raise(error: Error) -> PyErr {
    match error {
        Error::MemoryLimit { .. } => PyMemoryError::new_err(error.to_string()),
        Error::LogFailed { .. } => PyOSError::new_err(error.to_string()),
        Error::Conflict { .. } => Conflict::new_err(error.to_string()),
        Error::TransactionTooOld { .. } => PyTimeoutError::new_err(error.to_string()),
        other => PyValueError::new_err(other.to_string()),
    }
}

/// The numbers of the operating system for these errors. The first two are the same on all
/// platforms.
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const EAGAIN: i32 = if cfg!(any(target_os = "linux", windows)) { 11 } else { 35 };

/// Returns the exception for an error of a backup, or of opening a directory.
pub fn raise_backup(error: BackupError) -> PyErr {
    let message = error.to_string();
    match error {
        BackupError::Io { source, .. } => PyOSError::new_err((source.raw_os_error(), message)),
        BackupError::Missing { .. } => PyFileNotFoundError::new_err((ENOENT, message)),
        BackupError::Exists { .. } => PyFileExistsError::new_err((EEXIST, message)),
        BackupError::InUse { .. } | BackupError::Busy => {
            PyBlockingIOError::new_err((EAGAIN, message))
        }
        BackupError::Store(error) => raise(error),
        _ => PyValueError::new_err(message),
    }
}
