//! [`Store::open`]: a store in memory that is still there after a crash.
//!
//! # Contract
//! The directory holds at most one newest backup `backup-N`, and the segments of the log from N on. The
//! state is the backup's, changed by the log's records in their order. Each opening ends the log where
//! it is whole, and goes on in a new segment. A lock keeps other stores out.
//!
//! # Invariants
//! 1. A segment is removed only once a backup that holds its records is in place, durably.
//! 2. The segment that a backup names exists before the backup is in place.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::codec::{StoredKey, StoredValue};
use super::delta::Delta;
use super::directory::{Listing, backup_path, lock as lock_directory, segment_path};
use super::error::BackupError;
use super::format::{BlockWriter, Compression, FileHeader, FileKind};
use super::log::Log;
use super::log::queue::{Queue, Sync};
use super::log::replay::{LogRead, Reading, repeat};
use super::restore::read_store;
use super::storage::{Disk, Storage};
use super::write::{BackupOptions, Cut, Mode, Progress, Summary, Writing, unix_ms};
use crate::store::journal::{Entries, Journal, Run, Scope};
use crate::{Error, Options, Snapshot, Store};

/// How a store is opened in a directory.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    store: Options,
    sync: Sync,
    waits: bool,
    repair: bool,
    progress: Progress,
    storage: Arc<dyn Storage>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            store: Options::new(),
            sync: Sync::default(),
            waits: true,
            repair: false,
            progress: Progress::default(),
            storage: Arc::new(Disk),
        }
    }
}

impl OpenOptions {
    /// A log that is synced every second, and [`Options::new`].
    pub fn new() -> Self {
        Self::default()
    }

    /// How the store works in memory.
    pub fn store(self, store: Options) -> Self {
        Self { store, ..self }
    }

    /// When the log is made durable.
    pub fn sync(self, sync: Sync) -> Self {
        Self { sync, ..self }
    }

    /// Under [`Sync::Always`], has writes return before they are durable. The caller acknowledges them
    /// once [`Store::poll_durable`] is ready for [`Store::log_position`] as of after the write.
    pub fn acknowledge_later(self) -> Self {
        Self { waits: false, ..self }
    }

    /// Cuts the log at a damaged place in its middle too, instead of refusing to open. What follows
    /// the place is lost.
    pub fn repair(self, repair: bool) -> Self {
        Self { repair, ..self }
    }

    /// Where progress is counted.
    pub fn progress(self, progress: &Progress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Where files are kept, in place of the disk.
    pub fn storage(self, storage: Arc<dyn Storage>) -> Self {
        Self { storage, ..self }
    }
}

/// What an opening found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The backup that was read.
    pub backup: Option<PathBuf>,
    /// Entries in its shards.
    pub entries: u64,
    /// When its snapshot was taken, in milliseconds since 1970.
    pub taken_ms: u64,
    /// Its metadata.
    pub metadata: Vec<u8>,
    /// The log behind it.
    pub log: LogRead,
    /// How long it took.
    pub took: Duration,
}

/// The state of an opened store's log and backups.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Durability {
    /// The directory.
    pub dir: PathBuf,
    /// When the log is made durable.
    pub sync: Sync,
    /// Bytes of records appended to the log since it began.
    pub appended: u64,
    /// Of these, those known to be durable.
    pub synced: u64,
    /// Bytes of records since the last backup, or since the log began.
    pub since_backup: u64,
    /// Records since the last backup, or since the opening.
    pub records_since_backup: u64,
    /// fsyncs of the log since the opening.
    pub syncs: u64,
    /// Why writes are refused, if they are.
    pub failure: Option<Arc<str>>,
    /// The backup under way, and since when.
    pub running: Option<(Progress, Instant)>,
    /// The last successful backup, and when it ended, in milliseconds since 1970.
    pub last: Option<(Summary, u64)>,
    /// Why the last backup failed, if it did.
    pub last_error: Option<Arc<str>>,
    /// What the opening found.
    pub recovery: Recovery,
}

