//! Memory comes back: after random removals, and after a range was dropped.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ordna::{Options, OrderedIndex, Store};

const KEYS: u64 = 1_500_000;

/// Spreads the keys.
fn key(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn filled() -> Store<u64, u64> {
    let store = Store::with_options(Options::new().collectors(0));
    let pairs: Vec<_> = (0..KEYS).map(|n| (key(n), n)).collect();
    assert_eq!(store.insert_many(&pairs), Ok(KEYS as usize));
    store
}

fn held(store: &Store<u64, u64>) -> usize {
    store.memory_usage().total()
}

/// Of ten random keys nine go: at most twice the share of the tenth stays. Readers and writers run
/// meanwhile.
#[test]
fn random_removals_give_memory_back() {
    let store = filled();
    let full = held(&store);
    let gone: Vec<u64> = (0..KEYS).filter(|n| n % 10 != 3).map(key).collect();
    assert_eq!(store.remove_many(&gone), gone.len());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for n in (3..KEYS).step_by(10 * 97) {
                    assert_eq!(store.get(&key(n)), Some(n));
                }
            }
        });
        scope.spawn(|| {
            for n in (3..KEYS).step_by(10).cycle() {
                assert_eq!(store.insert(&key(n), &n), Ok(Some(n)));
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        store.collect_garbage();
        stop.store(true, Ordering::Relaxed);
    });
    store.collect_garbage();
    store.validate().unwrap();
    assert_eq!(store.count(Bound::Unbounded, Bound::Unbounded) as u64, KEYS / 10);
    (3..KEYS).step_by(10).for_each(|n| assert_eq!(store.get(&key(n)), Some(n)));
    let left = held(&store);
    assert!(left * 10 <= full * 2, "{left} of {full} bytes stay: {:?}", store.memory_usage());
}

/// A range without readers goes leaf by leaf.
#[test]
fn a_dropped_range_gives_memory_back() {
    let store = filled();
    let full = held(&store);
    let (low, high) = (u64::MAX / 10, u64::MAX / 10 * 9);
    let stay = (0..KEYS).filter(|n| !(low..high).contains(&key(*n))).count();
    let removed = store.remove_range(Bound::Included(&low), Bound::Excluded(&high));
    assert_eq!(removed, KEYS as usize - stay);
    assert_eq!(store.statistics().items, stay);
    store.collect_garbage();
    store.validate().unwrap();
    let left = held(&store);
    assert!(left * 10 <= full * 3, "{left} of {full} bytes stay: {:?}", store.memory_usage());
    store.remove_range(Bound::Unbounded, Bound::Unbounded);
    assert_eq!((store.statistics().bytes, store.approximate_len()), (0, 0));
}
