//! Reads the log's segments again, and decides what a damaged place means.
//!
//! # Contract
//! The records of whole blocks are applied in their order. The log ends at the first block that is
//! not whole. Two cases are told apart by what later blocks say was durable when they were written:
//!
//! - *Torn tail*: no later block knows of a durable position behind the damage. The damaged part
//!   was never synced, or was being written at the crash. It is cut off and told.
//! - *Damage*: a later block knows better. Recovery stops with file and offset, unless it is to
//!   repair; then it cuts there too.
//!
//! A damaged last block of a segment whose successor begins at the same position has lost nothing:
//! recovery tells, and goes on.
//!
//! A segment whose file header is cut short was being created at the crash, unless a manifest or
//! the end of its predecessor names it: then it was durable, and its records are damaged or
//! missing.

use std::any::Any;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use ordna_base::sync::{fault, notice};

use crate::files::blocks::{Block, BlockKind, BlockReader, FILE_HEADER, FileKind, latest_synced};
use crate::files::codec::Record;
use crate::files::error::BackupError;
use crate::files::progress::Progress;
use crate::files::storage::Storage;
use crate::wal::reports::{WalReplay, WalTruncation};
use crate::{Change, Error, Put, Store};
use ordna_base::encoding::{ByteRange, Encoding};
use ordna_base::{Key, Value};

/// How a log is read.
pub(crate) struct Reading<'a> {
    pub storage: &'a dyn Storage,
    pub dir: &'a Path,
    /// Segments from the first one needed.
    pub segments: &'a BTreeMap<u64, PathBuf>,
    /// The first segment needed, and the position where it begins.
    pub first: u64,
    pub position: u64,
    /// The backup whose manifest names the first segment.
    pub named_by: Option<&'a Path>,
    /// Whether to cut at damage too.
    pub repair: bool,
    /// Whether cuts change the files.
    pub mend: bool,
    pub progress: &'a Progress,
}

/// How a segment ended.
enum Ended {
    /// Its successor must follow.
    Continued,
    /// In order, or at the end of the file.
    Here { closed: bool },
    /// Here the log ends.
    SnapshotPoint,
}

