//! A flat buffer of key-value pairs, to which scans append without an allocation for each entry.

use std::borrow::Borrow;

pub use crate::sequence::{FlatBytes, Sequence};
use crate::{Key, Value};

/// Key-value pairs in the order in which they were pushed, keys and values each in one buffer.
pub struct Entries<K: Key + ?Sized, V: Value + ?Sized> {
    keys: K::Sequence,
    values: V::Sequence,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Entries<K, V> {
    /// Creates an empty buffer without allocating.
    pub fn new() -> Self {
        Self { keys: Default::default(), values: Default::default() }
    }

    /// Creates an empty buffer with room for the words of `pairs` pairs.
    pub fn with_room(pairs: usize) -> Self {
        let mut room = Self::new();
        room.keys.reserve(pairs);
        room.values.reserve(pairs);
        room
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of all keys and values.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.keys.byte_len() + self.values.byte_len()
    }

    /// Appends a copy of the pair.
    #[inline]
    pub fn push(&mut self, key: &K, value: &V) {
        self.keys.push(key);
        self.values.push(value);
    }

    /// Removes all pairs, but keeps the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Removes all pairs from position `len` on, but keeps the memory.
    pub fn truncate(&mut self, len: usize) {
        self.keys.truncate(len);
        self.values.truncate(len);
    }

    /// Returns the pair at position `at`, if there is one.
    #[inline]
    pub fn get(&self, at: usize) -> Option<(&K, &V)> {
        Some((self.keys.get(at)?, self.values.get(at)?))
    }

    /// Returns the last pair.
    pub fn last(&self) -> Option<(&K, &V)> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Returns all pairs, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + ExactSizeIterator {
        (0..self.len()).map(|at| self.get(at).expect("`at` is below the length"))
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Default for Entries<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for Entries<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<'a, K, V> Extend<(&'a K, &'a V)> for Entries<K, V>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
{
    fn extend<I: IntoIterator<Item = (&'a K, &'a V)>>(&mut self, pairs: I) {
        for (key, value) in pairs {
            self.push(key.borrow(), value.borrow());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_entries_keep_empty_keys_and_order() {
        let mut entries = Entries::<[u8], [u8]>::new();
        for (key, value) in [(b"".as_slice(), b"x".as_slice()), (b"k", b""), (b"kk", b"yy")] {
            entries.push(key, value);
        }
        assert_eq!(entries.get(0), Some((b"".as_slice(), b"x".as_slice())));
        assert_eq!(entries.last(), Some((b"kk".as_slice(), b"yy".as_slice())));
        assert_eq!(entries.byte_len(), 6);
        entries.truncate(2);
        assert_eq!(entries.last(), Some((b"k".as_slice(), b"".as_slice())));
        entries.clear();
        assert!(entries.is_empty() && entries.get(0).is_none());
    }
}
