//! Python objects as keys, and back.

use ordna::tuple::{Decode, Encode, MAX_DEPTH, Moment, Number, Reader, Value, code};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyDate, PyDateTime, PyDelta, PyFloat, PyInt, PyString, PyTime, PyTuple,
    PyTzInfo,
};

use crate::plain::{self, Small, small};
use crate::shapes::{self, Shape};

/// The proleptic ordinal of 1970-01-01 in Python.
pub const EPOCH: i64 = 719_163;

/// The proleptic ordinal of 9999-12-31, and the microseconds of a day.
pub const LAST_DAY: i64 = 3_652_059;
pub const DAY: i64 = 86_400_000_000;

/// Says whether floats are numbers, which compare with integers, or keep all their bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Floats {
    /// Floats are parts of keys, so they are numbers.
    Numbers,
    /// Floats are values, so they keep all their bits.
    Exact,
}

/// The objects that are native keys.
#[derive(Clone, Copy)]
pub struct Rules {
    floats: Floats,
    /// Whether only those objects are native that decoding restores unchanged. Subclasses and
    /// times with other zones are not.
    exact: bool,
}

impl Rules {
    pub const KEY: Self = Self { floats: Floats::Numbers, exact: false };
    pub const VALUE: Self = Self { floats: Floats::Exact, exact: false };
    pub const EXACT_VALUE: Self = Self { floats: Floats::Exact, exact: true };
}

/// The reason why an object is not native.
pub enum Refused {
    /// The object is of another type.
    Type,
    /// The object exceeds a limit of the encoding.
    Limit(PyErr),
    /// A method of the object raised an exception.
    Raised(PyErr),
}

impl From<PyErr> for Refused {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

fn beyond(message: String) -> Refused {
    Refused::Limit(PyValueError::new_err(message))
}

/// Returns whether the type of the object is a native type itself, not a subclass of one.
fn is_exact(object: &Bound<'_, PyAny>) -> bool {
    object.is_none()
        || object.is_exact_instance_of::<PyString>()
        || object.is_exact_instance_of::<PyFloat>()
        || object.is_exact_instance_of::<PyBytes>()
        || object.is_exact_instance_of::<PyBool>()
        || object.is_exact_instance_of::<PyTuple>()
        || object.is_exact_instance_of::<PyDateTime>()
        || object.is_exact_instance_of::<PyDate>()
        || object.is_exact_instance_of::<PyTime>()
        || object.is_exact_instance_of::<PyDelta>()
}

/// Appends the encoding of an object of a native type, and its shape.
pub fn put(
    object: &Bound<'_, PyAny>,
    rules: Rules,
    depth: usize,
    out: &mut Vec<u8>,
    shape: &mut Shape,
) -> Result<(), Refused> {
    if object.is_exact_instance_of::<PyInt>() {
        shape.push(shapes::INT);
        put_int(object, out)?;
    } else if rules.exact && !is_exact(object) {
        return Err(Refused::Type);
    } else if let Ok(text) = object.cast::<PyString>() {
        shape.push(shapes::STR);
        text.to_str().map_err(Refused::Limit)?.encode(out);
    } else if let Ok(float) = object.cast::<PyFloat>() {
        shape.push(shapes::FLOAT);
        put_float(float.value(), rules.floats, out);
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
            return Err(beyond(format!("tuples are nested deeper than {MAX_DEPTH} levels")));
        };
        shape.push(shapes::TUPLE);
        out.push(code::TUPLE);
        for item in items.iter_borrowed() {
            put(&item, rules, below, out, shape)?;
        }
        out.push(code::END);
        shape.push(shapes::END);
    } else if object.cast::<PyInt>().is_ok() {
        shape.push(shapes::INT);
        put_int(object, out)?;
    } else {
        return put_rare(object, rules, out, shape);
    }
    Ok(())
}

fn put_float(value: f64, floats: Floats, out: &mut Vec<u8>) {
    match floats {
        Floats::Numbers => Number::from(value).encode(out),
        Floats::Exact => value.encode(out),
    }
}

/// The longest magnitude that the tuple encoding reads, in bytes.
const LONGEST: usize = ordna::key::MAX_LEN;

fn put_int(object: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> Result<(), Refused> {
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
    if bits.div_ceil(8) > LONGEST {
        let most = LONGEST * 8;
        return Err(beyond(format!("an integer of {bits} bits; {most} are the most")));
    }
    let bytes = magnitude.call_method1("to_bytes", (bits.div_ceil(8), "big"))?;
    let bytes = bytes.cast::<PyBytes>().map_err(PyErr::from)?;
    Number::from_magnitude(negative, bytes.as_bytes()).encode(out);
    Ok(())
}

/// Dates and times, and integers of other libraries.
fn put_rare(
    object: &Bound<'_, PyAny>,
    rules: Rules,
    out: &mut Vec<u8>,
    shape: &mut Shape,
) -> Result<(), Refused> {
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
        if rules.exact && !is_plain_moment(object)? {
            return Err(Refused::Type);
        }
        let offset = object.call_method0("utcoffset")?;
        if offset.is_none() {
            shape.push(shapes::LOCAL);
            Value::Local(Moment { day: day(object)?, nanos: nanos(object)? })
        } else {
            shape.push(shapes::UTC);
            let part = |name: &str| offset.getattr(name)?.extract::<i64>();
            let ahead = (part("days")? * 86_400 + part("seconds")?) * 1_000_000;
            let ahead = ahead + part("microseconds")?;
            let local = i64::from(day(object)?) * DAY + (nanos(object)? / 1000) as i64;
            let at = local - ahead;
            let day = at.div_euclid(DAY);
            // Decoding could not restore a moment of other years.
            if !(1..=LAST_DAY).contains(&(day + EPOCH)) {
                return Err(beyond("the moment is not in the years 1 to 9999 of UTC".to_owned()));
            }
            Value::Utc(Moment { day: day as i32, nanos: at.rem_euclid(DAY) as u64 * 1000 })
        }
    } else if object.cast::<PyDate>().is_ok() {
        shape.push(shapes::DATE);
        Value::Date(day(object)?)
    } else if object.cast::<PyTime>().is_ok() {
        let zoned = !object.getattr("tzinfo")?.is_none();
        if zoned || rules.exact && object.getattr("fold")?.is_truthy()? {
            return Err(Refused::Type);
        }
        shape.push(shapes::TIME);
        Value::Time(nanos(object)?)
    } else if object.cast::<PyDelta>().is_ok() {
        shape.push(shapes::DELTA);
        let seconds = number("days")? * 86_400 + number("seconds")?;
        Value::Duration(seconds.into(), number("microseconds")? as u32 * 1000)
    } else if object.hasattr("__index__")? {
        shape.push(shapes::INT);
        return put_int(&object.call_method0("__index__")?, out);
    } else {
        return Err(Refused::Type);
    };
    value.encode(out);
    Ok(())
}

