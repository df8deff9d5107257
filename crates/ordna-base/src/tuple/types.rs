//! The encodings of Rust's own types.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::code;
use super::encode::{Decode, Encode, Like, Prefix, put_escaped, put_escaped_open};
use super::number::{Number, put_int};
use super::read::{DecodeError, Reader};

macro_rules! integers {
    ($($type:ty),*) => { $(
        impl Encode for $type {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                #[allow(clippy::cast_lossless, reason = "one body for all widths")]
                let wide = *self as i128;
                put_int(wide < 0, wide.unsigned_abs(), out);
            }
        }
        integers!(decode $type);
    )* };
    (decode $type:ty) => {
        impl Decode for $type {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let unread = reader.clone();
                integer(reader)
                    .and_then(|value| <$type>::try_from(value).ok())
                    .ok_or_else(|| unread.error(concat!("a number of the type ", stringify!($type))))
            }
        }
        impl Like<Self> for $type {}
    };
}

/// Returns the next number, if it is an integer of 128 bits.
fn integer(reader: &mut Reader<'_>) -> Option<i128> {
    match Number::decode(reader).ok()? {
        Number::Int(value) => Some(value),
        Number::Big { negative: true, magnitude } => {
            let magnitude = u128::from_be_bytes(magnitude.try_into().ok()?);
            (magnitude == i128::MIN.unsigned_abs()).then_some(i128::MIN)
        }
        _ => None,
    }
}

integers!(u16, u32, u64, usize, i8, i16, i32, i64, isize, i128);

impl Encode for u8 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        put_int(false, u128::from(*self), out);
    }

    fn encode_slice(slice: &[Self], out: &mut Vec<u8>) {
        out.push(code::BYTES);
        put_escaped(slice, out);
    }
}

impl Decode for u8 {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        integer(reader)
            .and_then(|value| Self::try_from(value).ok())
            .ok_or_else(|| unread.error("a number of the type u8"))
    }

    fn decode_vec(reader: &mut Reader<'_>) -> Result<Vec<Self>, DecodeError> {
        reader.expect(code::BYTES, "bytes")?;
        reader.escaped("the end of bytes")
    }
}
impl Like<Self> for u8 {}

impl Encode for u128 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        put_int(false, *self, out);
    }
}

impl Decode for u128 {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        let value = match Number::decode(reader)? {
            Number::Int(value) => Self::try_from(value).ok(),
            Number::Big { negative: false, magnitude } => {
                magnitude.try_into().ok().map(Self::from_be_bytes)
            }
            _ => None,
        };
        value.ok_or_else(|| unread.error("a number of the type u128"))
    }
}
impl Like<Self> for u128 {}

macro_rules! floats {
    ($($type:ty, $bits:ty, $code:expr, $name:literal);*) => { $(
        impl Encode for $type {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = self.to_bits();
                let ordered = if bits & SIGN == 0 { bits | SIGN } else { !bits };
                out.push($code);
                out.extend_from_slice(&ordered.to_be_bytes());
            }
        }
        impl Decode for $type {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                reader.expect($code, $name)?;
                let ordered = <$bits>::from_be_bytes(reader.array($name)?);
                let bits = if ordered & SIGN == 0 { !ordered } else { ordered ^ SIGN };
                Ok(Self::from_bits(bits))
            }
        }
        impl Like<Self> for $type {}
    )* };
}
floats!(f32, u32, code::F32, "an f32"; f64, u64, code::F64, "an f64");

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(if *self { code::TRUE } else { code::FALSE });
    }
}

impl Decode for bool {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let value = match reader.peek() {
            Some(code::FALSE) => false,
            Some(code::TRUE) => true,
            _ => return Err(reader.error("a bool")),
        };
        reader.byte("a bool")?;
        Ok(value)
    }
}
impl Like<Self> for bool {}

impl Encode for char {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(code::CHAR);
        out.extend_from_slice(&u32::from(*self).to_be_bytes()[1..]);
    }
}

impl Decode for char {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        reader.expect(code::CHAR, "a char")?;
        let [a, b, c] = reader.array("a char")?;
        Self::from_u32(u32::from_be_bytes([0, a, b, c])).ok_or_else(|| unread.error("a char"))
    }
}
impl Like<Self> for char {}

