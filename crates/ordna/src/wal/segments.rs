//! Creation of the segments of a store's log.
//!
//! # Invariant
//! Segments are created in the order of their numbers, without a gap. For this, [`Segments::next`]
//! is locked from the choice of a number until the log continues in that segment or the file is
//! removed again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordna_base::sync::{Lock, fault};

use super::tail::TailEntry;
use crate::files::blocks::{BlockWriter, Compression, FileHeader, Frame};
use crate::files::directory::{Reserve, mark, reserve_path, segment_path, tail_path};
use crate::files::error::BackupError;
use crate::files::storage::{Storage, write_all};

/// Size in bytes at which a frame is closed, so that a reader of the log needs little memory.
pub(super) const FRAME: usize = 1 << 20;

/// Creates the segments of a store's log.
pub(crate) struct Segments {
    pub storage: Arc<dyn Storage>,
    pub dir: PathBuf,
    /// Returns the header of the segment with a number.
    pub header: fn(u64) -> FileHeader,
    /// Number of the next segment.
    pub next: Lock<u64>,
    /// Size in bytes of each part of the reserved disk space; 0 if there is none.
    pub reserve: u64,
}

impl Segments {
    /// Creates a segment and its mark durably. After an error, no file is left.
    pub fn create(&self, number: u64) -> Result<BlockWriter, BackupError> {
        let segment = self.create_with(number, |_| Ok(()))?;
        mark(&*self.storage, &self.dir, number);
        Ok(segment)
    }

    /// Creates a segment and its mark durably. The segment begins at `position` with these records.
    /// After an error, no file is left.
    pub fn create_at(
        &self,
        number: u64,
        position: u64,
        records: &[&TailEntry],
    ) -> Result<BlockWriter, BackupError> {
        let segment = self.create_with(number, |segment| {
            segment.start_at(position, position)?;
            // A start would take a segment with records but without a header for a damaged one.
            if !records.is_empty() && !fault!("damage.tail.header_is_first") {
                segment.sync()?;
            }
            let mut frame = Frame::default();
            for (at, entry) in records.iter().enumerate() {
                frame.extend(&entry.payload, entry.count);
                if frame.len() >= FRAME || at + 1 == records.len() {
                    segment.data(&mut frame, position)?;
                    frame.clear();
                }
            }
            Ok(())
        })?;
        mark(&*self.storage, &self.dir, number);
        Ok(segment)
    }

    /// Creates a segment durably, with the data that `write` writes. It has no mark yet. After an
    /// error, no file is left.
    pub fn create_with(
        &self,
        number: u64,
        write: impl FnOnce(&mut BlockWriter) -> Result<(), BackupError>,
    ) -> Result<BlockWriter, BackupError> {
        let path = segment_path(&self.dir, number);
        let made = move || -> Result<BlockWriter, BackupError> {
            let header = (self.header)(number);
            let create = || BlockWriter::create(&*self.storage, &path, &header, Compression::None);
            let mut segment = create().or_else(|error| match &error {
                BackupError::Io { source, .. } if source.kind() == ErrorKind::AlreadyExists => {
                    // Only a failed attempt of this process can have left the file.
                    self.discard(number);
                    create()
                }
                _ => Err(error),
            })?;
            write(&mut segment)?;
            if !fault!("faults.segment.syncs_its_header") {
                segment.sync()?;
            }
            if fault!("faults.segment.syncs_its_name") {
                return Ok(segment);
            }
            self.storage.sync_dir(&self.dir).map_err(BackupError::io(&self.dir, "sync"))?;
            Ok(segment)
        };
        made().inspect_err(|_| self.discard(number))
    }

    /// Removes the tail, because the segments have all records.
    pub fn remove_tail(&self) {
        // If this fails, the next opening removes it.
        let _ = self.storage.remove(&tail_path(&self.dir));
    }

    /// Removes a segment that was not used.
    pub fn discard(&self, number: u64) {
        // If the file cannot be removed, the next attempt removes it.
        let _ = self.storage.remove(&segment_path(&self.dir, number));
    }

    /// Marks the segment in which the log continues after a failed write, and cuts off what that
    /// write left at the end of the former segment. Neither is required: an opening understands the
    /// files without it.
    pub fn complete(&self, number: u64, former: &Path, len: u64) {
        mark(&*self.storage, &self.dir, number);
        let _ = self.storage.truncate(former, len);
    }

    /// Gives up a part of the reserve, to free some space on a full disk.
    pub fn free_reserve(&self, part: Reserve) {
        if self.reserve > 0 {
            // It may already have been given up.
            let _ = self.storage.remove(&reserve_path(&self.dir, part));
        }
    }

    /// Reserves disk space for `part`, if there is enough.
    pub fn fill_reserve(&self, part: Reserve) {
        if self.reserve == 0 {
            return;
        }
        let path = reserve_path(&self.dir, part);
        if self.storage.open(&path).is_ok_and(|(_, len)| len == self.reserve) {
            return;
        }
        let fill = || {
            let _ = self.storage.remove(&path);
            let file = self.storage.create(&path)?;
            // Random bytes, which no file system can store in less space.
            const PIECE: u64 = 64 << 10;
            let mut word = 1_u64;
            let mut left = self.reserve;
            while left > 0 {
                let bytes: Vec<u8> = std::iter::repeat_with(|| {
                    word ^= word << 13;
                    word ^= word >> 7;
                    word ^= word << 17;
                    word as u8
                })
                .take(left.min(PIECE) as usize)
                .collect();
                write_all(&*file, &bytes)?;
                left -= bytes.len() as u64;
            }
            // Synced, because space that was only promised may not be available later.
            file.sync()
        };
        if fill().is_err() {
            let _ = self.storage.remove(&path);
        }
    }

    /// Passes a new segment to `take`, unless none can be created now.
    pub fn next(&self, take: impl FnOnce(BlockWriter)) {
        // A backup that is about to begin a segment holds the lock. It may wait for writers, which
        // may wait for the log's thread, so this thread must not wait.
        let Some(mut next) = self.next.try_lock() else { return };
        // Without a new segment, the log continues in the current one.
        let Ok(segment) = self.create(*next) else { return };
        *next += 1;
        // If the log has failed in the meantime, the segment stays empty; its mark says that it
        // exists.
        take(segment);
    }
}
