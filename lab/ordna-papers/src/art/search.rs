//! The search for a key byte in a Node4 or Node16: with SIMD if it is available, and a scalar
//! version.
//!
//! Both return the lowest slot with the byte, or 16 (which is beyond all slots) if there is none.
//! Unused slots have byte 0 and no child, so a match there means "no child".

const NONE: usize = 16;
const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = LOW << 7;

/// Marks zero bytes. The lowest marker is that of the lowest zero byte; those above it may be
/// wrong.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW) & !word & HIGH
}

/// Returns the slot of `byte` among four.
#[inline]
pub fn find4(keys: u32, byte: u8) -> usize {
    let spread = u64::from(keys ^ (u32::from(byte) * LOW as u32));
    // The bytes above the four must not match.
    let found = zero_bytes(spread | !u64::from(u32::MAX));
    if found == 0 { NONE } else { found.trailing_zeros() as usize / 8 }
}

/// Returns the slot of `byte` among sixteen. Slots 0 to 7 are in the first word.
#[inline]
pub fn find16(keys: [u64; 2], byte: u8) -> usize {
    #[cfg(target_arch = "x86_64")]
    return find16_sse2(keys, byte);
    #[cfg(not(target_arch = "x86_64"))]
    return find16_scalar(keys, byte);
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "SSE2")]
fn find16_sse2(keys: [u64; 2], byte: u8) -> usize {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    // SAFETY: SSE2 is part of x86-64.
    let matches = unsafe {
        let keys = _mm_set_epi64x(keys[1] as i64, keys[0] as i64);
        _mm_movemask_epi8(_mm_cmpeq_epi8(keys, _mm_set1_epi8(byte as i8)))
    };
    // Bit 16 represents "no match".
    (matches | 1 << NONE).trailing_zeros() as usize
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn find16_scalar(keys: [u64; 2], byte: u8) -> usize {
    let [low, high] = keys.map(|half| zero_bytes(half ^ (u64::from(byte) * LOW)));
    match (low, high) {
        (0, 0) => NONE,
        (0, high) => 8 + high.trailing_zeros() as usize / 8,
        (low, _) => low.trailing_zeros() as usize / 8,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn twins_and_a_plain_loop_agree() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state ^ state >> 29
        };
        for round in 0..20_000 {
            // Half of the rounds have few different bytes, so that there are equal ones and zeros.
            let mask = if round % 2 == 0 { 0x0301_0001_8001_0003 } else { u64::MAX };
            let keys = [next() & mask, next() & mask];
            let byte = if round % 3 == 0 { next() as u8 } else { keys[1] as u8 };
            let all: Vec<u8> = keys.iter().flat_map(|half| half.to_le_bytes()).collect();
            let plain = all.iter().position(|key| *key == byte).unwrap_or(NONE);
            assert_eq!(find16(keys, byte), plain, "{all:?} {byte}");
            assert_eq!(find16_scalar(keys, byte), plain, "{all:?} {byte}");
            let plain = all[..4].iter().position(|key| *key == byte).unwrap_or(NONE);
            assert_eq!(find4(keys[0] as u32, byte), plain, "{:?} {byte}", &all[..4]);
        }
    }
}
