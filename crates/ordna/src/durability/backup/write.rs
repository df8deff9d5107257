//! Writes a backup: workers over ranges of keys, one file each, the manifest last (Nitro §5.1).
//!
//! # Contract
//! The target appears whole or not at all: files and manifest are written into a directory beside
//! it, made durable, and renamed into place. A failure leaves the target and older backups
//! untouched.

use std::borrow::Borrow;
use std::ffi::OsString;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ordna_base::sync::{Lock, fault, handed_on, joined, point};

use super::os::{lower_priority, thread_time};
use crate::entry::EntrySource;
use crate::files::blocks::{BlockWriter, Compression, FileHeader, FileKind, Frame, VERSION};
use crate::files::codec::encode_put;
use crate::files::directory::is_unfinished_backup;
use crate::files::error::BackupError;
use crate::files::manifest::{DELTA, FileEntry, Manifest, SHARD, to_hex};
use crate::files::progress::Progress;
use crate::files::storage::{Disk, Storage, parent};
use crate::wal::checkpoints::mark_worker;
use crate::wal::copy_before_write::{CopyBeforeWrite, CreateDelta, close};
use crate::wal::reports::Summary;
use ordna_base::{Key, Value};

/// Bytes of records per block: writes are this large, and a reader holds this much per shard.
const BLOCK: usize = 512 << 10;
/// Ranges per worker, at least: a worker that is done early takes another.
const RANGES_PER_WORKER: usize = 4;
/// Bytes of the store per range. A restore holds the states that a delta file has of a range in
/// memory, for as many ranges at once as the machine runs threads.
const RANGE: usize = 64 << 20;
/// Number of ranges, at most: each may have two open files.
const MOST_RANGES: usize = 256;
/// Background workers give way to other threads of this machine by so much (`nice`).
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// While others write, a background worker rests so many times as long as it computed: it takes an
/// eighth of a processor. With its priority alone it took a half of one beside two writers on two.
const REST: u32 = 7;
/// Bytes that a worker of a checkpoint writes before it syncs them: a sync is short, so the end of the
/// store does not wait long, and the log's syncs do not either.
const SYNCED_AT_ONCE: u64 = 8 << 20;
/// Workers of a checkpoint rest only while the log has grown by less than this share of what they have
/// written: all of the log is kept until the checkpoint is done.
const LOG_SHARE: u64 = 8;
/// Longest rest: a block that took long was not all the worker's own time.
const LONGEST_REST: Duration = Duration::from_millis(50);

/// How a backup of an opened store reads the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// No snapshot is held: writers spill what the workers have not passed yet (Nitro §5.3). Memory
    /// does not grow; the files do, by what is overwritten meanwhile.
    #[default]
    Live,
    /// A snapshot is held until the backup is done. What is overwritten meanwhile stays in memory.
    Snapshot,
}

/// Computes metadata at the cut of a backup.
type Metadata = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// How a backup is made.
#[derive(Clone)]
pub struct BackupOptions {
    pub(crate) workers: usize,
    pub(crate) compression: Compression,
    pub(crate) background: bool,
    /// Whether the store takes the backup by itself.
    pub(crate) is_automatic: bool,
    /// Bytes that the log has grown by since the backup began, in one that bounds the log.
    pub(crate) log_growth: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    /// Counts the writes of others.
    pub(crate) writes: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    pub(crate) keep: usize,
    pub(crate) mode: Mode,
    pub(crate) metadata: Metadata,
    pub(crate) progress: Progress,
    pub(crate) storage: Arc<dyn Storage>,
}

impl std::fmt::Debug for BackupOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackupOptions")
            .field("workers", &self.workers)
            .field("compression", &self.compression)
            .field("background", &self.background)
            .field("keep", &self.keep)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self {
            workers: thread::available_parallelism().map_or(1, usize::from),
            compression: Compression::None,
            background: false,
            is_automatic: false,
            log_growth: None,
            writes: None,
            keep: 1,
            mode: Mode::default(),
            metadata: Arc::new(Vec::new),
            progress: Progress::default(),
            storage: Arc::new(Disk),
        }
    }
}

