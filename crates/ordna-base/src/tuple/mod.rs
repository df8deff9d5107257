//! The tuple encoding: typed values as byte strings whose byte order is the order of the values.
//!
//! Every value starts with a code that tells its type, so [`Value::decode`] reads a key without its
//! Rust type. No encoded value is a prefix of another one, so values can stand one after the other.
//! The byte tables stand in `docs/TUPLE.md`. Source: the published FoundationDB tuple layer gave the
//! idea of type codes, of escaped zeros and of lengths in the codes of integers.
//!
//! | type | order |
//! |---|---|
//! | missing, null (`None`) | in this order below everything else; `Some(x)` is x |
//! | `bool` | false, true |
//! | integers of all widths, [`Number`] | one numeric order, whatever the Rust type |
//! | `f32`, `f64` | `total_cmp`: −NaN, −∞, …, −0, 0, …, ∞, NaN; bits come back as they were |
//! | `char`, strings, byte strings | as in Rust; zeros inside are ordinary bytes |
//! | UUIDs, dates, times | bytewise; chronological |
//! | tuples, arrays, vectors, derived structs | element by element, the shorter one first |
//! | [`Reverse`](std::cmp::Reverse) | descending |
//!
//! A float that must compare with integers is a [`Number`]: 1 and 1.0 are then one key, −0 is 0, and
//! all NaN are one number above ∞.
//!
//! ```
//! use ordna_base::tuple::{decode, encode};
//!
//! let key = encode(&("SE", -5_i32, Some(2.5_f64)));
//! assert!(key < encode(&("SE", 7_u8, None::<f64>)));
//! let back: (String, i32, Option<f64>) = decode(&key)?;
//! assert_eq!(back, ("SE".to_owned(), -5, Some(2.5)));
//! # Ok::<(), ordna_base::tuple::DecodeError>(())
//! ```

mod number;
mod read;
mod types;
mod value;

#[cfg(feature = "bigint")]
mod bigint;
#[cfg(feature = "time")]
mod time;
#[cfg(feature = "uuid")]
mod uuid;

pub use number::Number;
pub use read::{DecodeError, Reader};
pub use value::{Moment, Value};

/// The type codes, in ascending order. A descending value starts with the complement of its code.
pub mod code {
    /// The end of a string or tuple; no value starts with it.
    pub const END: u8 = 0x00;
    /// A document's field that is not there.
    pub const MISSING: u8 = 0x02;
    /// `None`, null.
    pub const NULL: u8 = 0x03;
    /// `false`.
    pub const FALSE: u8 = 0x04;
    /// `true`.
    pub const TRUE: u8 = 0x05;
    /// `Some` of a type that has a null of its own.
    pub const SOME: u8 = 0x08;
    /// The number −∞.
    pub const NEGATIVE_INFINITY: u8 = 0x1E;
    /// A number of at most −2^127.
    pub const NEGATIVE_BIG: u8 = 0x1F;
    /// The number zero; `ZERO + n` and `ZERO - n` have n bytes, n up to 16.
    pub const ZERO: u8 = 0x30;
    /// A number of at least 2^127.
    pub const BIG: u8 = 0x41;
    /// The number ∞.
    pub const INFINITY: u8 = 0x42;
    /// The one number that is not a number.
    pub const NAN: u8 = 0x43;
    /// An `f32`, 4 bytes.
    pub const F32: u8 = 0x45;
    /// An `f64`, 8 bytes.
    pub const F64: u8 = 0x46;
    /// A Unicode scalar value, 3 bytes.
    pub const CHAR: u8 = 0x48;
    /// UTF-8, escaped.
    pub const STRING: u8 = 0x50;
    /// Bytes, escaped.
    pub const BYTES: u8 = 0x54;
    /// 16 bytes.
    pub const UUID: u8 = 0x58;
    /// A day, 4 bytes.
    pub const DATE: u8 = 0x60;
    /// A time of day, 6 bytes.
    pub const TIME: u8 = 0x61;
    /// A day and a time of it, without a zone, 10 bytes.
    pub const LOCAL: u8 = 0x62;
    /// The same in UTC.
    pub const UTC: u8 = 0x63;
    /// A span of time, 12 bytes.
    pub const DURATION: u8 = 0x64;
    /// Values up to `END`.
    pub const TUPLE: u8 = 0x70;
}

/// Stands before an escaped byte, which is incremented.
const ESCAPE: u8 = 0x01;

/// The deepest nesting of tuples that [`Value::decode`] follows.
pub const MAX_DEPTH: usize = 64;

/// A type with an order-preserving encoding.
///
/// For all `a`, `b` of one type: `a < b` if and only if the bytes of a are below those of b. The
/// encoding of no value is a prefix of another's.
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

/// A type that comes back from its encoding.
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
pub trait Like<K: ?Sized>: Encode {}

/// The beginning of keys of the type `K`: the first elements of a tuple or struct, or of a string.
pub trait Prefix<K: ?Sized> {
    /// Appends the bytes with which exactly the keys start that begin so. O(bytes).
    fn encode_prefix(&self, out: &mut Vec<u8>);
}

/// The key of a value. O(bytes).
pub fn encode<T: Encode + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// The value of a key made by [`encode`]. O(bytes).
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
pub(crate) fn put_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    put_escaped_open(bytes, out);
    out.push(code::END);
}

/// The same without the end.
pub(crate) fn put_escaped_open(mut bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() + 1);
    while let Some(at) = bytes.iter().position(|byte| *byte <= ESCAPE) {
        out.extend_from_slice(&bytes[..at]);
        out.extend_from_slice(&[ESCAPE, bytes[at] + 1]);
        bytes = &bytes[at + 1..];
    }
    out.extend_from_slice(bytes);
}
