//! Counters with which a caller can follow and cancel long operations on files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::error::BackupError;

/// Progress of a backup, a restore or a verification. Clones share it.
///
/// ```
/// let progress = ordna::durability::Progress::default();
/// let shown = progress.clone();
/// assert_eq!((shown.entries(), shown.expected_entries()), (0, 0));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    entries: AtomicU64,
    bytes: AtomicU64,
    expected_bytes: AtomicU64,
    expected_entries: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    /// Returns the number of entries done.
    ///
    /// ```
    /// assert_eq!(ordna::durability::Progress::default().entries(), 0);
    /// ```
    pub fn entries(&self) -> u64 {
        self.0.entries.load(Ordering::Relaxed)
    }

    /// Returns the total number of entries, or 0 while it is unknown.
    ///
    /// ```
    /// assert_eq!(ordna::durability::Progress::default().expected_entries(), 0);
    /// ```
    pub fn expected_entries(&self) -> u64 {
        self.0.expected_entries.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes done.
    ///
    /// ```
    /// assert_eq!(ordna::durability::Progress::default().bytes(), 0);
    /// ```
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Returns the total number of bytes, or 0 while it is unknown.
    ///
    /// ```
    /// assert_eq!(ordna::durability::Progress::default().expected_bytes(), 0);
    /// ```
    pub fn expected_bytes(&self) -> u64 {
        self.0.expected_bytes.load(Ordering::Relaxed)
    }

    /// Cancels the operation, which then fails with [`BackupError::Cancelled`].
    ///
    /// ```
    /// use ordna::durability::Progress;
    /// use ordna::{BackupOptions, Store};
    ///
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-cancel-{}", std::process::id()));
    /// let progress = Progress::default();
    /// progress.cancel();
    /// let towns: Store<[u8], u64> = Store::new();
    /// towns.put("Lund", 94_393)?;
    /// assert!(towns.backup_to(&dir, &BackupOptions::new().progress(&progress)).is_err());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns [`BackupError::Cancelled`] after [`cancel`](Self::cancel).
    pub(crate) fn check(&self) -> Result<(), BackupError> {
        if self.0.cancelled.load(Ordering::Relaxed) { Err(BackupError::Cancelled) } else { Ok(()) }
    }

    /// Counts entries and bytes as done.
    pub(crate) fn add(&self, entries: u64, bytes: u64) {
        self.0.entries.fetch_add(entries, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds to the expected totals of entries and bytes.
    pub(crate) fn expect(&self, entries: u64, bytes: u64) {
        self.0.expected_entries.fetch_add(entries, Ordering::Relaxed);
        self.0.expected_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
