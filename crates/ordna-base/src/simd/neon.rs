//! Comparisons of two words, or 16 bytes, in one NEON instruction; four for each line.
//!
//! Compiled and assembled for AArch64, but not yet run on such a machine. The tests of the parent
//! module compare it with the scalar version there.

#![expect(unsafe_code, reason = "assembly: see the contract of the module above")]

use std::arch::asm;

use super::cache_line::Line;

/// Bit i is set in byte i.
const WEIGHTS: u64 = 0x8040_2010_0804_0201;

#[inline(always)]
pub fn at_most(line: &Line, word: u64) -> u32 {
    let mask: u32;
    // SAFETY: reached only with NEON detected. Reads the 64 bytes of the line; each aligned half of
    // a vector is loaded atomically. Not `pure`: the block must keep its place among fences and
    // other reads.
    unsafe {
        asm!(
            "dup v0.2d, {word}",
            "ldp q1, q2, [{line}]",
            "ldp q3, q4, [{line}, #32]",
            "cmhs v1.2d, v0.2d, v1.2d",
            "cmhs v2.2d, v0.2d, v2.2d",
            "cmhs v3.2d, v0.2d, v3.2d",
            "cmhs v4.2d, v0.2d, v4.2d",
            // Lanes of ones and zeroes, narrowed to bytes.
            "xtn v1.2s, v1.2d",
            "xtn2 v1.4s, v2.2d",
            "xtn v3.2s, v3.2d",
            "xtn2 v3.4s, v4.2d",
            "xtn v1.4h, v1.4s",
            "xtn2 v1.8h, v3.4s",
            "xtn v1.8b, v1.8h",
            "fmov d5, {weights}",
            "and v1.8b, v1.8b, v5.8b",
            "addv b1, v1.8b",
            "umov {mask:w}, v1.b[0]",
            word = in(reg) word,
            line = in(reg) line,
            weights = in(reg) WEIGHTS,
            mask = lateout(reg) mask,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
            options(readonly, nostack, preserves_flags),
        );
    }
    mask
}

#[inline(always)]
pub fn equal(line: &Line, byte: u8) -> u64 {
    let mask: u64;
    // SAFETY: as above.
    unsafe {
        asm!(
            "dup v0.16b, {byte:w}",
            "dup v5.2d, {weights}",
            "ldp q1, q2, [{line}]",
            "ldp q3, q4, [{line}, #32]",
            "cmeq v1.16b, v1.16b, v0.16b",
            "cmeq v2.16b, v2.16b, v0.16b",
            "cmeq v3.16b, v3.16b, v0.16b",
            "cmeq v4.16b, v4.16b, v0.16b",
            "and v1.16b, v1.16b, v5.16b",
            "and v2.16b, v2.16b, v5.16b",
            "and v3.16b, v3.16b, v5.16b",
            "and v4.16b, v4.16b, v5.16b",
            // Pairs of neighbours are added three times, so that eight bytes become one.
            "addp v1.16b, v1.16b, v2.16b",
            "addp v3.16b, v3.16b, v4.16b",
            "addp v1.16b, v1.16b, v3.16b",
            "addp v1.16b, v1.16b, v1.16b",
            "umov {mask}, v1.d[0]",
            byte = in(reg) u32::from(byte),
            weights = in(reg) WEIGHTS,
            line = in(reg) line,
            mask = lateout(reg) mask,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
            options(readonly, nostack, preserves_flags),
        );
    }
    mask
}