impl Reading<'_> {
    /// Reads all segments; calls `apply` with the payload of each block and the spans of its
    /// records.
    pub fn run<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        mut apply: impl FnMut(Vec<u8>, Vec<Record>) -> Result<(), Error>,
    ) -> Result<WalReplay, BackupError> {
        let mut read = WalReplay { position: self.position, ..WalReplay::default() };
        let numbers: Vec<u64> = self.segments.keys().copied().collect();
        let mut expected = self.first;
        let mut must_follow = None;
        if let Some(backup) = self.named_by
            && notice!("damage.log.first_is_named", !self.segments.contains_key(&self.first))
        {
            let path = self.path_of(self.first);
            if !self.repair {
                return Err(BackupError::Missing { path, needed_by: backup.to_owned() });
            }
            let what = "the segment is missing".to_owned();
            read.cuts.push(WalTruncation { path, offset: 0, what, dropped: 0, was_durable: true });
        }
        for (at, (number, path)) in self.segments.iter().enumerate() {
            if *number != expected {
                break;
            }
            expected += 1;
            let later = numbers.get(at + 1..).unwrap_or_default();
            let is_named = must_follow.take().is_some() || (at == 0 && self.named_by.is_some());
            let opened = self.open(path, is_named, later, &mut read)?;
            let Some(reader) = opened else { return Ok(read) };
            reader.header.check_kinds::<K, V>(path)?;
            if notice!("damage.segment.number", reader.header.number != *number) {
                let what = format!("is segment {}, not {number}", reader.header.number);
                return Err(BackupError::damaged(path, 0, what));
            }
            read.segments += 1;
            match self.segment::<K, V>(reader, later, &mut read, &mut apply)? {
                Ended::Continued => must_follow = Some(path),
                Ended::Here { closed } => read.closed = closed,
                Ended::SnapshotPoint => return Ok(read),
            }
        }
        if let Some(path) = must_follow
            && !fault!("damage.log.must_follow")
        {
            let path = path.clone();
            return Err(BackupError::Missing { path: self.path_of(expected), needed_by: path });
        }
        if let Some(found) = numbers.iter().find(|number| **number >= expected) {
            return Err(BackupError::Missing {
                path: self.path_of(expected),
                needed_by: self.path_of(*found),
            });
        }
        Ok(read)
    }

    /// Kinds of the keys and values in the first segment.
    pub fn kinds(&self) -> Result<(u8, u8), BackupError> {
        let Some(path) = self.segments.values().next() else { return Ok((0, 0)) };
        let Ok((_, len)) = self.storage.open(path) else { return Ok((0, 0)) };
        if len < FILE_HEADER as u64 {
            return Ok((0, 0));
        }
        let header = BlockReader::open(self.storage, path, FileKind::Log, 0)?.header;
        Ok((header.key_kind, header.value_kind))
    }

    fn path_of(&self, number: u64) -> PathBuf {
        crate::files::directory::segment_path(self.dir, number)
    }

    /// Opens a segment; `None`: its header was never written whole, nor was a later one, or it is
    /// cut. A segment that is named was durable, header and all.
    fn open(
        &self,
        path: &Path,
        is_named: bool,
        later: &[u64],
        read: &mut WalReplay,
    ) -> Result<Option<BlockReader>, BackupError> {
        let length = |path: &Path| match self.storage.open(path) {
            Ok((_, len)) => Ok(len),
            Err(error) => Err(BackupError::io(path, "open")(error)),
        };
        let own = length(path)?;
        if own >= FILE_HEADER as u64 {
            let position = read.position;
            return BlockReader::open(self.storage, path, FileKind::Log, position).map(Some);
        }
        let what = "the file header is cut short".to_owned();
        let (mut was_durable, mut dropped) = (is_named, own);
        for number in later {
            let len = length(&self.path_of(*number))?;
            was_durable |= len >= FILE_HEADER as u64;
            dropped += len;
        }
        if notice!("damage.log.header_was_durable", was_durable && !self.repair) {
            return Err(BackupError::damaged(path, 0, what));
        }
        if dropped > 0 || was_durable {
            read.cuts.push(WalTruncation {
                path: path.to_owned(),
                offset: 0,
                what,
                dropped,
                was_durable,
            });
        }
        if self.mend {
            for path in later.iter().rev().map(|number| self.path_of(*number)) {
                self.storage.remove(&path).map_err(BackupError::io(&path, "remove"))?;
            }
            self.storage.remove(path).map_err(BackupError::io(path, "remove"))?;
        }
        Ok(None)
    }

    fn segment<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        mut reader: BlockReader,
        later: &[u64],
        read: &mut WalReplay,
        apply: &mut impl FnMut(Vec<u8>, Vec<Record>) -> Result<(), Error>,
    ) -> Result<Ended, BackupError> {
        let path = reader.path().to_owned();
        let mut ended = None;
        loop {
            self.progress.check()?;
            let before = reader.offset();
            let block = match reader.read_block() {
                Ok(None) => return Ok(ended.unwrap_or(Ended::Here { closed: false })),
                Ok(Some(_)) if ended.is_some() => {
                    let what = "blocks follow the last one of the segment";
                    return Err(BackupError::damaged(&path, before, what));
                }
                Ok(Some(block)) => block,
                Err(BackupError::Damaged { offset, what, .. }) => {
                    return self.cut(&reader, offset, what, later, read);
                }
                Err(error) => return Err(error),
            };
            self.progress.add(block.count, reader.offset() - before);
            match block.kind {
                BlockKind::Data => {
                    let records = decode_block::<K, V>(&path, &block)?;
                    read.blocks += 1;
                    read.records += block.count;
                    read.position = reader.position();
                    apply(block.payload, records)?;
                }
                BlockKind::End => ended = Some(Ended::Here { closed: true }),
                BlockKind::Continued => ended = Some(Ended::Continued),
            }
        }
    }

    /// Decides what a damaged block means.
    fn cut(
        &self,
        reader: &BlockReader,
        offset: u64,
        what: String,
        later: &[u64],
        read: &mut WalReplay,
    ) -> Result<Ended, BackupError> {
        let (path, position) = (reader.path().to_owned(), reader.position());
        let follows = |path: &Path| {
            let next = BlockReader::open(self.storage, path, FileKind::Log, position);
            next.and_then(|mut next| next.read_block()).is_ok()
        };
        if later.first().is_some_and(|number| follows(&self.path_of(*number))) {
            read.cuts.push(WalTruncation { path, offset, what, dropped: 0, was_durable: false });
            return Ok(Ended::Continued);
        }
        let mut durable = latest_synced(self.storage, &path, reader.header.salt, offset)?;
        let mut dropped = reader.len() - offset;
        for path in later.iter().map(|number| self.path_of(*number)) {
            if let Ok(next) = BlockReader::open(self.storage, &path, FileKind::Log, 0) {
                let (salt, from) = (next.header.salt, next.offset());
                durable = durable.max(latest_synced(self.storage, &path, salt, from)?);
                dropped += next.len();
            }
        }
        let was_durable = durable.is_some_and(|durable| durable > position);
        if notice!("damage.log.was_durable", was_durable && !self.repair) {
            return Err(BackupError::Damaged { path, offset, what });
        }
        if self.mend {
            for path in later.iter().rev().map(|number| self.path_of(*number)) {
                self.storage.remove(&path).map_err(BackupError::io(&path, "remove"))?;
            }
            if !fault!("damage.log.cuts_its_tail") {
                let cut = self.storage.truncate(&path, offset);
                cut.map_err(BackupError::io(&path, "truncate"))?;
            }
        }
        read.cuts.push(WalTruncation { path, offset, what, dropped, was_durable });
        Ok(Ended::SnapshotPoint)
    }
}

