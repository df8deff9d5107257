//! Creation of the segments of a store's log.
//!
//! # Invariant
//! Segments are created in the order of their numbers, without a gap: [`Segments::next`] is locked
//! from the choice of a number until the log continues in that segment, or the file is removed
//! again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ordna_base::sync::{Lock, fault};

use super::tail::TailEntry;
use crate::files::blocks::{BlockWriter, Compression, FileHeader, Frame};
use crate::files::directory::{Reserve, mark, reserve_path, segment_path, tail_path};
use crate::files::error::BackupError;
use crate::files::storage::{Storage, write_all};

/// A frame is closed at this many bytes, so that a reader of the log needs little memory.
pub(super) const FRAME: usize = 1 << 20;

/// Creates the segments of a store's log.
pub(crate) struct Segments {
    pub storage: Arc<dyn Storage>,
    pub dir: PathBuf,
    /// Returns the header of the segment with a number.
    pub header: fn(u64) -> FileHeader,
    /// Number of the next segment.
    pub next: Lock<u64>,
    /// Size in bytes of each part of the reserve; 0: there is none.
    pub reserve: u64,
}

impl Segments {
    /// Creates a segment durably, and its mark. After an error no file is left.
    pub fn create(&self, number: u64) -> Result<BlockWriter, BackupError> {
        let segment = self.create_with(number, |_| Ok(()))?;
        mark(&*self.storage, &self.dir, number);
        Ok(segment)
    }

    /// Creates a segment durably, and its mark, that begins at `position` with these records. After
    /// an error no file is left.
    pub fn create_at(
        &self,
        number: u64,
        position: u64,
        records: &[&TailEntry],
    ) -> Result<BlockWriter, BackupError> {
        let segment = self.create_with(number, |segment| {
            segment.start_at(position, position)?;
            // A start takes a segment that has records and no header for one that was damaged.
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

    /// Creates a segment durably, with what `write` writes. It has no mark yet. After an error no
    /// file is left.
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
                    // Nobody else creates it: an attempt that failed has left it.
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

    /// Removes the tail: the segments have all records.
    pub fn remove_tail(&self) {
        // Otherwise the next opening does it.
        let _ = self.storage.remove(&tail_path(&self.dir));
    }

    /// Removes a segment that is not used.
    pub fn discard(&self, number: u64) {
        // If the file cannot be removed, the next attempt does it.
        let _ = self.storage.remove(&segment_path(&self.dir, number));
    }

    /// Marks a segment that the log continues in after a failed write, and cuts what the write left
    /// at the end of the former one. Both only help: a start understands the files without that.
    pub fn complete(&self, number: u64, former: &Path, len: u64) {
        mark(&*self.storage, &self.dir, number);
        let _ = self.storage.truncate(former, len);
    }

    /// Gives up a part of the reserve, so that there is some space on a full disk.
    pub fn free_reserve(&self, part: Reserve) {
        if self.reserve > 0 {
            // It may have been given up before.
            let _ = self.storage.remove(&reserve_path(&self.dir, part));
        }
    }

    /// Occupies a part of the reserve, if there is space for it.
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
            // Nothing that a file system stores in less space.
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
            // Space that is only promised may not be there when it is needed.
            file.sync()
        };
        if fill().is_err() {
            let _ = self.storage.remove(&path);
        }
    }

    /// Passes a new segment to `take`, unless none can be created now.
    pub fn next(&self, take: impl FnOnce(BlockWriter)) {
        // A backup that is about to begin a segment keeps the number. It may wait for writers, and
        // they for the log's thread: so this thread does not wait.
        let Some(mut next) = self.next.try_lock() else { return };
        // Without a new segment the log continues in the present one.
        let Ok(segment) = self.create(*next) else { return };
        *next += 1;
        // If the log has failed meanwhile, the segment stays empty: its mark says that it exists.
        take(segment);
    }
}
