//! [`Store::open`]: a store in memory that survives a crash.
//!
//! # Contract
//! The directory holds the newest backup `backup-N`, if there is one, and the segments of the log
//! from N on. The state is that of the backup, changed by the records of the log in their order.
//! Each opening truncates the log after its last complete block and continues in a new segment. A
//! lock prevents other stores from using the directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use ordna_base::encoding::ByteRange;
use ordna_base::sync::{Lock, fault, joined};
use ordna_base::{Key, Value};

use super::backup::restore::{log_records, read_store};
use super::checkpoint;
use super::merge::LogRecords;
use super::open_options::{LoggedKeys, OnLogged, OpenOptions};
use super::read_ahead::LONG;
use super::replay::{Reading, decode_records};
use super::replay_threads::{apply_with, key_of};
use crate::files::blocks::{FileHeader, FileKind};
use crate::files::codec::Record;
use crate::files::directory::{Listing, Reserve, lock as lock_directory, tail_path};
use crate::files::error::BackupError;
use crate::files::manifest::{FileEntry, Manifest};
use crate::files::storage::Storage;
use crate::store::Attached;
use crate::wal::durable::{BackupSizes, Durable};
use crate::wal::queue::Queue;
use crate::wal::reports::Recovery;
use crate::wal::segments::Segments;
use crate::wal::tail::{self, Tail, TailContents, TailEntry};
use crate::wal::writer::Wal;
use crate::{Error, Options, Store};

/// Returns the total size of the segments in bytes. A segment that cannot be opened counts as 0;
/// the error is reported when it is read.
fn log_bytes(storage: &dyn Storage, segments: &BTreeMap<u64, PathBuf>) -> u64 {
    segments.values().filter_map(|path| storage.open(path).ok()).map(|(_, len)| len).sum()
}

/// Returns the result of `work`, which changes no file. If the segments are long, another thread
/// syncs them concurrently, because nothing may be written after the opening before they are
/// durable.
fn while_syncing<R>(
    storage: &dyn Storage,
    segments: &BTreeMap<u64, PathBuf>,
    bytes: u64,
    work: impl FnOnce() -> Result<R, BackupError>,
) -> Result<R, BackupError> {
    if bytes < LONG {
        return work();
    }
    thread::scope(|scope| {
        let sync = || {
            let mut paths = segments.values();
            paths.try_for_each(|path| storage.sync(path).map_err(BackupError::io(path, "sync")))
        };
        let builder = thread::Builder::new().name("ordna log sync".to_owned());
        // If no thread can be started, `new_segment` syncs the segments.
        let thread = builder.spawn_scoped(scope, sync).ok();
        let done = work();
        let synced = thread.map_or(Ok(()), joined);
        // The system reports a failed sync only once, so `new_segment` may not see it.
        if fault!("damage.open.reports_the_first_sync") {
            return done;
        }
        done.and_then(|done| synced.map(|()| done))
    })
}

/// Approximate number of bytes that a leaf needs per entry.
const SHARE_OF_LEAF: u64 = 24;

