//! Comparisons of four words, or 32 bytes, in one AVX2 instruction; two for each line.

#![expect(unsafe_code, reason = "assembly: see the contract of the module above")]

use std::arch::asm;

use super::cache_line::Line;

#[inline(always)]
pub fn at_most(line: &Line, word: u64) -> u32 {
    let (low, high): (u32, u32);
    // The comparison is signed, so the top bits of both sides are inverted first. Not `pure`: the
    // block must keep its place among fences and other reads. SAFETY: reached only with AVX2
    // detected. Reads the 64 bytes of the line; an aligned load of eight bytes within it is atomic.
    unsafe {
        asm!(
            "vmovq xmm0, {word}",
            "vpbroadcastq ymm0, xmm0",
            "vpcmpeqd ymm1, ymm1, ymm1",
            "vpsllq ymm1, ymm1, 63",
            "vpxor ymm0, ymm0, ymm1",
            "vpxor ymm2, ymm1, ymmword ptr [{line}]",
            "vpxor ymm3, ymm1, ymmword ptr [{line} + 32]",
            "vpcmpgtq ymm2, ymm2, ymm0",
            "vpcmpgtq ymm3, ymm3, ymm0",
            "vmovmskpd {low:e}, ymm2",
            "vmovmskpd {high:e}, ymm3",
            "vzeroupper",
            word = in(reg) word,
            line = in(reg) line,
            low = out(reg) low,
            high = out(reg) high,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(readonly, nostack, preserves_flags),
        );
    }
    !(low | high << 4) & 0xFF
}

/// Returns how many of 64 numbers are below `number`, and how many are at most `number`.
#[inline(always)]
pub fn span(lines: &[Line; 2], number: u16) -> (usize, usize) {
    let (equal, at_most): (u64, u64);
    // There is no unsigned comparison: a number is at most `number` if it is the smaller of the
    // two. Packing changes the order of the results, but only their number matters. SAFETY: as
    // above, and reads two lines. Machines with AVX2 have POPCNT.
    unsafe {
        asm!(
            "vmovd xmm0, {number:e}",
            "vpbroadcastw ymm0, xmm0",
            "vmovdqa ymm1, ymmword ptr [{lines}]",
            "vmovdqa ymm2, ymmword ptr [{lines} + 32]",
            "vmovdqa ymm3, ymmword ptr [{lines} + 64]",
            "vmovdqa ymm4, ymmword ptr [{lines} + 96]",
            "vpcmpeqw ymm5, ymm1, ymm0",
            "vpcmpeqw ymm6, ymm2, ymm0",
            "vpcmpeqw ymm7, ymm3, ymm0",
            "vpcmpeqw ymm8, ymm4, ymm0",
            "vpacksswb ymm5, ymm5, ymm6",
            "vpacksswb ymm7, ymm7, ymm8",
            "vpminuw ymm9, ymm1, ymm0",
            "vpminuw ymm10, ymm2, ymm0",
            "vpminuw ymm11, ymm3, ymm0",
            "vpminuw ymm12, ymm4, ymm0",
            "vpcmpeqw ymm1, ymm1, ymm9",
            "vpcmpeqw ymm2, ymm2, ymm10",
            "vpcmpeqw ymm3, ymm3, ymm11",
            "vpcmpeqw ymm4, ymm4, ymm12",
            "vpacksswb ymm1, ymm1, ymm2",
            "vpacksswb ymm3, ymm3, ymm4",
            "vpmovmskb {equal:e}, ymm5",
            "vpmovmskb {half:e}, ymm7",
            "shl {half}, 32",
            "or {equal}, {half}",
            "vpmovmskb {at_most:e}, ymm1",
            "vpmovmskb {half:e}, ymm3",
            "shl {half}, 32",
            "or {at_most}, {half}",
            "popcnt {equal}, {equal}",
            "popcnt {at_most}, {at_most}",
            "vzeroupper",
            number = in(reg) u32::from(number),
            lines = in(reg) lines,
            equal = out(reg) equal,
            at_most = out(reg) at_most,
            half = out(reg) _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(readonly, nostack),
        );
    }
    // A number is equal only if it is at most `number`: both come from the same loads.
    ((at_most - equal) as usize, at_most as usize)
}

#[inline(always)]
pub fn equal(line: &Line, byte: u8) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: as above.
    unsafe {
        asm!(
            "vmovd xmm0, {byte:e}",
            "vpbroadcastb ymm0, xmm0",
            "vpcmpeqb ymm1, ymm0, ymmword ptr [{line}]",
            "vpcmpeqb ymm0, ymm0, ymmword ptr [{line} + 32]",
            "vpmovmskb {low:e}, ymm1",
            "vpmovmskb {high:e}, ymm0",
            "vzeroupper",
            byte = in(reg) u32::from(byte),
            line = in(reg) line,
            low = out(reg) low,
            high = out(reg) high,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(readonly, nostack, preserves_flags),
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Returns, for each of the first `count` numbers, how many are smaller. The plain loop, in vectors
/// of eight.
#[target_feature(enable = "avx2")]
pub fn ranks(numbers: &[i32; 64], count: usize) -> [i32; 64] {
    super::scalar::ranks(numbers, count)
}
