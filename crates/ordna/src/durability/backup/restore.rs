//! Reads a backup: builds a store bottom-up from its shards, or only checks it (Nitro §5.2).
//!
//! # Contract
//! Nothing is returned that is not as it was written: every block, count and checksum is compared
//! with the file's own and with the manifest's. States of delta files take the place of what the
//! shards hold while the runs are built, so no key is inserted twice.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ordna_base::sync::{Lock, fault, notice};

use crate::files::blocks::{Block, BlockKind, BlockReader, FileKind};
use crate::files::codec::Record;
use crate::files::error::BackupError;
use crate::files::manifest::{COMMON_DELTA, DELTA, FILE, FileEntry, Manifest, delta_of, number_in};
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

/// States of deltas at the snapshot point, in the order of their keys.
#[derive(Default)]
struct KeyStates {
    blocks: Vec<Rc<Vec<u8>>>,
    all: VecDeque<KeyState>,
}

impl KeyStates {
    fn block(&self, state: &KeyState) -> Rc<Vec<u8>> {
        self.blocks.get(state.block).map(Rc::clone).unwrap_or_default()
    }

    /// The order of the next state's key and another.
    fn next_is<K: Key + ?Sized>(&self, other: &K) -> Option<std::cmp::Ordering> {
        let state = self.all.front()?;
        Some(state.head.cmp(&other.head()).then_with(|| {
            let view = K::decode(block_of(&self.blocks, state), state.key.clone());
            Borrow::<K>::borrow(&view).cmp(other)
        }))
    }
}

fn block_of<'a>(blocks: &'a [Rc<Vec<u8>>], state: &KeyState) -> &'a [u8] {
    blocks.get(state.block).map_or(&[], |block| block.as_slice())
}

/// Bytes of states that a part of a delta collects before it begins another block.
const STATES: usize = 1 << 20;

impl<K: Key + ?Sized, V: Value + ?Sized> Shard<'_, K, V> {
    /// Whether the shard's range contains a key.
    fn contains(&self, key: &K) -> bool {
        let (from, to) = (&self.from, &self.to);
        from.as_ref().is_none_or(|from| from.borrow() <= key)
            && to.as_ref().is_none_or(|to| key < to.borrow())
    }

    /// Reads the states of the shard's keys. The state of smallest end wins.
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
                        // Only this shard's part stays in memory.
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
                        blocks.push(Rc::new(std::mem::take(&mut part)));
                    }
                }
                whole(&path, &block, at)?;
                if self.number == 0 || !is_common {
                    progress.add(0, payload.len() as u64);
                }
                if !is_common {
                    blocks.push(Rc::new(block.payload));
                }
            }
            blocks.push(Rc::new(part));
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
    progress: &'a Progress,
    failed: Lock<Option<BackupError>>,
}

/// Names the kinds of keys and values; may be sent to other threads.
type Kinds<K, V> = PhantomData<(fn(&K), fn(&V))>;

/// A shard that becomes a run of the store.
struct Shard<'a, K: Key + ?Sized, V: ?Sized> {
    shared: &'a Shared<'a>,
    number: usize,
    entry: &'a FileEntry,
    /// Bounds of its keys: included, and excluded.
    from: Option<K::Owned>,
    to: Option<K::Owned>,
    /// The deltas that may have states of its keys.
    deltas: Vec<&'a FileEntry>,
    kinds: Kinds<K, V>,
}

/// The entries of a shard in order, merged with the deltas' states.
struct Merged<'a, K: Key + ?Sized, V: Value + ?Sized> {
    shard: Shard<'a, K, V>,
    states: KeyStates,
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
    type Item = (K::Shared, Put<V::Shared>);
    type IntoIter = Merged<'a, K, V>;

    fn into_iter(self) -> Merged<'a, K, V> {
        let path = self.shared.dir.join(&self.entry.file);
        let opened = FileReader::open::<K, V>(
            self.shared.storage,
            self.shared.dir,
            FileKind::Shard,
            self.entry,
        );
        let states = self.read_states();
        let mut merged = Merged {
            shard: self,
            states: KeyStates::default(),
            path,
            reader: None,
            block: Rc::default(),
            offset: 0,
            left: 0,
            at: 0,
            ahead: None,
        };
        match opened.and_then(|reader| Ok((reader, states?))) {
            Ok((reader, states)) => (merged.reader, merged.states) = (Some(reader), states),
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
        self.states = KeyStates::default();
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
    type Item = (K::Shared, Put<V::Shared>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.ahead.is_none()
                && let Err(error) = self.read_ahead()
            {
                self.fail(error);
                return None;
            }
            let order = match &self.ahead {
                None => self.states.all.front().map(|_| std::cmp::Ordering::Less),
                Some((ahead, ..)) => {
                    let view = K::decode(&self.block, ahead.clone());
                    self.states.next_is::<K>(view.borrow())
                }
            };
            if let Some(order) = order.filter(|order| order.is_le())
                && let Some(state) = self.states.all.pop_front()
            {
                if notice!("live.delta.overrides", order.is_eq()) {
                    self.ahead = None;
                }
                let block = self.states.block(&state);
                let Some((value, expires_at)) = state.old else { continue };
                let value = V::decode_shared(&block, value);
                return Some((K::decode_shared(&block, state.key), Put { value, expires_at }));
            }
            let (key, value, expires_at) = self.ahead.take()?;
            let value = V::decode_shared(&self.block, value);
            return Some((K::decode_shared(&self.block, key), Put { value, expires_at }));
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
    let bounds = manifest.shards.iter().map(|entry| entry.lower_bound::<K>(dir));
    let bounds = bounds.collect::<Result<Vec<_>, _>>()?;
    let deltas = manifest.deltas.iter().map(|entry| (number_in(&entry.file, DELTA), entry));
    let deltas: Vec<_> = deltas.collect();
    if let Some((_, entry)) =
        deltas.iter().find(|(number, _)| number.is_none_or(|it| it > bounds.len() as u64))
    {
        let what = format!("there is no shard for {}", entry.file);
        return Err(BackupError::damaged(&dir.join(FILE), 0, what));
    }
    let shared = Shared { storage, dir, progress, failed: Lock::new(None) };
    let parts = manifest.shards.iter().enumerate().map(|(number, entry)| {
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
            kinds: PhantomData,
        }
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
    let (built, manifest) = with_shards::<K, V, _>(storage, dir, progress, |shards| {
        Store::from_sorted_entries(options, shards)
    })?;
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