#[derive(Default)]
struct Status {
    running: Option<(Progress, Instant)>,
    last: Option<(Summary, u64)>,
    last_error: Option<Arc<str>>,
    /// Position at the cut of the last backup.
    backed_up: u64,
    /// Records appended up to there, since the opening.
    records_backed_up: u64,
}

/// What a store opened in a directory has besides its memory.
struct Home<K: StoredKey + ?Sized> {
    // Before the lock: the log is closed first.
    log: Log<K>,
    dir: PathBuf,
    storage: Arc<dyn Storage>,
    next_segment: AtomicU64,
    busy: AtomicBool,
    status: Mutex<Status>,
    recovery: Recovery,
    _lock: Box<dyn Send + std::marker::Sync>,
}

impl<K: StoredKey + ?Sized, V: StoredValue + ?Sized> Journal<K, V> for Home<K> {
    fn write(
        &self,
        scope: Scope<'_, K>,
        store: &dyn Entries<K, V>,
        write: &mut Run<'_, K, V>,
    ) -> Result<(), Error> {
        self.log.write(scope, store, write)
    }

    fn group(&self, work: &mut dyn FnMut()) -> Result<(), Error> {
        Journal::<K, V>::group(&self.log, work)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Creates a segment of the log, durably.
fn new_segment<K: StoredKey + ?Sized, V: StoredValue + ?Sized>(
    storage: &dyn Storage,
    dir: &Path,
    number: u64,
) -> Result<BlockWriter, BackupError> {
    let header = FileHeader::new::<K, V>(FileKind::Log, number);
    let path = segment_path(dir, number);
    let segment = BlockWriter::create(storage, &path, &header, Compression::None)?;
    segment.sync()?;
    storage.sync_dir(dir).map_err(BackupError::io(dir, "sync"))?;
    Ok(segment)
}

impl<K: StoredKey + ?Sized> Home<K> {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn backup<V: StoredValue + ?Sized>(
        &self,
        store: &Store<K, V>,
        options: &BackupOptions,
    ) -> Result<Summary, BackupError> {
        if self.log.in_group() {
            return Err(BackupError::InGroup);
        }
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(BackupError::Busy);
        }
        self.status().running = Some((options.progress.clone(), Instant::now()));
        let number = self.next_segment.fetch_add(1, Ordering::Relaxed);
        let done = self.backup_before(number, store, options);
        if done.is_err() {
            let target = backup_path(&self.dir, number);
            Writing::<K>::discard(&*self.storage, &target);
        }
        let mut status = self.status();
        status.running = None;
        match &done {
            Ok((summary, cut)) => {
                status.last = Some((summary.clone(), unix_ms()));
                status.last_error = None;
                (status.backed_up, status.records_backed_up) = (cut.log_position, cut.records);
            }
            Err(error) => status.last_error = Some(error.to_string().into()),
        }
        drop(status);
        self.busy.store(false, Ordering::Release);
        done.map(|(summary, _)| summary)
    }

    /// A backup of everything before the segment `number`.
    fn backup_before<V: StoredValue + ?Sized>(
        &self,
        number: u64,
        store: &Store<K, V>,
        options: &BackupOptions,
    ) -> Result<(Summary, Cut), BackupError> {
        let options = &options.clone().storage(Arc::clone(&self.storage));
        let target = backup_path(&self.dir, number);
        let bounds = store.partition_points(Writing::<K>::ranges(options));
        let writing = Writing::begin(&target, options, bounds)?;
        // A log that has failed refuses writes: the state stands still, and is read as it is.
        let works = self.log.queue.failure().is_none();
        let mut segment = if works {
            Some(new_segment::<K, V>(&*self.storage, &self.dir, number)?)
        } else {
            None
        };
        let delta = if works && options.mode == Mode::Live {
            let file = writing.file::<V>(FileKind::Delta, 0)?;
            Some(Arc::new(Delta::new(file, writing.bounds.clone())))
        } else {
            None
        };
        let mut snapshot: Option<Snapshot<K, V>> = None;
        let queue = &self.log.queue;
        let cut = self.log.stop_writers(|set| {
            let position = queue.appended();
            segment = segment.take().and_then(|segment| queue.rotate(segment));
            match &delta {
                Some(delta) => {
                    delta.activate();
                    set(Some(Arc::clone(delta)));
                }
                None => snapshot = Some(store.snapshot()),
            }
            let limit = store.statistics().memory_limit;
            Cut {
                metadata: (options.metadata)(),
                taken_ms: unix_ms(),
                memory_limit: limit.and_then(|limit| u64::try_from(limit).ok()),
                log_segment: Some(number),
                log_position: position,
                records: queue.records.load(Ordering::Relaxed),
            }
        });
        let entries: &dyn Entries<K, V> = match &snapshot {
            Some(snapshot) => snapshot,
            None => store,
        };
        let shards = writing.shards(entries, delta.as_deref());
        if let Some(delta) = &delta {
            self.log.stop_writers(|set| {
                delta.terminate();
                set(None);
            });
        }
        drop(snapshot);
        let shards = shards?;
        let deltas = match &delta {
            Some(delta) => vec![delta.finish()?],
            None => Vec::new(),
        };
        if !works {
            // The segment that the manifest names. None is there: a failed log takes no new one.
            segment = Some(new_segment::<K, V>(&*self.storage, &self.dir, number)?);
        }
        let summary = writing.finish::<V>(&cut, shards, deltas)?;
        // Writes were refused since before the cut if the segment was not taken over then: the backup
        // holds all that memory holds. If the log failed later, the next backup heals it.
        if let Some(segment) = segment {
            self.log.stop_writers(|_| queue.restart(segment));
        }
        self.remove_before(number, options.keep);
        Ok((summary, cut))
    }

    /// Removes segments that a backup has made needless, and backups beyond those kept.
    fn remove_before(&self, number: u64, keep: usize) {
        // What cannot be removed now is so by the next backup.
        let Ok(listing) = Listing::read(&*self.storage, &self.dir) else { return };
        let old = listing.backups.into_values().rev().skip(keep);
        // Oldest first: were the newest removed first, a crash would leave a gap.
        let segments = listing.segments.range(..number).map(|(_, path)| path.clone());
        for path in segments.chain(old) {
            let _ = self.storage.remove(&path);
        }
        let _ = self.storage.sync_dir(&self.dir);
    }
}

impl<K: StoredKey + ?Sized, V: StoredValue + ?Sized> Store<K, V> {
    /// Opens the store of a directory, which is created if it is not there: reads the newest backup and
    /// the log behind it, and has all writes logged from now on. O(n).
    ///
    /// What had expired when the process ended is still there for the records that follow it in the
    /// log, and expires when all is read.
    ///
    /// # Errors
    /// [`BackupError`]: what is in the directory stays as it was. Source: Nitro, §5.
    ///
    /// ```
    /// use ordna::backup::OpenOptions;
    /// use ordna::{OrderedIndex, Store};
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
        let held = lock_directory(storage, dir)?;
        let listing = Listing::read(storage, dir)?;
        for path in &listing.unfinished {
            storage.remove(path).map_err(BackupError::io(path, "remove"))?;
        }
        // Time stands still until all is read: what has expired since it was written must be there for
        // the records behind it, which may lift its deadline.
        let runs = Arc::new(AtomicBool::new(false));
        let released = Arc::clone(&runs);
        let store_options = options.store.clone().wrap_clock(|clock| {
            Arc::new(move || if released.load(Ordering::Acquire) { clock() } else { 0 })
        });
        let mut recovery = Recovery::default();
        let (first, position);
        let store = match listing.backups.last_key_value() {
            None => {
                (first, position) = (1, 0);
                Self::with_options(store_options)
            }
            Some((number, path)) => {
                let (store, manifest) =
                    read_store::<K, V>(storage, path, store_options, &options.progress)?;
                if manifest.log_segment.is_some_and(|segment| segment != *number) {
                    let what = "the manifest names another segment than the directory";
                    return Err(BackupError::damaged(path, 0, what));
                }
                recovery.metadata = manifest.metadata(path)?;
                recovery.backup = Some(path.clone());
                (recovery.entries, recovery.taken_ms) = (manifest.entries, manifest.taken_ms);
                (first, position) = (*number, manifest.log_position);
                store
            }
        };
        let segments = listing.segments.range(first..);
        let segments = segments.map(|(number, path)| (*number, path.clone())).collect();
        let reading = Reading {
            storage,
            dir,
            segments: &segments,
            first,
            position,
            repair: options.repair,
            mend: true,
            progress: &options.progress,
        };
        {
            // What was in memory before is so again.
            let _lifted = store.lift_limit();
            recovery.log =
                reading.run::<K, V>(|payload, record| repeat(&store, payload, record))?;
        }
        runs.store(true, Ordering::Release);
        if store.statistics().expiring.0 > 0 {
            store.collect_garbage();
        }
        let home = Home {
            log: Self::log_behind(dir, &options, first, recovery.log.position)?,
            dir: dir.to_owned(),
            storage: Arc::clone(&options.storage),
            next_segment: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            status: Mutex::default(),
            recovery: Recovery { took: began.elapsed(), ..recovery },
            _lock: held,
        };
        home.status().backed_up = position;
        let listing = Listing::read(storage, dir)?;
        let last = listing.segments.last_key_value().map_or(first, |(number, _)| *number);
        home.next_segment.store(last + 1, Ordering::Relaxed);
        store.attach(Arc::new(home));
        Ok(store)
    }

