//! The values of a large list: nodes with many values in the store, and the values at its ends in
//! the head.
//!
//! # Layout
//! Each value has a position, and successive values have successive positions. A node begins at the
//! position of its first value, so the node of a position is the last one that begins at or before
//! it. O(log n).
//!
//! | part | value |
//! |---|---|
//! | position (8, order-preserving) | one value as it is |
//! | position (8), `00` | successive values, *packed*: the length (LEB128) and the bytes of each |
//!
//! Servers before the third version of the layout wrote only nodes of one value.
//!
//! The lowest position, with `00`, belongs to an empty entry, the *anchor*. A list without nodes
//! has one, because a start finds the ids in use by their entries.
//!
//! The first and the last values are stored after the head ([`ends`](super::ends)), so that most
//! pushes and pops write one small record. If an end becomes too long, its inner values become a
//! node or part of the next one. If an end is empty, the outer values of the next node are moved
//! there.
//!
//! # Invariants
//! - The values of the front, of the nodes and of the back have the positions from the head's `first` on,
//!   without a gap.
//! - An end has at most [`MOST_END`] bytes, and a node of several values [`MOST_NODE`]. A value
//!   that is too long for an end is a separate node.

use std::ops::{Bound, ControlFlow};

use ordna::Direction;
use ordna::sync::{check, fault, notice};

use super::ends::{End, MOST_END, after, is_long, pack, packed_len, unpack};
use super::large::Large;
use crate::keyspace::hash::{put, take};
use crate::keyspace::value_kind::ValueKind;

/// Number of bytes that stay at an end when its other values become a node, so that a following pop
/// finds some.
const KEPT: usize = MOST_END / 4;
/// Number of bytes that are moved from a node to an end, so that following pushes have room.
const LOADED: usize = MOST_END * 3 / 4;
/// Maximum bytes of a node of several values: with its key it fills an allocation of 1 KiB.
const MOST_NODE: usize = 1000;

/// Returns the part of a node of one value.
fn single_part(position: i64) -> [u8; 8] {
    (position.cast_unsigned() ^ 1 << 63).to_be_bytes()
}

/// Returns the part of a node of packed values.
fn packed_part(position: i64) -> [u8; 9] {
    let mut part = [0; 9];
    part[..8].copy_from_slice(&single_part(position));
    part
}

/// Returns the position of a part.
fn position_of(part: &[u8]) -> Option<i64> {
    let bytes = part.first_chunk().copied().map(u64::from_be_bytes);
    bytes.map(|bits| (bits ^ 1 << 63).cast_signed())
}

/// Returns the values of a node that is stored as `value` under `part`.
fn values_of<'v>(part: &[u8], value: &'v [u8]) -> Vec<&'v [u8]> {
    if part.len() == 8 { vec![value] } else { unpack(value).collect() }
}

/// A node.
#[derive(Debug)]
struct Node {
    start: i64,
    is_single: bool,
    value: Vec<u8>,
}

impl Node {
    fn read(part: &[u8], value: &[u8]) -> Option<Self> {
        let is_single = part.len() == 8;
        Some(Self { start: position_of(part)?, is_single, value: value.to_vec() })
    }

    fn part(&self) -> Vec<u8> {
        match self.is_single {
            true => single_part(self.start).to_vec(),
            false => packed_part(self.start).to_vec(),
        }
    }

    fn values(&self) -> Vec<&[u8]> {
        values_of(&self.part(), &self.value)
    }
}

