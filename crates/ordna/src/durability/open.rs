//! [`Store::open`]: a store in memory that is still there after a crash.
//!
//! # Contract
//! The directory holds at most one newest backup `backup-N`, and the segments of the log from N on.
//! The state is the backup's, changed by the log's records in their order. Each opening ends the
//! log where it is whole, and goes on in a new segment. A lock keeps other stores out.
//!
//! # Invariants
//! 1. A segment is removed only once a backup that holds its records is in place, durably.
//! 2. The segment that a backup names exists before the backup is in place.
//! 3. Segments come into being in the order of their numbers, without a gap: `Segments::next` is
//!    held from the choice of a number until the log goes on in that segment, or the file is
//!    removed again.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use ordna_base::sync::fault;

use super::backup::delta::Delta;
use super::backup::restore::read_store;
use super::backup::write::{BackupOptions, Cut, Mode, Summary, Writing, unix_ms};
use super::error::BackupError;
use super::files::blocks::{BlockWriter, Compression, FileHeader, FileKind};
use super::files::codec::Record;
use super::files::directory::{Listing, backup_path, lock as lock_directory, segment_path};
use super::files::storage::{Disk, Storage};
use super::progress::Progress;
use super::wal::Wal;
use super::wal::apply::{apply_with, key_of};
use super::wal::queue::{Queue, Successors, SyncPolicy};
use super::wal::replay::{LogRead, Reading};
use crate::store::journal::{Entries, Journal, Run, Scope};
use crate::{Error, Options, Snapshot, Store};
use ordna_base::{Key, Value};

/// How a store is opened in a directory.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    store: Options,
    sync: SyncPolicy,
    waits: bool,
    repair: bool,
    segment_bytes: u64,
    progress: Progress,
    logged: Option<LoggedKeys>,
    storage: Arc<dyn Storage>,
}

type TakeKey = dyn Fn(Option<&[u8]>) + Send + Sync;

/// The callback that takes the keys of repeated records.
#[derive(Clone)]
struct LoggedKeys(Arc<TakeKey>);

impl std::fmt::Debug for LoggedKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LoggedKeys")
    }
}

/// Bytes at which the log goes on in a new segment: few files, and removal frees space bit by bit.
const SEGMENT_BYTES: u64 = 256 << 20;

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            store: Options::new(),
            sync: SyncPolicy::default(),
            waits: true,
            repair: false,
            segment_bytes: SEGMENT_BYTES,
            progress: Progress::default(),
            logged: None,
            storage: Arc::new(Disk),
        }
    }
}

impl OpenOptions {
    /// Leaves records where they are, see [`Options::records_stay`].
    pub(crate) fn records_stay(self) -> Self {
        Self { store: self.store.records_stay(), ..self }
    }

    /// A log that is synced every second, and [`Options::new`].
    pub fn new() -> Self {
        Self::default()
    }

    /// How the store works in memory.
    pub fn store(self, store: Options) -> Self {
        Self { store, ..self }
    }

    /// When the log is made durable.
    pub fn sync(self, sync: SyncPolicy) -> Self {
        Self { sync, ..self }
    }

    /// Under [`SyncPolicy::Always`], has writes return before they are durable. The caller acknowledges
    /// them once [`Store::poll_durable`] is ready for [`Store::log_position`] as of after the
    /// write.
    pub fn acknowledge_later(self) -> Self {
        Self { waits: false, ..self }
    }

    /// Cuts the log at a damaged place in its middle too, instead of refusing to open. What follows
    /// the place is lost.
    pub fn repair(self, repair: bool) -> Self {
        Self { repair, ..self }
    }

    /// Has the log go on in a new segment once a segment has so many bytes: 256 MiB unless told.
    pub fn segment_bytes(self, bytes: u64) -> Self {
        Self { segment_bytes: bytes, ..self }
    }

