//! Words that order Python's objects without a call of Python.

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
    /// Keys of several or of other types: Python compares them.
    Any,
}

/// The kind of an object, and a word: of two objects of one kind the lesser one has no greater
/// word. Objects of equal words are compared by Python, which for these types runs no code of a
/// user. Subclasses are of the kind [`Kind::Any`], because they may redefine the order.
pub fn head(object: &Bound<'_, PyAny>) -> (Kind, u64) {
    if object.is_exact_instance_of::<PyInt>() {
        (Kind::Int, int_head(object))
    } else if let Ok(text) = object.cast_exact::<PyString>() {
        // The order of UTF-8 is that of code points. Surrogates have no UTF-8.
        text.to_str().map_or((Kind::Any, 0), |text| (Kind::Str, bytes_head(text.as_bytes())))
    } else if let Ok(float) = object.cast_exact::<PyFloat>() {
        float_head(float.value()).map_or((Kind::Any, 0), |head| (Kind::Float, head))
    } else if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        (Kind::Bytes, bytes_head(bytes.as_bytes()))
    } else {
        (Kind::Any, 0)
    }
}

/// Half of the distance from -2^63: so the words cover all integers below 2^64.
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

/// Both zeros have one word; a NaN has no place in the order.
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
