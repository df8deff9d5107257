//! Backups of an opened store into its directory, while writers continue.
//!
//! # Invariants
//! 1. A segment is removed only once a backup that holds its records is durably in place.
//! 2. The segment that a backup names exists before the backup is in place.
//! 3. A segment is removed only once the sink of the log, if there is one, has acknowledged its
//!    records: a restart would have to send them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ordna_base::sync::{MutexGuard, check, fault, notice};
use ordna_base::{Key, Value};

use super::write::{BackupOptions, Mode, SnapshotPoint, Writing, unfinished, unix_ms};
use crate::entry::EntrySource;
use crate::files::directory::{Listing, Reserve, backup_path};
use crate::files::error::BackupError;
use crate::files::manifest::FileEntry;
use crate::wal::copy_before_write::CopyBeforeWrite;
use crate::wal::durable::{BackupSizes, Durable};
use crate::wal::reports::Summary;
use crate::{Snapshot, Store};

/// Time for which a backup waits until the sink of the log has acknowledged what the backup holds.
const SINK_PATIENCE: Duration = Duration::from_secs(5);
const NOT_ACKNOWLEDGED: &str = "the replication has not acknowledged its last records, which a \
                                restart would have to send; try again when it has";

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Backs up the current state into the store's directory, and removes what is no longer needed:
    /// older segments of the log, and backups in excess of the number to keep. Writers continue. If
    /// the log had failed, it works again afterwards.
    ///
    /// # Errors
    /// [`BackupError`]; the previous backup and the log are not changed. [`BackupError::Io`] if the
    /// [sink](Store::attach_log_sink) of the log does not acknowledge what the backup holds within
    /// five seconds.
    /// [`BackupError::Replaced`] if the store has a [successor](Store::successor), also one that
    /// replaced it before the backup's snapshot was taken.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x1-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
    /// towns.put("Lund", 94_393)?;
    /// let summary = towns.backup(&ordna::BackupOptions::new())?;
    /// assert!(summary.path.starts_with(&dir));
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup(&self, options: &BackupOptions) -> Result<Summary, BackupError> {
        self.check_reentry();
        let durable = self.durable().ok_or(BackupError::NoDirectory)?;
        if durable.wal.in_group() {
            // Without this check, the backup would wait for a checkpoint that waits for this
            // thread.
            return Err(BackupError::InGroup);
        }
        let _turn = durable.wal.queue.checkpoints.callers_turn();
        durable.backup(self, options)
    }
}

/// Marks a backup as in progress. The mark ends on drop, even if the caller's code panics.
struct Turn<'a, K: Key + ?Sized>(&'a Durable<K>);

impl<K: Key + ?Sized> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        if fault!("faults.panics.end_the_backup") && std::thread::panicking() {
            return;
        }
        self.0.status.lock().running = None;
        self.0.busy.store(false, Ordering::Release);
    }
}

/// Saves old states until it is dropped, even if the caller's clock panics in a worker.
struct Saving<'a, K: Key + ?Sized>(&'a Durable<K>, &'a CopyBeforeWrite<K>);

impl<K: Key + ?Sized> Drop for Saving<'_, K> {
    fn drop(&mut self) {
        self.0.wal.stop_writers(|set| {
            if fault!("live.delta.hands_over") {
                return;
            }
            self.1.terminate();
            set(None);
        });
    }
}

