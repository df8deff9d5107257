//! Reading of backups: builds a store bottom-up from the shards, or only checks them (Nitro §5.2).
//!
//! # Contract
//! Every block, count and checksum is compared with the file's own and with the manifest's, so
//! nothing is returned that differs from what was written. While the runs are built, states from
//! delta files replace those of the shards, and records of the log replace both. So no key is
//! inserted twice.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use ordna_base::sync::{Lock, fault, notice};

use crate::durability::merge::{LogPart, LogRecords};
use crate::files::blocks::{Block, BlockKind, BlockReader, FileKind};
use crate::files::codec::Record;
use crate::files::error::BackupError;
use crate::files::manifest::{COMMON_DELTA, DELTA, FILE, FileEntry, Manifest, delta_of, number_in};
use crate::files::progress::Progress;
use crate::files::storage::Storage;
use crate::store::SortedPart;
use crate::{Error, Options, Put, Store};
use ordna_base::encoding::{ByteRange, Encoding};
use ordna_base::{Key, Value};

/// Reads the blocks of one file of a backup, and compares the whole file with the manifest.
struct FileReader {
    blocks: BlockReader,
    entry: FileEntry,
    ended: bool,
}

impl FileReader {
    fn open<K: Encoding + ?Sized, V: Encoding + ?Sized>(
        storage: &dyn Storage,
        dir: &Path,
        kind: FileKind,
        entry: &FileEntry,
    ) -> Result<Self, BackupError> {
        let path = dir.join(&entry.file);
        let blocks = BlockReader::open(storage, &path, kind, 0).map_err(|error| match error {
            BackupError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                BackupError::Missing { path: path.clone(), needed_by: dir.to_owned() }
            }
            other => other,
        })?;
        blocks.header.check_kinds::<K, V>(&path)?;
        if blocks.len() != entry.bytes {
            let what = format!("has {} bytes, the manifest says {}", blocks.len(), entry.bytes);
            return Err(BackupError::damaged(&path, blocks.len().min(entry.bytes), what));
        }
        Ok(Self { blocks, entry: entry.clone(), ended: false })
    }

    /// Returns the next block with records, or `None` at the end, after the whole file was
    /// compared.
    fn next(&mut self) -> Result<Option<Block>, BackupError> {
        if self.ended {
            return Ok(None);
        }
        let block = self.blocks.read_block()?;
        let end = |what| BackupError::damaged(self.blocks.path(), self.blocks.offset(), what);
        match block {
            None if fault!("damage.file.end") => Ok(None),
            None => Err(end("the file is cut short: its last block is missing")),
            Some(block) if block.kind == BlockKind::Data => Ok(Some(block)),
            Some(_) => {
                self.ended = true;
                if self.blocks.offset() != self.blocks.len() {
                    return Err(end("bytes follow the last block"));
                }
                let read = (self.blocks.count(), self.blocks.chain());
                let differs = read != (self.entry.entries, self.entry.crc32c);
                if notice!("damage.file.is_the_manifests", differs) {
                    return Err(end("the file is not the one that the manifest names"));
                }
                Ok(None)
            }
        }
    }
}

/// Returns the next record of a block, or an error that names the position.
fn decode<K: Encoding + ?Sized, V: Encoding + ?Sized>(
    path: &Path,
    offset: u64,
    payload: &[u8],
    at: &mut usize,
) -> Result<Record, BackupError> {
    let begins = *at;
    Record::decode::<K, V>(payload, at).ok_or_else(|| {
        BackupError::damaged(path, offset, format!("byte {begins} of this block begins no record"))
    })
}

/// The state of a key, as ranges of bytes in a block of a delta file.
struct KeyState {
    /// The first bytes of the key. Most comparisons need no others.
    head: u64,
    dead: u64,
    block: usize,
    key: ByteRange,
    /// The value and its deadline, or `None` if the key is absent.
    old: Option<(ByteRange, Option<u64>)>,
}

/// States at the snapshot point from delta files, in the order of their keys.
#[derive(Default)]
struct KeyStates {
    blocks: Vec<Vec<u8>>,
    all: VecDeque<KeyState>,
}

impl KeyStates {
    /// Compares the key of the next state with another key.
    fn next_is<K: Key + ?Sized>(&self, other: &K) -> Option<std::cmp::Ordering> {
        let state = self.all.front()?;
        Some(state.head.cmp(&other.head()).then_with(|| {
            let view = K::decode(block_of(&self.blocks, state), state.key.clone());
            Borrow::<K>::borrow(&view).cmp(other)
        }))
    }
}

fn block_of<'a>(blocks: &'a [Vec<u8>], state: &KeyState) -> &'a [u8] {
    blocks.get(state.block).map_or(&[], |block| block.as_slice())
}

