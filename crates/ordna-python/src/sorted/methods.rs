//! The methods that Python sees.

use pyo3::exceptions::{PyIndexError, PyKeyError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyGenericAlias, PyList, PySet, PySlice, PyType};

use super::leaves::{Entry, LOAD, Leaves, Object, Place};
use super::{Sorted, head::head};
use ordna::sync::Lock;

/// Returns the step of a slice, and its positions in ascending order.
fn positions(slice: &Bound<'_, PySlice>, len: usize) -> PyResult<(isize, Vec<usize>)> {
    let indices = slice.indices(len as isize)?;
    let at = |n: usize| indices.start + n as isize * indices.step;
    let mut all: Vec<usize> = (0..indices.slicelength).map(|n| at(n) as usize).collect();
    if indices.step < 0 {
        all.reverse();
    }
    Ok((indices.step, all))
}

#[pymethods]
impl Sorted {
    #[new]
    #[pyo3(signature = (function=None))]
    fn new(function: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        if let Some(function) = &function
            && !function.is_callable()
        {
            return Err(PyTypeError::new_err("a key function must be callable"));
        }
        let has_function = function.is_some();
        let function = Lock::new(function.map(Bound::unbind));
        Ok(Self { leaves: Lock::new(Leaves::new()), function, has_function })
    }

    /// The key function, or None.
    #[getter]
    fn key(&self, py: Python<'_>) -> Option<Object> {
        self.function.lock().as_ref().map(|function| function.clone_ref(py))
    }

    fn __len__(&self) -> usize {
        self.leaves.lock().len()
    }

