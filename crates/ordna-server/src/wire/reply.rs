//! Encodes replies in RESP2 or RESP3, as the client chose.

use std::fmt::Display;
use std::io::Write;

use crate::wire::double;

/// The bytes to be sent to one client.
#[derive(Debug, Default)]
pub struct Replies {
    pub bytes: Vec<u8>,
    /// Whether the client has chosen RESP3 with `HELLO 3`.
    pub resp3: bool,
}

impl Replies {
    #[inline]
    fn header(&mut self, sign: u8, number: i64) {
        // Most numbers are lengths below 100.
        if let Ok(small @ 0..100) = u8::try_from(number) {
            let (tens, ones) = (b'0' + small / 10, b'0' + small % 10);
            if small < 10 {
                self.bytes.extend_from_slice(&[sign, ones, b'\r', b'\n']);
            } else {
                self.bytes.extend_from_slice(&[sign, tens, ones, b'\r', b'\n']);
            }
            return;
        }
        self.long_header(sign, number);
    }

    fn long_header(&mut self, sign: u8, number: i64) {
        // Sign, minus, twenty digits and line end, filled from the end.
        let mut line = [0; 24];
        line[22..].copy_from_slice(b"\r\n");
        let mut at = 22;
        let mut rest = number.unsigned_abs();
        loop {
            at -= 1;
            line[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            line[at] = b'-';
        }
        line[at - 1] = sign;
        self.bytes.extend_from_slice(&line[at - 1..]);
    }

    /// Writes a status, such as `OK`. `text` has no line breaks.
    pub fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes an error, whose text begins with its code. Line breaks become blanks, as in Redis.
    pub fn error(&mut self, error: impl Display) {
        self.bytes.push(b'-');
        let start = self.bytes.len();
        // A write to a vector does not fail.
        let _ = write!(self.bytes, "{error}");
        let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let text = &mut self.bytes[start..];
        let length = text.iter().rposition(|byte| !is_break(byte)).map_or(0, |last| last + 1);
        text.iter_mut().filter(|byte| is_break(byte)).for_each(|byte| *byte = b' ');
        self.bytes.truncate(start + length);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub fn integer(&mut self, number: i64) {
        self.header(b':', number);
    }

    pub fn count(&mut self, count: usize) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len() as i64);
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes a double of RESP3 or, in RESP2, a bulk string with its text.
    pub fn double(&mut self, value: f64) {
        let text = double::text(value);
        if self.resp3 {
            self.bytes.push(b',');
            self.bytes.extend_from_slice(text.as_bytes());
            self.bytes.extend_from_slice(b"\r\n");
        } else {
            self.bulk(text.as_bytes());
        }
    }

    /// Writes the null of RESP3 or, in RESP2, an absent bulk string.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    pub fn null_array(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// Begins an array, which consists of the next `len` replies.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as i64);
    }

    /// Begins a message that no request asked for, which consists of the next `len` replies. In
    /// RESP2 it is an array.
    pub fn push(&mut self, len: usize) {
        self.header(if self.resp3 { b'>' } else { b'*' }, len as i64);
    }

    /// Writes a message that was encoded as an array of RESP2.
    pub fn push_encoded(&mut self, message: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(message);
        if self.resp3
            && let Some(sign) = self.bytes.get_mut(start)
        {
            *sign = b'>';
        }
    }

    /// Begins a map, which consists of the next `2 * len` replies: keys and values. In RESP2 it is
    /// a flat array.
    pub fn map(&mut self, len: usize) {
        if self.resp3 { self.header(b'%', len as i64) } else { self.array(len * 2) }
    }

    /// Begins a set, which consists of the next `len` replies. In RESP2 it is an array.
    pub fn set(&mut self, len: usize) {
        self.header(if self.resp3 { b'~' } else { b'*' }, len as i64);
    }

    /// Writes text for people: a verbatim string in RESP3.
    pub fn text(&mut self, text: &str) {
        if self.resp3 {
            self.header(b'=', text.len() as i64 + 4);
            self.bytes.extend_from_slice(b"txt:");
            self.bytes.extend_from_slice(text.as_bytes());
            self.bytes.extend_from_slice(b"\r\n");
        } else {
            self.bulk(text.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use redis_protocol::resp2::decode::decode as decode2;
    use redis_protocol::resp3::decode::complete::decode as decode3;

    use super::Replies;

    fn all(resp3: bool) -> Vec<u8> {
        let mut replies = Replies { resp3, ..Replies::default() };
        replies.array(9);
        replies.simple("OK");
        replies.error("ERR two\r\nlines");
        replies.integer(i64::MIN);
        replies.count(0);
        replies.bulk(b"a\r\nb");
        replies.null();
        replies.map(1);
        replies.bulk(b"k");
        replies.null_array();
        replies.set(1);
        replies.integer(7);
        replies.text("hello");
        replies.bytes
    }

    #[test]
    fn the_protocol_crate_reads_what_is_written() {
        let (resp2, resp3) = (all(false), all(true));
        let (_, used) = decode2(&resp2).unwrap().unwrap();
        assert_eq!(used, resp2.len());
        let (_, used) = decode3(&resp3).unwrap().unwrap();
        assert_eq!(used, resp3.len());
    }
}
