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
///
/// ```
/// use ordna::{OpenOptions, Options, Store, SyncPolicy};
///
/// # let dir = std::env::temp_dir().join(format!("ordna-doc-options-{}", std::process::id()));
/// let options = OpenOptions::new()
///     .store(Options::new().memory_limit(1 << 30))
///     .sync(SyncPolicy::Always);
/// let towns: Store<[u8], u64> = Store::open(&dir, options)?;
/// # drop(towns);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct OpenOptions {
    pub(super) store: Options,
    pub(super) sync: SyncPolicy,
    /// Whether writes return only when they are durable, under [`SyncPolicy::Always`].
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

/// The encoded keys that a record of the log changes. See [`OpenOptions::on_logged_keys`].
///
/// ```
/// use ordna::durability::LoggedKeys;
///
/// let is_of_ann = |keys: LoggedKeys<'_>| match keys {
///     LoggedKeys::One(key) => key.starts_with(b"ann"),
///     _ => true,
/// };
/// assert!(is_of_ann(LoggedKeys::One(b"ann:1")) && is_of_ann(LoggedKeys::All));
/// ```
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

/// Default size in bytes at which the log rotates to a new segment. There are few files, and
/// removing one frees space in small steps.
const SEGMENT_BYTES: u64 = 256 << 20;

