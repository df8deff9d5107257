//! The traits of encoded types.

use super::code::{self, ESCAPE};
use super::read::{DecodeError, Reader};

/// A type with an order-preserving encoding.
///
/// For all `a`, `b` of one type: `a < b` if and only if the bytes of a are below those of b. The
/// encoding of no value is a prefix of another's.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type of keys",
    label = "not a type of keys",
    note = "structs: `#[derive(ordna::TupleKey)]` (feature `derive`)",
    note = "dates, UUIDs and big integers: features `time`, `uuid`, `bigint`"
)]
pub trait Encode {
    /// Whether an encoded value may start with [`code::NULL`].
    const NULLABLE: bool = false;

    /// Appends the encoded value to `out`. O(bytes).
    fn encode(&self, out: &mut Vec<u8>);

    /// Appends a sequence of such values: a tuple; of `u8`, a byte string.
    fn encode_slice(slice: &[Self], out: &mut Vec<u8>)
    where
        Self: Sized,
    {
        out.push(code::TUPLE);
        slice.iter().for_each(|item| item.encode(out));
        out.push(code::END);
    }
}

/// A type that comes back from its encoding: the type of a map's keys.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type of keys",
    label = "not a type of keys",
    note = "structs: `#[derive(ordna::TupleKey)]` (feature `derive`)",
    note = "dates, UUIDs and big integers: features `time`, `uuid`, `bigint`"
)]
pub trait Decode: Encode + Sized {
    /// Reads one value. O(bytes).
    ///
    /// # Errors
    /// The bytes are not those of a value of this type.
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;

    /// Reads what [`Encode::encode_slice`] wrote.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    fn decode_vec(reader: &mut Reader<'_>) -> Result<Vec<Self>, DecodeError> {
        reader.expect(code::TUPLE, "a tuple")?;
        let mut items = Vec::new();
        while !reader.at_end_of_tuple() {
            items.push(Self::decode(reader)?);
        }
        reader.expect(code::END, "the end of a tuple")?;
        Ok(items)
    }
}

/// A type that encodes as `K` does: a borrowed form of it, or `K` itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key of the type `{K}`",
    label = "expected `{K}` or a borrowed form of it",
    note = "strings may be `&str`, vectors slices, and the elements of tuples may be borrowed likewise",
    note = "structs: `#[derive(ordna::TupleKey)]` (feature `derive`)",
    note = "dates, UUIDs and big integers: features `time`, `uuid`, `bigint`"
)]
pub trait Like<K: ?Sized>: Encode {}

/// The beginning of keys of the type `K`: the first elements of a tuple or struct, or of a string.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the beginning of keys of the type `{K}`",
    label = "not a prefix of `{K}`",
    note = "a prefix of a tuple or struct is a tuple of its first fields, with one field `(field,)`"
)]
pub trait Prefix<K: ?Sized> {
    /// Appends the bytes with which exactly the keys start that begin so. O(bytes).
    fn encode_prefix(&self, out: &mut Vec<u8>);
}

/// Returns the key of a value. O(bytes).
pub fn encode<T: Encode + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// Returns the value of a key made by [`encode`]. O(bytes).
///
/// # Errors
/// The bytes are not exactly one value of this type.
pub fn decode<T: Decode>(key: &[u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::new(key);
    let value = T::decode(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// Appends a string of any bytes: `00` becomes `01 01`, `01` becomes `01 02`, and `00` ends it.
pub(super) fn put_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    put_escaped_open(bytes, out);
    out.push(code::END);
}

/// Works like [`put_escaped`], but does not append the end.
pub(super) fn put_escaped_open(mut bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + 1);
    while let Some(at) = bytes.iter().position(|byte| *byte <= ESCAPE) {
        out.extend_from_slice(&bytes[..at]);
        out.extend_from_slice(&[ESCAPE, bytes[at] + 1]);
        bytes = &bytes[at + 1..];
    }
    out.extend_from_slice(bytes);
}
