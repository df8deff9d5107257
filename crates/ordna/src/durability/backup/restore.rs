//! Reads a backup: builds a store bottom-up from its shards, or only checks it (Nitro §5.2).
//!
//! # Contract
//! Nothing is returned that is not as it was written: every block, count and checksum is compared
//! with the file's own and with the manifest's. States of delta files take the place of what the
//! shards hold while the runs are built, so no key is inserted twice.

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ordna_base::sync::{Lock, fault, notice};

use crate::files::blocks::{Block, BlockKind, BlockReader, FileKind};
use crate::files::codec::Record;
use crate::files::error::BackupError;
use crate::files::manifest::{FileEntry, Manifest};
use crate::files::progress::Progress;
use crate::files::storage::Storage;
use crate::{Error, Options, Put, Store};
use ordna_base::encoding::{ByteRange, Encoding};
use ordna_base::{Key, Value};

/// Reads the blocks of one of a backup's files, and compares the whole with the manifest.
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

    /// The next block with records; `None` behind the last one, once all is compared.
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

/// The next record of a block, or the error that names the place.
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

/// A key's state, as spans of a block of a delta file.
struct KeyState {
    /// The key's first bytes: most comparisons need no more.
    head: u64,
    dead: u64,
    block: usize,
    key: ByteRange,
    /// The value and its deadline; `None`: absent.
    old: Option<(ByteRange, Option<u64>)>,
}

/// The states of all deltas at the cut, in the order of their keys.
#[derive(Default)]
struct KeyStates {
    blocks: Vec<Vec<u8>>,
    all: Vec<KeyState>,
}

impl KeyStates {
    fn key<K: Encoding + ?Sized>(&self, state: &KeyState) -> K::Ref<'_> {
        K::decode(block_of(&self.blocks, state), state.key.clone())
    }
}

fn block_of<'a>(blocks: &'a [Vec<u8>], state: &KeyState) -> &'a [u8] {
    blocks.get(state.block).map_or(&[], Vec::as_slice)
}

/// Reads all delta files. The state of smallest end wins.
fn read_deltas<K: Key + ?Sized, V: Value + ?Sized>(
    storage: &dyn Storage,
    dir: &Path,
    manifest: &Manifest,
    progress: &Progress,
) -> Result<KeyStates, BackupError> {
    let KeyStates { mut blocks, mut all } = KeyStates::default();
    for entry in &manifest.deltas {
        let mut reader = FileReader::open::<K, V>(storage, dir, FileKind::Delta, entry)?;
        let path = dir.join(&entry.file);
        while let Some(block) = reader.next()? {
            progress.check()?;
            let (mut at, payload) = (0, &block.payload);
            for _ in 0..block.count {
                let record = decode::<K, V>(&path, block.offset, payload, &mut at)?;
                let Record::Was { key, dead, old } = record else {
                    return Err(BackupError::damaged(&path, block.offset, "no record of a delta"));
                };
                let view = K::decode(payload, key.clone());
                let head = Borrow::<K>::borrow(&view).head();
                all.push(KeyState { head, dead, block: blocks.len(), key, old });
            }
            whole(&path, &block, at)?;
            progress.add(0, payload.len() as u64);
            blocks.push(block.payload);
        }
    }
    let by_key = |one: &KeyState, other: &KeyState| {
        one.head.cmp(&other.head).then_with(|| {
            let views = [one, other].map(|it| K::decode(block_of(&blocks, it), it.key.clone()));
            let [one, other] = views.each_ref().map(Borrow::<K>::borrow);
            one.cmp(other)
        })
    };
    let by_death = |one: &KeyState, other: &KeyState| match fault!("live.delta.smallest_death") {
        true => other.dead.cmp(&one.dead),
        false => one.dead.cmp(&other.dead),
    };
    all.sort_unstable_by(|one, other| by_key(one, other).then(by_death(one, other)));
    all.dedup_by(|later, first| by_key(later, first).is_eq());
    Ok(KeyStates { blocks, all })
}

