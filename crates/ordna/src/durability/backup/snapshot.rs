//! Backups of a snapshot into any directory.

use std::path::Path;

use ordna_base::{Key, Value};

use super::write::{BackupOptions, SnapshotPoint, Writing, unix_ms};
use crate::files::error::BackupError;
use crate::wal::reports::Summary;
use crate::{Snapshot, Store};

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Backs up the current state into a new directory, which must not exist. Holds a snapshot
    /// until the backup is complete.
    ///
    /// # Errors
    /// Returns a [`BackupError`] if the backup fails.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x2-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// assert_eq!(towns.backup_to(&dir, &ordna::BackupOptions::new())?.entries, 1);
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup_to(
        &self,
        target: impl AsRef<Path>,
        options: &BackupOptions,
    ) -> Result<Summary, BackupError> {
        self.backup_snapshot_to(&self.snapshot(), target, options)
    }

    /// Backs up a snapshot of this store into a new directory, which must not exist.
    ///
    /// # Errors
    /// Returns a [`BackupError`] if the backup fails.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x3-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// let before = towns.snapshot();
    /// towns.put("Lund", 94_393)?;
    /// let summary = towns.backup_snapshot_to(&before, &dir, &ordna::BackupOptions::new())?;
    /// assert_eq!(summary.entries, 0);
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup_snapshot_to(
        &self,
        snapshot: &Snapshot<K, V>,
        target: impl AsRef<Path>,
        options: &BackupOptions,
    ) -> Result<Summary, BackupError> {
        let target = target.as_ref();
        let bounds = self.partition_points(Writing::<K>::ranges(options, self.statistics().bytes));
        let writing = Writing::begin(target, options, bounds)?;
        let limit = self.statistics().memory_limit;
        let age = u64::try_from(snapshot.taken().elapsed().as_millis()).unwrap_or(u64::MAX);
        let cut = SnapshotPoint {
            metadata: (options.metadata)(),
            taken_ms: unix_ms().saturating_sub(age),
            memory_limit: limit.and_then(|limit| u64::try_from(limit).ok()),
            log_segment: None,
            log_position: 0,
            records: 0,
            logged: 0,
        };
        let shards = writing.shards(snapshot, None);
        let done = shards.and_then(|shards| writing.finish::<V>(&cut, shards, Vec::new()));
        if done.is_err() {
            Writing::<K>::discard(&*options.storage, target);
        }
        done
    }
}