impl BackupOptions {
    /// As many workers as the machine runs threads, no compression, one backup kept.
    pub fn new() -> Self {
        Self::default()
    }

    /// Threads that read and write; at least one.
    pub fn workers(self, threads: usize) -> Self {
        Self { workers: threads.max(1), ..self }
    }

    /// How blocks are compressed.
    pub fn compression(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// Has the workers give way to other threads: by their priority (on Linux), and, in a backup of
    /// an opened store, by rests while others write. Such a worker takes an eighth of a processor.
    pub fn background(self, background: bool) -> Self {
        Self { background, ..self }
    }

    /// A backup that the store takes by itself.
    pub(crate) fn automatic(self) -> Self {
        Self { is_automatic: true, ..self }
    }

    /// Backups that an opened store keeps, this one included; at least one.
    pub fn keep(self, backups: usize) -> Self {
        Self { keep: backups.max(1), ..self }
    }

    /// How an opened store's backup reads the entries.
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Bytes of the caller's for the manifest, computed at the moment of the backup's snapshot: the
    /// position in a change stream, say. An opened store's writers wait meanwhile.
    pub fn metadata(self, metadata: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self { metadata: Arc::new(metadata), ..self }
    }

    /// Where progress is counted.
    pub fn progress(self, progress: &Progress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Where files are written, in place of the disk.
    pub fn storage(self, storage: Arc<dyn Storage>) -> Self {
        Self { storage, ..self }
    }
}

/// The facts of the cut.
pub(crate) struct SnapshotPoint {
    pub metadata: Vec<u8>,
    pub taken_ms: u64,
    pub memory_limit: Option<u64>,
    pub log_segment: Option<u64>,
    pub log_position: u64,
    /// Records appended to the log up to there, since the opening.
    pub records: u64,
    /// Bytes of the log's files up to there, since the opening.
    pub logged: u64,
}

/// Milliseconds since 1970, on the system's clock.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The directory in which a backup is written until it is whole.
pub(crate) fn unfinished(target: &Path) -> PathBuf {
    let mut name = OsString::from("unfinished-");
    name.push(target.file_name().unwrap_or_default());
    target.with_file_name(name)
}

/// A backup on its way.
pub(crate) struct Writing<'a, K: Key + ?Sized> {
    pub options: &'a BackupOptions,
    target: PathBuf,
    dir: PathBuf,
    /// Lower bounds of all ranges but the first.
    pub bounds: Vec<K::Owned>,
    began: Instant,
}

impl<'a, K: Key + ?Sized> Writing<'a, K> {
    /// Makes the directory beside the target. `bounds` divides the keys into ranges.
    pub fn begin(
        target: &Path,
        options: &'a BackupOptions,
        bounds: Vec<K::Owned>,
    ) -> Result<Self, BackupError> {
        let storage = &*options.storage;
        let (dir, above) = (unfinished(target), parent(target));
        storage.create_dir(&above).map_err(BackupError::io(&above, "create"))?;
        let names = storage.list(&above).map_err(BackupError::io(&above, "list"))?;
        let has = |path: &Path| {
            names.iter().any(|name| path.file_name().is_some_and(|own| own == name.as_str()))
        };
        if has(target) {
            return Err(BackupError::Exists { path: target.to_owned() });
        }
        if has(&dir) {
            if !is_unfinished_backup(storage, &dir) {
                return Err(BackupError::Exists { path: dir });
            }
            storage.remove(&dir).map_err(BackupError::io(&dir, "remove"))?;
        }
        storage.create_dir(&dir).map_err(BackupError::io(&dir, "create"))?;
        let target = target.to_owned();
        Ok(Self { options, target, dir, bounds, began: Instant::now() })
    }

    /// Returns the number of ranges that a backup of a store of so many bytes should have.
    pub fn ranges(options: &BackupOptions, bytes: usize) -> usize {
        (bytes / RANGE).min(MOST_RANGES).max(options.workers * RANGES_PER_WORKER)
    }

