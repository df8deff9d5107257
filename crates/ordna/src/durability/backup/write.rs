//! Writing of backups: each worker writes ranges of keys to one file each. The manifest comes last
//! (Nitro §5.1).
//!
//! # Contract
//! The target appears completely or not at all: files and manifest are written into a temporary
//! directory in the same parent, made durable, and renamed into place. A failure changes neither
//! the target nor older backups.

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

/// Size in bytes of the records in a block: one write of a worker, and what a reader holds per
/// shard.
const BLOCK: usize = 512 << 10;
/// Minimum number of ranges per worker, so that a worker that finishes early can take another
/// range.
const RANGES_PER_WORKER: usize = 4;
/// Size in bytes of the part of the store in a range. A restore holds the states from a range's
/// delta file in memory, for as many ranges at once as the machine runs threads.
const RANGE: usize = 64 << 20;
/// Maximum number of ranges, because each may have two open files.
const MOST_RANGES: usize = 256;
/// Amount by which background workers raise their nice value, so that other threads run first.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Ratio of the time that a background worker rests to the time that it computes, while others
/// write: it takes an eighth of a processor. With only its lower priority, it took half a processor
/// on a machine with two processors and two writers.
const REST: u32 = 7;
/// Number of bytes that a worker of a checkpoint writes between two syncs. A sync is then short, so
/// neither the end of the store nor the log's syncs wait long for it.
const SYNCED_AT_ONCE: u64 = 8 << 20;
/// Workers of a checkpoint rest only while the log has grown by less than this share of what they
/// have written, because all of the log is kept until the checkpoint is complete.
const LOG_SHARE: u64 = 8;
/// Maximum duration of a rest, because a slow block was not only the worker's own computation.
const LONGEST_REST: Duration = Duration::from_millis(50);

/// The way in which a backup of an opened store reads the entries.
///
/// ```
/// use ordna::BackupOptions;
/// use ordna::durability::Mode;
///
/// let options = BackupOptions::new().mode(Mode::Snapshot);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Holds no snapshot: writers save the old state of what the workers have not read yet (Nitro
    /// §5.3). Memory does not grow; the files grow by what is overwritten during the backup.
    #[default]
    Live,
    /// Holds a snapshot until the backup is complete. What is overwritten until then stays in
    /// memory.
    Snapshot,
}

