//! Formats integers as decimal text without an allocation.

use std::borrow::Borrow;

/// Length of the longest integer in bytes: a sign and nineteen digits.
const MOST: usize = 20;

/// The decimal text of an integer.
#[derive(Debug, Clone, Copy)]
pub struct Decimal {
    /// The text, stored at the end of the array.
    bytes: [u8; MOST],
    start: usize,
}

impl Decimal {
    #[inline]
    pub fn new(number: i64) -> Self {
        let (mut bytes, mut start, mut rest) = ([0; MOST], MOST, number.unsigned_abs());
        loop {
            start -= 1;
            bytes[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            start -= 1;
            bytes[start] = b'-';
        }
        Self { bytes, start }
    }
}

impl Borrow<[u8]> for Decimal {
    #[inline]
    fn borrow(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_written_as_the_library_does() {
        for shift in 0..64 {
            for number in [i64::MIN >> shift, i64::MAX >> shift, (i64::MIN >> shift) + 1] {
                let text: &[u8] = &number.to_string().into_bytes();
                assert_eq!(Borrow::<[u8]>::borrow(&Decimal::new(number)), text);
            }
        }
    }
}
