//! Undo records of many removals under one snapshot.

use std::time::{Duration, Instant};

use ordna::{Options, OrderedIndex, Store};

fn store(slots: usize, fanout: usize) -> Store<u64, u64> {
    Store::with_options(Options::new().collectors(0).sizes(slots, fanout))
}

/// Leaves of one large removal under a snapshot do not all become one leaf.
#[test]
fn a_removal_of_everything_under_a_snapshot_takes_linear_time() {
    const KEYS: u64 = 200_000;
    let store = store(56, 64);
    for key in 0..KEYS {
        store.insert(&key, &key).unwrap();
    }
    let old = store.snapshot();
    let begin = Instant::now();
    for key in 0..KEYS {
        store.remove(&key).unwrap();
    }
    for key in (0..KEYS).step_by(97) {
        assert_eq!(old.get(&key), Some(key));
    }
    assert_eq!(old.iter().count() as u64, KEYS);
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    drop(old);
    store.collect_garbage();
    let statistics = store.statistics();
    assert_eq!((statistics.dead, statistics.bytes), (0, 0));
}
