//! The values at the ends of a large list, which are stored in its head.
//!
//! # Layout
//! After the head come the total length of the values at the front (2 bytes, little-endian), these
//! values, and the values at the back. The values are *packed*: the length of each (LEB128) and its
//! bytes. If there are no such values, nothing follows the head.

use super::head::Head;
use crate::keyspace::hash::{put, take};

/// Maximum size in bytes of the packed values at one end of a list. Each push and pop copies and
/// logs the values of both ends.
pub(super) const MOST_END: usize = 256;
/// Maximum size in bytes of a packed value that is stored together with others.
const MOST_PACKED: usize = MOST_END / 2;

/// An end of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Front,
    Back,
}

/// Returns the size of a value in packed form.
pub(super) fn packed_len(value: &[u8]) -> usize {
    let bits = usize::BITS - (value.len() | 1).leading_zeros();
    value.len() + bits.div_ceil(7) as usize
}

/// Returns whether a value gets a node of its own.
pub(super) fn is_long(value: &[u8]) -> bool {
    packed_len(value) > MOST_PACKED
}

/// Returns the values that are packed in these bytes. Damaged bytes yield fewer values.
pub(super) fn unpack(mut packed: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || take(&mut packed))
}

/// Returns the last of the values that are packed in these bytes.
fn last(packed: &[u8]) -> Option<&[u8]> {
    // Values often have equal lengths. Then the last one is found without reading the others.
    let len = *packed.first()?;
    let values = packed.chunks_exact(usize::from(len) + 1);
    let is_uniform = len < 0x80 && values.remainder().is_empty();
    if is_uniform && values.clone().all(|value| value[0] == len) {
        return values.last().map(|value| &value[1..]);
    }
    unpack(packed).last()
}

pub(super) fn pack<'v>(values: impl IntoIterator<Item = &'v [u8]>) -> Vec<u8> {
    let mut packed = Vec::new();
    values.into_iter().for_each(|value| put(&mut packed, value));
    packed
}

/// Returns the position of the element `index` elements after `position`.
pub(super) fn after(position: i64, index: usize) -> i64 {
    position.wrapping_add(index as i64)
}

/// The values at the ends of a list, packed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends {
    pub(super) front: Vec<u8>,
    pub(super) back: Vec<u8>,
}

impl Ends {
    /// Decodes the ends from the stored form of a head.
    pub fn of(stored: &[u8]) -> Self {
        let (front, back) = Self::split(stored);
        Self { front: front.to_vec(), back: back.to_vec() }
    }

    /// Returns the packed values at the front and at the back of a stored head.
    fn split(stored: &[u8]) -> (&[u8], &[u8]) {
        let Some((len, rest)) = Head::ends(stored).split_first_chunk() else { return (&[], &[]) };
        rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()))
    }

    /// Appends the ends to a head.
    pub fn store(&self, head: &mut Vec<u8>) {
        if !(self.front.is_empty() && self.back.is_empty()) {
            head.extend((self.front.len() as u16).to_le_bytes());
            head.extend_from_slice(&self.front);
            head.extend_from_slice(&self.back);
        }
    }

    pub(super) fn of_end(&mut self, end: End) -> &mut Vec<u8> {
        match end {
            End::Front => &mut self.front,
            End::Back => &mut self.back,
        }
    }

    /// Returns the numbers of values at the front and at the back.
    pub fn counts(&self) -> (usize, usize) {
        (unpack(&self.front).count(), unpack(&self.back).count())
    }

    /// Adds a value at an end.
    pub(super) fn push(&mut self, value: &[u8], end: End) {
        match end {
            End::Front => {
                let mut front = Vec::with_capacity(packed_len(value) + self.front.len());
                put(&mut front, value);
                front.extend_from_slice(&self.front);
                self.front = front;
            }
            End::Back => put(&mut self.back, value),
        }
    }

    /// Removes the value at an end of the list. If that end has no values here, the list must
    /// consist of the ends only, and the value comes from the other end.
    pub(super) fn pop(&mut self, end: End) -> Option<Vec<u8>> {
        let other = if end == End::Front { End::Back } else { End::Front };
        let from = if self.of_end(end).is_empty() { other } else { end };
        let packed = self.of_end(from);
        match end {
            End::Front => {
                let mut rest = packed.as_slice();
                let value = take(&mut rest)?.to_vec();
                let left = rest.len();
                packed.drain(..packed.len() - left);
                Some(value)
            }
            End::Back => {
                let value = last(packed)?.to_vec();
                packed.truncate(packed.len().saturating_sub(packed_len(&value)));
                Some(value)
            }
        }
    }

    /// Removes the inner values of an end, so that about `kept` bytes stay. Returns the removed
    /// values, packed, and the number of values that stay.
    pub(super) fn take_inner(&mut self, end: End, kept: usize) -> (Vec<u8>, usize) {
        let packed = self.of_end(end);
        let (mut at, mut count) = (0, 0);
        for value in unpack(packed) {
            let next = at + packed_len(value);
            let is_outer = match end {
                End::Front => next <= kept,
                End::Back => packed.len() - at > kept,
            };
            if !is_outer {
                break;
            }
            (at, count) = (next, count + 1);
        }
        match end {
            End::Front => (packed.split_off(at), count),
            End::Back => {
                let outer = packed.split_off(at);
                let inner = std::mem::replace(packed, outer);
                (inner, unpack(packed).count())
            }
        }
    }
}

