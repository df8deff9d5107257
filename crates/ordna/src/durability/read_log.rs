//! Reads the groups of a log, starting at a position.

use std::path::Path;

use ordna_base::{Key, Value};

use super::replay::Reading;
use crate::files::codec::Record;
use crate::files::directory::Listing;
use crate::files::error::BackupError;
use crate::files::manifest::Manifest;
use crate::files::progress::Progress;
use crate::files::storage::Storage;
use crate::wal::sink::LogGroup;
use crate::wal::tail::{self, TailContents};

/// Reads the log of a directory from a position on, and calls `each` with its records in order.
/// Records that were written together are passed together; the first ones begin at `from`. Returns
/// the position after the last record, or `None` if the log begins after `from` or ends before it.
///
/// A store may use the directory: after [`sync_log`](crate::Store::sync_log), everything that it
/// has logged is read. It must not write or back up concurrently. O(bytes of the log).
///
/// # Errors
/// Returns an error if the log is damaged, or `from` is within a record.
pub fn read_log<K: Key + ?Sized, V: Value + ?Sized>(
    storage: &dyn Storage,
    dir: impl AsRef<Path>,
    from: u64,
    mut each: impl FnMut(LogGroup<'_>),
) -> Result<Option<u64>, BackupError> {
    let dir = dir.as_ref();
    let listing = Listing::read(storage, dir)?;
    let backup = listing.backups.last_key_value();
    let (first, start) = match backup {
        Some((number, path)) => (*number, Manifest::read(storage, path)?.log_position),
        None => (1, 0),
    };
    if start > from {
        return Ok(None);
    }
    let segments = listing.segments.range(first..);
    let segments = segments.map(|(number, path)| (*number, path.clone())).collect();
    let tail = match listing.has_tail {
        true => tail::read(storage, dir, &listing.segments)?,
        false => TailContents::default(),
    };
    let reading = Reading {
        storage,
        dir,
        segments: &segments,
        first,
        position: start,
        named_by: backup.map(|(_, path)| path.as_path()),
        marked: listing.newest_marked(),
        tail: &tail,
        repair: false,
        mend: false,
        progress: &Progress::default(),
    };
    let mut reader = Skipping { from, position: start, is_torn: false };
    reading.run::<K, V>(|payload, records| {
        reader.pass::<K, V>(&payload, records.len() as u64, &mut each);
        Ok(())
    })?;
    for entry in tail.after(reader.position) {
        reader.pass::<K, V>(&entry.payload, entry.count, &mut each);
    }
    let Skipping { position, is_torn, .. } = reader;
    if is_torn {
        let what = format!("position {from} is within a record");
        return Err(BackupError::damaged(dir, 0, what));
    }
    Ok((position >= from).then_some(position))
}

/// A reader that passes on only what is after a position.
struct Skipping {
    from: u64,
    position: u64,
    /// Whether `from` is within a record.
    is_torn: bool,
}

impl Skipping {
    fn pass<K: Key + ?Sized, V: Value + ?Sized>(
        &mut self,
        payload: &[u8],
        count: u64,
        each: &mut impl FnMut(LogGroup<'_>),
    ) {
        let (mut at, mut skipped) = (0, 0);
        while self.position + (at as u64) < self.from && skipped < count {
            // The bytes have already been decoded once, so they are a record.
            self.is_torn |= Record::decode::<K, V>(payload, &mut at).is_none();
            skipped += 1;
        }
        let start = self.position + at as u64;
        self.position += payload.len() as u64;
        self.is_torn |= skipped > 0 && start > self.from;
        if skipped < count {
            let records = payload.get(at..).unwrap_or_default();
            each(LogGroup { start, records, count: count - skipped });
        }
    }
}
