//! The entries between two keys: what a view lists.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::chunks::Kind;
use crate::core::{Core, Encoded, encoded};

/// The keys, values or pairs of a store or snapshot within bounds. Each iteration reads them again.
#[pyclass(frozen, module = "ordna._ordna")]
pub struct Range {
    core: Py<Core>,
    kind: Kind,
    lo: Option<Encoded>,
    hi: Option<Encoded>,
    inclusive: (bool, bool),
    reverse: bool,
    limit: Option<usize>,
}

impl Range {
    fn iterate<'py>(&self, py: Python<'py>, reverse: bool) -> PyResult<Bound<'py, PyAny>> {
        let core = self.core.get();
        let source = core.source()?;
        let span = core.key_range(&source, self.lo.as_ref(), self.hi.as_ref(), self.inclusive)?;
        core.chunks(py, span, self.kind, reverse, self.limit).iterate(py, &source)
    }
}

#[pymethods]
impl Range {
    /// The entries of `core` within the bounds; `kind` is 0 for keys, 1 for values, 2 for both.
    #[new]
    #[pyo3(signature = (core, kind, lo=None, hi=None, inclusive=(true, true), reverse=false,
        limit=None))]
    /// Describes the entries of `core` within the bounds. `kind` is 0 for keys, 1 for values and 2
    /// for pairs.
    fn new(
        core: Py<Core>,
        kind: u8,
        lo: Option<&Bound<'_, PyAny>>,
        hi: Option<&Bound<'_, PyAny>>,
        inclusive: (bool, bool),
        reverse: bool,
        limit: Option<usize>,
    ) -> PyResult<Self> {
        let (lo, hi) = (lo.map(encoded).transpose()?, hi.map(encoded).transpose()?);
        Ok(Self { core, kind: Kind::of(kind), lo, hi, inclusive, reverse, limit })
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.iterate(py, self.reverse)
    }

    /// Returns an iterator that begins at the other end. A limit counts from there.
    fn __reversed__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.iterate(py, !self.reverse)
    }

    /// Returns the number of entries. Releases the GIL.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let core = self.core.get();
        let source = core.source()?;
        let count = if self.lo.is_none() && self.hi.is_none() {
            source.len()
        } else {
            let span =
                core.key_range(&source, self.lo.as_ref(), self.hi.as_ref(), self.inclusive)?;
            py.detach(|| source.count(&span))
        };
        Ok(count.min(self.limit.unwrap_or(usize::MAX)))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.core)
    }
}
