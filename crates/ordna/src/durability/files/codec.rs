//! Keys, values and records as bytes. Byte tables: `docs/FORMAT.md`, "Records".
//!
//! # Contract
//! Every reader here takes arbitrary bytes and answers `None` for what is no record; none panics.

use std::borrow::Borrow;
use std::ops::{Bound, Range};
use std::rc::Rc;

use crate::{Error, Key, Put, Store, Value};

/// Where a key or a value lies in a block.
pub type Span = Range<usize>;

/// A kind of key or value that files can hold: `u64` or `[u8]`.
pub trait Stored: ToOwned {
    /// The number of the kind in a file's header.
    const KIND: u8;
    /// The kind in words.
    const NAME: &'static str;

    /// The stored form, borrowed from a block.
    type Ref<'a>: Borrow<Self>;
    /// The stored form, sharing a block.
    type Piece: Borrow<Self>;

    /// Appends the stored form.
    fn encode(&self, out: &mut Vec<u8>);

    /// The span of the content whose stored form begins at `at`; moves `at` behind it.
    fn span(bytes: &[u8], at: &mut usize) -> Option<Span>;

    /// The content of a span that [`span`](Self::span) returned for the same bytes.
    fn content(bytes: &[u8], span: Span) -> Self::Ref<'_>;

    /// The same as [`content`](Self::content), which keeps the block alive.
    fn piece(block: &Rc<Vec<u8>>, span: Span) -> Self::Piece;
}

impl Stored for u64 {
    const KIND: u8 = 1;
    const NAME: &'static str = "u64";
    type Ref<'a> = u64;
    type Piece = u64;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn span(bytes: &[u8], at: &mut usize) -> Option<Span> {
        let span = *at..at.checked_add(8).filter(|end| *end <= bytes.len())?;
        *at = span.end;
        Some(span)
    }

    fn content(bytes: &[u8], span: Span) -> u64 {
        let word = bytes.get(span).and_then(<[u8]>::first_chunk);
        u64::from_le_bytes(word.copied().unwrap_or_default())
    }

    fn piece(block: &Rc<Vec<u8>>, span: Span) -> u64 {
        Self::content(block, span)
    }
}

/// A byte string within a shared block.
#[derive(Debug, Clone)]
pub struct Slice {
    block: Rc<Vec<u8>>,
    span: Span,
}

impl Borrow<[u8]> for Slice {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self.block.get(self.span.clone()).unwrap_or_default()
    }
}

impl Stored for [u8] {
    const KIND: u8 = 2;
    const NAME: &'static str = "byte strings";
    type Ref<'a> = &'a [u8];
    type Piece = Slice;

    fn encode(&self, out: &mut Vec<u8>) {
        encode_length(self.len(), out);
        out.extend_from_slice(self);
    }

    fn span(bytes: &[u8], at: &mut usize) -> Option<Span> {
        let len = decode_length(bytes, at)?;
        let span = *at..at.checked_add(len).filter(|end| *end <= bytes.len())?;
        *at = span.end;
        Some(span)
    }

    fn content(bytes: &[u8], span: Span) -> &[u8] {
        bytes.get(span).unwrap_or_default()
    }

    fn piece(block: &Rc<Vec<u8>>, span: Span) -> Slice {
        Slice { block: Rc::clone(block), span }
    }
}

/// Seven bits a byte, the lowest first; the top bit is set in all bytes but the last.
fn encode_length(mut len: usize, out: &mut Vec<u8>) {
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
}

/// Longest stored length: lengths are below 2^35.
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

fn decode_word(bytes: &[u8], at: &mut usize) -> Option<u64> {
    u64::span(bytes, at).map(|span| u64::content(bytes, span))
}

mod op {
    pub const PUT: u8 = 0;
    pub const PUT_UNTIL: u8 = 1;
    pub const REMOVE: u8 = 2;
    pub const EXPIRE: u8 = 3;
    pub const PERSIST: u8 = 4;
    pub const REMOVE_RANGE: u8 = 5;
    pub const CLEAR: u8 = 6;
    pub const WAS: u8 = 7;
    pub const WAS_UNTIL: u8 = 8;
    pub const WAS_ABSENT: u8 = 9;
    pub const SPLICE: u8 = 10;
}

