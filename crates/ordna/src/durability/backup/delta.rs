//! The changes that a backup without a held snapshot may have missed (Nitro §5.3, turned round).
//!
//! # Contract
//! All methods may be called by many threads at once. A writer asks [`Delta::needs`] before it
//! changes a key, with the key's stripe held, and hands the state over at any time before
//! [`Delta::finish`]. [`Delta::passed`] is called by the worker of a range.
//!
//! # Protocol
//! The paper's collectors write what they unlink to delta files. Here the writers do, one step
//! earlier:
//! before a write changes a key, it spills the key's state, so no dead version need be kept at all.
//!
//! 1. INIT: the files are made; nothing is spilled.
//! 2. ACTIVE, from the cut on: a write of key k spills unless the worker of k's range has passed k.
//!    The worker scans the *latest* state. It publishes its position after it has read up to there.
//! 3. TERMINATING, once all workers are through: nothing is spilled any more, and the file is
//!    closed.
//!
//! # Invariant
//! A key's state at the cut is its spilled state of smallest death, or, if none was spilled, the
//! state that its worker read. For: a write after the cut that changes k before the worker reads k
//! finds k not passed, and spills. If the first such write spilled nothing, the worker had read k
//! before it. Spilling more than that is harmless: later deaths are larger.
//!
//! # Limits
//! A key that expires during the backup may be missing from it; its deadline has passed by then.
//! If a spill fails, the backup fails; writers go on.

use std::borrow::Borrow;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ordna_base::sync::{Lock, fault, notice};

use super::manifest::FileEntry;
use crate::Key;
use crate::durability::error::BackupError;
use crate::durability::files::blocks::{BlockKind, BlockWriter, Frame};
use ordna_base::encoding::Encoding;

/// Bytes of records per block of a delta file.
const BLOCK: usize = 256 << 10;

const INIT: u8 = 0;
const ACTIVE: u8 = 1;
const TERMINATING: u8 = 2;

/// How far a worker has read its range.
#[derive(Debug)]
enum Passed<K> {
    Nothing,
    UpTo(K),
    All,
}

/// How far the worker of a range is. Padded, so that ranges do not share a cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Range<K> {
    /// Head of the last key read: smaller heads are passed, larger ones are not, this one may be
    /// either.
    head: AtomicU64,
    passed: Lock<Passed<K>>,
}

#[derive(Debug)]
struct File {
    writer: BlockWriter,
    frame: Frame,
    failed: Option<BackupError>,
}

/// The delta of one backup.
pub(crate) struct Delta<K: Key + ?Sized> {
    state: AtomicU8,
    /// Lower bounds of all ranges but the first, ascending.
    bounds: Vec<K::Owned>,
    /// One for each range.
    ranges: Vec<Range<K::Owned>>,
    file: Lock<File>,
    /// The last death.
    deaths: AtomicU64,
}

impl<K: Key + ?Sized> std::fmt::Debug for Delta<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delta").field("ranges", &self.ranges.len()).finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized> Delta<K> {
    /// A delta of ranges that begin at the bounds, and one before them. The file's header is
    /// written.
    pub fn new(writer: BlockWriter, bounds: Vec<K::Owned>) -> Self {
        let unread = |_| Range { head: AtomicU64::new(0), passed: Lock::new(Passed::Nothing) };
        let ranges = (0..=bounds.len()).map(unread).collect();
        let file = Lock::new(File { writer, frame: Frame::default(), failed: None });
        Self { state: AtomicU8::new(INIT), bounds, ranges, file, deaths: AtomicU64::new(0) }
    }

    /// The cut: from now on writes spill.
    pub fn activate(&self) {
        // Relaxed: the caller holds off all writers, and its locks order this.
        if !fault!("live.delta.activates") {
            self.state.store(ACTIVE, Ordering::Relaxed);
        }
    }

    /// Whether a write of `key` must spill the key's state first.
    pub fn needs(&self, key: &K) -> bool {
        // Relaxed: states change while the caller of `activate` or `terminate` holds off all
        // writers.
        if self.state.load(Ordering::Relaxed) != ACTIVE {
            return false;
        }
        let range = self.bounds.partition_point(|bound| bound.borrow() <= key);
        let Some(range) = self.ranges.get(range) else { return true };
        // Acquire: pairs with the release in `passed`. A writer that finds its key passed changes
        // it after the worker's read. One that finds an older head spills, which is harmless.
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

    /// The next death: larger than all before.
    pub fn next_death(&self) -> u64 {
        self.deaths.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes encoded states of keys, each with a death of its own.
    pub fn spilled(&self, states: &[u8], count: u64) {
        let mut file = self.file.lock();
        let File { writer, frame, failed } = &mut *file;
        if failed.is_some() {
            return;
        }
        frame.extend(states, count);
        if frame.len() >= BLOCK {
            *failed = writer.data(frame, 0).err();
            frame.clear();
        }
    }

    /// The worker of a range has read everything up to `last`, or (`None`) all of it.
    pub fn passed(&self, range: usize, last: Option<&K>) {
        if let Some(range) = self.ranges.get(range) {
            let passed = last.map_or(Passed::All, |last| Passed::UpTo(last.to_owned()));
            *range.passed.lock() = passed;
            range.head.store(last.map_or(u64::MAX, Key::head), Ordering::Release);
        }
    }

    /// Ends the spilling. The caller holds off all writers.
    pub fn terminate(&self) {
        self.state.store(TERMINATING, Ordering::Relaxed);
    }

    /// Closes the file and makes it durable.
    ///
    /// # Errors
    /// The first failure of a spill, or of the end.
    pub fn finish(&self) -> Result<FileEntry, BackupError> {
        let mut file = self.file.lock();
        let File { writer, frame, failed } = &mut *file;
        if let Some(error) = failed.take() {
            return Err(error);
        }
        if frame.count > 0 {
            writer.data(frame, 0)?;
            frame.clear();
        }
        close(writer, None::<&K>)
    }
}

/// Ends a file of a backup, makes it durable, and describes it.
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
        from: from.map(super::manifest::key_to_hex),
    })
}
