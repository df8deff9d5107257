//! Keys that enter a store together.

use pyo3::exceptions::PyTypeError;
use pyo3::{PyErr, PyResult};

use crate::shapes::{Shape, Shapes, can_compare};
use crate::source::Source;

/// New shapes of one call. Beyond these the store remembers only that its keys are mixed.
const SHAPES: usize = 32;

/// The exception for keys that Python cannot compare.
pub fn raise_order(refusal: &str) -> PyErr {
    PyTypeError::new_err(format!("{refusal}: their types differ"))
}

/// Checks that the keys of one call can be ordered among themselves, and keeps their shapes until
/// they are in the store. The caller admits each key to the store first.
#[derive(Default)]
pub struct Joining {
    /// The shapes of this call.
    own: Shapes,
    /// The shapes of keys that are not in the store yet.
    fresh: Vec<Shape>,
}

impl Joining {
    /// Notes a key; `is_new` says whether its shape is due to be remembered.
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

    /// Refuses keys that Python could not compare with each other. In their order two keys next to
    /// each other share the longest beginning: a type that differs shows itself there.
    pub fn check<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> PyResult<()> {
        if !self.own.is_mixed() {
            return Ok(());
        }
        let mut keys: Vec<&[u8]> = keys.collect();
        keys.sort_unstable();
        let can = keys.windows(2).all(|pair| can_compare(pair[0], pair[1]));
        if can { Ok(()) } else { Err(raise_order("the keys cannot be ordered among themselves")) }
    }

    /// Remembers the shapes: the keys are in the store.
    pub fn done(self, shapes: &Shapes) {
        self.fresh.iter().for_each(|shape| shapes.remember(shape));
    }
}
