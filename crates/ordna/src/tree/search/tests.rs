//! Compares the layer with a sorted map, with separators that share long prefixes.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::num::NonZero;

use ordna_base::Key;
use ordna_base::reclaim::Collector;

use super::{FANOUT, GROUP, LeafAddress, SearchLayer};

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

/// The address of a leaf that does not exist.
fn leaf(number: usize) -> LeafAddress {
    LeafAddress::new(NonZero::new(number).expect("numbers start at 1"))
}

/// Inserts, lowers and removes low fences at random. Then every search must agree with the map.
fn agrees<K: Key + ?Sized>(fanout: usize, make: impl Fn(&mut Random) -> K::Owned) {
    let (collector, mut random) = (Collector::new(), Random(9));
    let search = SearchLayer::<K>::new(leaf(1), fanout);
    let mut low_fences: BTreeMap<K::Owned, usize> = BTreeMap::new();
    let lowest = K::Owned::default();
    for round in 2..6000 {
        let guard = collector.pin();
        let key = make(&mut random);
        if key == lowest {
            continue;
        }
        let at = low_fences
            .range::<K::Owned, _>(key.clone()..)
            .next()
            .map(|(key, address)| (key.clone(), *address));
        match at {
            Some((old, _)) if old == key => {
                low_fences.remove::<K::Owned>(&key);
                search.remove(key.borrow(), &guard);
            }
            Some((old, address)) if random.below(4) == 0 => {
                low_fences.remove::<K::Owned>(&old);
                search.lower(old.borrow(), key.borrow(), &guard);
                low_fences.insert(key, address);
            }
            Some((old, _)) if random.below(4) == 0 => {
                low_fences.remove::<K::Owned>(&old);
                search.remove(old.borrow(), &guard);
            }
            _ => {
                search.insert(key.borrow(), leaf(round));
                low_fences.insert(key, round);
            }
        }
    }
    assert!(low_fences.len() > 500, "{} low_fences are too few to have levels", low_fences.len());
    let mut keys: Vec<K::Owned> = (0..4000).map(|_| make(&mut random)).collect();
    keys.extend(low_fences.keys().cloned());
    let guard = collector.pin();
    for group in keys.chunks(GROUP) {
        let expected: Vec<LeafAddress> = group
            .iter()
            .map(|key| {
                low_fences
                    .range::<K::Owned, _>(..=key.clone())
                    .next_back()
                    .map_or(leaf(1), |(_, number)| leaf(*number))
            })
            .collect();
        let mut addresses = [leaf(1); GROUP];
        let borrowed: Vec<&K> = group.iter().map(Borrow::borrow).collect();
        search.find_many(borrowed.into_iter(), &guard, |at, address| addresses[at] = address);
        assert_eq!(addresses[..group.len()], expected, "{group:?}");
        for (key, address) in group.iter().zip(expected) {
            assert_eq!(search.find(key.borrow(), false, &guard), address, "{key:?}");
            let below = low_fences
                .range::<K::Owned, _>(..key.clone())
                .next_back()
                .map_or(leaf(1), |(_, number)| leaf(*number));
            assert_eq!(search.find(key.borrow(), true, &guard), below, "below {key:?}");
        }
    }
    search.check_invariants(|_, _| {}).unwrap();
}

#[test]
fn byte_strings_that_share_long_runs_lead_to_their_places() {
    for fanout in [4, FANOUT] {
        agrees::<[u8]>(fanout, |random| {
            let mut key = vec![b'p'; [0, 40][random.below(2)]];
            for _ in 0..random.below(6) {
                let part: [&[u8]; 6] =
                    [b"\0", b"b", b"\0\0\0\0\0\0\0\0", b"same path", b"\xFF", b"cccccccccccc"];
                key.extend_from_slice(part[random.below(6)]);
            }
            key
        });
    }
}

#[test]
fn integers_in_clusters_lead_to_their_places() {
    for fanout in [4, FANOUT] {
        agrees::<u64>(fanout, |random| {
            let cluster = [0, 1 << 20, 1 << 40, u64::MAX - 4000][random.below(4)];
            cluster + random.below(4000) as u64
        });
        agrees::<u64>(fanout, |random| (random.below(1 << 31) as u64) << random.below(34));
    }
}

#[test]
fn memory_counts_separators_until_they_are_removed() {
    const KEYS: usize = 1000;
    let collector = Collector::new();
    let search = SearchLayer::<[u8]>::new(leaf(1), 16);
    let key = |number: usize| [vec![7; 500], number.to_be_bytes().to_vec()].concat();
    (1..=KEYS).for_each(|number| search.insert(&key(number), leaf(number + 1)));
    let full = search.memory_usage();
    assert!(full > KEYS * 500, "{full} bytes");
    let guard = collector.pin();
    (1..=KEYS).for_each(|number| search.remove(&key(number), &guard));
    let left = search.memory_usage();
    assert!(left < KEYS * 50, "{left} bytes are left");
}

#[test]
fn memory_counts_nodes_without_separators() {
    const KEYS: u64 = 1000;
    let search = SearchLayer::<u64>::new(leaf(1), 16);
    (1..=KEYS).for_each(|key| search.insert(&key, leaf(key as usize + 1)));
    // The key and the address of each child.
    let bytes = search.memory_usage();
    assert!(bytes > KEYS as usize * 16, "{bytes} bytes");
}

#[test]
fn a_sweep_of_removals_merges_the_nodes_that_it_leaves_sparse() {
    const EACH: u64 = 16;
    let collector = Collector::new();
    let search = SearchLayer::<u64>::new(leaf(1), EACH as usize);
    // If low fences ascend, the lowest nodes are full.
    (1..EACH * EACH).for_each(|low_fence| search.insert(&low_fence, leaf(low_fence as usize + 1)));
    let guard = collector.pin();
    let leaves = |low_fence: &u64| !low_fence.is_multiple_of(EACH);
    (1..EACH * EACH).filter(leaves).for_each(|low_fence| search.remove(&low_fence, &guard));
    let nodes = search.check_invariants(|_, _| {}).unwrap();
    assert!(nodes <= 4, "{nodes} nodes for {EACH} children");
}