impl Encode for str {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(code::STRING);
        put_escaped(self.as_bytes(), out);
    }
}

impl Encode for String {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_str().encode(out);
    }
}

impl Decode for String {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        reader.expect(code::STRING, "a string")?;
        let bytes = reader.escaped("the end of a string")?;
        Self::from_utf8(bytes).map_err(|_| unread.error("a string of UTF-8"))
    }
}

impl Like<Self> for str {}
impl Like<String> for str {}
impl Like<Self> for String {}
impl Like<Arc<str>> for str {}

impl Encode for Arc<str> {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}
impl Decode for Arc<str> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        String::decode(reader).map(Self::from)
    }
}
impl Like<Self> for Arc<str> {}

impl Prefix<String> for str {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        out.push(code::STRING);
        put_escaped_open(self.as_bytes(), out);
    }
}

impl Prefix<String> for String {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        <str as Prefix<Self>>::encode_prefix(self, out);
    }
}

impl Prefix<Vec<u8>> for [u8] {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        out.push(code::BYTES);
        put_escaped_open(self, out);
    }
}

impl<const N: usize> Prefix<Vec<u8>> for [u8; N] {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        self.as_slice().encode_prefix(out);
    }
}

impl<K: ?Sized, P: Prefix<K> + ?Sized> Prefix<K> for &P {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        (**self).encode_prefix(out);
    }
}

impl<T: Encode> Encode for [T] {
    fn encode(&self, out: &mut Vec<u8>) {
        T::encode_slice(self, out);
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        T::encode_slice(self, out);
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        T::decode_vec(reader)
    }
}

impl<T: Encode, const N: usize> Encode for [T; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        T::encode_slice(self, out);
    }
}

impl<T: Decode, const N: usize> Decode for [T; N] {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        let items = T::decode_vec(reader)?;
        items.try_into().map_err(|_| unread.error("an array of another length"))
    }
}

impl<A: Like<B>, B: Encode> Like<Vec<B>> for [A] {}
impl<A: Like<B>, B: Encode> Like<Vec<B>> for Vec<A> {}
impl<A: Like<B>, B: Encode, const N: usize> Like<Vec<B>> for [A; N] {}
impl<A: Like<B>, B: Encode, const N: usize> Like<[B; N]> for [A; N] {}

impl<T: Encode + ?Sized> Encode for &T {
    const NULLABLE: bool = T::NULLABLE;

    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}
impl<K: ?Sized, T: Like<K> + ?Sized> Like<K> for &T {}

/// `None` is below every `Some`.
impl<T: Encode> Encode for Option<T> {
    const NULLABLE: bool = true;

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(code::NULL),
            Some(value) => {
                if T::NULLABLE {
                    out.push(code::SOME);
                }
                value.encode(out);
            }
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if reader.peek() == Some(code::NULL) {
            reader.byte("null")?;
            return Ok(None);
        }
        if T::NULLABLE {
            reader.expect(code::SOME, "null or a value that is there")?;
        }
        T::decode(reader).map(Some)
    }
}
impl<A: Like<B>, B: Encode> Like<Option<B>> for Option<A> {}

/// Descending: all bytes are complemented.
impl<T: Encode> Encode for Reverse<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        self.0.encode(out);
        out[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

impl<T: Decode> Decode for Reverse<T> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.reversed(T::decode).map(Reverse)
    }
}
impl<A: Like<B>, B: Encode> Like<Reverse<B>> for Reverse<A> {}

impl Encode for Duration {
    fn encode(&self, out: &mut Vec<u8>) {
        put_duration(i128::from(self.as_secs()), self.subsec_nanos(), out);
    }
}

impl Decode for Duration {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        let (seconds, nanos) = take_duration(reader)?;
        let seconds =
            u64::try_from(seconds).map_err(|_| unread.error("a span of no less than 0"))?;
        Ok(Self::new(seconds, nanos))
    }
}
impl Like<Self> for Duration {}

