//! Iteration in chunks. Each chunk is a list, and Python chains the lists without a call per entry.

use std::ops::{Bound as Limit, ControlFlow};
use std::sync::Arc;

use ordna::sync::Lock;
use ordna::{Direction, Entries};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::key;
use crate::plain;
use crate::shapes::Shape;
use crate::source::{KeyRange, Slot, Source, Unusable};
use crate::value::{self, Codec};

/// Number of entries in the first chunk of a scan without bounds, in the first chunk of a scan with
/// two bounds, and in the longest chunks.
const FIRST_CHUNK: usize = 32;
const FIRST_BOUNDED: usize = 128;
const LAST_CHUNK: usize = 1024;

/// Bytes of keys and values after which a chunk ends: 256 KiB, which is 1,024 entries of 256 bytes.
/// A scan of values that are larger than this holds only one of them at a time.
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

/// The part of an iteration that remains.
struct ChunkState {
    span: KeyRange,
    left: usize,
    chunk: usize,
    done: bool,
}

impl ChunkState {
    /// Advances beyond a chunk. `last` is its last key if there may be more entries after it.
    fn pass(&mut self, count: usize, last: Option<Vec<u8>>, direction: Direction) {
        self.left -= count;
        self.chunk = (self.chunk * 2).min(LAST_CHUNK);
        let Some(last) = last.filter(|_| self.left > 0) else {
            self.done = true;
            return;
        };
        match direction {
            Direction::Ascending => self.span.0 = Limit::Excluded(last),
            Direction::Descending => self.span.1 = Limit::Excluded(last),
        }
    }
}

/// An iterator over lists of entries, in order. It holds no resources of the store between two
/// calls: the next list begins after the last key. It raises an exception once the store or
/// snapshot is closed.
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

/// Returns the exception for the use of a store or snapshot that is closed or belongs to another
/// process.
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
        // If the limit is low, the first chunk contains all entries.
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

    /// Returns an iterator over the entries. The first chunk is read in this call. If it is short,
    /// the GIL stays held, and the entries are not copied before they become objects.
    pub fn iterate<'py>(mut self, py: Python<'py>, source: &Source) -> PyResult<Bound<'py, PyAny>> {
        let first = match self.read_plain(py, source) {
            Some(first) => first?,
            None => match self.next(py)? {
                Some(first) => first,
                None => PyList::empty(py),
            },
        };
        if self.state.get_mut().done {
            return Ok(first.try_iter()?.into_any());
        }
        let chain = py.import("itertools")?.getattr("chain")?;
        let chunks = chain.call1(((first,), Bound::new(py, self)?))?;
        chain.call_method1("from_iterable", (chunks,))
    }

    /// Reads a first chunk, if it is short and all of its entries are of frequent types.
    fn read_plain<'py>(
        &mut self,
        py: Python<'py>,
        source: &Source,
    ) -> Option<PyResult<Bound<'py, PyList>>> {
        let (kind, direction) = (self.kind, self.direction);
        let state = self.state.get_mut();
        let wanted = state.chunk.min(state.left);
        if wanted > FIRST_BOUNDED || state.done {
            return None;
        }
        let mut objects = Vec::with_capacity(wanted * if kind == Kind::Items { 2 } else { 1 });
        let (mut count, mut bytes, mut last, mut is_plain) = (0, 0, None, true);
        // This creates no container and runs no other Python code: see `plain`.
        source.visit(&state.span, direction, |key, value| {
            let mut push = |object| match object {
                Some(object) => objects.push(object),
                None => is_plain = false,
            };
            if kind != Kind::Values {
                push(plain::object_of(py, key, &self.shape));
            }
            if kind != Kind::Keys {
                push(value::plain(py, value));
                bytes += value.len();
            }
            count += 1;
            bytes += key.len();
            if count == wanted || bytes >= CHUNK_BYTES {
                last = Some(key.to_vec());
            }
            if is_plain && last.is_none() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        if !is_plain {
            return None;
        }
        state.pass(count, last, direction);
        if kind != Kind::Items {
            return Some(PyList::new(py, objects));
        }
        let mut objects = objects.into_iter();
        let pairs = (0..count).map_while(|_| objects.next().zip(objects.next()));
        let pairs = pairs.map(|(key, value)| PyTuple::new(py, [key, value]));
        Some(pairs.collect::<PyResult<Vec<_>>>().and_then(|pairs| PyList::new(py, pairs)))
    }

    /// Reads the next chunk and advances beyond it.
    fn read(&self) -> Result<Entries<[u8], [u8]>, Unusable> {
        // Checked first, as a thread of the process that forked this one may have held the lock.
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
        let last = entries.last().filter(|_| full).map(|(key, _)| key.to_vec());
        state.pass(entries.len(), last, self.direction);
        Ok(entries)
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        // Another thread that reads may hold the lock. It must not wait for the GIL of this thread.
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
}

#[pymethods]
impl Chunks {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        self.next(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.codec.traverse(&visit)
    }

    fn __clear__(&self) {
        self.codec.clear();
    }
}
