//! The order of a leaf's keys, computed from copies.
//!
//! # Contract
//! Nothing here is shared. A reader may pass words that never stood in a leaf together; the order is
//! then of no use, and the reader's version check fails.
//!
//! # How
//! Keys are ranked by 25 bits of their heads, the first ones in which the heads differ: vectors count
//! how many heads are below each. Equal ranks are sorted by comparison. Byte strings with equal heads
//! are ranked once more by the eight bytes at their first difference.

use ordna_base::Key;
use ordna_base::simd::{Bytes, InstructionSet};

/// Keys at most.
pub const MOST: usize = Bytes::LEN;
/// Groups of at most this many equal heads are sorted by comparison at once: ranking costs more.
const FEW: usize = 4;

/// Positions of integers in ascending order.
pub fn of_integers(keys: &[u64], simd: InstructionSet) -> [u8; MOST] {
    let (mut words, mut places) = ([0; MOST], identity());
    let count = keys.len().min(MOST);
    words[..count].copy_from_slice(&keys[..count]);
    rank(&mut words, &mut places, count, simd);
    places
}

/// Positions of byte strings in ascending order.
pub fn of_strings<'a>(
    count: usize,
    key: impl Fn(u8) -> &'a [u8],
    simd: InstructionSet,
) -> [u8; MOST] {
    let (mut heads, mut places) = ([0; MOST], identity());
    for (head, place) in heads.iter_mut().zip(places).take(count) {
        *head = key(place).head();
    }
    rank(&mut heads, &mut places, count, simd);
    let mut rest = &mut places[..count];
    for group in heads[..count].chunk_by(|one, other| one == other) {
        let (group, behind) = rest.split_at_mut(group.len());
        rest = behind;
        if group.len() > 1 {
            sort_alike(group, &key, simd);
        }
    }
    places
}

/// Sorts places of keys with equal heads.
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
        let behind = key(*place).get(shared.len()..).unwrap_or_default();
        (*word, *to) = (behind.head(), *place);
    }
    let len = group.len();
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
        // Below `MOST` anyway; the remainder spares the bounds check.
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

fn identity() -> [u8; MOST] {
    std::array::from_fn(|at| at as u8)
}

/// Bytes that two strings share from their start.
pub fn common_prefix(one: &[u8], other: &[u8]) -> usize {
    let eights = one.chunks_exact(8).zip(other.chunks_exact(8));
    let equal = 8 * eights.take_while(|(one, other)| one == other).count();
    let rest = one[equal..].iter().zip(&other[equal..]);
    equal + rest.take_while(|(one, other)| one == other).count()
}
