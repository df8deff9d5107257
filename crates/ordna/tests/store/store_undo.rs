//! Tests of undo records, most of them of many removals under one snapshot.

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna::{Options, Snapshot, Store};
use ordna_testkit::kinds::{TestKey, TestValue};

fn store(slots: usize, fanout: usize) -> Store<u64, u64> {
    Store::with_options(Options::new().background_collector(false).sizes(slots, fanout))
}

/// After a large removal under a snapshot, the leaves are not all merged into one.
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

/// While an old snapshot exists, a key that is often overwritten has records for the existing
/// snapshots only.
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

/// Overwrites a key in five epochs and drops the snapshots of three of them, so that the last write
/// prunes.
fn pruned<K: TestKey + ?Sized, V: TestValue + ?Sized>() -> (Store<K, V>, Vec<Snapshot<K, V>>) {
    let store = Store::<K, V>::with_options(Options::new().background_collector(false).sizes(4, 4));
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

/// A record is freed even though a snapshot of its end epoch exists.
#[test]
fn a_prune_keeps_one_record_for_each_snapshot() {
    let (store, live) = pruned::<u64, u64>();
    assert_eq!(store.statistics().dead, 2, "of snapshots of the first and the last epoch");
    let seen = |at: usize| live[at].get(&u64::number(7));
    assert_eq!((seen(0), seen(1)), (Some(u64::dress(1)), Some(u64::dress(5))));
}

/// The bytes that a prune gave back are not given back again when the chunk is freed.
#[test]
fn a_pruned_record_gives_its_bytes_back_once() {
    let (store, live) = pruned::<[u8], [u8]>();
    assert_eq!(store.statistics().dead, 2);
    drop(live);
    store.collect_garbage();
    let fresh =
        Store::<[u8], [u8]>::with_options(Options::new().background_collector(false).sizes(4, 4));
    fresh.insert(&<[u8]>::number(7), &<[u8]>::dress(6)).unwrap();
    let (statistics, usage) = (store.statistics(), store.memory_usage().parts);
    assert_eq!((statistics.dead, statistics.bytes), (0, fresh.statistics().bytes));
    assert_eq!(usage, fresh.memory_usage().parts);
}

/// A leaf with 8 slots is merged with a neighbour only when no more than two of its entries are
/// left.
#[test]
fn a_leaf_that_is_more_than_a_quarter_full_does_not_merge() {
    let store = store(8, 4);
    (0..16).for_each(|key| _ = store.insert(&key, &key).unwrap());
    let leaves = || store.check_invariants().unwrap().nodes;
    let full = leaves();
    (0..5).chain(8..13).for_each(|key| _ = store.remove(&key));
    assert_eq!((leaves(), store.statistics().items), (full, 6));
    store.remove(&5).unwrap();
    assert!(leaves() < full);
}

/// Returns the bytes of undo records.
fn undo(store: &Store<u64, u64>) -> usize {
    let parts = store.memory_usage().parts;
    parts.iter().find(|(name, _)| *name == "undo records").map_or(0, |(_, bytes)| *bytes)
}

/// Two full leaves with two slots become three. The new low fence equals the previous one of the
/// right leaf.
#[test]
fn a_new_anchor_may_be_that_of_the_right_neighbour() {
    let store = store(2, 3);
    for key in [10, 20, 30, 40, 15] {
        store.insert(&key, &key).unwrap();
        store.check_invariants().unwrap();
    }
    assert!(store.snapshot().iter().eq([10, 15, 20, 30, 40].map(|key| (key, key))));
    (0..50).for_each(|key| {
        assert_eq!(store.get(&key).is_some(), key % 10 == 0 && key > 0 || key == 15)
    });
}

/// Leaves with few keys or none are merged with neighbours that are full or have a range version.
#[test]
fn range_versions_stay_while_sparse_leaves_merge() {
    let mut state = 11_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..3000 {
        let store = store(56, 64);
        let count = 60 + random(120);
        (0..count).for_each(|key| _ = store.insert(&(key * 37 % count), &key).unwrap());
        let (from, len, kept) = (random(count), 20 + random(60), random(6));
        let range = from..(from + len).min(count);
        range.clone().skip(kept as usize).for_each(|key| _ = store.remove(&key));
        let (expected, old): (Vec<_>, _) = (store.snapshot().iter().collect(), store.snapshot());
        for _ in 0..random(3) {
            let at = random(count);
            (at..(at + 8).min(count))
                .filter(|key| store.get(key).is_some())
                .for_each(|key| _ = store.insert(&key, &7).unwrap());
        }
        range.for_each(|key| _ = store.remove(&key));
        for _ in 0..random(30) {
            let key = random(count);
            match random(3) {
                0 => _ = store.remove(&key),
                _ => _ = store.insert(&key, &8).unwrap(),
            }
        }
        assert!(old.iter().eq(expected.iter().copied()), "round {round}");
        assert!(expected.iter().all(|(key, value)| old.get(key) == Some(*value)), "round {round}");
    }
}

/// A full leaf absorbs an empty one whose keys a snapshot still has. Together these are more keys
/// than a leaf can hold.
#[test]
fn a_leaf_that_had_more_keys_than_it_holds_gets_no_range_version() {
    // The first leaf is split at one of these keys.
    for cut in 4..54 {
        let store = store(56, 64);
        (0..57).for_each(|at| _ = store.insert(&(10 * at), &at).unwrap());
        (cut..2 * cut - 1).for_each(|at| {
            let key = if at < 57 { 10 * at + 5 } else { 10 * at };
            _ = store.insert(&key, &at).unwrap();
        });
        (3..cut).for_each(|at| _ = store.remove(&(10 * at)));
        let old = store.snapshot();
        let expected: Vec<_> = old.iter().collect();
        (0..3).for_each(|at| _ = store.remove(&(10 * at)));
        (cut..57).for_each(|at| _ = store.insert(&(10 * at), &7).unwrap());
        assert!(old.iter().eq(expected.iter().copied()), "cut {cut}");
        assert!(expected.iter().all(|(key, value)| old.get(key) == Some(*value)), "cut {cut}");
    }
}

/// The limit counts whole chunks of undo records.
#[test]
fn undo_records_count_with_their_chunks() {
    let store = store(56, 64);
    (0..1000).for_each(|key| _ = store.insert(&key, &key).unwrap());
    let before = store.statistics().bytes;
    let old = store.snapshot();
    store.insert(&1, &2).unwrap();
    assert!(undo(&store) >= 16 << 10);
    assert_eq!(store.statistics().bytes, before + undo(&store));
    drop(old);
    store.collect_garbage();
    assert_eq!((store.statistics().bytes, undo(&store)), (before, 0));
}

/// Many changes of a leaf under one snapshot take the memory of one range version, and not of a
/// record for each change.
#[test]
fn many_changes_of_a_leaf_under_a_snapshot_take_a_range_version() {
    const KEYS: u64 = 50_000;
    let store = store(56, 64);
    (0..KEYS).for_each(|key| _ = store.insert(&key, &key).unwrap());
    let before = store.statistics().bytes;
    let old = store.snapshot();
    (0..KEYS).for_each(|key| _ = store.insert(&key, &(key + 1)).unwrap());
    let undo = store.statistics().bytes - before;
    assert!(undo < 24 * KEYS as usize, "{undo} bytes for {KEYS} changes");
    let records = store.statistics().dead;
    assert!(records < KEYS as usize / 40, "{records} records of {KEYS} keys");
    assert!(old.iter().eq((0..KEYS).map(|key| (key, key))));
    assert!(store.snapshot().iter().eq((0..KEYS).map(|key| (key, key + 1))));
    drop(old);
    store.collect_garbage();
    assert_eq!(store.statistics().bytes, before);
}

/// When splits divide range versions, the additional memory is counted with the next record.
#[test]
fn the_limit_counts_divided_range_versions() {
    const KEYS: u64 = 20_000;
    let store = store(56, 64);
    (0..KEYS).for_each(|key| _ = store.insert(&(2 * key), &key).unwrap());
    let old = store.snapshot();
    (0..KEYS).for_each(|key| _ = store.insert(&(2 * key), &0).unwrap());
    (0..KEYS).for_each(|key| _ = store.insert(&(2 * key + 1), &0).unwrap());
    let young = store.snapshot();
    store.insert(&0, &1).unwrap();
    let (bytes, undo) = (store.statistics().bytes, undo(&store));
    assert!(old.iter().eq((0..KEYS).map(|key| (2 * key, key))));
    drop((old, young));
    store.collect_garbage();
    assert_eq!((bytes - undo, 0), (store.statistics().bytes, store.statistics().dead));
}

/// An entry whose deadline has passed is in no later snapshot, even if its neighbours change.
#[test]
fn range_versions_keep_no_entry_beyond_its_deadline() {
    let now = Arc::new(AtomicU64::new(1000));
    let clock = Arc::clone(&now);
    let clock = move || clock.load(Ordering::Relaxed);
    let store = Store::<u64, u64>::with_options(
        Options::new().background_collector(false).sizes(8, 4).clock(clock),
    );
    (1..7).for_each(|key| _ = store.insert(&key, &key).unwrap());
    store.insert_until(&0, &0, 1500).unwrap();
    now.store(2000, Ordering::Relaxed);
    let snapshot = store.snapshot();
    (1..7).for_each(|key| _ = store.insert(&key, &(key + 1)).unwrap());
    assert_eq!(snapshot.get(&0), None);
    assert!(snapshot.iter().eq((1..7).map(|key| (key, key))));
}

/// While leaves with range versions are split and merged under several snapshots, each snapshot
/// always shows its state.
#[test]
fn range_versions_follow_their_keys_through_splits_and_merges() {
    for slots in [4, 8, 56] {
        let store = store(slots, 4);
        let mut state: BTreeMap<u64, u64> = BTreeMap::new();
        let put = |state: &mut BTreeMap<u64, u64>, key, value: Option<u64>| match value {
            Some(value) => assert_eq!(store.insert(&key, &value), Ok(state.insert(key, value))),
            None => assert_eq!(store.remove(&key), Ok(state.remove(&key))),
        };
        (0..300).for_each(|key| put(&mut state, 10 * key, Some(key)));
        let mut live: VecDeque<(Snapshot<u64, u64>, BTreeMap<u64, u64>)> = VecDeque::new();
        for round in 0..12 {
            live.push_back((store.snapshot(), state.clone()));
            if round % 5 == 4 {
                live.remove(1);
                store.collect_garbage();
            }
            let base = 251 * round % 2500;
            // First overwrites, then inserts that split leaves, then removals that merge them.
            for key in base / 10..base / 10 + 40 {
                put(&mut state, 10 * key, Some(1000 * round + key));
            }
            for key in (base..base + 400).step_by(3 + round as usize % 4) {
                put(&mut state, key, Some(round));
            }
            for key in base + 100..base + 300 {
                put(&mut state, key, None);
            }
            store.check_invariants().unwrap();
            for (snapshot, state) in &live {
                let pairs = || state.iter().map(|(key, value)| (*key, *value));
                assert!(snapshot.iter().eq(pairs()), "round {round}, slots {slots}");
                assert!(snapshot.iter().rev().eq(pairs().rev()));
                assert_eq!(snapshot.count(Bound::Unbounded, Bound::Unbounded), state.len());
                for key in (base..base + 500).step_by(7) {
                    assert_eq!(snapshot.get(&key), state.get(&key).copied());
                }
            }
        }
        live.clear();
        store.collect_garbage();
        let fresh = self::store(slots, 4);
        state.iter().for_each(|(key, value)| _ = fresh.insert(key, value).unwrap());
        let told = store.statistics();
        assert_eq!((told.dead, told.bytes), (0, fresh.statistics().bytes));
    }
}