/// Default number of bytes by which the files may exceed twice the entries. It is large enough that
/// small stores do not back themselves up all the time.
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
    /// Keeps records at their addresses. See [`Options::records_stay`].
    pub(crate) fn records_stay(self) -> Self {
        Self { store: self.store.records_stay(), ..self }
    }

    /// Creates the default options: a log that is synced every second, and [`Options::new`] for the
    /// store.
    ///
    /// ```
    /// let options = ordna::OpenOptions::new();
    /// # let _ = options;
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the options of the store in memory.
    ///
    /// ```
    /// use ordna::{OpenOptions, Options};
    ///
    /// let options = OpenOptions::new().store(Options::new().memory_limit(1 << 30));
    /// # let _ = options;
    /// ```
    pub fn store(self, store: Options) -> Self {
        Self { store, ..self }
    }

    /// Sets when the log is made durable.
    ///
    /// ```
    /// use ordna::{OpenOptions, SyncPolicy};
    ///
    /// let options = OpenOptions::new().sync(SyncPolicy::Always);
    /// # let _ = options;
    /// ```
    pub fn sync(self, sync: SyncPolicy) -> Self {
        Self { sync, ..self }
    }

    /// Lets writes return before they are durable under [`SyncPolicy::Always`]. A caller
    /// acknowledges a write when [`Store::poll_durable`](crate::Store::poll_durable) is ready for
    /// the [`Store::log_position`](crate::Store::log_position) that was read after the write.
    ///
    /// ```
    /// use ordna::{OpenOptions, SyncPolicy};
    ///
    /// let options = OpenOptions::new().sync(SyncPolicy::Always).acknowledge_later();
    /// # let _ = options;
    /// ```
    pub fn acknowledge_later(self) -> Self {
        Self { waits: false, ..self }
    }

    /// Sets whether a log that is damaged before its end is truncated at the damage. All later
    /// records are then lost. Otherwise the opening fails.
    ///
    /// ```
    /// let options = ordna::OpenOptions::new().repair(true);
    /// # let _ = options;
    /// ```
    pub fn repair(self, repair: bool) -> Self {
        Self { repair, ..self }
    }

    /// Sets the size in bytes of two files that reserve disk space (default 0: no files). If the
    /// disk is full, the log gives up the first file and continues, and a backup gives up the
    /// second. After a backup, both exist again. 32 MiB are enough for the records that wait for
    /// the disk.
    ///
    /// ```
    /// let options = ordna::OpenOptions::new().reserve(32 << 20);
    /// # let _ = options;
    /// ```
    pub fn reserve(self, bytes: u64) -> Self {
        Self { reserve: bytes, ..self }
    }

    /// Sets the number of bytes that determines when the store backs itself up (default 64 MiB;
    /// `u64::MAX`: never). A backup in the background, called a *checkpoint*, begins when the log
    /// is larger than half of these bytes and a quarter of the entries. All files together,
    /// including those of an unfinished checkpoint, stay within the sum of twice the entries and
    /// these bytes, on two conditions: the entries are at most twice these bytes, and the
    /// checkpoint is complete before an eighth of the entries has been logged. A checkpoint
    /// replaces the previous backup, except for backups that a caller
    /// [keeps](super::BackupOptions::keep), if it keeps at least two. After an opening, which
    /// cannot tell checkpoints from other backups, the first checkpoint replaces the oldest one.
    /// [`Store::backup`](crate::Store::backup) cancels a checkpoint in progress. Errors are
    /// reported in [`Durability::last_error`](super::Durability::last_error), and the checkpoint is
    /// retried with increasing delays. It does not begin if it would fill the disk.
    ///
    /// When the store ends, it cancels a checkpoint in progress. If the log is then larger than an
    /// eighth of the entries and a quarter of these bytes, and the entries are at most four times
    /// these bytes, the store backs itself up before it ends, so that the next opening is fast.
    ///
    /// A store whose newest backup has [metadata](super::BackupOptions::metadata) takes no
    /// checkpoints, because it could not compute their metadata.
    ///
    /// ```
    /// let options = ordna::OpenOptions::new().checkpoint_after(256 << 20);
    /// # let _ = options;
    /// ```
    pub fn checkpoint_after(self, bytes: u64) -> Self {
        Self { checkpoint_after: bytes, ..self }
    }

    /// Sets the size at which the log rotates to a new segment (default 256 MiB), for tests.
    #[doc(hidden)]
    pub fn segment_bytes(self, bytes: u64) -> Self {
        Self { segment_bytes: bytes, ..self }
    }

    /// Sets the size in bytes of each half of the file with the waiting records (default 1 MiB),
    /// for tests.
    #[doc(hidden)]
    pub fn tail_bytes(self, bytes: usize) -> Self {
        Self { tail_bytes: bytes, ..self }
    }

    /// Sets the delay before the first retry of a failed write of the log (default 100 ms), for
    /// tests.
    #[doc(hidden)]
    pub fn retry_after(self, delay: Duration) -> Self {
        Self { retry_after: delay, ..self }
    }

    /// Sets the counters that report progress.
    ///
    /// ```
    /// use ordna::OpenOptions;
    /// use ordna::durability::Progress;
    ///
    /// let progress = Progress::default();
    /// let options = OpenOptions::new().progress(&progress);
    /// // Another thread can show the progress while the store is opened with these options.
    /// assert_eq!(progress.entries(), 0);
    /// # let _ = options;
    /// ```
    pub fn progress(self, progress: &Progress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Calls `on_keys` with the keys that each record of the log after the backup changes.
    ///
    /// ```
    /// use ordna::OpenOptions;
    /// use ordna::durability::LoggedKeys;
    ///
    /// let options = OpenOptions::new().on_logged_keys(|keys| {
    ///     if let LoggedKeys::One(key) = keys {
    ///         println!("{key:?} has changed since the backup");
    ///     }
    /// });
    /// # let _ = options;
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn on_logged_keys(self, on_keys: impl Fn(LoggedKeys<'_>) + Send + Sync + 'static) -> Self {
        Self { logged: Some(OnLogged(Arc::new(on_keys))), ..self }
    }

    /// Sets where files are stored, instead of the disk.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ordna::OpenOptions;
    /// use ordna::durability::Disk;
    ///
    /// let options = OpenOptions::new().storage(Arc::new(Disk));
    /// # let _ = options;
    /// ```
    pub fn storage(self, storage: Arc<dyn Storage>) -> Self {
        Self { storage, ..self }
    }
}
