//! Checksums of the file formats, over one implementation.

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
    CRC_32C.checksum(bytes)
}

/// Returns the CRC-32C of some bytes with the checksum `before`, followed by `bytes`.
#[inline]
pub fn crc32c_append(before: u32, bytes: &[u8]) -> u32 {
    // The state that a checksum was made of, in the bit order that the library takes.
    let mut digest = CRC_32C.digest_with_initial((!before).reverse_bits());
    digest.update(bytes);
    digest.finalize()
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
}
