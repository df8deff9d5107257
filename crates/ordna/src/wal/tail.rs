//! The tail of the log: a copy of the records that wait in the queue, in a file that outlives the
//! process.
//!
//! # Contract
//! After a process was killed, [`read`] returns the records that the segments lack, in order.
//! Appending needs no system call.
//!
//! # Protocol
//! The file has two areas. The queue appends the same records to the active area as to its frames,
//! under the lock of its state. The thread that takes the frames to write them makes the other area
//! active. The records in that area are already written, because one thread writes at a time. So
//! the two areas together contain every record that was appended and is not yet written.
//!
//! Records that do not fit into the active area are left out, and so are the following ones, until
//! the areas change. A later entry is valid only after the omitted records have been written. The
//! thread that appends such records writes them to the segment before its write returns.
//!
//! An entry has the position of its records and a checksum. A reader accepts the entries of an area
//! as long as each begins where the previous one ends, and only those that continue the log. So
//! after a power failure, which may keep any part of the file, the log has a prefix of its records.
//!
//! Like the blocks of a segment, an entry also has the position up to which the log was durable. If
//! the segments end before that position, records are lost.
//!
//! The file names the salts of the last two segments of the log. A reader ignores a tail if neither
//! segment is in the directory, because it belongs to another log.
//!
//! Positions may repeat after a power failure. So an opening that has read a tail removes it
//! durably before it appends.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use ordna_base::checksum::crc32c_append;
use ordna_base::sync::{fault, notice};

use crate::files::blocks::{BlockReader, BlockWriter, FILE_HEADER, FileHeader, FileKind};
use crate::files::directory::tail_path;
use crate::files::error::BackupError;
use crate::files::storage::{SharedFile, Storage};

/// Offset of the first area in bytes: one page.
const AREAS: usize = 4096;
/// Offset of the salts of the last two segments in bytes.
const SALTS: usize = FILE_HEADER;
/// Length of the header of an entry in bytes.
const ENTRY_HEADER: usize = 28;
/// Default size of an area in bytes. It usually holds what writers log while another thread writes.
pub(crate) const AREA: usize = 1 << 20;
/// Maximum size in bytes of a file that is read.
const MOST: u64 = 256 << 20;

/// The records of one `append`.
pub(crate) struct TailEntry {
    /// Position of the first record.
    pub start: u64,
    /// Position up to which the log was durable when the entry was written.
    synced: u64,
    /// Number of records.
    pub count: u64,
    pub payload: Vec<u8>,
}

impl TailEntry {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.payload.len() as u64)
    }
}

/// The file to which the queue appends.
#[derive(Debug)]
pub(crate) struct Tail {
    file: Box<dyn SharedFile>,
    salt: u64,
    area_len: usize,
    /// Offset of the active area.
    area: usize,
    /// Number of bytes of the active area in use.
    used: usize,
    /// Position at which the next entry begins, or `u64::MAX` if no entry is accepted.
    next: u64,
    /// Position after the last records that were left out.
    left_out: u64,
    /// Offset of the salt of the segment before the current one.
    former: usize,
}

impl Tail {
    /// Creates the file in a directory that has none, for a log that continues in `segment`.
    /// Returns `None` if the storage cannot share files or lacks the space.
    pub fn create(
        storage: &dyn Storage,
        dir: &Path,
        header: &FileHeader,
        area_len: usize,
        segment: &BlockWriter,
    ) -> Option<Self> {
        let path = tail_path(dir);
        let mut file = storage.create_shared(&path, AREAS + 2 * area_len).ok()??;
        file.write_at(0, &header.encode());
        let mut tail = Self {
            file,
            salt: header.salt,
            area_len,
            area: AREAS,
            used: 0,
            next: segment.position(),
            left_out: 0,
            former: SALTS,
        };
        tail.continue_in(segment);
        Some(tail)
    }