/// Refuses bytes behind the last record of a block.
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
    states: KeyStates,
    progress: &'a Progress,
    failed: Lock<Option<BackupError>>,
}

/// Names the kinds of keys and values; may be sent to other threads.
type Kinds<K, V> = PhantomData<(fn(&K), fn(&V))>;

/// A shard that becomes a run of the store.
struct Shard<'a, K: ?Sized, V: ?Sized> {
    shared: &'a Shared<'a>,
    entry: &'a FileEntry,
    /// Its part of the deltas' states.
    states: Range<usize>,
    kinds: Kinds<K, V>,
}

/// A key or a value as a run takes it: a piece of a block of the shard, or of one of a delta.
enum Decoded<'a, T: Encoding + ?Sized> {
    Piece(T::Shared),
    Lent(T::Ref<'a>),
}

impl<T: Encoding + ?Sized> Borrow<T> for Decoded<'_, T> {
    #[inline]
    fn borrow(&self) -> &T {
        match self {
            Self::Piece(piece) => piece.borrow(),
            Self::Lent(lent) => lent.borrow(),
        }
    }
}

/// The entries of a shard in order, merged with the deltas' states.
struct Merged<'a, K: Key + ?Sized, V: Value + ?Sized> {
    shard: Shard<'a, K, V>,
    path: PathBuf,
    reader: Option<FileReader>,
    block: Rc<Vec<u8>>,
    offset: u64,
    left: u64,
    at: usize,
    /// The next entry of the file, if it is decoded already.
    ahead: Option<(ByteRange, ByteRange, Option<u64>)>,
}

impl<'a, K, V> IntoIterator for Shard<'a, K, V>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    type Item = (Decoded<'a, K>, Put<Decoded<'a, V>>);
    type IntoIter = Merged<'a, K, V>;

    fn into_iter(self) -> Merged<'a, K, V> {
        let path = self.shared.dir.join(&self.entry.file);
        let opened = FileReader::open::<K, V>(
            self.shared.storage,
            self.shared.dir,
            FileKind::Shard,
            self.entry,
        );
        let mut merged = Merged {
            shard: self,
            path,
            reader: None,
            block: Rc::default(),
            offset: 0,
            left: 0,
            at: 0,
            ahead: None,
        };
        match opened {
            Ok(reader) => merged.reader = Some(reader),
            Err(error) => merged.fail(error),
        }
        merged
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Merged<'_, K, V> {
    /// Ends the iteration; the restore reports the error.
    fn fail(&mut self, error: BackupError) {
        self.reader = None;
        self.left = 0;
        self.ahead = None;
        self.shard.states = 0..0;
        let mut failed = self.shard.shared.failed.lock();
        failed.get_or_insert(error);
    }

    /// Decodes the next entry of the file into `ahead`.
    fn read_ahead(&mut self) -> Result<(), BackupError> {
        while self.left == 0 {
            let Some(reader) = &mut self.reader else { return Ok(()) };
            self.shard.shared.progress.check()?;
            let Some(block) = reader.next()? else {
                self.reader = None;
                return Ok(());
            };
            self.shard.shared.progress.add(block.count, block.payload.len() as u64);
            (self.offset, self.left, self.at) = (block.offset, block.count, 0);
            self.block = Rc::new(block.payload);
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

impl<'a, K, V> Iterator for Merged<'a, K, V>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    type Item = (Decoded<'a, K>, Put<Decoded<'a, V>>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.ahead.is_none()
                && let Err(error) = self.read_ahead()
            {
                self.fail(error);
                return None;
            }
            let shared = self.shard.shared;
            let all = &shared.states.all;
            let state = all.get(self.shard.states.clone()).and_then(<[_]>::first);
            if let Some(state) = state {
                let order = self.ahead.as_ref().map(|(ahead, ..)| {
                    let views =
                        (shared.states.key::<K>(state), K::decode(&self.block, ahead.clone()));
                    let (key, ahead): (&K, &K) = (views.0.borrow(), views.1.borrow());
                    key.cmp(ahead)
                });
                if order.is_none_or(std::cmp::Ordering::is_le) {
                    let is_same = order.is_some_and(std::cmp::Ordering::is_eq);
                    if notice!("live.delta.overrides", is_same) {
                        self.ahead = None;
                    }
                    self.shard.states.start += 1;
                    let Some((value, expires_at)) = state.old.clone() else { continue };
                    let value = V::decode(block_of(&shared.states.blocks, state), value);
                    let put = Put { value: Decoded::Lent(value), expires_at };
                    return Some((Decoded::Lent(shared.states.key::<K>(state)), put));
                }
            }
            let (key, value, expires_at) = self.ahead.take()?;
            let value = Decoded::Piece(V::decode_shared(&self.block, value));
            return Some((
                Decoded::Piece(K::decode_shared(&self.block, key)),
                Put { value, expires_at },
            ));
        }
    }
}

