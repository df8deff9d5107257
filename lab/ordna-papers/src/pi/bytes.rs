//! Keys as bytes: what they share, and their heads beyond that. For `u64` keys nothing is shared
//! and the head is the key.

use ordna_base::Key;
use ordna_base::key::{common_prefix, head_at};

/// The first eight bytes behind the first `skip`, big-endian, padded with zeroes.
#[inline]
pub fn head_beyond<K: Key + ?Sized>(key: &K, skip: usize) -> u64 {
    if K::HEAD_IS_KEY || skip == 0 {
        return key.head();
    }
    head_at(key.tail(), skip)
}

/// How many first bytes two keys share.
pub fn common<K: Key + ?Sized>(one: &K, other: &K) -> usize {
    common_prefix(one.tail(), other.tail())
}

/// Whether two keys share their first `count` bytes.
#[inline]
pub fn starts_alike<K: Key + ?Sized>(one: &K, other: &K, count: usize) -> bool {
    let (one, other) = (one.radix(), other.radix());
    match (one.as_ref().get(..count), other.as_ref().get(..count)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}
