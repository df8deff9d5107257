//! Undo records of many removals under one snapshot.

use std::borrow::Borrow;
use std::time::{Duration, Instant};

use ordna::{Options, OrderedIndex, Snapshot, Store};
use ordna_testkit::kinds::{TestKey, TestValue};

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

/// Overwrites one key in five terms and drops the snapshots of three: the last write prunes.
fn pruned<K: TestKey + ?Sized, V: TestValue + ?Sized>() -> (Store<K, V>, Vec<Snapshot<K, V>>) {
    let store = Store::<K, V>::with_options(Options::new().collectors(0).sizes(4, 4));
    let put = |word| _ = store.insert(K::number(7).borrow(), V::dress(word).borrow()).unwrap();
    put(1);
    let mut live = vec![store.snapshot()];
    for word in 2..=5 {
        put(word);
        live.push(store.snapshot());
    }
    live.drain(1..4);
    put(6);
    (store, live)
}

/// A record goes although a snapshot of the term of its death lives.
#[test]
fn a_prune_keeps_one_record_for_each_snapshot() {
    let (store, live) = pruned::<u64, u64>();
    assert_eq!(store.statistics().dead, 2, "of snapshots of the first and the last term");
    let seen = |at: usize| live[at].get(&u64::number(7));
    assert_eq!((seen(0), seen(1)), (Some(u64::dress(1)), Some(u64::dress(5))));
}

/// What a prune gave back the end of the chunk does not give back once more.
#[test]
fn a_pruned_record_gives_its_bytes_back_once() {
    let (store, live) = pruned::<[u8], [u8]>();
    assert_eq!(store.statistics().dead, 2);
    drop(live);
    store.collect_garbage();
    let fresh = Store::<[u8], [u8]>::with_options(Options::new().collectors(0).sizes(4, 4));
    fresh.insert(&<[u8]>::number(7), &<[u8]>::dress(6)).unwrap();
    let (statistics, usage) = (store.statistics(), store.memory_usage().parts);
    assert_eq!((statistics.dead, statistics.bytes), (0, fresh.statistics().bytes));
    assert_eq!(usage, fresh.memory_usage().parts);
}

/// A leaf of 8 slots merges with a neighbour once two of its entries are left, not before.
#[test]
fn a_leaf_that_is_more_than_a_quarter_full_does_not_merge() {
    let store = store(8, 4);
    (0..16).for_each(|key| _ = store.insert(&key, &key).unwrap());
    let leaves = || store.validate().unwrap().nodes;
    let full = leaves();
    (0..5).chain(8..13).for_each(|key| _ = store.remove(&key));
    assert_eq!((leaves(), store.statistics().items), (full, 6));
    store.remove(&5);
    assert!(leaves() < full);
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
