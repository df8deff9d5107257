//! Options of a service, and the consistency of queries.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::reverse::Reverse;
use crate::version_vector::VersionVector;

/// Options of a service.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    pub(crate) workers: usize,
    pub(crate) interval: Duration,
    pub(crate) queue: usize,
    pub(crate) reverse: Reverse,
    pub(crate) store: ordna::Options,
    pub(crate) backups: Option<PathBuf>,
    pub(crate) restore: Option<Option<PathBuf>>,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            workers: thread::available_parallelism().map_or(1, usize::from),
            interval: Duration::from_millis(20),
            queue: 512,
            reverse: Reverse::default(),
            store: ordna::Options::new(),
            backups: None,
            restore: None,
        }
    }
}

impl ServiceOptions {
    /// Returns the default options: a worker for each core, a snapshot point every 20 ms, and no
    /// backups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of threads that apply changes, at least 1.
    #[must_use]
    pub fn workers(self, workers: usize) -> Self {
        Self { workers: workers.max(1), ..self }
    }

    /// Sets the time from one snapshot point to the next.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets the maximum number of changes in a queue with one index; the default is 512. With more
    /// indexes the maximum is smaller, so that the time to the next snapshot point stays the same.
    /// Small queues are useful in tests.
    #[doc(hidden)]
    #[must_use]
    pub fn queue(self, changes: usize) -> Self {
        Self { queue: changes.max(1), ..self }
    }

    /// Sets what the reverse maps hold for each entry of a document.
    #[must_use]
    pub fn reverse(self, reverse: Reverse) -> Self {
        Self { reverse, ..self }
    }

    /// Sets the options of each index's store. All stores share a memory budget given here. An
    /// index that exceeds it becomes [`IndexState::Failed`](crate::IndexState::Failed).
    #[must_use]
    pub fn store(self, store: ordna::Options) -> Self {
        Self { store, ..self }
    }

    /// Sets the directory of the backups. The newest backup in it is restored at the start.
    #[must_use]
    pub fn backups(self, dir: impl Into<PathBuf>) -> Self {
        Self { backups: Some(dir.into()), ..self }
    }

    /// Sets the backup to restore at the start, instead of the newest one in the directory of
    /// backups. With `None`, no backup is restored.
    #[must_use]
    pub fn restore(self, backup: Option<PathBuf>) -> Self {
        Self { restore: Some(backup), ..self }
    }
}

/// The state that a query reads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Consistency {
    /// The newest snapshot point, which may lack the changes of the last few milliseconds.
    #[default]
    Any,
    /// A snapshot point that contains all changes up to this vector.
    AtPlus(VersionVector),
    /// A snapshot point that contains all changes that the source had when the query began.
    RequestPlus,
}

/// Which state a query reads, and how long it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The state to read.
    pub consistency: Consistency,
    /// Maximum time to wait for that state.
    pub timeout: Duration,
    /// Whether to wait for an index that is being built.
    pub wait_for_build: bool,
}

impl Default for Read {
    fn default() -> Self {
        let consistency = Consistency::Any;
        Self { consistency, timeout: Duration::from_secs(10), wait_for_build: false }
    }
}

impl Read {
    /// Reads the newest snapshot point.
    pub fn any() -> Self {
        Self::default()
    }

    /// Reads a state with all changes that the source has now.
    pub fn request_plus() -> Self {
        Self { consistency: Consistency::RequestPlus, ..Self::default() }
    }

    /// Reads a state with all changes up to a vector.
    pub fn at_plus(vector: VersionVector) -> Self {
        Self { consistency: Consistency::AtPlus(vector), ..Self::default() }
    }

    /// Sets the timeout.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Waits for an index that is being built, instead of returning an error.
    #[must_use]
    pub fn wait_for_build(self) -> Self {
        Self { wait_for_build: true, ..self }
    }
}