/// One record, as spans of its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The key has the value, until the deadline if there is one.
    Put { key: Span, value: Span, expires_at: Option<u64> },
    /// The value of the key has these bytes at this position.
    Splice { key: Span, at: u64, bytes: Span },
    /// The key is absent.
    Remove { key: Span },
    /// The value of the key has another deadline, or none.
    Expire { key: Span, expires_at: Option<u64> },
    /// No key is left within the bounds.
    RemoveRange { lower: Bound<Span>, upper: Bound<Span> },
    /// No key is left.
    Clear,
    /// The state of the key up to the death `dead`: absent, or a value and its deadline.
    Was { key: Span, dead: u64, old: Option<(Span, Option<u64>)> },
}

pub fn encode_put<K: Stored + ?Sized, V: Stored + ?Sized>(
    key: &K,
    put: Put<&V>,
    out: &mut Vec<u8>,
) {
    match put.expires_at {
        None => out.push(op::PUT),
        Some(deadline) => {
            out.push(op::PUT_UNTIL);
            deadline.encode(out);
        }
    }
    key.encode(out);
    put.value.encode(out);
}

pub fn encode_splice<K: Stored + ?Sized>(key: &K, at: usize, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(op::SPLICE);
    (at as u64).encode(out);
    key.encode(out);
    bytes.encode(out);
}

pub fn encode_remove<K: Stored + ?Sized>(key: &K, out: &mut Vec<u8>) {
    out.push(op::REMOVE);
    key.encode(out);
}

pub fn encode_expire<K: Stored + ?Sized>(key: &K, expires_at: Option<u64>, out: &mut Vec<u8>) {
    match expires_at {
        None => out.push(op::PERSIST),
        Some(deadline) => {
            out.push(op::EXPIRE);
            deadline.encode(out);
        }
    }
    key.encode(out);
}

pub fn encode_remove_range<K: Stored + ?Sized>(
    lower: Bound<&K>,
    upper: Bound<&K>,
    out: &mut Vec<u8>,
) {
    out.push(op::REMOVE_RANGE);
    for bound in [lower, upper] {
        match bound {
            Bound::Unbounded => out.push(0),
            Bound::Included(key) => {
                out.push(1);
                key.encode(out);
            }
            Bound::Excluded(key) => {
                out.push(2);
                key.encode(out);
            }
        }
    }
}

pub fn encode_clear(out: &mut Vec<u8>) {
    out.push(op::CLEAR);
}

pub fn encode_was<K: Stored + ?Sized, V: Stored + ?Sized>(
    key: &K,
    dead: u64,
    old: Option<Put<&V>>,
    out: &mut Vec<u8>,
) {
    let deadline = old.and_then(|old| old.expires_at);
    out.push(match (old, deadline) {
        (None, _) => op::WAS_ABSENT,
        (Some(_), None) => op::WAS,
        (Some(_), Some(_)) => op::WAS_UNTIL,
    });
    dead.encode(out);
    if let Some(deadline) = deadline {
        deadline.encode(out);
    }
    key.encode(out);
    if let Some(old) = old {
        old.value.encode(out);
    }
}

fn decode_bound<K: Stored + ?Sized>(bytes: &[u8], at: &mut usize) -> Option<Bound<Span>> {
    let tag = *bytes.get(*at)?;
    *at += 1;
    match tag {
        0 => Some(Bound::Unbounded),
        1 => K::span(bytes, at).map(Bound::Included),
        2 => K::span(bytes, at).map(Bound::Excluded),
        _ => None,
    }
}

