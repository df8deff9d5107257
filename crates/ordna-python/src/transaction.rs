//! Transactions.
//!
//! # Contract
//! One thread at a time uses a transaction; other threads get an error during its calls. Python is not
//! called during a call of the store: keys and values are encoded before it and decoded after it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use ordna::sync::Lock;
use ordna::{Direction, Entries, Error, SuspendedTransaction};
use pyo3::exceptions::{PyKeyError, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::core::{Core, encoded, wanted};
use crate::error::raise;
use crate::joining::Joining;
use crate::key;
use crate::source::{Bytes, Source, by_ref};
use crate::value::lifetime;

/// A transaction between two calls.
type Suspended = SuspendedTransaction<[u8], [u8]>;

/// The keys that a transaction puts, and their shapes.
#[derive(Default)]
struct Puts {
    joining: Joining,
    keys: Vec<Vec<u8>>,
}

/// A transaction: reads of one moment, and writes that a commit applies as one step.
#[pyclass(frozen, module = "ordna._ordna")]
pub struct Transaction {
    core: Py<Core>,
    /// `None` once the transaction has ended, and while a thread uses it.
    state: Lock<Option<(Suspended, Puts)>>,
}

impl Transaction {
    /// Takes the state for one call. The caller must put it back.
    fn take(&self) -> PyResult<(Arc<Bytes>, Suspended, Puts)> {
        let store = self.core.get().store()?;
        let refused = "the transaction has ended, or another thread uses it";
        let taken = self.state.lock().take();
        let (transaction, puts) = taken.ok_or_else(|| PyRuntimeError::new_err(refused))?;
        Ok((store, transaction, puts))
    }

    /// Continues the transaction for one call.
    fn with<R>(
        &self,
        work: impl FnOnce(&ordna::Transaction<'_, [u8], [u8]>, &mut Puts) -> Result<R, Error>,
    ) -> PyResult<R> {
        let (store, transaction, mut puts) = self.take()?;
        let transaction = store.resume(transaction).map_err(raise)?;
        let done = work(&transaction, &mut puts);
        *self.state.lock() = Some((transaction.suspend(), puts));
        done.map_err(raise)
    }

    fn read(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u8>>> {
        let Some(key) = wanted(key)? else { return Ok(None) };
        self.with(|transaction, _| Ok(transaction.get(&key.bytes)))
    }

    fn write(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        life: Option<Duration>,
    ) -> PyResult<()> {
        let core = self.core.get();
        let (key, value) = (encoded(key)?, core.encode_value(value)?);
        let source = Source::Live(core.store()?);
        let is_new = core.admit(&source, &key)?;
        self.with(|transaction, puts| {
            match life {
                Some(life) => transaction.put_for(&key.bytes, &value, life)?,
                None => transaction.put(&key.bytes, &value)?,
            }
            puts.joining.note(&source, is_new, &key.bytes, &key.shape);
            puts.keys.push(key.bytes);
            Ok(())
        })
    }
}

#[pymethods]
impl Transaction {
    #[new]
    fn new(core: Py<Core>) -> PyResult<Self> {
        let begun = core.get().store()?.begin().suspend();
        Ok(Self { core, state: Lock::new(Some((begun, Puts::default()))) })
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.read(key)?.is_some())
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.read(key)? {
            Some(value) => self.core.get().decode_value(key.py(), &value),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// Returns the value of a key, or `default` if the key is absent. O(log n).
    #[pyo3(signature = (key, default=None, /))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.read(key)? {
            Some(value) => self.core.get().decode_value(key.py(), &value).map(Some),
            None => Ok(default),
        }
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write(key, value, None)
    }

    /// Sets the value of a key, which expires after `ttl`: seconds, a `timedelta`, or None for
    /// never.
    #[pyo3(signature = (key, value, ttl=None))]
    fn put(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.write(key, value, ttl.map(lifetime).transpose()?)
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let removed = match wanted(key)? {
            Some(key) => self.with(|transaction, _| transaction.remove(&key.bytes))?,
            None => None,
        };
        removed.map(drop).ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    /// Returns a list of the pairs of key and value within the bounds, in order. Releases the GIL.
    #[pyo3(signature = (lo, hi, inclusive, reverse, limit))]
    fn _items<'py>(
        &self,
        py: Python<'py>,
        lo: Option<&Bound<'_, PyAny>>,
        hi: Option<&Bound<'_, PyAny>>,
        inclusive: (bool, bool),
        reverse: bool,
        limit: Option<usize>,
    ) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let core = self.core.get();
        let span = core.span(&core.source()?, lo, hi, inclusive)?;
        let direction = if reverse { Direction::Descending } else { Direction::Ascending };
        let mut left = limit.unwrap_or(usize::MAX);
        if left == 0 {
            return Ok(Vec::new());
        }
        let (store, transaction, puts) = self.take()?;
        let read = || {
            let (mut entries, (lower, upper)) = (Entries::new(), by_ref(&span));
            let transaction = store.resume(transaction)?;
            transaction.visit(lower, upper, direction, |key, value| {
                entries.push(key, value);
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            Ok::<(Entries<[u8], [u8]>, _), Error>((entries, transaction.suspend()))
        };
        let (entries, transaction) = py.detach(read).map_err(raise)?;
        *self.state.lock() = Some((transaction, puts));
        let shape = core.shapes.only();
        let pair = |(key, value): (&[u8], &[u8])| {
            PyTuple::new(py, [key::decode(py, key, &shape)?, core.decode_value(py, value)?])
        };
        entries.iter().map(pair).collect()
    }

    /// Applies the writes as one step and ends the transaction. Raises `Conflict` and applies none
    /// of them if other writes changed what was read. Releases the GIL.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let (store, transaction, puts) = self.take()?;
        puts.joining.check(puts.keys.iter().map(Vec::as_slice))?;
        py.detach(|| store.resume(transaction)?.commit()).map_err(raise)?;
        let core = self.core.get();
        puts.joining.done(&core.shapes);
        core.forget_if_empty(&store);
        Ok(())
    }

    /// Ends the transaction and discards its writes.
    fn abandon(&self) {
        if !self.core.get().is_forked() {
            drop(self.state.lock().take());
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.core)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.core.get().is_forked() {
            // In a child process, the threads that its snapshot would wake do not exist.
            std::mem::forget(self.state.get_mut().take());
        }
    }
}
