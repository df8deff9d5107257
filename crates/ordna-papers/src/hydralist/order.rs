//! The order of a node's entries, worked out anew.
//!
//! # Contract
//! Nothing here is shared: entries are copies, and keys never change. A reader without the node's
//! lock may have copied entries that were never in the node together. The result is then of no use,
//! but nothing else goes wrong, and the reader's token fails.
//!
//! # How
//! Entries are ranked by 25 bits of their heads, those in which the heads differ first: how many of
//! the others are below each is counted with vectors. That takes no branches; a sort behind it
//! finds work only where these bits are equal.
//!
//! Keys with equal heads are ranked the same way by the eight bytes that stand where these keys
//! first differ. So each record is looked into twice, whatever its place, and not at every
//! comparison; all that will be looked into are asked for at once, so that their misses overlap.
//! Only keys that are still equal in these bytes are compared with each other.

#![expect(unsafe_code, reason = "keys behind words")]

use super::entry::Entry;
use ordna_base::simd::InstructionSet;
use ordna_base::{Key, Value};

/// Most slots that a node can have.
pub const MOST: usize = 64;

/// So few keys are compared with each other at once.
const FEW: usize = 4;

/// The positions of up to [`MOST`] entries in the order of their keys.
///
/// # Safety
/// As for [`Entry::with_key`], of all entries.
pub unsafe fn positions<K: Key + ?Sized, V: Value + ?Sized>(
    entries: &[Entry<K, V>],
    simd: InstructionSet,
) -> [u8; MOST] {
    let mut heads = [0; MOST];
    let mut places = std::array::from_fn(|at| at as u8);
    let count = entries.len().min(MOST);
    for (head, entry) in heads.iter_mut().zip(entries) {
        *head = entry.head();
    }
    rank(&mut heads, &mut places, count, simd);
    if K::HEAD_IS_KEY {
        return places;
    }
    let groups = || heads[..count].chunk_by(|one, other| one == other).map(<[u64]>::len);
    let mut rest = &places[..count];
    for len in groups() {
        let (group, behind) = rest.split_at(len);
        rest = behind;
        if len > 1 {
            group.iter().for_each(|place| entries[usize::from(*place)].prefetch());
        }
    }
    let mut rest = &mut places[..count];
    for len in groups() {
        let (group, behind) = rest.split_at_mut(len);
        rest = behind;
        if len > 1 {
            // SAFETY: handed on from the caller.
            unsafe { sort_alike(entries, group, simd) };
        }
    }
    places
}

/// Puts these places of entries with equal heads into the order of their keys.
///
/// # Safety
/// As for [`positions`].
unsafe fn sort_alike<K: Key + ?Sized, V: Value + ?Sized>(
    entries: &[Entry<K, V>],
    group: &mut [u8],
    simd: InstructionSet,
) {
    // SAFETY: by the caller.
    let key = |place: u8| unsafe { entries[usize::from(place)].key() };
    let compare = |one: &u8, other: &u8| key(*one).cmp(key(*other));
    let len = group.len();
    if len <= FEW {
        group.sort_unstable_by(compare);
        return;
    }
    let first = key(group[0]).radix();
    let mut common = first.as_ref();
    for place in &group[1..] {
        common = &common[..alike(common, key(*place).radix().as_ref())];
    }
    let (mut words, mut places) = ([0; MOST], [0; MOST]);
    for ((word, to), place) in words.iter_mut().zip(&mut places).zip(&*group) {
        (*word, *to) = (word_at(key(*place).radix().as_ref(), common.len()), *place);
    }
    rank(&mut words, &mut places, len, simd);
    group.copy_from_slice(&places[..len]);
    let mut rest = group;
    for equal in words[..len].chunk_by(|one, other| one == other) {
        let (group, behind) = rest.split_at_mut(equal.len());
        rest = behind;
        if equal.len() > 1 {
            group.sort_unstable_by(compare);
        }
    }
}

