//! Sorts a batch by key, with queries of the same key in the order of submission.
//!
//! There are two counting passes over the sixteen bits after the common prefix of all heads, and
//! then each run of equal digits is sorted by comparison. This takes O(n) for keys that differ in
//! these bits, and O(n log n) for others.

use ordna_base::Key;

/// The place of a query in a sorted batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Head of the key.
    pub head: u64,
    /// Position of the query in the batch.
    pub at: usize,
}

const DIGIT: u32 = 8;
/// Number of queries below which the passes cost more than they save.
const SMALL: usize = 128;

/// Returns the queries of a batch, sorted. `key` returns the key of a position.
pub fn sorted<'k, K: Key + ?Sized>(count: usize, key: impl Fn(usize) -> &'k K) -> Vec<Item> {
    let items = (0..count).map(|at| Item { head: key(at).head(), at });
    let mut items: Vec<Item> = items.collect();
    let by_key = |one: &Item, other: &Item| {
        let heads = one.head.cmp(&other.head);
        let keys = || {
            if K::HEAD_IS_KEY { heads } else { key(one.at).cmp(key(other.at)) }
        };
        heads.then_with(keys).then(one.at.cmp(&other.at))
    };
    if items.len() < SMALL {
        items.sort_unstable_by(by_key);
        return items;
    }
    let (low, high) = items
        .iter()
        .fold((u64::MAX, 0), |(low, high), item| (low.min(item.head), high.max(item.head)));
    // The highest bit in which two heads differ, and the fifteen bits below it.
    let top = 64 - (low ^ high).leading_zeros();
    let shift = top.saturating_sub(2 * DIGIT);
    let mut other = vec![Item { head: 0, at: 0 }; items.len()];
    for pass in [shift, shift + DIGIT] {
        let digit = |item: &Item| (item.head >> pass.min(63)) as usize & ((1 << DIGIT) - 1);
        let mut ends = [0_usize; 1 << DIGIT];
        items.iter().for_each(|item| ends[digit(item)] += 1);
        let mut start = 0;
        for end in &mut ends {
            start += *end;
            *end = start - *end;
        }
        for item in &items {
            let to = &mut ends[digit(item)];
            other[*to] = *item;
            *to += 1;
        }
        std::mem::swap(&mut items, &mut other);
    }
    let prefix = |item: &Item| item.head >> shift.min(63);
    for run in items.chunk_by_mut(|one, other| prefix(one) == prefix(other)) {
        if run.len() > 1 {
            run.sort_unstable_by(by_key);
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<K: Key + ?Sized>(keys: &[&K]) {
        let mut expected: Vec<usize> = (0..keys.len()).collect();
        expected.sort_by_key(|at| keys[*at]);
        let found: Vec<usize> =
            sorted(keys.len(), |at| keys[at]).iter().map(|item| item.at).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn sorts_by_key_then_by_submission() {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state
        };
        for (count, mask) in [
            (0, 0),
            (1, 1),
            (100, 7),
            (127, !0),
            (3000, !0),
            (3000, 0xFF),
            (3000, 0xFFFF_F000),
            (3000, 0),
            (5000, !0 << 50),
        ] {
            let keys: Vec<u64> = (0..count).map(|_| next() & mask).collect();
            check(&keys.iter().collect::<Vec<_>>());
            let shifted: Vec<u64> = keys.iter().map(|key| key | 0xABCD << 48).collect();
            check(&shifted.iter().collect::<Vec<_>>());
            let texts: Vec<Vec<u8>> =
                keys.iter().map(|key| format!("equal head {key}").into_bytes()).collect();
            check(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}
