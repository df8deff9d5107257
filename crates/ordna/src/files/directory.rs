//! The directory of an opened store: names, the lock, what is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::storage::Storage;
use crate::files::error::BackupError;

/// The file whose lock makes a directory one store's.
const LOCK: &str = "LOCK";
const BACKUP: &str = "backup-";
const SEGMENT: &str = "log-";
const UNFINISHED: &str = "unfinished-";

/// The backup that holds everything before a segment of the log.
pub(crate) fn backup_path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(format!("{BACKUP}{segment:010}"))
}

/// A segment of the log.
pub(crate) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{SEGMENT}{number:010}"))
}

/// The contents of a directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Backups, by the segment at which each one's log begins.
    pub backups: BTreeMap<u64, PathBuf>,
    /// Segments of the log.
    pub segments: BTreeMap<u64, PathBuf>,
    /// Backups that were not finished.
    pub unfinished: Vec<PathBuf>,
}

impl Listing {
    pub fn read(storage: &dyn Storage, dir: &Path) -> Result<Self, BackupError> {
        let mut listing = Self::default();
        for name in storage.list(dir).map_err(BackupError::io(dir, "list"))? {
            let path = dir.join(&name);
            let number = |prefix| {
                let digits = name.strip_prefix(prefix)?;
                let plain = digits.bytes().all(|byte: u8| byte.is_ascii_digit());
                digits.parse().ok().filter(|_| plain)
            };
            if let Some(number) = number(BACKUP) {
                listing.backups.insert(number, path);
            } else if let Some(number) = number(SEGMENT) {
                listing.segments.insert(number, path);
            } else if name.starts_with(UNFINISHED) {
                listing.unfinished.push(path);
            }
        }
        Ok(listing)
    }
}

/// Takes the directory's lock. A store that is dropped has released it when the drop returns.
pub(crate) fn lock(storage: &dyn Storage, dir: &Path) -> Result<Box<dyn Send + Sync>, BackupError> {
    let path = dir.join(LOCK);
    let held = storage.lock(&path).map_err(BackupError::io(&path, "lock"))?;
    held.ok_or_else(|| BackupError::InUse { dir: dir.to_owned() })
}