/// Sorts the first `count` words, each with its place.
fn rank(words: &mut [u64; MOST], places: &mut [u8; MOST], count: usize, simd: InstructionSet) {
    let (mut least, mut most) = (u64::MAX, 0);
    for word in &words[..count] {
        (least, most) = (least.min(*word), most.max(*word));
    }
    let shift = (u64::BITS - most.saturating_sub(least).leading_zeros()).saturating_sub(25);
    let mut numbers = [i32::MAX; MOST];
    for (at, (number, word)) in numbers.iter_mut().zip(&words[..count]).enumerate() {
        // The position behind the bits makes all numbers different.
        *number = ((word - least) >> shift << 6) as i32 | at as i32;
    }
    let ranks = simd.ranks(&numbers, count);
    let from = (*words, *places);
    for ((rank, word), place) in ranks.iter().zip(&from.0).zip(&from.1).take(count) {
        // Below `MOST` anyway; so it is seen to be in bounds.
        let rank = *rank as usize % MOST;
        (words[rank], places[rank]) = (*word, *place);
    }
    if !words[..count].is_sorted() {
        let mut pairs: [(u64, u8); MOST] = std::array::from_fn(|at| (words[at], places[at]));
        pairs[..count].sort_unstable();
        for (at, pair) in pairs[..count].iter().enumerate() {
            (words[at], places[at]) = *pair;
        }
    }
}

/// How many bytes are the same from the start.
fn alike(one: &[u8], other: &[u8]) -> usize {
    let eights = one.chunks_exact(8).zip(other.chunks_exact(8));
    let equal = 8 * eights.take_while(|(one, other)| one == other).count();
    let rest = one[equal..].iter().zip(&other[equal..]);
    equal + rest.take_while(|(one, other)| one == other).count()
}

/// Eight bytes from `at` on, the first one highest, with zeroes behind the end.
fn word_at(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).unwrap_or_default();
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(word)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn check(keys: &[Vec<u8>]) {
        let entries: Vec<Entry<[u8], u64>> =
            keys.iter().map(|key| Entry::new(key.as_slice(), &7)).collect();
        let mut expected: Vec<&Vec<u8>> = keys.iter().collect();
        expected.sort();
        for simd in InstructionSet::available() {
            // SAFETY: alive until the end.
            let places = unsafe { positions(&entries, simd) };
            let found: Vec<&Vec<u8>> =
                places[..keys.len()].iter().map(|place| &keys[usize::from(*place)]).collect();
            assert_eq!(found, expected, "{simd:?}");
        }
        // SAFETY: no thread uses them any more.
        entries.into_iter().for_each(|entry| unsafe { entry.free() });
    }

    /// Keys that differ early or late, in few bytes or many, are prefixes of each other, or end in
    /// zeroes.
    #[test]
    fn byte_strings_come_in_order() {
        let mut state = 5_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..if cfg!(miri) { 20 } else { 3000 } {
            let count = random(65) as usize;
            let letters = [1, 2, 256][round % 3];
            let common = [0, 3, 7, 8, 9, 16, 30][random(7) as usize];
            let heads = 1 + random(5);
            let mut keys: Vec<Vec<u8>> = Vec::new();
            for _ in 0..count {
                let mut key = vec![random(heads) as u8; common];
                let len = random(if letters == 1 { 70 } else { 24 });
                key.extend((0..len).map(|_| random(letters) as u8));
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            check(&keys);
        }
    }

    #[test]
    fn numbers_come_in_order() {
        for round in 0..64_u32 {
            let number = |at: u64| at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> round;
            let mut keys: Vec<u64> = (0..u64::from(round) + 1).map(number).collect();
            // All but one equal in the bits that are ranked.
            keys.push(u64::MAX);
            keys.sort_unstable();
            keys.dedup();
            keys.truncate(MOST);
            keys.reverse();
            let entries: Vec<Entry<u64, u64>> =
                keys.iter().map(|key| Entry::new(key, key)).collect();
            for simd in InstructionSet::available() {
                // SAFETY: there is nothing behind these entries.
                let places = unsafe { positions(&entries, simd) };
                let found: Vec<u8> = places[..keys.len()].to_vec();
                let expected: Vec<u8> = (0..keys.len() as u8).rev().collect();
                assert_eq!(found, expected, "{simd:?}");
            }
        }
    }

    #[test]
    fn bytes_alike() {
        let one = b"abcdefghijklmnopqrst";
        for at in 0..one.len() {
            let mut other = *one;
            other[at] = b'!';
            assert_eq!(alike(one, &other), at);
            assert_eq!(alike(one, &one[..at]), at);
            assert_eq!(alike(&one[..at], one), at);
        }
        assert_eq!(alike(one, one), one.len());
        assert_eq!(word_at(b"abc", 1), 0x6263_0000_0000_0000);
        assert_eq!(word_at(b"abc", 3), 0);
        assert_eq!(word_at(b"abcdefghi", 1), u64::from_be_bytes(*b"bcdefghi"));
    }
}