    /// Records that the log continues in a new segment.
    pub fn continue_in(&mut self, segment: &BlockWriter) {
        self.file.write_at(self.former, &segment.salt().to_le_bytes());
        self.former = if self.former == SALTS { SALTS + 8 } else { SALTS };
    }

    /// Appends the records at a position. `synced` is the position up to which the log is durable.
    /// Returns whether the records outlive the process.
    pub fn append(&mut self, start: u64, records: &[u8], count: u64, synced: u64) -> bool {
        let len = ENTRY_HEADER + records.len();
        let Ok(count) = u32::try_from(count) else { return false };
        if self.next != start || len > self.area_len - self.used {
            return false;
        }
        let mut header = [0; ENTRY_HEADER];
        header[..8].copy_from_slice(&start.to_le_bytes());
        header[8..16].copy_from_slice(&synced.to_le_bytes());
        // The length fits into four bytes, because an area is smaller than 4 GiB.
        header[16..20].copy_from_slice(&(records.len() as u32).to_le_bytes());
        header[20..24].copy_from_slice(&count.to_le_bytes());
        let crc = checksum(self.salt, &header, records);
        header[24..].copy_from_slice(&crc.to_le_bytes());
        let at = self.area + self.used;
        if !fault!("kill.tail.has_the_records") {
            self.file.write_at(at, &header);
            self.file.write_at(at + ENTRY_HEADER, records);
        }
        self.used += len;
        self.next = start + records.len() as u64;
        true
    }

    /// Marks the records before a position as missing in the tail.
    pub fn leave_out(&mut self, position: u64) {
        self.left_out = position;
    }

    /// Returns whether the tail has all unwritten records up to its last entry.
    pub fn has_no_gap(&self, written: u64) -> bool {
        written >= self.left_out
    }

    /// Makes the other area active, whose records are already written. Its first entry begins at
    /// `position`.
    pub fn change_area(&mut self, position: u64) {
        self.area = if self.area == AREAS { AREAS + self.area_len } else { AREAS };
        (self.used, self.next) = (0, position);
    }

    /// Accepts no more entries until the areas change, because the log has failed.
    pub fn pause(&mut self) {
        self.next = u64::MAX;
    }
}

fn checksum(salt: u64, header: &[u8; ENTRY_HEADER], records: &[u8]) -> u32 {
    let seed = crc32c_append(0, &salt.to_le_bytes());
    crc32c_append(crc32c_append(seed, &header[..24]), records)
}

