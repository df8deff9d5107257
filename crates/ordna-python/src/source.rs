//! The source of reads: a store or a snapshot of it. This module does not use Python.

use std::ops::{Bound as Limit, ControlFlow};
use std::sync::Arc;

use ordna::sync::Lock;
use ordna::sync::atomic::{AtomicU32, Ordering};
use ordna::{AsData, Direction, Snapshot, Store};

pub type Bytes = Store<[u8], [u8]>;

/// The source of reads: the current state of a store, or a snapshot of it.
#[derive(Clone)]
pub enum Source {
    Live(Arc<Bytes>),
    At(Snapshot<[u8], [u8]>),
}

/// Number of forks that led to this process: Python adds one in each child. It changes only while
/// the process has one thread, so that a relaxed load finds the value.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Records that this process is a child of the process that used the module before.
pub fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The reason why a source cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// The object of the source was closed.
    Closed,
    /// The source belongs to the process that forked this one. Threads of that process may have
    /// held its locks, and the thread that writes its log does not exist in this process.
    Forked,
}

/// The source of a store object and its iterators, until the object is closed. It is used in the
/// process that made it only.
pub struct Slot {
    source: Lock<Option<Source>>,
    forks: u32,
}

impl Slot {
    pub fn new(source: Source) -> Self {
        Self { source: Lock::new(Some(source)), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Returns whether the object was created by a process that this one was forked from.
    pub fn is_forked(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Returns the source.
    ///
    /// # Errors
    /// Returns an error if the object is closed or belongs to another process.
    pub fn get(&self) -> Result<Source, Unusable> {
        // First: the lock may have been held while the process forked.
        if self.is_forked() {
            return Err(Unusable::Forked);
        }
        self.source.lock().clone().ok_or(Unusable::Closed)
    }

    /// Calls `read` with the source, which is not closed until it returns. `read` must neither call
    /// Python nor use this slot.
    ///
    /// # Errors
    /// Returns the errors of [`Slot::get`].
    #[inline]
    pub fn with<R>(&self, read: impl FnOnce(&Source) -> R) -> Result<R, Unusable> {
        if self.is_forked() {
            return Err(Unusable::Forked);
        }
        self.source.lock().as_ref().map(read).ok_or(Unusable::Closed)
    }

    /// Closes the slot and returns the source, which the caller drops. Does nothing in a child of
    /// the process that created the object.
    pub fn take(&self) -> Option<Source> {
        if self.is_forked() { None } else { self.source.lock().take() }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_forked() {
            // The drop of a store waits for its threads, which are not in this process, and would
            // write to files that another process writes to.
            std::mem::forget(self.source.get_mut().take());
        }
    }
}

/// Lower and upper bound of encoded keys.
pub type KeyRange = (Limit<Vec<u8>>, Limit<Vec<u8>>);

/// Returns both bounds by reference.
pub fn by_ref(span: &KeyRange) -> (Limit<&[u8]>, Limit<&[u8]>) {
    (span.0.as_ref().map(Vec::as_slice), span.1.as_ref().map(Vec::as_slice))
}

impl Source {
    /// Calls `read` with the value of a key, in a reading section.
    pub fn get_with<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            Self::Live(store) => store.get_with(key, read),
            Self::At(snapshot) => snapshot.get_with(key, read),
        }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Live(store) => store.contains_key(key),
            Self::At(snapshot) => snapshot.contains_key(key),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Live(store) => store.len(),
            Self::At(snapshot) => snapshot.len(),
        }
    }

    pub fn visit(
        &self,
        span: &KeyRange,
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        let (lower, upper) = by_ref(span);
        match self {
            Self::Live(store) => store.visit(lower, upper, direction, visit),
            Self::At(snapshot) => snapshot.visit(lower, upper, direction, visit),
        }
    }

    /// Returns the number of keys within the bounds.
    pub fn count(&self, span: &KeyRange) -> usize {
        let (lower, upper) = by_ref(span);
        match self {
            Self::Live(store) => store.count(lower, upper),
            Self::At(snapshot) => snapshot.count(lower, upper),
        }
    }

    /// Returns the entry at a position, counted from the smallest key.
    pub fn select(&self, position: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        match self {
            Self::Live(store) => store.select(position),
            Self::At(snapshot) => snapshot.select(position),
        }
    }

    pub fn nearest(&self, span: &KeyRange, direction: Direction) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut found = None;
        self.visit(span, direction, |key, value| {
            found = Some((key.to_vec(), value.to_vec()));
            ControlFlow::Break(())
        });
        found
    }

    pub fn get_many<Q: AsData<[u8]>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&[u8]>)) {
        match self {
            Self::Live(store) => store.get_many_with(keys, each),
            Self::At(snapshot) => snapshot.get_many_with(keys, each),
        }
    }
}