    /// Returns what creates a delta file.
    pub fn deltas<V: Value + ?Sized>(&self) -> CreateDelta {
        let (storage, dir) = (Arc::clone(&self.options.storage), self.dir.clone());
        let compression = self.options.compression;
        Box::new(move |number| {
            let path = dir.join(format!("{DELTA}{number:04}"));
            let header = FileHeader::new::<K, V>(FileKind::Delta, number as u64);
            BlockWriter::create(&*storage, &path, &header, compression)
        })
    }

    /// Creates the shard of a range.
    fn shard_file<V: Value + ?Sized>(&self, range: usize) -> Result<BlockWriter, BackupError> {
        let (storage, path) = (&*self.options.storage, self.dir.join(format!("{SHARD}{range:04}")));
        let header = FileHeader::new::<K, V>(FileKind::Shard, range as u64);
        BlockWriter::create(storage, &path, &header, self.options.compression)
    }

    /// Writes the shards of all ranges, by several workers at once.
    pub fn shards<V: Value + ?Sized>(
        &self,
        entries: &dyn EntrySource<K, V>,
        copies: Option<&CopyBeforeWrite<K>>,
    ) -> Result<Vec<FileEntry>, BackupError> {
        let next = AtomicUsize::new(0);
        let done = Lock::new(Vec::new());
        let failed: Lock<Option<BackupError>> = Lock::new(None);
        let work = || {
            loop {
                let range = next.fetch_add(1, Ordering::Relaxed);
                if range > self.bounds.len() {
                    return;
                }
                match self.shard(range, entries, copies) {
                    Ok(entry) => {
                        done.lock().push((range, entry));
                    }
                    Err(error) => {
                        // The others end at their next range.
                        next.store(usize::MAX / 2, Ordering::Relaxed);
                        let mut failed = failed.lock();
                        failed.get_or_insert(error);
                        return;
                    }
                }
            }
        };
        let spawned = || {
            // A checkpoint must keep pace with the log: it only rests.
            if self.options.background && !self.options.is_automatic {
                lower_priority(NICE);
            }
            if self.options.is_automatic {
                mark_worker();
            }
            work();
        };
        thread::scope(|scope| {
            // Not the calling thread: its priority is the caller's.
            let start = |_| {
                let name =
                    if self.options.is_automatic { "ordna checkpoint" } else { "ordna backup" };
                let builder = thread::Builder::new().name(name.to_owned());
                builder.spawn_scoped(scope, handed_on(spawned)).ok()
            };
            let workers = self.options.workers.min(self.bounds.len() + 1);
            let threads: Vec<_> = (0..workers).map_while(start).collect();
            if threads.is_empty() {
                work();
            }
            threads.into_iter().for_each(joined);
        });
        if let Some(error) = failed.into_inner() {
            return Err(error);
        }
        let mut done = done.into_inner();
        done.sort_unstable_by_key(|(range, _)| *range);
        Ok(done.into_iter().map(|(_, entry)| entry).collect())
    }

