//! The elements of a large collection, and the changes that a command makes to them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use ordna::index::bounds_cross;
use ordna::key::prefix_end;
use ordna::{Direction, OrderedIndex, Snapshot, Store};

use super::head::Head;
use crate::keyspace::stored_key;

/// Where the elements are read.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// The present state; the caller holds the lock of the key.
    Live(&'a Store<[u8], [u8]>),
    Snapshot(&'a Snapshot<[u8], [u8]>),
    /// Nowhere: the collection is new.
    New,
}

/// A large collection: an ordered map from parts to values under the id of its head.
///
/// Changes are collected and written as one batch with the head. Reads see them, but for
/// [`visit`](Self::visit) and [`count`](Self::count), which commands call before they change anything.
#[derive(Debug)]
pub struct Large<'a> {
    source: Source<'a>,
    pub head: Head,
    prefix: Vec<u8>,
    /// Values by key in its stored form; `None`: removed.
    pub(in crate::keyspace) changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Number of entries added, less those removed.
    pub(in crate::keyspace) added: i64,
}

impl<'a> Large<'a> {
    pub fn new(source: Source<'a>, head: Head) -> Self {
        let prefix = stored_key::elements_of(head.id);
        Self { source, head, prefix, changes: BTreeMap::new(), added: 0 }
    }

    /// Whether the command has changed something.
    pub fn is_changed(&self) -> bool {
        !self.changes.is_empty()
    }

    fn with_key<R>(&self, part: &[u8], with: impl FnOnce(&[u8]) -> R) -> R {
        // Without an allocation for short parts.
        let mut short = [0; 128];
        let (prefix, len) = (&self.prefix, self.prefix.len() + part.len());
        match short.get_mut(..len) {
            Some(key) => {
                key[..prefix.len()].copy_from_slice(prefix);
                key[prefix.len()..].copy_from_slice(part);
                with(key)
            }
            None => with(&[prefix, part].concat()),
        }
    }

    /// Calls `read` with the value of a part.
    pub fn get_with<R>(&self, part: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.with_key(part, |key| {
            if !self.changes.is_empty()
                && let Some(changed) = self.changes.get(key)
            {
                return changed.as_deref().map(read);
            }
            match self.source {
                Source::Live(store) => store.get_with(key, read),
                Source::Snapshot(snapshot) => snapshot.get_with(key, read),
                Source::New => None,
            }
        })
    }

    /// Sets the value of a part. The caller knows whether the part is new.
    pub fn put(&mut self, part: &[u8], value: &[u8], is_new: bool) {
        self.added += i64::from(is_new);
        self.changes.insert([&self.prefix, part].concat(), Some(value.to_vec()));
    }

    /// Removes a part, which is present.
    pub fn remove(&mut self, part: &[u8]) {
        self.added -= 1;
        self.changes.insert([&self.prefix, part].concat(), None);
    }

    fn bounds(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let key = |part: &[u8]| [&self.prefix, part].concat();
        let lower = match lower {
            Bound::Unbounded => Bound::Included(self.prefix.clone()),
            bound => bound.map(key),
        };
        let upper = match upper {
            Bound::Unbounded => prefix_end(&self.prefix).map_or(Bound::Unbounded, Bound::Excluded),
            bound => bound.map(key),
        };
        (lower, upper)
    }

    /// Visits parts and values within bounds of parts, until `visit` breaks.
    pub fn visit(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        let (lower, upper) = self.bounds(lower, upper);
        let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
        if bounds_cross(bounds.0, bounds.1) {
            return;
        }
        let start = self.prefix.len();
        let mut visit = |key: &[u8], value: &[u8]| visit(&key[start..], value);
        debug_assert!(
            self.changes.is_empty() || matches!(self.source, Source::New),
            "commands read ranges before they change anything"
        );
        match (self.source, direction) {
            (Source::Live(store), _) => store.scan_with(bounds, direction, usize::MAX, visit),
            (Source::Snapshot(snapshot), _) => {
                snapshot.visit(bounds.0, bounds.1, direction, visit);
            }
            (Source::New, direction) => {
                let mut range = self.changes.range::<[u8], _>(bounds);
                while let Some((key, value)) = match direction {
                    Direction::Ascending => range.next(),
                    Direction::Descending => range.next_back(),
                } {
                    if let Some(value) = value
                        && visit(key, value).is_break()
                    {
                        break;
                    }
                }
            }
        }
    }

    /// Number of parts within bounds. O(log n + l) with l leaves of the tree within them.
    pub fn count(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> usize {
        let (lower, upper) = self.bounds(lower, upper);
        let (lower, upper) =
            (lower.as_ref().map(Borrow::borrow), upper.as_ref().map(Borrow::borrow));
        if bounds_cross(lower, upper) {
            return 0;
        }
        match self.source {
            Source::Live(store) => store.count(lower, upper),
            Source::Snapshot(snapshot) => snapshot.count(lower, upper),
            Source::New => self.changes.range::<[u8], _>((lower, upper)).count(),
        }
    }
}
