//! What an opened store has in addition to its memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ordna_base::Key;
use ordna_base::sync::Lock;

use super::reports::{Durability, Recovery, Summary};
use super::segments::Segments;
use super::writer::Wal;
use crate::files::progress::Progress;
use crate::files::storage::Storage;

#[derive(Default)]
pub struct BackupStatus {
    pub running: Option<(Progress, Instant)>,
    pub last: Option<(Summary, u64)>,
    pub last_error: Option<Arc<str>>,
    /// Position of the log at the snapshot point of the last backup.
    pub backed_up: u64,
    /// Number of records appended up to there, since the opening.
    pub records_backed_up: u64,
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
    pub _lock: Box<dyn Send + Sync>,
}

impl<K: Key + ?Sized> Durable<K> {
    /// Reports the state of the log and the backups.
    pub fn report(&self) -> Durability {
        let queue = &self.wal.queue;
        let status = self.status.lock();
        Durability {
            dir: self.dir.clone(),
            sync: queue.policy(),
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