    fn shard<V: Value + ?Sized>(
        &self,
        range: usize,
        entries: &dyn EntrySource<K, V>,
        copies: Option<&CopyBeforeWrite<K>>,
    ) -> Result<FileEntry, BackupError> {
        let from = range.checked_sub(1).and_then(|before| self.bounds.get(before));
        let to = self.bounds.get(range);
        let upper = to.map_or(Bound::Unbounded, |to| Bound::Excluded(to.borrow()));
        let mut writer = self.shard_file::<V>(range)?;
        let mut frame = Frame::default();
        let mut last: Option<K::Owned> = None;
        let mut pace = Pace::new(self.options);
        let mut synced = 0;
        if fault!("live.worker.passes_after_its_read")
            && let Some(copies) = copies
        {
            copies.passed(range, None);
        }
        loop {
            self.options.progress.check()?;
            let lower = match (&last, from) {
                (Some(last), _) => Bound::Excluded(last.borrow()),
                (None, Some(from)) => Bound::Included(from.borrow()),
                (None, None) => Bound::Unbounded,
            };
            let mut full = None;
            // The scan stops at each full block: writing under it would delay the freeing of
            // memory.
            entries.scan_with(lower, upper, &mut |key, put| {
                encode_put(key, put, frame.records());
                frame.count += 1;
                if frame.len() < BLOCK {
                    return ControlFlow::Continue(());
                }
                full = Some(key.to_owned());
                ControlFlow::Break(())
            });
            if let Some(copies) = copies {
                copies.passed(range, full.as_ref().map(Borrow::borrow));
            }
            point("backup.shard.passed");
            if frame.count > 0 {
                let before = writer.written();
                writer.data(&mut frame, 0)?;
                self.options.progress.add(frame.count, writer.written() - before);
                frame.clear();
            }
            // Each block that this worker reads ends the saving of its keys. So it does not rest while
            // writers save more than the backup has.
            let saved = copies.map_or(0, CopyBeforeWrite::bytes);
            let written = self.options.progress.bytes();
            let growth = self.options.log_growth.as_ref().map_or(0, |growth| growth());
            if saved <= written && growth <= written / LOG_SHARE {
                pace.rest();
            }
            if self.options.is_automatic && writer.written() - synced >= SYNCED_AT_ONCE {
                writer.sync()?;
                synced = writer.written();
            }
            match full {
                Some(key) => last = Some(key),
                None => return close(&mut writer, from.map(Borrow::borrow)),
            }
        }
    }

    /// Writes the manifest and renames the directory into place.
    pub fn finish<V: Value + ?Sized>(
        self,
        cut: &SnapshotPoint,
        shards: Vec<FileEntry>,
        deltas: Vec<FileEntry>,
    ) -> Result<Summary, BackupError> {
        let storage = &*self.options.storage;
        let files: u64 = shards.iter().chain(&deltas).map(|file| file.bytes).sum();
        let spilled = deltas.iter().map(|file| file.entries).sum();
        let manifest = Manifest {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            taken_ms: cut.taken_ms,
            keys: K::KIND_NAME.to_owned(),
            values: V::KIND_NAME.to_owned(),
            entries: shards.iter().map(|file| file.entries).sum(),
            memory_limit: cut.memory_limit,
            log_segment: cut.log_segment,
            log_position: cut.log_position,
            metadata: to_hex(&cut.metadata),
            shards,
            deltas,
        };
        let length = manifest.write(storage, &self.dir)?;
        if !fault!("faults.backup.syncs_its_names") {
            storage.sync_dir(&self.dir).map_err(BackupError::io(&self.dir, "sync"))?;
        }
        storage.rename(&self.dir, &self.target).map_err(BackupError::io(&self.target, "rename"))?;
        let above = parent(&self.target);
        if !fault!("faults.backup.syncs_its_name") {
            storage.sync_dir(&above).map_err(BackupError::io(&above, "sync"))?;
        }
        Ok(Summary {
            path: self.target,
            entries: manifest.entries,
            spilled,
            bytes: files + length,
            took: self.began.elapsed(),
        })
    }

    /// Removes what a failed backup has written, as far as that is possible.
    pub fn discard(storage: &dyn Storage, target: &Path) {
        // The next backup removes what is left.
        let _ = storage.remove(&unfinished(target));
    }
}

/// The rests of a background worker.
struct Pace<'a> {
    writes: Option<&'a (dyn Fn() -> u64 + Send + Sync)>,
    seen: u64,
    computed: Duration,
}

impl<'a> Pace<'a> {
    fn new(options: &'a BackupOptions) -> Self {
        let writes = options.writes.as_deref().filter(|_| options.background);
        Self { writes, seen: writes.map_or(0, |writes| writes()), computed: thread_time() }
    }

    /// Rests if others have written since the last call.
    fn rest(&mut self) {
        let Some(writes) = self.writes else { return };
        let now = writes();
        if now != self.seen {
            let work = thread_time().saturating_sub(self.computed);
            thread::sleep((work * REST).min(LONGEST_REST));
            self.seen = now;
        }
        self.computed = thread_time();
    }
}
