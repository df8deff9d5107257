//! Values as the store keeps them: a string or a hash.
//!
//! A string is stored unchanged, unless it begins with [`MARK`]: then another `MARK` precedes it. A
//! hash begins with `MARK` and the number of its encoding. So a string is read as fast as in a store
//! of strings only, and is at most one byte larger. Bytes that no version of the server writes are
//! read as a string.

use std::borrow::Borrow;

use ordna::tuple::Value;
use ordna_secondary::Document;

use crate::keyspace::hash::{self, Hash, MARK};

/// The types of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    String,
    Hash,
}

impl ValueKind {
    #[inline]
    pub fn of(stored: &[u8]) -> Self {
        match stored {
            [MARK, hash::LIST | hash::TABLE, ..] => Self::Hash,
            _ => Self::String,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Hash => "hash",
        }
    }
}

/// Returns the string of a stored value; `None` for a hash.
#[inline]
pub fn string(stored: &[u8]) -> Option<&[u8]> {
    match stored {
        [MARK, hash::LIST | hash::TABLE, ..] => None,
        [MARK, MARK, ..] => Some(&stored[1..]),
        _ => Some(stored),
    }
}

/// Returns the document of a hash. Fields whose name is not UTF-8 are left out; values that are not
/// become byte strings.
pub fn document(hash: Hash<'_>) -> Document {
    let mut document = Document::new();
    for (field, value) in hash.iter() {
        if let Ok(field) = std::str::from_utf8(field) {
            let value = match std::str::from_utf8(value) {
                Ok(text) => Value::String(text.to_owned()),
                Err(_) => Value::Bytes(value.to_vec()),
            };
            document.push(field, value);
        }
    }
    document
}

/// Returns the hash of a stored value; `None` for a string.
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
