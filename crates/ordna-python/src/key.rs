//! Python objects as keys, and back.

use ordna::tuple::{Decode, Encode, MAX_DEPTH, Moment, Number, Reader, Value, code};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyDate, PyDateTime, PyDelta, PyFloat, PyInt, PyString, PyTime, PyTuple,
    PyTzInfo,
};

use crate::shapes::{self, Shape};

/// The proleptic ordinal of 1970-01-01 in Python.
const EPOCH: i64 = 719_163;

/// Whether floats are numbers, which compare with integers, or keep all their bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Floats {
    /// As parts of keys.
    Numbers,
    /// As values.
    Exact,
}

/// Appends an object of a native type; `false` if it is of none. Tells its shape.
pub fn put(
    object: &Bound<'_, PyAny>,
    floats: Floats,
    depth: usize,
    out: &mut Vec<u8>,
    shape: &mut Shape,
) -> PyResult<bool> {
    if object.is_exact_instance_of::<PyInt>() {
        shape.push(shapes::INT);
        put_int(object, out)?;
    } else if let Ok(text) = object.cast::<PyString>() {
        shape.push(shapes::STR);
        text.to_str()?.encode(out);
    } else if let Ok(float) = object.cast::<PyFloat>() {
        shape.push(shapes::FLOAT);
        put_float(float.value(), floats, out);
    } else if let Ok(flag) = object.cast::<PyBool>() {
        shape.push(shapes::BOOL);
        flag.is_true().encode(out);
    } else if object.is_none() {
        shape.push(shapes::NONE);
        out.push(code::NULL);
    } else if let Ok(bytes) = object.cast::<PyBytes>() {
        shape.push(shapes::BYTES);
        u8::encode_slice(bytes.as_bytes(), out);
    } else if let Ok(items) = object.cast::<PyTuple>() {
        let Some(below) = depth.checked_sub(1) else {
            let message = format!("tuples are nested deeper than {MAX_DEPTH} levels");
            return Err(PyValueError::new_err(message));
        };
        shape.push(shapes::TUPLE);
        out.push(code::TUPLE);
        for item in items.iter_borrowed() {
            if !put(&item, floats, below, out, shape)? {
                return Ok(false);
            }
        }
        out.push(code::END);
        shape.push(shapes::END);
    } else if object.cast::<PyInt>().is_ok() {
        shape.push(shapes::INT);
        put_int(object, out)?;
    } else {
        return put_rare(object, out, shape);
    }
    Ok(true)
}

fn put_float(value: f64, floats: Floats, out: &mut Vec<u8>) {
    match floats {
        Floats::Numbers => Number::from(value).encode(out),
        Floats::Exact => value.encode(out),
    }
}

fn put_int(object: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> PyResult<()> {
    let negative = match small(object)? {
        Small::Signed(value) => {
            value.encode(out);
            return Ok(());
        }
        Small::Above => {
            if let Ok(value) = object.extract::<u64>() {
                value.encode(out);
                return Ok(());
            }
            false
        }
        Small::Below => true,
    };
    let magnitude = object.call_method0("__abs__")?;
    let bits: usize = magnitude.call_method0("bit_length")?.extract()?;
    let bytes = magnitude.call_method1("to_bytes", (bits.div_ceil(8), "big"))?;
    Number::from_magnitude(negative, bytes.cast::<PyBytes>()?.as_bytes()).encode(out);
    Ok(())
}

/// An integer, or on which side of 64 bits it lies.
enum Small {
    Signed(i64),
    Above,
    Below,
}

/// Reads an integer without an exception for a large one: an exception costs more than a look-up.
#[expect(unsafe_code, reason = "PyO3 has no safe form of this function")]
fn small(object: &Bound<'_, PyAny>) -> PyResult<Small> {
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

/// Dates and times, and integers of other libraries.
fn put_rare(object: &Bound<'_, PyAny>, out: &mut Vec<u8>, shape: &mut Shape) -> PyResult<bool> {
    let number = |name: &str| object.getattr(name)?.extract::<i64>();
    let day = |of: &Bound<'_, PyAny>| -> PyResult<i32> {
        let ordinal: i64 = of.call_method0("toordinal")?.extract()?;
        Ok((ordinal - EPOCH) as i32)
    };
    let nanos = |of: &Bound<'_, PyAny>| -> PyResult<u64> {
        let number = |name: &str| of.getattr(name)?.extract::<u64>();
        let seconds = (number("hour")? * 60 + number("minute")?) * 60 + number("second")?;
        Ok((seconds * 1_000_000 + number("microsecond")?) * 1000)
    };
    let value = if object.cast::<PyDateTime>().is_ok() {
        if object.call_method0("utcoffset")?.is_none() {
            shape.push(shapes::LOCAL);
            Value::Local(Moment { day: day(object)?, nanos: nanos(object)? })
        } else {
            shape.push(shapes::UTC);
            let utc = object.call_method1("astimezone", (PyTzInfo::utc(object.py())?,))?;
            Value::Utc(Moment { day: day(&utc)?, nanos: nanos(&utc)? })
        }
    } else if object.cast::<PyDate>().is_ok() {
        shape.push(shapes::DATE);
        Value::Date(day(object)?)
    } else if object.cast::<PyTime>().is_ok() {
        if !object.call_method0("utcoffset")?.is_none() {
            return Ok(false);
        }
        shape.push(shapes::TIME);
        Value::Time(nanos(object)?)
    } else if object.cast::<PyDelta>().is_ok() {
        shape.push(shapes::DELTA);
        let seconds = number("days")? * 86_400 + number("seconds")?;
        Value::Duration(seconds.into(), number("microseconds")? as u32 * 1000)
    } else if object.hasattr("__index__")? {
        shape.push(shapes::INT);
        put_int(&object.call_method0("__index__")?, out)?;
        return Ok(true);
    } else {
        return Ok(false);
    };
    value.encode(out);
    Ok(true)
}

