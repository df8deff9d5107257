//! Numbers: integers of any size and floats, in one numeric order.
//!
//! # Definition
//! The magnitude of a number is T + f, T whole, 0 ≤ f < 1. Below 2^127 it is stored as the integer
//! 2T (if f is 0) or 2T + 1 (otherwise), in as few big-endian bytes as it needs, up to 16; their
//! count stands in the code. After 2T + 1 stand the 8 bytes of f as a positive `f64`. From 2^127 on
//! a number is stored as the count of bits of T in 4 bytes, then T, escaped and ended as a string
//! is. T is shifted to the left until its first byte starts with a one bit; zero bytes at its end
//! are left out. All bytes of a negative number after its code are complemented.
//!
//! # Invariants
//! 1. Equal numbers have equal bytes, whatever type they come from; −0 equals 0.
//! 2. The byte order is the numeric order; −∞, ∞ and NaN are at the ends.
//! 3. No number is a prefix of another one: the code determines the length, or the string has its
//!    own end.

use super::code;
use super::encode::{Decode, Encode, Like, put_escaped};
use super::read::{DecodeError, Reader};

/// Magnitude from which on a number is stored with a count of bits.
const BIG: u128 = 1 << 127;

/// A number of any type: equal numbers are equal keys.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Number {
    /// An integer whose magnitude is below 2^127.
    Int(i128),
    /// Another integer: its sign, and its magnitude in big-endian bytes, the first one not zero.
    Big {
        /// Whether it is below zero.
        negative: bool,
        /// The magnitude.
        magnitude: Vec<u8>,
    },
    /// A float that is not an integer, or ∞, −∞ or NaN.
    Real(f64),
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        if !value.is_finite() || value.fract() != 0.0 {
            return Self::Real(value);
        }
        if value.abs() < BIG as f64 {
            return Self::Int(value as i128);
        }
        let exponent = (value.to_bits() >> 52 & 0x7FF) as usize - 1075;
        let mantissa = value.to_bits() & ((1 << 52) - 1) | 1 << 52;
        let mut magnitude = (u128::from(mantissa) << (exponent % 8)).to_be_bytes().to_vec();
        magnitude.resize(16 + exponent / 8, 0);
        Self::from_magnitude(value < 0.0, &magnitude)
    }
}

impl From<i128> for Number {
    fn from(value: i128) -> Self {
        Self::from_magnitude(value < 0, &value.unsigned_abs().to_be_bytes())
    }
}

impl From<u128> for Number {
    fn from(value: u128) -> Self {
        Self::from_magnitude(false, &value.to_be_bytes())
    }
}

impl Number {
    /// Returns the integer with a sign and a magnitude in big-endian bytes.
    pub fn from_magnitude(negative: bool, magnitude: &[u8]) -> Self {
        match narrow(magnitude) {
            Some(value) if value < BIG => {
                let value = value as i128;
                Self::Int(if negative { -value } else { value })
            }
            _ => Self::Big { negative, magnitude: significant(magnitude).to_vec() },
        }
    }

    /// Returns the nearest `f64`.
    pub fn to_f64(&self) -> f64 {
        match self {
            Self::Int(value) => *value as f64,
            Self::Real(value) => *value,
            Self::Big { negative, magnitude } => {
                // Sixteen bytes have more bits than a float. Setting the last bit if further bits
                // follow makes the rounding of these bytes equal to that of all.
                let (head, rest) = magnitude.split_at(magnitude.len().min(16));
                let mut value = narrow(head).unwrap_or(0);
                if rest.iter().any(|byte| *byte != 0) {
                    value |= 1;
                }
                let exponent = i32::try_from(rest.len()).map_or(i32::MAX, |n| n.saturating_mul(8));
                let value = value as f64 * 2_f64.powi(exponent);
                if *negative { -value } else { value }
            }
        }
    }
}

/// Returns the bytes from the first one that is not zero.
fn significant(magnitude: &[u8]) -> &[u8] {
    let zeros = magnitude.iter().take_while(|byte| **byte == 0).count();
    &magnitude[zeros..]
}

/// Returns a magnitude of at most 16 significant bytes as a number.
fn narrow(magnitude: &[u8]) -> Option<u128> {
    let bytes = significant(magnitude);
    let mut wide = [0; 16];
    wide.get_mut(16_usize.checked_sub(bytes.len())?..)?.copy_from_slice(bytes);
    Some(u128::from_be_bytes(wide))
}

/// Appends a number whose magnitude is `whole`.
#[inline]
pub(super) fn put_int(negative: bool, whole: u128, out: &mut Vec<u8>) {
    if whole < BIG {
        put_small(negative, whole << 1, out);
    } else {
        put_big(negative, &whole.to_be_bytes(), out);
    }
}

/// Appends code and bytes of the doubled magnitude.
#[inline]
fn put_small(negative: bool, doubled: u128, out: &mut Vec<u8>) {
    let length = 16 - doubled.leading_zeros() as usize / 8;
    let (code, flip) = if negative {
        (code::ZERO - length as u8, u128::MAX)
    } else {
        (code::ZERO + length as u8, 0)
    };
    out.push(code);
    out.extend_from_slice(&(doubled ^ flip).to_be_bytes()[16 - length..]);
}