    /// A log that goes on in a new segment.
    fn log_behind(
        dir: &Path,
        options: &OpenOptions,
        first: u64,
        position: u64,
    ) -> Result<Log<K>, BackupError> {
        let storage = &*options.storage;
        let listing = Listing::read(storage, dir)?;
        let number =
            listing.segments.last_key_value().map_or(first, |(last, _)| first.max(last + 1));
        let segment = new_segment::<K, V>(storage, dir, number)?;
        let queue = Queue::new(segment, position, options.sync);
        Log::start(queue, options.waits).map_err(BackupError::io(dir, "start the log's thread in"))
    }

    fn home(&self) -> Option<&Home<K>> {
        self.journal()?.as_any().downcast_ref()
    }

    /// Backs up the state of this moment into the store's directory, and removes what that makes
    /// needless: older segments of the log, and older backups beyond those kept. Writers go on. A log
    /// that had failed works again afterwards.
    ///
    /// # Errors
    /// [`BackupError`]; the previous backup is untouched, and the log goes on.
    pub fn backup(&self, options: &BackupOptions) -> Result<Summary, BackupError> {
        self.home().ok_or(BackupError::NoDirectory)?.backup(self, options)
    }

    /// Backs up the state of this moment into a directory of its own, which must not exist. Holds a
    /// snapshot until it is done.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn backup_to(
        &self,
        target: impl AsRef<Path>,
        options: &BackupOptions,
    ) -> Result<Summary, BackupError> {
        self.backup_snapshot_to(&self.snapshot(), target, options)
    }

    /// Backs up a snapshot of this store into a directory of its own, which must not exist.
    ///
    /// # Errors
    /// [`BackupError`].
    pub fn backup_snapshot_to(
        &self,
        snapshot: &Snapshot<K, V>,
        target: impl AsRef<Path>,
        options: &BackupOptions,
    ) -> Result<Summary, BackupError> {
        let target = target.as_ref();
        let bounds = self.partition_points(Writing::<K>::ranges(options));
        let writing = Writing::begin(target, options, bounds)?;
        let limit = self.statistics().memory_limit;
        let age = u64::try_from(snapshot.taken().elapsed().as_millis()).unwrap_or(u64::MAX);
        let cut = Cut {
            metadata: (options.metadata)(),
            taken_ms: unix_ms().saturating_sub(age),
            memory_limit: limit.and_then(|limit| u64::try_from(limit).ok()),
            log_segment: None,
            log_position: 0,
            records: 0,
        };
        let shards = writing.shards(snapshot, None);
        let done = shards.and_then(|shards| writing.finish::<V>(&cut, shards, Vec::new()));
        if done.is_err() {
            Writing::<K>::discard(&*options.storage, target);
        }
        done
    }

    /// A store of what a backup holds, without a directory of its own. Parallel, bottom-up. O(n).
    ///
    /// # Errors
    /// [`BackupError`]. Source: Nitro, §5.2.
    pub fn restore(backup: impl AsRef<Path>, options: OpenOptions) -> Result<Self, BackupError> {
        let read = read_store(&*options.storage, backup.as_ref(), options.store, &options.progress);
        read.map(|(store, _)| store)
    }

    /// An empty store that takes the place of this one in its directory: the log says that everything is
    /// gone, and goes on with the new store's writes. This one must not be written to any more. For a
    /// store without a directory it is [`with_options`](Self::with_options).
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn successor(&self, options: Options) -> Result<Self, Error> {
        let store = Self::with_options(options);
        if let (Some(journal), Some(home)) = (self.journal(), self.home()) {
            home.log.clear()?;
            store.attach(Arc::clone(journal));
        }
        Ok(store)
    }

    /// The state of log and backups; `None`: the store has no directory.
    pub fn durability(&self) -> Option<Durability> {
        let home = self.home()?;
        let queue = &home.log.queue;
        let status = home.status();
        Some(Durability {
            dir: home.dir.clone(),
            sync: queue.sync,
            appended: queue.appended(),
            synced: queue.synced(),
            since_backup: queue.appended().saturating_sub(status.backed_up),
            records_since_backup: {
                let records = queue.records.load(Ordering::Relaxed);
                records.saturating_sub(status.records_backed_up)
            },
            syncs: queue.syncs.load(Ordering::Relaxed),
            failure: queue.failure(),
            running: status.running.clone(),
            last: status.last.clone(),
            last_error: status.last_error.clone(),
            recovery: home.recovery.clone(),
        })
    }

    /// Refuses if the log has failed: a write would be refused too. O(1).
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn check_log(&self) -> Result<(), Error> {
        self.home().map_or(Ok(()), |home| home.log.queue.check())
    }

    /// The position behind the last record of the log; 0 without a directory.
    pub fn log_position(&self) -> u64 {
        self.home().map_or(0, |home| home.log.queue.appended())
    }

    /// Hands everything logged so far to the system: a crash of the process then loses none of it.
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn flush_log(&self) -> Result<(), Error> {
        self.home().map_or(Ok(()), |home| home.log.queue.drain().map(|_| ()))
    }

    /// Makes everything logged so far durable.
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn sync_log(&self) -> Result<(), Error> {
        let Some(home) = self.home() else { return Ok(()) };
        home.log.queue.drain()?;
        home.log.queue.sync()
    }

    /// Ready once the log is durable up to a [`log_position`](Self::log_position). Under
    /// [`Sync::Always`] that is soon; otherwise it may take as long as the next sync.
    pub fn poll_durable(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        match self.home() {
            None => Poll::Ready(Ok(())),
            Some(home) => home.log.queue.poll(position, context),
        }
    }

    /// Ends the log in order and durably; later writes are refused. Dropping the last of a store and
    /// its snapshots does the same, but cannot tell of a failure.
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn close_log(&self) -> Result<(), Error> {
        self.home().map_or(Ok(()), |home| home.log.close())
    }
}
