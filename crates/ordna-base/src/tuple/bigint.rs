//! Integers of any size.

use num_bigint::{BigInt, BigUint, Sign};

use super::encode::{Decode, Encode, Like};
use super::number::Number;
use super::read::{DecodeError, Reader};

impl Encode for BigInt {
    fn encode(&self, out: &mut Vec<u8>) {
        let (sign, magnitude) = self.to_bytes_be();
        Number::from_magnitude(sign == Sign::Minus, &magnitude).encode(out);
    }
}

impl Decode for BigInt {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        match Number::decode(reader)? {
            Number::Int(value) => Ok(value.into()),
            Number::Big { negative, magnitude } => {
                let sign = if negative { Sign::Minus } else { Sign::Plus };
                Ok(Self::from_bytes_be(sign, &magnitude))
            }
            Number::Real(_) => Err(unread.error("an integer")),
        }
    }
}
impl Like<Self> for BigInt {}

impl Encode for BigUint {
    fn encode(&self, out: &mut Vec<u8>) {
        Number::from_magnitude(false, &self.to_bytes_be()).encode(out);
    }
}

impl Decode for BigUint {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        let value = BigInt::decode(reader)?;
        Self::try_from(value).map_err(|_| unread.error("an integer of no less than 0"))
    }
}
impl Like<Self> for BigUint {}
