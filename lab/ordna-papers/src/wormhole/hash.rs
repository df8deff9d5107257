//! CRC32C, computed piece by piece: the hash of a prefix goes on to that of a longer one.
//!
//! By the instructions of x86-64 (SSE 4.2) and aarch64 (CRC) where the running processor has them,
//! else by a table; all give the same. CRC is no keyed hash: an attacker that chooses keys can make
//! them collide. Collisions cost time (a bucket or a leaf is searched longer), never a wrong
//! answer.
//!
//! Source: the Wormhole paper, §3.1 (incremental hashing).

#![expect(unsafe_code, reason = "calls of functions that need a processor feature")]

/// The hash of the empty string. Not 0: with that, strings of zero bytes would all hash to 0.
pub const EMPTY: u32 = u32::MAX;

/// The hash of a string `s` followed by `more`, from the hash of `s`.
#[inline]
pub fn extend(hash: u32, more: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the running processor has the feature.
        return unsafe { extend_sse42(hash, more) };
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("crc") {
        // SAFETY: the running processor has the feature.
        return unsafe { extend_aarch64(hash, more) };
    }
    extend_by_table(hash, more)
}

/// Spreads a hash over 64 bits: CRC is linear, so keys that count upwards would fill few buckets.
#[inline]
pub fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn extend_sse42(hash: u32, more: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let (words, rest) = more.as_chunks::<8>();
    let mut wide = u64::from(hash);
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    rest.iter().fold(wide as u32, |hash, byte| _mm_crc32_u8(hash, *byte))
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "crc")]
fn extend_aarch64(hash: u32, more: &[u8]) -> u32 {
    use std::arch::aarch64::{__crc32cb, __crc32cd};
    let (words, rest) = more.as_chunks::<8>();
    let wide = words.iter().fold(hash, |hash, word| __crc32cd(hash, u64::from_le_bytes(*word)));
    rest.iter().fold(wide, |hash, byte| __crc32cb(hash, *byte))
}

/// The Castagnoli polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut hash = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            hash = if hash & 1 == 1 { hash >> 1 ^ POLYNOMIAL } else { hash >> 1 };
            bit += 1;
        }
        table[byte] = hash;
        byte += 1;
    }
    table
};

fn extend_by_table(hash: u32, more: &[u8]) -> u32 {
    more.iter().fold(hash, |hash, byte| TABLE[usize::from(hash as u8 ^ byte)] ^ hash >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_crc32c() {
        assert_eq!(!extend_by_table(EMPTY, b"123456789"), 0xE306_9283);
        assert_eq!(!extend(EMPTY, b"123456789"), 0xE306_9283);
    }

    #[test]
    fn instruction_and_table_agree_piece_by_piece() {
        let bytes: Vec<u8> = (0..300_u32).map(|n| (n * 7 + n / 11) as u8).collect();
        let whole = extend_by_table(EMPTY, &bytes);
        for cut in 0..bytes.len() {
            let (left, right) = bytes.split_at(cut);
            assert_eq!(extend(EMPTY, left), extend_by_table(EMPTY, left));
            assert_eq!(extend(extend(EMPTY, left), right), whole);
        }
    }
}
