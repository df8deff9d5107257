//! Backup and restore of a store that has owners.

use std::path::Path;
use std::sync::Arc;

use super::backup::write::BackupOptions;
use super::open_options::OpenOptions;
use crate::files::error::BackupError;
use crate::store::{EntryHash, OwnedStore, Owner};
use crate::wal::reports::Summary;
use crate::{Snapshot, Store};

impl OwnedStore {
    /// Backs up a snapshot of this store into a new directory, which must not exist.
    ///
    /// # Errors
    /// Returns a [`BackupError`] if the backup fails.
    pub fn backup_snapshot_to(
        &self,
        snapshot: &Snapshot<[u8], u64>,
        target: impl AsRef<Path>,
        options: &BackupOptions,
    ) -> Result<Summary, BackupError> {
        self.store().backup_snapshot_to(snapshot, target, options)
    }

    /// Creates a store from a backup with several threads. Each entry belongs to the owner
    /// `owner_of(key)` modulo `owners`. O(n).
    ///
    /// # Errors
    /// Returns a [`BackupError`] if the restore fails, or if the backup has entries that expire.
    /// Source: Nitro, §5.2 and §9.
    pub fn restore(
        backup: impl AsRef<Path>,
        options: OpenOptions,
        owners: usize,
        owner_of: impl Fn(&[u8], u64) -> usize + Sync,
        hash: &EntryHash,
    ) -> Result<(Arc<Self>, Vec<Owner>), BackupError> {
        let backup = backup.as_ref();
        let store: Store<[u8], u64> = Store::restore(backup, options.records_stay())?;
        // Collectors would free records to which owners have pointers.
        if store.statistics().expiring.0 > 0 {
            return Err(BackupError::OtherKind {
                path: backup.to_owned(),
                found: "entries that expire".to_owned(),
                expected: "entries of owners".to_owned(),
            });
        }
        Ok(Self::adopt(store, owners.max(1), &owner_of, hash))
    }
}
