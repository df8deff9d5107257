//! Four words or 32 bytes in one comparison, two comparisons for a line.

#![expect(unsafe_code, reason = "assembly: see the contract of the module above")]

use std::arch::asm;

use super::cache_line::Line;

#[inline(always)]
pub fn at_most(line: &Line, word: u64) -> u32 {
    let (low, high): (u32, u32);
    // The comparison is of signed numbers, so the top bits of both sides are turned over first. Not
    // `pure`: it stays in its place among fences and other reads. SAFETY: reached only with AVX2
    // detected. Reads the 64 bytes of the line; an aligned load of eight bytes within it is whole.
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

/// How many numbers are below each of the first `count`; the plain loop, in vectors of eight.
#[target_feature(enable = "avx2")]
pub fn ranks(numbers: &[i32; 64], count: usize) -> [i32; 64] {
    super::scalar::ranks(numbers, count)
}
