//! Python objects as values, and back.
//!
//! | first byte | value |
//! |---|---|
//! | code of a string, of bytes | UTF-8, bytes, without escapes |
//! | `01` | what the codec made of an object |
//! | any other code | the object in the tuple encoding, its floats exact |

use ordna::tuple::{MAX_DEPTH, Reader, code};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::key::{self, Floats};
use crate::shapes::Shape;

/// Stands before what the codec made.
const CODEC: u8 = 0x01;

/// Two functions of Python: objects to bytes, and back.
pub struct Codec {
    pub dumps: Py<PyAny>,
    pub loads: Py<PyAny>,
}

/// Appends a value.
pub fn encode(object: &Bound<'_, PyAny>, codec: Option<&Codec>, out: &mut Vec<u8>) -> PyResult<()> {
    if let Ok(text) = object.cast_exact::<PyString>() {
        out.push(code::STRING);
        out.extend_from_slice(text.to_str()?.as_bytes());
        return Ok(());
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        out.push(code::BYTES);
        out.extend_from_slice(bytes.as_bytes());
        return Ok(());
    }
    let start = out.len();
    if key::put(object, Floats::Exact, MAX_DEPTH, out, &mut Shape::new())? {
        // A subclass of str or bytes was written with escapes and an end.
        if matches!(out[start], code::STRING | code::BYTES) {
            let bytes = unescaped(Reader::new(&out[start..])).map_err(key::damaged)?;
            out.truncate(start + 1);
            out.extend_from_slice(&bytes);
        }
        return Ok(());
    }
    out.truncate(start);
    let Some(codec) = codec else {
        let name = object.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "values are int, float, str, bytes, bool, None, dates, times, or tuples of these, \
             not '{name}'; a store with a codec takes others"
        )));
    };
    let bytes = codec.dumps.bind(object.py()).call1((object,))?;
    let bytes = bytes
        .cast::<PyBytes>()
        .map_err(|_| PyTypeError::new_err("the codec's first function must return bytes"))?;
    out.push(CODEC);
    out.extend_from_slice(bytes.as_bytes());
    Ok(())
}

fn unescaped(mut reader: Reader<'_>) -> Result<Vec<u8>, ordna::tuple::DecodeError> {
    reader.byte("a string")?;
    reader.escaped("the end of a string")
}

/// The object of a value.
pub fn decode<'py>(
    py: Python<'py>,
    bytes: &[u8],
    codec: Option<&Codec>,
) -> PyResult<Bound<'py, PyAny>> {
    match bytes {
        [code::STRING, text @ ..] => {
            let text = std::str::from_utf8(text)
                .map_err(|error| PyValueError::new_err(format!("a damaged string: {error}")))?;
            Ok(PyString::new(py, text).into_any())
        }
        [code::BYTES, bytes @ ..] => Ok(PyBytes::new(py, bytes).into_any()),
        [CODEC, bytes @ ..] => match codec {
            Some(codec) => codec.loads.bind(py).call1((PyBytes::new(py, bytes),)),
            None => Err(PyValueError::new_err("the value was written by a codec; none is given")),
        },
        _ => key::decode(py, bytes, &[]),
    }
}
