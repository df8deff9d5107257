//! Options of [`Store::open`](crate::Store::open).

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::Options;
use crate::files::progress::Progress;
use crate::files::storage::{Disk, Storage};
use crate::wal::queue::FIRST_RETRY;
use crate::wal::sync_policy::SyncPolicy;
use crate::wal::tail::AREA;

/// Options of [`Store::open`](crate::Store::open).
#[derive(Debug, Clone)]
pub struct OpenOptions {
    pub(super) store: Options,
    pub(super) sync: SyncPolicy,
    /// Whether writes return only once they are durable, under [`SyncPolicy::Always`].
    pub(super) waits: bool,
    pub(super) repair: bool,
    pub(super) segment_bytes: u64,
    pub(super) tail_bytes: usize,
    pub(super) retry_after: Duration,
    pub(super) reserve: u64,
    pub(super) checkpoint_after: u64,
    pub(super) progress: Progress,
    pub(super) logged: Option<OnLogged>,
    pub(super) storage: Arc<dyn Storage>,
}

/// What a record of the log changes, by the encoded forms of its keys. See
/// [`OpenOptions::on_logged_keys`].
#[derive(Debug, Clone, Copy)]
pub enum LoggedKeys<'a> {
    /// One key.
    One(&'a [u8]),
    /// Keys between two bounds.
    Range(Bound<&'a [u8]>, Bound<&'a [u8]>),
    /// Any key.
    All,
}

/// Callback that receives the keys of replayed records.
#[derive(Clone)]
pub(super) struct OnLogged(pub Arc<dyn Fn(LoggedKeys<'_>) + Send + Sync>);

impl std::fmt::Debug for OnLogged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnLogged")
    }
}

/// Default size in bytes at which the log rotates to a new segment: few files, and removing one
/// frees space in small steps.
const SEGMENT_BYTES: u64 = 256 << 20;

/// Default size in bytes that the files may have beyond twice the entries: small stores are not
/// backed up all the time.
const CHECKPOINT_AFTER: u64 = 64 << 20;

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            store: Options::new(),
            sync: SyncPolicy::default(),
            waits: true,
            repair: false,
            segment_bytes: SEGMENT_BYTES,
            tail_bytes: AREA,
            retry_after: FIRST_RETRY,
            reserve: 0,
            checkpoint_after: CHECKPOINT_AFTER,
            progress: Progress::default(),
            logged: None,
            storage: Arc::new(Disk),
        }
    }
}

impl OpenOptions {
    /// Keeps records at their addresses, see [`Options::records_stay`].
    pub(crate) fn records_stay(self) -> Self {
        Self { store: self.store.records_stay(), ..self }
    }

    /// Returns the default options: a log that is synced every second, and [`Options::new`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the options of the store in memory.
    pub fn store(self, store: Options) -> Self {
        Self { store, ..self }
    }

    /// Sets when the log is made durable.
    pub fn sync(self, sync: SyncPolicy) -> Self {
        Self { sync, ..self }
    }

    /// Lets writes return before they are durable under [`SyncPolicy::Always`]. Acknowledge a write
    /// once [`Store::poll_durable`](crate::Store::poll_durable) is ready for the
    /// [`Store::log_position`](crate::Store::log_position) read after the write.
    pub fn acknowledge_later(self) -> Self {
        Self { waits: false, ..self }
    }

    /// Sets whether a log that is damaged in its middle is truncated there. Otherwise opening
    /// fails. Everything after the damage is lost.
    pub fn repair(self, repair: bool) -> Self {
        Self { repair, ..self }
    }

    /// Sets the size in bytes of two files that occupy space (default 0: none). If the disk is full, the
    /// log gives up the first and continues, and a backup gives up the second; after a backup both
    /// are there again. 32 MiB are enough for the records that wait for the disk.
    pub fn reserve(self, bytes: u64) -> Self {
        Self { reserve: bytes, ..self }
    }

    /// Sets when the store backs itself up (default 64 MiB; `u64::MAX`: never). A backup in the
    /// background, called a *checkpoint*, begins when the log is larger than half of these bytes and
    /// a quarter of the entries. All files together, those of an unfinished checkpoint included,
    /// stay within twice the entries and these bytes if the entries are at most twice these bytes
    /// and the disk takes a checkpoint in the time in which an eighth of the entries is logged. A checkpoint replaces the backup before
    /// it; those that a caller [keeps](super::BackupOptions::keep), two or more, stay beside it. After an opening, which
    /// cannot tell them apart, the first checkpoint replaces the oldest one.
    /// [`Store::backup`](crate::Store::backup) cancels a checkpoint in progress. Errors are reported in
    /// [`Durability::last_error`](super::Durability::last_error), and the checkpoint is tried
    /// again with growing delays. It is not begun on a disk that it would fill.
    ///
    /// The end of a store cancels a checkpoint. If the log is then longer than an eighth of the
    /// entries and a quarter of these bytes, and the entries are at most four times these bytes,
    /// the store backs itself up before it ends, so that the next opening is fast.
    ///
    /// A store whose newest backup has [metadata](super::BackupOptions::metadata) takes no
    /// checkpoints: it could not compute them.
    pub fn checkpoint_after(self, bytes: u64) -> Self {
        Self { checkpoint_after: bytes, ..self }
    }

    /// Sets the size at which the log rotates to a new segment (default 256 MiB), for tests.
    #[doc(hidden)]
    pub fn segment_bytes(self, bytes: u64) -> Self {
        Self { segment_bytes: bytes, ..self }
    }

    /// Sets the size in bytes of each half of the file with the records that wait (default 1 MiB),
    /// for tests.
    #[doc(hidden)]
    pub fn tail_bytes(self, bytes: usize) -> Self {
        Self { tail_bytes: bytes, ..self }
    }

    /// Sets the delay before the first retry of a write of the log that failed (default 100 ms), for
    /// tests.
    #[doc(hidden)]
    pub fn retry_after(self, delay: Duration) -> Self {
        Self { retry_after: delay, ..self }
    }

    /// Sets the counters that report progress.
    pub fn progress(self, progress: &Progress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Calls `on_keys` with what each record that is logged after the backup changes.
    pub fn on_logged_keys(self, on_keys: impl Fn(LoggedKeys<'_>) + Send + Sync + 'static) -> Self {
        Self { logged: Some(OnLogged(Arc::new(on_keys))), ..self }
    }

    /// Sets where files are stored, instead of the disk.
    pub fn storage(self, storage: Arc<dyn Storage>) -> Self {
        Self { storage, ..self }
    }
}
