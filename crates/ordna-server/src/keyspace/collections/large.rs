//! The elements of a large collection, and the changes that a command makes to them.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use ordna::index::bounds_cross;
use ordna::key::prefix_end;
use ordna::{Direction, OrderedIndex, Snapshot, Store};

use super::changes::{Changes, EntryKey, EntryValue, key_of};
use super::ends::Ends;
use super::head::Head;
use super::positions::{Blocks, FEWEST, FoundBlock, Positions};
use crate::keyspace::stored_key::{self, KeyPrefix, Visit};
use crate::keyspace::value_kind::ValueKind;

/// The source from which elements are read.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// The present state, with positions in it. The caller holds the lock of the key.
    Live(&'a Store<[u8], [u8]>, &'a Positions),
    Snapshot(&'a Snapshot<[u8], [u8]>),
    /// No source, because the collection is new.
    New,
}

/// A large collection: an ordered map from parts to values under the id of its head.
///
/// Changes are collected and written as one batch with the head. Reads see them, except
/// [`visit`](Self::visit) and [`count`](Self::count), which commands call before they change
/// anything.
#[derive(Debug)]
pub struct Large<'a> {
    source: Source<'a>,
    pub head: Head,
    /// The fields of a small hash with fields that expire, which are stored after the head.
    pub inline: Option<Vec<u8>>,
    /// The values at the ends of a list, which are stored after the head.
    pub ends: Ends,
    /// Whether the ends, and therefore the number of values, have changed.
    pub(super) ends_changed: bool,
    prefix: KeyPrefix,
    /// The time of the reads: fields that have expired by then are hidden.
    pub(super) now: u64,
    pub(in crate::keyspace) changes: Changes,
    /// Number of entries added minus number of entries removed.
    pub(in crate::keyspace) added: i64,
}

impl<'a> Large<'a> {
    pub fn new(source: Source<'a>, head: Head) -> Self {
        let prefix = stored_key::elements_of(head.id);
        Self {
            source,
            head,
            inline: None,
            ends: Ends::default(),
            ends_changed: false,
            prefix,
            now: 0,
            changes: Changes::default(),
            added: 0,
        }
    }

    /// Returns the collection of a stored head, or `None` if the stored value is something else.
    pub fn of_stored(source: Source<'a>, stored: &[u8]) -> Option<Self> {
        Some(Self { ends: Ends::of(stored), ..Self::new(source, Head::read(stored)?) })
    }

    /// Returns the stored form of the head with the data that follows it.
    pub fn stored_head(&self) -> Vec<u8> {
        let mut stored = self.head.stored();
        stored.extend(self.inline.iter().flatten());
        self.ends.store(&mut stored);
        stored
    }

    /// Returns the number of bytes before the part in the key of an element.
    pub fn prefix_len(&self) -> usize {
        self.prefix.len()
    }

