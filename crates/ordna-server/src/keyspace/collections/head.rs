//! The head of a large collection: the value of its key.
//!
//! # Layout
//! All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 3 | the mark, the number of this form, the type |
//! | 8 each | id; number of elements; in a list, the position of its first value |
//! | 8 | in a hash with fields that expire: the time before which none does |
//! | rest | in a small hash with fields that expire: its fields, see [`expiring_hash`](crate::keyspace::expiring_hash) |
//! | 2, rest | in a list with values at its ends: bytes of the front; the values of front and back, see [`ends`](super::ends) |
//!
//! Hashes without fields that expire lack both of their lines.

use crate::keyspace::stored_key;
use crate::keyspace::value_kind::{HEAD, MARK, ValueKind};

/// Bytes of a head without the deadline of a hash.
const LEN: usize = 27;
/// Bytes of a head with that deadline.
const LEN_WITH_DEADLINE: usize = LEN + 8;
/// Deadline of a field that does not expire.
pub const NEVER: u64 = u64::MAX;

/// The head of a large collection, or of a small hash with fields that expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub kind: ValueKind,
    /// The id of the elements. While the server runs, each head has its own id.
    pub id: u64,
    /// Number of fields, members or values, including expired fields that are not removed yet.
    pub count: u64,
    /// In a list: the position of its first value. The others follow without a gap.
    pub first: i64,
    /// In a hash: no field expires before this time. [`NEVER`] if no field expires.
    pub soonest: u64,
}

impl Head {
    /// Creates a head without elements.
    pub fn new(kind: ValueKind, id: u64) -> Self {
        Self { kind, id, count: 0, first: 0, soonest: NEVER }
    }

    /// Returns whether a stored value is a head.
    #[inline]
    pub fn is_head(stored: &[u8]) -> bool {
        matches!(stored, [MARK, HEAD, ..])
    }

    /// Decodes a head. Returns `None` if the stored value is something else.
    pub fn read(stored: &[u8]) -> Option<Self> {
        let [MARK, HEAD, kind, rest @ ..] = stored else { return None };
        let number = |at: usize| Some(u64::from_le_bytes(rest.get(at..at + 8)?.try_into().ok()?));
        let kind = ValueKind::of_code(*kind)?;
        let first = number(16)?.cast_signed();
        let soonest = if kind == ValueKind::List { None } else { number(24) };
        let soonest = soonest.unwrap_or(NEVER);
        Some(Self { kind, id: number(0)?, count: number(8)?, first, soonest })
    }

    /// Returns the fields of a small hash, which follow its head, or `None` if the stored value is
    /// something else.
    pub fn inline(stored: &[u8]) -> Option<&[u8]> {
        if Self::is_list(stored) {
            return None;
        }
        let inline = stored.get(LEN_WITH_DEADLINE..).filter(|_| Self::is_head(stored))?;
        (!inline.is_empty()).then_some(inline)
    }

    /// Returns whether a stored value is the head of a list.
    pub fn is_list(stored: &[u8]) -> bool {
        matches!(stored, [MARK, HEAD, kind, ..] if *kind == ValueKind::List.code())
    }

    /// Returns the values at the ends of a list, in their stored form.
    pub fn ends(stored: &[u8]) -> &[u8] {
        stored.get(LEN..).filter(|_| Self::is_list(stored)).unwrap_or_default()
    }

    /// Returns the stored form, without the fields of a small hash and the ends of a list.
    pub fn stored(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LEN_WITH_DEADLINE);
        self.store(&mut bytes);
        bytes
    }

    /// Returns the stored form, if no field expires.
    pub fn fixed(&self) -> [u8; LEN] {
        let mut head = [0; LEN];
        head[..3].copy_from_slice(&[MARK, HEAD, self.kind.code()]);
        head[3..11].copy_from_slice(&self.id.to_le_bytes());
        head[11..19].copy_from_slice(&self.count.to_le_bytes());
        head[19..].copy_from_slice(&self.first.to_le_bytes());
        head
    }

    /// Appends the stored form, as [`stored`](Self::stored) returns it.
    pub fn store(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.fixed());
        if self.soonest != NEVER && self.kind != ValueKind::List {
            bytes.extend_from_slice(&self.soonest.to_le_bytes());
        }
    }

    /// Returns the number of fields, members or values.
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Returns the earliest deadline of the key and its fields.
    pub fn next_deadline(&self, expires_at: Option<u64>) -> Option<u64> {
        let next = self.soonest.min(expires_at.unwrap_or(NEVER));
        (next != NEVER).then_some(next)
    }

    /// Returns the entry of this head in the list of deadlines, if it needs one.
    pub fn deadline_entry(&self, expires_at: Option<u64>) -> Option<Vec<u8>> {
        Some(stored_key::deadline(self.next_deadline(expires_at)?, self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back() {
        for kind in ValueKind::ALL {
            for (soonest, len) in [(NEVER, LEN), (0, LEN_WITH_DEADLINE), (77, LEN_WITH_DEADLINE)] {
                if kind == ValueKind::List && soonest != NEVER {
                    continue;
                }
                let head = Head { kind, id: 7, count: u64::MAX, first: -3, soonest };
                let mut stored = head.stored();
                assert_eq!(stored.len(), len);
                assert!(Head::is_head(&stored));
                assert_eq!(Head::read(&stored), Some(head));
                assert_eq!(ValueKind::of(&stored), kind);
                assert_eq!(Head::read(&stored[..LEN - 1]), None);
                assert_eq!(Head::inline(&stored), None);
                stored.push(9);
                let is_inline = soonest != NEVER;
                assert_eq!(Head::inline(&stored), is_inline.then_some(&[9][..]));
                let is_list = kind == ValueKind::List;
                assert_eq!(Head::ends(&stored), if is_list { &[9][..] } else { &[] });
            }
        }
        assert_eq!((Head::read(b"text"), Head::inline(&[b'x'; 99])), (None, None));
    }

    #[test]
    fn the_next_deadline_is_that_of_the_key_or_of_a_field() {
        let head = Head::new(ValueKind::Hash, 1);
        let expiring = Head { soonest: 50, ..head };
        assert_eq!((head.next_deadline(None), head.next_deadline(Some(9))), (None, Some(9)));
        assert_eq!(expiring.next_deadline(None), Some(50));
        assert_eq!(expiring.next_deadline(Some(40)), Some(40));
        assert_eq!(expiring.next_deadline(Some(60)), Some(50));
        assert_eq!(head.deadline_entry(None), None);
    }
}