/// Decodes the entry at the start of `bytes`. Returns `None` if it is incomplete or damaged.
fn decode(bytes: &[u8], salt: u64) -> Option<TailEntry> {
    let header = bytes.first_chunk::<ENTRY_HEADER>()?;
    let word = |at: usize| Some(u32::from_le_bytes(*header.get(at..)?.first_chunk()?));
    let payload = bytes.get(ENTRY_HEADER..)?.get(..word(16)? as usize)?;
    if word(24)? != checksum(salt, header, payload) {
        return None;
    }
    Some(TailEntry {
        start: word64(header, 0)?,
        synced: word64(header, 8)?,
        count: word(20)?.into(),
        payload: payload.to_vec(),
    })
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The contents of a tail.
#[derive(Default)]
pub(crate) struct TailContents {
    /// The entries of both areas, by their positions.
    entries: Vec<TailEntry>,
    /// Size in bytes of the records of another log.
    pub foreign: u64,
}

impl TailContents {
    /// Returns the position up to which the log was durable, as far as the tail knows.
    pub fn synced(&self) -> u64 {
        self.entries.iter().map(|entry| entry.synced).max().unwrap_or(0)
    }

    /// Returns the entries that continue a log which ends at `position`.
    pub fn after(&self, position: u64) -> Vec<&TailEntry> {
        let mut next = position;
        let new = self.entries.iter().filter(|entry| entry.end() > position);
        let continued = new.take_while(|entry| {
            let follows = entry.start == next;
            next = entry.end();
            follows
        });
        continued.collect()
    }
}

/// Reads the tail of a directory with these segments. Damage is not an error: it ends the tail,
/// like the end of the log. If the tail belongs to another log, only its size is returned.
///
/// # Errors
/// The file cannot be read, or has a newer version.
pub(crate) fn read(
    storage: &dyn Storage,
    dir: &Path,
    segments: &BTreeMap<u64, PathBuf>,
) -> Result<TailContents, BackupError> {
    let path = tail_path(dir);
    let input = match storage.open(&path) {
        Ok((input, _)) => input,
        // The store that owned the file has just closed it.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(TailContents::default()),
        Err(error) => return Err(BackupError::io(&path, "open")(error)),
    };
    let mut bytes = Vec::new();
    input.take(MOST).read_to_end(&mut bytes).map_err(BackupError::io(&path, "read"))?;
    let (Some(header), Some(areas)) = (bytes.first_chunk::<FILE_HEADER>(), bytes.get(AREAS..))
    else {
        return Ok(TailContents::default());
    };
    let salt = match FileHeader::decode(header, FileKind::Tail, &path) {
        Ok(header) => header.salt,
        Err(BackupError::Damaged { .. }) => return Ok(TailContents::default()),
        Err(error) => return Err(error),
    };
    let salts = [word64(&bytes, SALTS), word64(&bytes, SALTS + 8)];
    let is_ours = |path: &PathBuf| match BlockReader::open(storage, path, FileKind::Log, 0) {
        Ok(segment) => Ok(salts.contains(&Some(segment.header.salt))),
        Err(BackupError::Damaged { .. }) => Ok(false),
        Err(error) => Err(error),
    };
    let mut is_known = false;
    for path in segments.values().rev() {
        is_known = is_known || is_ours(path)?;
    }
    let (first, second) = areas.split_at(areas.len() / 2);
    let mut areas = [entries(first, salt), entries(second, salt)];
    areas.sort_by_key(|entries| entries.first().map(|entry| entry.start));
    let entries: Vec<TailEntry> = areas.into_iter().flatten().collect();
    if notice!("damage.tail.is_of_this_log", !is_known) {
        let foreign = entries.iter().map(|entry| entry.payload.len() as u64).sum();
        return Ok(TailContents { foreign, ..TailContents::default() });
    }
    Ok(TailContents { entries, foreign: 0 })
}

/// Returns the entries of an area.
fn entries(mut area: &[u8], salt: u64) -> Vec<TailEntry> {
    let mut entries: Vec<TailEntry> = Vec::new();
    while let Some(entry) = decode(area, salt)
        && entries.last().is_none_or(|last| last.end() == entry.start)
    {
        area = area.get(ENTRY_HEADER + entry.payload.len()..).unwrap_or_default();
        entries.push(entry);
    }
    entries
}

/// Removes the file of a directory, durably.
///
/// # Errors
/// I/O errors of the storage.
pub(crate) fn remove(storage: &dyn Storage, dir: &Path) -> Result<(), BackupError> {
    let path = tail_path(dir);
    storage.remove(&path).map_err(BackupError::io(&path, "remove"))?;
    storage.sync_dir(dir).map_err(BackupError::io(dir, "sync"))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_with_a_changed_byte_is_none() {
        let mut entry = vec![0; ENTRY_HEADER];
        entry[16..20].copy_from_slice(&5_u32.to_le_bytes());
        let crc = checksum(7, entry.first_chunk().unwrap(), b"words");
        entry[24..].copy_from_slice(&crc.to_le_bytes());
        entry.extend_from_slice(b"words");
        assert_eq!(decode(&entry, 7).unwrap().payload, b"words");
        assert!(decode(&entry, 8).is_none(), "another file's");
        for at in 0..entry.len() {
            entry[at] ^= 1;
            assert!(decode(&entry, 7).is_none(), "byte {at}");
            entry[at] ^= 1;
        }
    }
}