    fn __contains__(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.search(value, 0, usize::MAX)?.is_some())
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        if let Ok(slice) = index.cast::<PySlice>() {
            let (step, at) = positions(slice, self.__len__())?;
            let [Some(begin), Some(last)] = [at.first(), at.last()] else {
                return Ok(PyList::empty(py).into_any());
            };
            let items = self.stretch(py, None, *begin, *last + 1, step < 0)?;
            return match step {
                -1 | 1 => Ok(items.into_any()),
                _ => {
                    let step = PySlice::new(py, 0, items.len() as isize, step.abs());
                    items.as_any().get_item(step)
                }
            };
        }
        let found = self.position(index.extract()?).and_then(|at| self.entry(py, at));
        found.map(|(_, item)| item).ok_or_else(|| PyIndexError::new_err("list index out of range"))
    }

    fn __delitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let mut gone = Vec::new();
            let mut all = Vec::new();
            let mut leaves = self.leaves.lock();
            let (step, at) = positions(slice, leaves.len())?;
            if let [Some(begin), Some(last)] = [at.first(), at.last()] {
                if matches!(step, -1 | 1) {
                    all = leaves.remove_all(*begin, *last + 1);
                } else {
                    for position in at.iter().rev() {
                        let Place { leaf, offset, .. } = leaves.locate(*position);
                        gone.push(leaves.remove(leaf, offset));
                    }
                }
            }
            drop(leaves);
            drop((gone, all));
            return Ok(());
        }
        let refused = || PyIndexError::new_err("list index out of range");
        self.removed(index.py(), index.extract()?).map(drop).ok_or_else(refused)
    }

    /// Adds an item, after the items that are equal to it. O(log n) comparisons.
    fn add(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.insert(value, self.key_of(value)?)
    }

    /// Adds all items of an iterable, or none of them if they cannot be compared.
    fn update(&self, iterable: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = iterable.py();
        let items = py.get_type::<PyList>().call1((iterable,))?;
        let (kind, entries) = self.sorted(items.cast::<PyList>()?)?;
        self.add_all(py, kind, entries)
    }

    /// Removes all items.
    fn clear(&self) {
        let gone = self.leaves.lock().take();
        drop(gone);
    }

    /// Removes an item if it is present. O(log n) comparisons.
    fn discard(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.take(value).map(drop)
    }

    /// Removes an item. O(log n) comparisons. Raises ValueError if the item is absent.
    fn remove(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.take(value)? {
            return Ok(());
        }
        Err(PyValueError::new_err(format!("{} not in list", value.repr()?)))
    }

    /// Removes the item at an index, the last one by default, and returns it.
    #[pyo3(signature = (index=-1))]
    fn pop<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        self.removed(py, index).ok_or_else(|| PyIndexError::new_err("pop index out of range"))
    }

    /// Returns the number of items that come before `value` and before the items equal to it.
    fn bisect_left(&self, value: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.rank_item(value, false)
    }

    /// Returns the number of items that are at most `value`.
    fn bisect_right(&self, value: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.rank_item(value, true)
    }

    /// Returns the number of items that are at most `value`. The same as `bisect_right`.
    fn bisect(&self, value: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.rank_item(value, true)
    }

    /// Returns the number of items whose key is less than `key`.
    fn bisect_key_left(&self, key: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.rank(key, false)
    }

    /// Returns the number of items whose key is at most `key`.
    fn bisect_key_right(&self, key: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.rank(key, true)
    }

    /// Returns the number of items whose key is at most `key`. The same as `bisect_key_right`.
    fn bisect_key(&self, key: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.rank(key, true)
    }

    /// Returns the number of items that are equal to `value`.
    fn count(&self, value: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (begin, end) = (self.rank_item(value, false)?, self.rank_item(value, true)?);
        if !self.has_function {
            return Ok(end.saturating_sub(begin));
        }
        let (items, mut count) = (self.stretch(value.py(), None, begin, end, false)?, 0);
        for item in items.iter() {
            count += usize::from(item.eq(value)?);
        }
        Ok(count)
    }

    /// Returns the first position of an item. Raises ValueError if the item is absent, or if its
    /// position is not from `start` to below `stop`.
    #[pyo3(signature = (value, start=None, stop=None))]
    fn index(
        &self,
        value: &Bound<'_, PyAny>,
        start: Option<isize>,
        stop: Option<isize>,
    ) -> PyResult<usize> {
        let len = self.__len__();
        let bound = |index: isize| {
            if index < 0 { len.saturating_add_signed(index) } else { index.unsigned_abs().min(len) }
        };
        let (start, stop) = (bound(start.unwrap_or(0)), bound(stop.unwrap_or(isize::MAX)));
        match self.search(value, start, stop)? {
            Some((position, _)) => Ok(position),
            None => Err(PyValueError::new_err(format!("{} is not in list", value.repr()?))),
        }
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::iterate(slf, None, 0, slf.get().__len__(), false)
    }

    fn __reversed__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::iterate(slf, None, 0, slf.get().__len__(), true)
    }

    /// Returns an iterator over the items at the positions of a slice.
    #[pyo3(signature = (start=None, stop=None, reverse=false))]
    fn islice<'py>(
        slf: &Bound<'py, Self>,
        start: Option<isize>,
        stop: Option<isize>,
        reverse: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (begin, end) = slf.get().slice(start, stop);
        Self::iterate(slf, None, begin, end, reverse)
    }

    /// Returns an iterator over the items from `minimum` to `maximum`. O(log n), then O(1) for each
    /// item.
    #[pyo3(signature = (minimum=None, maximum=None, inclusive=(true, true), reverse=false))]
    fn irange<'py>(
        slf: &Bound<'py, Self>,
        minimum: Option<&Bound<'py, PyAny>>,
        maximum: Option<&Bound<'py, PyAny>>,
        inclusive: (bool, bool),
        reverse: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (begin, end) = slf.get().within_items(minimum, maximum, inclusive)?;
        Self::iterate(slf, None, begin, end, reverse)
    }

    /// Returns an iterator over the items whose keys are from `min_key` to `max_key`.
    #[pyo3(signature = (min_key=None, max_key=None, inclusive=(true, true), reverse=false))]
    fn irange_key<'py>(
        slf: &Bound<'py, Self>,
        min_key: Option<&Bound<'py, PyAny>>,
        max_key: Option<&Bound<'py, PyAny>>,
        inclusive: (bool, bool),
        reverse: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (begin, end) = slf.get().within(min_key, max_key, inclusive)?;
        Self::iterate(slf, None, begin, end, reverse)
    }

    /// Returns an iterator over at most `limit` values (`kind` 1) or pairs (`kind` 2), within
    /// bounds, of a dict whose keys this list orders.
    #[expect(clippy::too_many_arguments, reason = "the bounds and the order of a scan")]
    fn _listed<'py>(
        slf: &Bound<'py, Self>,
        mapping: &Bound<'py, PyDict>,
        kind: u8,
        low: Option<&Bound<'py, PyAny>>,
        high: Option<&Bound<'py, PyAny>>,
        inclusive: (bool, bool),
        reverse: bool,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (mut begin, mut end) = slf.get().within_items(low, high, inclusive)?;
        if let Some(limit) = limit {
            if reverse {
                begin = begin.max(end.saturating_sub(limit));
            } else {
                end = end.min(begin.saturating_add(limit));
            }
        }
        Self::iterate(slf, (kind > 0).then_some((mapping, kind)), begin, end, reverse)
    }

    /// Adds a value to a set and to this list, which orders the set.
    fn _include(&self, set: &Bound<'_, PySet>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if set.contains(value)? {
            return Ok(());
        }
        // First: a set that becomes its own member has no hash any more.
        set.add(value)?;
        if let Err(error) = self.key_of(value).and_then(|key| self.insert(value, key)) {
            set.discard(value)?;
            return Err(error);
        }
        Ok(())
    }

    /// Removes a value from a set and from this list, and returns whether it was present.
    fn _exclude(&self, set: &Bound<'_, PySet>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        if !set.contains(value)? {
            return Ok(false);
        }
        self.remove(value)?;
        set.discard(value)
    }

    /// Inserts or overwrites a key of a dict whose keys this list orders, as one step if the keys
    /// are of native types. With `keep`, a present value stays. Returns the resulting value.
    fn _set<'py>(
        &self,
        mapping: &Bound<'py, PyDict>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        keep: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if keep {
            if let Some(present) = mapping.get_item(key)? {
                return Ok(Some(present));
            }
            self.insert(key, self.key_of(key)?)?;
        } else if !mapping.contains(key)? {
            self.insert(key, self.key_of(key)?)?;
        }
        mapping.set_item(key, value)?;
        Ok(keep.then(|| value.clone()))
    }

    /// Removes a key of such a dict and returns a tuple with its value, or None if the key is
    /// absent.
    fn _unset<'py>(
        &self,
        mapping: &Bound<'py, PyDict>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        let Some(value) = mapping.get_item(key)? else { return Ok(None) };
        // ValueError if a key function gives equal keys different places.
        self.remove(key)?;
        mapping.del_item(key)?;
        Ok(Some((value,)))
    }

    /// Removes the key at an index from such a dict, and returns the key and its value.
    fn _unset_at<'py>(
        &self,
        mapping: &Bound<'py, PyDict>,
        index: isize,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let refused = || PyIndexError::new_err("list index out of range");
        let key = self.removed(mapping.py(), index).ok_or_else(refused)?;
        let absent = || PyKeyError::new_err(key.clone().unbind());
        let value = mapping.get_item(&key)?.ok_or_else(absent)?;
        mapping.del_item(&key)?;
        Ok((key, value))
    }

    /// Sets the capacity of the leaves. For tests.
    fn _reset(&self, py: Python<'_>, load: usize) {
        let mut leaves = self.leaves.lock();
        leaves.load = load.max(1);
        let (kind, mut entries) = (leaves.kind, Vec::with_capacity(leaves.len()));
        leaves.each(0, leaves.len(), |key, item| {
            let head = head(key.bind(py)).1;
            let key = self.has_function.then(|| key.clone_ref(py));
            entries.push(Entry { head, key, item: item.clone_ref(py) });
        });
        let gone = leaves.fill(kind, entries);
        drop(leaves);
        drop(gone);
    }

    /// Checks the structure and the order. O(n). For tests.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        let mut keys = Vec::new();
        {
            let leaves = self.leaves.lock();
            leaves.check(py, self.has_function).map_err(PyValueError::new_err)?;
            leaves.each(0, leaves.len(), |key, _| keys.push(key.clone_ref(py).into_bound(py)));
        }
        for pair in keys.windows(2) {
            if pair[1].lt(&pair[0])? {
                return Err(PyValueError::new_err("two keys are not in order"));
            }
        }
        Ok(())
    }

    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyGenericAlias>> {
        PyGenericAlias::new(class.py(), class.as_any(), item)
    }

    #[classattr]
    const DEFAULT_LOAD_FACTOR: usize = LOAD;

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // What is locked is in use, so its objects are alive.
        if let Some(function) = self.function.try_lock() {
            visit.call(&*function)?;
        }
        let Some(leaves) = self.leaves.try_lock() else { return Ok(()) };
        let mut done = Ok(());
        leaves.each(0, leaves.len(), |key, item| {
            if done.is_ok() && self.has_function {
                done = visit.call(key);
            }
            if done.is_ok() {
                done = visit.call(item);
            }
        });
        done
    }

    fn __clear__(&self) {
        let function = self.function.lock().take();
        let gone = self.leaves.lock().take();
        drop((function, gone));
    }
}
