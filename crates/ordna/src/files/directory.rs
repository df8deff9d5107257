//! The directory of an opened store: the names of its files, its lock, and a listing.
//!
//! # Marks
//! A *mark* is an empty file whose name says that a segment was created durably. If a start does
//! not find that segment, the segment is missing, which nothing else would show for the newest one.
//! A mark is created after its segment and removed before it. A mark of an older segment is still
//! true, but says less. So a failure to create a mark is not an error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ordna_base::sync::fault;

use super::manifest::is_name_in_backup;
use super::storage::Storage;
use crate::files::error::BackupError;

/// The file whose lock reserves a directory for one store.
const LOCK: &str = "LOCK";
const TAIL: &str = "tail";
const BACKUP: &str = "backup-";
const SEGMENT: &str = "log-";
const UNFINISHED: &str = "unfinished-backup-";
const MARK: &str = "newest-";
/// A directory that some file systems create in their root.
const LOST_AND_FOUND: &str = "lost+found";

/// Returns the path of the backup that holds everything before a segment of the log.
pub(crate) fn backup_path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(format!("{BACKUP}{segment:010}"))
}

/// Returns the path of a segment of the log.
pub(crate) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{SEGMENT}{number:010}"))
}

/// The purpose of a part of the reserved disk space.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reserve {
    /// Space for records that could not be written.
    Log,
    /// Space for a backup after the log has failed.
    Backup,
}

/// Returns the path of a file that reserves disk space and is removed when the disk is full.
pub(crate) fn reserve_path(dir: &Path, part: Reserve) -> PathBuf {
    dir.join(match part {
        Reserve::Log => "reserve-log",
        Reserve::Backup => "reserve-backup",
    })
}

/// Returns the path of the file with the records of the log that are not in any segment.
pub(crate) fn tail_path(dir: &Path) -> PathBuf {
    dir.join(TAIL)
}

/// The contents of a directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Backups, by the segment with which the log after each backup begins.
    pub backups: BTreeMap<u64, PathBuf>,
    /// Segments of the log.
    pub segments: BTreeMap<u64, PathBuf>,
    /// Backups that were not finished.
    pub unfinished: Vec<PathBuf>,
    /// Marks, by the segment that each one names.
    pub marks: BTreeMap<u64, PathBuf>,
    /// Whether there are records of the log that are not in any segment.
    pub has_tail: bool,
    /// Whether a store has locked the directory at some time.
    has_lock: bool,
    /// Names of other files and directories.
    others: Vec<String>,
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
            } else if let Some(number) = number(MARK) {
                listing.marks.insert(number, path);
            } else if number(UNFINISHED).is_some() && is_unfinished_backup(storage, &path) {
                listing.unfinished.push(path);
            } else if name == LOCK {
                listing.has_lock = true;
            } else if name == TAIL {
                listing.has_tail = true;
            } else {
                listing.others.push(name);
            }
        }
        Ok(listing)
    }

    /// Returns an error for a directory that is not a store's and contains other directories,
    /// because its path is probably mistyped. Files, hidden directories and those of the file
    /// system are allowed.
    pub fn check_ours(&self, storage: &dyn Storage, dir: &Path) -> Result<(), BackupError> {
        if self.has_lock || !self.backups.is_empty() || !self.segments.is_empty() {
            return Ok(());
        }
        let is_foreign = |name: &&String| {
            let is_usual = name.starts_with('.') || **name == LOST_AND_FOUND;
            !is_usual && storage.list(&dir.join(name)).is_ok()
        };
        match self.others.iter().find(is_foreign) {
            None => Ok(()),
            Some(name) => Err(BackupError::Foreign { dir: dir.to_owned(), name: name.clone() }),
        }
    }

    /// Returns the newest segment that a mark names.
    pub fn newest_marked(&self) -> Option<(u64, &Path)> {
        self.marks.last_key_value().map(|(number, path)| (*number, path.as_path()))
    }
}

/// Returns whether all names in a directory are names of a backup's files.
pub(crate) fn is_unfinished_backup(storage: &dyn Storage, dir: &Path) -> bool {
    storage.list(dir).is_ok_and(|names| names.iter().all(|name| is_name_in_backup(name)))
}

/// Creates the mark of a segment, which exists durably, and removes all older marks but the last.
pub(crate) fn mark(storage: &dyn Storage, dir: &Path, segment: u64) {
    if fault!("damage.log.marks_its_newest") {
        return;
    }
    let Ok(listing) = Listing::read(storage, dir) else { return };
    // The last mark is kept until the new one is certainly durable.
    for path in listing.marks.values().rev().skip(1) {
        let _ = storage.remove(path);
    }
    if !listing.marks.contains_key(&segment) {
        let _ = storage.create(&dir.join(format!("{MARK}{segment:010}")));
    }
    let _ = storage.sync_dir(dir);
}

/// Removes the marks of all segments from `from` on, durably, before these segments are removed.
///
/// # Errors
/// Errors of the storage. No segment may be removed after an error.
pub(crate) fn unmark(storage: &dyn Storage, dir: &Path, from: u64) -> Result<(), BackupError> {
    let listing = Listing::read(storage, dir)?;
    for path in listing.marks.range(from..).rev().map(|(_, path)| path) {
        storage.remove(path).map_err(BackupError::io(path, "remove"))?;
    }
    storage.sync_dir(dir).map_err(BackupError::io(dir, "sync"))
}

/// Takes the directory's lock. Dropping a store releases the lock before the drop returns.
pub(crate) fn lock(storage: &dyn Storage, dir: &Path) -> Result<Box<dyn Send + Sync>, BackupError> {
    let path = dir.join(LOCK);
    let held = storage.lock(&path).map_err(BackupError::io(&path, "lock"))?;
    held.ok_or_else(|| BackupError::InUse { dir: dir.to_owned() })
}
