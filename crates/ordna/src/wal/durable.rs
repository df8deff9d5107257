//! The durable part of an opened store: log, backups and directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ordna_base::Key;
use ordna_base::sync::{Lock, notice};

use super::checkpoints::NEVER;
use super::reports::{Durability, Recovery, Summary};
use super::segments::Segments;
use super::writer::Wal;
use crate::files::error::BackupError;
use crate::files::progress::Progress;
use crate::files::storage::Storage;

/// Returns how large the log may become, in bytes, after a backup of these sizes before a
/// checkpoint is due. While the checkpoint is written, the files hold the entries twice, the log,
/// and the deltas of both backups. Half of what the backup's deltas leave of `after` is for the log
/// before the checkpoint; the other half is for the log and the deltas of the checkpoint itself. The
/// result is at least a quarter of the larger of both, so that checkpoints write at most four times
/// as much as the log.
fn log_allowance(after: u64, sizes: BackupSizes) -> u64 {
    if sizes.shards == 0 {
        // Without a backup, the files hold the log and the checkpoint only.
        return after - after / 8;
    }
    let deltas = sizes.all.saturating_sub(sizes.shards);
    let least = after.max(sizes.shards) / 4;
    (after.saturating_sub(deltas) / 2).max(least)
}

#[derive(Default)]
pub struct BackupStatus {
    pub running: Option<(Progress, Instant)>,
    pub last: Option<(Summary, u64)>,
    pub last_error: Option<Arc<str>>,
    /// Position of the log at the snapshot point of the last backup.
    pub backed_up: u64,
    /// Number of records appended up to that position since the opening.
    pub records_backed_up: u64,
    /// Whether the newest backup has metadata, which a checkpoint could not compute.
    pub has_metadata: bool,
    /// Number of backups to keep.
    pub keep: usize,
    /// Whether a caller has set `keep` since the opening; an opening cannot tell backups from
    /// checkpoints.
    pub is_keep_known: bool,
    /// Number of the newest backup, if it is a checkpoint that was taken since the opening.
    pub checkpoint: Option<u64>,
    /// Value of `Queue::logged` at the snapshot point of the newest backup.
    pub logged: u64,
}

/// Sizes of a backup's files, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BackupSizes {
    pub shards: u64,
    pub all: u64,
}

/// The log, the backups and the locked directory of an opened store.
pub(crate) struct Durable<K: Key + ?Sized> {
    /// Declared before the lock, so that the log is closed before the directory is released.
    pub wal: Wal<K>,
    pub dir: PathBuf,
    pub storage: Arc<dyn Storage>,
    pub segments: Arc<Segments>,
    /// Whether a backup is in progress.
    pub busy: AtomicBool,
    pub status: Lock<BackupStatus>,
    pub recovery: Recovery,
    /// Value of `OpenOptions::checkpoint_after`.
    pub checkpoint_after: u64,
    pub _lock: Box<dyn Send + Sync>,
}

impl<K: Key + ?Sized> Durable<K> {
    /// Reports a failed checkpoint, unless it was cancelled for something else.
    pub fn note_failed_checkpoint(&self, error: &BackupError) {
        if !matches!(error, BackupError::Cancelled | BackupError::Busy | BackupError::Replaced) {
            self.status.lock().last_error = Some(error.to_string().into());
        }
    }

    /// Decides when the next checkpoint is due, after a backup of these sizes.
    pub fn schedule_checkpoint(&self, sizes: BackupSizes) {
        let queue = &self.wal.queue;
        let (begins, has_metadata) = {
            let status = self.status.lock();
            (status.logged, status.has_metadata)
        };
        let due_at = match self.checkpoint_after {
            NEVER => NEVER,
            _ if notice!("checkpoints.metadata.is_kept", has_metadata) => NEVER,
            after => begins.saturating_add(log_allowance(after, sizes)),
        };
        queue.checkpoints.set_due_at(due_at, queue.logged.load(Ordering::Relaxed));
    }

    /// Reports the state of the log and the backups.
    pub fn report(&self) -> Durability {
        let queue = &self.wal.queue;
        let status = self.status.lock();
        Durability {
            dir: self.dir.clone(),
            sync: queue.policy(),
            survives_kill: queue.has_tail(),
            appended: queue.appended(),
            synced: queue.synced(),
            since_backup: queue.appended().saturating_sub(status.backed_up),
            records_since_backup: {
                let records = queue.records.load(Ordering::Relaxed);
                records.saturating_sub(status.records_backed_up)
            },
            syncs: queue.syncs.load(Ordering::Relaxed),
            sync_times: queue.sync_times.counts(),
            failures: queue.failures.load(Ordering::Relaxed),
            failure: queue.failure(),
            running: status.running.clone(),
            last: status.last.clone(),
            last_error: status.last_error.clone(),
            recovery: self.recovery.clone(),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// An eighth of the checkpoint is logged while it is written, and its deltas are no larger than
    /// those of the backup before it.
    #[test]
    fn a_checkpoint_in_progress_is_within_the_bound() {
        const AFTER: u64 = 64 << 20;
        for shards in (0..=2 * AFTER).step_by(1 << 20) {
            for deltas in [0, AFTER / 16, AFTER / 8] {
                let sizes = BackupSizes { shards, all: shards + deltas };
                let log = log_allowance(AFTER, sizes) + shards / 8;
                let entries = if shards == 0 { log } else { shards };
                let files = sizes.all + log + entries + deltas;
                assert!(files <= 2 * entries + AFTER, "{sizes:?}: {files}");
            }
        }
    }

    #[test]
    fn checkpoints_write_at_most_four_times_the_log() {
        for after in [0, 1, 64 << 20] {
            for shards in [1, 1 << 20, 1 << 30, 1 << 40] {
                for deltas in [0, shards, 1 << 41] {
                    let sizes = BackupSizes { shards, all: shards + deltas };
                    assert!(log_allowance(after, sizes) >= shards / 4, "{after}, {sizes:?}");
                }
            }
        }
    }
}
