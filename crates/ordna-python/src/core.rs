//! The object under `ordna.Store` and `ordna.Snapshot`.
//!
//! # Contract
//! No call of Python runs while the store is inside a reading section or a critical section: keys
//! and values are encoded before a call of the store and decoded after it. So a codec, a hash or a
//! collection of garbage may use the same store. The GIL is released for bulk calls, for walks
//! without end, and for waiting.

use std::ops::Bound as Limit;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use ordna::backup::{BackupError, BackupOptions, OpenOptions, Sync};
use ordna::{Change, Direction, Error, MemoryUsage, Options, OrderedIndex, Store, Write};
use pyo3::exceptions::{
    PyBlockingIOError, PyFileExistsError, PyFileNotFoundError, PyKeyError, PyMemoryError,
    PyOSError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::chunks::{Chunks, Kind};
use crate::key;
use crate::shapes::{Shape, Shapes, Verdict, can_compare};
use crate::source::{Bytes, Source, Span, by_ref};
use crate::value::{self, Codec};

/// The exception for what the store refuses.
pub fn raise(error: Error) -> PyErr {
    match error {
        Error::MemoryLimit { .. } => PyMemoryError::new_err(error.to_string()),
        Error::LogFailed { .. } => PyOSError::new_err(error.to_string()),
        other => PyValueError::new_err(other.to_string()),
    }
}

/// The exception for what a backup or an opening refuses.
fn raise_backup(error: BackupError) -> PyErr {
    let message = error.to_string();
    match error {
        BackupError::Io { source, .. } => PyOSError::new_err((source.raw_os_error(), message)),
        BackupError::Missing { .. } => PyFileNotFoundError::new_err(message),
        BackupError::Exists { .. } => PyFileExistsError::new_err(message),
        BackupError::InUse { .. } | BackupError::Busy => PyBlockingIOError::new_err(message),
        BackupError::Store(error) => raise(error),
        _ => PyValueError::new_err(message),
    }
}

/// A removal's outcome. A key beyond the limit was never there.
fn gone(removed: Result<(), Error>) -> PyResult<()> {
    match removed {
        Err(Error::KeyTooLong { .. }) => Ok(()),
        other => other.map_err(raise),
    }
}

/// A store or a snapshot of one, with its codec and the types of its keys.
#[pyclass(subclass, frozen, module = "ordna._ordna")]
pub struct Core {
    source: Mutex<Option<Source>>,
    pub shapes: Arc<Shapes>,
    pub codec: Option<Arc<Codec>>,
    /// Whether writes go to a log, which may wait for a disk.
    durable: bool,
}

/// An encoded key and its shape.
pub struct Encoded {
    pub bytes: Vec<u8>,
    pub shape: Shape,
}

pub fn encoded(key: &Bound<'_, PyAny>) -> PyResult<Encoded> {
    let mut encoded = Encoded { bytes: Vec::with_capacity(32), shape: Shape::new() };
    key::encode(key, &mut encoded.bytes, &mut encoded.shape)?;
    Ok(encoded)
}

impl Core {
    pub fn new(source: Source, shapes: Arc<Shapes>, codec: Option<Arc<Codec>>) -> Self {
        Self { source: Mutex::new(Some(source)), shapes, codec, durable: false }
    }

    /// Runs a write; with the GIL released if it may wait for a disk.
    fn write<R: Send>(&self, py: Python<'_>, write: impl FnOnce() -> R + Send) -> R {
        if self.durable { py.detach(write) } else { write() }
    }

    /// What is read, unless it is closed.
    pub fn source(&self) -> PyResult<Source> {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).clone();
        source.ok_or_else(|| PyValueError::new_err("the store or snapshot is closed"))
    }

    /// The store, for writes.
    pub fn store(&self) -> PyResult<Arc<Bytes>> {
        match self.source()? {
            Source::Live(store) => Ok(store),
            Source::At(_) => Err(PyTypeError::new_err("a snapshot does not change")),
        }
    }

    /// Refuses a key that Python could not compare with those of the store.
    pub fn admit(&self, source: &Source, key: &Encoded) -> PyResult<()> {
        if self.shapes.check(&key.shape) == Verdict::Agrees {
            return Ok(());
        }
        if source.len() == 0 {
            self.shapes.clear();
            self.shapes.check(&key.shape);
            return Ok(());
        }
        self.ask_neighbours(source, key)?;
        self.shapes.accept_mixed();
        Ok(())
    }

    fn ask_neighbours(&self, source: &Source, key: &Encoded) -> PyResult<()> {
        let below = (Limit::Unbounded, Limit::Excluded(key.bytes.clone()));
        let above = (Limit::Excluded(key.bytes.clone()), Limit::Unbounded);
        let neighbours = [
            source.nearest(&below, Direction::Descending),
            source.nearest(&above, Direction::Ascending),
        ];
        for (neighbour, _) in neighbours.iter().flatten() {
            if !can_compare(&key.bytes, neighbour) {
                return Err(PyTypeError::new_err(
                    "the key cannot be ordered among the keys of the store: their types differ",
                ));
            }
        }
        Ok(())
    }

    /// The bounds that two objects give; `None` is no bound.
    pub fn span(
        &self,
        source: &Source,
        lo: Option<&Bound<'_, PyAny>>,
        hi: Option<&Bound<'_, PyAny>>,
        inclusive: (bool, bool),
    ) -> PyResult<Span> {
        let limit = |key: Option<&Bound<'_, PyAny>>, inclusive: bool| -> PyResult<_> {
            let Some(key) = key else { return Ok(Limit::Unbounded) };
            let key = encoded(key)?;
            if self.shapes.only().as_slice() != key.shape.as_slice() {
                self.ask_neighbours(source, &key)?;
            }
            Ok(if inclusive { Limit::Included(key.bytes) } else { Limit::Excluded(key.bytes) })
        };
        Ok((limit(lo, inclusive.0)?, limit(hi, inclusive.1)?))
    }

    pub fn decode_value<'py>(&self, py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        value::decode(py, bytes, self.codec.as_deref())
    }

    pub fn encode_value(&self, value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
        let mut bytes = Vec::with_capacity(24);
        value::encode(value, self.codec.as_deref(), &mut bytes)?;
        Ok(bytes)
    }

    fn entry<'py>(
        &self,
        py: Python<'py>,
        found: Option<(Vec<u8>, Vec<u8>)>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some((key, value)) = found else { return Ok(None) };
        let key = key::decode(py, &key, &self.shapes.only())?;
        Ok(Some(PyTuple::new(py, [key, self.decode_value(py, &value)?])?))
    }
}

