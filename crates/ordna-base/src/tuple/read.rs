//! [`Reader`]: reads encoded values from a key.

use super::code;
pub use crate::error::DecodeError;

/// A position in an encoded key.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Bits with which every byte is inverted: all of them inside a descending value.
    flip: u8,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, flip: 0 }
    }

    /// Returns whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Returns the bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Checks that all bytes were read.
    ///
    /// # Errors
    /// Bytes are left.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.is_empty() { Ok(()) } else { Err(self.error("the end")) }
    }

    /// Returns the error for a next byte that is not as expected.
    pub fn error(&self, expected: &'static str) -> DecodeError {
        DecodeError { at: self.at, expected, found: self.peek() }
    }

    /// Returns the next byte, without taking it.
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).map(|byte| byte ^ self.flip)
    }

    /// Takes the next byte.
    ///
    /// # Errors
    /// No byte is left.
    pub fn byte(&mut self, expected: &'static str) -> Result<u8, DecodeError> {
        let byte = self.peek().ok_or_else(|| self.error(expected))?;
        self.at += 1;
        Ok(byte)
    }

    /// Takes the next byte, which must be this one.
    ///
    /// # Errors
    /// The next byte differs, or no byte is left.
    pub fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), DecodeError> {
        if self.peek() != Some(byte) {
            return Err(self.error(expected));
        }
        self.at += 1;
        Ok(())
    }

    /// Returns whether the end of a tuple comes next. This is also true at the end of the key.
    pub fn at_end_of_tuple(&self) -> bool {
        matches!(self.peek(), None | Some(code::END))
    }

    /// Takes `N` bytes.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn array<const N: usize>(
        &mut self,
        expected: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let Some(bytes) = self.bytes[self.at..].first_chunk::<N>() else {
            self.at = self.bytes.len();
            return Err(self.error(expected));
        };
        self.at += N;
        Ok(bytes.map(|byte| byte ^ self.flip))
    }

    /// Takes an escaped string up to its end.
    ///
    /// # Errors
    /// It has no end.
    pub fn escaped(&mut self, expected: &'static str) -> Result<Vec<u8>, DecodeError> {
        let mut out = Vec::new();
        loop {
            let rest = &self.bytes[self.at..];
            let plain = rest.iter().position(|byte| byte ^ self.flip <= code::ESCAPE);
            let plain = plain.unwrap_or(rest.len());
            out.extend(rest[..plain].iter().map(|byte| byte ^ self.flip));
            self.at += plain;
            if self.byte(expected)? == code::END {
                return Ok(out);
            }
            match self.peek() {
                Some(escaped @ 1..=2) => out.push(escaped - 1),
                _ => return Err(self.error("an escaped byte")),
            }
            self.at += 1;
        }
    }

    /// Reads with every bit inverted, for a value in descending order.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn reversed<R>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<R, DecodeError>,
    ) -> Result<R, DecodeError> {
        self.flip = !self.flip;
        let done = read(self);
        self.flip = !self.flip;
        done
    }
}
