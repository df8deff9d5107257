//! Tests of the overflow bits of a leaf.

use ordna_base::simd::InstructionSet;
use ordna_base::sync::atomic::Ordering;

use super::{BUCKETS, FOREVER, LANES, Leaf, LeafEntry, LeafMut, OVERFLOW_BITS, Probe, SLOTS};

type Integers = Leaf<u64, u64>;

/// Number of entries at the usual fill of a leaf, 79 %.
const USUAL: usize = SLOTS * 79 / 100;
/// Number of different keys in these tests.
const KEYS: u64 = 100_000;

/// Returns the next random number (Steele and others 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ (mixed >> 31)
}

/// Returns how many buckets a search for an absent key examines.
fn looked_at(leaf: Integers, probe: &Probe<'_, u64>) -> usize {
    let used = leaf.header().used.load(Ordering::Relaxed);
    let mut bucket = probe.bucket;
    for looked in 1..BUCKETS {
        if used >> (SLOTS + bucket) & 1 == 0 {
            return looked;
        }
        bucket = (bucket + 1) % BUCKETS;
    }
    BUCKETS
}

/// Returns how many buckets a search for an absent key examines on average.
fn average(leaf: Integers) -> f64 {
    let looks = (KEYS..KEYS + 700).map(|key| looked_at(leaf, &Probe::new(&key)));
    looks.sum::<usize>() as f64 / 700.0
}

/// Inserts random keys up to the usual fill.
fn grow(leaf: &LeafMut<'_, u64, u64>, keys: &mut Vec<u64>, state: &mut u64) {
    while keys.len() < USUAL {
        let key = next(state) % KEYS;
        if !keys.contains(&key) {
            insert(leaf, key);
            keys.push(key);
        }
    }
}

fn insert(leaf: &LeafMut<'_, u64, u64>, key: u64) {
    let entry = LeafEntry { key, word: key, deadline: FOREVER };
    assert!(leaf.put(&Probe::new(&key), entry), "the leaf has room");
}

#[test]
fn misses_look_at_few_buckets_after_churn() {
    let (pool, simd) = (Integers::pool(), InstructionSet::widest());
    let (mut fresh, mut churned) = (0.0, 0.0);
    let state = &mut 1;
    for _ in 0..20 {
        let leaf = Integers::create(None, &pool);
        let mut keys = Vec::new();
        grow(&leaf, &mut keys, state);
        fresh += average(leaf.leaf());
        for _ in 0..2000 {
            let at = next(state) as usize % keys.len();
            let slot = leaf.find(&Probe::new(&keys[at]), simd).expect("the key is there");
            leaf.clear(slot);
            keys.swap_remove(at);
            grow(&leaf, &mut keys, state);
            assert!(keys.iter().all(|key| leaf.find(&Probe::new(key), simd).is_some()));
        }
        churned += average(leaf.leaf());
        #[expect(unsafe_code, reason = "the test made the leaf")]
        // SAFETY: no other thread knows the leaf.
        unsafe {
            leaf.leaf().free()
        };
    }
    let (fresh, churned) = (fresh / 20.0, churned / 20.0);
    println!("a miss looks at {fresh:.2} buckets of a new leaf, at {churned:.2} after churn");
    assert!(churned < fresh + 0.8, "{churned:.2} buckets after churn, {fresh:.2} of a new leaf");
}

#[test]
fn an_empty_leaf_has_no_overflow() {
    let (pool, simd) = (Integers::pool(), InstructionSet::widest());
    let leaf = Integers::create(None, &pool);
    let keys: Vec<u64> = (0..SLOTS as u64).collect();
    keys.iter().for_each(|key| insert(&leaf, *key));
    let bits = || leaf.header().used.load(Ordering::Relaxed) & OVERFLOW_BITS;
    assert_ne!(bits(), 0, "full buckets were passed");
    assert_eq!(leaf.count(), BUCKETS * LANES);
    for key in &keys {
        let slot = leaf.find(&Probe::new(key), simd).expect("the key is there");
        leaf.clear(slot);
    }
    assert_eq!((leaf.count(), bits()), (0, 0));
    #[expect(unsafe_code, reason = "the test made the leaf")]
    // SAFETY: no other thread knows the leaf.
    unsafe {
        leaf.leaf().free()
    };
}