/// The records of a block, all checked before the first is repeated.
fn decode_block<K: Key + ?Sized, V: Value + ?Sized>(
    path: &Path,
    block: &Block,
) -> Result<Vec<Record>, BackupError> {
    let (mut at, mut records) = (0, Vec::new());
    for _ in 0..block.count {
        let begins = at;
        let record = Record::decode::<K, V>(&block.payload, &mut at);
        let record = record.filter(|record| !matches!(record, Record::Was { .. }));
        records.push(record.ok_or_else(|| {
            let what = format!("byte {begins} of this block begins no record of a log");
            BackupError::damaged(path, block.offset, what)
        })?);
    }
    if at != block.payload.len() {
        let what = "bytes follow the last record of this block";
        return Err(BackupError::damaged(path, block.offset, what));
    }
    Ok(records)
}

/// Repeats a write.
pub(crate) fn repeat<K: Key + ?Sized, V: Value + ?Sized>(
    store: &Store<K, V>,
    payload: &[u8],
    record: Record,
) -> Result<(), Error> {
    let key = |span: ByteRange| K::decode(payload, span);
    match record {
        Record::Put { key: at, value, expires_at } => {
            let value = V::decode(payload, value);
            let put = Put { value: value.borrow(), expires_at };
            store.modify_entry(key(at).borrow(), |_| Change::<Put<&V>>::Put(put))
        }
        Record::Splice { key: to, at, bytes } => {
            // A position beyond all lengths is refused as too long.
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            splice(store, key(to).borrow(), at, <[u8]>::decode(payload, bytes))
        }
        Record::Remove { key: at } => {
            store.modify_entry(key(at).borrow(), |_| Change::<Put<&V>>::Remove)
        }
        Record::Expire { key: at, expires_at } => {
            store.set_expiry(key(at).borrow(), expires_at).map(|_| ())
        }
        Record::RemoveRange { lower, upper } => {
            let (lower, upper) = (lower.map(key), upper.map(key));
            store.remove_range(borrowed::<K>(&lower), borrowed::<K>(&upper));
            Ok(())
        }
        Record::Clear => {
            store.remove_range(Bound::Unbounded, Bound::Unbounded);
            Ok(())
        }
        // Only deltas have them; `decode_block` refuses them.
        Record::Was { .. } => Ok(()),
    }
}

/// Repeats a splice. Only stores of byte strings log one.
fn splice<K: Key + ?Sized, V: Value + ?Sized>(
    store: &Store<K, V>,
    key: &K,
    at: usize,
    bytes: &[u8],
) -> Result<(), Error> {
    let store: &dyn Any = store;
    let Some(store) = store.downcast_ref::<Store<K, [u8]>>() else { return Ok(()) };
    // An absent key expired while a backup was written, so the backup does not need it.
    store.splice(key, |found| found.map(|_| (at, bytes))).map(|_| ())
}

fn borrowed<'a, K: Key + ?Sized>(bound: &'a Bound<K::Ref<'_>>) -> Bound<&'a K> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Included(key.borrow()),
        Bound::Excluded(key) => Bound::Excluded(key.borrow()),
    }
}