/// The error for an object that is no key.
pub fn refused(object: &Bound<'_, PyAny>) -> PyErr {
    // An unhashable key gives the error that a dict gives.
    if let Err(error) = object.hash() {
        return error;
    }
    let name = object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "keys are int, float, str, bytes, bool, None, dates, times, or tuples of these, not '{name}'"
    ))
}

/// Encodes a key and tells its shape.
pub fn encode(object: &Bound<'_, PyAny>, out: &mut Vec<u8>, shape: &mut Shape) -> PyResult<()> {
    if put(object, Floats::Numbers, MAX_DEPTH, out, shape)? { Ok(()) } else { Err(refused(object)) }
}

/// The object of an encoded value. Numbers at float positions of `shape` become floats.
pub fn take<'py>(
    py: Python<'py>,
    reader: &mut Reader<'_>,
    shape: &mut &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let is_float = shape.first() == Some(&shapes::FLOAT);
    if reader.peek() == Some(code::TUPLE) {
        *shape = shape.get(1..).unwrap_or_default();
        reader.byte("a tuple").map_err(damaged)?;
        let mut items = Vec::new();
        while !reader.at_end_of_tuple() {
            items.push(take(py, reader, shape)?);
        }
        reader.expect(code::END, "the end of a tuple").map_err(damaged)?;
        *shape = shape.get(1..).unwrap_or_default();
        return Ok(PyTuple::new(py, items)?.into_any());
    }
    *shape = shape.get(1..).unwrap_or_default();
    if matches!(reader.peek(), Some(code::NEGATIVE_INFINITY..=code::NAN)) {
        return match Number::decode(reader).map_err(damaged)? {
            number if is_float => Ok(PyFloat::new(py, number.to_f64()).into_any()),
            Number::Int(value) => match (i64::try_from(value), u64::try_from(value)) {
                (Ok(small), _) => Ok(small.into_pyobject(py)?.into_any()),
                (_, Ok(small)) => Ok(small.into_pyobject(py)?.into_any()),
                _ => Ok(value.into_pyobject(py)?.into_any()),
            },
            Number::Big { negative, magnitude } => {
                let bytes = PyBytes::new(py, &magnitude);
                let value = py.get_type::<PyInt>().call_method1("from_bytes", (bytes, "big"))?;
                if negative { value.neg() } else { Ok(value) }
            }
            number => Ok(PyFloat::new(py, number.to_f64()).into_any()),
        };
    }
    object_of(py, Value::decode(reader).map_err(damaged)?)
}

/// The object of a value that is no number and no tuple.
fn object_of<'py>(py: Python<'py>, value: Value) -> PyResult<Bound<'py, PyAny>> {
    let date = |day: i32| -> PyResult<Bound<'py, PyAny>> {
        py.get_type::<PyDate>().call_method1("fromordinal", (i64::from(day) + EPOCH,))
    };
    let clock = |nanos: u64| {
        let seconds = nanos / 1_000_000_000;
        let micros = nanos / 1000 % 1_000_000;
        (seconds / 3600, seconds / 60 % 60, seconds % 60, micros)
    };
    let moment = |moment: Moment, zone: Option<Bound<'py, PyTzInfo>>| {
        let day = date(moment.day)?;
        let part = |name: &str| day.getattr(name);
        let (hour, minute, second, micros) = clock(moment.nanos);
        let parts =
            (part("year")?, part("month")?, part("day")?, hour, minute, second, micros, zone);
        py.get_type::<PyDateTime>().call1(parts)
    };
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(value) => Ok(PyBool::new(py, value).to_owned().into_any()),
        Value::F64(value) => Ok(PyFloat::new(py, value).into_any()),
        Value::F32(value) => Ok(PyFloat::new(py, value.into()).into_any()),
        Value::String(value) => Ok(PyString::new(py, &value).into_any()),
        Value::Char(value) => Ok(value.into_pyobject(py)?.into_any()),
        Value::Bytes(value) => Ok(PyBytes::new(py, &value).into_any()),
        Value::Date(day) => date(day),
        Value::Time(nanos) => py.get_type::<PyTime>().call1(clock(nanos)),
        Value::Local(at) => moment(at, None),
        Value::Utc(at) => moment(at, Some(PyTzInfo::utc(py)?.to_owned())),
        Value::Duration(seconds, nanos) => {
            let days = seconds.div_euclid(86_400);
            let rest = seconds.rem_euclid(86_400);
            py.get_type::<PyDelta>().call1((days, rest, nanos / 1000))
        }
        other => Err(PyValueError::new_err(format!("the store holds {other:?}: not of Python"))),
    }
}

/// The error for bytes that this package did not write.
pub fn damaged(error: ordna::tuple::DecodeError) -> PyErr {
    PyValueError::new_err(format!("the store holds a key that is not one of Python: {error}"))
}

/// The word of an encoded number, if it is one.
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

/// The object of a key.
pub fn decode<'py>(py: Python<'py>, key: &[u8], mut shape: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    // The two most frequent sorts of keys, without a detour.
    if shape != [shapes::FLOAT]
        && let Some(word) = word_of(key)
    {
        return Ok(word.into_pyobject(py)?.into_any());
    }
    match *key {
        [code::STRING, ref text @ .., code::END] if !text.contains(&1) => {
            if let Ok(text) = std::str::from_utf8(text) {
                return Ok(PyString::new(py, text).into_any());
            }
        }
        _ => {}
    }
    let mut reader = Reader::new(key);
    let object = take(py, &mut reader, &mut shape)?;
    reader.finish().map_err(damaged)?;
    Ok(object)
}
