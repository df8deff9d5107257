//! The copy-before-write set of a live backup: old states of keys that were written before the
//! backup read them. They are stored in delta files (Nitro §5.3, with writers in place of
//! collectors).
//!
//! # Contract
//! All methods may be called concurrently by many threads. A writer calls
//! [`CopyBeforeWrite::needs_copy`] before it changes a key, with the key's stripe locked, and
//! appends the state at any time before [`CopyBeforeWrite::finish`]. The worker of a range calls
//! [`CopyBeforeWrite::passed`].
//!
//! # Protocol
//! In the paper, collectors write the versions that they unlink to delta files. Here writers do so
//! one step earlier: before a write changes a key, it saves the key's state, so that no dead
//! version must be kept.
//!
//! 1. INIT: the files are created; nothing is saved.
//! 2. ACTIVE, from the snapshot point on: a write of key k saves its state unless the worker of k's
//!    range has passed k. The worker scans the *latest* state and publishes its position after it
//!    has read up to there.
//! 3. TERMINATING, when all workers are done: nothing more is saved, and the files are closed.
//!
//! # Invariant
//! A key's state at the snapshot point is its saved state with the smallest end or, if none was
//! saved, the state that its worker read. A write after the snapshot point that changes k before
//! the worker reads k finds that k is not passed, and saves its state. If the first such write
//! saved nothing, the worker had read k before it. Saving more states is harmless, because their
//! ends are larger.
//!
//! # Bounds
//! A key's state is saved once: the set remembers up to [`MOST_REMEMBERED`] keys by unpredictable
//! hashes. So the delta files are not larger than the backed-up data, no matter what is overwritten
//! how often. Each range has its own delta file, created with its first state. A restore needs
//! memory only for the deltas of the ranges that it is currently building.
//!
//! # Limits
//! A key that expires during the backup may be missing from it; its deadline has passed by then. If
//! saving fails, the backup fails; writers continue.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ordna_base::sync::{Lock, fault, notice};

use crate::Key;
use crate::files::blocks::{BlockKind, BlockWriter, Frame};
use crate::files::error::BackupError;
use crate::files::manifest::{COMMON_DELTA, FileEntry, delta_of};
use ordna_base::encoding::Encoding;

/// Maximum size in bytes of the records in a block of a delta file: a reader holds this much at a
/// time.
const LARGEST_BLOCK: usize = 256 << 10;
/// Minimum size in bytes of the records in a block of a delta file: less would be mostly headers.
const SMALLEST_BLOCK: usize = 4 << 10;
/// Total size in bytes of the records of all delta files that wait for their blocks to be full.
const ALL_BLOCKS: usize = 8 << 20;
/// Maximum total size in bytes of the states of ranges that share one file, because each file costs
/// a sync. A restore reads that file for every shard.
const LARGEST_COMMON: usize = 1 << 20;
/// Number of saved keys that a backup remembers. They take 20 to 40 bytes each, up to 160 MiB
/// together. A key that is not remembered is saved again with each write until the backup has read
/// it. In debug builds the number is small, so that tests reach it.
const MOST_REMEMBERED: usize = if cfg!(debug_assertions) { 8 << 10 } else { 4 << 20 };
/// Number of sets among which the remembered keys are divided, so that writers do not contend.
const SETS: usize = 64;

const INIT: u8 = 0;
const ACTIVE: u8 = 1;
const TERMINATING: u8 = 2;

/// The part of its range that a worker has read.
#[derive(Debug)]
enum Passed<K> {
    Nothing,
    UpTo(K),
    All,
}

/// The progress of the worker of a range. Padded, so that ranges do not share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Range<K> {
    /// Head of the last key read. Keys with smaller heads are passed, keys with larger ones are
    /// not; a key with this head may be either.
    head: AtomicU64,
    passed: Lock<Passed<K>>,
}

/// The delta file of a range.
#[derive(Default)]
struct Delta {
    /// Created with the first block.
    writer: Option<BlockWriter>,
    frame: Frame,
    failed: Option<BackupError>,
}

/// A hasher for keys that are hashes already.
#[derive(Debug, Default)]
struct IsHash(u64);

