//! The specification of all comparisons: one relaxed load per word.

use super::cache_line::Line;
use crate::sync::atomic::Ordering;

#[inline]
pub fn at_most(line: &Line, word: u64) -> u32 {
    line.0.iter().enumerate().fold(0, |mask, (lane, other)| {
        mask | u32::from(other.load(Ordering::Relaxed) <= word) << lane
    })
}

/// Returns how many of 64 ascending numbers are below `number`, and how many are at most `number`.
/// If the numbers do not ascend, the results are arbitrary, but at most 64.
#[inline]
pub fn span(lines: &[Line; 2], number: u16) -> (usize, usize) {
    let other = |at: usize| (lines[at / 32].get(at % 32 / 4) >> (at % 4 * 16)) as u16;
    // Without branches, because it cannot be predicted which half follows.
    let count = |limit: u32| {
        let is_below = |at: usize| usize::from(u32::from(other(at)) < limit);
        let halves = [32, 16, 8, 4, 2, 1].into_iter();
        let low = halves.fold(0, |low, half| low + half * is_below(low + half - 1));
        low + is_below(low)
    };
    (count(u32::from(number)), count(u32::from(number) + 1))
}

/// Returns a bit mask whose bit i is set if word i equals `word` in the bits that are set in `mask`.
#[inline]
pub fn matching(line: &Line, word: u64, mask: u64) -> u32 {
    line.0.iter().enumerate().fold(0, |found, (lane, other)| {
        let differ = (other.load(Ordering::Relaxed) ^ word) & mask;
        found | u32::from(differ == 0) << lane
    })
}

/// Returns a bit mask whose bit i is set if byte i equals `byte`.
#[inline]
pub fn equal(line: &Line, byte: u8) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    line.0.iter().enumerate().fold(0, |mask, (lane, word)| {
        let differ = word.load(Ordering::Relaxed) ^ (u64::from(byte) * LOW);
        // The high bit of each byte that is zero. Exact, because no carry leaves a byte.
        let zero = !((differ & !HIGH).wrapping_add(!HIGH) | differ | !HIGH);
        // The bit of byte i is bit 8 i + 7; the product moves all eight to the top byte.
        let bits = (zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        mask | bits << (lane * 8)
    })
}

/// Returns, for each of the first `count` numbers, how many are smaller. Compilers vectorize the
/// inner loop for the target.
#[inline]
pub fn ranks(numbers: &[i32; 64], count: usize) -> [i32; 64] {
    let mut ranks = [0; 64];
    for other in &numbers[..count] {
        for (rank, number) in ranks.iter_mut().zip(numbers) {
            *rank += i32::from(other < number);
        }
    }
    ranks
}