/// Adds a value at an end of a list in the stored form of its head. Returns the new form and the
/// new number of values. Returns `None` if the bytes are not the head of a list or the value
/// belongs into a node.
pub fn push_into_head(stored: &[u8], value: &[u8], end: End) -> Option<(Vec<u8>, usize)> {
    if !Head::is_list(stored) {
        return None;
    }
    let mut head = Head::read(stored)?;
    let (front, back) = Ends::split(stored);
    let len = if end == End::Front { front.len() } else { back.len() };
    let added = packed_len(value);
    if added > MOST_PACKED || len + added > MOST_END {
        return None;
    }
    head.count += 1;
    let mut pushed = Vec::with_capacity(stored.len() + added + 2);
    match end {
        End::Front => {
            head.first = head.first.wrapping_sub(1);
            head.store(&mut pushed);
            pushed.extend(((front.len() + added) as u16).to_le_bytes());
            put(&mut pushed, value);
            pushed.extend_from_slice(front);
            pushed.extend_from_slice(back);
        }
        End::Back => {
            head.store(&mut pushed);
            pushed.extend((front.len() as u16).to_le_bytes());
            pushed.extend_from_slice(front);
            pushed.extend_from_slice(back);
            put(&mut pushed, value);
        }
    }
    Some((pushed, head.len()))
}

/// Removes the value at an end of a list in the stored form of its head. Returns the new form and
/// the value. Returns `None` if the bytes are not the head of a list, or if the value is not in the
/// head or is the last one of the list.
pub fn pop_from_head(stored: &[u8], end: End) -> Option<(Vec<u8>, Vec<u8>)> {
    if !Head::is_list(stored) {
        return None;
    }
    let mut head = Head::read(stored).filter(|head| head.count > 1)?;
    let (mut front, mut back) = Ends::split(stored);
    let value = match end {
        End::Front => {
            head.first = after(head.first, 1);
            take(&mut front)?
        }
        End::Back => {
            let value = last(back)?;
            back = back.get(..back.len().checked_sub(packed_len(value))?)?;
            value
        }
    };
    head.count -= 1;
    let mut popped = Vec::with_capacity(stored.len());
    head.store(&mut popped);
    if !(front.is_empty() && back.is_empty()) {
        popped.extend((front.len() as u16).to_le_bytes());
        popped.extend_from_slice(front);
        popped.extend_from_slice(back);
    }
    Some((popped, value.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_is_found_whatever_the_lengths_are() {
        let long = [b'x'; 127];
        let cases: &[&[&[u8]]] = &[
            &[],
            &[b""],
            &[b"", b"", b""],
            &[b"abc", b"def"],
            &[b"abc", b"de"],
            // A byte inside of a value that looks like the length of the first value.
            &[b"ab", b"ab\x02", b"z"],
            &[b"a", b"", b"\x01"],
            &[&long],
            &[&long, &[b'y'; 128]],
        ];
        for values in cases {
            let packed = pack(values.iter().copied());
            assert_eq!(last(&packed), values.last().copied(), "{values:?}");
        }
        assert_eq!(last(b"\x05abc"), None, "damaged");
    }
}
