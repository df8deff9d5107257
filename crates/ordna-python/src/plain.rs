//! Keys and values that can be converted without calling Python: numbers of 64 bits, strings and
//! bytes.
//!
//! # Contract
//! [`object_of`] allocates only objects that are not containers. So it neither calls Python nor
//! starts a garbage collection, and may run while the store is inside a reading section.

use std::borrow::Borrow;

use ordna::tuple::{Decode, Number, Reader, code};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt, PyString};
use smallvec::SmallVec;

use crate::shapes;

/// An encoded key, which is on the stack if it is short.
pub type ShortKey = SmallVec<[u8; 64]>;

/// An encoded `u64`, which is not allocated: a code and up to nine bytes.
#[derive(Clone, Copy)]
pub struct Word {
    length: u8,
    bytes: [u8; 10],
}

impl Word {
    #[inline]
    pub fn new(word: u64) -> Self {
        let doubled = u128::from(word) << 1;
        let length = 16 - doubled.leading_zeros() as usize / 8;
        let mut bytes = [0; 10];
        bytes[0] = code::ZERO + length as u8;
        bytes[1..=length].copy_from_slice(&doubled.to_be_bytes()[16 - length..]);
        Self { length: length as u8 + 1, bytes }
    }
}

impl Borrow<[u8]> for Word {
    fn borrow(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// An integer of 64 bits, or whether it is above or below that range.
pub enum Small {
    Signed(i64),
    Above,
    Below,
}

/// Reads an integer. A large one does not raise an exception, which would cost more than a look-up.
#[expect(unsafe_code, reason = "PyO3 has no safe form of this function")]
pub fn small(object: &Bound<'_, PyAny>) -> PyResult<Small> {
    let mut overflow = 0;
    // SAFETY: the object is borrowed for this call, and the token `Bound` shows that the thread is
    // attached to Python. `overflow` outlives the call.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(object.as_ptr(), &raw mut overflow) };
    match overflow {
        0 if value == -1 => match PyErr::take(object.py()) {
            Some(error) => Err(error),
            None => Ok(Small::Signed(value)),
        },
        0 => Ok(Small::Signed(value)),
        1.. => Ok(Small::Above),
        _ => Ok(Small::Below),
    }
}

/// Returns the word of an encoded number, if the number is a `u64`.
#[inline]
pub fn word_of(encoded: &[u8]) -> Option<u64> {
    let (code, bytes) = encoded.split_first()?;
    let length = usize::from(code.checked_sub(code::ZERO)?);
    if bytes.len() != length || length > 9 {
        return None;
    }
    let mut doubled = [0; 16];
    doubled[16 - length..].copy_from_slice(bytes);
    let doubled = u128::from_be_bytes(doubled);
    if doubled & 1 == 1 { None } else { u64::try_from(doubled >> 1).ok() }
}

/// A word in which each byte is 1.
const LOW: u64 = u64::MAX / 255;

/// Returns whether the encoding of a key leaves these bytes unchanged. It escapes the bytes 0 and
/// 1.
#[inline]
fn is_unescaped(bytes: &[u8]) -> bool {
    // Checks eight bytes at a time: subtracting 2 from a byte below 2 sets its top bit.
    let is_low = |word: u64| word.wrapping_sub(LOW * 2) & !word & (LOW << 7) != 0;
    let (words, rest) = bytes.as_chunks::<8>();
    let rest = rest.iter().all(|byte| *byte > 1);
    rest && !words.iter().any(|word| is_low(u64::from_ne_bytes(*word)))
}

/// Appends the encoding of a key, as [`crate::key::encode`] does. Returns `false` and appends
/// nothing if the key is not of a frequent type.
pub fn encode(key: &Bound<'_, PyAny>, out: &mut ShortKey) -> bool {
    let mut put = |code: u8, bytes: &[u8]| {
        let fits = is_unescaped(bytes);
        if fits {
            out.push(code);
            out.extend_from_slice(bytes);
            out.push(code::END);
        }
        fits
    };
    if key.is_exact_instance_of::<PyInt>() {
        let word = match small(key) {
            Ok(Small::Signed(value)) => u64::try_from(value).ok(),
            Ok(Small::Above) => key.extract().ok(),
            _ => None,
        };
        if let Some(word) = word {
            out.extend_from_slice(Word::new(word).borrow());
        }
        word.is_some()
    } else if let Ok(text) = key.cast_exact::<PyString>() {
        text.to_str().is_ok_and(|text| put(code::STRING, text.as_bytes()))
    } else if let Ok(bytes) = key.cast_exact::<PyBytes>() {
        put(code::BYTES, bytes.as_bytes())
    } else {
        false
    }
}

/// Returns the object of an encoded key, or of a value that is not stored raw. Returns `None` if it
/// is not of a frequent type, or is damaged. `shape` is the shape of the key.
pub fn object_of<'py>(py: Python<'py>, bytes: &[u8], shape: &[u8]) -> Option<Bound<'py, PyAny>> {
    let is_float = shape == [shapes::FLOAT];
    if !is_float && let Some(word) = word_of(bytes) {
        return Some(infallible(word.into_pyobject(py)));
    }
    match *bytes {
        [code::STRING, ref text @ .., code::END] if is_unescaped(text) => {
            Some(PyString::new(py, std::str::from_utf8(text).ok()?).into_any())
        }
        [code::BYTES, ref bytes @ .., code::END] if is_unescaped(bytes) => {
            Some(PyBytes::new(py, bytes).into_any())
        }
        [code::F64, ..] => {
            let mut reader = Reader::new(bytes);
            let value = f64::decode(&mut reader).ok()?;
            reader.finish().ok()?;
            Some(PyFloat::new(py, value).into_any())
        }
        [code::NEGATIVE_INFINITY..=code::NAN, ..] => {
            let mut reader = Reader::new(bytes);
            let number = Number::decode(&mut reader).ok()?;
            reader.finish().ok()?;
            number_of(py, &number, is_float)
        }
        _ => None,
    }
}

