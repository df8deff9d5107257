//! Comparisons of words and bytes, one cache line at a time.
//!
//! # Contract
//! A [`Line`] is a cache line of words, and [`Bytes`] one of bytes in words, which other threads
//! may overwrite at any time. A comparison reads each word once, as a whole, in no particular
//! order: in the memory model it is eight relaxed loads. A caller that needs the words of one
//! moment validates a version afterwards ([`crate::sync::VersionLock`]). This is why the vector
//! versions are assembly and not intrinsics: for an intrinsic the compiler may assume that the
//! memory does not change.
//!
//! There is one file for each instruction set, and a scalar version that serves as the
//! specification: the tests compare every instruction set of the machine with it. The set is chosen
//! at run time.

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
mod avx512;
mod cache_line;
#[cfg(all(target_arch = "aarch64", not(any(loom, shuttle))))]
mod neon;
mod scalar;

pub use cache_line::{LANES, Line};

use crate::sync::atomic::Ordering;

/// One cache line of bytes. Byte i is in word i / 8, the lowest byte first.
#[derive(Debug)]
pub struct Bytes(Line);

impl Default for Bytes {
    fn default() -> Self {
        Self(Line::filled(0))
    }
}

impl Bytes {
    /// Number of bytes.
    pub const LEN: usize = 64;

    /// Returns the byte at `at`, with a relaxed load.
    #[inline]
    pub fn get(&self, at: usize) -> u8 {
        (self.0.get(at / 8) >> (at % 8 * 8)) as u8
    }

    /// Sets the byte at `at`, with a relaxed store. Only one thread may write at a time.
    #[inline]
    pub fn set(&self, at: usize, byte: u8) {
        let shift = at % 8 * 8;
        let others = self.0.get(at / 8) & !(0xFF << shift);
        self.0.set(at / 8, others | u64::from(byte) << shift);
    }

    /// Returns all bytes, with relaxed loads.
    #[inline]
    pub fn load(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (lane, eight) in bytes.chunks_exact_mut(8).enumerate() {
            eight.copy_from_slice(&self.0.get(lane).to_le_bytes());
        }
        bytes
    }

    /// Sets all bytes, with release ordering: a reader that loads one of them and then executes a
    /// fence sees this thread's earlier stores. Only one thread may write at a time.
    pub fn store(&self, bytes: &[u8; Self::LEN]) {
        for (word, eight) in self.0.0.iter().zip(bytes.chunks_exact(8)) {
            let eight = eight.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            word.store(eight, Ordering::Release);
        }
    }
}

/// An instruction set that this machine has. Other values cannot be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstructionSet(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Scalar,
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    Avx2,
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    Avx512,
    #[cfg(all(target_arch = "aarch64", not(any(loom, shuttle))))]
    Neon,
}

