//! Keys that are written to a store in one call.

use pyo3::exceptions::PyTypeError;
use pyo3::{PyErr, PyResult};

use crate::shapes::{Shape, Shapes, can_compare};
use crate::source::Source;

/// Maximum number of new shapes that are kept in one call. If there are more, the store remembers
/// only that its keys are mixed.
const SHAPES: usize = 32;

/// Returns the exception for keys that Python cannot compare.
pub fn raise_order(refusal: &str) -> PyErr {
    PyTypeError::new_err(format!("{refusal}: their types differ"))
}

/// Checks that the keys of one call can be compared with each other, and keeps their shapes until
/// they are in the store. Before that, the caller checks each key against the keys of the store.
#[derive(Default)]
pub struct Joining {
    /// The shapes of this call.
    own: Shapes,
    /// The shapes of keys that are not in the store yet.
    fresh: Vec<Shape>,
}

impl Joining {
    /// Records a key. `is_new` says whether its shape must be remembered once it is in the store.
    pub fn note(&mut self, source: &Source, is_new: bool, key: &[u8], shape: &Shape) {
        if is_new
            && self.fresh.len() < SHAPES
            && !self.fresh.contains(shape)
            && !source.contains(key)
        {
            self.fresh.push(shape.clone());
        }
        self.own.remember(shape);
    }

    /// Refuses keys that Python could not compare with each other. It is enough to compare
    /// neighbours in sorted order, because these share the longest prefixes.
    pub fn check<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> PyResult<()> {
        if !self.own.is_mixed() {
            return Ok(());
        }
        let mut keys: Vec<&[u8]> = keys.collect();
        keys.sort_unstable();
        let can = keys.windows(2).all(|pair| can_compare(pair[0], pair[1]));
        if can { Ok(()) } else { Err(raise_order("the keys cannot be ordered among themselves")) }
    }

    /// Remembers the shapes. The caller has written the keys to the store.
    pub fn done(self, shapes: &Shapes) {
        self.fresh.iter().for_each(|shape| shapes.remember(shape));
    }
}
