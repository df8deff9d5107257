//! CRC32C, computed piece by piece: the hash of a prefix goes on to that of a longer one.
//!
//! CRC is no keyed hash: an attacker that chooses keys can make
//! them collide. Collisions cost time (a bucket or a leaf is searched longer), never a wrong
//! answer.
//!
//! Source: the Wormhole paper, §3.1 (incremental hashing).

/// The hash of the empty string. Not 0: with that, strings of zero bytes would all hash to 0.
pub const EMPTY: u32 = u32::MAX;

/// The hash of a string `s` followed by `more`, from the hash of `s`.
pub use ordna_base::checksum::crc32c_extend as extend;

/// Spreads a hash over 64 bits: CRC is linear, so keys that count upwards would fill few buckets.
#[inline]
pub fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
