//! The encoding of the records of the write-ahead log and of delta files. `docs/FORMAT.md`,
//! "Records", has the byte tables.
//!
//! # Contract
//! Decoding accepts arbitrary bytes. It returns `None` if they are not a record and never panics.

use std::ops::Bound;

use crate::entry::Put;
use ordna_base::encoding::{ByteRange, Encoding};

fn decode_word(bytes: &[u8], at: &mut usize) -> Option<u64> {
    u64::range_at(bytes, at).map(|span| u64::decode(bytes, span))
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

/// One record, as ranges of bytes in its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The key has the value, until the deadline if there is one.
    Put { key: ByteRange, value: ByteRange, expires_at: Option<u64> },
    /// The value of the key has these bytes at this position.
    Splice { key: ByteRange, at: u64, bytes: ByteRange },
    /// The key is absent.
    Remove { key: ByteRange },
    /// The value of the key gets another deadline, or none.
    Expire { key: ByteRange, expires_at: Option<u64> },
    /// No key is present within the bounds.
    RemoveRange { lower: Bound<ByteRange>, upper: Bound<ByteRange> },
    /// No key is present.
    Clear,
    /// The state of the key, absent or a value with its deadline, up to the end `dead`.
    Was { key: ByteRange, dead: u64, old: Option<(ByteRange, Option<u64>)> },
}

pub fn encode_put<K: Encoding + ?Sized, V: Encoding + ?Sized>(
    key: &K,
    put: Put<&V>,
    out: &mut Vec<u8>,
) {
    match put.expires_at {
        None => out.push(op::PUT),
        Some(deadline) => {
            out.push(op::PUT_UNTIL);
            deadline.encode_to(out);
        }
    }
    key.encode_to(out);
    put.value.encode_to(out);
}

pub fn encode_splice<K: Encoding + ?Sized>(key: &K, at: usize, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(op::SPLICE);
    (at as u64).encode_to(out);
    key.encode_to(out);
    bytes.encode_to(out);
}

pub fn encode_remove<K: Encoding + ?Sized>(key: &K, out: &mut Vec<u8>) {
    out.push(op::REMOVE);
    key.encode_to(out);
}

pub fn encode_expire<K: Encoding + ?Sized>(key: &K, expires_at: Option<u64>, out: &mut Vec<u8>) {
    match expires_at {
        None => out.push(op::PERSIST),
        Some(deadline) => {
            out.push(op::EXPIRE);
            deadline.encode_to(out);
        }
    }
    key.encode_to(out);
}

pub fn encode_remove_range<K: Encoding + ?Sized>(
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
                key.encode_to(out);
            }
            Bound::Excluded(key) => {
                out.push(2);
                key.encode_to(out);
            }
        }
    }
}

pub fn encode_clear(out: &mut Vec<u8>) {
    out.push(op::CLEAR);
}

pub fn encode_was<K: Encoding + ?Sized, V: Encoding + ?Sized>(
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
    dead.encode_to(out);
    if let Some(deadline) = deadline {
        deadline.encode_to(out);
    }
    key.encode_to(out);
    if let Some(old) = old {
        old.value.encode_to(out);
    }
}

fn decode_bound<K: Encoding + ?Sized>(bytes: &[u8], at: &mut usize) -> Option<Bound<ByteRange>> {
    let tag = *bytes.get(*at)?;
    *at += 1;
    match tag {
        0 => Some(Bound::Unbounded),
        1 => K::range_at(bytes, at).map(Bound::Included),
        2 => K::range_at(bytes, at).map(Bound::Excluded),
        _ => None,
    }
}

impl Record {
    /// Decodes the record at `at` and moves `at` past it. Returns `None` if there is no complete
    /// record.
    pub fn decode<K, V>(bytes: &[u8], at: &mut usize) -> Option<Self>
    where
        K: Encoding + ?Sized,
        V: Encoding + ?Sized,
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
                let key = K::range_at(bytes, at)?;
                Self::Put { key, value: V::range_at(bytes, at)?, expires_at }
            }
            op::REMOVE => Self::Remove { key: K::range_at(bytes, at)? },
            op::EXPIRE | op::PERSIST => Self::Expire { key: K::range_at(bytes, at)?, expires_at },
            op::REMOVE_RANGE => {
                let lower = decode_bound::<K>(bytes, at)?;
                Self::RemoveRange { lower, upper: decode_bound::<K>(bytes, at)? }
            }
            op::CLEAR => Self::Clear,
            op::WAS | op::WAS_UNTIL => {
                let key = K::range_at(bytes, at)?;
                Self::Was { key, dead, old: Some((V::range_at(bytes, at)?, expires_at)) }
            }
            op::SPLICE if V::KIND_NUMBER == <[u8]>::KIND_NUMBER => {
                let at_position = decode_word(bytes, at)?;
                let key = K::range_at(bytes, at)?;
                Self::Splice { key, at: at_position, bytes: <[u8]>::range_at(bytes, at)? }
            }
            op::WAS_ABSENT => Self::Was { key: K::range_at(bytes, at)?, dead, old: None },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Integers have no byte positions.
        let mut bytes = Vec::new();
        encode_splice(key, 0, b"eight888", &mut bytes);
        assert_eq!(Record::decode::<[u8], u64>(&bytes, &mut 0), None);
    }
}
