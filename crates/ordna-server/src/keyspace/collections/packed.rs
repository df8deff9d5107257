//! A small collection in one record: byte strings, one after the other.
//!
//! # Layout
//! The mark, the number of this form, the type, flags, and for each string its length (LEB128) and
//! its bytes. Sets and sorted sets keep their strings distinct and in ascending order, lists in the
//! order of the list. Decoding arbitrary bytes never panics: a damaged record has fewer strings.

use crate::keyspace::hash::{put, take};
use crate::keyspace::value_kind::{MARK, PACKED, ValueKind};

/// Maximum number of strings in a record: Redis' default of `zset-max-listpack-entries`. A write copies
/// the record, and so does the log.
pub const MOST_STRINGS: usize = 128;
/// Maximum number of strings in a set of integers: Redis' default of `set-max-intset-entries`.
pub const MOST_INTEGERS: usize = 512;
/// Maximum bytes of a record.
pub const MOST_BYTES: usize = 4096;

/// Flag of a collection that Redis would no longer keep in its compact encoding.
const CONVERTED: u8 = 1;

/// A small collection. Holds a copy of its record.
#[derive(Debug, Clone)]
pub struct Packed {
    pub kind: ValueKind,
    flags: u8,
    bytes: Vec<u8>,
    /// Beginning and end of each string in `bytes`.
    spans: Vec<(u32, u32)>,
    /// Bytes of all strings, with their lengths.
    used: usize,
    pub is_changed: bool,
    /// Whether the collection had more strings or bytes than fit. It is then incomplete.
    pub is_full: bool,
}

impl Packed {
    /// Creates an empty collection.
    pub fn new(kind: ValueKind) -> Self {
        Self {
            kind,
            flags: 0,
            bytes: Vec::new(),
            spans: Vec::new(),
            used: 0,
            is_changed: false,
            is_full: false,
        }
    }

    /// Reads a record; `None` if the stored value is something else.
    pub fn read(stored: &[u8]) -> Option<Self> {
        let [MARK, PACKED, kind, flags, rest @ ..] = stored else { return None };
        let mut packed = Self { flags: *flags, ..Self::new(ValueKind::of_code(*kind)?) };
        packed.bytes = rest.to_vec();
        packed.used = rest.len();
        let (mut left, all) = (rest, rest.len());
        while let Some(text) = take(&mut left) {
            let end = all - left.len();
            packed.spans.push(((end - text.len()) as u32, end as u32));
        }
        Some(packed)
    }

    /// Returns the record.
    pub fn stored(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.used + 4);
        bytes.extend([MARK, PACKED, self.kind.code(), self.flags]);
        self.iter().for_each(|text| put(&mut bytes, text));
        bytes
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns whether Redis would have left its compact encoding.
    pub fn is_converted(&self) -> bool {
        self.flags & CONVERTED != 0
    }

    /// Records that Redis would have left its compact encoding.
    pub fn convert(&mut self) {
        self.is_changed |= !self.is_converted();
        self.flags |= CONVERTED;
    }

    pub fn get(&self, at: usize) -> Option<&[u8]> {
        let (start, end) = *self.spans.get(at)?;
        self.bytes.get(start as usize..end as usize)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        let text = |(start, end): &(u32, u32)| &self.bytes[*start as usize..*end as usize];
        self.spans.iter().map(text)
    }

    /// Returns the position of a string in an ordered collection, or the one where it would be
    /// inserted.
    pub fn search(&self, text: &[u8]) -> Result<usize, usize> {
        let place = self.partition(|found| found < text);
        if self.get(place) == Some(text) { Ok(place) } else { Err(place) }
    }

    /// Returns the number of leading strings for which `is_before` holds.
    pub fn partition(&self, is_before: impl Fn(&[u8]) -> bool) -> usize {
        self.spans
            .partition_point(|(start, end)| is_before(&self.bytes[*start as usize..*end as usize]))
    }

    /// Inserts a string at a position. A full collection is not changed.
    pub fn insert(&mut self, at: usize, text: &[u8]) {
        self.is_changed = true;
        let most = match self.kind {
            ValueKind::Set if !self.is_converted() => MOST_INTEGERS,
            _ => MOST_STRINGS,
        };
        let used = self.used + text.len() + 2;
        if self.is_full || self.spans.len() >= most || used > MOST_BYTES {
            self.is_full = true;
            return;
        }
        self.used = used;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text);
        self.spans.insert(at, (start as u32, self.bytes.len() as u32));
    }

    pub fn remove(&mut self, at: usize) {
        if at < self.spans.len() {
            let (start, end) = self.spans.remove(at);
            self.used = self.used.saturating_sub((end - start) as usize + 1);
            self.is_changed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_record_comes_back(
            texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20),
            removed in 0..20_usize,
        ) {
            let mut packed = Packed::new(ValueKind::List);
            for (at, text) in texts.iter().enumerate() {
                packed.insert(at, text);
            }
            packed.remove(removed);
            let mut expected = texts;
            if removed < expected.len() {
                expected.remove(removed);
            }
            let read = Packed::read(&packed.stored()).unwrap();
            prop_assert_eq!(read.iter().collect::<Vec<_>>(), expected);
            prop_assert!(!packed.is_full);
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let stored = [&[MARK, PACKED, ValueKind::Set.code()][..], &bytes].concat();
            if let Some(packed) = Packed::read(&stored) {
                prop_assert!(packed.iter().count() == packed.len());
            }
        }
    }

    #[test]
    fn a_record_has_a_limit() {
        let mut packed = Packed::new(ValueKind::List);
        (0..MOST_STRINGS).for_each(|_| packed.insert(0, b"x"));
        assert!(!packed.is_full);
        packed.insert(0, b"x");
        assert!(packed.is_full);
        let mut packed = Packed::new(ValueKind::List);
        packed.insert(0, &[0; MOST_BYTES]);
        assert!(packed.is_full);
    }
}