    /// Returns the estimated size of all entries, with `overhead` bytes for each. At most the first
    /// `sample` entries are read.
    pub fn estimated_bytes(&self, sample: usize, overhead: usize) -> usize {
        let is_list = self.head.kind == ValueKind::List;
        let (mut bytes, mut elements, mut met) = (0, 0, 0);
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.visit(all, Direction::Ascending, |part, value| {
            bytes += part.len() + value.len() + overhead;
            elements += if is_list { Self::values_in(part, value) } else { 1 };
            met += 1;
            if met < sample { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let all = match self.head.kind {
            ValueKind::List => self.in_nodes(),
            // Each member has two entries.
            ValueKind::ZSet => self.head.len().saturating_mul(2),
            _ => self.head.len(),
        };
        // A node holds many values.
        let product = bytes as u128 * all as u128 / elements.max(1) as u128;
        usize::try_from(product).unwrap_or(usize::MAX)
    }

    /// Returns the entries that the command has put: keys in their stored form, and values.
    pub fn elements(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.changes.iter().filter_map(|(key, (value, _))| Some((key, value.as_deref()?)))
    }

    /// Returns whether the command has changed something.
    pub fn is_changed(&self) -> bool {
        self.ends_changed || !self.changes.is_empty()
    }

    fn with_key<R>(&self, part: &[u8], with: impl FnOnce(&[u8]) -> R) -> R {
        // Needs no allocation for short parts.
        let mut short = [0; 128];
        let (prefix, len) = (&self.prefix, self.prefix.len() + part.len());
        match short.get_mut(..len) {
            Some(key) => {
                key[..prefix.len()].copy_from_slice(prefix);
                key[prefix.len()..].copy_from_slice(part);
                with(key)
            }
            None => with(&[&prefix[..], part].concat()),
        }
    }

    /// Calls `read` with the value of a part.
    pub fn get_with<R>(&self, part: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.with_key(part, |key| self.get_key_with(key, read))
    }

    /// Calls `read` with the value of a key of the reserved space.
    pub(super) fn get_key_with<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if !self.changes.is_empty()
            && let Some(changed) = self.changes.get(key)
        {
            return changed.0.as_deref().map(read);
        }
        match self.source {
            Source::Live(store, _) => store.get_with(key, read),
            Source::Snapshot(snapshot) => snapshot.get_with(key, read),
            Source::New => None,
        }
    }

    /// Calls `read` with an element near a part: the rest of its part after `tag`, and its value.
    /// The element is the one at `place` among neighbours in a leaf. Returns `None` if that entry
    /// is no such element, or if the collection is not read from the store.
    pub(super) fn near<R>(
        &self,
        tag: &[u8],
        part: &[u8],
        place: usize,
        read: impl FnOnce(&[u8], &[u8]) -> R,
    ) -> Option<R> {
        let Source::Live(store, _) = self.source else { return None };
        if !self.changes.is_empty() {
            return None;
        }
        let key = key_of(&[&self.prefix, tag, part]);
        let found = store.near_with(&key[..], place, |key, value| {
            let part = key.strip_prefix(&self.prefix[..])?.strip_prefix(tag)?;
            Some(read(part, value))
        });
        found.flatten()
    }

    /// Sets the value of a part, given in pieces. The caller knows whether the part is new.
    pub fn put(&mut self, part: &[&[u8]], value: &[u8], is_new: bool) {
        self.put_key(self.key_of_part(part), value, is_new);
    }

    /// Sets the value of a key of the reserved space.
    pub(super) fn put_key(&mut self, key: EntryKey, value: &[u8], is_new: bool) {
        let by = i64::from(is_new);
        self.added += by;
        self.changes.note(key, Some(EntryValue::from_slice(value)), by);
    }

    /// Removes a part, given in pieces, which is present.
    pub fn remove(&mut self, part: &[&[u8]]) {
        self.remove_key(self.key_of_part(part));
    }

    /// Removes a key of the reserved space, which is present.
    pub(super) fn remove_key(&mut self, key: EntryKey) {
        self.added -= 1;
        self.changes.note(key, None, -1);
    }

    fn key_of_part(&self, part: &[&[u8]]) -> EntryKey {
        let mut key = key_of(&[&self.prefix]);
        part.iter().for_each(|piece| key.extend_from_slice(piece));
        key
    }

    pub(super) fn bounds(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let key = |part: &[u8]| [&self.prefix[..], part].concat();
        let lower = match lower {
            Bound::Unbounded => Bound::Included(self.prefix.to_vec()),
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
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        self.visit_some(bounds, direction, usize::MAX, visit);
    }

    /// Works like [`visit`](Self::visit), with the number of parts that the caller needs.
    pub fn visit_some(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        let (lower, upper) = self.bounds(lower, upper);
        let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
        let start = self.prefix.len();
        self.visit_keys(bounds, direction, limit, &mut |key, value| visit(&key[start..], value));
    }

    /// Visits keys of the reserved space and their values within bounds, until `visit` breaks.
    pub(super) fn visit_keys(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        visit: &mut Visit<'_>,
    ) {
        if bounds_cross(bounds.0, bounds.1) {
            return;
        }
        debug_assert!(
            self.changes.is_empty() || matches!(self.source, Source::New),
            "commands read ranges before they change anything"
        );
        if !matches!(self.source, Source::New) {
            return self.visit_source(bounds, direction, limit, visit);
        }
        let mut range = self.changes.range(bounds);
        while let Some((key, value)) = match direction {
            Direction::Ascending => range.next(),
            Direction::Descending => range.next_back(),
        } {
            if let Some(value) = &value.0
                && visit(key, value).is_break()
            {
                break;
            }
        }
    }

    /// Works like [`visit_keys`](Self::visit_keys), without the changes. The bounds must not cross.
    /// `limit` is the number of entries that the caller needs.
    pub(in crate::keyspace) fn visit_source(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        limit: usize,
        visit: &mut Visit<'_>,
    ) {
        match self.source {
            Source::Live(store, _) => store.scan_with(bounds, direction, limit, visit),
            Source::Snapshot(snapshot) => snapshot.visit(bounds.0, bounds.1, direction, visit),
            Source::New => {}
        }
    }

    /// Calls `ask` with the blocks of a large sorted set, whose entries are the parts from `start`
    /// up to `end`. Returns `None` if there are no blocks, for example in a snapshot.
    fn ask_blocks<R>(
        &self,
        start: &[u8],
        end: &[u8],
        ask: impl FnOnce(&Store<[u8], [u8]>, &Blocks) -> R,
    ) -> Option<R> {
        match self.source {
            Source::Live(store, positions)
                if self.head.count >= FEWEST && self.changes.is_empty() && positions.are_kept() =>
            {
                let key = |part: &[u8]| [&self.prefix[..], part].concat();
                let bounds = || (key(start), key(end));
                let ask = |blocks: &Blocks| ask(store, blocks);
                Some(positions.with(store, self.head.id, bounds, ask))
            }
            _ => None,
        }
    }

    /// Returns the number of parts from `start` up to `part`. The positions refer to the parts from
    /// `start` up to `end`. After the first call O(log n + n/4096) with small constants; O(n/40) in
    /// a snapshot.
    pub fn position(&self, start: &[u8], end: &[u8], part: &[u8]) -> usize {
        let key = [&self.prefix[..], part].concat();
        let known = self.ask_blocks(start, end, |store, blocks| blocks.below(store, &key));
        known.unwrap_or_else(|| self.count(Bound::Included(start), Bound::Excluded(part)))
    }

    /// Returns the block with the part at a position, with bounds that are parts, or `None` if
    /// there are no blocks.
    pub fn block_at(&self, start: &[u8], end: &[u8], position: usize) -> Option<FoundBlock> {
        let found = self.ask_blocks(start, end, |_, blocks| blocks.find(position));
        let mut found = found.flatten()?;
        found.start.drain(..self.prefix.len());
        found.end.drain(..self.prefix.len());
        Some(found)
    }

    /// Returns the number of parts within bounds. O(log n + l) with l leaves of the tree within
    /// them.
    pub fn count(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> usize {
        let (lower, upper) = self.bounds(lower, upper);
        self.count_keys(lower.as_ref().map(Borrow::borrow), upper.as_ref().map(Borrow::borrow))
    }

    /// Returns the number of keys of the reserved space within bounds.
    pub(super) fn count_keys(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> usize {
        if bounds_cross(lower, upper) {
            return 0;
        }
        match self.source {
            Source::Live(store, _) => store.count(lower, upper),
            Source::Snapshot(snapshot) => snapshot.count(lower, upper),
            Source::New => self.changes.range((lower, upper)).count(),
        }
    }
}
