//! [`Value`]: an encoded value of any type, for keys whose types are known only when they are read.

use std::cmp::Reverse;
use std::time::Duration;

use super::code;
use super::encode::{Decode, Encode, Like, put_escaped};
use super::number::Number;
use super::read::{DecodeError, Reader};
use super::types::{put_duration, take_duration};

/// Maximum nesting of tuples that [`Value::decode`] accepts.
pub const MAX_DEPTH: usize = 64;

/// Nanoseconds of a day.
const DAY: u64 = 86_400_000_000_000;

/// A day, counted from 1970-01-01, and the nanoseconds since its start, below 86,400 × 10⁹.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Days since 1970-01-01.
    pub day: i32,
    /// Nanoseconds of the day.
    pub nanos: u64,
}

/// An encoded value, with its type.
///
/// ```
/// use ordna_base::tuple::{Number, Value, decode, encode};
///
/// let key = encode(&("SE", 5_u8));
/// let fields = vec![Value::String("SE".to_owned()), Value::Number(Number::Int(5))];
/// assert_eq!(decode::<Value>(&key)?, Value::Tuple(fields));
/// # Ok::<(), ordna_base::tuple::DecodeError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A missing field of a document.
    Missing,
    /// `None`, null.
    Null,
    /// `Some` of a value that may be null.
    Some(Box<Value>),
    /// A boolean.
    Bool(bool),
    /// An integer, or a float that compares with integers.
    Number(Number),
    /// An `f32`; compares with `f32` only.
    F32(f32),
    /// An `f64`; compares with `f64` only.
    F64(f64),
    /// A Unicode scalar value.
    Char(char),
    /// A string.
    String(String),
    /// A byte string.
    Bytes(Vec<u8>),
    /// A UUID.
    Uuid([u8; 16]),
    /// A day, counted from 1970-01-01.
    Date(i32),
    /// A time of day: nanoseconds since its start.
    Time(u64),
    /// A day and time without a zone.
    Local(Moment),
    /// A day and time in UTC.
    Utc(Moment),
    /// A span of time: whole seconds, rounded down, and nanoseconds.
    Duration(i128, u32),
    /// A tuple, array or struct.
    Tuple(Vec<Value>),
    /// A value in descending order.
    Descending(Box<Value>),
}

impl Encode for Value {
    const NULLABLE: bool = true;

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Missing => out.push(code::MISSING),
            Self::Null => out.push(code::NULL),
            Self::Some(value) => {
                out.push(code::SOME);
                value.encode(out);
            }
            Self::Bool(value) => value.encode(out),
            Self::Number(value) => value.encode(out),
            Self::F32(value) => value.encode(out),
            Self::F64(value) => value.encode(out),
            Self::Char(value) => value.encode(out),
            Self::String(value) => value.encode(out),
            Self::Bytes(value) => {
                out.push(code::BYTES);
                put_escaped(value, out);
            }
            Self::Uuid(bytes) => {
                out.push(code::UUID);
                out.extend_from_slice(bytes);
            }
            Self::Date(day) => {
                out.push(code::DATE);
                put_day(*day, out);
            }
            Self::Time(nanos) => {
                out.push(code::TIME);
                out.extend_from_slice(&nanos.to_be_bytes()[2..]);
            }
            Self::Local(moment) => put_moment(code::LOCAL, *moment, out),
            Self::Utc(moment) => put_moment(code::UTC, *moment, out),
            Self::Duration(seconds, nanos) => put_duration(*seconds, *nanos, out),
            Self::Tuple(items) => Self::encode_slice(items, out),
            Self::Descending(value) => Reverse(&**value).encode(out),
        }
    }
}

impl Like<Self> for Value {}

/// Appends a day with its sign bit inverted.
fn put_day(day: i32, out: &mut Vec<u8>) {
    out.extend_from_slice(&(day ^ i32::MIN).to_be_bytes());
}

fn put_moment(code: u8, moment: Moment, out: &mut Vec<u8>) {
    out.push(code);
    put_day(moment.day, out);
    out.extend_from_slice(&moment.nanos.to_be_bytes()[2..]);
}

