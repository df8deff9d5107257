//! Keys as bytes: their common prefixes, and their heads after these. For `u64` keys, nothing is
//! shared and the head is the key.

use ordna_base::Key;
use ordna_base::key::{common_prefix, head_at};

/// Returns the eight bytes after the first `skip`, big-endian and padded with zeros.
#[inline]
pub fn head_beyond<K: Key + ?Sized>(key: &K, skip: usize) -> u64 {
    if K::HEAD_IS_KEY || skip == 0 {
        return key.head();
    }
    head_at(key.tail(), skip)
}

/// Returns the length of the common prefix of two keys.
pub fn common<K: Key + ?Sized>(one: &K, other: &K) -> usize {
    common_prefix(one.tail(), other.tail())
}

/// Returns whether two keys have the same first `count` bytes.
#[inline]
pub fn starts_alike<K: Key + ?Sized>(one: &K, other: &K, count: usize) -> bool {
    let (one, other) = (one.radix(), other.radix());
    match (one.as_ref().get(..count), other.as_ref().get(..count)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}
