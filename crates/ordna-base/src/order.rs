//! Computes the sorted order of a leaf's keys from a copy.
//!
//! # Contract
//! Nothing here is shared. A reader without the leaf's lock may pass words that were never in a
//! leaf together. The order is then useless, but the reader's version check fails.
//!
//! # Method
//! Keys are ranked by 25 bits of their heads, beginning with the first bit in which the heads
//! differ: vector instructions count how many heads are below each, without branches. Equal ranks
//! are sorted by comparison.
//!
//! Byte strings with equal heads are ranked again by the eight bytes at their first difference. So
//! each string is read twice and not at every comparison. All of these strings are prefetched
//! first, so that their cache misses overlap.

use crate::key::{common_prefix, head_at};
use crate::simd::{Bytes, InstructionSet};

/// Maximum number of keys: the positions in a leaf fill one vector of bytes.
pub const MOST: usize = Bytes::LEN;
/// Number of equal heads up to which they are sorted by comparison immediately, because ranking
/// costs more.
const FEW: usize = 4;

/// Returns the positions of integers in ascending order.
#[inline]
pub fn of_integers(keys: &[u64], simd: InstructionSet) -> [u8; MOST] {
    let (mut words, mut places) = ([0; MOST], identity());
    let count = keys.len().min(MOST);
    words[..count].copy_from_slice(&keys[..count]);
    rank(&mut words, &mut places, count, simd);
    places
}

/// Returns the positions of byte strings in ascending order. `head` returns the head of the string
/// at a position, or the head after a prefix that all strings share. `key` returns the whole
/// string.
pub fn of_strings<'a>(
    count: usize,
    head: impl Fn(u8) -> u64,
    prefetch: impl Fn(u8),
    key: impl Fn(u8) -> &'a [u8],
    simd: InstructionSet,
) -> [u8; MOST] {
    let (mut heads, mut places) = ([0; MOST], identity());
    let count = count.min(MOST);
    for (word, place) in heads.iter_mut().zip(places).take(count) {
        *word = head(place);
    }
    rank(&mut heads, &mut places, count, simd);
    let (heads, ranked) = (&heads[..count], &mut places[..count]);
    for_equal(heads, ranked, |group| group.iter().for_each(|place| prefetch(*place)));
    for_equal(heads, ranked, |group| sort_alike(group, &key, simd));
    places
}

/// Calls `each` with the positions of each group of equal words. The words are sorted.
#[inline]
fn for_equal(words: &[u64], places: &mut [u8], mut each: impl FnMut(&mut [u8])) {
    let mut rest = places;
    for equal in words.chunk_by(|one, other| one == other) {
        let (group, behind) = rest.split_at_mut(equal.len());
        rest = behind;
        if group.len() > 1 {
            each(group);
        }
    }
}

/// Sorts the positions of keys with equal heads.
fn sort_alike<'a>(group: &mut [u8], key: &impl Fn(u8) -> &'a [u8], simd: InstructionSet) {
    let compare = |one: &u8, other: &u8| key(*one).cmp(key(*other));
    if group.len() <= FEW {
        group.sort_unstable_by(compare);
        return;
    }
    let mut shared = key(group[0]);
    for place in &group[1..] {
        shared = &shared[..common_prefix(shared, key(*place))];
    }
    let (mut words, mut places) = ([0; MOST], [0; MOST]);
    for ((word, to), place) in words.iter_mut().zip(&mut places).zip(&*group) {
        (*word, *to) = (head_at(key(*place), shared.len()), *place);
    }
    let len = group.len();
    rank(&mut words, &mut places, len, simd);
    group.copy_from_slice(&places[..len]);
    for_equal(&words[..len], group, |equal| equal.sort_unstable_by(compare));
}

/// Sorts the first `count` words with their positions.
#[inline]
fn rank(words: &mut [u64; MOST], places: &mut [u8; MOST], count: usize, simd: InstructionSet) {
    let (mut least, mut most) = (u64::MAX, 0);
    for word in &words[..count] {
        (least, most) = (least.min(*word), most.max(*word));
    }
    let shift = (u64::BITS - most.saturating_sub(least).leading_zeros()).saturating_sub(25);
    let mut numbers = [i32::MAX; MOST];
    for (at, (number, word)) in numbers.iter_mut().zip(&words[..count]).enumerate() {
        // The position in the low bits makes all numbers different.
        *number = ((word - least) >> shift << 6) as i32 | at as i32;
    }
    let ranks = simd.ranks(&numbers, count);
    let from = (*words, *places);
    for ((rank, word), place) in ranks.iter().zip(&from.0).zip(&from.1).take(count) {
        // Always below `MOST`; the remainder avoids a bounds check.
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

/// Returns the positions of keys that are already sorted.
pub fn identity() -> [u8; MOST] {
    const IN_ORDER: [u8; MOST] = {
        let (mut places, mut at) = ([0; MOST], 0);
        while at < MOST {
            places[at] = at as u8;
            at += 1;
        }
        places
    };
    IN_ORDER
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Keys that differ early or late, in few bytes or many, that are prefixes of each other, or
    /// that end in zeroes.
    #[test]
    fn byte_strings_come_in_order() {
        let mut state = 5_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..3000 {
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
            let key = |at: u8| keys[usize::from(at)].as_slice();
            let mut expected: Vec<u8> = (0..keys.len() as u8).collect();
            expected.sort_by_key(|at| key(*at));
            for simd in InstructionSet::available() {
                let (first, others) = expected.split_first().unwrap_or((&0, &[]));
                let shares = others.iter().map(|at| common_prefix(key(*first), key(*at))).min();
                for shared in [0, shares.unwrap_or(0)] {
                    let head = |at| head_at(key(at), shared);
                    let places = of_strings(keys.len(), head, |_| (), key, simd);
                    assert_eq!(places[..keys.len()], expected, "{simd:?}, {shared}");
                }
            }
        }
    }

    #[test]
    fn numbers_come_in_order() {
        for round in 0..64_u32 {
            let number = |at: u64| at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> round;
            let mut keys: Vec<u64> = (0..u64::from(round) + 1).map(number).collect();
            // All keys but one are equal in the bits that are ranked.
            keys.push(u64::MAX);
            keys.sort_unstable();
            keys.dedup();
            keys.truncate(MOST);
            keys.reverse();
            let expected: Vec<u8> = (0..keys.len() as u8).rev().collect();
            for simd in InstructionSet::available() {
                assert_eq!(of_integers(&keys, simd)[..keys.len()], expected, "{simd:?}");
            }
        }
    }
}
