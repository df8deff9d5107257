//! The encoding of values in the store: strings and collections.
//!
//! A string is stored unchanged, unless it begins with [`MARK`]; then another `MARK` is put before
//! it. A collection begins with `MARK` and the number of its form: 1 and 2 are hashes in one
//! record, 3 is the head of a large collection, 4 a small list, set or sorted set. So a string is
//! read as fast as in a store of strings only, and is at most one byte larger. Bytes that no
//! version of the server writes are read as a string.

use std::borrow::Borrow;

use crate::keyspace::collections::head::Head;
use crate::keyspace::collections::packed;
use crate::keyspace::expiring_hash;
use crate::keyspace::hash::{self, Hash};
use crate::keyspace::value_kind::{HEAD, MARK, PACKED, ValueKind};

/// Returns the string of a stored value, or `None` if it is a collection.
#[inline]
pub fn string(stored: &[u8]) -> Option<&[u8]> {
    match stored {
        [MARK, MARK, ..] => Some(&stored[1..]),
        [MARK, hash::LIST | hash::TABLE | HEAD | PACKED, ..] => None,
        _ => Some(stored),
    }
}

/// Returns the number of elements of a collection, or 0 for a string.
pub fn elements(stored: &[u8]) -> usize {
    let large = || Some(Head::read(stored)?.len());
    let packed = || Some(packed::Packed::read(stored)?.len());
    hash(stored).map(|hash| hash.len()).or_else(large).or_else(packed).unwrap_or(0)
}

/// Returns Redis' name of the encoding of a collection, or `None` for a string.
pub fn encoding_of_collection(stored: &[u8]) -> Option<&'static str> {
    if let Some(hash) = hash(stored) {
        return Some(hash.encoding());
    }
    if let Some((hash, _)) = Head::inline(stored).and_then(expiring_hash::read) {
        return Some(if hash.is_table() { "hashtable" } else { "listpackex" });
    }
    let (kind, is_compact) = match stored {
        [MARK, HEAD, ..] => (ValueKind::of(stored), false),
        [MARK, PACKED, _, flags, ..] => (ValueKind::of(stored), *flags == 0),
        _ => return None,
    };
    match (kind, is_compact) {
        (ValueKind::String, _) => None,
        (ValueKind::List, _) => Some("quicklist"),
        (ValueKind::Hash, _) | (ValueKind::Set, false) => Some("hashtable"),
        (ValueKind::Set, true) => Some("intset"),
        (ValueKind::ZSet, true) => Some("listpack"),
        (ValueKind::ZSet, false) => Some("skiplist"),
    }
}

/// Returns the hash of a stored value, or `None` if it is something else or a large hash.
#[inline]
pub fn hash(stored: &[u8]) -> Option<Hash<'_>> {
    match stored {
        [MARK, encoding @ (hash::LIST | hash::TABLE), body @ ..] => {
            Some(Hash::new(*encoding, body))
        }
        _ => None,
    }
}

/// A string in its stored form.
#[derive(Debug)]
pub enum Packed<T> {
    Plain(T),
    Marked(Vec<u8>),
}

impl<T: Borrow<[u8]>> Packed<T> {
    #[inline]
    pub fn new(string: T) -> Self {
        match string.borrow() {
            [MARK, ..] => Self::Marked([&[MARK], string.borrow()].concat()),
            _ => Self::Plain(string),
        }
    }
}

impl Packed<Vec<u8>> {
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Plain(string) | Self::Marked(string) => string,
        }
    }
}

impl<T: Borrow<[u8]>> Borrow<[u8]> for Packed<T> {
    #[inline]
    fn borrow(&self) -> &[u8] {
        match self {
            Self::Plain(string) => string.borrow(),
            Self::Marked(string) => string,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_string_comes_back_and_is_no_hash() {
        let mut strings: Vec<Vec<u8>> = vec![vec![], b"plain".to_vec(), vec![MARK]];
        for second in 0..=255 {
            strings.push(vec![MARK, second]);
            strings.push(vec![MARK, second, MARK, 1]);
        }
        for text in strings {
            let packed = Packed::new(text.as_slice());
            let stored: &[u8] = packed.borrow();
            assert_eq!(string(stored), Some(text.as_slice()));
            assert!(hash(stored).is_none() && stored.len() <= text.len() + 1);
            assert_eq!(ValueKind::of(stored), ValueKind::String);
        }
        assert_eq!(string(&[MARK, 9]), Some(&[MARK, 9][..]), "of an older server");
    }
}
