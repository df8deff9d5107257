//! An index: its entries, its state, its counts.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use ordna::sync::Lock;

use crate::define::IndexDefinition;
use crate::error::Error;
use crate::reverse::IndexStore;

/// The state of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexState {
    /// It is being built from a snapshot of the documents, or waits for its first snapshot point.
    Building,
    /// It answers queries.
    Ready,
    /// It is incomplete and answers none.
    Failed(String),
}

/// Definition, state and counts of an index.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IndexInfo {
    /// Its definition.
    pub definition: IndexDefinition,
    /// A number that no other index of this service had or will have.
    pub uid: u64,
    /// Its state.
    pub state: IndexState,
    /// Documents taken from the snapshot that it is or was built from.
    pub built: u64,
    /// Entries in the published snapshot point; 0 until there is one.
    pub entries: usize,
    /// Bytes of the entries.
    pub bytes: usize,
    /// Bytes of the reverse maps, as of the last snapshot point.
    pub reverse_bytes: usize,
    /// Entries inserted and removed, as of the last snapshot point.
    pub writes: u64,
    /// Documents left out because of a field's type.
    pub wrong_type: u64,
    /// Documents left out because they are too large.
    pub too_large: u64,
}

/// An index, as the service, its workers and its snapshot points share it.
pub(crate) struct Index {
    pub uid: u64,
    pub definition: IndexDefinition,
    pub entries: IndexStore,
    /// Documents of the snapshot that were handled.
    pub built: AtomicU64,
    /// Workers that are done with the documents of the snapshot.
    pub filled: AtomicUsize,
    pub dropped: AtomicBool,
    pub failure: OnceLock<String>,
    pub wrong_type: AtomicU64,
    pub too_large: AtomicU64,
    /// Bytes of each worker's reverse map.
    pub reverse_bytes: Vec<AtomicUsize>,
    pub writes: AtomicU64,
    /// The last document that was left out, and why.
    pub left_out: Lock<Option<(Vec<u8>, Error)>>,
    /// The thread that builds it, until it is joined.
    pub builder: Lock<Option<JoinHandle<()>>>,
}

thread_local! {
    /// Whether this thread is a worker that applies changes.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread as a worker while it lives: a worker frees no index. All other workers would wait for
/// it at the next snapshot point.
pub(crate) struct WorkerMark(());

impl WorkerMark {
    pub fn set() -> Self {
        IS_WORKER.set(true);
        Self(())
    }
}

impl Drop for WorkerMark {
    fn drop(&mut self) {
        IS_WORKER.set(false);
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let is_worker = IS_WORKER.try_with(Cell::get).unwrap_or(false);
        debug_assert!(!is_worker || std::thread::panicking(), "a worker frees an index");
    }
}

impl Index {
    pub fn new(uid: u64, definition: IndexDefinition, entries: IndexStore, workers: usize) -> Self {
        Self {
            uid,
            definition,
            entries,
            built: AtomicU64::new(0),
            filled: AtomicUsize::new(0),
            dropped: AtomicBool::new(false),
            failure: OnceLock::new(),
            wrong_type: AtomicU64::new(0),
            too_large: AtomicU64::new(0),
            reverse_bytes: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            writes: AtomicU64::new(0),
            left_out: Lock::new(None),
            builder: Lock::new(None),
        }
    }

    /// Whether all workers have all documents of the snapshot.
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire) == self.reverse_bytes.len()
    }

    /// The index answers no query from now on.
    pub fn fail(&self, reason: impl ToString) {
        // The first failure counts.
        let _ = self.failure.set(reason.to_string());
    }

    /// Counts a document that has no entries because of an error.
    pub fn leave_out(&self, id: &[u8], error: Error) {
        let count = match error {
            Error::WrongType { .. } => &self.wrong_type,
            _ => &self.too_large,
        };
        count.fetch_add(1, Ordering::Relaxed);
        *self.left_out.lock() = Some((id.to_vec(), error));
    }
}
