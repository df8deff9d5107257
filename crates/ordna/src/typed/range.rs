//! Ranges of typed keys, and their bounds in encoded form.

use std::ops::{
    Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive,
};

use crate::Error;
use crate::key::prefix_end;
use crate::tuple::{Decode, Like, Prefix, Reader};
use ordna_base::WrongKey;

/// Bounds in encoded form.
#[derive(Debug, Clone)]
pub struct ByteBounds(pub(crate) Bound<Vec<u8>>, pub(crate) Bound<Vec<u8>>);

impl ByteBounds {
    /// Returns the bounds of all keys that start with `lead`.
    pub(crate) fn with_lead(lead: &[u8]) -> Self {
        Self(Bound::Included(lead.to_vec()), end_of(lead))
    }

    /// Returns both bounds, borrowed.
    pub(crate) fn as_ref(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.0.as_ref().map(Vec::as_slice), self.1.as_ref().map(Vec::as_slice))
    }
}

/// Returns the bound above all keys that start with `lead`.
fn end_of(lead: &[u8]) -> Bound<Vec<u8>> {
    prefix_end(lead).map_or(Bound::Unbounded, Bound::Excluded)
}

/// A range of keys of a [`Map`](super::Map): `a..b`, `a..=b`, `a..`, `..b`, `..=b`, `..`, or a pair
/// of [`Bound`]s, where the ends are keys or their borrowed forms (`&str` for `String`).
///
/// ```
/// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
/// assert_eq!((ages.count("a".."b"), ages.count(..="ann"), ages.count(..)), (1, 1, 2));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range of keys of the type `{K}`",
    label = "not a range of `{K}`",
    note = "write `a..b`, `a..=b`, `a..`, `..b`, `..=b`, `..` or `(Bound, Bound)` with ends that are keys",
    note = "ranges over the first fields of a tuple or struct: `range_prefix`"
)]
pub trait MapRange<K> {
    /// Returns the bounds of the range in a map whose keys start with `lead`.
    #[doc(hidden)]
    fn byte_bounds(&self, lead: &[u8]) -> ByteBounds;
}

/// A range of key prefixes of a [`Map`](super::Map), like [`MapRange`], except that the ends are
/// tuples of the first fields of a tuple or struct. An included end includes all keys that begin
/// with it.
///
/// ```
/// let sales: ordna::Map<(String, u32, u64), u64> = ordna::Map::new();
/// sales.put(("SE", 2025, 1), 10)?;
/// sales.put(("SE", 2026, 1), 20)?;
/// assert_eq!(sales.range_prefix(("SE", 2026)..).count(), 1);
/// # Ok::<(), ordna::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range of prefixes of the type `{K}`",
    label = "not a range of prefixes of `{K}`",
    note = "the ends are tuples of the first fields of a tuple or struct, with one field `(field,)`"
)]
pub trait PrefixRange<K> {
    /// Returns the bounds of the range in a map whose keys start with `lead`.
    #[doc(hidden)]
    fn byte_bounds(&self, lead: &[u8]) -> ByteBounds;
}

fn of_keys<K, Q: Like<K>>(lead: &[u8], lower: Bound<&Q>, upper: Bound<&Q>) -> ByteBounds {
    let encode = |key: &Q| {
        let mut out = lead.to_vec();
        key.encode(&mut out);
        out
    };
    let ByteBounds(first, end) = ByteBounds::with_lead(lead);
    let or = |bound: Bound<&Q>, all| match bound {
        Bound::Unbounded => all,
        bound => bound.map(encode),
    };
    ByteBounds(or(lower, first), or(upper, end))
}

fn of_prefixes<K, P: Prefix<K>>(lead: &[u8], lower: Bound<&P>, upper: Bound<&P>) -> ByteBounds {
    let encode = |prefix: &P| {
        let mut out = lead.to_vec();
        prefix.encode_prefix(&mut out);
        out
    };
    let ByteBounds(first, end) = ByteBounds::with_lead(lead);
    // No key is a prefix of another one, so a key that starts with a prefix is above the prefix's
    // bytes.
    let lower = match lower {
        Bound::Unbounded => first,
        Bound::Included(prefix) => Bound::Included(encode(prefix)),
        Bound::Excluded(prefix) => match end_of(&encode(prefix)) {
            Bound::Excluded(end) => Bound::Included(end),
            // There are no keys above.
            _ => return ByteBounds(Bound::Excluded(Vec::new()), Bound::Excluded(Vec::new())),
        },
    };
    let upper = match upper {
        Bound::Unbounded => end,
        Bound::Included(prefix) => end_of(&encode(prefix)),
        Bound::Excluded(prefix) => Bound::Excluded(encode(prefix)),
    };
    ByteBounds(lower, upper)
}

impl<K> MapRange<K> for RangeFull {
    fn byte_bounds(&self, lead: &[u8]) -> ByteBounds {
        ByteBounds::with_lead(lead)
    }
}

impl<K> PrefixRange<K> for RangeFull {
    fn byte_bounds(&self, lead: &[u8]) -> ByteBounds {
        ByteBounds::with_lead(lead)
    }
}

macro_rules! ranges {
    ($($range:ident),*) => { $(
        impl<K, Q: Like<K>> MapRange<K> for $range<Q> {
            fn byte_bounds(&self, lead: &[u8]) -> ByteBounds {
                of_keys(lead, self.start_bound(), self.end_bound())
            }
        }
        impl<K, P: Prefix<K>> PrefixRange<K> for $range<P> {
            fn byte_bounds(&self, lead: &[u8]) -> ByteBounds {
                of_prefixes(lead, self.start_bound(), self.end_bound())
            }
        }
    )* };
}
ranges!(Range, RangeFrom, RangeInclusive, RangeTo, RangeToInclusive);

impl<K, Q: Like<K>> MapRange<K> for (Bound<Q>, Bound<Q>) {
    fn byte_bounds(&self, lead: &[u8]) -> ByteBounds {
        of_keys(lead, self.0.as_ref(), self.1.as_ref())
    }
}

impl<K, P: Prefix<K>> PrefixRange<K> for (Bound<P>, Bound<P>) {
    fn byte_bounds(&self, lead: &[u8]) -> ByteBounds {
        of_prefixes(lead, self.0.as_ref(), self.1.as_ref())
    }
}

impl<K, R: MapRange<K>> MapRange<K> for &R {
    fn byte_bounds(&self, lead: &[u8]) -> ByteBounds {
        (**self).byte_bounds(lead)
    }
}

/// Returns the bounds from `key` to the end of the map, or from its start to `key`.
pub(super) fn from_key<K, Q: Like<K>>(lead: &[u8], lower: Bound<&Q>) -> ByteBounds {
    of_keys(lead, lower, Bound::Unbounded)
}

pub(super) fn to_key<K, Q: Like<K>>(lead: &[u8], upper: Bound<&Q>) -> ByteBounds {
    of_keys(lead, Bound::Unbounded, upper)
}

/// Decodes a key whose first `lead` bytes name the map.
pub(crate) fn key_of<K: Decode>(key: &[u8], lead: usize) -> Result<K, Error> {
    let mut reader = Reader::new(key.get(lead..).unwrap_or_default());
    let decoded = K::decode(&mut reader).and_then(|decoded| reader.finish().map(|()| decoded));
    decoded.map_err(|source| Error::WrongKey(Box::new(WrongKey { key: key.to_vec(), source })))
}
