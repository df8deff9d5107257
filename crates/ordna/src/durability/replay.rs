//! Reads the segments of the log, and decides what damage means.
//!
//! # Contract
//! The records of complete blocks are applied in their order. The log ends at the first block that
//! is not complete. Two cases are distinguished by what later blocks record as durable when they
//! were written:
//!
//! - *Torn tail*: neither a later block nor the file `tail` records a durable position after the
//!   damage. The damaged part was never synced, or was being written at the crash. It is cut off
//!   and reported.
//! - *Damage*: one of them does. Recovery fails with file and offset. If it is to repair, it
//!   truncates the log there instead.
//!
//! If the last block of a segment is damaged and the next segment begins at the same position,
//! nothing is lost: recovery reports the damage and continues.
//!
//! A segment is *named* by a manifest, by the end of its predecessor, by a mark, or by a later
//! segment. A named segment was durable: if it is missing, or its file header is damaged, records
//! are lost. A short segment that is not named and has a damaged header was being created at the
//! crash.
//!
//! With `repair`, the log ends at the first of these places: later segments are removed, and the
//! cut reports that durable records are lost.

use std::any::Any;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use ordna_base::sync::{fault, notice};

use super::read_ahead::{ReadBlock, with_blocks};
use crate::files::blocks::{
    BLOCK_HEADER, Block, BlockKind, BlockReader, FILE_HEADER, FileHeader, FileKind, latest_synced,
};
use crate::files::codec::Record;
use crate::files::directory::{tail_path, unmark};
use crate::files::error::BackupError;
use crate::files::progress::Progress;
use crate::files::storage::Storage;
use crate::wal::reports::{WalReplay, WalTruncation};
use crate::wal::tail::TailContents;
use crate::{Change, Error, Put, Store};
use ordna_base::encoding::{ByteRange, Encoding};
use ordna_base::{Key, Value};

/// Length in bytes of a segment without records: its header, and the block at its start.
const EMPTY_SEGMENT: u64 = (FILE_HEADER + BLOCK_HEADER) as u64;

/// The parameters with which a log is read.
pub(crate) struct Reading<'a> {
    pub storage: &'a dyn Storage,
    pub dir: &'a Path,
    /// Segments, starting with the first one needed.
    pub segments: &'a BTreeMap<u64, PathBuf>,
    /// Number of the first segment needed, and the position at which it begins.
    pub first: u64,
    pub position: u64,
    /// The backup whose manifest names the first segment.
    pub named_by: Option<&'a Path>,
    /// The newest segment that a mark names, and the path of that mark.
    pub marked: Option<(u64, &'a Path)>,
    /// The contents of the file `tail`.
    pub tail: &'a TailContents,
    /// Whether the log is truncated at damage, too.
    pub repair: bool,
    /// Whether files are truncated and removed, or only read.
    pub mend: bool,
    pub progress: &'a Progress,
}

/// The end of a segment.
enum Ended {
    /// The log continues in the next segment, which must exist.
    Continued,
    /// The log ends here: it was closed in order, or the file ends.
    Here { closed: bool },
    /// The log is truncated here, and later segments are not read.
    Truncated,
}

/// The segment that is being read.
struct Segment {
    path: PathBuf,
    header: FileHeader,
    len: u64,
}

/// A place at which the log may end.
struct Damage {
    path: PathBuf,
    offset: u64,
    /// Position of the first lost record.
    position: u64,
    what: String,
    /// Whether no crash can leave such a file.
    is_certain: bool,
}

