//! CRC32C, computed incrementally: the hash of a longer prefix is computed from that of a shorter
//! one.
//!
//! CRC is not a keyed hash, so an attacker who chooses the keys can cause collisions. Collisions
//! cost time (a search of a bucket or a leaf takes longer), but never lead to a wrong result.
//!
//! Source: the Wormhole paper, §3.1 (incremental hashing).

/// The hash of the empty string. It is not 0, because then all strings of zero bytes would have the
/// hash 0.
pub const EMPTY: u32 = u32::MAX;

/// Returns the hash of a string `s` followed by `more`, given the hash of `s`.
pub use ordna_base::checksum::crc32c_extend as extend;

/// Spreads a hash over 64 bits. CRC is linear, so ascending keys would otherwise fill few buckets.
#[inline]
pub fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