    /// Where progress is counted.
    pub fn progress(self, progress: &Progress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Has `take` called with each key that the log behind the backup changes, in its stored form;
    /// with `None` for a record that may change any key.
    pub fn on_logged_key(self, take: impl Fn(Option<&[u8]>) + Send + Sync + 'static) -> Self {
        Self { logged: Some(LoggedKeys(Arc::new(take))), ..self }
    }

    /// Where files are kept, in place of the disk.
    pub fn storage(self, storage: Arc<dyn Storage>) -> Self {
        Self { storage, ..self }
    }
}

/// The report of an opening.
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
    pub sync: SyncPolicy,
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
    /// The report of the opening.
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

/// The parts of an opened store besides its memory.
struct Opened<K: Key + ?Sized> {
    // Before the lock: the log is closed first.
    log: Wal<K>,
    dir: PathBuf,
    storage: Arc<dyn Storage>,
    segments: Arc<Segments>,
    busy: AtomicBool,
    status: Mutex<Status>,
    recovery: Recovery,
    _lock: Box<dyn Send + Sync>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Journal<K, V> for Opened<K> {
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

/// Creates the segments of a store's log.
struct Segments {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    /// The header of a segment of this number.
    header: fn(u64) -> FileHeader,
    /// The number of the next segment.
    next: Mutex<u64>,
}

impl Segments {
    /// Creates a segment of the log, durably, or leaves nothing.
    fn create(&self, number: u64) -> Result<BlockWriter, BackupError> {
        let path = segment_path(&self.dir, number);
        let made = || {
            let header = (self.header)(number);
            let segment = BlockWriter::create(&*self.storage, &path, &header, Compression::None)?;
            if !fault!("faults.segment.syncs_its_header") {
                segment.sync()?;
            }
            if fault!("faults.segment.syncs_its_name") {
                return Ok(segment);
            }
            self.storage.sync_dir(&self.dir).map_err(BackupError::io(&self.dir, "sync"))?;
            Ok(segment)
        };
        made().inspect_err(|_| {
            // A file that stays is in the way of the next attempt, which then reports it.
            let _ = self.storage.remove(&path);
        })
    }
}

impl Successors for Segments {
    fn next(&self, take: &mut dyn FnMut(BlockWriter)) {
        // A backup that is about to begin a segment keeps the number. It may wait for writers, and
        // they for the log's thread: so this thread does not wait.
        let Ok(mut next) = self.next.try_lock() else { return };
        // Without a new segment the log goes on in the present one.
        if let Ok(segment) = self.create(*next) {
            *next += 1;
            take(segment);
        }
    }
}

impl<K: Key + ?Sized> Opened<K> {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn backup<V: Value + ?Sized>(
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
        let number = self.segments.next.lock().unwrap_or_else(PoisonError::into_inner);
        let target = backup_path(&self.dir, *number);
        let done = self.backup_before(number, store, options);
        if done.is_err() {
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

    /// A backup of everything before the segment `next`.
    fn backup_before<V: Value + ?Sized>(
        &self,
        mut next: MutexGuard<'_, u64>,
        store: &Store<K, V>,
        options: &BackupOptions,
    ) -> Result<(Summary, Cut), BackupError> {
        let counted = Arc::clone(&self.log.queue);
        let writes = move || counted.records.load(Ordering::Relaxed);
        let options = options.clone().storage(Arc::clone(&self.storage));
        let options = &BackupOptions { writes: Some(Arc::new(writes)), ..options };
        let number = *next;
        let target = backup_path(&self.dir, number);
        let bounds = store.partition_points(Writing::<K>::ranges(options));
        let writing = Writing::begin(&target, options, bounds)?;
        // A log that has failed refuses writes: the state stands still, and is read as it is.
        let works = self.log.queue.failure().is_none();
        let delta = if works && options.mode == Mode::Live {
            let file = writing.file::<V>(FileKind::Delta, 0)?;
            Some(Arc::new(Delta::new(file, writing.bounds.clone())))
        } else {
            None
        };
        let mut segment = if works { Some(self.segments.create(number)?) } else { None };
        *next += u64::from(works);
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
        // A log that has failed begins no segments: the number stays this backup's.
        let next = (!works).then_some(next);
        let entries: &dyn Entries<K, V> = match &snapshot {
            Some(snapshot) => snapshot,
            None => store,
        };
        let shards = writing.shards(entries, delta.as_deref());
        if let Some(delta) = &delta {
            self.log.stop_writers(|set| {
                if fault!("live.delta.hands_over") {
                    return;
                }
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
        if let Some(mut next) = next {
            // The segment that the manifest names. None is there: a failed log takes no new one.
            segment = Some(self.segments.create(number)?);
            *next += 1;
        }
        if fault!("faults.backup.is_there_before_segments_go") {
            self.remove_before(number, options.keep);
        }
        let summary = writing.finish::<V>(&cut, shards, deltas)?;
        // Writes were refused since before the cut if the segment was not taken over then: the
        // backup holds all that memory holds. If the log failed later, the next backup heals it.
        if let Some(segment) = segment {
            self.log.stop_writers(|_| queue.restart(segment));
        }
        self.remove_before(number, options.keep);
        Ok((summary, cut))
    }

    /// Removes segments that a backup has made needless, and backups beyond those kept.
    fn remove_before(&self, number: u64, keep: usize) {
        // The next backup removes files that cannot be removed now.
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

/// Bytes of the segments to be read. A segment that cannot be opened counts as none: reading it
/// tells why.
fn log_bytes(storage: &dyn Storage, segments: &BTreeMap<u64, PathBuf>) -> u64 {
    segments.values().filter_map(|path| storage.open(path).ok()).map(|(_, len)| len).sum()
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Opens the store of a directory, which is created if it is not there: reads the newest backup
    /// and the log behind it, and has all writes logged from now on. O(n).
    ///
    /// Entries that had expired when the process ended are still there for the records behind them
    /// in the log, and expire when all is read.
    ///
    /// # Errors
    /// [`BackupError`]: what is in the directory stays as it was. Source: Nitro, §5.
    ///
    /// ```
    /// use ordna::durability::OpenOptions;
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
        // Time stands still until all is read: what has expired since it was written must be there
        // for the records behind it, which may lift its deadline.
        let runs = Arc::new(AtomicBool::new(false));
        let released = Arc::clone(&runs);
        let store_options = options.store.clone().wrap_clock(|clock| {
            Arc::new(move || if released.load(Ordering::Acquire) { clock() } else { 0 })
        });
        let mut recovery = Recovery::default();
        let first = listing.backups.last_key_value().map_or(1, |(number, _)| *number);
        let segments = listing.segments.range(first..);
        let segments = segments.map(|(number, path)| (*number, path.clone())).collect();
        let (mut position, mut named_by) = (0, None);
        options.progress.expect(0, log_bytes(storage, &segments));
        let store = match listing.backups.last_key_value() {
            None => Self::with_options(store_options),
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
                position = manifest.log_position;
                named_by = manifest.log_segment.map(|_| path.as_path());
                store
            }
        };
        let reading = Reading {
            storage,
            dir,
            segments: &segments,
            first,
            position,
            named_by,
            repair: options.repair,
            mend: true,
            progress: &options.progress,
        };
        {
            // The memory is as it was before.
            let _lifted = store.lift_limit();
            let workers = thread::available_parallelism().map_or(1, usize::from);
            let (read, repeated) = apply_with(&store, workers, |apply| {
                reading.run::<K, V>(&mut |payload: Vec<u8>, records: Vec<Record>| {
                    if let Some(LoggedKeys(take)) = &options.logged {
                        let key = |record: &Record| payload.get(key_of(record)?);
                        records.iter().for_each(|record| take(key(record)));
                    }
                    apply(payload, records)
                })
            });
            recovery.log = read?;
            repeated?;
        }
        runs.store(true, Ordering::Release);
        if store.statistics().expiring.0 > 0 {
            store.collect_garbage();
        }
        let (log, segments) = Self::log_behind(dir, &options, first, recovery.log.position)?;
        let opened = Opened {
            log,
            dir: dir.to_owned(),
            storage: Arc::clone(&options.storage),
            segments,
            busy: AtomicBool::new(false),
            status: Mutex::default(),
            recovery: Recovery { took: began.elapsed(), ..recovery },
            _lock: held,
        };
        opened.status().backed_up = position;
        store.attach(Arc::new(opened));
        Ok(store)
    }

    /// A log that goes on in a new segment.
    fn log_behind(
        dir: &Path,
        options: &OpenOptions,
        first: u64,
        position: u64,
    ) -> Result<(Wal<K>, Arc<Segments>), BackupError> {
        let listing = Listing::read(&*options.storage, dir)?;
        let number =
            listing.segments.last_key_value().map_or(first, |(last, _)| first.max(last + 1));
        let segments = Arc::new(Segments {
            storage: Arc::clone(&options.storage),
            dir: dir.to_owned(),
            header: |number| FileHeader::new::<K, V>(FileKind::Log, number),
            next: Mutex::new(number + 1),
        });
        let successors = Arc::clone(&segments) as Arc<dyn Successors>;
        let queue = Queue::new(segments.create(number)?, position, options.sync)
            .segments(options.segment_bytes, successors);
        let log = Wal::start(queue, options.waits);
        log.map(|log| (log, segments)).map_err(BackupError::io(dir, "start the log's thread in"))
    }

    fn opened(&self) -> Option<&Opened<K>> {
        self.journal()?.as_any().downcast_ref()
    }

    /// Backs up the state of this moment into the store's directory, and removes what that makes
    /// needless: older segments of the log, and older backups beyond those kept. Writers go on. A
    /// log that had failed works again afterwards.
    ///
    /// # Errors
    /// [`BackupError`]; the previous backup is untouched, and the log goes on.
    pub fn backup(&self, options: &BackupOptions) -> Result<Summary, BackupError> {
        self.opened().ok_or(BackupError::NoDirectory)?.backup(self, options)
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

    /// An empty store that takes the place of this one in its directory: the log says that
    /// everything is gone, and goes on with the new store's writes. This one must not be written to
    /// any more. For a store without a directory it is [`with_options`](Self::with_options).
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn successor(&self, options: Options) -> Result<Self, Error> {
        let store = Self::with_options(options);
        if let (Some(journal), Some(opened)) = (self.journal(), self.opened()) {
            opened.log.clear()?;
            store.attach(Arc::clone(journal));
        }
        Ok(store)
    }

    /// The state of log and backups; `None`: the store has no directory.
    pub fn durability(&self) -> Option<Durability> {
        let opened = self.opened()?;
        let queue = &opened.log.queue;
        let status = opened.status();
        Some(Durability {
            dir: opened.dir.clone(),
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
            recovery: opened.recovery.clone(),
        })
    }

    /// Refuses if the log has failed: a write would be refused too. O(1).
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn check_log(&self) -> Result<(), Error> {
        self.opened().map_or(Ok(()), |opened| opened.log.queue.check())
    }

    /// The position behind the last record of the log; 0 without a directory.
    pub fn log_position(&self) -> u64 {
        self.opened().map_or(0, |opened| opened.log.queue.appended())
    }

    /// Hands everything logged so far to the system: a crash of the process then loses none of it.
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn flush_log(&self) -> Result<(), Error> {
        self.opened().map_or(Ok(()), |opened| opened.log.queue.drain().map(|_| ()))
    }

    /// Ready once everything logged up to a [`log_position`](Self::log_position) is with the
    /// system: as [`flush_log`](Self::flush_log), for a task, which does not wait for another
    /// thread's write.
    pub fn poll_flushed(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        match self.opened() {
            None => Poll::Ready(Ok(())),
            Some(opened) => opened.log.queue.poll_written(position, context),
        }
    }

    /// Makes everything logged so far durable.
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn sync_log(&self) -> Result<(), Error> {
        let Some(opened) = self.opened() else { return Ok(()) };
        opened.log.queue.drain()?;
        opened.log.queue.sync()
    }

    /// Ready once the log is durable up to a [`log_position`](Self::log_position). Under
    /// [`SyncPolicy::Always`] that is soon; otherwise it may take as long as the next sync.
    pub fn poll_durable(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        match self.opened() {
            None => Poll::Ready(Ok(())),
            Some(opened) => opened.log.queue.poll(position, context),
        }
    }

    /// Ends the log in order and durably; later writes are refused. Dropping the store does the
    /// same and releases the directory, but cannot tell of a failure.
    ///
    /// # Errors
    /// [`Error::LogFailed`].
    pub fn close_log(&self) -> Result<(), Error> {
        self.opened().map_or(Ok(()), |opened| opened.log.close())
    }
}
