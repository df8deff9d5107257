//! Types of values, and how a value becomes one of another type.

use std::borrow::Cow;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use ordna::tuple::{Number, Value, code};

/// The type of a part's values. Missing and null belong to every kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Kind {
    /// Any type; all types have one order (`docs/TUPLE.md`).
    #[default]
    Any,
    /// Any type, but a text that is a number is a number: for documents without types.
    Natural,
    /// Numbers, and texts that are numbers.
    Number,
    /// Texts, and byte strings of UTF-8.
    Text,
    /// Texts in lower case.
    LowerText,
    /// Byte strings, and texts as byte strings.
    Bytes,
    /// Truth values.
    Bool,
}

/// The value as one of the kind; `None` if it is of another type.
pub(crate) fn coerce(value: &Value, kind: Kind) -> Option<Cow<'_, Value>> {
    match (kind, value) {
        (Kind::Any, _)
        | (_, Value::Missing | Value::Null)
        | (Kind::Number, Value::Number(_))
        | (Kind::Text, Value::String(_))
        | (Kind::Bytes, Value::Bytes(_))
        | (Kind::Bool, Value::Bool(_)) => Some(Cow::Borrowed(value)),
        (Kind::Natural, _) => match text(value).and_then(parse_number) {
            Some(number) => owned(Value::Number(number)),
            None => Some(Cow::Borrowed(value)),
        },
        (Kind::Number, Value::F64(number)) => owned(Value::Number(Number::from(*number))),
        (Kind::Number, Value::F32(number)) => {
            owned(Value::Number(Number::from(f64::from(*number))))
        }
        (Kind::Number, _) => owned(Value::Number(parse_number(text(value)?)?)),
        (Kind::Text, _) => owned(Value::String(text(value)?.to_owned())),
        (Kind::LowerText, _) => owned(Value::String(lower(text(value)?))),
        (Kind::Bytes, Value::String(text)) => owned(Value::Bytes(text.clone().into_bytes())),
        (Kind::Bytes | Kind::Bool, _) => None,
    }
}

fn owned(value: Value) -> Option<Cow<'static, Value>> {
    Some(Cow::Owned(value))
}

/// A text in lower case, as [`Kind::LowerText`] has it. Each character stands for itself, so a
/// prefix stays a prefix: a sigma at the end of a word is like any other. O(length).
///
/// ```
/// assert_eq!(ordna_secondary::lower("ΟΔΟΣ"), ordna_secondary::lower("οδος"));
/// ```
pub fn lower(text: &str) -> String {
    let letters = text.chars().flat_map(char::to_lowercase);
    letters.map(|letter| if letter == 'ς' { 'σ' } else { letter }).collect()
}

/// The text of a string, or of a byte string of UTF-8.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Bytes(bytes) => str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// The number of a text: an integer of any of 128 bits, or a float; NaN is none.
pub(crate) fn parse_number(text: &str) -> Option<Number> {
    if let Ok(integer) = text.parse::<i128>() {
        return Some(Number::from(integer));
    }
    text.parse::<f64>().ok().filter(|number| !number.is_nan()).map(Number::from)
}

/// The codes of the values that compare with those of this code: all numbers, both truth values,
/// else the type itself.
fn class(first: u8) -> (u8, u8) {
    match first {
        code::FALSE..=code::TRUE => (code::FALSE, code::TRUE),
        code::NEGATIVE_INFINITY..=code::NAN => (code::NEGATIVE_INFINITY, code::NAN),
        other => (other, other),
    }
}

/// Whether two encoded values are of one class.
pub(crate) fn same_class(a: &[u8], b: &[u8]) -> bool {
    let class_of = |bytes: &[u8]| bytes.first().map(|first| class(*first));
    class_of(a) == class_of(b)
}

/// Bounds of encoded values, as a range over all keys that begin with a value within. A missing
/// bound is the end of the other one's class.
pub(crate) type ByteRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The range of encoded ascending values between two bounds.
pub(crate) fn between(lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> ByteRange {
    let class_of = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Included(bytes) | Bound::Excluded(bytes) => bytes.first().map(|first| class(*first)),
        Bound::Unbounded => None,
    };
    let other = (class_of(&lower), class_of(&upper));
    let start = match lower {
        Bound::Unbounded => match other.1 {
            Some((first, _)) => Bound::Included(vec![first]),
            None => Bound::Unbounded,
        },
        bound => bound,
    };
    let end = match upper {
        Bound::Unbounded => match other.0 {
            // All values that begin with the last code.
            Some((_, last)) => Bound::Included(vec![last]),
            None => Bound::Unbounded,
        },
        bound => bound,
    };
    (start, end)
}
