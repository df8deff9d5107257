//! Comparisons of eight words, or 64 bytes, in one AVX-512 instruction.

#![expect(unsafe_code, reason = "assembly: see the contract of the module above")]

use std::arch::asm;

use super::cache_line::Line;

#[inline(always)]
pub fn at_most(line: &Line, word: u64) -> u32 {
    let mask: u32;
    // The registers from zmm16 on leave no dirty upper halves, which would slow surrounding code.
    // Not `pure`: the block must keep its place among fences and other reads. SAFETY: reached only
    // with AVX-512 F detected. Reads the 64 bytes of the line; an aligned load of eight bytes
    // within it is atomic.
    unsafe {
        asm!(
            "vpbroadcastq zmm16, {word}",
            // Predicate 5: not less than, unsigned.
            "vpcmpuq k1, zmm16, zmmword ptr [{line}], 5",
            "kmovw {mask:e}, k1",
            word = in(reg) word,
            line = in(reg) line,
            mask = lateout(reg) mask,
            out("xmm16") _,
            out("k1") _,
            options(readonly, nostack, preserves_flags),
        );
    }
    mask
}

/// Returns how many words of eight lines are at most `word`.
#[inline(always)]
pub fn rank(lines: &[Line; 8], word: u64) -> usize {
    let count: usize;
    // SAFETY: as above, and reads eight lines. Machines with AVX-512 have POPCNT.
    unsafe {
        asm!(
            "vpbroadcastq zmm16, {word}",
            "vpcmpuq k0, zmm16, zmmword ptr [{lines}], 5",
            "vpcmpuq k1, zmm16, zmmword ptr [{lines} + 64], 5",
            "vpcmpuq k2, zmm16, zmmword ptr [{lines} + 128], 5",
            "vpcmpuq k3, zmm16, zmmword ptr [{lines} + 192], 5",
            "vpcmpuq k4, zmm16, zmmword ptr [{lines} + 256], 5",
            "vpcmpuq k5, zmm16, zmmword ptr [{lines} + 320], 5",
            "vpcmpuq k6, zmm16, zmmword ptr [{lines} + 384], 5",
            "vpcmpuq k7, zmm16, zmmword ptr [{lines} + 448], 5",
            "kunpckbw k0, k1, k0",
            "kunpckbw k2, k3, k2",
            "kunpckbw k4, k5, k4",
            "kunpckbw k6, k7, k6",
            "kunpckwd k0, k2, k0",
            "kunpckwd k4, k6, k4",
            "kunpckdq k0, k4, k0",
            "kmovq {count}, k0",
            "popcnt {count}, {count}",
            word = in(reg) word,
            lines = in(reg) lines,
            count = lateout(reg) count,
            out("xmm16") _,
            out("k0") _, out("k1") _, out("k2") _, out("k3") _,
            out("k4") _, out("k5") _, out("k6") _, out("k7") _,
            options(readonly, nostack),
        );
    }
    count
}

/// Returns how many of 64 numbers are below `number`, and how many are at most `number`.
#[inline(always)]
pub fn span(lines: &[Line; 2], number: u16) -> (usize, usize) {
    let (below, at_most): (usize, usize);
    // SAFETY: as above, with AVX-512 BW detected, too.
    unsafe {
        asm!(
            "vpbroadcastw zmm16, {number:e}",
            // Predicates 6: greater than, and 5: not less than, both unsigned.
            "vpcmpuw k0, zmm16, zmmword ptr [{lines}], 6",
            "vpcmpuw k1, zmm16, zmmword ptr [{lines} + 64], 6",
            "vpcmpuw k2, zmm16, zmmword ptr [{lines}], 5",
            "vpcmpuw k3, zmm16, zmmword ptr [{lines} + 64], 5",
            "kunpckdq k0, k1, k0",
            "kunpckdq k2, k3, k2",
            "kmovq {below}, k0",
            "kmovq {at_most}, k2",
            "popcnt {below}, {below}",
            "popcnt {at_most}, {at_most}",
            number = in(reg) u32::from(number),
            lines = in(reg) lines,
            below = out(reg) below,
            at_most = out(reg) at_most,
            out("xmm16") _,
            out("k0") _, out("k1") _, out("k2") _, out("k3") _,
            options(readonly, nostack),
        );
    }
    (below, at_most)
}

#[inline(always)]
pub fn matching(line: &Line, word: u64, mask: u64) -> u32 {
    let found: u32;
    // SAFETY: as above.
    unsafe {
        asm!(
            "vpbroadcastq zmm16, {word}",
            "vpbroadcastq zmm17, {mask}",
            "vpxorq zmm16, zmm16, zmmword ptr [{line}]",
            "vptestnmq k1, zmm16, zmm17",
            "kmovw {found:e}, k1",
            word = in(reg) word,
            mask = in(reg) mask,
            line = in(reg) line,
            found = lateout(reg) found,
            out("xmm16") _,
            out("xmm17") _,
            out("k1") _,
            options(readonly, nostack, preserves_flags),
        );
    }
    found
}

#[inline(always)]
pub fn equal(line: &Line, byte: u8) -> u64 {
    let mask: u64;
    // SAFETY: as above; reached only with AVX-512 BW detected.
    unsafe {
        asm!(
            "vpbroadcastb zmm16, {byte:e}",
            "vpcmpeqb k1, zmm16, zmmword ptr [{line}]",
            "kmovq {mask}, k1",
            byte = in(reg) u32::from(byte),
            line = in(reg) line,
            mask = lateout(reg) mask,
            out("xmm16") _,
            out("k1") _,
            options(readonly, nostack, preserves_flags),
        );
    }
    mask
}

/// Returns, for each of the first `count` numbers, how many of these are smaller. Compares sixteen
/// numbers at a time.
#[target_feature(enable = "avx512f")]
pub fn ranks(numbers: &[i32; 64], count: usize) -> [i32; 64] {
    use std::arch::x86_64::{
        _mm512_cmplt_epi32_mask, _mm512_loadu_epi32, _mm512_mask_add_epi32, _mm512_set1_epi32,
        _mm512_setzero_si512, _mm512_storeu_epi32,
    };
    let mut ranks = [0; 64];
    let start = numbers.as_ptr();
    // SAFETY: reads four times sixteen numbers.
    let own: [_; 4] =
        std::array::from_fn(|part| unsafe { _mm512_loadu_epi32(start.add(part * 16)) });
    let one = _mm512_set1_epi32(1);
    let mut sums = [_mm512_setzero_si512(); 4];
    for other in &numbers[..count] {
        let other = _mm512_set1_epi32(*other);
        for (sum, own) in sums.iter_mut().zip(&own) {
            let below = _mm512_cmplt_epi32_mask(other, *own);
            *sum = _mm512_mask_add_epi32(*sum, below, *sum, one);
        }
    }
    for (part, sum) in ranks.chunks_exact_mut(16).zip(sums) {
        // SAFETY: writes sixteen numbers.
        unsafe { _mm512_storeu_epi32(part.as_mut_ptr(), sum) };
    }
    ranks
}
