//! The queries of a batch, and their answers.

use std::ops::Bound;

use ordna_base::{Entries, Error, Key, Value};

/// One query of a batch.
#[derive(Debug)]
pub enum Query<'a, K: Key + ?Sized, V: Value + ?Sized> {
    /// The value of a key.
    Search(&'a K),
    /// Sets the value of a key.
    Insert(&'a K, &'a V),
    /// Removes a key.
    Delete(&'a K),
    /// The first `limit` entries within bounds, in ascending order.
    Range {
        /// Where it begins.
        lower: Bound<&'a K>,
        /// Where it ends.
        upper: Bound<&'a K>,
        /// At most this many entries.
        limit: usize,
    },
}

/// The answer to a query.
pub enum Answer<K: Key + ?Sized, V: Value + ?Sized> {
    /// To a search: the value. To an insert or a delete: the value before it.
    Value(Option<V::Owned>),
    /// To a range query.
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
    /// Refuses a key or value to be inserted that is too long.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Insert(key, value) => {
                key.check()?;
                value.check()
            }
            // Too long a key is not there: nothing is written for it.
            _ => Ok(()),
        }
    }
}

/// By what a query is sorted: its key, or where its range begins.
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