impl Record {
    /// The record at `at`; moves `at` behind it. `None`: there is no whole record.
    pub fn decode<K, V>(bytes: &[u8], at: &mut usize) -> Option<Self>
    where
        K: Stored + ?Sized,
        V: Stored + ?Sized,
    {
        let operation = *bytes.get(*at)?;
        *at += 1;
        let dead = match operation {
            op::WAS | op::WAS_UNTIL | op::WAS_ABSENT => decode_word(bytes, at)?,
            _ => 0,
        };
        let expires_at = match operation {
            op::PUT_UNTIL | op::EXPIRE | op::WAS_UNTIL => Some(decode_word(bytes, at)?),
            _ => None,
        };
        Some(match operation {
            op::PUT | op::PUT_UNTIL => {
                let key = K::span(bytes, at)?;
                Self::Put { key, value: V::span(bytes, at)?, expires_at }
            }
            op::REMOVE => Self::Remove { key: K::span(bytes, at)? },
            op::EXPIRE | op::PERSIST => Self::Expire { key: K::span(bytes, at)?, expires_at },
            op::REMOVE_RANGE => {
                let lower = decode_bound::<K>(bytes, at)?;
                Self::RemoveRange { lower, upper: decode_bound::<K>(bytes, at)? }
            }
            op::CLEAR => Self::Clear,
            op::WAS | op::WAS_UNTIL => {
                let key = K::span(bytes, at)?;
                Self::Was { key, dead, old: Some((V::span(bytes, at)?, expires_at)) }
            }
            op::SPLICE if V::KIND == <[u8]>::KIND => {
                let at_position = decode_word(bytes, at)?;
                let key = K::span(bytes, at)?;
                Self::Splice { key, at: at_position, bytes: <[u8]>::span(bytes, at)? }
            }
            op::WAS_ABSENT => Self::Was { key: K::span(bytes, at)?, dead, old: None },
            _ => return None,
        })
    }
}

/// Keys of a store that files can hold.
pub trait StoredKey: Key + Stored {}
impl<K: Key + Stored + ?Sized> StoredKey for K {}

/// Values of a store that files can hold.
pub trait StoredValue: Value + Stored {
    /// Writes bytes at a position of a value, if values of this kind have positions.
    #[doc(hidden)]
    fn splice<K: Key + ?Sized>(
        store: &Store<K, Self>,
        key: &K,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let _ = (store, key, at, bytes);
        Ok(())
    }
}

impl StoredValue for u64 {}

impl StoredValue for [u8] {
    fn splice<K: Key + ?Sized>(
        store: &Store<K, [u8]>,
        key: &K,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        // Absent: it expired while a backup was written, which then had no need of it.
        store.splice(key, |found| found.map(|_| (at, bytes))).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_come_back_and_endless_ones_are_refused() {
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

    #[test]
    fn each_record_comes_back_and_no_prefix_of_it_is_one() {
        let put = |expires_at| Put { value: b"value".as_slice(), expires_at };
        let key = b"key".as_slice();
        let mut records: Vec<Vec<u8>> = Vec::new();
        let mut encode = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            write(&mut bytes);
            records.push(bytes);
        };
        encode(&|out| encode_put(key, put(None), out));
        encode(&|out| encode_put(key, put(Some(9)), out));
        encode(&|out| encode_splice(key, 7, b"bytes", out));
        encode(&|out| encode_remove(key, out));
        encode(&|out| encode_expire(key, Some(9), out));
        encode(&|out| encode_expire(key, None, out));
        encode(&|out| encode_remove_range(Bound::Included(key), Bound::Excluded(key), out));
        encode(&|out| encode_remove_range::<[u8]>(Bound::Unbounded, Bound::Unbounded, out));
        encode(&|out| encode_clear(out));
        encode(&|out| encode_was::<[u8], [u8]>(key, 7, None, out));
        encode(&|out| encode_was(key, 7, Some(put(None)), out));
        encode(&|out| encode_was(key, 7, Some(put(Some(9))), out));
        let mut seen = Vec::new();
        for bytes in &records {
            let mut at = 0;
            let record = Record::decode::<[u8], [u8]>(bytes, &mut at).unwrap();
            assert_eq!(at, bytes.len());
            for cut in 0..bytes.len() {
                assert_eq!(Record::decode::<[u8], [u8]>(&bytes[..cut], &mut 0), None);
            }
            assert!(!seen.contains(&record));
            seen.push(record);
        }
        assert_eq!(Record::decode::<[u8], [u8]>(&[99, 0, 0], &mut 0), None);
        // Integers have no positions.
        let mut bytes = Vec::new();
        encode_splice(key, 0, b"eight888", &mut bytes);
        assert_eq!(Record::decode::<[u8], u64>(&bytes, &mut 0), None);
    }
}