impl<K: Key + ?Sized> Durable<K> {
    pub(in crate::durability) fn backup<V: Value + ?Sized>(
        &self,
        store: &Store<K, V>,
        options: &BackupOptions,
    ) -> Result<Summary, BackupError> {
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(BackupError::Busy);
        }
        let _turn = Turn(self);
        self.status.lock().running = Some((options.progress.clone(), Instant::now()));
        let number = self.segments.next.lock();
        let target = backup_path(&self.dir, *number);
        if self.wal.queue.failure().is_some() {
            self.segments.free_reserve(Reserve::Backup);
        }
        let done = self.backup_before(number, store, options);
        if done.is_err() {
            Writing::<K>::discard(&*self.storage, &target);
        }
        self.segments.fill_reserve(Reserve::Backup);
        if done.is_ok() {
            // Only after a success: otherwise the attempt to reserve space would take it from the
            // log.
            self.segments.fill_reserve(Reserve::Log);
        }
        let (summary, cut, sizes) = match done {
            Ok(done) => done,
            Err(error) => {
                if !options.is_automatic {
                    self.status.lock().last_error = Some(error.to_string().into());
                }
                return Err(error);
            }
        };
        {
            let mut status = self.status.lock();
            status.last = Some((summary.clone(), unix_ms()));
            status.last_error = None;
            (status.backed_up, status.records_backed_up) = (cut.log_position, cut.records);
            (status.logged, status.has_metadata) = (cut.logged, !cut.metadata.is_empty());
            if !options.is_automatic {
                (status.keep, status.is_keep_known) = (options.keep, true);
            }
        }
        self.schedule_checkpoint(sizes);
        Ok(summary)
    }

    /// Backs up everything before the next segment.
    fn backup_before<V: Value + ?Sized>(
        &self,
        mut next: MutexGuard<'_, u64>,
        store: &Store<K, V>,
        options: &BackupOptions,
    ) -> Result<(Summary, SnapshotPoint, BackupSizes), BackupError> {
        let counted = Arc::clone(&self.wal.queue);
        let writes = move || counted.records.load(Ordering::Relaxed);
        let options = options.clone().storage(Arc::clone(&self.storage));
        let mut options = BackupOptions { writes: Some(Arc::new(writes)), ..options };
        if options.is_automatic {
            options.keep = self.status.lock().keep;
            let (queue, began) = (Arc::clone(&self.wal.queue), self.wal.queue.logged_after_drain());
            let grown = move || queue.logged.load(Ordering::Relaxed).saturating_sub(began);
            options.log_growth = Some(Arc::new(grown));
        }
        let options = &options;
        let number = *next;
        let target = backup_path(&self.dir, number);
        let bounds =
            store.partition_points(Writing::<K>::ranges(options, store.statistics().bytes));
        let writing = Writing::begin(&target, options, bounds)?;
        // A log that has failed refuses writes. The state cannot change, so it is read directly.
        let mut works = self.wal.queue.failure().is_none();
        let copies = if works && options.mode == Mode::Live {
            Some(Arc::new(CopyBeforeWrite::new(writing.deltas::<V>(), writing.bounds.clone())))
        } else {
            None
        };
        let mut segment = if works { Some(self.segments.create(number)?) } else { None };
        *next += u64::from(works);
        let mut snapshot: Option<Snapshot<K, V>> = None;
        let queue = &self.wal.queue;
        let cut = self.wal.stop_writers(|set| {
            let position = queue.appended();
            segment = segment.take().and_then(|segment| queue.rotate(segment));
            // The log of a successor begins with a record that removes everything. This store still
            // has the earlier entries, and a backup of it would bring them back.
            let owns_the_log = self.wal.belongs_to(store.number_in_wal());
            if !check!("live.backup.of_the_logs_store", owns_the_log) {
                return Err(BackupError::Replaced);
            }
            // Before old states are saved, because it may panic.
            let metadata = (options.metadata)();
            match &copies {
                Some(copies) => {
                    copies.activate();
                    set(Some(Arc::clone(copies)));
                }
                None => snapshot = Some(store.snapshot()),
            }
            let limit = store.statistics().memory_limit;
            Ok(SnapshotPoint {
                metadata,
                taken_ms: unix_ms(),
                memory_limit: limit.and_then(|limit| u64::try_from(limit).ok()),
                log_segment: Some(number),
                log_position: position,
                records: queue.records.load(Ordering::Relaxed),
                logged: queue.logged_after_drain(),
            })
        });
        // If the log has failed in the meantime, the segment is kept, because its mark says that it
        // exists.
        works &= segment.is_none();
        let cut = cut?;
        // While this lock is held, a failed log neither begins a segment nor retries. So the number
        // stays reserved for this backup until it is in place.
        let mut next = (!works).then_some(next);
        let entries: &dyn EntrySource<K, V> = match &snapshot {
            Some(snapshot) => snapshot,
            None => store,
        };
        let saving = copies.as_ref().map(|copies| Saving(self, copies));
        let shards = writing.shards(entries, copies.as_deref());
        drop(saving);
        drop(snapshot);
        let shards = shards?;
        let deltas = match &copies {
            Some(copies) => copies.finish()?,
            None => Vec::new(),
        };
        if let Some(next) = &mut next
            && segment.is_none()
        {
            // Creates the segment that the manifest names, because a failed log has not done so.
            segment = Some(self.segments.create(number)?);
            **next += 1;
        }
        if fault!("faults.backup.holds_up_retries") {
            next = None;
        }
        if fault!("faults.backup.is_there_before_segments_go") {
            self.remove_before(number, options);
        }
        options.progress.check()?;
        // The log before the cut is removed: the copy must not need it any more.
        let position = cut.log_position;
        if !notice!("sinks.backup.waits", queue.wait_acknowledged(position, SINK_PATIENCE)) {
            let source = io::Error::new(io::ErrorKind::TimedOut, NOT_ACKNOWLEDGED);
            return Err(BackupError::Io { path: target, doing: "replace the log", source });
        }
        let bytes = |files: &[FileEntry]| files.iter().map(|file| file.bytes).sum::<u64>();
        let of_shards = bytes(&shards);
        let sizes = BackupSizes { shards: of_shards, all: of_shards + bytes(&deltas) };
        let done = writing.finish::<V>(&cut, shards, deltas);
        if done.is_err() && next.is_some() && self.may_exist(&target) {
            // The backup may exist, and an opening would not read records that begin before it.
            queue.give_up_retries();
        }
        let summary = done?;
        // If there is a segment, writes have been refused since before the snapshot point, so the
        // backup holds everything in memory. If the log failed later, the next backup repairs it.
        if let Some(segment) = segment {
            self.wal.stop_writers(|_| queue.restart(segment));
        }
        drop(next);
        self.remove_before(number, options);
        self.status.lock().checkpoint = options.is_automatic.then_some(number);
        Ok((summary, cut, sizes))
    }

    /// Returns whether the backup may be in place. If that cannot be determined, returns `true`.
    fn may_exist(&self, target: &Path) -> bool {
        let listing = Listing::read(&*self.storage, &self.dir);
        let may_exist = listing.map_or(true, |it| it.backups.values().any(|path| path == target));
        notice!("faults.backup.ends_retries", may_exist)
    }

    /// Removes the segments that no kept backup needs, the former checkpoint, and backups in excess
    /// of the number to keep. A checkpoint replaces the caller's backup, unless the caller keeps
    /// several; then checkpoints are not counted among them.
    fn remove_before(&self, number: u64, options: &BackupOptions) {
        // Files that cannot be removed now are removed by the next backup.
        let Ok(listing) = Listing::read(&*self.storage, &self.dir) else { return };
        let (former, is_keep_known) = {
            let status = self.status.lock();
            (status.checkpoint.filter(|former| *former != number), status.is_keep_known)
        };
        let (former, others): (Vec<_>, Vec<_>) =
            listing.backups.into_iter().rev().partition(|(at, _)| Some(*at) == former);
        let is_beside = options.is_automatic && options.keep > 1 && is_keep_known;
        let old = others.into_iter().skip(options.keep + usize::from(is_beside)).chain(former);
        // Oldest first: if the newest were removed first, a crash would leave a gap.
        for path in listing.segments.range(..number).map(|(_, path)| path) {
            let _ = self.storage.remove(path);
        }
        for path in &listing.unfinished {
            let _ = self.storage.remove(path);
        }
        for (_, path) in old {
            let _ = self.remove_backup(&path);
        }
        let _ = self.storage.sync_dir(&self.dir);
    }

    /// Removes a backup. After a crash, it is either complete or recognized as unfinished.
    fn remove_backup(&self, path: &Path) -> std::io::Result<()> {
        let storage = &*self.storage;
        if fault!("faults.backup.is_renamed_first") {
            return storage.remove(path);
        }
        let partial = unfinished(path);
        storage.rename(path, &partial)?;
        storage.sync_dir(&self.dir)?;
        storage.remove(&partial)
    }
}
