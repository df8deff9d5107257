//! The copy-before-write set of a live backup: old states of keys that were written before the
//! backup read them. They go into a delta file (Nitro §5.3, with writers in place of collectors).
//!
//! # Contract
//! All methods may be called by many threads at once. A writer calls
//! [`CopyBeforeWrite::needs_copy`] before it changes a key, with the key's stripe locked, and
//! appends the state at any time before [`CopyBeforeWrite::finish`]. The worker of a range calls
//! [`CopyBeforeWrite::passed`].
//!
//! # Protocol
//! The paper's collectors write what they unlink to delta files. Here the writers do so one step
//! earlier: before a write changes a key, it saves the key's state, so no dead version must be
//! kept.
//!
//! 1. INIT: the files are created; nothing is saved.
//! 2. ACTIVE, from the snapshot point on: a write of key k saves its state unless the worker of k's
//!    range has passed k. The worker scans the *latest* state. It publishes its position after it
//!    has read up to there.
//! 3. TERMINATING, once all workers are done: nothing is saved any more, and the file is closed.
//!
//! # Invariant
//! A key's state at the snapshot point is its saved state with the smallest end, or, if none was saved,
//! the state that its worker read. A write after the snapshot point that changes k before the
//! worker reads k finds k not passed, and saves its state. If the first such write saved nothing,
//! the worker had read k before it. Saving more than that is harmless: later ends are larger.
//!
//! # Limits
//! A key that expires during the backup may be missing from it; its deadline has passed by then. If
//! saving fails, the backup fails; writers continue.

use std::borrow::Borrow;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ordna_base::sync::{Lock, fault, notice};

use crate::Key;
use crate::files::blocks::{BlockKind, BlockWriter, Frame};
use crate::files::error::BackupError;
use crate::files::manifest::FileEntry;
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

/// The copy-before-write set of one backup.
pub(crate) struct CopyBeforeWrite<K: Key + ?Sized> {
    state: AtomicU8,
    /// Lower bounds of all ranges but the first, ascending.
    bounds: Vec<K::Owned>,
    /// One for each range.
    ranges: Vec<Range<K::Owned>>,
    file: Lock<File>,
    /// The largest end so far.
    ends: AtomicU64,
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
    /// The header of the file is written.
    pub fn new(writer: BlockWriter, bounds: Vec<K::Owned>) -> Self {
        let unread = |_| Range { head: AtomicU64::new(0), passed: Lock::new(Passed::Nothing) };
        let ranges = (0..=bounds.len()).map(unread).collect();
        let file = Lock::new(File { writer, frame: Frame::default(), failed: None });
        Self { state: AtomicU8::new(INIT), bounds, ranges, file, ends: AtomicU64::new(0) }
    }

    /// Starts the saving of old states, at the snapshot point of the backup.
    pub fn activate(&self) {
        // Relaxed: the caller holds off all writers, and its locks order this.
        if !fault!("live.delta.activates") {
            self.state.store(ACTIVE, Ordering::Relaxed);
        }
    }

    /// Returns whether a write of `key` must save the key's state first.
    pub fn needs_copy(&self, key: &K) -> bool {
        // Relaxed: states change while the caller of `activate` or `terminate` holds off all
        // writers.
        if self.state.load(Ordering::Relaxed) != ACTIVE {
            return false;
        }
        let range = self.bounds.partition_point(|bound| bound.borrow() <= key);
        let Some(range) = self.ranges.get(range) else { return true };
        // Acquire: pairs with the release in `passed`. A writer that finds its key passed changes
        // it after the worker's read. One that finds an older head saves the state, which is
        // harmless.
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

    /// Returns the next end, larger than all before.
    pub fn next_end(&self) -> u64 {
        self.ends.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Appends encoded states of keys, each with its own end.
    pub fn append(&self, states: &[u8], count: u64) {
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

    /// Closes the file and makes it durable.
    ///
    /// # Errors
    /// The first failure of an append, or that of the end.
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
        from: from.map(crate::files::manifest::key_to_hex),
    })
}
