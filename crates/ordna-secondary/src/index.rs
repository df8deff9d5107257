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
    /// The index is being built from a snapshot of the documents, or waits for its first snapshot
    /// point.
    Building,
    /// The index answers queries.
    Ready,
    /// The index is incomplete and answers no queries.
    Failed(String),
}

/// Definition, state and counts of an index.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IndexInfo {
    /// The definition of the index.
    pub definition: IndexDefinition,
    /// A number that no other index of this service had or will have.
    pub uid: u64,
    /// The state of the index.
    pub state: IndexState,
    /// Number of documents indexed so far from the snapshot that the index is built from.
    pub built: u64,
    /// Number of entries in the published snapshot point; 0 if there is none yet.
    pub entries: usize,
    /// Bytes that the entries occupy.
    pub bytes: usize,
    /// Bytes that the reverse maps occupied at the last snapshot point.
    pub reverse_bytes: usize,
    /// Number of entries inserted and removed up to the last snapshot point.
    pub writes: u64,
    /// Number of documents left out because a field has the wrong type.
    pub wrong_type: u64,
    /// Number of documents left out because they are too large.
    pub too_large: u64,
}

/// An index, shared by the service, its workers and its snapshot points.
pub(crate) struct Index {
    pub uid: u64,
    pub definition: IndexDefinition,
    pub entries: IndexStore,
    /// Number of documents of the snapshot that were processed.
    pub built: AtomicU64,
    /// Number of workers that have processed all of their documents of the snapshot.
    pub filled: AtomicUsize,
    pub dropped: AtomicBool,
    pub failure: OnceLock<String>,
    pub wrong_type: AtomicU64,
    pub too_large: AtomicU64,
    /// Bytes that the reverse map of each worker occupies.
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

/// Marks the thread as a worker while the guard exists. Debug builds check with it that no worker
/// frees an index: all other workers would have to wait for that worker at the next snapshot point.
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

    /// Returns whether all workers have processed all documents of the snapshot.
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire) == self.reverse_bytes.len()
    }

    /// Marks the index as failed: it answers no further queries.
    pub fn fail(&self, reason: impl ToString) {
        // Only the first failure is kept.
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
