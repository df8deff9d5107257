//! The server's own state of the data directory, in addition to that of the store.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use ordna::durability::{Progress, SyncPolicy};
use ordna::sync::Lock;

use crate::state::config::DataConfig;
use crate::statistics::event_logs::unix_millis;

/// A condition for a backup: a number of writes since the last one, and a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveRule {
    pub every: Duration,
    pub changes: u64,
}

/// The data directory: its configuration, and the state of loading and backups.
#[derive(Debug)]
pub struct DataDirectory {
    pub data: DataConfig,
    /// The sync policy as a number: `data.log` until `CONFIG SET` changes it.
    sync: AtomicU8,
    /// The conditions for a backup, each of which is sufficient.
    pub schedule: Lock<Vec<SaveRule>>,
    /// Whether the keyspace is still being loaded. Until then commands get `-LOADING`.
    loading: AtomicBool,
    /// Progress of the load.
    pub progress: Progress,
    /// Start of the server in milliseconds since 1970. Reported as the last save until there is
    /// one.
    pub started_ms: u64,
    /// Whether a backup is in progress.
    pub saving: AtomicBool,
    /// Number of backups that succeeded.
    pub saves: AtomicU64,
}

impl DataDirectory {
    pub fn new(data: DataConfig) -> Self {
        let every = data.backup_every;
        let schedule = every.map(|every| SaveRule { every, changes: 1 }).into_iter().collect();
        Self {
            sync: AtomicU8::new(data.log as u8),
            schedule: Lock::new(schedule),
            data,
            loading: AtomicBool::new(true),
            progress: Progress::default(),
            started_ms: unix_millis(),
            saving: AtomicBool::new(false),
            saves: AtomicU64::new(0),
        }
    }

    /// Returns when the log is synced. One relaxed load.
    #[inline]
    pub fn sync_policy(&self) -> SyncPolicy {
        match self.sync.load(Ordering::Relaxed) {
            always if always == SyncPolicy::Always as u8 => SyncPolicy::Always,
            never if never == SyncPolicy::Never as u8 => SyncPolicy::Never,
            _ => SyncPolicy::EverySecond,
        }
    }

    /// Changes when replies to writes are sent. The caller then changes the policy of the log.
    pub fn set_sync_policy(&self, policy: SyncPolicy) {
        self.sync.store(policy as u8, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_loading(&self) -> bool {
        // Acquire: pairs with the release in `loaded`, so that a command that reads `false` also
        // sees the keys.
        self.loading.load(Ordering::Acquire)
    }

    /// Ends the loading.
    pub fn loaded(&self) {
        self.loading.store(false, Ordering::Release);
    }
}