impl InstructionSet {
    /// No vector instructions; available on every machine.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// Returns all instruction sets of this machine, the widest first.
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
            {
                sets.push(Self(Kind::Avx512));
            }
            if is_x86_feature_detected!("avx2") {
                sets.push(Self(Kind::Avx2));
            }
        }
        #[cfg(all(target_arch = "aarch64", not(any(loom, shuttle))))]
        if std::arch::is_aarch64_feature_detected!("neon") {
            sets.push(Self(Kind::Neon));
        }
        sets.push(Self::SCALAR);
        sets
    }

    /// Returns the widest instruction set of this machine.
    pub fn widest() -> Self {
        Self::available().first().copied().unwrap_or(Self::SCALAR)
    }

    /// Returns the name for users.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            Kind::Avx2 => "avx2",
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            Kind::Avx512 => "avx512",
            #[cfg(all(target_arch = "aarch64", not(any(loom, shuttle))))]
            Kind::Neon => "neon",
        }
    }

    /// Returns the words that are at most `word`, as unsigned numbers. Bit i stands for lane i.
    #[inline]
    pub fn at_most(self, line: &Line, word: u64) -> u32 {
        match self.0 {
            Kind::Scalar => scalar::at_most(line, word),
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            Kind::Avx2 => avx2::at_most(line, word),
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            Kind::Avx512 => avx512::at_most(line, word),
            #[cfg(all(target_arch = "aarch64", not(any(loom, shuttle))))]
            Kind::Neon => neon::at_most(line, word),
        }
    }

    /// Returns how many words of ascending lines are at most `word`. With wide vectors all lines
    /// are compared, and otherwise one line after the other up to the first larger word.
    #[inline]
    pub fn rank(self, lines: &[Line; LANES], word: u64) -> usize {
        #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
        if self.0 == Kind::Avx512 {
            return avx512::rank(lines, word);
        }
        let mut count = 0;
        for line in lines {
            let below = self.at_most(line, word).trailing_ones() as usize;
            count += below;
            if below < LANES {
                break;
            }
        }
        count
    }

    /// Returns how many of 64 ascending 16-bit numbers are below `number`, and how many are at most
    /// `number`. A word holds four numbers, the first in its lowest bits. NEON uses the scalar
    /// version.
    #[inline]
    pub fn span(self, lines: &[Line; 2], number: u16) -> (usize, usize) {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            Kind::Avx512 => avx512::span(lines, number),
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            Kind::Avx2 => avx2::span(lines, number),
            _ => scalar::span(lines, number),
        }
    }

    /// Returns the words that equal `word` in the bits of `mask`. Bit i stands for lane i.
    /// Instruction sets other than AVX-512 use the scalar version, which takes about as long for
    /// eight words.
    #[inline]
    pub fn matching(self, line: &Line, word: u64, mask: u64) -> u32 {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            Kind::Avx512 => avx512::matching(line, word, mask),
            _ => scalar::matching(line, word, mask),
        }
    }

    /// Returns the bytes that equal `byte`. Bit i stands for byte i.
    #[inline]
    pub fn equal(self, bytes: &Bytes, byte: u8) -> u64 {
        match self.0 {
            Kind::Scalar => scalar::equal(&bytes.0, byte),
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            Kind::Avx2 => avx2::equal(&bytes.0, byte),
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            Kind::Avx512 => avx512::equal(&bytes.0, byte),
            #[cfg(all(target_arch = "aarch64", not(any(loom, shuttle))))]
            Kind::Neon => neon::equal(&bytes.0, byte),
        }
    }

    /// Returns, for each of the first `count` numbers (at most 64), how many of them are smaller.
    /// No other thread may write the numbers.
    #[inline]
    #[allow(unsafe_code, reason = "instructions that this machine has")]
    pub fn ranks(self, numbers: &[i32; Bytes::LEN], count: usize) -> [i32; Bytes::LEN] {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            // SAFETY: a value of this kind exists only on machines with AVX2.
            Kind::Avx2 => unsafe { avx2::ranks(numbers, count) },
            #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
            // SAFETY: a value of this kind exists only on machines with AVX-512.
            Kind::Avx512 => unsafe { avx512::ranks(numbers, count) },
            // The compiler vectorizes its plain loop: NEON is part of AArch64.
            _ => scalar::ranks(numbers, count),
        }
    }

    /// Returns the words that are below `word`, as unsigned numbers. Bit i stands for lane i.
    #[inline]
    pub fn below(self, line: &Line, word: u64) -> u32 {
        match word.checked_sub(1) {
            Some(before) => self.at_most(line, before),
            None => 0,
        }
    }
}

