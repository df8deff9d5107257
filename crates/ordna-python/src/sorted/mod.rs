//! The implementation of `SortedList`, `SortedSet` and `SortedDict`, which keeps references to
//! Python objects in order.
//!
//! # Contract
//! The lock is held only while no code of Python's users can run. Keys of native types are compared
//! under the lock, and Python compares other keys without it. A place that was found in this way is
//! used only if the list still has the version of the search. So a comparison, a key function or a
//! destructor may use the same list, and may let other threads use it.

mod head;
mod leaves;
mod methods;
mod stretch;

use ordna::sync::Lock;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use head::{Kind, head};
use leaves::{Entry, Leaves, Object, Place, Probe};
pub use stretch::Stretches;

/// Number of searches after which a call fails, if the list was changed during each of them.
const ATTEMPTS: usize = 100;

/// New items are inserted one by one if the list is more than this many times longer. Otherwise it
/// is faster to sort all items again.
const FEW: usize = 4;

fn contended() -> PyErr {
    PyRuntimeError::new_err("the list was changed each time while its keys were compared")
}

/// A list of items in the order of their keys. The base class of `SortedList`.
#[pyclass(subclass, frozen, module = "ordna._ordna")]
pub struct Sorted {
    leaves: Lock<Leaves>,
    /// The function that returns the key of an item.
    function: Lock<Option<Object>>,
    has_function: bool,
}

impl Sorted {
    /// Returns the key of an item, if there is a key function.
    fn key_of(&self, item: &Bound<'_, PyAny>) -> PyResult<Option<Object>> {
        if !self.has_function {
            return Ok(None);
        }
        let py = item.py();
        let function = self.function.lock().as_ref().map(|function| function.clone_ref(py));
        function.map(|function| function.call1(py, (item,))).transpose()
    }

    /// Finds the first entry whose key is at least `key` or, if `right`, greater than it.
    fn find(&self, key: &Bound<'_, PyAny>, right: bool) -> PyResult<Place> {
        let (kind, head) = head(key);
        self.find_probe(&Probe { kind, head, key }, right)
    }

    fn find_probe(&self, probe: &Probe<'_, '_>, right: bool) -> PyResult<Place> {
        for _ in 0..ATTEMPTS {
            let (version, leaves) = {
                let leaves = self.leaves.lock();
                if let Some(place) = leaves.find(probe, right) {
                    return Ok(place);
                }
                (leaves.version, leaves.leaf_count())
            };
            let last = |leaf: usize| (leaf, None);
            let Some(leaf) = self.first(probe, right, version, leaves, last)? else { continue };
            if leaf == leaves {
                return Ok(Place { leaf, offset: 0, version });
            }
            let length = {
                let leaves = self.leaves.lock();
                if leaves.version != version {
                    continue;
                }
                leaves.leaf_len(leaf)
            };
            let at = |offset: usize| (leaf, Some(offset));
            if let Some(offset) = self.first(probe, right, version, length, at)? {
                return Ok(Place { leaf, offset, version });
            }
        }
        Err(contended())
    }

    /// Returns the first of `len` places that is not before the probe, as Python compares them.
    /// Returns `None` if the list has changed since `version`. `place` returns a leaf and an offset
    /// in it; without an offset, the place is the last entry of the leaf.
    fn first(
        &self,
        probe: &Probe<'_, '_>,
        right: bool,
        version: u64,
        len: usize,
        place: impl Fn(usize) -> (usize, Option<usize>),
    ) -> PyResult<Option<usize>> {
        let py = probe.key.py();
        let (mut low, mut high) = (0, len);
        while low < high {
            let middle = low + (high - low) / 2;
            let key = {
                let leaves = self.leaves.lock();
                if leaves.version != version {
                    return Ok(None);
                }
                let (leaf, offset) = place(middle);
                let offset = offset.unwrap_or_else(|| leaves.leaf_len(leaf) - 1);
                leaves.key(leaf, offset).clone_ref(py).into_bound(py)
            };
            let is_before = if right { !probe.key.lt(&key)? } else { key.lt(probe.key)? };
            if is_before { low = middle + 1 } else { high = middle }
        }
        Ok(Some(low))
    }

