//! Python objects as values, and back.
//!
//! | first byte | value |
//! |---|---|
//! | code of a string, of bytes | UTF-8, bytes, without escapes |
//! | `01` | the bytes that the codec returned for an object |
//! | any other code | the object in the tuple encoding, its floats exact |
//!
//! With a codec only objects of exactly these types, within the limits of the encoding, are native.

use std::time::Duration;

use ordna::sync::Lock;
use ordna::tuple::{MAX_DEPTH, Reader, code};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::key::{self, Refused, Rules};
use crate::plain;
use crate::shapes::Shape;

/// First byte of values that the codec has encoded.
const CODEC: u8 = 0x01;

/// Two Python functions: one converts objects to bytes, the other converts them back.
pub struct Functions {
    pub dumps: Py<PyAny>,
    pub loads: Py<PyAny>,
}

/// The codec of one Python object. It is the only owner of its references, so that the garbage
/// collector counts them correctly. Python is never called while the lock is held.
pub struct Codec {
    is_set: bool,
    functions: Lock<Option<Functions>>,
}

impl Codec {
    pub fn new(functions: Option<Functions>) -> Self {
        Self { is_set: functions.is_some(), functions: Lock::new(functions) }
    }

    /// Returns the functions; `None` without a codec, or after the collector took them.
    fn get(&self, py: Python<'_>) -> Option<Functions> {
        if !self.is_set {
            return None;
        }
        let functions = self.functions.lock();
        let copied = |functions: &Functions| Functions {
            dumps: functions.dumps.clone_ref(py),
            loads: functions.loads.clone_ref(py),
        };
        functions.as_ref().map(copied)
    }

    /// Returns the same codec for another object.
    pub fn copied(&self, py: Python<'_>) -> Self {
        Self::new(self.get(py))
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A locked codec is in use, so its functions are alive.
        if let Some(functions) = self.functions.try_lock()
            && let Some(functions) = functions.as_ref()
        {
            visit.call(&functions.dumps)?;
            visit.call(&functions.loads)?;
        }
        Ok(())
    }

    pub fn clear(&self) {
        let functions = self.functions.lock().take();
        drop(functions);
    }
}

/// Appends the encoding of a value.
pub fn encode(object: &Bound<'_, PyAny>, codec: &Codec, out: &mut Vec<u8>) -> PyResult<()> {
    if let Ok(text) = object.cast_exact::<PyString>() {
        match text.to_str() {
            Ok(text) => {
                out.push(code::STRING);
                out.extend_from_slice(text.as_bytes());
                return Ok(());
            }
            Err(error) if !codec.is_set => return Err(error),
            Err(_) => {}
        }
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        out.push(code::BYTES);
        out.extend_from_slice(bytes.as_bytes());
        return Ok(());
    }
    let start = out.len();
    let rules = if codec.is_set { Rules::EXACT_VALUE } else { Rules::VALUE };
    let native = match key::put(object, rules, MAX_DEPTH, out, &mut Shape::new()) {
        Ok(()) => true,
        Err(Refused::Raised(error)) => return Err(error),
        Err(Refused::Limit(error)) if !codec.is_set => return Err(error),
        Err(_) => false,
    };
    if native {
        // A subclass of str or bytes was written with escapes and an end.
        if matches!(out[start], code::STRING | code::BYTES) {
            let bytes = unescaped(Reader::new(&out[start..])).map_err(key::damaged)?;
            out.truncate(start + 1);
            out.extend_from_slice(&bytes);
        }
        return Ok(());
    }
    out.truncate(start);
    let Some(functions) = codec.get(object.py()) else {
        let name = object.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "values are int, float, str, bytes, bool, None, dates, times, or tuples of these, \
             not '{name}'; a store with a codec takes others"
        )));
    };
    let bytes = functions.dumps.bind(object.py()).call1((object,))?;
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

/// Returns the object of a value of a frequent type, without calling Python. See [`crate::plain`].
pub fn plain<'py>(py: Python<'py>, bytes: &[u8]) -> Option<Bound<'py, PyAny>> {
    match bytes {
        [code::STRING, text @ ..] => {
            Some(PyString::new(py, std::str::from_utf8(text).ok()?).into_any())
        }
        [code::BYTES, bytes @ ..] => Some(PyBytes::new(py, bytes).into_any()),
        _ => plain::object_of(py, bytes, &[]),
    }
}

/// Returns the object of an encoded value.
pub fn decode<'py>(py: Python<'py>, bytes: &[u8], codec: &Codec) -> PyResult<Bound<'py, PyAny>> {
    match bytes {
        [code::STRING, text @ ..] => {
            let text = std::str::from_utf8(text)
                .map_err(|error| PyValueError::new_err(format!("a damaged string: {error}")))?;
            Ok(PyString::new(py, text).into_any())
        }
        [code::BYTES, bytes @ ..] => Ok(PyBytes::new(py, bytes).into_any()),
        [CODEC, bytes @ ..] => match codec.get(py) {
            Some(functions) => functions.loads.bind(py).call1((PyBytes::new(py, bytes),)),
            None => Err(PyValueError::new_err("the value was written by a codec; none is given")),
        },
        _ => key::decode(py, bytes, &[]),
    }
}

/// Returns the time until an entry expires, given in seconds or as a `timedelta`.
pub fn lifetime(ttl: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = match ttl.extract() {
        Ok(seconds) => seconds,
        Err(_) => ttl.call_method0("total_seconds")?.extract()?,
    };
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("an entry cannot expire after {seconds} s")))
}