/// Size in bytes at which a collected part of the states ends and another one begins.
const STATES: usize = 1 << 20;

impl<K: Key + ?Sized, V: Value + ?Sized> Shard<'_, K, V> {
    /// Returns whether `key` is in the shard's range.
    fn contains(&self, key: &K) -> bool {
        let (from, to) = (&self.from, &self.to);
        from.as_ref().is_none_or(|from| from.borrow() <= key)
            && to.as_ref().is_none_or(|to| key < to.borrow())
    }

    /// Reads the states of the shard's keys. If a key has several, the one with the smallest end
    /// counts.
    fn read_states(&self) -> Result<KeyStates, BackupError> {
        let Shared { storage, dir, progress, .. } = *self.shared;
        let (mut blocks, mut all) = (Vec::new(), Vec::new());
        for entry in &self.deltas {
            let is_common = number_in(&entry.file, DELTA) == Some(COMMON_DELTA as u64);
            let mut part = Vec::new();
            let mut reader = FileReader::open::<K, V>(storage, dir, FileKind::Delta, entry)?;
            let path = dir.join(&entry.file);
            while let Some(block) = reader.next()? {
                progress.check()?;
                let (mut at, payload) = (0, &block.payload);
                for _ in 0..block.count {
                    let record = decode::<K, V>(&path, block.offset, payload, &mut at)?;
                    let Record::Was { mut key, dead, mut old } = record else {
                        return Err(BackupError::damaged(
                            &path,
                            block.offset,
                            "no record of a delta",
                        ));
                    };
                    let view = K::decode(payload, key.clone());
                    let head = Borrow::<K>::borrow(&view).head();
                    if is_common {
                        if !self.contains(Borrow::<K>::borrow(&view)) {
                            continue;
                        }
                        // Copies the bytes, so that only this shard's part of the block stays in
                        // memory.
                        let mut copy = |span: &mut ByteRange| {
                            let begin = part.len();
                            part.extend_from_slice(payload.get(span.clone()).unwrap_or_default());
                            *span = begin..part.len();
                        };
                        copy(&mut key);
                        if let Some((value, _)) = &mut old {
                            copy(value);
                        }
                    }
                    all.push(KeyState { head, dead, block: blocks.len(), key, old });
                    if part.len() >= STATES {
                        blocks.push(std::mem::take(&mut part));
                    }
                }
                whole(&path, &block, at)?;
                if self.number == 0 || !is_common {
                    progress.add(0, payload.len() as u64);
                }
                if !is_common {
                    blocks.push(block.payload);
                }
            }
            blocks.push(part);
        }
        let by_key = |one: &KeyState, other: &KeyState| {
            one.head.cmp(&other.head).then_with(|| {
                let views = [one, other].map(|it| K::decode(block_of(&blocks, it), it.key.clone()));
                let [one, other] = views.each_ref().map(Borrow::<K>::borrow);
                one.cmp(other)
            })
        };
        let by_death = |one: &KeyState, other: &KeyState| match fault!("live.delta.smallest_death")
        {
            true => other.dead.cmp(&one.dead),
            false => one.dead.cmp(&other.dead),
        };
        all.sort_unstable_by(|one, other| by_key(one, other).then(by_death(one, other)));
        all.dedup_by(|later, first| by_key(later, first).is_eq());
        Ok(KeyStates { blocks, all: all.into() })
    }
}

/// Returns an error if there are bytes after the last record of a block.
fn whole(path: &Path, block: &Block, at: usize) -> Result<(), BackupError> {
    if at == block.payload.len() {
        return Ok(());
    }
    Err(BackupError::damaged(path, block.offset, "bytes follow the last record of this block"))
}

/// State that the parts of one restore share.
struct Shared<'a> {
    storage: &'a dyn Storage,
    dir: &'a Path,
    progress: &'a Progress,
    failed: Lock<Option<BackupError>>,
}

/// A shard, from which a run of the store is built.
struct Shard<'a, K: Key + ?Sized, V: Value + ?Sized> {
    shared: &'a Shared<'a>,
    number: usize,
    entry: &'a FileEntry,
    /// Bounds of the keys: the lower one is inclusive, the upper one exclusive.
    from: Option<K::Owned>,
    to: Option<K::Owned>,
    /// The delta files that may have states of these keys.
    deltas: Vec<&'a FileEntry>,
    /// The records of the log for these keys.
    log: LogPart<'a, K, V>,
}

/// Reads the entries of a shard in order.
struct Entries<'a> {
    shared: &'a Shared<'a>,
    path: PathBuf,
    reader: Option<FileReader>,
    block: Vec<u8>,
    offset: u64,
    left: u64,
    at: usize,
    /// The next entry, if it is already decoded.
    ahead: Option<(ByteRange, ByteRange, Option<u64>)>,
}

