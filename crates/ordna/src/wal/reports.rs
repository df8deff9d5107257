//! Reports of openings, replays and backups.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::sync_policy::SyncPolicy;
use super::sync_times::SyncCounts;
use crate::files::progress::Progress;

/// Report of a backup.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("ordna-doc-summary-{}", std::process::id()));
/// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
/// let summary = towns.backup_to(&dir, &ordna::BackupOptions::new())?;
/// assert_eq!((summary.path.as_path(), summary.entries), (dir.as_path(), 0));
/// # drop(towns);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Directory of the backup.
    pub path: PathBuf,
    /// Number of entries in the shards.
    pub entries: u64,
    /// Number of states in the copy-before-write set: keys that were overwritten before a worker
    /// read them.
    pub spilled: u64,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// Duration from the snapshot point to the rename.
    pub took: Duration,
}

/// The results of [`Store::open`](crate::Store::open).
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("ordna-doc-x15-{}", std::process::id()));
/// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
/// assert_eq!(towns.durability().unwrap().recovery.entries, 0);
/// # drop(towns);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Backup that was read.
    pub backup: Option<PathBuf>,
    /// Number of entries in its shards.
    pub entries: u64,
    /// Time of its snapshot, in milliseconds since 1970.
    pub taken_ms: u64,
    /// Metadata of the backup.
    pub metadata: Vec<u8>,
    /// The part of the log that was replayed.
    pub log: WalReplay,
    /// Duration of the opening.
    pub took: Duration,
}

/// State of the log and the backups of an opened store.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("ordna-doc-x16-{}", std::process::id()));
/// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
/// towns.put("Lund", 94_393)?;
/// let state = towns.durability().unwrap();
/// assert!(state.appended >= state.synced && state.failure.is_none());
/// # drop(towns);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Durability {
    /// Directory of the store.
    pub dir: PathBuf,
    /// Policy by which the log is made durable.
    pub sync: SyncPolicy,
    /// Whether writes outlive the process as soon as they have returned. Otherwise a crash of the
    /// process may lose the last few milliseconds, unless the policy is [`SyncPolicy::Always`].
    pub survives_kill: bool,
    /// Bytes of records appended to the log since it began.
    pub appended: u64,
    /// Number of these bytes that are known to be durable.
    pub synced: u64,
    /// Bytes of records since the last backup, or since the log began.
    pub since_backup: u64,
    /// Number of records since the last backup, or since the opening.
    pub records_since_backup: u64,
    /// Number of fsyncs of the log since the opening.
    pub syncs: u64,
    /// Histogram of the durations of fsyncs.
    pub sync_times: SyncCounts,
    /// Number of failures of the log since the opening, including those from which it has
    /// recovered.
    pub failures: u64,
    /// Reason why writes currently fail, if they do.
    pub failure: Option<Arc<str>>,
    /// Backup in progress, and when it started.
    pub running: Option<(Progress, Instant)>,
    /// Last successful backup, and the time of its end in milliseconds since 1970.
    pub last: Option<(Summary, u64)>,
    /// Error of the last backup, if it failed.
    pub last_error: Option<Arc<str>>,
    /// Report of the opening.
    pub recovery: Recovery,
}

/// A damaged place at which the log was truncated or repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WalTruncation {
    /// Path of the segment.
    pub path: PathBuf,
    /// Offset of the damage in bytes.
    pub offset: u64,
    /// Description of the damage.
    pub what: String,
    /// Number of bytes dropped after the damage, in this and later segments.
    pub dropped: u64,
    /// Whether durable records followed the damage, which a repair dropped.
    pub was_durable: bool,
}

/// Result of reading the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WalReplay {
    /// Number of segments.
    pub segments: usize,
    /// Number of complete blocks; each is one group commit.
    pub blocks: u64,
    /// Number of records in these blocks.
    pub records: u64,
    /// Number of records, the last ones, that only the tail had, because the process was killed
    /// before it wrote them to a segment.
    pub tail: u64,
    /// Position after the last record.
    pub position: u64,
    /// Whether the log was closed in order.
    pub closed: bool,
    /// Damage that was found.
    pub cuts: Vec<WalTruncation>,
}
