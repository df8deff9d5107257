//! Memory that comes back: leaves that removals left sparse merge, and their slabs go.

use std::time::{Duration, Instant};

use ordna::Store;
use ordna_base::OrderedIndex;
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
