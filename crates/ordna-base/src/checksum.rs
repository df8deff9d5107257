//! Checksums of the file formats.
//!
//! CRC-32C covers every byte of the log and of backups. So it uses the instructions of x86-64 (SSE
//! 4.2) and aarch64 (CRC) if the processor has them; they take a fifth of the time of the tables.
//! The others cover little data and always use tables.

#![expect(unsafe_code, reason = "calls of functions that need a processor feature")]

use crc::{CRC_32_ISCSI, CRC_32_ISO_HDLC, CRC_64_REDIS, Crc, Table};

/// CRC-32C (Castagnoli): backups, the write-ahead log, the field order of large hashes.
static CRC_32C: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);
/// CRC-32 of IEEE 802.3: identities and partitions of secondary indexes.
static CRC_32: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISO_HDLC);
/// CRC-64 of Redis: `DUMP` and `RESTORE`.
static CRC_64: Crc<u64> = Crc::<u64>::new(&CRC_64_REDIS);

/// Returns the CRC-32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// Returns the CRC-32C of some bytes with the checksum `before`, followed by `bytes`.
#[inline]
pub fn crc32c_append(before: u32, bytes: &[u8]) -> u32 {
    !crc32c_extend(!before, bytes)
}

/// Returns the register of CRC-32C after `bytes`, from the register before them. The register is
/// the complement of the checksum so far, `u32::MAX` at the start.
#[inline]
pub fn crc32c_extend(register: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the running processor has the feature.
        return unsafe { extend_sse42(register, bytes) };
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("crc") {
        // SAFETY: the running processor has the feature.
        return unsafe { extend_aarch64(register, bytes) };
    }
    extend_by_table(register, bytes)
}

/// Beginning of the last line of a sealed text; eight digits and a line feed follow.
const SEAL: &[u8] = b"\n# CRC-32C ";

/// Appends a line with the CRC-32C of a text.
pub fn seal(mut text: Vec<u8>) -> Vec<u8> {
    let line = format!("{:08x}\n", crc32c(&text));
    text.extend_from_slice(SEAL);
    text.extend_from_slice(line.as_bytes());
    text
}

/// Returns a sealed text without its last line, or `None` if it is damaged. A text without such a
/// line, as older versions wrote it, is returned unchanged, with `false`.
pub fn unseal(sealed: &[u8]) -> Option<(&[u8], bool)> {
    let parts = sealed.len().checked_sub(SEAL.len() + 9).map(|at| sealed.split_at(at));
    let Some((text, line)) = parts.filter(|(_, line)| line.starts_with(SEAL)) else {
        return Some((sealed, false));
    };
    let expected = format!("{:08x}\n", crc32c(text));
    (&line[SEAL.len()..] == expected.as_bytes()).then_some((text, true))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn extend_sse42(register: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let (words, rest) = bytes.as_chunks::<8>();
    let mut wide = u64::from(register);
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    rest.iter().fold(wide as u32, |register, byte| _mm_crc32_u8(register, *byte))
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "crc")]
fn extend_aarch64(register: u32, bytes: &[u8]) -> u32 {
    use std::arch::aarch64::{__crc32cb, __crc32cd};
    let (words, rest) = bytes.as_chunks::<8>();
    let wide = words.iter().fold(register, |wide, word| __crc32cd(wide, u64::from_le_bytes(*word)));
    rest.iter().fold(wide, |register, byte| __crc32cb(register, *byte))
}

fn extend_by_table(register: u32, bytes: &[u8]) -> u32 {
    // The library takes the register with reversed bits.
    let mut digest = CRC_32C.digest_with_initial(register.reverse_bits());
    digest.update(bytes);
    !digest.finalize()
}

/// Returns the CRC-32 of `bytes`.
#[inline]
pub fn crc32(bytes: &[u8]) -> u32 {
    CRC_32.checksum(bytes)
}

/// Returns Redis' CRC-64 of `bytes`.
pub fn crc64_redis(bytes: &[u8]) -> u64 {
    CRC_64.checksum(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the catalogue of parametrised CRC algorithms.
    #[test]
    fn check_values() {
        let digits = b"123456789";
        assert_eq!(crc32c(digits), 0xE306_9283);
        assert_eq!(!extend_by_table(u32::MAX, digits), 0xE306_9283);
        assert_eq!(crc32(digits), 0xCBF4_3926);
        assert_eq!(crc64_redis(digits), 0xE9C6_D914_C4B8_D9CA);
    }

    #[test]
    fn appending_is_checksumming_the_whole() {
        let text = b"seventeen letters";
        for at in 0..=text.len() {
            let (front, back) = text.split_at(at);
            assert_eq!(crc32c_append(crc32c(front), back), crc32c(text));
        }
        assert_eq!(crc32c_append(0, text), crc32c(text));
    }

    #[test]
    fn instructions_and_table_agree_piece_by_piece() {
        let bytes: Vec<u8> = (0..300_u32).map(|n| (n * 7 + n / 11) as u8).collect();
        let whole = extend_by_table(u32::MAX, &bytes);
        for cut in 0..bytes.len() {
            let (left, right) = bytes.split_at(cut);
            let register = crc32c_extend(u32::MAX, left);
            assert_eq!(register, extend_by_table(u32::MAX, left));
            assert_eq!(crc32c_extend(register, right), whole);
        }
    }
}