    /// Returns the number of entries before the first one whose key is at least `key` or, if
    /// `right`, greater than it.
    fn rank(&self, key: &Bound<'_, PyAny>, right: bool) -> PyResult<usize> {
        for _ in 0..ATTEMPTS {
            let place = self.find(key, right)?;
            let leaves = self.leaves.lock();
            if leaves.version == place.version {
                return Ok(leaves.position(place));
            }
        }
        Err(contended())
    }

    /// Returns the rank of an item, which is that of its key.
    fn rank_item(&self, item: &Bound<'_, PyAny>, right: bool) -> PyResult<usize> {
        match self.key_of(item)? {
            Some(key) => self.rank(key.bind(item.py()), right),
            None => self.rank(item, right),
        }
    }

    fn insert(&self, item: &Bound<'_, PyAny>, key: Option<Object>) -> PyResult<()> {
        let py = item.py();
        let bound = key.as_ref().map_or(item, |key| key.bind(py));
        let (kind, head) = head(bound);
        let probe = Probe { kind, head, key: bound };
        for _ in 0..ATTEMPTS {
            let found = self.leaves.lock().find(&probe, true);
            let place = found.map_or_else(|| self.find_probe(&probe, true), Ok)?;
            let mut leaves = self.leaves.lock();
            if leaves.version == place.version {
                let key = key.as_ref().map(|key| key.clone_ref(py));
                leaves.insert(place, kind, Entry { head, key, item: item.clone().unbind() });
                return Ok(());
            }
        }
        Err(contended())
    }

    /// Returns the key and the item at a position.
    fn entry<'py>(
        &self,
        py: Python<'py>,
        position: usize,
    ) -> Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let leaves = self.leaves.lock();
        let mut found = None;
        let end = (position + 1).min(leaves.len());
        leaves.each(position, end, |key, item| {
            found = Some((key.clone_ref(py).into_bound(py), item.clone_ref(py).into_bound(py)));
        });
        found
    }

    /// Returns the first position of an item equal to `item`, from `start` to before `stop`, and
    /// the version of the list for which it is valid.
    fn search(
        &self,
        item: &Bound<'_, PyAny>,
        start: usize,
        stop: usize,
    ) -> PyResult<Option<(usize, u64)>> {
        let py = item.py();
        let key = self.key_of(item)?;
        let key = key.as_ref().map_or(item, |key| key.bind(py));
        'again: for _ in 0..ATTEMPTS {
            let version = self.leaves.lock().version;
            let mut position = self.rank(key, false)?.max(start);
            while position < stop {
                let Some((other_key, other)) = self.entry(py, position) else { break };
                let equal = other.eq(item)?;
                let is_beyond = !equal && key.lt(&other_key)?;
                if self.leaves.lock().version != version {
                    continue 'again;
                }
                if equal {
                    return Ok(Some((position, version)));
                }
                if is_beyond {
                    break;
                }
                position += 1;
            }
            return Ok(None);
        }
        Err(contended())
    }

    /// Removes an item that is equal to `item`. Returns whether there was one.
    fn take(&self, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        for _ in 0..ATTEMPTS {
            let Some((position, version)) = self.search(item, 0, usize::MAX)? else {
                return Ok(false);
            };
            let mut leaves = self.leaves.lock();
            if leaves.version == version {
                let Place { leaf, offset, .. } = leaves.locate(position);
                let gone = leaves.remove(leaf, offset);
                drop(leaves);
                drop(gone);
                return Ok(true);
            }
        }
        Err(contended())
    }

    /// Returns the position of an index, which counts from the front or, if negative, from the
    /// back.
    fn position(&self, index: isize) -> Option<usize> {
        let len = self.leaves.lock().len();
        let position =
            if index < 0 { len.checked_add_signed(index)? } else { index.unsigned_abs() };
        (position < len).then_some(position)
    }

    /// Returns the sorted entries of items, and the kind of their keys.
    fn sorted(&self, items: &Bound<'_, PyList>) -> PyResult<(Kind, Vec<Entry>)> {
        let (mut kind, mut entries) = (None, Vec::with_capacity(items.len()));
        for item in items.iter() {
            let key = self.key_of(&item)?;
            let (one, head) = head(key.as_ref().map_or(&item, |key| key.bind(items.py())));
            kind = if kind.is_none_or(|kind| kind == one) { Some(one) } else { Some(Kind::Any) };
            entries.push(Entry { head, key, item: item.unbind() });
        }
        let kind = kind.unwrap_or(Kind::Any);
        Ok((kind, sort(items.py(), kind, entries)?))
    }

    /// Adds sorted entries. Adds none of them if they cannot be compared with the others.
    fn add_all(&self, py: Python<'_>, kind: Kind, new: Vec<Entry>) -> PyResult<()> {
        if new.is_empty() {
            return Ok(());
        }
        let (len, same) = {
            let leaves = self.leaves.lock();
            (leaves.len(), leaves.kind == kind && kind != Kind::Any)
        };
        if new.len() < len / FEW {
            let key_of = |entry: &Entry| entry.key.as_ref().map(|key| key.clone_ref(py));
            if !same {
                for entry in &new {
                    self.find(entry.key.as_ref().unwrap_or(&entry.item).bind(py), true)?;
                }
            }
            return new
                .iter()
                .try_for_each(|entry| self.insert(entry.item.bind(py), key_of(entry)));
        }
        let (version, kind, mut all) = {
            let leaves = self.leaves.lock();
            let same = leaves.len() == 0 || leaves.kind == kind;
            let mut all = Vec::with_capacity(leaves.len() + new.len());
            leaves.each(0, leaves.len(), |key, item| {
                let key = self.has_function.then(|| key.clone_ref(py));
                all.push(Entry { head: 0, key, item: item.clone_ref(py) });
            });
            (leaves.version, if same { kind } else { Kind::Any }, all)
        };
        if !all.is_empty() {
            for entry in &mut all {
                entry.head = head(entry.key.as_ref().unwrap_or(&entry.item).bind(py)).1;
            }
        }
        let is_sorted = all.is_empty();
        all.extend(new);
        if !is_sorted {
            // The sort detects that the old and the new entries are two sorted runs.
            all = sort(py, kind, all)?;
        }
        let mut leaves = self.leaves.lock();
        if leaves.version != version {
            return Err(contended());
        }
        let gone = leaves.fill(kind, all);
        drop(leaves);
        drop(gone);
        Ok(())
    }
}