fn take_day(reader: &mut Reader<'_>) -> Result<i32, DecodeError> {
    Ok(i32::from_be_bytes(reader.array("a day")?) ^ i32::MIN)
}

fn take_nanos(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let unread = reader.clone();
    let mut wide = [0; 8];
    wide[2..].copy_from_slice(&reader.array::<6>("a time of day")?);
    let nanos = u64::from_be_bytes(wide);
    if nanos < DAY { Ok(nanos) } else { Err(unread.error("a time of day")) }
}

impl Decode for Value {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        value(reader, MAX_DEPTH)
    }
}

fn value(reader: &mut Reader<'_>, depth: usize) -> Result<Value, DecodeError> {
    let Some(below) = depth.checked_sub(1) else {
        return Err(reader.error("a value that is not nested deeper than 64 times"));
    };
    let first = reader.peek().ok_or_else(|| reader.error("a value"))?;
    let plain = match first {
        code::MISSING => Value::Missing,
        code::NULL => Value::Null,
        code::SOME => {
            reader.byte("a value")?;
            return value(reader, below).map(Box::new).map(Value::Some);
        }
        code::FALSE | code::TRUE => return bool::decode(reader).map(Value::Bool),
        code::NEGATIVE_INFINITY..=code::NAN => {
            return Number::decode(reader).map(Value::Number);
        }
        code::F32 => return f32::decode(reader).map(Value::F32),
        code::F64 => return f64::decode(reader).map(Value::F64),
        code::CHAR => return char::decode(reader).map(Value::Char),
        code::STRING => return String::decode(reader).map(Value::String),
        code::BYTES => return u8::decode_vec(reader).map(Value::Bytes),
        code::DURATION => {
            return take_duration(reader).map(|(seconds, nanos)| Value::Duration(seconds, nanos));
        }
        code::UUID => {
            reader.byte("a UUID")?;
            return reader.array("a UUID").map(Value::Uuid);
        }
        code::DATE => {
            reader.byte("a day")?;
            return take_day(reader).map(Value::Date);
        }
        code::TIME => {
            reader.byte("a time of day")?;
            return take_nanos(reader).map(Value::Time);
        }
        code::LOCAL | code::UTC => {
            reader.byte("a moment")?;
            let moment = Moment { day: take_day(reader)?, nanos: take_nanos(reader)? };
            let zoned = first == code::UTC;
            return Ok(if zoned { Value::Utc(moment) } else { Value::Local(moment) });
        }
        code::TUPLE => {
            reader.byte("a tuple")?;
            let mut items = Vec::new();
            while !reader.at_end_of_tuple() {
                items.push(value(reader, below)?);
            }
            reader.expect(code::END, "the end of a tuple")?;
            return Ok(Value::Tuple(items));
        }
        0x80.. => {
            return reader
                .reversed(|reader| value(reader, below))
                .map(|value| Value::Descending(Box::new(value)));
        }
        _ => return Err(reader.error("a value")),
    };
    reader.byte("a value")?;
    Ok(plain)
}

/// Implements the encoding of date types as a [`Value`].
#[cfg(any(feature = "time", feature = "uuid"))]
macro_rules! as_value {
    ($($type:ty, $variant:ident($inner:pat => $from:expr), $expected:literal;)*) => { $(
        impl Encode for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                Value::from(*self).encode(out);
            }
        }
        impl Decode for $type {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let unread = reader.clone();
                let decoded = match Value::decode(reader)? {
                    Value::$variant($inner) => $from,
                    _ => None,
                };
                decoded.ok_or_else(|| unread.error($expected))
            }
        }
        impl Like<Self> for $type {}
    )* };
}
#[cfg(any(feature = "time", feature = "uuid"))]
pub(super) use as_value;

impl From<Duration> for Value {
    fn from(span: Duration) -> Self {
        Self::Duration(i128::from(span.as_secs()), span.subsec_nanos())
    }
}