/// Prefetches a cache line. Any address is allowed, because a hint never faults.
#[inline]
#[allow(unsafe_code, reason = "the prefetch instruction, where there is one")]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch faults on no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast::<i8>());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicU64;

    #[test]
    fn every_set_compares_as_the_scalar_twin_does() {
        let edges = [0, 1, 2, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX - 1, u64::MAX];
        let mut state = 7_u64;
        for round in 0..2000 {
            let line = Line::filled(0);
            for lane in 0..LANES {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let edge = edges[(state >> 40) as usize % edges.len()];
                line.set(lane, if round % 2 == 0 { edge } else { state });
            }
            let of_line = (0..LANES).map(|lane| line.get(lane));
            for word in edges.into_iter().chain(of_line.clone()) {
                let at_most = of_line.clone().map(|other| other <= word);
                let below = of_line.clone().map(|other| other < word);
                let mask = |bits: &mut dyn Iterator<Item = bool>| {
                    bits.enumerate().fold(0, |mask, (lane, bit)| mask | u32::from(bit) << lane)
                };
                let (at_most, below) =
                    (mask(&mut at_most.into_iter()), mask(&mut below.into_iter()));
                for set in InstructionSet::available() {
                    assert_eq!(set.at_most(&line, word), at_most, "{set:?} {word} {line:?}");
                    assert_eq!(set.below(&line, word), below, "{set:?} {word} {line:?}");
                    for bits in [u64::MAX, u64::MAX << 48, 1] {
                        let mut equal = of_line.clone().map(|other| (other ^ word) & bits == 0);
                        let expected = mask(&mut equal);
                        assert_eq!(set.matching(&line, word, bits), expected, "{set:?} {word}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_set_ranks_in_eight_lines_as_a_search_does() {
        let mut state = 11_u64;
        for round in 0..500_u32 {
            let mut words: Vec<u64> = (0..64)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    state >> (round % 60)
                })
                .collect();
            words[63] = u64::MAX;
            words.sort_unstable();
            let lines: [Line; LANES] = std::array::from_fn(|line| {
                Line(std::array::from_fn(|lane| AtomicU64::new(words[line * LANES + lane])))
            });
            for word in words.iter().copied().chain([0, 1, u64::MAX - 1, u64::MAX]) {
                let expected = words.partition_point(|other| *other <= word);
                for set in InstructionSet::available() {
                    assert_eq!(set.rank(&lines, word), expected, "{set:?} {word}");
                }
            }
        }
    }

    #[test]
    fn every_set_finds_the_span_that_a_search_finds() {
        let mut state = 5_u64;
        for round in 0..500_u32 {
            let mut numbers: Vec<u16> = (0..64)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 48) as u16 >> (round % 16)
                })
                .collect();
            numbers[63] = u16::MAX;
            numbers.sort_unstable();
            let word = |at: usize| {
                (0..4).fold(0, |word, lane| word | u64::from(numbers[at * 4 + lane]) << (lane * 16))
            };
            let lines: [Line; 2] = std::array::from_fn(|line| {
                Line(std::array::from_fn(|lane| AtomicU64::new(word(line * LANES + lane))))
            });
            for number in numbers.iter().copied().chain([0, 1, u16::MAX - 1, u16::MAX]) {
                let below = numbers.partition_point(|other| *other < number);
                let at_most = numbers.partition_point(|other| *other <= number);
                for set in InstructionSet::available() {
                    assert_eq!(set.span(&lines, number), (below, at_most), "{set:?} {number}");
                }
            }
        }
    }

    #[test]
    fn every_set_ranks_as_a_sort_does() {
        let mut state = 3_u64;
        for round in 0..500 {
            let mut numbers = [i32::MAX; 64];
            let count = round % 65;
            for number in &mut numbers[..count] {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Numbers of all sizes and signs, with few different ones in some rounds.
                *number = (state >> 32) as i32 >> (round % 32);
            }
            let mut sorted = numbers[..count].to_vec();
            sorted.sort_unstable();
            for set in InstructionSet::available() {
                let ranks = set.ranks(&numbers, count);
                for (number, rank) in numbers.iter().zip(ranks).take(count) {
                    let below = sorted.partition_point(|other| other < number);
                    assert_eq!(rank as usize, below, "{set:?} {number} {numbers:?}");
                }
            }
        }
    }

    #[test]
    fn every_set_finds_the_bytes_that_a_plain_loop_finds() {
        let bytes = Bytes::default();
        let mut state = 1_u64;
        for round in 0..2000 {
            let mut plain = [0_u8; Bytes::LEN];
            for byte in &mut plain {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Few different values, for many matches; neighbours of zero, for carries between
                // bytes.
                *byte = [0, 1, 0x7F, 0x80, 0x81, 0xFF][(state >> 40) as usize % 6];
            }
            bytes.store(&plain);
            let at = round % Bytes::LEN;
            bytes.set(at, 0x42);
            plain[at] = 0x42;
            assert_eq!((bytes.load(), bytes.get(at)), (plain, 0x42));
            for byte in [0, 1, 0x7F, 0x80, 0x81, 0xFF, 0x42] {
                let matching = (0..Bytes::LEN).filter(|at| plain[*at] == byte);
                let matching = matching.fold(0_u64, |mask, at| mask | 1 << at);
                for set in InstructionSet::available() {
                    assert_eq!(set.equal(&bytes, byte), matching, "{set:?} {byte} {bytes:?}");
                }
            }
        }
    }
}