/// Returns the size in bytes of the log's records that an opening may hold in memory in addition to
/// the store. The store needs memory for the backup's entries and, again, for these records.
fn room_of_log(room: usize, entries: u64, shards: u64) -> usize {
    let entries = entries.saturating_mul(SHARE_OF_LEAF).saturating_add(shards);
    room.saturating_sub(usize::try_from(entries).unwrap_or(usize::MAX)) / 2
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Opens the store of a directory: reads the newest backup and the log after it, and logs all
    /// writes from now on. Creates the directory if it does not exist. O(n).
    ///
    /// Entries that had already expired when the process ended are present while later records of
    /// the log are replayed. They expire when everything has been read.
    ///
    /// The [memory limit](Options::memory_limit) does not make an opening fail, because the limit
    /// may have been higher before. If it is exceeded, the store refuses writes until enough
    /// entries are removed.
    ///
    /// # Errors
    /// Returns a [`BackupError`] if the opening fails; the contents of the directory are unchanged.
    /// Source: Nitro, §5.
    ///
    /// ```
    /// use ordna::{OpenOptions, Store};
    ///
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-{}", std::process::id()));
    /// let towns: Store<[u8], u64> = Store::open(&dir, OpenOptions::new())?;
    /// towns.insert(b"Lund", &94_393)?;
    /// drop(towns);
    /// let towns: Store<[u8], u64> = Store::open(&dir, OpenOptions::new())?;
    /// assert_eq!(towns.get(b"Lund"), Some(94_393));
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(dir: impl AsRef<Path>, options: OpenOptions) -> Result<Self, BackupError> {
        let began = Instant::now();
        let (dir, storage) = (dir.as_ref(), &*options.storage);
        storage.create_dir(dir).map_err(BackupError::io(dir, "create"))?;
        Listing::read(storage, dir)?.check_ours(storage, dir)?;
        let held = lock_directory(storage, dir)?;
        let listing = Listing::read(storage, dir)?;
        for path in &listing.unfinished {
            storage.remove(path).map_err(BackupError::io(path, "remove"))?;
        }
        // The clock returns 0 until everything is read. An entry that has expired since it was
        // written must be present for the later records, which may remove its deadline.
        let runs = Arc::new(AtomicBool::new(false));
        let released = Arc::clone(&runs);
        let store_options = options.store.clone().wrap_clock(|clock| {
            Arc::new(move || if released.load(Ordering::Acquire) { clock() } else { 0 })
        });
        let mut recovery = Recovery::default();
        let first = listing.backups.last_key_value().map_or(1, |(number, _)| *number);
        let segments = listing.segments.range(first..);
        let segments = segments.map(|(number, path)| (*number, path.clone())).collect();
        let logged = log_bytes(storage, &segments);
        let mut sizes = BackupSizes::default();
        options.progress.expect(0, logged);
        let backup = match listing.backups.last_key_value() {
            None => None,
            Some((number, path)) => {
                let manifest = Manifest::read(storage, path)?;
                if manifest.log_segment.is_some_and(|segment| segment != *number) {
                    let what = "the manifest names another segment than the directory";
                    return Err(BackupError::damaged(path, 0, what));
                }
                recovery.metadata = manifest.metadata(path)?;
                recovery.backup = Some(path.clone());
                (recovery.entries, recovery.taken_ms) = (manifest.entries, manifest.taken_ms);
                let bytes = |files: &[FileEntry]| files.iter().map(|file| file.bytes).sum::<u64>();
                sizes.shards = bytes(&manifest.shards);
                sizes.all = sizes.shards + bytes(&manifest.deltas);
                Some((path, manifest))
            }
        };
        let found_tail = match listing.has_tail && !fault!("kill.tail.is_read") {
            true => tail::read(storage, dir, &listing.segments)?,
            false => TailContents::default(),
        };
        let position = backup.as_ref().map_or(0, |(_, manifest)| manifest.log_position);
        let named_by = backup.as_ref().filter(|(_, manifest)| manifest.log_segment.is_some());
        let mut reading = Reading {
            storage,
            dir,
            segments: &segments,
            first,
            position,
            named_by: named_by.map(|(path, _)| path.as_path()),
            marked: listing.newest_marked(),
            tail: &found_tail,
            repair: options.repair,
            mend: false,
            progress: &options.progress,
        };
        let mut tell = |payload: &[u8], records: &[Record]| {
            if let Some(OnLogged(take)) = &options.logged {
                records.iter().for_each(|record| take(changed_by(record, payload)));
            }
        };
        let mut log = match &backup {
            Some((path, manifest)) => log_records::<K, V>(path, manifest)?,
            None => LogRecords::new(Vec::new()),
        };
        if let Some(room) = options.store.room() {
            let entries = backup.as_ref().map_or(0, |(_, manifest)| manifest.entries);
            log = log.within(room_of_log(room, entries, sizes.shards));
        }
        let merges = backup.as_ref().is_none_or(|(_, manifest)| !manifest.shards.is_empty());
        // The limit is lifted during the opening, because deadlines and removals may have exceeded
        // it.
        let (store_options, lifted) = store_options.lift_limit();
        let (merged, blocks, store) = while_syncing(storage, &segments, logged, || {
            let merged = if merges { log.read::<V>(&reading, &mut tell)? } else { None };
            let blocks = log.blocks();
            let store = match &backup {
                None => log.into_store(store_options)?,
                Some((path, manifest)) => {
                    let built = (manifest, log);
                    read_store(storage, path, built, store_options, &options.progress)?
                }
            };
            Ok((merged, blocks, store))
        })?;
        reading.mend = true;
        // Records that only the tail contains, and the position at which they begin.
        let (mut tail, mut begin) = (Vec::new(), position);
        {
            let _lifted = lifted;
            let workers = thread::available_parallelism().map_or(1, usize::from);
            let (read, repeated) = apply_with(&store, workers, |apply| {
                // Number of blocks that are already in the store.
                let mut repeated = if merged.is_some() { blocks } else { 0 };
                let mut apply = |payload: Vec<u8>, records: Vec<Record>| {
                    repeated += 1;
                    if repeated <= blocks {
                        return Ok(());
                    }
                    tell(&payload, &records);
                    apply(payload, records)
                };
                let mut read = match merged {
                    Some(read) => read,
                    None => {
                        options.progress.expect(0, logged);
                        reading.run::<K, V>(&mut apply)?
                    }
                };
                begin = read.position;
                tail = found_tail.after(begin);
                let path = tail_path(dir);
                for entry in &tail {
                    let records = decode_records::<K, V>(&path, 0, &entry.payload, entry.count)?;
                    read.records += entry.count;
                    read.tail += entry.count;
                    read.position += entry.payload.len() as u64;
                    apply(entry.payload.clone(), records)?;
                }
                Ok::<_, BackupError>(read)
            });
            recovery.log = read?;
            repeated?;
        }
        runs.store(true, Ordering::Release);
        if store.statistics().expiring.0 > 0 {
            store.collect_garbage();
        }
        // The collector may have computed its sleep while the clock returned 0.
        store.engine().wake_for_deadline();
        let (wal, segments) = Self::new_segment(dir, &options, first, (begin, &tail))?;
        let durable = Durable {
            wal,
            dir: dir.to_owned(),
            storage: Arc::clone(&options.storage),
            segments,
            busy: AtomicBool::new(false),
            status: Lock::default(),
            checkpoint_after: options.checkpoint_after,
            recovery: Recovery { took: began.elapsed(), ..recovery },
            _lock: held,
        };
        {
            let mut status = durable.status.lock();
            (status.backed_up, status.keep) = (position, listing.backups.len().max(1));
            status.has_metadata = !durable.recovery.metadata.is_empty();
        }
        durable.wal.queue.add_logged(logged);
        durable.schedule_checkpoint(sizes);
        let (durable, current) = (Arc::new(durable), store.as_current());
        let checkpoints = checkpoint::start(&durable, &current)?;
        store.attach(Attached { checkpoints, current, durable, number: 0 });
        Ok(store)
    }

    /// Starts a log that continues in a new segment. The segment begins with the records of the
    /// tail.
    fn new_segment(
        dir: &Path,
        options: &OpenOptions,
        first: u64,
        (position, tail): (u64, &[&TailEntry]),
    ) -> Result<(Wal<K>, Arc<Segments>), BackupError> {
        let storage = &*options.storage;
        let listing = Listing::read(storage, dir)?;
        let number =
            listing.segments.last_key_value().map_or(first, |(last, _)| first.max(last + 1));
        // A process that was killed may have left the end of its log in the system's cache. It must
        // be durable before anything that is written from now on.
        if !fault!("damage.open.syncs_what_it_read") {
            for path in listing.segments.range(first..).map(|(_, path)| path) {
                storage.sync(path).map_err(BackupError::io(path, "sync"))?;
            }
            storage.sync_dir(dir).map_err(BackupError::io(dir, "sync"))?;
        }
        let segments = Arc::new(Segments {
            storage: Arc::clone(&options.storage),
            dir: dir.to_owned(),
            header: |number| FileHeader::new::<K, V>(FileKind::Log, number),
            next: Lock::new(number + 1),
            reserve: options.reserve / 2,
        });
        let segment = segments.create_at(number, position, tail)?;
        if listing.has_tail {
            tail::remove(storage, dir)?;
        }
        let header = FileHeader::new::<K, V>(FileKind::Tail, number);
        // Without such waits, acknowledgements wait until the records are written to the system, so
        // no tail is needed.
        let tail = match options.waits {
            true => Tail::create(storage, dir, &header, options.tail_bytes, &segment),
            false => None,
        };
        let queue = Queue::new(segment, options.sync)
            .tail(tail)
            .rotate_at(options.segment_bytes, Arc::clone(&segments))
            .retry_after(options.retry_after);
        segments.fill_reserve(Reserve::Backup);
        segments.fill_reserve(Reserve::Log);
        let log = Wal::start(queue, options.waits);
        log.map(|log| (log, segments)).map_err(BackupError::io(dir, "start the log's thread in"))
    }

    /// Creates a store in memory from a backup, bottom-up and with several threads. O(n).
    ///
    /// # Errors
    /// Returns a [`BackupError`] if the restore fails. It contains [`Error::MemoryLimit`] if the
    /// backup exceeds the limit. Source: Nitro, §5.2.
    ///
    /// ```
    /// use ordna::{BackupOptions, OpenOptions, Store};
    ///
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-restore-{}", std::process::id()));
    /// let towns: Store<[u8], u64> = Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.backup_to(&dir, &BackupOptions::new())?;
    /// let restored: Store<[u8], u64> = Store::restore(&dir, OpenOptions::new())?;
    /// assert_eq!(restored.get("Lund"), Some(94_393));
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore(backup: impl AsRef<Path>, options: OpenOptions) -> Result<Self, BackupError> {
        let (backup, storage) = (backup.as_ref(), &*options.storage);
        let manifest = Manifest::read(storage, backup)?;
        let built = (&manifest, log_records::<K, V>(backup, &manifest)?);
        read_store(storage, backup, built, options.store, &options.progress)
    }

    /// Creates an empty store that replaces this one in its directory. The log records that
    /// everything is removed, and continues with the writes of the new store. After this call, this
    /// store must not be written to and cannot be backed up into the directory. For a store without
    /// a directory, this is the same as [`with_options`](Self::with_options).
    ///
    /// If a [`log_group`](Self::log_group) that contains this call fails, the new store has the
    /// directory nevertheless. Continue with the new store, and [back it up](Self::backup) so that
    /// the log works again.
    ///
    /// # Errors
    /// [`Error::LogFailed`] if the log has failed.
    ///
    /// ```
    /// use ordna::Options;
    ///
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x10-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
    /// towns.put("Lund", 94_393)?;
    /// let empty = towns.successor(Options::new())?;
    /// assert_eq!((empty.len(), towns.len()), (0, 1));
    /// # drop(empty);
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn successor(&self, options: Options) -> Result<Self, Error> {
        self.check_reentry();
        let store = Self::with_options(options);
        if let Some(attached) = self.attached.get() {
            let number = attached.durable.wal.clear()?;
            store.succeed(attached, number);
        }
        Ok(store)
    }
}

/// Returns the keys that a record with this payload changes.
fn changed_by<'a>(record: &Record, payload: &'a [u8]) -> LoggedKeys<'a> {
    let bytes = |range: &ByteRange| payload.get(range.clone()).unwrap_or_default();
    match record {
        Record::RemoveRange { lower, upper } => {
            LoggedKeys::Range(lower.as_ref().map(bytes), upper.as_ref().map(bytes))
        }
        record => key_of(record).map_or(LoggedKeys::All, |key| LoggedKeys::One(bytes(&key))),
    }
}
