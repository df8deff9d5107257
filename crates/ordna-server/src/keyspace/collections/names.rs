//! Elements with names: fields of hashes, members of sets and sorted sets.
//!
//! # Order
//! The part of an element consists of the CRC-32C of its name and the name. So names with a common
//! beginning differ in the bytes that the store compares first. A cursor is a CRC, which remains a
//! valid position when the elements around it are removed. A random position is a random CRC. And
//! two sets have the same order, so that they can be merged. In a sorted set, the byte `m` precedes
//! the CRC.

use std::ops::{Bound, ControlFlow};

use ordna::Direction;
use ordna::checksum::crc32c;

use super::large::Large;
use crate::keyspace::value_kind::ValueKind;
use crate::wire::error::CommandError;

/// Maximum length in bytes of the name of an element of a large collection: that of a key of the
/// store, minus the bytes that precede the name.
pub const MOST_NAME: usize = ordna::key::MAX_LEN - 32;

/// Maximum number of names that a call of `HSCAN` and similar commands returns, whatever `COUNT`
/// says. Such a call takes some milliseconds.
const MOST_SCANNED: usize = 10_000;
/// Total size in bytes of names and values after which such a call ends.
const MOST_SCANNED_BYTES: usize = 1 << 20;

/// Number of elements from which a random one is chosen, so that elements after a wide gap between
/// two CRCs are hardly more likely than others.
const CHOICE: usize = 32;

/// Returns the error of a field or member whose name is too long.
pub fn too_long(len: usize) -> CommandError {
    format!("ERR element of {len} bytes exceeds maximum allowed size ({MOST_NAME} bytes)").into()
}

/// A name and its value.
pub type Named = (Vec<u8>, Vec<u8>);

impl Large<'_> {
    /// Returns the byte before the CRC in a sorted set.
    fn tag(&self) -> &'static [u8] {
        if self.head.kind == ValueKind::ZSet { b"m" } else { b"" }
    }

    /// Calls `with` with the part of a name.
    pub(super) fn with_part<R>(&self, name: &[u8], with: impl FnOnce(&[u8]) -> R) -> R {
        let (tag, crc) = (self.tag(), crc32c(name).to_be_bytes());
        let mut short = [0; 96];
        let (front, len) = (tag.len() + 4, tag.len() + 4 + name.len());
        match short.get_mut(..len) {
            Some(part) => {
                part[..tag.len()].copy_from_slice(tag);
                part[tag.len()..front].copy_from_slice(&crc);
                part[front..].copy_from_slice(name);
                with(part)
            }
            None => with(&[tag, &crc, name].concat()),
        }
    }

    /// Calls `read` with the value of a name, unless the name is a field that has expired.
    pub fn get_named<R>(&self, name: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.with_part(name, |part| match self.hides_fields() && self.is_due(part) {
            true => None,
            false => self.get_with(part, read),
        })
    }

    /// Returns whether the name has an entry. It may be a field that has expired.
    pub fn holds_named(&self, name: &[u8]) -> bool {
        self.with_part(name, |part| self.get_with(part, |_| ()).is_some())
    }

    /// Sets the value of a name. The caller knows whether it is new.
    pub fn put_named(&mut self, name: &[u8], value: &[u8], is_new: bool) {
        self.put(&[self.tag(), &crc32c(name).to_be_bytes(), name], value, is_new);
    }

    /// Removes a name, which is present.
    pub fn remove_named(&mut self, name: &[u8]) {
        self.remove(&[self.tag(), &crc32c(name).to_be_bytes(), name]);
    }

    /// Visits the names and values whose CRC is at or after `from`, in the order of CRC and name, without
    /// fields that have expired.
    pub fn visit_named(&self, from: u32, mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) {
        if self.hides_fields() {
            return self.visit_shown(from, visit);
        }
        let tag = self.tag();
        let lower = [tag, &from.to_be_bytes()].concat();
        let upper = if tag.is_empty() { Bound::Unbounded } else { Bound::Excluded(&b"n"[..]) };
        let front = tag.len() + 4;
        let bounds = (Bound::Included(lower.as_slice()), upper);
        self.visit(bounds, Direction::Ascending, |part, value| {
            visit(part.get(front..).unwrap_or_default(), value)
        });
    }

    /// Visits the parts of all names, in order: each is a CRC and a name. The collection is a set.
    pub fn visit_parts(&self, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) {
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.visit(all, Direction::Ascending, |part, _| visit(part));
    }

    /// Returns about `count` names from a cursor on, and the next cursor, or 0 at the end. A cursor
    /// is a CRC, and names with the same CRC are returned together. So a scan returns every name
    /// that is present throughout.
    ///
    /// A call returns no more names than [`MOST_SCANNED`], and ends after [`MOST_SCANNED_BYTES`].
    pub fn scan_named(&self, cursor: u64, count: usize) -> (u64, Vec<Named>) {
        let Ok(from) = u32::try_from(cursor) else { return (0, Vec::new()) };
        let count = count.min(MOST_SCANNED);
        let (mut found, mut last, mut next, mut bytes) = (Vec::new(), None, 0, 0);
        self.visit_named(from, |name, value| {
            let crc = crc32c(name);
            let is_full = found.len() >= count || bytes > MOST_SCANNED_BYTES;
            if is_full && last != Some(crc) {
                next = u64::from(crc);
                return ControlFlow::Break(());
            }
            last = Some(crc);
            bytes += name.len() + value.len();
            found.push((name.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        });
        (next, found)
    }

    /// Returns a random name and its value. `random` returns a random number below its argument.
    pub fn random_named(&self, random: &mut impl FnMut(usize) -> usize) -> Option<Named> {
        let from = random(1 << 32) as u32;
        if !self.hides_fields() {
            // Chooses from a leaf of the store, which has about as many elements as the loop below
            // chooses from. If the leaf has other entries too, the loop decides; otherwise elements
            // at the ends would be more likely.
            let copy = |part: &[u8], value: &[u8]| {
                (part.get(4..).unwrap_or_default().to_vec(), value.to_vec())
            };
            let found = self.near(self.tag(), &from.to_be_bytes(), random(1 << 16), copy);
            if found.is_some() {
                return found;
            }
        }
        let wanted = CHOICE.min(self.shown_len());
        let chosen = random(wanted.max(1));
        let (mut passed, mut found) = (0, None);
        for from in [from, 0] {
            // The first names follow the last one.
            self.visit_named(from, |name, value| {
                if passed == chosen {
                    found = Some((name.to_vec(), value.to_vec()));
                    return ControlFlow::Break(());
                }
                passed += 1;
                ControlFlow::Continue(())
            });
            if found.is_some() {
                return found;
            }
        }
        // There are fewer names than the head says, which means damage.
        self.visit_named(0, |name, value| {
            found = Some((name.to_vec(), value.to_vec()));
            ControlFlow::Break(())
        });
        found
    }
}