/// Returns the object of a number, or `None` if it takes more than 64 bits. If `is_float`, an
/// integer becomes a float if a float can represent it.
pub fn number_of<'py>(
    py: Python<'py>,
    number: &Number,
    is_float: bool,
) -> Option<Bound<'py, PyAny>> {
    let float = || PyFloat::new(py, number.to_f64()).into_any();
    match number {
        // The float nearest to a long integer may be a different number.
        number if is_float && Number::from(number.to_f64()) == *number => Some(float()),
        Number::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(small), _) => Some(infallible(small.into_pyobject(py))),
            (_, Ok(small)) => Some(infallible(small.into_pyobject(py))),
            _ => None,
        },
        Number::Big { .. } => None,
        _ => Some(float()),
    }
}

fn infallible<'py>(
    object: Result<Bound<'py, PyInt>, std::convert::Infallible>,
) -> Bound<'py, PyAny> {
    match object {
        Ok(object) => object.into_any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_encoded_as_the_tuple_encoding_does() {
        for word in [0, 1, 127, 128, 255, 256, 1 << 32, u64::MAX >> 1, u64::MAX - 1, u64::MAX] {
            let encoded = ordna::tuple::encode(&word);
            assert_eq!(Borrow::<[u8]>::borrow(&Word::new(word)), encoded);
            assert_eq!(word_of(&encoded), Some(word));
        }
        assert_eq!(word_of(&ordna::tuple::encode(&(u128::from(u64::MAX) + 1))), None);
        assert_eq!(word_of(&ordna::tuple::encode(&Number::Real(2.5))), None);
        assert_eq!(word_of(&ordna::tuple::encode(&-1)), None);
    }

    #[test]
    fn bytes_below_two_are_escaped() {
        for length in 0..20 {
            assert!(is_unescaped(&vec![2; length]) && is_unescaped(&vec![255; length]));
            for at in 0..length {
                for (byte, expected) in [(0, false), (1, false), (2, true), (128, true)] {
                    let mut bytes = vec![200; length];
                    bytes[at] = byte;
                    assert_eq!(is_unescaped(&bytes), expected);
                    if let Some(next) = bytes.get_mut(at + 1) {
                        *next = 2;
                        assert_eq!(is_unescaped(&bytes), expected);
                    }
                }
            }
        }
    }
}
