//! Lists: values by position.
//!
//! A small list is a record of its values. The values of a large one are elements at successive positions,
//! from the head's `first` on, without a gap: so an index is a position, and pushes and pops at both ends
//! cost O(log n). An insertion or removal in the middle moves the values on its shorter side: O(n).

use std::ops::{Bound, ControlFlow};

use ordna::Direction;

use crate::keyspace::collections::Body;
use crate::keyspace::collections::large::Large;

/// An end of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Front,
    Back,
}

/// The part of the value at a position, in the order of positions.
pub fn part(position: i64) -> [u8; 8] {
    (position.cast_unsigned() ^ 1 << 63).to_be_bytes()
}

/// The part of the value at an index of a large list.
fn part_at(large: &Large<'_>, index: usize) -> [u8; 8] {
    part(large.head.first.wrapping_add(index as i64))
}

/// A list that a command reads.
#[derive(Debug, Clone, Copy)]
pub struct ListView<'b, 'a>(pub &'b Body<'a>);

impl ListView<'_, '_> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The value at an index from the front.
    pub fn get(&self, index: usize) -> Option<Vec<u8>> {
        match self.0 {
            Body::Packed(packed) => packed.get(index).map(<[u8]>::to_vec),
            Body::Large(large) if index < large.head.len() => {
                large.get_with(&part_at(large, index), <[u8]>::to_vec)
            }
            Body::Large(_) => None,
        }
    }

    /// Visits `len` values from an index on, in the order of the list or the other one, until `visit`
    /// breaks.
    pub fn visit(
        &self,
        start: usize,
        len: usize,
        direction: Direction,
        mut visit: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) {
        let end = start.saturating_add(len).min(self.len());
        if start >= end {
            return;
        }
        match self.0 {
            Body::Packed(packed) => {
                let values = packed.iter().take(end).skip(start);
                let _ = match direction {
                    Direction::Ascending => values.into_iter().try_for_each(visit),
                    Direction::Descending => values.rev().try_for_each(visit),
                };
            }
            Body::Large(large) => {
                let (lower, upper) = (part_at(large, start), part_at(large, end - 1));
                let bounds = (Bound::Included(&lower[..]), Bound::Included(&upper[..]));
                large.visit(bounds, direction, |_, value| visit(value));
            }
        }
    }

    /// `len` values from an index on.
    pub fn values(&self, start: usize, len: usize) -> Vec<Vec<u8>> {
        let mut values = Vec::new();
        self.visit(start, len, Direction::Ascending, |value| {
            values.push(value.to_vec());
            ControlFlow::Continue(())
        });
        values
    }
}

/// Adds a value at an end.
pub fn push(body: &mut Body<'_>, value: &[u8], end: End) {
    match (body, end) {
        (Body::Packed(packed), End::Front) => packed.insert(0, value),
        (Body::Packed(packed), End::Back) => packed.insert(packed.len(), value),
        (Body::Large(large), End::Front) => {
            large.head.first = large.head.first.wrapping_sub(1);
            large.head.count += 1;
            large.put(&part_at(large, 0), value, true);
        }
        (Body::Large(large), End::Back) => {
            large.put(&part_at(large, large.head.len()), value, true);
            large.head.count += 1;
        }
    }
}

/// Removes the value at an end and returns it.
pub fn pop(body: &mut Body<'_>, end: End) -> Option<Vec<u8>> {
    let last = body.len().checked_sub(1)?;
    let index = if end == End::Front { 0 } else { last };
    let value = ListView(body).get(index)?;
    match body {
        Body::Packed(packed) => packed.remove(index),
        Body::Large(large) => {
            large.remove(&part_at(large, index));
            large.head.count -= 1;
            if end == End::Front {
                large.head.first = large.head.first.wrapping_add(1);
            }
        }
    }
    Some(value)
}

/// Removes at most `count` values at an end and returns them; `None` if they have more than `most` bytes.
pub fn pop_some(body: &mut Body<'_>, end: End, count: usize, most: usize) -> Option<Vec<Vec<u8>>> {
    let (mut popped, mut left) = (Vec::new(), most);
    for _ in 0..count.min(body.len()) {
        let Some(value) = pop(body, end) else { break };
        left = left.checked_sub(value.len() + size_of::<Vec<u8>>())?;
        popped.push(value);
    }
    Some(popped)
}

/// Sets the value at an index, which exists.
pub fn set(body: &mut Body<'_>, index: usize, value: &[u8]) {
    match body {
        Body::Packed(packed) => {
            packed.remove(index);
            packed.insert(index, value);
        }
        Body::Large(large) => large.put(&part_at(large, index), value, false),
    }
}

/// Inserts a value before the one at an index, or at the end.
pub fn insert(body: &mut Body<'_>, index: usize, value: &[u8]) {
    if index == 0 {
        return push(body, value, End::Front);
    }
    if index == body.len() {
        return push(body, value, End::Back);
    }
    let (len, view) = (body.len(), ListView(body));
    let is_front = index < len / 2;
    let moved = if is_front { view.values(0, index) } else { view.values(index, len - index) };
    match body {
        Body::Packed(packed) => packed.insert(index, value),
        Body::Large(large) if is_front => {
            large.head.first = large.head.first.wrapping_sub(1);
            for (at, moved) in moved.iter().enumerate() {
                large.put(&part_at(large, at), moved, at == 0);
            }
            large.put(&part_at(large, index), value, false);
            large.head.count += 1;
        }
        Body::Large(large) => {
            for (at, moved) in moved.iter().enumerate() {
                let at = index + 1 + at;
                large.put(&part_at(large, at), moved, at == len);
            }
            large.put(&part_at(large, index), value, false);
            large.head.count += 1;
        }
    }
}

/// Removes the values at these indices, which are ascending and exist.
pub fn remove_all(body: &mut Body<'_>, indices: &[usize]) {
    let (Some(first), Some(last)) = (indices.first(), indices.last()) else { return };
    if let Body::Packed(packed) = body {
        indices.iter().rev().for_each(|index| packed.remove(*index));
        return;
    }
    let (len, view) = (body.len(), ListView(body));
    // The values on the shorter side move together.
    let is_back = len - first <= last + 1;
    let (start, end) = if is_back { (*first, len) } else { (0, last + 1) };
    let mut kept = view.values(start, end - start);
    let mut at = start;
    kept.retain(|_| {
        at += 1;
        indices.binary_search(&(at - 1)).is_err()
    });
    let Body::Large(large) = body else { return };
    let target = if is_back { start } else { end - kept.len() };
    for (at, value) in kept.iter().enumerate() {
        large.put(&part_at(large, target + at), value, false);
    }
    let gone = if is_back { target + kept.len()..end } else { start..target };
    for at in gone {
        large.remove(&part_at(large, at));
    }
    large.head.count -= indices.len() as u64;
    if !is_back {
        large.head.first = large.head.first.wrapping_add(indices.len() as i64);
    }
}

/// Keeps `len` values from an index on.
pub fn trim(body: &mut Body<'_>, start: usize, len: usize) {
    let count = body.len();
    let (start, end) = if len == 0 { (count, count) } else { (start, start + len) };
    match body {
        Body::Packed(packed) => {
            (end..count).rev().for_each(|at| packed.remove(at));
            (0..start).rev().for_each(|at| packed.remove(at));
        }
        Body::Large(large) => {
            (0..start).chain(end..count).for_each(|at| large.remove(&part_at(large, at)));
            large.head.count = (end - start) as u64;
            large.head.first = large.head.first.wrapping_add(start as i64);
        }
    }
}
