//! The source of reads: a store or a snapshot of it, without a word of Python.

use std::ops::{Bound as Limit, ControlFlow};
use std::sync::Arc;

use ordna::sync::Lock;
use ordna::{Direction, OrderedIndex, Snapshot, Store};
use smallvec::SmallVec;

pub type Bytes = Store<[u8], [u8]>;

/// The source of reads: the store as it is, or one state of it.
#[derive(Clone)]
pub enum Source {
    Live(Arc<Bytes>),
    At(Snapshot<[u8], [u8]>),
}

/// The source of a store object and its iterators, until the object is closed.
pub struct Slot(Lock<Option<Source>>);

impl Slot {
    pub fn new(source: Source) -> Self {
        Self(Lock::new(Some(source)))
    }

    pub fn get(&self) -> Option<Source> {
        self.0.lock().clone()
    }

    /// Closes it; the caller drops the source.
    pub fn take(&self) -> Option<Source> {
        self.0.lock().take()
    }
}

/// Bounds in the bytes of the store.
pub type KeyRange = (Limit<Vec<u8>>, Limit<Vec<u8>>);

/// Both bounds, borrowed.
pub fn by_ref(span: &KeyRange) -> (Limit<&[u8]>, Limit<&[u8]>) {
    (span.0.as_ref().map(Vec::as_slice), span.1.as_ref().map(Vec::as_slice))
}

/// A value copied out of the store; short ones without an allocation.
type Copied = SmallVec<[u8; 128]>;

impl Source {
    pub fn get(&self, key: &[u8]) -> Option<Copied> {
        match self {
            Self::Live(store) => store.get_with(key, Copied::from_slice),
            Self::At(snapshot) => snapshot.get_with(key, Copied::from_slice),
        }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Live(store) => store.contains(key),
            Self::At(snapshot) => snapshot.contains(key),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Live(store) => store.approximate_len(),
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

    /// How many keys lie within the bounds.
    pub fn count(&self, span: &KeyRange) -> usize {
        let (lower, upper) = by_ref(span);
        match self {
            Self::Live(store) => store.count(lower, upper),
            Self::At(snapshot) => snapshot.count(lower, upper),
        }
    }

    /// The entry at a position from the front.
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

    pub fn get_many<Q: std::borrow::Borrow<[u8]>>(
        &self,
        keys: &[Q],
        each: impl FnMut(usize, Option<&[u8]>),
    ) {
        match self {
            Self::Live(store) => store.get_many_with(keys, each),
            Self::At(snapshot) => snapshot.get_many_with(keys, each),
        }
    }
}
