//! The object under `ordna.Store` and `ordna.Snapshot`.
//!
//! # Contract
//! No call of Python runs while the store is inside a reading section or a critical section: keys
//! and values are encoded before a call of the store and decoded after it. So a codec, a hash or a
//! collection of garbage may use the same store. The GIL is released for bulk calls, for scans
//! without end, and for waiting.

use std::ops::Bound as Limit;
use std::path::PathBuf;
use std::sync::Arc;

use ordna::durability::{BackupOptions, OpenOptions, SyncPolicy};
use ordna::{Change, Direction, Error, MemoryUsage, Options, Put, Store, Write};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyGenericAlias, PyTuple, PyType};

use crate::chunks::{Chunks, Kind, unusable};
use crate::error::{raise, raise_backup};
use crate::joining::{Joining, raise_order};
use crate::key;
use crate::plain::{self, ShortKey};
use crate::shapes::{Shape, Shapes, Verdict, can_compare};
use crate::source::{Bytes, KeyRange, Slot, Source, Unusable, by_ref, note_fork};
use crate::value::{self, Codec, Functions, lifetime};

/// Returns the result of a removal. A key that exceeds the limit was never present.
fn gone(removed: Result<(), Error>) -> PyResult<()> {
    match removed {
        Err(Error::KeyTooLong { .. }) => Ok(()),
        other => other.map_err(raise),
    }
}

/// Called in the child process after each fork. Objects of the parent process cannot be used from
/// then on.
#[pyfunction]
pub fn _after_fork() {
    note_fork();
}

/// A store, or a snapshot of one, with its codec and the types of its keys. The base class of
/// `Store` and `Snapshot`.
#[pyclass(subclass, frozen, module = "ordna._ordna")]
pub struct Core {
    source: Arc<Slot>,
    /// The shapes of the keys. Those of a snapshot do not change.
    pub shapes: Shapes,
    codec: Codec,
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

/// Encodes a key to look up. Returns `None` if no store can contain it.
pub fn wanted(key: &Bound<'_, PyAny>) -> PyResult<Option<Encoded>> {
    let mut encoded = Encoded { bytes: Vec::with_capacity(32), shape: Shape::new() };
    let held = key::encode_wanted(key, &mut encoded.bytes, &mut encoded.shape)?;
    Ok(held.then_some(encoded))
}

/// Returns the entry at a position, counted from the front or, if negative, from the back.
fn at(source: &Source, index: isize) -> Option<(Vec<u8>, Vec<u8>)> {
    let all = (Limit::Unbounded, Limit::Unbounded);
    match index {
        // The ends are found without counting.
        0 => source.nearest(&all, Direction::Ascending),
        -1 => source.nearest(&all, Direction::Descending),
        1.. => source.select(index.unsigned_abs()),
        _ => source.select(source.len().checked_sub(index.unsigned_abs())?),
    }
}

impl Core {
    fn new(source: Source, shapes: Shapes, codec: Codec) -> Self {
        Self { source: Arc::new(Slot::new(source)), shapes, codec, durable: false }
    }

    /// Runs a write. Releases the GIL if the write may wait for a disk.
    fn write<R: Send>(&self, py: Python<'_>, write: impl FnOnce() -> R + Send) -> R {
        if self.durable { py.detach(write) } else { write() }
    }

    /// Returns the source, unless it is closed or belongs to another process.
    pub fn source(&self) -> PyResult<Source> {
        self.source.get().map_err(unusable)
    }

    /// Returns whether the object was created by a process that this one was forked from.
    pub fn is_forked(&self) -> bool {
        self.source.is_forked()
    }

    /// Returns the store for a write, which a snapshot refuses.
    pub fn store(&self) -> PyResult<Arc<Bytes>> {
        self.live("a snapshot does not change")
    }

    /// Returns the store. For a snapshot, returns an error with the text `refusal`.
    fn live(&self, refusal: &'static str) -> PyResult<Arc<Bytes>> {
        match self.source()? {
            Source::Live(store) => Ok(store),
            Source::At(_) => Err(PyTypeError::new_err(refusal)),
        }
    }

    /// Refuses a key that Python could not compare with those of the store. Returns whether the
    /// caller must have its shape remembered once the key is in the store.
    pub fn admit(&self, source: &Source, key: &Encoded) -> PyResult<bool> {
        let verdict = self.shapes.check(&key.shape);
        if verdict == Verdict::Known {
            return Ok(false);
        }
        if source.len() == 0 {
            self.shapes.clear();
        } else if verdict == Verdict::AskNeighbours {
            self.ask_neighbours(source, key)?;
        }
        Ok(true)
    }

