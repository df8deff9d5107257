//! Types of values, and conversions to the type of a part.

use std::borrow::Cow;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use ordna::tuple::{Number, Value, code};

/// The type of a part's values. Missing fields and null belong to every kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Kind {
    /// Values of any type. All types together have one order (`docs/TUPLE.md`).
    #[default]
    Any,
    /// Values of any type, except that a text that looks like a number becomes a number. Meant for
    /// documents whose fields have no types.
    Natural,
    /// Numbers, and texts that look like numbers.
    Number,
    /// Texts, and byte strings that are valid UTF-8.
    Text,
    /// Texts, converted to lower case.
    LowerText,
    /// Byte strings, and texts, which become byte strings.
    Bytes,
    /// Truth values.
    Bool,
}

/// Converts a value to this kind; `None` if its type does not permit it.
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

/// Converts a text to lower case, as [`Kind::LowerText`] does. Each character is converted on its
/// own, so that a prefix stays a prefix; for example, a sigma at the end of a word is treated like
/// any other sigma. O(length).
///
/// ```
/// assert_eq!(ordna_secondary::lower("ΟΔΟΣ"), ordna_secondary::lower("οδος"));
/// ```
pub fn lower(text: &str) -> String {
    let letters = text.chars().flat_map(char::to_lowercase);
    letters.map(|letter| if letter == 'ς' { 'σ' } else { letter }).collect()
}

/// Returns the text of a string, or of a byte string that is valid UTF-8.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Bytes(bytes) => str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// Parses a number: an integer of up to 128 bits, or a float other than NaN.
pub(crate) fn parse_number(text: &str) -> Option<Number> {
    if let Ok(integer) = text.parse::<i128>() {
        return Some(Number::from(integer));
    }
    text.parse::<f64>().ok().filter(|number| !number.is_nan()).map(Number::from)
}

/// Returns the range of type codes whose values compare with those of the code `first`: all
/// numbers, both truth values, or just the type itself.
fn class(first: u8) -> (u8, u8) {
    match first {
        code::FALSE..=code::TRUE => (code::FALSE, code::TRUE),
        code::NEGATIVE_INFINITY..=code::NAN => (code::NEGATIVE_INFINITY, code::NAN),
        other => (other, other),
    }
}

/// Returns whether two encoded values belong to the same class, so that they compare.
pub(crate) fn same_class(a: &[u8], b: &[u8]) -> bool {
    let class_of = |bytes: &[u8]| bytes.first().map(|first| class(*first));
    class_of(a) == class_of(b)
}

/// A range of keys, such that it contains all keys that begin with an encoded value between two
/// bounds. A missing bound is replaced by the end of the other bound's class.
pub(crate) type ByteRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Returns the range of keys for the encoded values between two bounds, in ascending order.
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
            // All values that begin with the last type code of the class.
            Some((_, last)) => Bound::Included(vec![last]),
            None => Bound::Unbounded,
        },
        bound => bound,
    };
    (start, end)
}