/// Calls `read` with the shards of a backup, in order, and what they share.
fn with_shards<K, V, R>(
    storage: &dyn Storage,
    dir: &Path,
    progress: &Progress,
    read: impl FnOnce(Vec<Shard<'_, K, V>>) -> R,
) -> Result<(R, Manifest), BackupError>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    let manifest = Manifest::read(storage, dir)?;
    manifest.check_kinds::<K, V>(dir)?;
    let files = manifest.shards.iter().chain(&manifest.deltas);
    progress.expect(manifest.entries, files.map(|file| file.bytes).sum());
    let states = read_deltas::<K, V>(storage, dir, &manifest, progress)?;
    let bounds = manifest.shards.iter().map(|entry| entry.lower_bound::<K>(dir));
    let bounds = bounds.collect::<Result<Vec<_>, _>>()?;
    let first = |bound: &Option<K::Owned>| match bound {
        None => 0,
        Some(bound) => states.all.partition_point(|state| {
            let view = states.key::<K>(state);
            Borrow::<K>::borrow(&view) < (*bound).borrow()
        }),
    };
    let starts: Vec<usize> = bounds.iter().map(first).collect();
    let count = states.all.len();
    let shared = Shared { storage, dir, states, progress, failed: Lock::new(None) };
    let parts = manifest.shards.iter().enumerate().map(|(number, entry)| {
        let end = starts.get(number + 1).copied().unwrap_or(count);
        let start = if number == 0 { 0 } else { starts.get(number).copied().unwrap_or(end) };
        Shard { shared: &shared, entry, states: start..end.max(start), kinds: PhantomData }
    });
    let done = read(parts.collect());
    match shared.failed.into_inner() {
        Some(error) => Err(error),
        None => Ok((done, manifest)),
    }
}

fn not_sorted(dir: &Path, manifest: &Manifest, part: usize) -> BackupError {
    let entry = manifest.shards.get(part);
    let path = entry.map_or(dir.to_owned(), |entry| dir.join(&entry.file));
    BackupError::damaged(&path, 0, "a key is not above the one before it")
}

/// Builds a store from the backup in `dir`.
pub(crate) fn read_store<K, V>(
    storage: &dyn Storage,
    dir: &Path,
    options: Options,
    progress: &Progress,
) -> Result<(Store<K, V>, Manifest), BackupError>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    let (built, manifest) =
        with_shards(storage, dir, progress, |shards| Store::from_sorted_entries(options, shards))?;
    match built {
        Ok(store) => Ok((store, manifest)),
        Err(Error::NotSorted { part, .. }) => Err(not_sorted(dir, &manifest, part)),
        Err(error) => Err(error.into()),
    }
}

/// Calls `each` with every key that a restore of the backup in `dir` would give, in order; `false`:
/// the key is out of order.
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
    let (bad, manifest) = with_shards::<K, V, _>(storage, dir, progress, |shards| {
        shards.into_iter().position(|shard| {
            let mut sorted = true;
            shard.into_iter().for_each(|(key, _)| sorted &= each(key.borrow()));
            !sorted
        })
    })?;
    match bad {
        Some(part) => Err(not_sorted(dir, &manifest, part)),
        None => Ok(manifest),
    }
}
