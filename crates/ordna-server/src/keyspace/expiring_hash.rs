//! A small hash with fields that expire: one record, stored after a
//! [head](super::collections::head).
//!
//! # Layout
//! | bytes | what |
//! |---|---|
//! | 4 | number of bytes of the deadlines, little-endian |
//! | … | for each field that expires: its deadline (8 bytes, little-endian), its length (LEB128) and its name |
//! | 1 | encoding of the fields, see [`hash`](super::hash) |
//! | … | the fields and values, in that encoding |
//!
//! Decoding arbitrary bytes never panics: a damaged record has fewer fields or deadlines.

use std::collections::BTreeMap;

use crate::keyspace::collections::head::NEVER;
use crate::keyspace::hash::{Edit, Hash, put, take};

/// The deadlines of the fields of a small hash, in their stored form. Empty if no field expires.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Deadlines<'a>(&'a [u8]);

impl<'a> Deadlines<'a> {
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], u64)> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (deadline, left) = rest.split_first_chunk()?;
            rest = left;
            Some((take(&mut rest)?, u64::from_le_bytes(*deadline)))
        })
    }

    /// Returns the deadline of a field. O(n).
    pub fn of(self, field: &[u8]) -> Option<u64> {
        self.iter().find(|(found, _)| *found == field).map(|(_, deadline)| deadline)
    }
}

/// Deadlines by field.
pub type DeadlineMap = BTreeMap<Vec<u8>, u64>;

/// Returns the earliest of some deadlines, or [`NEVER`] if there is none.
pub fn soonest(deadlines: &DeadlineMap) -> u64 {
    deadlines.values().copied().min().unwrap_or(NEVER)
}

/// Returns the fields and deadlines of a record.
pub fn read(inline: &[u8]) -> Option<(Hash<'_>, Deadlines<'_>)> {
    let (len, rest) = inline.split_first_chunk()?;
    let (deadlines, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let (encoding, body) = rest.split_first()?;
    Some((Hash::new(*encoding, body), Deadlines(deadlines)))
}

/// Encodes a hash, given as a record of [`hash`](super::hash), with its deadlines.
pub fn stored(record: &[u8], deadlines: &DeadlineMap) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for (field, deadline) in deadlines {
        bytes.extend(deadline.to_le_bytes());
        put(&mut bytes, field);
    }
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    // The mark is left out.
    bytes.extend(record.iter().skip(1));
    bytes
}

/// Returns the record of a hash without the fields that have expired at a time.
pub fn shown<'a>(hash: Hash<'a>, deadlines: Deadlines<'a>, now: u64) -> Vec<u8> {
    let mut edit = Edit::of(Some(hash));
    for (field, _) in deadlines.iter().filter(|(_, deadline)| *deadline <= now) {
        edit.remove(field);
    }
    edit.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn field() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof!["[a-d]{0,2}".prop_map(String::into_bytes), Just(vec![b'x'; 65])]
    }

    proptest! {
        #[test]
        fn fields_and_deadlines_come_back(
            fields in proptest::collection::vec((field(), proptest::option::of(0..100_u64)), 1..20),
            now in 0..100_u64,
        ) {
            let (mut edit, mut deadlines) = (Edit::of(None), DeadlineMap::new());
            for (field, deadline) in &fields {
                edit.set(field, b"value");
                match deadline {
                    Some(deadline) => deadlines.insert(field.clone(), *deadline),
                    None => deadlines.remove(field),
                };
            }
            let len = edit.len();
            let inline = stored(&edit.finish(), &deadlines);
            let (hash, found) = read(&inline).unwrap();
            prop_assert_eq!(hash.len(), len);
            prop_assert_eq!(found.is_empty(), deadlines.is_empty());
            let read: DeadlineMap = found.iter().map(|(field, at)| (field.to_vec(), at)).collect();
            prop_assert_eq!(&read, &deadlines);
            prop_assert_eq!(soonest(&read), deadlines.values().copied().min().unwrap_or(NEVER));
            let record = shown(hash, found, now);
            let shown = Hash::new(record[1], &record[2..]);
            for (field, _) in &fields {
                let deadline = deadlines.get(field).copied();
                prop_assert_eq!(found.of(field), deadline);
                prop_assert_eq!(shown.get(field).is_some(), deadline.is_none_or(|at| at > now));
            }
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some((hash, deadlines)) = read(&bytes) {
                deadlines.iter().for_each(drop);
                shown(hash, deadlines, 1 << 40);
            }
        }
    }
}