impl Reading<'_> {
    /// Reads all segments, and calls `apply` with the payload and the records of each block.
    pub fn run<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        mut apply: impl FnMut(Vec<u8>, Vec<Record>) -> Result<(), Error>,
    ) -> Result<WalReplay, BackupError> {
        let mut read = WalReplay { position: self.position, ..WalReplay::default() };
        if self.tail.foreign > 0 {
            let (path, dropped) = (tail_path(self.dir), self.tail.foreign);
            let what = "it names none of the segments of this directory".to_owned();
            read.cuts.push(WalTruncation { path, offset: 0, what, dropped, was_durable: false });
        }
        let numbers: Vec<u64> = self.segments.keys().copied().collect();
        // Number of the first segment that is missing.
        let end = (self.first..).find(|number| !self.segments.contains_key(number));
        let end = end.unwrap_or(u64::MAX);
        let mut needed_by = self.needed_by(end);
        if let Some(needed_by) = &needed_by
            && !self.repair
        {
            let (path, needed_by) = (self.path_of(end), needed_by.clone());
            return Err(BackupError::Missing { path, needed_by });
        }
        let mut must_follow = None;
        for (at, (number, path)) in self.segments.range(..end).enumerate() {
            let later = numbers.get(at + 1..).unwrap_or_default();
            let is_named = must_follow.take().is_some() || self.is_named(*number);
            let opened = self.open(*number, path, is_named, later, &mut read)?;
            let Some(reader) = opened else { return Ok(truncated(read, needed_by.is_some())) };
            reader.header.check_kinds::<K, V>(path)?;
            read.segments += 1;
            match self.segment::<K, V>(reader, later, &mut read, &mut apply)? {
                Ended::Continued => must_follow = Some(path),
                Ended::Here { closed } => read.closed = closed,
                Ended::Truncated => return Ok(truncated(read, needed_by.is_some())),
            }
        }
        if let Some(path) = must_follow
            && !fault!("damage.log.must_follow")
        {
            needed_by = Some(path.clone());
        }
        let Some(needed_by) = needed_by else { return self.check_end(read) };
        let path = self.path_of(end);
        if !self.repair {
            return Err(BackupError::Missing { path, needed_by });
        }
        let later: Vec<u64> = self.segments.range(end..).map(|(number, _)| *number).collect();
        let mut dropped = 0;
        for number in &later {
            dropped += self.length(&self.path_of(*number))?;
        }
        self.remove_from(end, &later)?;
        read.closed = false;
        let what = "the segment is missing".to_owned();
        read.cuts.push(WalTruncation { path, offset: 0, what, dropped, was_durable: true });
        Ok(read)
    }

    /// Returns an error if the last segment ends, without damage, before a durable position.
    fn check_end(&self, mut read: WalReplay) -> Result<WalReplay, BackupError> {
        if let Some(path) = self.segments.values().next_back()
            && notice!("damage.tail.knows_the_end", self.tail.synced() > read.position)
        {
            let (path, offset) = (path.to_owned(), self.length(path)?);
            let what = "the log ends here, and more of it was durable".to_owned();
            if !self.repair {
                return Err(BackupError::Damaged { path, offset, what });
            }
            read.closed = false;
            read.cuts.push(WalTruncation { path, offset, what, dropped: 0, was_durable: true });
        }
        Ok(read)
    }

    /// Returns the file that shows that the missing segment `end` existed, if there is one.
    fn needed_by(&self, end: u64) -> Option<PathBuf> {
        if let Some(backup) = self.named_by
            && notice!("damage.log.first_is_named", end == self.first)
        {
            return Some(backup.to_owned());
        }
        if let Some((_, later)) = self.segments.range(end..).next() {
            return Some(later.clone());
        }
        let (_, mark) = self.marked.filter(|(marked, _)| *marked >= end)?;
        notice!("damage.log.newest_is_marked", true).then(|| mark.to_owned())
    }

    /// Returns whether a manifest or a mark names a segment.
    fn is_named(&self, number: u64) -> bool {
        (number == self.first && self.named_by.is_some())
            || self.marked.is_some_and(|(marked, _)| marked >= number)
    }

    /// Returns the types of keys and values in the first segment with a complete header.
    pub fn kinds(&self) -> (u8, u8) {
        let header = |path: &PathBuf| BlockReader::open(self.storage, path, FileKind::Log, 0).ok();
        let header = self.segments.values().find_map(header).map(|reader| reader.header);
        header.map_or((0, 0), |header| (header.key_kind, header.value_kind))
    }

    fn path_of(&self, number: u64) -> PathBuf {
        crate::files::directory::segment_path(self.dir, number)
    }

    fn length(&self, path: &Path) -> Result<u64, BackupError> {
        let opened = self.storage.open(path).map_err(BackupError::io(path, "open"));
        opened.map(|(_, len)| len)
    }

    /// Removes the segments from `from` on, newest first, so that a crash leaves no gap.
    fn remove_from(&self, from: u64, numbers: &[u64]) -> Result<(), BackupError> {
        if !self.mend {
            return Ok(());
        }
        unmark(self.storage, self.dir, from)?;
        for path in numbers.iter().rev().map(|number| self.path_of(*number)) {
            self.storage.remove(&path).map_err(BackupError::io(&path, "remove"))?;
        }
        self.storage.sync_dir(self.dir).map_err(BackupError::io(self.dir, "sync"))
    }

    /// Opens a segment. Returns `None` if the log ends before it.
    fn open(
        &self,
        number: u64,
        path: &Path,
        is_named: bool,
        later: &[u64],
        read: &mut WalReplay,
    ) -> Result<Option<BlockReader>, BackupError> {
        let what = match BlockReader::open(self.storage, path, FileKind::Log, read.position) {
            Ok(reader) if notice!("damage.segment.number", reader.header.number != number) => {
                format!("is segment {}, not {number}", reader.header.number)
            }
            Ok(reader) => return Ok(Some(reader)),
            Err(BackupError::Damaged { what, .. }) => what,
            Err(error) => return Err(error),
        };
        // A segment and its header are durable before records are written to it, and before the
        // next segment is created.
        let own = self.length(path)?;
        let is_missed = self.tail.synced() > read.position;
        let (mut was_durable, mut dropped) = (is_named || is_missed || own > EMPTY_SEGMENT, own);
        for number in later {
            let len = self.length(&self.path_of(*number))?;
            was_durable |= len >= FILE_HEADER as u64;
            dropped += len;
        }
        if notice!("damage.log.header_was_durable", was_durable && !self.repair) {
            return Err(BackupError::damaged(path, 0, what));
        }
        if dropped > 0 || was_durable {
            let path = path.to_owned();
            read.cuts.push(WalTruncation { path, offset: 0, what, dropped, was_durable });
        }
        let numbers: Vec<u64> = [number].into_iter().chain(later.iter().copied()).collect();
        self.remove_from(number, &numbers)?;
        Ok(None)
    }

    fn segment<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        reader: BlockReader,
        later: &[u64],
        read: &mut WalReplay,
        apply: &mut impl FnMut(Vec<u8>, Vec<Record>) -> Result<(), Error>,
    ) -> Result<Ended, BackupError> {
        let (header, len) = (reader.header, reader.len());
        let segment = Segment { path: reader.path().to_owned(), header, len };
        let (mut offset, mut position) = (reader.offset(), reader.position());
        with_blocks(reader, |next| {
            let mut ended = None;
            loop {
                self.progress.check()?;
                let damage = |offset, what, is_certain| {
                    let path = segment.path.clone();
                    Damage { path, offset, position, what, is_certain }
                };
                let ReadBlock { block, offset: end, position: after } = next();
                let block = match block {
                    Ok(None) => return Ok(ended.unwrap_or(Ended::Here { closed: false })),
                    Ok(Some(block)) if ended.is_none() => block,
                    Ok(Some(_)) => {
                        let what = "blocks follow the last one of the segment".to_owned();
                        return self.cut(&segment, damage(offset, what, true), later, read);
                    }
                    Err(BackupError::Damaged { offset, what, .. }) => {
                        return self.cut(&segment, damage(offset, what, false), later, read);
                    }
                    Err(error) => return Err(error),
                };
                self.progress.add(block.count, end - offset);
                match block.kind {
                    // The block at the start of a segment.
                    BlockKind::Data if block.count == 0 && block.payload.is_empty() => {}
                    BlockKind::Data => {
                        let records = match decode_block::<K, V>(&segment.path, &block) {
                            Ok(records) => records,
                            Err(BackupError::Damaged { offset, what, .. }) => {
                                return self.cut(&segment, damage(offset, what, true), later, read);
                            }
                            Err(error) => return Err(error),
                        };
                        read.blocks += 1;
                        read.records += block.count;
                        read.position = after;
                        apply(block.payload, records)?;
                    }
                    BlockKind::End => ended = Some(Ended::Here { closed: true }),
                    BlockKind::Continued => ended = Some(Ended::Continued),
                }
                (offset, position) = (end, after);
            }
        })
    }

    /// Returns whether the first block after this segment begins at `position`.
    ///
    /// # Errors
    /// Errors of reading a segment, because then it is unknown whether the segment continues this
    /// one.
    fn is_continued(&self, later: &[u64], position: u64) -> Result<bool, BackupError> {
        for path in later.iter().map(|number| self.path_of(*number)) {
            let next = BlockReader::open(self.storage, &path, FileKind::Log, position);
            match next.and_then(|mut next| next.read_block()) {
                // A segment without a block has no position.
                Ok(None) => {
                    if fault!("damage.log.skips_empty_segments") {
                        return Ok(true);
                    }
                }
                Ok(Some(_)) => return Ok(true),
                Err(BackupError::Damaged { .. }) => return Ok(false),
                Err(_) if fault!("damage.log.reads_the_next") => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Decides what a damaged block means, and truncates the log if necessary.
    fn cut(
        &self,
        segment: &Segment,
        damage: Damage,
        later: &[u64],
        read: &mut WalReplay,
    ) -> Result<Ended, BackupError> {
        let Damage { path, offset, position, what, mut is_certain } = damage;
        if !is_certain && self.is_continued(later, position)? {
            read.cuts.push(WalTruncation { path, offset, what, dropped: 0, was_durable: false });
            return Ok(Ended::Continued);
        }
        let mut durable = latest_synced(self.storage, &path, segment.header.salt, offset)?;
        let mut dropped = segment.len - offset;
        for number in later {
            let path = self.path_of(*number);
            let len = self.length(&path)?;
            dropped += len;
            match BlockReader::open(self.storage, &path, FileKind::Log, 0) {
                Ok(next) => {
                    let (salt, from) = (next.header.salt, next.offset());
                    durable = durable.max(latest_synced(self.storage, &path, salt, from)?);
                }
                // No crash leaves such a damaged header; see `open`.
                Err(BackupError::Damaged { .. }) => {
                    let is_damaged = self.is_named(*number) || len > EMPTY_SEGMENT;
                    is_certain |= notice!("damage.log.later_header", is_damaged);
                }
                Err(error) => return Err(error),
            }
        }
        let is_missed = notice!("damage.tail.proves", self.tail.synced() > position);
        let was_durable =
            is_certain || is_missed || durable.is_some_and(|durable| durable > position);
        if notice!("damage.log.was_durable", was_durable && !self.repair) {
            return Err(BackupError::Damaged { path, offset, what });
        }
        // A repair also removes the mark of a missing segment.
        if self.repair || !later.is_empty() {
            self.remove_from(segment.header.number + 1, later)?;
        }
        if self.mend && !fault!("damage.log.cuts_its_tail") {
            let cut = self.storage.truncate(&path, offset);
            cut.map_err(BackupError::io(&path, "truncate"))?;
        }
        read.closed = false;
        read.cuts.push(WalTruncation { path, offset, what, dropped, was_durable });
        Ok(Ended::Truncated)
    }
}

/// Adds to the result of reading a truncated log that a later segment is missing. Durable records
/// are then lost, whatever the truncated segment itself shows.
fn truncated(mut read: WalReplay, is_missed: bool) -> WalReplay {
    if let Some(last) = read.cuts.last_mut() {
        last.was_durable |= is_missed;
    }
    read
}

/// Decodes the records of a block, and checks all of them before the first is replayed.
fn decode_block<K: Key + ?Sized, V: Value + ?Sized>(
    path: &Path,
    block: &Block,
) -> Result<Vec<Record>, BackupError> {
    decode_records::<K, V>(path, block.offset, &block.payload, block.count)
}

/// Decodes the records of a payload. Errors name the offset of the block to which it belongs.
pub(super) fn decode_records<K: Key + ?Sized, V: Value + ?Sized>(
    path: &Path,
    offset: u64,
    payload: &[u8],
    count: u64,
) -> Result<Vec<Record>, BackupError> {
    let (mut at, mut records) = (0, Vec::new());
    for _ in 0..count {
        let begins = at;
        let record = Record::decode::<K, V>(payload, &mut at);
        let record = record.filter(|record| !matches!(record, Record::Was { .. }));
        records.push(record.ok_or_else(|| {
            let what = format!("byte {begins} of this block begins no record of a log");
            BackupError::damaged(path, offset, what)
        })?);
    }
    if at != payload.len() {
        let what = "bytes follow the last record of this block";
        return Err(BackupError::damaged(path, offset, what));
    }
    Ok(records)
}

/// Decodes the records of a group from another store.
pub(super) fn decode_group<K: Key + ?Sized, V: Value + ?Sized>(
    records: &[u8],
    count: u64,
) -> Result<Vec<Record>, BackupError> {
    decode_records::<K, V>(Path::new("group of log records"), 0, records, count)
}

/// Replays a record.
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
            // A position that does not fit is refused like one that is too large.
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
            store.remove_within(borrowed::<K>(&lower), borrowed::<K>(&upper)).map(|_| ())
        }
        Record::Clear => store.clear(),
        // Only delta files contain such records; `decode_block` rejects them.
        Record::Was { .. } => Ok(()),
    }
}

/// Replays a splice. Only stores of byte strings log splices.
fn splice<K: Key + ?Sized, V: Value + ?Sized>(
    store: &Store<K, V>,
    key: &K,
    at: usize,
    bytes: &[u8],
) -> Result<(), Error> {
    let store: &dyn Any = store;
    let Some(store) = store.downcast_ref::<Store<K, [u8]>>() else { return Ok(()) };
    // If the key is absent, it expired while a backup was written, so the backup does not need it.
    store.splice(key, |found| found.map(|_| (at, bytes))).map(|_| ())
}

fn borrowed<'a, K: Key + ?Sized>(bound: &'a Bound<K::Ref<'_>>) -> Bound<&'a K> {
    match bound {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(key) => Bound::Included(key.borrow()),
        Bound::Excluded(key) => Bound::Excluded(key.borrow()),
    }
}