/// Returns whether a datetime has no time zone or Python's own UTC, and no fold.
fn is_plain_moment(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let zone = object.getattr("tzinfo")?;
    let utc = PyTzInfo::utc(object.py())?;
    let plain = zone.is_none() || zone.as_ptr() == utc.as_ptr();
    Ok(plain && !object.getattr("fold")?.is_truthy()?)
}

/// Returns the error for an object that cannot be a key.
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

/// Appends the encoding of a key, and its shape.
pub fn encode(object: &Bound<'_, PyAny>, out: &mut Vec<u8>, shape: &mut Shape) -> PyResult<()> {
    put(object, Rules::KEY, MAX_DEPTH, out, shape).map_err(|error| match error {
        Refused::Type => refused(object),
        Refused::Limit(error) | Refused::Raised(error) => error,
    })
}

/// Appends the encoding of a key to look up, and its shape. Returns `false` if no store can
/// contain the key.
///
/// # Errors
/// Returns an error if the object is not hashable, or if a method of it raised an exception.
pub fn encode_wanted(
    object: &Bound<'_, PyAny>,
    out: &mut Vec<u8>,
    shape: &mut Shape,
) -> PyResult<bool> {
    match put(object, Rules::KEY, MAX_DEPTH, out, shape) {
        Ok(()) => Ok(true),
        Err(Refused::Raised(error)) => Err(error),
        Err(Refused::Type | Refused::Limit(_)) => object.hash().map(|_| false),
    }
}

/// Returns the object of an encoded value. Numbers at float positions of `shape` become floats.
///
/// # Errors
/// The bytes are not the encoding of an object of Python, or tuples are nested deeper than `depth`
/// levels: another program may have written them, and each level takes space on the stack.
pub fn take<'py>(
    py: Python<'py>,
    reader: &mut Reader<'_>,
    depth: usize,
    shape: &mut &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let is_float = shape.first() == Some(&shapes::FLOAT);
    if reader.peek() == Some(code::TUPLE) {
        let Some(below) = depth.checked_sub(1) else {
            let message = format!(
                "the store holds tuples nested deeper than {MAX_DEPTH} levels: not of Python"
            );
            return Err(PyValueError::new_err(message));
        };
        *shape = shape.get(1..).unwrap_or_default();
        reader.byte("a tuple").map_err(damaged)?;
        let mut items = Vec::new();
        while !reader.at_end_of_tuple() {
            items.push(take(py, reader, below, shape)?);
        }
        reader.expect(code::END, "the end of a tuple").map_err(damaged)?;
        *shape = shape.get(1..).unwrap_or_default();
        return Ok(PyTuple::new(py, items)?.into_any());
    }
    *shape = shape.get(1..).unwrap_or_default();
    if matches!(reader.peek(), Some(code::NEGATIVE_INFINITY..=code::NAN)) {
        let number = Number::decode(reader).map_err(damaged)?;
        if let Some(object) = plain::number_of(py, &number, is_float) {
            return Ok(object);
        }
        return match number {
            Number::Big { negative, magnitude } => {
                let bytes = PyBytes::new(py, &magnitude);
                let value = py.get_type::<PyInt>().call_method1("from_bytes", (bytes, "big"))?;
                if negative { value.neg() } else { Ok(value) }
            }
            Number::Int(value) => Ok(value.into_pyobject(py)?.into_any()),
            number => Ok(PyFloat::new(py, number.to_f64()).into_any()),
        };
    }
    object_of(py, Value::decode(reader).map_err(damaged)?)
}

/// Returns the object of an encoded value that is neither a number nor a tuple.
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

/// Returns the error for bytes that this package did not write.
pub fn damaged(error: ordna::tuple::DecodeError) -> PyErr {
    PyValueError::new_err(format!("the store holds a key that is not one of Python: {error}"))
}

/// Returns the object of an encoded key.
pub fn decode<'py>(py: Python<'py>, key: &[u8], mut shape: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    if let Some(object) = plain::object_of(py, key, shape) {
        return Ok(object);
    }
    let mut reader = Reader::new(key);
    let object = take(py, &mut reader, MAX_DEPTH, &mut shape)?;
    reader.finish().map_err(damaged)?;
    Ok(object)
}