impl Large<'_> {
    /// Returns the number of values of a list that nodes hold.
    pub fn in_nodes(&self) -> usize {
        let (front, back) = self.ends.counts();
        self.head.len().saturating_sub(front + back)
    }

    /// Returns the number of values of a node.
    pub fn values_in(part: &[u8], value: &[u8]) -> usize {
        values_of(part, value).len()
    }

    /// Returns the nodes with values at the positions from `from` up to `to`, with what was
    /// changed.
    fn nodes(&self, from: i64, to: i64) -> Vec<Node> {
        let (lower, upper) = self.bounds(Bound::Unbounded, Bound::Excluded(&single_part(to)));
        let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
        let front = self.prefix_len();
        let mut found = Vec::new();
        // The first one holds a single position.
        let limit = if to == after(from, 1) { 1 } else { usize::MAX };
        self.visit_source(bounds, Direction::Descending, limit, &mut |key, value| {
            let Some(node) = Node::read(&key[front..], value) else {
                return ControlFlow::Break(());
            };
            let is_last = node.start <= from;
            if check!("list_tests.reads_changes", self.changes.get(key).is_none()) {
                found.push(node);
            }
            if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        for (key, (value, _)) in self.changes.range(bounds).rev() {
            let Some(node) = value.as_ref().and_then(|value| Node::read(&key[front..], value))
            else {
                continue;
            };
            let is_last = node.start <= from;
            found.push(node);
            if is_last {
                break;
            }
        }
        found.sort_unstable_by_key(|node| node.start);
        // Of the nodes that begin at or before `from`, the last one holds it.
        let first = found.iter().rposition(|node| node.start <= from).unwrap_or(0);
        found.drain(..first);
        found
    }

    /// Returns the outer node at an end of a list with nodes. `position` is that of its outer
    /// value.
    fn outer_node(&self, end: End, position: i64) -> Option<Node> {
        if end == End::Front {
            // Nothing precedes its first value, so its part is known.
            let parts: [&[u8]; 2] = [&packed_part(position), &single_part(position)];
            let read = |part| self.get_with(part, |value| Node::read(part, value));
            return parts.into_iter().find_map(read).flatten();
        }
        self.nodes(position, after(position, 1)).pop()
    }

    /// Adds the anchor if there is no node, and removes it with the last value. Called after each
    /// change that may remove nodes.
    pub fn keep_id(&mut self) {
        if self.head.kind != ValueKind::List || self.in_nodes() > 0 {
            return;
        }
        let anchor = packed_part(i64::MIN);
        match (self.head.count > 0, self.get_with(&anchor, |_| ()).is_some()) {
            (true, false) if !fault!("list_tests.keeps_the_id") => self.put(&[&anchor], &[], true),
            (false, true) => self.remove(&[&anchor]),
            _ => {}
        }
    }

    fn remove_node(&mut self, node: &Node) {
        self.remove(&[&node.part()]);
    }

    fn put_packed(&mut self, position: i64, packed: &[u8]) {
        self.put(&[&packed_part(position)], packed, true);
    }

    /// Creates nodes of about equal size from values, beginning at a position.
    fn put_values(&mut self, mut position: i64, values: &[&[u8]]) {
        let mut rest = values;
        while let Some((first, others)) = rest.split_first() {
            if is_long(first) {
                self.put(&[&single_part(position)], first, true);
                (position, rest) = (after(position, 1), others);
                continue;
            }
            let run = rest.iter().position(|value| is_long(value)).unwrap_or(rest.len());
            let bytes: usize = rest[..run].iter().map(|value| packed_len(value)).sum();
            let wanted = bytes.div_ceil(bytes.div_ceil(MOST_NODE).max(1));
            let (mut packed, mut start) = (Vec::new(), position);
            for value in &rest[..run] {
                let is_full =
                    packed.len() + packed_len(value) > MOST_NODE || packed.len() >= wanted;
                if notice!("list_tests.splits", is_full) && !packed.is_empty() {
                    self.put_packed(start, &packed);
                    packed.clear();
                    start = position;
                }
                put(&mut packed, value);
                position = after(position, 1);
            }
            self.put_packed(start, &packed);
            rest = &rest[run..];
        }
    }

    /// Adds a value at an end.
    pub fn push_value(&mut self, value: &[u8], end: End) {
        self.ends_changed = true;
        let is_long = is_long(value);
        if is_long {
            self.flush(end, 0);
        } else if self.ends.of_end(end).len() + packed_len(value) > MOST_END {
            self.flush(end, KEPT);
        }
        self.head.count += 1;
        if end == End::Front {
            self.head.first = self.head.first.wrapping_sub(1);
        }
        if is_long {
            let index = if end == End::Front { 0 } else { self.head.len() - 1 };
            self.put(&[&single_part(after(self.head.first, index))], value, true);
        } else {
            self.ends.push(value, end);
        }
    }

    /// Moves the inner values of an end into a new node or into the next one. About `kept` bytes
    /// stay.
    fn flush(&mut self, end: End, kept: usize) {
        let (front, back) = self.ends.counts();
        let has_nodes = front + back < self.head.len();
        let (inner, outer_count) = self.ends.take_inner(end, kept);
        if inner.is_empty() {
            return;
        }
        let (start, next) = match end {
            End::Front => (after(self.head.first, outer_count), after(self.head.first, front)),
            End::Back => {
                let start = after(self.head.first, self.head.len() - back);
                (start, start.wrapping_sub(1))
            }
        };
        let node = if has_nodes { self.outer_node(end, next) } else { None };
        match node {
            Some(node) if !node.is_single && node.value.len() + inner.len() <= MOST_NODE => {
                self.remove_node(&node);
                match end {
                    End::Front => self.put_packed(start, &[inner, node.value].concat()),
                    End::Back => self.put_packed(node.start, &[node.value, inner].concat()),
                }
            }
            _ => self.put_packed(start, &inner),
        }
    }

    /// Removes the value at an end and returns it; `None` if there is none.
    pub fn pop_value(&mut self, end: End) -> Option<Vec<u8>> {
        let mut value = None;
        if self.ends.of_end(end).is_empty() && self.in_nodes() > 0 {
            value = self.load(end);
        }
        let value = value.or_else(|| self.ends.pop(end))?;
        self.ends_changed = true;
        self.head.count = self.head.count.saturating_sub(1);
        if end == End::Front {
            self.head.first = after(self.head.first, 1);
        }
        Some(value)
    }

    /// Moves the outer values of the outer node to an empty end. If the outer value is a separate
    /// node, removes and returns it.
    fn load(&mut self, end: End) -> Option<Vec<u8>> {
        let index = if end == End::Front { 0 } else { self.head.len() - 1 };
        let position = after(self.head.first, index);
        let node = self.outer_node(end, position)?;
        self.remove_node(&node);
        if node.is_single {
            return Some(node.value);
        }
        // The values that move and those that stay remain packed.
        let (mut rest, mut cut, mut before) = (node.value.as_slice(), 0, 0);
        while (end == End::Front || rest.len() > LOADED) && take(&mut rest).is_some() {
            let at = node.value.len() - rest.len();
            if end == End::Front && at > LOADED {
                break;
            }
            (cut, before) = (at, before + 1);
        }
        let (front, back) = node.value.split_at(cut);
        let (outer, inner, start) = match end {
            End::Front => (front, back, after(node.start, before)),
            End::Back => (back, front, node.start),
        };
        *self.ends.of_end(end) = outer.to_vec();
        if !inner.is_empty() && !fault!("list_tests.load_keeps_the_rest") {
            self.put_packed(start, inner);
        }
        None
    }

    /// Visits the values with the indices from `start` up to `end`, in the order of the list or the other one, until
    /// `visit` breaks.
    pub fn visit_values(
        &self,
        start: usize,
        end: usize,
        direction: Direction,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (front, back) = self.ends.counts();
        let back_start = self.head.len().saturating_sub(back);
        let position = |index| after(self.head.first, index);
        let in_front = |visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>| {
            visit_some(&self.ends.front, 0, (start, end), direction, visit)
        };
        let in_back = |visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>| {
            visit_some(&self.ends.back, back_start, (start, end), direction, visit)
        };
        let (from, to) = (start.max(front), end.min(back_start));
        match direction {
            Direction::Ascending => {
                in_front(visit)?;
                if from < to {
                    self.visit_nodes(position(from), position(to), direction, visit)?;
                }
                in_back(visit)
            }
            Direction::Descending => {
                in_back(visit)?;
                if from < to {
                    self.visit_nodes(position(from), position(to), direction, visit)?;
                }
                in_front(visit)
            }
        }
    }

    /// Visits the values of nodes at the positions from `from` up to `to`.
    fn visit_nodes(
        &self,
        from: i64,
        to: i64,
        direction: Direction,
        visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut lower = single_part(from).to_vec();
        // The node of the first position may begin before it.
        let until = Bound::Included(&packed_part(from)[..]);
        self.visit_some((Bound::Unbounded, until), Direction::Descending, 1, |part, _| {
            lower = part.to_vec();
            ControlFlow::Break(())
        });
        let upper = single_part(to);
        let bounds = (Bound::Included(lower.as_slice()), Bound::Excluded(&upper[..]));
        let mut done = ControlFlow::Continue(());
        self.visit(bounds, direction, |part, value| {
            let Some(start) = position_of(part) else { return ControlFlow::Break(()) };
            let range = (
                usize::try_from(from.wrapping_sub(start)).unwrap_or(0),
                usize::try_from(to.wrapping_sub(start)).unwrap_or(0),
            );
            done = match part.len() {
                8 => visit(value),
                _ => visit_some(value, 0, range, direction, visit),
            };
            done
        });
        done
    }

    /// Returns the value at an index.
    pub fn value_at(&self, index: usize) -> Option<Vec<u8>> {
        let mut found = None;
        let _ = self.visit_values(index, index + 1, Direction::Ascending, &mut |value| {
            found = Some(value.to_vec());
            ControlFlow::Break(())
        });
        found
    }

    /// Sets the value at an index, which exists.
    pub fn set_value(&mut self, index: usize, value: &[u8]) {
        let (front, back) = self.ends.counts();
        let back_start = self.head.len().saturating_sub(back);
        let (end, start) = match index {
            _ if index < front => (End::Front, 0),
            _ if index >= back_start => (End::Back, back_start),
            _ => {
                let position = after(self.head.first, index);
                let Some(node) = self.nodes(position, after(position, 1)).pop() else { return };
                let mut values = node.values();
                let at = usize::try_from(position.wrapping_sub(node.start)).unwrap_or(usize::MAX);
                if let Some(found) = values.get_mut(at) {
                    *found = value;
                    self.remove_node(&node);
                    self.put_values(node.start, &values);
                }
                return;
            }
        };
        let packed = std::mem::take(self.ends.of_end(end));
        let mut values: Vec<&[u8]> = unpack(&packed).collect();
        values[index - start] = value;
        self.put_end(end, after(self.head.first, start), &values);
    }

    /// Stores values at an end, beginning at a position, and removes the former values of that end.
    /// Values that do not fit become nodes.
    fn put_end(&mut self, end: End, position: i64, values: &[&[u8]]) {
        let bytes: usize = values.iter().map(|value| packed_len(value)).sum();
        let fits = bytes <= LOADED && !values.iter().any(|value| is_long(value));
        *self.ends.of_end(end) = if fits { pack(values.iter().copied()) } else { Vec::new() };
        if !fits {
            self.put_values(position, values);
        }
        self.ends_changed = true;
    }

    /// Replaces the values before an index. The other values keep their positions.
    pub fn replace_front(&mut self, until: usize, with: &[Vec<u8>]) {
        let (front, back) = self.ends.counts();
        let (count, first) = (self.head.len(), self.head.first);
        let back_start = count.saturating_sub(back);
        let mut values: Vec<&[u8]> = with.iter().map(Vec::as_slice).collect();
        let former = std::mem::take(&mut self.ends.front);
        values.extend(unpack(&former).skip(until));
        let mut nodes = Vec::new();
        if until > front && front < back_start {
            nodes = self.nodes(after(first, front), after(first, until.min(back_start)));
        }
        nodes.iter().for_each(|node| self.remove_node(node));
        if let Some(node) = nodes.last().filter(|_| !fault!("list_tests.replace_keeps_the_rest")) {
            let gone = after(first, until).wrapping_sub(node.start);
            values.extend(node.values().into_iter().skip(usize::try_from(gone).unwrap_or(0)));
        }
        if until > back_start {
            let left: Vec<&[u8]> = unpack(&self.ends.back).skip(until - back_start).collect();
            self.ends.back = pack(left);
        }
        self.head.first = after(first, until).wrapping_sub(with.len() as i64);
        self.head.count = (count - until + with.len()) as u64;
        self.put_end(End::Front, self.head.first, &values);
    }

    /// Replaces the values from an index on. The other values keep their positions.
    pub fn replace_back(&mut self, from: usize, with: &[Vec<u8>]) {
        let (front, back) = self.ends.counts();
        let (count, first) = (self.head.len(), self.head.first);
        let back_start = count.saturating_sub(back);
        let mut nodes = Vec::new();
        if from < back_start && front < back_start {
            nodes = self.nodes(after(first, from.max(front)), after(first, back_start));
        }
        nodes.iter().for_each(|node| self.remove_node(node));
        let mut values: Vec<&[u8]> = Vec::new();
        if let Some(node) = nodes.first() {
            let kept = after(first, from).wrapping_sub(node.start);
            values.extend(node.values().into_iter().take(usize::try_from(kept).unwrap_or(0)));
        }
        if from < front {
            let left: Vec<&[u8]> = unpack(&self.ends.front).take(from).collect();
            self.ends.front = pack(left);
        }
        let former = std::mem::take(&mut self.ends.back);
        values.extend(unpack(&former).take(from.saturating_sub(back_start)));
        let start = after(first, from).wrapping_sub(values.len() as i64);
        values.extend(with.iter().map(Vec::as_slice));
        self.head.count = (from + with.len()) as u64;
        self.put_end(End::Back, start, &values);
    }
}

/// Visits the packed values whose indices are within a range. The first packed value has the index
/// `base`.
fn visit_some(
    packed: &[u8],
    base: usize,
    (start, end): (usize, usize),
    direction: Direction,
    visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let skipped = start.saturating_sub(base);
    let len = end.saturating_sub(base).saturating_sub(skipped);
    if len == 0 {
        return ControlFlow::Continue(());
    }
    let mut values = unpack(packed).skip(skipped).take(len);
    match direction {
        Direction::Ascending => values.try_for_each(visit),
        Direction::Descending => values.collect::<Vec<_>>().into_iter().rev().try_for_each(visit),
    }
}