#[pymethods]
impl Core {
    /// A new store; with `path` that of a directory; with `backup` what a backup holds; with
    /// `snapshot_of` the state of a store at this moment.
    #[new]
    #[pyo3(signature = (*, memory_limit=None, codec=None, snapshot_of=None, path=None, backup=None,
        sync="second", repair=false))]
    #[expect(clippy::too_many_arguments, reason = "all are named by their callers")]
    fn create(
        py: Python<'_>,
        memory_limit: Option<usize>,
        codec: Option<(Py<PyAny>, Py<PyAny>)>,
        snapshot_of: Option<&Bound<'_, Self>>,
        path: Option<PathBuf>,
        backup: Option<PathBuf>,
        sync: &str,
        repair: bool,
    ) -> PyResult<Self> {
        if let Some(core) = snapshot_of.map(Bound::get) {
            let source = Source::At(core.store()?.snapshot());
            return Ok(Self::new(source, Arc::clone(&core.shapes), core.codec.clone()));
        }
        let options = match memory_limit {
            Some(bytes) => Options::new().memory_limit(bytes),
            None => Options::new(),
        };
        let sync = match sync {
            "always" => Sync::Always,
            "second" => Sync::EverySecond,
            "never" => Sync::Never,
            other => {
                let message = format!("sync is 'always', 'second' or 'never', not {other:?}");
                return Err(PyValueError::new_err(message));
            }
        };
        let codec = codec.map(|(dumps, loads)| Arc::new(Codec { dumps, loads }));
        let open = OpenOptions::new().store(options.clone()).sync(sync).repair(repair);
        let store: Bytes = match (&path, &backup) {
            (Some(path), _) => py.detach(|| Store::open(path, open)).map_err(raise_backup)?,
            (None, Some(path)) => py.detach(|| Store::restore(path, open)).map_err(raise_backup)?,
            (None, None) => Store::with_options(options),
        };
        let shapes = Arc::<Shapes>::default();
        if store.approximate_len() > 0 {
            // The types of these keys are not known: neighbours decide.
            shapes.accept_mixed();
        }
        let core = Self::new(Source::Live(Arc::new(store)), shapes, codec);
        Ok(Self { durable: path.is_some(), ..core })
    }

    /// Backs up the state of this moment: into the store's directory, or into a new one. Returns
    /// its path and the number of entries. The GIL is released.
    #[pyo3(signature = (path=None))]
    fn backup(&self, py: Python<'_>, path: Option<PathBuf>) -> PyResult<(PathBuf, u64)> {
        let store = self.store()?;
        let options = BackupOptions::new();
        let summary = py.detach(|| match path {
            Some(path) => store.backup_to(path, &options),
            None => store.backup(&options),
        });
        let summary = summary.map_err(raise_backup)?;
        Ok((summary.path, summary.entries))
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.source()?.len())
    }

    fn __bool__(&self) -> PyResult<bool> {
        Ok(self.source()?.len() > 0)
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.source()?.contains(&encoded(key)?.bytes))
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.source()?.get(&encoded(key)?.bytes) {
            Some(value) => self.decode_value(key.py(), &value),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.source()?.get(&encoded(key)?.bytes) {
            Some(value) => self.decode_value(key.py(), &value).map(Some),
            None => Ok(default),
        }
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = key.py();
        let key = encoded(key)?;
        let value = self.encode_value(value)?;
        let store = self.store()?;
        self.admit(&Source::Live(Arc::clone(&store)), &key)?;
        self.write(py, || store.modify(&key.bytes, |_| Change::Put(value.as_slice())))
            .map_err(raise)
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = encoded(key)?.bytes;
        let (mut present, store) = (false, self.store()?);
        let removed = self.write(key.py(), || {
            store.modify::<&[u8], _>(&bytes, |old| {
                present = old.is_some();
                Change::Remove
            })
        });
        gone(removed)?;
        if present { Ok(()) } else { Err(PyKeyError::new_err(key.clone().unbind())) }
    }

    /// Removes a key and returns its value; `None` if it is absent.
    fn _take<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        let (store, bytes) = (self.store()?, encoded(key)?.bytes);
        let mut old = None;
        let removed = self.write(key.py(), || {
            store.modify::<&[u8], _>(&bytes, |present| {
                old = present.map(<[u8]>::to_vec);
                Change::Remove
            })
        });
        gone(removed)?;
        old.map(|old| self.decode_value(key.py(), &old).map(|old| (old,))).transpose()
    }

    /// Inserts a key unless it is present; returns the value that it has then.
    #[pyo3(signature = (key, default=None, /))]
    fn setdefault<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let default = default.unwrap_or_else(|| py.None().into_bound(py));
        let (key, value, store) = (encoded(key)?, self.encode_value(&default)?, self.store()?);
        self.admit(&Source::Live(Arc::clone(&store)), &key)?;
        let present = self.write(py, || store.insert_if_absent(&key.bytes, &value));
        match present.map_err(raise)? {
            Some(present) => self.decode_value(py, &present),
            None => Ok(default),
        }
    }

    /// Sets or removes a key if its value is the expected one; returns whether it was. An empty
    /// tuple is an absent value, a tuple of one the value.
    fn _compare_and_set(
        &self,
        key: &Bound<'_, PyAny>,
        expected: &Bound<'_, PyTuple>,
        new: &Bound<'_, PyTuple>,
    ) -> PyResult<bool> {
        let py = key.py();
        let bytes = |value: &Bound<'_, PyTuple>| {
            value.iter_borrowed().next().map(|value| self.encode_value(&value)).transpose()
        };
        let (key, expected, new) = (encoded(key)?, bytes(expected)?, bytes(new)?);
        let store = self.store()?;
        if new.is_some() {
            self.admit(&Source::Live(Arc::clone(&store)), &key)?;
        }
        let done = self
            .write(py, || store.compare_exchange(&key.bytes, expected.as_deref(), new.as_deref()));
        Ok(done.map_err(raise)?.is_ok())
    }

    /// The entry at a position, counted from the front or (negative) from the back. 40 entries at a
    /// time.
    fn _at<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let source = self.source()?;
        let found = py.detach(|| {
            // The last one needs no count.
            if index == -1 {
                let all = (Limit::Unbounded, Limit::Unbounded);
                return source.nearest(&all, Direction::Descending);
            }
            let at = if index < 0 { index + source.len() as isize } else { index };
            source.select(usize::try_from(at).ok()?)
        });
        self.entry(py, found)
    }

    /// Removes the first or last entry and returns it; `None` if there is none.
    fn _pop_end<'py>(&self, py: Python<'py>, last: bool) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let store = self.store()?;
        let source = Source::Live(Arc::clone(&store));
        let direction = if last { Direction::Descending } else { Direction::Ascending };
        loop {
            let found = source.nearest(&(Limit::Unbounded, Limit::Unbounded), direction);
            let Some((key, value)) = &found else { return Ok(None) };
            // Another thread may have taken or changed it.
            let done = self.write(py, || store.compare_exchange(key, Some(value), None));
            if done.map_err(raise)?.is_ok() {
                return self.entry(py, found);
            }
        }
    }

    /// The entry with the largest key that is at most `key`, or None. O(log n).
    fn floor<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let source = self.source()?;
        let span = self.span(&source, None, Some(key), (true, true))?;
        self.entry(key.py(), source.nearest(&span, Direction::Descending))
    }

    /// The entry with the smallest key that is at least `key`, or None. O(log n).
    fn ceil<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let source = self.source()?;
        let span = self.span(&source, Some(key), None, (true, true))?;
        self.entry(key.py(), source.nearest(&span, Direction::Ascending))
    }

    /// Counts the keys within the bounds, 40 at a time, with the GIL released.
    #[pyo3(signature = (lo=None, hi=None, inclusive=(true, true)))]
    fn count_range(
        &self,
        py: Python<'_>,
        lo: Option<&Bound<'_, PyAny>>,
        hi: Option<&Bound<'_, PyAny>>,
        inclusive: (bool, bool),
    ) -> PyResult<usize> {
        let source = self.source()?;
        let span = self.span(&source, lo, hi, inclusive)?;
        Ok(py.detach(|| source.count(&span)))
    }

    /// Lists of entries within the bounds, in order; `kind` is 0 for keys, 1 for values, 2 for
    /// both.
    #[pyo3(signature = (kind, lo, hi, inclusive, reverse, limit))]
    fn _chunks(
        &self,
        kind: u8,
        lo: Option<&Bound<'_, PyAny>>,
        hi: Option<&Bound<'_, PyAny>>,
        inclusive: (bool, bool),
        reverse: bool,
        limit: Option<usize>,
    ) -> PyResult<Chunks> {
        let source = self.source()?;
        let span = self.span(&source, lo, hi, inclusive)?;
        let chunks = Chunks::new(source, span, Kind::of(kind), reverse, limit);
        Ok(chunks.of(Arc::clone(&self.shapes), self.codec.clone()))
    }

    /// Lists of entries whose keys begin with a string, bytes, or the first elements of a tuple.
    fn _prefix_chunks(
        &self,
        kind: u8,
        prefix: &Bound<'_, PyAny>,
        reverse: bool,
        limit: Option<usize>,
    ) -> PyResult<Chunks> {
        let mut key = encoded(prefix)?.bytes;
        use ordna::tuple::code::{BYTES, STRING, TUPLE};
        if !matches!(key[0], STRING | BYTES | TUPLE) {
            return Err(PyTypeError::new_err("a prefix is a str, bytes or a tuple"));
        }
        // Without the end, the bytes begin all that is longer.
        key.pop();
        let end = ordna::key::prefix_end(&key).map_or(Limit::Unbounded, Limit::Excluded);
        let span = (Limit::Included(key), end);
        let chunks = Chunks::new(self.source()?, span, Kind::of(kind), reverse, limit);
        Ok(chunks.of(Arc::clone(&self.shapes), self.codec.clone()))
    }

    /// Removes all keys within the bounds; returns how many. The GIL is released.
    #[pyo3(signature = (lo=None, hi=None, inclusive=(true, true)))]
    fn del_range(
        &self,
        py: Python<'_>,
        lo: Option<&Bound<'_, PyAny>>,
        hi: Option<&Bound<'_, PyAny>>,
        inclusive: (bool, bool),
    ) -> PyResult<usize> {
        let store = self.store()?;
        let span = self.span(&Source::Live(Arc::clone(&store)), lo, hi, inclusive)?;
        let (lower, upper) = by_ref(&span);
        Ok(py.detach(|| store.remove_range(lower, upper)))
    }

    /// Removes all entries. The GIL is released.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store()?;
        py.detach(|| store.remove_range(Limit::Unbounded, Limit::Unbounded));
        if store.approximate_len() == 0 {
            self.shapes.clear();
        }
        Ok(())
    }

    /// Applies writes as one: pairs of a key and a tuple, which is empty for a removal.
    fn _write(
        &self,
        py: Python<'_>,
        writes: Vec<(Bound<'_, PyAny>, Bound<'_, PyTuple>)>,
    ) -> PyResult<()> {
        let store = self.store()?;
        let source = Source::Live(Arc::clone(&store));
        let mut encoded_writes = Vec::with_capacity(writes.len());
        for (key, value) in &writes {
            let key = encoded(key)?;
            let value = match value.iter_borrowed().next() {
                Some(value) => {
                    self.admit(&source, &key)?;
                    Some(self.encode_value(&value)?)
                }
                None => None,
            };
            encoded_writes.push((key.bytes, value));
        }
        py.detach(|| {
            let writes = encoded_writes.iter().map(|(key, value)| match value {
                Some(value) => Write::put(key.as_slice(), value.as_slice()),
                None => Write::Remove(key.as_slice()),
            });
            store.write_batch(&writes.collect::<Vec<_>>())
        })
        .map_err(raise)
    }

    /// Ends the use of the store or snapshot; a second call does nothing.
    fn close(&self, py: Python<'_>) {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle frees all entries.
        py.detach(|| drop(source));
    }

    #[getter]
    fn closed(&self) -> bool {
        self.source.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Bytes held, by part. O(n).
    fn memory_usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.store()?;
        let MemoryUsage { parts } = py.detach(|| store.memory_usage());
        let usage = PyDict::new(py);
        for (part, bytes) in &parts {
            usage.set_item(part, bytes)?;
        }
        usage.set_item("total", parts.iter().map(|(_, bytes)| bytes).sum::<usize>())?;
        Ok(usage)
    }

    /// Checks the structure of the store. O(n); for tests, while no thread writes.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store()?;
        let done = py.detach(|| store.validate());
        done.map(drop).map_err(|violation| PyValueError::new_err(violation.to_string()))
    }
}
