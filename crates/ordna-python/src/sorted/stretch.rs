//! Iteration over lists of many entries, which Python chains without a call per entry.

use ordna::sync::Lock;
use pyo3::exceptions::{PyKeyError, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::Sorted;

/// Length of the longest iteration that consists of one list, and the lengths of the first and of
/// the longest list of other iterations. The first one is short because many loops end after a few
/// entries.
const WHOLE: usize = 128;
const FIRST: usize = 32;
const LONGEST: usize = 1024;

/// The part of each entry of a dict that is listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Values,
    Items,
}

/// A dict whose keys a list orders, and the part of its entries that is listed: 1 for values, 2 for
/// pairs.
type Listed<'a, 'py> = Option<(&'a Bound<'py, PyDict>, u8)>;

impl Sorted {
    /// Returns the items at the positions from `begin` to before `end`. If `mapping` specifies a
    /// dict, the items are its keys, and their values or pairs are returned.
    pub(super) fn stretch<'py>(
        &self,
        py: Python<'py>,
        mapping: Listed<'_, 'py>,
        begin: usize,
        end: usize,
        reverse: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut objects = Vec::new();
        {
            let leaves = self.leaves.lock();
            let end = end.min(leaves.len());
            objects.reserve_exact(end.saturating_sub(begin));
            leaves.each(begin, end, |_, item| objects.push(item.clone_ref(py).into_bound(py)));
        }
        if reverse {
            objects.reverse();
        }
        if let Some((mapping, kind)) = mapping {
            let kind = if kind == 1 { Kind::Values } else { Kind::Items };
            for object in &mut objects {
                let value = mapping.get_item(&*object)?;
                let value = value.ok_or_else(|| PyKeyError::new_err(object.clone().unbind()))?;
                *object = match kind {
                    Kind::Values => value,
                    Kind::Items => PyTuple::new(py, [object.clone(), value])?.into_any(),
                };
            }
        }
        PyList::new(py, objects)
    }

    /// Returns an iterator over the positions from `begin` to before `end`.
    pub(super) fn iterate<'py>(
        slf: &Bound<'py, Self>,
        mapping: Listed<'_, 'py>,
        begin: usize,
        end: usize,
        reverse: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        if end.saturating_sub(begin) <= WHOLE {
            let list = slf.get().stretch(py, mapping, begin, end, reverse)?;
            return Ok(list.try_iter()?.into_any());
        }
        let version = slf.get().leaves.lock().version;
        let state = Lock::new(State { begin, end, length: FIRST });
        let list = slf.clone().unbind();
        let mapping = mapping.map(|(mapping, kind)| (mapping.clone().unbind(), kind));
        let stretches = Stretches { list, mapping, reverse, version, state };
        static CHAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let chain = CHAIN.get_or_try_init(py, || {
            let chain = py.import("itertools")?.getattr("chain")?.getattr("from_iterable")?;
            Ok::<_, PyErr>(chain.unbind())
        })?;
        chain.bind(py).call1((Bound::new(py, stretches)?,))
    }

    /// Returns the positions of the items from `low` to `high`.
    pub(super) fn within_items(
        &self,
        low: Option<&Bound<'_, PyAny>>,
        high: Option<&Bound<'_, PyAny>>,
        inclusive: (bool, bool),
    ) -> PyResult<(usize, usize)> {
        let begin = low.map_or(Ok(0), |item| self.rank_item(item, !inclusive.0))?;
        let end = high.map(|item| self.rank_item(item, inclusive.1)).transpose()?;
        Ok((begin, end.unwrap_or_else(|| self.leaves.lock().len())))
    }

    /// Returns the positions of the entries whose keys are within the bounds.
    pub(super) fn within(
        &self,
        low: Option<&Bound<'_, PyAny>>,
        high: Option<&Bound<'_, PyAny>>,
        inclusive: (bool, bool),
    ) -> PyResult<(usize, usize)> {
        let begin = low.map_or(Ok(0), |key| self.rank(key, !inclusive.0))?;
        let end = high.map(|key| self.rank(key, inclusive.1)).transpose()?;
        Ok((begin, end.unwrap_or_else(|| self.leaves.lock().len())))
    }
}

impl Sorted {
    pub(super) fn slice(&self, start: Option<isize>, stop: Option<isize>) -> (usize, usize) {
        let len = self.leaves.lock().len();
        let bound = |index: isize| {
            if index < 0 { len.saturating_add_signed(index) } else { index.unsigned_abs().min(len) }
        };
        (start.map_or(0, bound), stop.map_or(len, bound))
    }
}

/// The positions that remain, and the length of the next list.
struct State {
    begin: usize,
    end: usize,
    length: usize,
}

/// An iterator over lists of entries.
#[pyclass(frozen, module = "ordna._ordna")]
pub struct Stretches {
    list: Py<Sorted>,
    mapping: Option<(Py<PyDict>, u8)>,
    reverse: bool,
    /// The version of the list when the iteration began.
    version: u64,
    state: Lock<State>,
}

#[pymethods]
impl Stretches {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let list = self.list.get();
        let (begin, end) = {
            let mut state = self.state.lock();
            if state.begin >= state.end {
                return Ok(None);
            }
            if list.leaves.lock().version != self.version {
                return Err(PyRuntimeError::new_err("the list was changed during its iteration"));
            }
            let length = state.length.min(state.end - state.begin);
            state.length = (length * 2).min(LONGEST);
            if self.reverse {
                state.end -= length;
                (state.end, state.end + length)
            } else {
                state.begin += length;
                (state.begin - length, state.begin)
            }
        };
        let mapping = self.mapping.as_ref().map(|(mapping, kind)| (mapping.bind(py), *kind));
        list.stretch(py, mapping, begin, end, self.reverse).map(Some)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.list)?;
        match &self.mapping {
            Some((mapping, _)) => visit.call(mapping),
            None => Ok(()),
        }
    }
}
