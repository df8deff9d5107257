//! The queries of a batch, and their answers.

use std::ops::Bound;

use ordna_base::{Entries, Error, Key, Value};

/// One query of a batch.
#[derive(Debug)]
pub enum Query<'a, K: Key + ?Sized, V: Value + ?Sized> {
    /// Returns the value of a key.
    Search(&'a K),
    /// Sets the value of a key.
    Insert(&'a K, &'a V),
    /// Removes a key.
    Delete(&'a K),
    /// Returns the first `limit` entries within bounds, in ascending order.
    Range {
        /// Lower bound.
        lower: Bound<&'a K>,
        /// Upper bound.
        upper: Bound<&'a K>,
        /// Maximum number of entries.
        limit: usize,
    },
}

/// The answer to a query.
pub enum Answer<K: Key + ?Sized, V: Value + ?Sized> {
    /// The value for a search. For an insert or a delete, the previous value.
    Value(Option<V::Owned>),
    /// The entries for a range query.
    Entries(Entries<K, V>),
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for Answer<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Value(value) => f.debug_tuple("Value").field(value).finish(),
            Self::Entries(entries) => f.debug_tuple("Entries").field(entries).finish(),
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Query<'_, K, V> {
    /// Returns an error if a key or value to be inserted is too long.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Insert(key, value) => {
                key.check()?;
                value.check()
            }
            // A key that is too long is absent, and nothing is written for it.
            _ => Ok(()),
        }
    }
}

/// Returns the key by which a query is sorted: its own, or the lower bound of its range.
pub(super) fn key_of<'q, K: Key + ?Sized, V: Value + ?Sized>(
    batch: &[Query<'q, K, V>],
    at: usize,
    least: &'q K,
) -> &'q K {
    match &batch[at] {
        Query::Search(key) | Query::Insert(key, _) | Query::Delete(key) => key,
        Query::Range { lower, .. } => match lower {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => least,
        },
    }
}
