//! State of the data directory that the server keeps, in addition to the store's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ordna::durability::Progress;

use crate::state::config::DataConfig;
use crate::statistics::event_logs::unix_millis;

/// The data directory: its configuration, and the state of loading and backups.
#[derive(Debug)]
pub struct DataDirectory {
    pub data: DataConfig,
    /// Whether the keyspace is still being read. Commands then answer `-LOADING`.
    loading: AtomicBool,
    /// Progress of the load.
    pub progress: Progress,
    /// Start of the server, in milliseconds since 1970. Reported as the last save until there is one.
    pub started_ms: u64,
    /// Whether a backup is in progress.
    pub saving: AtomicBool,
    /// Number of backups that succeeded.
    pub saves: AtomicU64,
}

impl DataDirectory {
    pub fn new(data: DataConfig) -> Self {
        Self {
            data,
            loading: AtomicBool::new(true),
            progress: Progress::default(),
            started_ms: unix_millis(),
            saving: AtomicBool::new(false),
            saves: AtomicU64::new(0),
        }
    }

    #[inline]
    pub fn is_loading(&self) -> bool {
        // Pairs with the release in `loaded`: a command that reads `false` also sees the keys.
        self.loading.load(Ordering::Acquire)
    }

    /// Ends the loading.
    pub fn loaded(&self) {
        self.loading.store(false, Ordering::Release);
    }
}
