//! Lists: values that are addressed by position.
//!
//! A small list is one record with its values. The values of a large list have positions, see
//! [`nodes`](crate::keyspace::collections::nodes): pushes and pops at both ends cost O(1), access
//! by index O(log n). An insertion or removal in the middle moves the values on its shorter side:
//! O(n).

use std::ops::ControlFlow;

use ordna::Direction;

use crate::keyspace::collections::Body;
pub use crate::keyspace::collections::ends::End;

/// A list that a command reads.
#[derive(Debug, Clone, Copy)]
pub struct ListView<'b, 'a>(pub &'b Body<'a>);

impl ListView<'_, '_> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the value at an index from the front.
    pub fn get(&self, index: usize) -> Option<Vec<u8>> {
        match self.0 {
            Body::Packed(packed) => packed.get(index).map(<[u8]>::to_vec),
            Body::Large(large) if index < large.head.len() => large.value_at(index),
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
        let _ = match self.0 {
            Body::Packed(packed) => {
                let values = packed.iter().take(end).skip(start);
                match direction {
                    Direction::Ascending => values.into_iter().try_for_each(visit),
                    Direction::Descending => values.rev().try_for_each(visit),
                }
            }
            Body::Large(large) => large.visit_values(start, end, direction, &mut visit),
        };
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
        (Body::Large(large), end) => large.push_value(value, end),
    }
}

/// Removes the value at an end and returns it.
pub fn pop(body: &mut Body<'_>, end: End) -> Option<Vec<u8>> {
    match body {
        Body::Packed(packed) => {
            let last = packed.len().checked_sub(1)?;
            let index = if end == End::Front { 0 } else { last };
            let value = packed.get(index).map(<[u8]>::to_vec);
            packed.remove(index);
            value
        }
        Body::Large(large) => large.pop_value(end),
    }
}

/// Removes and returns at most `count` values at an end. Returns `None` if they have more than
/// `most` bytes.
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
        Body::Large(large) => large.set_value(index, value),
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
    let mut moved = match body {
        Body::Packed(_) => Vec::new(),
        Body::Large(_) if is_front => view.values(0, index),
        Body::Large(_) => view.values(index, len - index),
    };
    match body {
        Body::Packed(packed) => packed.insert(index, value),
        Body::Large(large) if is_front => {
            moved.push(value.to_vec());
            large.replace_front(index, &moved);
        }
        Body::Large(large) => {
            moved.insert(0, value.to_vec());
            large.replace_back(index, &moved);
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
    match body {
        Body::Packed(_) => {}
        Body::Large(large) if is_back => large.replace_back(start, &kept),
        Body::Large(large) => large.replace_front(end, &kept),
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
            large.replace_back(end, &[]);
            large.replace_front(start, &[]);
        }
    }
}
