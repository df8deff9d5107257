//! The encoding of keys and values in files. `docs/FORMAT.md`, "Records", has the byte tables.
//!
//! # Contract
//! Decoding accepts arbitrary bytes. It returns `None` for malformed ones and never panics.

use std::borrow::Borrow;
use std::ops::Range;

/// Position of a key or a value in a block.
pub type ByteRange = Range<usize>;

/// The form of a key or value in files. Implemented by `u64` and `[u8]`.
pub trait Encoding: ToOwned {
    /// The number that stands for this kind in the headers of files.
    const KIND_NUMBER: u8;
    /// Name of the kind.
    const KIND_NAME: &'static str;

    /// A decoded key or value that borrows from its block.
    type Ref<'a>: Borrow<Self>;

    /// Appends the encoded form.
    fn encode_to(&self, out: &mut Vec<u8>);

    /// Returns the position of the content whose encoded form starts at `at`, and moves `at` past
    /// it.
    fn range_at(bytes: &[u8], at: &mut usize) -> Option<ByteRange>;

    /// Decodes the content at a position that [`range_at`](Self::range_at) returned for these
    /// bytes.
    fn decode(bytes: &[u8], range: ByteRange) -> Self::Ref<'_>;
}

impl Encoding for u64 {
    const KIND_NUMBER: u8 = 1;
    const KIND_NAME: &'static str = "u64";
    type Ref<'a> = u64;

    fn encode_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn range_at(bytes: &[u8], at: &mut usize) -> Option<ByteRange> {
        let range = *at..at.checked_add(8).filter(|end| *end <= bytes.len())?;
        *at = range.end;
        Some(range)
    }

    fn decode(bytes: &[u8], range: ByteRange) -> u64 {
        let word = bytes.get(range).and_then(<[u8]>::first_chunk);
        u64::from_le_bytes(word.copied().unwrap_or_default())
    }
}

impl Encoding for [u8] {
    const KIND_NUMBER: u8 = 2;
    const KIND_NAME: &'static str = "byte strings";
    type Ref<'a> = &'a [u8];

    fn encode_to(&self, out: &mut Vec<u8>) {
        encode_length(self.len(), out);
        out.extend_from_slice(self);
    }

    fn range_at(bytes: &[u8], at: &mut usize) -> Option<ByteRange> {
        let len = decode_length(bytes, at)?;
        let range = *at..at.checked_add(len).filter(|end| *end <= bytes.len())?;
        *at = range.end;
        Some(range)
    }

    fn decode(bytes: &[u8], range: ByteRange) -> &[u8] {
        bytes.get(range).unwrap_or_default()
    }
}

/// Appends a length with seven bits in each byte, lowest bits first. All bytes but the last have
/// the top bit set.
fn encode_length(mut len: usize, out: &mut Vec<u8>) {
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
}

/// Maximum number of bytes of an encoded length: lengths are below 2^35.
const LENGTH_BYTES: usize = 5;

fn decode_length(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let mut len = 0;
    for byte in 0..LENGTH_BYTES {
        let next = *bytes.get(*at)?;
        *at += 1;
        len |= usize::from(next & 0x7F) << (7 * byte);
        if next < 0x80 {
            return Some(len);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_round_trip_and_endless_ones_are_refused() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 65_535, 512 << 20] {
            let mut bytes = Vec::new();
            encode_length(len, &mut bytes);
            let mut at = 0;
            assert_eq!(decode_length(&bytes, &mut at), Some(len));
            assert_eq!(at, bytes.len());
            assert_eq!(decode_length(&bytes[..bytes.len() - 1], &mut 0), None);
        }
        assert_eq!(decode_length(&[0xFF; 9], &mut 0), None);
    }
}
