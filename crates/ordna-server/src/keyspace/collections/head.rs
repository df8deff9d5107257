//! The head of a large collection: the value of its key.

use crate::keyspace::value_kind::{HEAD, MARK, ValueKind};

/// Bytes of a head.
const LEN: usize = 27;

/// The head of a large collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub kind: ValueKind,
    /// Names the elements. Each large collection of a run has an id of its own.
    pub id: u64,
    /// Number of fields, members or values.
    pub count: u64,
    /// Of a list: the position of its first value. The others follow without a gap.
    pub first: i64,
}

impl Head {
    /// Whether a stored value is a head.
    #[inline]
    pub fn is_head(stored: &[u8]) -> bool {
        matches!(stored, [MARK, HEAD, ..])
    }

    /// Reads a head; `None` if the stored value is something else.
    pub fn read(stored: &[u8]) -> Option<Self> {
        let [MARK, HEAD, kind, rest @ ..] = stored else { return None };
        let number = |at: usize| Some(u64::from_le_bytes(rest.get(at..at + 8)?.try_into().ok()?));
        let kind = ValueKind::of_code(*kind)?;
        let first = number(16)?.cast_signed();
        Some(Self { kind, id: number(0)?, count: number(8)?, first })
    }

    /// The stored form: the mark, the type, and id, count and first position, all
    /// little-endian.
    pub fn stored(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..3].copy_from_slice(&[MARK, HEAD, self.kind.code()]);
        bytes[3..11].copy_from_slice(&self.id.to_le_bytes());
        bytes[11..19].copy_from_slice(&self.count.to_le_bytes());
        bytes[19..27].copy_from_slice(&self.first.to_le_bytes());
        bytes
    }

    /// Number of fields, members or values.
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back() {
        for kind in ValueKind::ALL {
            let head = Head { kind, id: 7, count: u64::MAX, first: -3 };
            let stored = head.stored();
            assert!(Head::is_head(&stored));
            assert_eq!(Head::read(&stored), Some(head));
            assert_eq!(ValueKind::of(&stored), kind);
            assert_eq!(Head::read(&stored[..LEN - 1]), None);
        }
        assert_eq!(Head::read(b"text"), None);
    }
}