    /// Forgets the shapes if the store is empty.
    pub fn forget_if_empty(&self, store: &Bytes) {
        if store.is_empty() {
            self.shapes.clear();
        }
    }

    pub fn chunks(
        &self,
        py: Python<'_>,
        span: KeyRange,
        kind: Kind,
        reverse: bool,
        limit: Option<usize>,
    ) -> Chunks {
        let chunks = Chunks::new(Arc::clone(&self.source), span, kind, reverse, limit);
        chunks.of(self.shapes.only(), self.codec.copied(py))
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
                return Err(raise_order("the key cannot be ordered among the keys of the store"));
            }
        }
        Ok(())
    }

    /// Returns the bounds that two objects specify. `None` means no bound.
    pub fn span(
        &self,
        source: &Source,
        lo: Option<&Bound<'_, PyAny>>,
        hi: Option<&Bound<'_, PyAny>>,
        inclusive: (bool, bool),
    ) -> PyResult<KeyRange> {
        let lo = lo.map(encoded).transpose()?;
        let hi = hi.map(encoded).transpose()?;
        self.key_range(source, lo.as_ref(), hi.as_ref(), inclusive)
    }

    /// Returns the bounds that two keys specify. `None` means no bound.
    pub fn key_range(
        &self,
        source: &Source,
        lo: Option<&Encoded>,
        hi: Option<&Encoded>,
        inclusive: (bool, bool),
    ) -> PyResult<KeyRange> {
        let limit = |key: Option<&Encoded>, inclusive: bool| -> PyResult<_> {
            let Some(key) = key else { return Ok(Limit::Unbounded) };
            if !self.shapes.is_only(&key.shape) {
                self.ask_neighbours(source, key)?;
            }
            let bytes = key.bytes.clone();
            Ok(if inclusive { Limit::Included(bytes) } else { Limit::Excluded(bytes) })
        };
        Ok((limit(lo, inclusive.0)?, limit(hi, inclusive.1)?))
    }

    /// Returns the value of a key. Values of frequent types are copied only once, into their
    /// object.
    fn find<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = key.py();
        let read = |bytes: &[u8]| value::plain(py, bytes).ok_or_else(|| bytes.to_vec());
        let mut short = ShortKey::new();
        let found = if plain::encode(key, &mut short) {
            self.source.with(|source| source.get_with(&short, read)).map_err(unusable)?
        } else {
            let source = self.source()?;
            wanted(key)?.and_then(|key| source.get_with(&key.bytes, read))
        };
        match found {
            Some(Err(bytes)) => self.decode_value(py, &bytes).map(Some),
            found => Ok(found.and_then(Result::ok)),
        }
    }

    pub fn decode_value<'py>(&self, py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        value::decode(py, bytes, &self.codec)
    }

    pub fn encode_value(&self, value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
        let mut bytes = Vec::with_capacity(24);
        value::encode(value, &self.codec, &mut bytes)?;
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
    /// Creates a store in memory. With `path`, opens the store of that directory. With `backup`,
    /// creates a store in memory from a backup. With `snapshot_of`, takes a snapshot of that store.
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
            return Ok(Self::new(source, core.shapes.frozen(), core.codec.copied(py)));
        }
        let options = match memory_limit {
            Some(bytes) => Options::new().memory_limit(bytes),
            None => Options::new(),
        };
        let sync = match sync {
            "always" => SyncPolicy::Always,
            "second" => SyncPolicy::EverySecond,
            "never" => SyncPolicy::Never,
            other => {
                let message = format!("sync is 'always', 'second' or 'never', not {other:?}");
                return Err(PyValueError::new_err(message));
            }
        };
        let codec = Codec::new(codec.map(|(dumps, loads)| Functions { dumps, loads }));
        let open = OpenOptions::new().store(options.clone()).sync(sync).repair(repair);
        let store: Bytes = match (&path, &backup) {
            (Some(path), _) => py.detach(|| Store::open(path, open)).map_err(raise_backup)?,
            (None, Some(path)) => py.detach(|| Store::restore(path, open)).map_err(raise_backup)?,
            (None, None) => Store::with_options(options),
        };
        let shapes = Shapes::default();
        if !store.is_empty() {
            // The types of these keys are not known, so neighbours decide.
            shapes.accept_mixed();
        }
        let core = Self::new(Source::Live(Arc::new(store)), shapes, codec);
        Ok(Self { durable: path.is_some(), ..core })
    }

    /// Backs up the current state into the store's directory, or into the new directory `path`.
    /// Returns the path and the number of entries. Other threads may write during the call.
    /// Releases the GIL. O(n).
    #[pyo3(signature = (path=None))]
    fn backup(&self, py: Python<'_>, path: Option<PathBuf>) -> PyResult<(PathBuf, u64)> {
        let store = self.live("a backup is one of a store, not of a snapshot")?;
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
        let mut short = ShortKey::new();
        if plain::encode(key, &mut short) {
            return self.source.with(|source| source.contains(&short)).map_err(unusable);
        }
        let source = self.source()?;
        Ok(wanted(key)?.is_some_and(|key| source.contains(&key.bytes)))
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.find(key)?.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    /// Returns the value of a key, or `default` if the key is absent. O(log n).
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.find(key)?.or(default))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(key, value, None)
    }

    /// Sets the value of a key, which expires after `ttl`: seconds, a `timedelta`, or None for
    /// never. O(log n).
    #[pyo3(signature = (key, value, ttl=None))]
    fn put(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = key.py();
        let key = encoded(key)?;
        let value = self.encode_value(value)?;
        let life = ttl.map(lifetime).transpose()?;
        let store = self.store()?;
        let expires_at = life.map(|life| store.deadline_after(life));
        let is_new = self.admit(&Source::Live(Arc::clone(&store)), &key)?;
        let mut present = false;
        let done = self.write(py, || {
            store.modify_entry(&key.bytes, |old| {
                present = old.is_some();
                Change::Put(Put { value: value.as_slice(), expires_at })
            })
        });
        done.map_err(raise)?;
        if is_new && !present {
            self.shapes.remember(&key.shape);
        }
        Ok(())
    }

    /// Makes a key expire after `ttl`: seconds, a `timedelta`, or None for never. Returns whether
    /// the key is present. O(log n).
    #[pyo3(signature = (key, ttl))]
    fn expire(&self, key: &Bound<'_, PyAny>, ttl: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let life = ttl.map(lifetime).transpose()?;
        let store = self.store()?;
        let Some(Encoded { bytes, .. }) = wanted(key)? else { return Ok(false) };
        let expires_at = life.map(|life| store.deadline_after(life));
        match self.write(key.py(), || store.set_expiry(&bytes, expires_at)) {
            Err(Error::KeyTooLong { .. }) => Ok(false),
            done => done.map_err(raise),
        }
    }

    /// Returns the seconds until a key expires, or None if it does not expire. Raises KeyError if
    /// the key is absent. O(log n).
    fn ttl(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
        let store = self.live("a snapshot does not change with time")?;
        let left = wanted(key)?.and_then(|key| store.expires_in(&key.bytes));
        let left = left.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))?;
        Ok(left.map(|left| left.as_secs_f64()))
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let (mut present, store) = (false, self.store()?);
        if let Some(Encoded { bytes, .. }) = wanted(key)? {
            let removed = self.write(key.py(), || {
                store.modify::<&[u8], _>(&bytes, |old| {
                    present = old.is_some();
                    Change::Remove
                })
            });
            gone(removed)?;
        }
        if !present {
            return Err(PyKeyError::new_err(key.clone().unbind()));
        }
        self.forget_if_empty(&store);
        Ok(())
    }

    /// Removes a key and returns a tuple with its value, or None if the key is absent. If the value
    /// cannot be decoded, the entry stays.
    fn _take<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        let (py, store) = (key.py(), self.store()?);
        let Some(Encoded { bytes, .. }) = wanted(key)? else { return Ok(None) };
        loop {
            let Some(old) = store.get(&bytes) else { return Ok(None) };
            let value = self.decode_value(py, &old)?;
            // Another thread may have changed the entry.
            let done = self.write(py, || store.compare_exchange(&bytes, Some(&old), None));
            if done.map_err(raise)?.is_ok() {
                self.forget_if_empty(&store);
                return Ok(Some((value,)));
            }
        }
    }

    /// Returns the value of a key. If the key is absent, sets it to `default` first. O(log n).
    #[pyo3(signature = (key, default=None))]
    fn setdefault<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let default = default.unwrap_or_else(|| py.None().into_bound(py));
        let (key, store) = (encoded(key)?, self.store()?);
        if let Some(present) = store.get(&key.bytes) {
            return self.decode_value(py, &present);
        }
        let value = self.encode_value(&default)?;
        let is_new = self.admit(&Source::Live(Arc::clone(&store)), &key)?;
        let present = self.write(py, || store.insert_if_absent(&key.bytes, &value));
        if let Some(present) = present.map_err(raise)? {
            return self.decode_value(py, &present);
        }
        if is_new {
            self.shapes.remember(&key.shape);
        }
        Ok(default)
    }

    /// Sets or removes a key if its value is the expected one. Returns whether it was. An empty
    /// tuple stands for an absent key, a tuple with one item for its value. The encodings are
    /// compared.
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
        let (expected, new, store) = (bytes(expected)?, bytes(new)?, self.store()?);
        let key = if new.is_some() {
            encoded(key)?
        } else {
            // A key that no store can hold is absent.
            match wanted(key)? {
                Some(key) if key.bytes.len() <= ordna::key::MAX_LEN => key,
                _ => return Ok(expected.is_none()),
            }
        };
        let source = Source::Live(Arc::clone(&store));
        let is_new = new.is_some() && self.admit(&source, &key)?;
        let done = self
            .write(py, || store.compare_exchange(&key.bytes, expected.as_deref(), new.as_deref()));
        let done = done.map_err(raise)?.is_ok();
        if done && is_new && expected.is_none() {
            self.shapes.remember(&key.shape);
        }
        if done && new.is_none() {
            self.forget_if_empty(&store);
        }
        Ok(done)
    }

    /// Returns a tuple with the parts of the entry at a position: its key, its value or both, as
    /// `kind` of `Range` says. Negative positions count from the end. O(log n + leaves before it).
    fn _at<'py>(
        &self,
        py: Python<'py>,
        index: isize,
        kind: u8,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let source = self.source()?;
        let Some((key, value)) = py.detach(|| at(&source, index)) else { return Ok(None) };
        let key = || key::decode(py, &key, &self.shapes.only());
        let parts = match Kind::of(kind) {
            Kind::Keys => vec![key()?],
            Kind::Values => vec![self.decode_value(py, &value)?],
            Kind::Items => vec![key()?, self.decode_value(py, &value)?],
        };
        PyTuple::new(py, parts).map(Some)
    }

    /// Removes the entry at a position and returns it, or returns None if there is none. If the
    /// entry cannot be decoded, it stays.
    fn _pop<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let store = self.store()?;
        let source = Source::Live(Arc::clone(&store));
        loop {
            let Some((key, value)) = py.detach(|| at(&source, index)) else { return Ok(None) };
            let object = key::decode(py, &key, &self.shapes.only())?;
            let entry = PyTuple::new(py, [object, self.decode_value(py, &value)?])?;
            // Another thread may have removed or changed the entry.
            let done = self.write(py, || store.compare_exchange(&key, Some(&value), None));
            if done.map_err(raise)?.is_ok() {
                self.forget_if_empty(&store);
                return Ok(Some(entry));
            }
        }
    }

    /// Returns the number of keys that are less than `key` or, if `inclusive`, at most `key`. None
    /// is a key here and does not mean a missing bound.
    fn _rank(&self, key: &Bound<'_, PyAny>, inclusive: bool) -> PyResult<usize> {
        let source = self.source()?;
        let span = self.span(&source, None, Some(key), (true, inclusive))?;
        Ok(key.py().detach(|| source.count(&span)))
    }

    /// Returns an iterator over at most `limit` entries, in either direction, that starts at a
    /// position.
    fn _from_position<'py>(
        &self,
        py: Python<'py>,
        kind: u8,
        position: usize,
        reverse: bool,
        limit: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let source = self.source()?;
        let first = py.detach(|| source.select(position)).filter(|_| limit > 0);
        let (span, limit) = match first {
            Some((key, _)) if reverse => ((Limit::Unbounded, Limit::Included(key)), limit),
            Some((key, _)) => ((Limit::Included(key), Limit::Unbounded), limit),
            None => ((Limit::Unbounded, Limit::Unbounded), 0),
        };
        self.chunks(py, span, Kind::of(kind), reverse, Some(limit)).iterate(py, &source)
    }

    /// Returns the pair with the largest key that is at most `key`, or None if there is none. O(log
    /// n).
    fn floor<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let source = self.source()?;
        let span = self.span(&source, None, Some(key), (true, true))?;
        self.entry(key.py(), source.nearest(&span, Direction::Descending))
    }

    /// Returns the pair with the smallest key that is at least `key`, or None if there is none.
    /// O(log n).
    fn ceil<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let source = self.source()?;
        let span = self.span(&source, Some(key), None, (true, true))?;
        self.entry(key.py(), source.nearest(&span, Direction::Ascending))
    }

    /// Returns the number of keys within the bounds. A bound of None means no bound. O(log n), plus
    /// a step for each leaf of some 40 keys that has changed since the last such call. Releases the
    /// GIL.
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

    /// Returns an iterator over the pairs whose keys begin with a string, bytes, or the first
    /// elements of a tuple.
    fn _with_prefix<'py>(
        &self,
        prefix: &Bound<'py, PyAny>,
        reverse: bool,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut key = encoded(prefix)?.bytes;
        use ordna::tuple::code::{BYTES, STRING, TUPLE};
        if !matches!(key[0], STRING | BYTES | TUPLE) {
            return Err(PyTypeError::new_err("a prefix is a str, bytes or a tuple"));
        }
        // Without the end, the bytes begin all that is longer.
        key.pop();
        let end = ordna::key::prefix_end(&key).map_or(Limit::Unbounded, Limit::Excluded);
        let span = (Limit::Included(key), end);
        let (py, source) = (prefix.py(), self.source()?);
        self.chunks(py, span, Kind::Items, reverse, limit).iterate(py, &source)
    }

    /// Removes all keys within the bounds and returns how many there were. A bound of None means no
    /// bound. Every snapshot holds all of them or none. O(log n) for each key. Releases the GIL.
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
        let removed = py.detach(|| store.remove_range((lower, upper))).map_err(raise)?;
        self.forget_if_empty(&store);
        Ok(removed)
    }

    /// Removes all entries. Every snapshot holds all of them or none. O(log n) for each. Releases
    /// the GIL.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store()?;
        py.detach(|| store.clear()).map_err(raise)?;
        self.forget_if_empty(&store);
        Ok(())
    }

    /// Applies writes together. Each is a pair of a key and a tuple, which is empty for a removal.
    fn _write(
        &self,
        py: Python<'_>,
        writes: Vec<(Bound<'_, PyAny>, Bound<'_, PyTuple>)>,
    ) -> PyResult<()> {
        let store = self.store()?;
        let source = Source::Live(Arc::clone(&store));
        let mut encoded_writes = Vec::with_capacity(writes.len());
        let mut joining = Joining::default();
        for (key, value) in &writes {
            if let Some(value) = value.iter_borrowed().next() {
                let key = encoded(key)?;
                let is_new = self.admit(&source, &key)?;
                joining.note(&source, is_new, &key.bytes, &key.shape);
                encoded_writes.push((key.bytes, Some(self.encode_value(&value)?)));
            } else if let Some(Encoded { bytes, .. }) = wanted(key)?
                && bytes.len() <= ordna::key::MAX_LEN
            {
                encoded_writes.push((bytes, None));
            }
        }
        let puts = encoded_writes.iter().filter(|(_, value)| value.is_some());
        joining.check(puts.map(|(key, _)| key.as_slice()))?;
        py.detach(|| {
            let writes = encoded_writes.iter().map(|(key, value)| match value {
                Some(value) => Write::put(key.as_slice(), value.as_slice()),
                None => Write::Remove(key.as_slice()),
            });
            store.write_batch(&writes.collect::<Vec<_>>())
        })
        .map_err(raise)?;
        joining.done(&self.shapes);
        self.forget_if_empty(&store);
        Ok(())
    }

    /// Closes the store or snapshot, and releases the directory of an opened store. Later calls
    /// raise ValueError. A second call does nothing, and neither does a call in a child process of
    /// the process that created the object.
    fn close(&self, py: Python<'_>) {
        let source = self.source.take();
        // The last handle frees all entries.
        py.detach(|| drop(source));
    }

    /// Whether the store or snapshot is closed.
    #[getter]
    fn closed(&self) -> PyResult<bool> {
        match self.source.get() {
            Ok(_) => Ok(false),
            Err(Unusable::Closed) => Ok(true),
            Err(forked) => Err(unusable(forked)),
        }
    }

    /// Returns the memory that the store uses, in bytes, by part. O(n).
    fn memory_usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.live("the memory is the store's: a snapshot shares its entries")?;
        let MemoryUsage { parts } = py.detach(|| store.memory_usage());
        let usage = PyDict::new(py);
        for (part, bytes) in &parts {
            usage.set_item(part, bytes)?;
        }
        usage.set_item("total", parts.iter().map(|(_, bytes)| bytes).sum::<usize>())?;
        Ok(usage)
    }

    /// Checks the structure of the store. O(n). For tests; no thread may write during the call.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store()?;
        let done = py.detach(|| store.check_invariants());
        done.map(drop).map_err(|violation| PyValueError::new_err(violation.to_string()))
    }

    /// Lets annotations such as `Store[str, int]` be evaluated.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyGenericAlias>> {
        PyGenericAlias::new(class.py(), class.as_any(), item)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.codec.traverse(&visit)
    }

    fn __clear__(&self) {
        self.codec.clear();
    }
}
