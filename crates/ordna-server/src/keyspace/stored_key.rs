//! The encoding of keys in the store: keys of users, and a reserved space for the elements of
//! collections.
//!
//! # Layout
//! User keys are below the byte `FF` and keep their order: a key that begins with `FE` or `FF` is
//! stored as `FE 00` or `FE 01` followed by its rest. Neither byte occurs in UTF-8. So a scan over
//! the user keys is one range, and a position in it counts no elements.
//!
//! | reserved key | value |
//! |---|---|
//! | `FF 00` | the version of this layout, see [`layout`] |
//! | `FF 00 01` | of a follower: its place in the primary's log |
//! | `FF`, number of bytes of the id (1 to 8), id, part | an element of the collection with this id, or a node of a list |
//! | `FF`, number of bytes of the id plus `10`, id, part of a field | the deadline of this field (8) |
//! | `FF`, number of bytes of the id plus `20`, id, deadline (8), part of a field | nothing: this field expires at that time |
//! | `FF F0`, deadline (8), id (8) | the key whose head has this id, and which expires at that time or has a field that does |
//! | `FF F1`, id (8) | nothing: the elements of this id are being removed |
//!
//! Numbers are big-endian.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

use smallvec::SmallVec;

/// The first key after the user keys, where the reserved space begins.
pub const USER_END: &[u8] = &[RESERVED];
/// The key of the layout's version. A directory without it has no reserved entries, and its keys
/// are stored unchanged.
pub const LAYOUT_KEY: &[u8] = &[RESERVED, 0];
/// The version of this layout. Version 2 had an element for each value of a list, and version 1 no
/// deadlines of fields. Servers before it stored keys unchanged, and no version.
pub const LAYOUT_VERSION: u32 = 3;
/// The beginning of the value of [`LAYOUT_KEY`], so that no key of an older server is mistaken for
/// it.
const LAYOUT: &[u8] = b"ordna-server keyspace layout ";
/// The key of the place in another server's log, if this one follows it.
pub const PLACE_KEY: &[u8] = &[RESERVED, 0, 1];
/// The bounds of the list of deadlines.
pub const DEADLINES: (Bound<&[u8]>, Bound<&[u8]>) =
    (Bound::Included(&[RESERVED, 0xF0]), Bound::Excluded(&[RESERVED, 0xF1]));
/// The bounds of the list of collections that are being removed.
pub const REMOVALS: (Bound<&[u8]>, Bound<&[u8]>) =
    (Bound::Included(&[RESERVED, 0xF1]), Bound::Excluded(&[RESERVED, 0xF2]));
/// The bounds of all elements.
pub const ELEMENTS: (Bound<&[u8]>, Bound<&[u8]>) =
    (Bound::Included(&[RESERVED, 1]), Bound::Excluded(&[RESERVED, 9]));

const RESERVED: u8 = 0xFF;
/// Number that is added to the number of bytes of an id in keys of deadlines by field.
const BY_FIELD: u8 = 0x10;
/// Number that is added to the number of bytes of an id in keys of fields by deadline.
const BY_DEADLINE: u8 = 0x20;
const ESCAPED: u8 = 0xFE;

/// Returns the value of [`LAYOUT_KEY`] for a version.
pub fn layout(version: u32) -> Vec<u8> {
    [LAYOUT, version.to_string().as_bytes()].concat()
}

/// Returns the version that a value of [`LAYOUT_KEY`] names, or `None` if the value is something
/// else.
pub fn layout_version(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value.strip_prefix(LAYOUT)?).ok()?.parse().ok()
}

/// Returns the stored form of a user key.
#[inline]
pub fn stored(key: &[u8]) -> Cow<'_, [u8]> {
    match key {
        [ESCAPED | RESERVED, ..] => Cow::Owned(escape(key)),
        _ => Cow::Borrowed(key),
    }
}

#[cold]
fn escape(key: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(key.len() + 1);
    escaped.extend([ESCAPED, key[0] - ESCAPED]);
    escaped.extend_from_slice(&key[1..]);
    escaped
}

/// Returns the user key of a stored one, which is below [`USER_END`].
#[inline]
pub fn user(stored: &[u8]) -> Cow<'_, [u8]> {
    match stored {
        [ESCAPED, mark @ (0 | 1), rest @ ..] => Cow::Owned([&[ESCAPED + mark], rest].concat()),
        _ => Cow::Borrowed(stored),
    }
}

