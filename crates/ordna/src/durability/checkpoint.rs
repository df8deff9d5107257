//! Checkpoints: backups that an opened store takes by itself, so that its log does not grow without
//! bound.
//!
//! # Bounds
//! Let *d* be the size of the entries in the newest backup, and *c* the number of bytes in
//! [`OpenOptions::checkpoint_after`](super::OpenOptions::checkpoint_after). While a checkpoint is
//! written, the backup and the log before it still exist, so the files hold 2 *d*, the log, and the
//! deltas of both backups. Let *r* be *c* minus the size of the backup's deltas. A checkpoint is
//! due when the log reaches *r* / 2. Its workers rest only while the log grows by less than an
//! eighth of what they have written. If the checkpoint keeps pace with the writers, all files
//! together stay below 2 *d* + *c*.
//!
//! There are two exceptions. A checkpoint is not due before the log has reached *d* / 4, so that
//! checkpoints write at most four times as much as the log. From *d* = 2 *c* on, the files
//! therefore exceed the bound. And writers never wait for a checkpoint: if they are faster than the
//! disk, the log and the deltas grow until the checkpoint is complete.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use ordna_base::sync::{check, handed_on};
use ordna_base::{Key, Value};

use super::backup::write::BackupOptions;
use crate::Store;
use crate::files::error::BackupError;
use crate::files::progress::Progress;
use crate::store::Current;
use crate::wal::checkpoints::{CheckpointThread, NEVER};
use crate::wal::durable::Durable;

/// Disk space in bytes that a checkpoint leaves free: several times what can wait for the disk.
const LEFT_FREE: u64 = 32 << 20;

/// Starts the thread that takes checkpoints. Returns `None` if the store takes none.
pub(super) fn start<K: Key + ?Sized, V: Value + ?Sized>(
    durable: &Arc<Durable<K>>,
    current: &Arc<Current<K, V>>,
) -> Result<Option<Arc<CheckpointThread>>, BackupError> {
    if durable.checkpoint_after == NEVER {
        return Ok(None);
    }
    let checkpoints = Arc::clone(&durable.wal.queue.checkpoints);
    let (log, current) = (Arc::clone(durable), Arc::clone(current));
    let run = move || {
        let checkpoints = &log.wal.queue.checkpoints;
        checkpoints.run(|progress| {
            let store = current.store(&log);
            // Without a store, no checkpoint is needed. `false` makes the thread wait before it
            // tries again.
            store.is_some_and(|store| {
                let taken = || take(&store, &log, progress).is_ok();
                catch_unwind(AssertUnwindSafe(taken)).unwrap_or_else(|_| {
                    let what = "a checkpoint panicked, in the store's clock most likely";
                    log.status.lock().last_error = Some(what.into());
                    false
                })
            })
        });
        checkpoints.last(|progress| {
            let store = current.store(&log).filter(|store| is_worth_it_at_the_end(store, &log));
            if let Some(store) = store {
                // An error is ignored, because the log holds everything.
                let _ = log.backup(&store, &BackupOptions::new().progress(&progress).automatic());
            }
        });
    };
    let thread = thread::Builder::new().name("ordna checkpoint".to_owned()).spawn(handed_on(run));
    let thread = thread.map_err(BackupError::io(&durable.dir, "start the checkpoint thread in"))?;
    Ok(Some(Arc::new(CheckpointThread::new(checkpoints, thread))))
}

/// Takes a checkpoint that is due.
fn take<K: Key + ?Sized, V: Value + ?Sized>(
    store: &Store<K, V>,
    durable: &Durable<K>,
    progress: Progress,
) -> Result<(), BackupError> {
    // After a failed sync only the caller knows whether a backup should make the log work again.
    if durable.wal.queue.failure().is_some() {
        return Err(BackupError::Cancelled);
    }
    let workers = thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
    let options = BackupOptions::new().workers(workers).background(true).progress(&progress);
    let checked = check_space(store, durable);
    let done = checked.and_then(|()| durable.backup(store, &options.automatic()));
    match done {
        Ok(_) => Ok(()),
        Err(error) => {
            durable.note_failed_checkpoint(&error);
            Err(error)
        }
    }
}

/// Returns an error if a checkpoint would fill the disk and so prevent writes of the log.
fn check_space<K: Key + ?Sized, V: Value + ?Sized>(
    store: &Store<K, V>,
    durable: &Durable<K>,
) -> Result<(), BackupError> {
    // If the free space is unknown, the checkpoint is tried.
    let Ok(Some(free)) = durable.storage.free_space(&durable.dir) else { return Ok(()) };
    let entries = store.statistics().bytes as u64;
    if check!("checkpoints.space.is_left", free >= entries.saturating_add(LEFT_FREE)) {
        return Ok(());
    }
    Err(BackupError::io(&durable.dir, "take a checkpoint in")(ErrorKind::StorageFull.into()))
}

/// Returns whether a store should take a last checkpoint before it ends, so that the next opening
/// is fast. This is so if the log is long, and the entries are so few that the checkpoint takes
/// less than a second on a disk that writes 300 MB per second.
fn is_worth_it_at_the_end<K: Key + ?Sized, V: Value + ?Sized>(
    store: &Store<K, V>,
    durable: &Durable<K>,
) -> bool {
    let queue = &durable.wal.queue;
    let (begins, has_metadata) = {
        let status = durable.status.lock();
        (status.logged, status.has_metadata)
    };
    let log = queue.logged_after_drain().saturating_sub(begins);
    let entries = store.statistics().bytes as u64;
    let after = durable.checkpoint_after;
    let is_long = log >= (after / 4).max(entries / 8);
    is_long
        && !has_metadata
        && entries <= after.saturating_mul(4)
        && queue.check().is_ok()
        && check_space(store, durable).is_ok()
}
