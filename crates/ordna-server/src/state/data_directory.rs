//! The server's own state of its data directory, beside the store's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ordna::durability::Progress;

use crate::state::config::DataConfig;
use crate::statistics::event_logs::unix_millis;

/// The state of loading and backups.
#[derive(Debug)]
pub struct DataDirectory {
    pub data: DataConfig,
    /// The keyspace is not read yet: commands answer `-LOADING`.
    loading: AtomicBool,
    pub progress: Progress,
    /// When the server started, in milliseconds since 1970: Redis' last save until there is one.
    pub started_ms: u64,
    /// A backup was asked for and has not ended.
    pub saving: AtomicBool,
    /// Backups that succeeded.
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
        // Acquire: pairs with the release in `loaded`, so a command that finds it false finds the
        // keys.
        self.loading.load(Ordering::Acquire)
    }

    pub fn loaded(&self) {
        self.loading.store(false, Ordering::Release);
    }
}