impl Entries<'_> {
    /// Decodes the next entry of the file into `ahead`.
    fn read_ahead<K: Key + ?Sized, V: Value + ?Sized>(&mut self) -> Result<(), BackupError> {
        while self.left == 0 {
            let Some(reader) = &mut self.reader else { return Ok(()) };
            self.shared.progress.check()?;
            reader.blocks.give_back(std::mem::take(&mut self.block));
            let Some(block) = reader.next()? else {
                self.reader = None;
                return Ok(());
            };
            self.shared.progress.add(block.count, block.payload.len() as u64);
            (self.offset, self.left, self.at) = (block.offset, block.count, 0);
            self.block = block.payload;
        }
        let record = decode::<K, V>(&self.path, self.offset, &self.block, &mut self.at)?;
        self.left -= 1;
        if self.left == 0 && self.at != self.block.len() {
            let what = "bytes follow the last record of this block";
            return Err(BackupError::damaged(&self.path, self.offset, what));
        }
        let Record::Put { key, value, expires_at } = record else {
            return Err(BackupError::damaged(&self.path, self.offset, "no record of a shard"));
        };
        self.ahead = Some((key, value, expires_at));
        Ok(())
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Shard<'_, K, V> {
    /// Calls `push` with the entries in order. The log's record of a key takes precedence over its
    /// state in a delta file, and that over the entry of the shard. Returns the first error of
    /// `push`.
    fn merge(
        self,
        mut push: impl FnMut(&K, Put<&V>) -> Result<(), Error>,
    ) -> Result<Result<(), Error>, BackupError> {
        let Shared { storage, dir, .. } = *self.shared;
        let reader = FileReader::open::<K, V>(storage, dir, FileKind::Shard, self.entry)?;
        let mut states = self.read_states()?;
        let mut file = Entries {
            shared: self.shared,
            path: dir.join(&self.entry.file),
            reader: Some(reader),
            block: Vec::new(),
            offset: 0,
            left: 0,
            at: 0,
            ahead: None,
        };
        let mut log = self.log.sorted();
        loop {
            if file.ahead.is_none() {
                file.read_ahead::<K, V>()?;
            }
            let ahead = file.ahead.as_ref().map(|(key, ..)| K::decode(&file.block, key.clone()));
            let ahead: Option<&K> = ahead.as_ref().map(Borrow::borrow);
            if let Some(logged) = log.front() {
                let key = K::decode(logged.payload, logged.key.clone());
                let key: &K = key.borrow();
                let orders = [ahead.map(|ahead| ahead.cmp(key)), states.next_is::<K>(key)];
                if orders.iter().flatten().all(|order| order.is_ge()) {
                    let [of_file, of_states] = orders.map(|it| it.is_some_and(|it| it.is_eq()));
                    if let Some((value, expires_at)) = &logged.put {
                        let value = V::decode(logged.payload, value.clone());
                        let put = Put { value: value.borrow(), expires_at: *expires_at };
                        if let Err(error) = push(key, put) {
                            return Ok(Err(error));
                        }
                    }
                    log.advance();
                    if of_file {
                        file.ahead = None;
                    }
                    if of_states {
                        states.all.pop_front();
                    }
                    continue;
                }
            }
            let order = match ahead {
                None => states.all.front().map(|_| std::cmp::Ordering::Less),
                Some(ahead) => states.next_is::<K>(ahead),
            };
            let done = if let Some(order) = order.filter(|order| order.is_le())
                && let Some(state) = states.all.pop_front()
            {
                if notice!("live.delta.overrides", order.is_eq()) {
                    file.ahead = None;
                }
                let block = block_of(&states.blocks, &state);
                let Some((value, expires_at)) = state.old else { continue };
                let (key, value) = (K::decode(block, state.key), V::decode(block, value));
                push(key.borrow(), Put { value: value.borrow(), expires_at })
            } else {
                let Some((key, value, expires_at)) = file.ahead.take() else { return Ok(Ok(())) };
                let (key, value) = (K::decode(&file.block, key), V::decode(&file.block, value));
                push(key.borrow(), Put { value: value.borrow(), expires_at })
            };
            if let Err(error) = done {
                return Ok(Err(error));
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> SortedPart<K, V> for Shard<'_, K, V> {
    /// Calls `push` with the items. If a file cannot be read, they end there; the restore reports
    /// the error.
    fn each(self, push: impl FnMut(&K, Put<&V>) -> Result<(), Error>) -> Result<(), Error> {
        let shared = self.shared;
        self.merge(push).unwrap_or_else(|error| {
            let mut failed = shared.failed.lock();
            failed.get_or_insert(error);
            Ok(())
        })
    }
}

/// Calls `read` with the shards of a backup, in order, and with the state that they share.
fn with_shards<K, V, R>(
    storage: &dyn Storage,
    dir: &Path,
    manifest: &Manifest,
    mut log: LogRecords<K>,
    progress: &Progress,
    read: impl FnOnce(Vec<Shard<'_, K, V>>) -> R,
) -> Result<R, BackupError>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    let files = manifest.shards.iter().chain(&manifest.deltas);
    progress.expect(manifest.entries, files.map(|file| file.bytes).sum());
    let bounds = lower_bounds::<K>(dir, manifest)?;
    let deltas = manifest.deltas.iter().map(|entry| (number_in(&entry.file, DELTA), entry));
    let deltas: Vec<_> = deltas.collect();
    if let Some((_, entry)) =
        deltas.iter().find(|(number, _)| number.is_none_or(|it| it > bounds.len() as u64))
    {
        let what = format!("there is no shard for {}", entry.file);
        return Err(BackupError::damaged(&dir.join(FILE), 0, what));
    }
    let shared = Shared { storage, dir, progress, failed: Lock::new(None) };
    let shards = manifest.shards.iter().zip(log.parts()).enumerate();
    let parts = shards.map(|(number, (entry, log))| {
        let own = delta_of(number) as u64;
        let mine = deltas.iter().filter(
            |(delta, _)| matches!(delta, Some(it) if *it == COMMON_DELTA as u64 || *it == own),
        );
        Shard {
            shared: &shared,
            number,
            entry,
            from: bounds.get(number).cloned().flatten(),
            to: bounds.get(number + 1).cloned().flatten(),
            deltas: mine.map(|(_, entry)| *entry).collect(),
            log,
        }
    });
    let done = read(parts.collect());
    match shared.failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(done),
    }
}

/// Returns the lower bounds of the shards' keys. The first shard has none.
fn lower_bounds<K: Key + ?Sized>(
    dir: &Path,
    manifest: &Manifest,
) -> Result<Vec<Option<K::Owned>>, BackupError> {
    manifest.shards.iter().map(|entry| entry.lower_bound::<K>(dir)).collect()
}

/// Creates a collection for the records of the log that a restore of this backup then merges.
pub(crate) fn log_records<K: Key + ?Sized, V: Value + ?Sized>(
    dir: &Path,
    manifest: &Manifest,
) -> Result<LogRecords<K>, BackupError> {
    manifest.check_kinds::<K, V>(dir)?;
    let bounds = lower_bounds::<K>(dir, manifest)?;
    Ok(LogRecords::new(bounds.into_iter().skip(1).collect()))
}

fn not_sorted(dir: &Path, manifest: &Manifest, part: usize) -> BackupError {
    let entry = manifest.shards.get(part);
    let path = entry.map_or(dir.to_owned(), |entry| dir.join(&entry.file));
    BackupError::damaged(&path, 0, "a key is not above the one before it")
}

/// Builds a store from the backup in `dir` and the later records of the log.
pub(crate) fn read_store<K, V>(
    storage: &dyn Storage,
    dir: &Path,
    (manifest, log): (&Manifest, LogRecords<K>),
    options: Options,
    progress: &Progress,
) -> Result<Store<K, V>, BackupError>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    let build = |shards: Vec<Shard<'_, K, V>>| Store::from_parts(options, shards);
    with_shards::<K, V, _>(storage, dir, manifest, log, progress, build)?.map_err(|error| {
        match error {
            Error::NotSorted { part, .. } => not_sorted(dir, manifest, part),
            error => error.into(),
        }
    })
}

/// Calls `each` in order with every key that a restore of the backup in `dir` would return. The
/// argument is `false` if the key is out of order.
pub(crate) fn each_entry<K, V>(
    storage: &dyn Storage,
    dir: &Path,
    progress: &Progress,
    mut each: impl FnMut(&K) -> bool,
) -> Result<Manifest, BackupError>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    let manifest = Manifest::read(storage, dir)?;
    let log = log_records::<K, V>(dir, &manifest)?;
    let bad = with_shards::<K, V, _>(storage, dir, &manifest, log, progress, |shards| {
        shards.into_iter().position(|shard| {
            let mut sorted = true;
            let check = |key: &K, _: Put<&V>| {
                sorted &= each(key);
                Ok(())
            };
            let _ = shard.each(check);
            !sorted
        })
    })?;
    match bad {
        Some(part) => Err(not_sorted(dir, &manifest, part)),
        None => Ok(manifest),
    }
}
