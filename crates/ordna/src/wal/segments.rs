//! Creation of the segments of a store's log.
//!
//! # Invariant
//! Segments are created in the order of their numbers, without a gap: [`Segments::next`] is locked
//! from the choice of a number until the log continues in that segment, or the file is removed
//! again.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ordna_base::sync::fault;

use crate::files::blocks::{BlockWriter, Compression, FileHeader};
use crate::files::directory::{mark, segment_path};
use crate::files::error::BackupError;
use crate::files::storage::Storage;

/// Creates the segments of a store's log.
pub(crate) struct Segments {
    pub storage: Arc<dyn Storage>,
    pub dir: PathBuf,
    /// Returns the header of the segment with a number.
    pub header: fn(u64) -> FileHeader,
    /// Number of the next segment.
    pub next: Mutex<u64>,
}

impl Segments {
    /// Creates a segment durably, and its mark. It begins at `position`, if that is known already.
    /// After an error no file is left.
    pub fn create(&self, number: u64, position: Option<u64>) -> Result<BlockWriter, BackupError> {
        let path = segment_path(&self.dir, number);
        let made = || -> Result<BlockWriter, BackupError> {
            let header = (self.header)(number);
            let mut segment =
                BlockWriter::create(&*self.storage, &path, &header, Compression::None)?;
            if let Some(position) = position {
                segment.start_at(position, position)?;
            }
            if !fault!("faults.segment.syncs_its_header") {
                segment.sync()?;
            }
            if fault!("faults.segment.syncs_its_name") {
                return Ok(segment);
            }
            self.storage.sync_dir(&self.dir).map_err(BackupError::io(&self.dir, "sync"))?;
            Ok(segment)
        };
        let segment = made().inspect_err(|_| {
            // If the file cannot be removed, the next attempt reports it.
            let _ = self.storage.remove(&path);
        })?;
        mark(&*self.storage, &self.dir, number);
        Ok(segment)
    }

    /// Passes a new segment to `take`, unless none can be created now.
    pub fn next(&self, take: impl FnOnce(BlockWriter)) {
        // A backup that is about to begin a segment keeps the number. It may wait for writers, and
        // they for the log's thread: so this thread does not wait.
        let Ok(mut next) = self.next.try_lock() else { return };
        // Without a new segment the log continues in the present one.
        if let Ok(segment) = self.create(*next, None) {
            *next += 1;
            take(segment);
        }
    }
}
