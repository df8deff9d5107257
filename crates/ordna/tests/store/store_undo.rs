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

/// Under a snapshot that lives, a hot key keeps the records of the live snapshots only.
#[test]
fn a_hot_key_under_an_old_snapshot_keeps_few_records() {
    for slots in [4, 56] {
        let store = store(slots, 4);
        (0..200).for_each(|key| _ = store.insert(&key, &0).unwrap());
        let old = store.snapshot();
        for round in 1..=20_000 {
            let young = store.snapshot();
            store.insert(&7, &round).unwrap();
            assert_eq!(young.get(&7), Some(round - 1));
        }
        let statistics = store.statistics();
        assert!(statistics.dead < 100, "{} records of one key", statistics.dead);
        assert_eq!((old.get(&7), store.get(&7)), (Some(0), Some(20_000)));
    }
}

/// The limit counts the chunks that undo records stand in.
#[test]
fn undo_records_count_with_their_chunks() {
    let store = store(56, 64);
    (0..1000).for_each(|key| _ = store.insert(&key, &key).unwrap());
    let before = store.statistics().bytes;
    let old = store.snapshot();
    store.insert(&1, &2).unwrap();
    let undo = |store: &Store<u64, u64>| {
        let parts = store.memory_usage().parts;
        parts.iter().find(|(name, _)| *name == "undo records").map_or(0, |(_, bytes)| *bytes)
    };
    assert!(undo(&store) >= 16 << 10);
    assert_eq!(store.statistics().bytes, before + undo(&store));
    drop(old);
    store.collect_garbage();
    assert_eq!((store.statistics().bytes, undo(&store)), (before, 0));
}
