//! Words that order Python objects without calling Python.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt, PyString};

use crate::plain::{Small, small};

/// The type that all keys of a list have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Int,
    Float,
    Str,
    Bytes,
    /// The keys are of several or of other types, so Python compares them.
    Any,
}

/// Returns the kind of an object, and a word that never decreases in the order of the objects of
/// one kind.
///
/// Objects with equal words are compared by Python, which does not run code of users for these
/// types. Subclasses are of the kind [`Kind::Any`], because they may redefine the order.
pub fn head(object: &Bound<'_, PyAny>) -> (Kind, u64) {
    if object.is_exact_instance_of::<PyInt>() {
        (Kind::Int, int_head(object))
    } else if let Ok(text) = object.cast_exact::<PyString>() {
        // UTF-8 has the order of code points. Surrogates cannot be encoded as UTF-8.
        text.to_str().map_or((Kind::Any, 0), |text| (Kind::Str, bytes_head(text.as_bytes())))
    } else if let Ok(float) = object.cast_exact::<PyFloat>() {
        float_head(float.value()).map_or((Kind::Any, 0), |head| (Kind::Float, head))
    } else if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        (Kind::Bytes, bytes_head(bytes.as_bytes()))
    } else {
        (Kind::Any, 0)
    }
}

/// Returns half of the distance from -2^63, so that words cover all integers from there to 2^64.
fn int_head(object: &Bound<'_, PyAny>) -> u64 {
    match small(object) {
        Ok(Small::Signed(value)) => (value.wrapping_sub(i64::MIN) as u64) >> 1,
        Ok(Small::Above) => match object.extract::<u64>() {
            Ok(value) => ((u128::from(value) + (1 << 63)) >> 1) as u64,
            Err(_) => u64::MAX,
        },
        Ok(Small::Below) | Err(_) => 0,
    }
}

/// Returns the word of a float, or `None` for a NaN, which is not ordered. Both zeros have the same
/// word.
fn float_head(value: f64) -> Option<u64> {
    let bits = (value + 0.0).to_bits();
    let head = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    (!value.is_nan()).then_some(head)
}

fn bytes_head(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut head = [0; 8];
    head[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(head)
}