/// Appends a span of time: whole seconds, rounded down, in nine bytes, and nanoseconds.
pub(super) fn put_duration(seconds: i128, nanos: u32, out: &mut Vec<u8>) {
    out.push(code::DURATION);
    out.extend_from_slice(&(seconds + (1 << 71)).to_be_bytes()[7..]);
    out.extend_from_slice(&nanos.to_be_bytes());
}

/// Reads a span of time.
pub(super) fn take_duration(reader: &mut Reader<'_>) -> Result<(i128, u32), DecodeError> {
    const EXPECTED: &str = "a span of time";
    let unread = reader.clone();
    reader.expect(code::DURATION, EXPECTED)?;
    let mut wide = [0; 16];
    wide[7..].copy_from_slice(&reader.array::<9>(EXPECTED)?);
    let nanos = u32::from_be_bytes(reader.array(EXPECTED)?);
    if nanos >= 1_000_000_000 {
        return Err(unread.error(EXPECTED));
    }
    Ok((i128::from_be_bytes(wide) - (1 << 71), nanos))
}

macro_rules! tuples {
    ($(($($name:ident $like:ident $at:tt),*))*) => { $(
        impl<$($name: Encode),*> Encode for ($($name,)*) {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(code::TUPLE);
                $(self.$at.encode(out);)*
                out.push(code::END);
            }
        }
        impl<$($name: Decode),*> Decode for ($($name,)*) {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                reader.expect(code::TUPLE, "a tuple")?;
                let value = ($($name::decode(reader)?,)*);
                reader.expect(code::END, "the end of a tuple")?;
                Ok(value)
            }
        }
        impl<$($name: Like<$like>, $like: Encode),*> Like<($($like,)*)> for ($($name,)*) {}
    )* };
}

tuples! {
    ()
    (A A2 0)
    (A A2 0, B B2 1)
    (A A2 0, B B2 1, C C2 2)
    (A A2 0, B B2 1, C C2 2, D D2 3)
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4)
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4, F F2 5)
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4, F F2 5, G G2 6)
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4, F F2 5, G G2 6, H H2 7)
}

macro_rules! prefixes {
    ($(($($name:ident $like:ident $at:tt),*) of ($($more:ident),*);)*) => { $(
        impl<$($name: Like<$like>,)* $($like,)* $($more,)*> Prefix<($($like,)* $($more,)*)>
            for ($($name,)*)
        {
            fn encode_prefix(&self, out: &mut Vec<u8>) {
                out.push(code::TUPLE);
                $(self.$at.encode(out);)*
            }
        }
    )* };
}

prefixes! {
    (A A2 0) of (X);
    (A A2 0) of (X, Y);
    (A A2 0) of (X, Y, Z);
    (A A2 0) of (X, Y, Z, U);
    (A A2 0) of (X, Y, Z, U, V);
    (A A2 0) of (X, Y, Z, U, V, W);
    (A A2 0) of (X, Y, Z, U, V, W, T);
    (A A2 0, B B2 1) of (X);
    (A A2 0, B B2 1) of (X, Y);
    (A A2 0, B B2 1) of (X, Y, Z);
    (A A2 0, B B2 1) of (X, Y, Z, U);
    (A A2 0, B B2 1) of (X, Y, Z, U, V);
    (A A2 0, B B2 1) of (X, Y, Z, U, V, W);
    (A A2 0, B B2 1, C C2 2) of (X);
    (A A2 0, B B2 1, C C2 2) of (X, Y);
    (A A2 0, B B2 1, C C2 2) of (X, Y, Z);
    (A A2 0, B B2 1, C C2 2) of (X, Y, Z, U);
    (A A2 0, B B2 1, C C2 2) of (X, Y, Z, U, V);
    (A A2 0, B B2 1, C C2 2, D D2 3) of (X);
    (A A2 0, B B2 1, C C2 2, D D2 3) of (X, Y);
    (A A2 0, B B2 1, C C2 2, D D2 3) of (X, Y, Z);
    (A A2 0, B B2 1, C C2 2, D D2 3) of (X, Y, Z, U);
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4) of (X);
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4) of (X, Y);
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4) of (X, Y, Z);
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4, F F2 5) of (X);
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4, F F2 5) of (X, Y);
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4, F F2 5, G G2 6) of (X);
}
