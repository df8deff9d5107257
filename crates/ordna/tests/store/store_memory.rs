//! Memory that comes back: leaves that removals left sparse merge, and their slabs go.

use std::time::{Duration, Instant};

#[cfg(debug_assertions)]
use ordna::Options;
use ordna::Store;
use ordna_base::OrderedIndex;
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::held;
use ordna_testkit::random::Random;

/// Nine of ten keys go, at random places: what stays takes at most twice what a store of the rest
/// takes.
#[test]
fn random_removals_give_memory_back() {
    const KEYS: u64 = 1_500_000;
    let mut random = Random::new(7);
    let mut keys: Vec<u64> = (0..KEYS).map(|_| random.below(u64::MAX)).collect();
    keys.sort_unstable();
    keys.dedup();
    random.shuffle(&mut keys);
    let (gone, rest) = keys.split_at(keys.len() / 10 * 9);
    let filled = |parts: &[&[u64]]| {
        let store: Store<u64, u64> = Store::new();
        for key in parts.iter().copied().flatten() {
            store.insert(key, key).unwrap();
        }
        store
    };
    let store = filled(&[gone, rest]);
    let full = store.memory_usage().total();
    for key in gone {
        assert_eq!(store.remove(key), Some(*key));
    }
    let live = filled(&[rest]).memory_usage().total();
    let started = Instant::now();
    while store.memory_usage().total() > 2 * live {
        let left = store.memory_usage();
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(20), "{full} bytes fell to {left:?}, {live} are live");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(store.validate().unwrap().entries, rest.len());
    assert!(rest.iter().all(|key| store.get(key) == Some(*key)));
}

/// A compaction has merged and moved leaves; before it ends, removals leave others sparse. The next
/// one finds these.
#[cfg(debug_assertions)]
#[test]
fn removals_beside_a_compaction_call_for_the_next_one() {
    const KEYS: u64 = 1_500_000;
    let filled = |keys: &mut dyn Iterator<Item = u64>| {
        let store: Store<u64, u64> = Store::with_options(Options::new().collectors(0));
        keys.for_each(|key| _ = store.insert(&key, &key).unwrap());
        store
    };
    let stays = |key: &u64| key.is_multiple_of(10);
    let store = filled(&mut (0..KEYS));
    let remove =
        |from, to| (from..to).filter(|key| !stays(key)).for_each(|key| _ = store.remove(&key));
    remove(0, KEYS / 2);
    held("tree.compact.moved", || store.collect_garbage()).meanwhile(|| remove(KEYS / 2, KEYS));
    store.collect_garbage();
    let live = filled(&mut (0..KEYS).filter(stays)).memory_usage().total();
    let left = store.memory_usage();
    assert!(left.total() <= 2 * live, "{left:?} for {live} bytes that are live");
    assert_eq!(store.validate().unwrap().entries as u64, KEYS / 10);
}
