//! Iteration in chunks: lists, which Python chains without a call per entry.

use std::ops::{Bound as Limit, ControlFlow};
use std::sync::Arc;

use ordna::sync::Lock;
use ordna::{Direction, Entries};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::key;
use crate::shapes::Shape;
use crate::source::{KeyRange, Slot, Unusable};
use crate::value::{self, Codec};

/// The first chunk of a scan without bounds, of one with two bounds, and the longest one.
const FIRST_CHUNK: usize = 32;
const FIRST_BOUNDED: usize = 128;
const LAST_CHUNK: usize = 1024;

/// Bytes of keys and values after which a chunk ends: 256 KiB, as of 1,024 entries of 256 bytes. A
/// scan of large values holds one of them at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// The part of each entry that is listed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Keys,
    Values,
    Items,
}

impl Kind {
    pub fn of(kind: u8) -> Self {
        match kind {
            0 => Self::Keys,
            1 => Self::Values,
            _ => Self::Items,
        }
    }
}

/// What remains of an iteration.
struct ChunkState {
    span: KeyRange,
    left: usize,
    chunk: usize,
    done: bool,
}

/// An iterator over lists of entries, in order. It holds nothing of the store between two calls;
/// the next list begins after the last key. Once the store or snapshot is closed, it raises.
#[pyclass(frozen, module = "ordna._ordna")]
pub struct Chunks {
    source: Arc<Slot>,
    kind: Kind,
    direction: Direction,
    state: Lock<ChunkState>,
    /// The shape of all keys when the iteration began, if it was one.
    shape: Shape,
    codec: Codec,
}

/// Returns the exception for the use of a store or snapshot that is closed, or of another process.
pub fn unusable(reason: Unusable) -> PyErr {
    match reason {
        Unusable::Closed => PyValueError::new_err("the store or snapshot is closed"),
        Unusable::Forked => PyRuntimeError::new_err(
            "the store or snapshot belongs to the process that forked this one; open it after the \
             fork, or start processes by 'spawn'",
        ),
    }
}

impl Chunks {
    pub fn new(
        source: Arc<Slot>,
        span: KeyRange,
        kind: Kind,
        reverse: bool,
        limit: Option<usize>,
    ) -> Self {
        let left = limit.unwrap_or(usize::MAX);
        // With a limit the first chunk is all of it, if that is short.
        let is_bounded = span.0 != Limit::Unbounded && span.1 != Limit::Unbounded;
        let chunk = match limit {
            Some(_) => left.clamp(1, LAST_CHUNK),
            None if is_bounded => FIRST_BOUNDED,
            None => FIRST_CHUNK,
        };
        let direction = if reverse { Direction::Descending } else { Direction::Ascending };
        let state = Lock::new(ChunkState { span, left, chunk, done: left == 0 });
        Self { source, kind, direction, state, shape: Shape::new(), codec: Codec::new(None) }
    }

    pub fn of(self, shape: Shape, codec: Codec) -> Self {
        Self { shape, codec, ..self }
    }

    /// Reads the next chunk and moves past it.
    fn read(&self) -> Result<Entries<[u8], [u8]>, Unusable> {
        // First: a thread of the process that forked this one may have held the lock.
        if self.source.is_forked() {
            return Err(Unusable::Forked);
        }
        let mut state = self.state.lock();
        let mut entries = Entries::new();
        if state.done {
            return Ok(entries);
        }
        let source = self.source.get()?;
        let wanted = state.chunk.min(state.left);
        let (mut bytes, mut full) = (0, false);
        source.visit(&state.span, self.direction, |key, value| {
            let value = if self.kind == Kind::Keys { &[] } else { value };
            entries.push(key, value);
            bytes += key.len() + value.len();
            full = entries.len() == wanted || bytes >= CHUNK_BYTES;
            if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        state.left -= entries.len();
        state.chunk = (state.chunk * 2).min(LAST_CHUNK);
        state.done = !full || state.left == 0;
        if let Some((key, _)) = entries.last() {
            let behind = Limit::Excluded(key.to_vec());
            match self.direction {
                Direction::Ascending => state.span.0 = behind,
                Direction::Descending => state.span.1 = behind,
            }
        }
        Ok(entries)
    }
}

#[pymethods]
impl Chunks {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        // The lock may be held by another thread that reads: it must not wait for this one's GIL.
        let entries = py.detach(|| self.read()).map_err(unusable)?;
        if entries.is_empty() {
            return Ok(None);
        }
        let mut objects = Vec::with_capacity(entries.len());
        for (key, bytes) in entries.iter() {
            let value = || value::decode(py, bytes, &self.codec);
            objects.push(match self.kind {
                Kind::Keys => key::decode(py, key, &self.shape)?,
                Kind::Values => value()?,
                Kind::Items => {
                    PyTuple::new(py, [key::decode(py, key, &self.shape)?, value()?])?.into_any()
                }
            });
        }
        PyList::new(py, objects).map(Some)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.codec.traverse(&visit)
    }

    fn __clear__(&self) {
        self.codec.clear();
    }
}