fn put_big(negative: bool, magnitude: &[u8], out: &mut Vec<u8>) {
    let bytes = significant(magnitude);
    let shift = bytes.first().map_or(0, |byte| byte.leading_zeros());
    let bits = bytes.len() as u64 * 8 - u64::from(shift);
    out.push(if negative { code::NEGATIVE_BIG } else { code::BIG });
    let start = out.len();
    // A key that would need more bits is far longer than a key may be.
    out.extend_from_slice(&u32::try_from(bits).unwrap_or(u32::MAX).to_be_bytes());
    let mut aligned: Vec<u8> = Vec::with_capacity(bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        let next = bytes.get(at + 1).copied().unwrap_or(0);
        aligned.push((u16::from_be_bytes([*byte, next]) << shift >> 8) as u8);
    }
    while aligned.last() == Some(&0) {
        aligned.pop();
    }
    put_escaped(&aligned, out);
    if negative {
        out[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

impl Encode for Number {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Int(value) => put_int(*value < 0, value.unsigned_abs(), out),
            Self::Big { negative, magnitude } => match narrow(magnitude) {
                Some(whole) => put_int(*negative && whole > 0, whole, out),
                None => put_big(*negative, magnitude, out),
            },
            Self::Real(value) if value.is_nan() => out.push(code::NAN),
            Self::Real(f64::INFINITY) => out.push(code::INFINITY),
            Self::Real(f64::NEG_INFINITY) => out.push(code::NEGATIVE_INFINITY),
            Self::Real(value) if value.fract() == 0.0 => Self::from(*value).encode(out),
            Self::Real(value) => {
                // A float with a fraction is below 2^52.
                let (whole, fraction) = (value.abs() as u128, value.abs().fract());
                put_small(*value < 0.0, whole << 1 | 1, out);
                let flip = if *value < 0.0 { u64::MAX } else { 0 };
                out.extend_from_slice(&(fraction.to_bits() ^ flip).to_be_bytes());
            }
        }
    }
}

impl Like<Self> for Number {}

impl Decode for Number {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const EXPECTED: &str = "a number";
        let unread = reader.clone();
        let code = reader.byte(EXPECTED)?;
        let (negative, length) = match code {
            code::NAN => return Ok(Self::Real(f64::NAN)),
            code::INFINITY => return Ok(Self::Real(f64::INFINITY)),
            code::NEGATIVE_INFINITY => return Ok(Self::Real(f64::NEG_INFINITY)),
            code::BIG => return big(reader),
            code::NEGATIVE_BIG => {
                let Self::Big { magnitude, .. } = reader.reversed(big)? else {
                    return Err(unread.error(EXPECTED));
                };
                return Ok(Self::Big { negative: true, magnitude });
            }
            code::ZERO..code::BIG => (false, code - code::ZERO),
            0x20..code::ZERO => (true, code::ZERO - code),
            _ => return Err(unread.error(EXPECTED)),
        };
        let length = usize::from(length);
        if negative {
            reader.reversed(|reader| small(reader, length, true))
        } else {
            small(reader, length, false)
        }
    }
}

/// Reads a magnitude below 2^127. Fails for bytes that [`put_small`] does not write.
fn small(reader: &mut Reader<'_>, length: usize, negative: bool) -> Result<Number, DecodeError> {
    let mut doubled = 0_u128;
    for at in 0..length {
        if at == 0 && reader.peek() == Some(0) {
            return Err(reader.error("a byte above zero"));
        }
        doubled = doubled << 8 | u128::from(reader.byte("a byte of a number")?);
    }
    let whole = doubled >> 1;
    if doubled & 1 == 0 {
        let value = whole as i128;
        return Ok(Number::Int(if negative { -value } else { value }));
    }
    let unread = reader.clone();
    let fraction = f64::from_bits(u64::from_be_bytes(reader.array("a fraction")?));
    let value = whole as f64 + fraction;
    if !(fraction > 0.0 && fraction < 1.0 && value as u128 == whole && value.fract() == fraction) {
        return Err(unread.error("a fraction"));
    }
    Ok(Number::Real(if negative { -value } else { value }))
}

/// Reads what [`put_big`] writes after the code.
fn big(reader: &mut Reader<'_>) -> Result<Number, DecodeError> {
    const EXPECTED: &str = "an integer of 128 bits or more";
    let unread = reader.clone();
    let bits = u32::from_be_bytes(reader.array(EXPECTED)?) as usize;
    let aligned = reader.escaped(EXPECTED)?;
    let length = bits.div_ceil(8);
    let ends_well = aligned.last().is_some_and(|last| *last != 0) && aligned[0] >= 0x80;
    // A key has a maximum length, so an integer has at most 2^16 bytes.
    if bits < 128 || length > crate::error::MAX_KEY_LEN || aligned.len() > length || !ends_well {
        return Err(unread.error(EXPECTED));
    }
    let shift = (length * 8 - bits) as u32;
    let mut magnitude = Vec::with_capacity(length);
    let mut above = 0_u8;
    for at in 0..length {
        let byte = aligned.get(at).copied().unwrap_or(0);
        magnitude.push((u16::from_be_bytes([above, byte]) >> shift) as u8);
        above = byte;
    }
    if u32::from(above).trailing_zeros() < shift {
        return Err(unread.error(EXPECTED));
    }
    Ok(Number::Big { negative: false, magnitude })
}