/// Computes the metadata at the snapshot point of a backup.
type Metadata = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Options of a backup.
///
/// ```
/// use ordna::BackupOptions;
///
/// let options = BackupOptions::new().workers(2).keep(3).background(true);
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct BackupOptions {
    pub(crate) workers: usize,
    pub(crate) compression: Compression,
    pub(crate) background: bool,
    /// Whether the backup is a checkpoint, which the store takes by itself.
    pub(crate) is_automatic: bool,
    /// Returns the number of bytes by which the log has grown since the backup began. Set for
    /// checkpoints.
    pub(crate) log_growth: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    /// Returns the number of writes of other threads.
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
    /// Creates the default options: one worker per thread of the machine, no compression, one
    /// backup kept.
    ///
    /// ```
    /// let options = ordna::BackupOptions::new();
    /// # let _ = options;
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of threads that read and write, at least one.
    ///
    /// ```
    /// let options = ordna::BackupOptions::new().workers(2);
    /// # let _ = options;
    /// ```
    pub fn workers(self, threads: usize) -> Self {
        Self { workers: threads.max(1), ..self }
    }

    /// Sets how blocks are compressed.
    ///
    /// ```
    /// use ordna::BackupOptions;
    /// use ordna::durability::Compression;
    ///
    /// let options = BackupOptions::new().compression(Compression::Lz4);
    /// # let _ = options;
    /// ```
    pub fn compression(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// Makes the workers give way to other threads: by a lower priority (on Linux) and, in a backup
    /// of an opened store, by rests while others write. Such a worker takes an eighth of a
    /// processor.
    ///
    /// ```
    /// let options = ordna::BackupOptions::new().background(true);
    /// # let _ = options;
    /// ```
    pub fn background(self, background: bool) -> Self {
        Self { background, ..self }
    }

    /// Makes the backup a checkpoint.
    pub(crate) fn automatic(self) -> Self {
        Self { is_automatic: true, ..self }
    }

    /// Sets the number of backups that an opened store keeps, including this one; at least one.
    ///
    /// ```
    /// let options = ordna::BackupOptions::new().keep(3);
    /// # let _ = options;
    /// ```
    pub fn keep(self, backups: usize) -> Self {
        Self { keep: backups.max(1), ..self }
    }

    /// Sets how a backup of an opened store reads the entries.
    ///
    /// ```
    /// use ordna::BackupOptions;
    /// use ordna::durability::Mode;
    ///
    /// let options = BackupOptions::new().mode(Mode::Snapshot);
    /// # let _ = options;
    /// ```
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets metadata for the manifest, for example the position in a change stream. It is computed
    /// at the backup's snapshot point, while the writers of an opened store wait.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-metadata-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// let options = ordna::BackupOptions::new().metadata(|| b"offset 17".to_vec());
    /// towns.backup_to(&dir, &options)?;
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn metadata(self, metadata: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self { metadata: Arc::new(metadata), ..self }
    }

    /// Sets the counters that report progress.
    ///
    /// ```
    /// use ordna::BackupOptions;
    /// use ordna::durability::Progress;
    ///
    /// let progress = Progress::default();
    /// let options = BackupOptions::new().progress(&progress);
    /// // Another thread can show the progress of a backup with these options, or cancel it.
    /// assert_eq!(progress.bytes(), 0);
    /// # let _ = options;
    /// ```
    pub fn progress(self, progress: &Progress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Sets where files are stored, instead of the disk.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::BackupOptions;
    /// use ordna::durability::Disk;
    ///
    /// let options = BackupOptions::new().storage(Arc::new(Disk));
    /// # let _ = options;
    /// ```
    pub fn storage(self, storage: Arc<dyn Storage>) -> Self {
        Self { storage, ..self }
    }
}

/// Properties of the snapshot point of a backup.
pub(crate) struct SnapshotPoint {
    pub metadata: Vec<u8>,
    pub taken_ms: u64,
    pub memory_limit: Option<u64>,
    pub log_segment: Option<u64>,
    pub log_position: u64,
    /// Number of records appended to the log since the opening.
    pub records: u64,
    /// Size in bytes of the log's files written since the opening.
    pub logged: u64,
}

/// Returns the system's time in milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the directory in which a backup is written until it is complete.
pub(crate) fn unfinished(target: &Path) -> PathBuf {
    let mut name = OsString::from("unfinished-");
    name.push(target.file_name().unwrap_or_default());
    target.with_file_name(name)
}

/// A backup that is being written.
pub(crate) struct Writing<'a, K: Key + ?Sized> {
    pub options: &'a BackupOptions,
    target: PathBuf,
    dir: PathBuf,
    /// Lower bounds of all ranges except the first.
    pub bounds: Vec<K::Owned>,
    began: Instant,
}

impl<'a, K: Key + ?Sized> Writing<'a, K> {
    /// Creates the temporary directory. `bounds` divides the keys into ranges.
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

    /// Returns the number of ranges for the backup of a store with `bytes` bytes.
    pub fn ranges(options: &BackupOptions, bytes: usize) -> usize {
        (bytes / RANGE).min(MOST_RANGES).max(options.workers * RANGES_PER_WORKER)
    }

    /// Returns a function that creates delta files.
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

    /// Writes the shards of all ranges, with several workers in parallel.
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
                        // Makes the other workers stop at their next range.
                        next.store(usize::MAX / 2, Ordering::Relaxed);
                        let mut failed = failed.lock();
                        failed.get_or_insert(error);
                        return;
                    }
                }
            }
        };
        let spawned = || {
            // A checkpoint only rests, because it must keep pace with the log.
            if self.options.background && !self.options.is_automatic {
                lower_priority(NICE);
            }
            if self.options.is_automatic {
                mark_worker();
            }
            work();
        };
        thread::scope(|scope| {
            // The calling thread does not work, because its priority belongs to the caller.
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
            // The scan stops at each full block, because a write during the scan would delay
            // reclamation.
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
            // After this worker has read a key, its state is no longer saved. So the worker does
            // not rest while writers save more than the backup has written.
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

    /// Removes what a failed backup has written, as far as possible.
    pub fn discard(storage: &dyn Storage, target: &Path) {
        // If this fails, the next backup removes the directory.
        let _ = storage.remove(&unfinished(target));
    }
}

/// Controls the rests of a background worker.
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