impl Hasher for IsHash {
    fn write(&mut self, bytes: &[u8]) {
        // The last word of a `u128`: as random as the first.
        self.0 = bytes.last_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The keys whose state was saved, as 128-bit hashes with secret keys, so that collisions do not
/// occur in practice.
struct SavedKeys {
    hashers: [RandomState; 2],
    sets: Vec<Lock<HashSet<u128, BuildHasherDefault<IsHash>>>>,
    /// Maximum number of keys in each set.
    most: usize,
}

impl SavedKeys {
    fn new() -> Self {
        Self {
            hashers: [RandomState::new(), RandomState::new()],
            sets: (0..SETS).map(|_| Lock::default()).collect(),
            most: MOST_REMEMBERED / SETS,
        }
    }

    fn hash<K: Key + ?Sized>(&self, key: &K) -> u128 {
        let [high, low] = self.hashers.each_ref().map(|state| {
            let mut hasher = state.build_hasher();
            hasher.write_u64(key.head());
            hasher.write(key.tail());
            hasher.finish()
        });
        u128::from(high) << 64 | u128::from(low)
    }

    fn contains<K: Key + ?Sized>(&self, key: &K) -> bool {
        let hash = self.hash(key);
        let set = self.sets.get(hash as usize % SETS);
        set.is_some_and(|set| set.lock().contains(&hash))
    }

    /// Adds a key if there is room. Returns whether it was already present.
    fn add<K: Key + ?Sized>(&self, key: &K) -> bool {
        let hash = self.hash(key);
        let Some(set) = self.sets.get(hash as usize % SETS) else { return false };
        let mut set = set.lock();
        if set.len() >= self.most {
            return set.contains(&hash);
        }
        !set.insert(hash)
    }
}

/// Creates the delta file with a number.
pub(crate) type CreateDelta = Box<dyn Fn(usize) -> Result<BlockWriter, BackupError> + Send + Sync>;

/// The copy-before-write set of one backup.
pub(crate) struct CopyBeforeWrite<K: Key + ?Sized> {
    state: AtomicU8,
    /// Lower bounds of all ranges except the first, in ascending order.
    bounds: Vec<K::Owned>,
    /// One for each range.
    ranges: Vec<Range<K::Owned>>,
    create: CreateDelta,
    /// One for each range.
    deltas: Vec<Lock<Delta>>,
    /// Size in bytes of the records in a block.
    block: usize,
    saved: SavedKeys,
    /// The largest end so far.
    ends: AtomicU64,
    /// Total size in bytes of the saved states.
    bytes: AtomicU64,
}

impl<K: Key + ?Sized> std::fmt::Debug for CopyBeforeWrite<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyBeforeWrite")
            .field("ranges", &self.ranges.len())
            .finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized> CopyBeforeWrite<K> {
    /// Creates the set of a backup whose ranges start at the bounds, with one range before them.
    pub fn new(create: CreateDelta, bounds: Vec<K::Owned>) -> Self {
        let unread = |_| Range { head: AtomicU64::new(0), passed: Lock::new(Passed::Nothing) };
        let ranges: Vec<_> = (0..=bounds.len()).map(unread).collect();
        Self {
            state: AtomicU8::new(INIT),
            block: (ALL_BLOCKS / ranges.len()).clamp(SMALLEST_BLOCK, LARGEST_BLOCK),
            deltas: ranges.iter().map(|_| Lock::default()).collect(),
            bounds,
            ranges,
            create,
            saved: SavedKeys::new(),
            ends: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Starts the saving of old states, at the snapshot point of the backup.
    pub fn activate(&self) {
        // Relaxed: the caller excludes all writers, and its locks order this store.
        if !fault!("live.delta.activates") {
            self.state.store(ACTIVE, Ordering::Relaxed);
        }
    }

    /// Returns the number of the range that contains `key`.
    pub fn range_of(&self, key: &K) -> usize {
        self.bounds.partition_point(|bound| bound.borrow() <= key)
    }

    /// Returns whether a write of `key` must save the key's state first. The caller has locked the
    /// key's stripe.
    pub fn needs_copy(&self, key: &K) -> bool {
        self.is_unread(key) && !notice!("live.delta.saves_once", self.saved.contains(key))
    }

    /// Returns whether a change of `key` may affect the backup, because the worker of its range has
    /// not passed it.
    fn is_unread(&self, key: &K) -> bool {
        // Relaxed: the state changes only while the caller of `activate` or `terminate` excludes
        // all writers.
        if self.state.load(Ordering::Relaxed) != ACTIVE {
            return false;
        }
        let Some(range) = self.ranges.get(self.range_of(key)) else { return true };
        // Acquire: pairs with the release in `passed`. A writer that finds its key passed changes
        // it after the worker has read it. A writer that reads an older head saves the state, which
        // is harmless.
        match key.head().cmp(&range.head.load(Ordering::Acquire)) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => match &*range.passed.lock() {
                Passed::Nothing => true,
                Passed::UpTo(last) => notice!("live.delta.equal_heads", key > last.borrow()),
                Passed::All => false,
            },
        }
    }

    /// Marks the state of `key` as saved. Returns the end of that state, which is larger than all
    /// earlier ones, or `None` if the state was already saved.
    pub fn saves(&self, key: &K) -> Option<u64> {
        let was_saved = self.saved.add(key);
        if notice!("live.delta.saves_once", was_saved) {
            return None;
        }
        Some(self.ends.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns the total size in bytes of the states saved so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Appends an encoded state of a key of a range.
    pub fn append(&self, range: usize, state: &[u8]) {
        self.bytes.fetch_add(state.len() as u64, Ordering::Relaxed);
        let Some(delta) = self.deltas.get(range) else { return };
        let mut delta = delta.lock();
        if delta.failed.is_some() {
            return;
        }
        delta.frame.extend(state, 1);
        if delta.frame.len() >= self.block {
            delta.failed = self.write(range, &mut delta).err();
        }
    }

    /// Writes the collected states of a range.
    fn write(&self, range: usize, delta: &mut Delta) -> Result<(), BackupError> {
        let writer = match &mut delta.writer {
            Some(writer) => writer,
            none => none.insert((self.create)(delta_of(range))?),
        };
        writer.data(&mut delta.frame, 0)?;
        delta.frame.clear();
        Ok(())
    }

    /// Records that the worker of a range has read everything up to `last`, or all of it (`None`).
    pub fn passed(&self, range: usize, last: Option<&K>) {
        if let Some(range) = self.ranges.get(range) {
            let passed = last.map_or(Passed::All, |last| Passed::UpTo(last.to_owned()));
            *range.passed.lock() = passed;
            range.head.store(last.map_or(u64::MAX, Key::head), Ordering::Release);
        }
    }

    /// Ends the saving of old states. The caller excludes all writers.
    pub fn terminate(&self) {
        self.state.store(TERMINATING, Ordering::Relaxed);
    }

    /// Closes the files and makes them durable. Ranges without a state have none.
    ///
    /// # Errors
    /// The first error of an append, or an error of this call.
    pub fn finish(&self) -> Result<Vec<FileEntry>, BackupError> {
        let waiting = |delta: &Lock<Delta>| {
            let delta = delta.lock();
            if delta.writer.is_none() { delta.frame.len() } else { 0 }
        };
        let is_little = self.deltas.iter().map(waiting).sum::<usize>() <= LARGEST_COMMON;
        let (mut files, mut few) = (Vec::new(), Vec::new());
        for (range, delta) in self.deltas.iter().enumerate() {
            let mut delta = std::mem::take(&mut *delta.lock());
            if let Some(error) = delta.failed.take() {
                return Err(error);
            }
            if delta.writer.is_none() && is_little {
                few.push(delta.frame);
                continue;
            }
            if delta.frame.count > 0 {
                self.write(range, &mut delta)?;
            }
            if let Some(mut writer) = delta.writer {
                files.push(close(&mut writer, None::<&K>)?);
            }
        }
        few.retain(|frame| frame.count > 0);
        if !few.is_empty() {
            let mut writer = (self.create)(COMMON_DELTA)?;
            few.iter_mut().try_for_each(|frame| writer.data(frame, 0))?;
            files.push(close(&mut writer, None::<&K>)?);
        }
        Ok(files)
    }
}

/// Ends a file of a backup, makes it durable, and returns its description.
pub(crate) fn close<K: Encoding + ?Sized>(
    writer: &mut BlockWriter,
    from: Option<&K>,
) -> Result<FileEntry, BackupError> {
    writer.finish(BlockKind::End, 0)?;
    if !fault!("faults.shard.sync") {
        writer.sync()?;
    }
    let name = writer.path().file_name().unwrap_or_default();
    Ok(FileEntry {
        file: name.to_string_lossy().into_owned(),
        entries: writer.count(),
        bytes: writer.written(),
        crc32c: writer.chain(),
        from: from.map(crate::files::manifest::key_to_hex),
    })
}