/// Sorts entries by their keys. Entries with equal keys keep their order.
fn sort(py: Python<'_>, kind: Kind, mut entries: Vec<Entry>) -> PyResult<Vec<Entry>> {
    fn key(entry: &Entry) -> &Object {
        entry.key.as_ref().unwrap_or(&entry.item)
    }
    if kind != Kind::Any {
        entries.sort_by(|a, b| {
            a.head.cmp(&b.head).then_with(|| {
                // These are objects of native types, so comparing them neither fails nor runs
                // other code.
                key(a).bind(py).compare(key(b).bind(py)).unwrap_or(std::cmp::Ordering::Equal)
            })
        });
        return Ok(entries);
    }
    let keys = PyList::new(py, entries.iter().map(|entry| key(entry).bind(py)))?;
    let options = PyDict::new(py);
    options.set_item("key", keys.getattr("__getitem__")?)?;
    let order = PyList::new(py, 0..entries.len())?;
    order.call_method("sort", (), Some(&options))?;
    let mut entries: Vec<_> = entries.into_iter().map(Some).collect();
    let sorted = order.iter().filter_map(|at| entries.get_mut(at.extract::<usize>().ok()?)?.take());
    Ok(sorted.collect())
}

impl Sorted {
    /// Removes and returns the item at an index.
    fn removed<'py>(&self, py: Python<'py>, index: isize) -> Option<Bound<'py, PyAny>> {
        let mut leaves = self.leaves.lock();
        let len = leaves.len();
        let position =
            if index < 0 { len.checked_add_signed(index)? } else { index.unsigned_abs() };
        if position >= len {
            return None;
        }
        let Place { leaf, offset, .. } = leaves.locate(position);
        let (key, item) = leaves.remove(leaf, offset);
        drop(leaves);
        drop(key);
        Some(item.into_bound(py))
    }
}