/// A visitor of keys and values, which may break. A trait object, so that the store's scans are not
/// compiled for each closure of a command.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A bound of stored keys.
pub type StoredBound<'a> = Bound<Cow<'a, [u8]>>;

/// Converts bounds of user keys to bounds of stored keys.
pub fn stored_bounds<'a>(
    lower: Bound<&'a [u8]>,
    upper: Bound<&'a [u8]>,
) -> (StoredBound<'a>, StoredBound<'a>) {
    let end = || Bound::Excluded(Cow::Borrowed(USER_END));
    let upper = match upper {
        Bound::Unbounded => end(),
        upper => upper.map(stored),
    };
    (lower.map(stored), upper)
}

/// Returns the bound of a borrowed key.
pub fn borrowed<'a>(bound: &'a Bound<Cow<'_, [u8]>>) -> Bound<&'a [u8]> {
    bound.as_ref().map(|key| &**key)
}

/// The prefix that the keys of a collection share.
pub type KeyPrefix = SmallVec<[u8; 16]>;

fn prefix_of(id: u64, space: u8) -> KeyPrefix {
    let bytes = id.to_be_bytes();
    let skipped = (id.leading_zeros() as usize / 8).min(7);
    let mut prefix = KeyPrefix::new();
    prefix.extend_from_slice(&[RESERVED, space + (8 - skipped) as u8]);
    prefix.extend_from_slice(&bytes[skipped..]);
    prefix
}

/// Returns the beginning of the keys of a collection's elements.
pub fn elements_of(id: u64) -> KeyPrefix {
    prefix_of(id, 0)
}

/// Returns the beginning of the keys of a hash's deadlines by field.
pub fn deadlines_of_fields(id: u64) -> KeyPrefix {
    prefix_of(id, BY_FIELD)
}

/// Returns the beginning of the keys of a hash's fields by deadline.
pub fn fields_by_deadline(id: u64) -> KeyPrefix {
    prefix_of(id, BY_DEADLINE)
}

/// Returns the id of the collection of an element.
pub fn id_of_element(key: &[u8]) -> Option<u64> {
    let (&[_, len], rest) = key.split_first_chunk::<2>()?;
    let id = rest.get(..usize::from(len))?;
    Some(id.iter().fold(0, |id, byte| id << 8 | u64::from(*byte)))
}

/// Returns the entry of the list of deadlines.
pub fn deadline(at: u64, id: u64) -> Vec<u8> {
    [&[RESERVED, 0xF0][..], &at.to_be_bytes(), &id.to_be_bytes()].concat()
}

/// Returns whether a key is that of an entry of the list of deadlines.
pub fn is_deadline(key: &[u8]) -> bool {
    key.starts_with(&[RESERVED, 0xF0])
}

/// Returns the deadline and the id of an entry of the list of deadlines.
pub fn of_deadline(key: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
    Some((number(2)?, number(10)?))
}

/// Returns the entry of the list of removals.
pub fn removal(id: u64) -> Vec<u8> {
    [&[RESERVED, 0xF1][..], &id.to_be_bytes()].concat()
}

/// Returns the id of an entry of the list of removals.
pub fn of_removal(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(2..)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let byte =
            prop_oneof![Just(0_u8), Just(1), Just(0xFD), Just(0xFE), Just(0xFF), any::<u8>()];
        proptest::collection::vec(byte, 0..5)
    }

    proptest! {
        #[test]
        fn user_keys_keep_their_order_and_are_below_the_reserved_space(a in key(), b in key()) {
            let (stored_a, stored_b) = (stored(&a), stored(&b));
            prop_assert_eq!(stored_a.cmp(&stored_b), a.cmp(&b));
            prop_assert!(&*stored_a < USER_END);
            prop_assert_eq!(&*user(&stored_a), a.as_slice());
        }

        #[test]
        fn elements_stand_by_their_ids(a: u64, b: u64, shift in 0..64_u32) {
            let (a, b) = (a >> shift, b >> shift);
            let (of_a, of_b) = (elements_of(a), elements_of(b));
            prop_assert_eq!(of_a.cmp(&of_b), a.cmp(&b));
            prop_assert_eq!(a == b, of_b.starts_with(&of_a));
            prop_assert_eq!(id_of_element(&[&of_a[..], b"part"].concat()), Some(a));
            prop_assert!(of_a[..] >= [RESERVED, 1][..] && of_a[..] < [RESERVED, 9][..]);
            prop_assert_eq!(of_deadline(&deadline(a, b)), Some((a, b)));
            prop_assert_eq!(of_removal(&removal(a)), Some(a));
        }
    }
}
