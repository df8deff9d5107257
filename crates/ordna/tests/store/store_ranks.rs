//! Tests of the counts in the search layer: after all kinds of changes, concurrently with writers,
//! and in forced interleavings of a count and a change.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ordna::{Options, Store};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::held;
use ordna_testkit::kinds::{TestKey, TestValue};
use ordna_testkit::random::Random;

const ALL: (Bound<&u64>, Bound<&u64>) = (Bound::Unbounded, Bound::Unbounded);

fn options() -> Options {
    Options::new().background_collector(false)
}

/// Compares some ranks, positions and counts with a model.
fn compare<K: TestKey + ?Sized, V: TestValue + ?Sized>(
    store: &Store<K, V>,
    model: &BTreeSet<K::Owned>,
    random: &mut Random,
    keys: u64,
) {
    let mut key = || K::number(random.below(keys));
    let (one, other) = (key(), key());
    let (lower, upper) = if one < other { (one, other) } else { (other, one) };
    assert_eq!(
        store.rank(lower.borrow()),
        model.range::<K::Owned, _>((Bound::Unbounded, Bound::Excluded(&lower))).count()
    );
    let counted = store.count(Bound::Excluded(lower.borrow()), Bound::Included(upper.borrow()));
    let within = (Bound::Excluded(&lower), Bound::Included(&upper));
    let within = || model.range::<K::Owned, _>(within).count();
    let expected = if lower == upper { 0 } else { within() };
    assert_eq!(counted, expected);
    let position = random.below(model.len() as u64 + 1) as usize;
    let found = store.select(position).map(|(key, _)| key);
    assert!(found.as_ref() == model.iter().nth(position), "position {position}");
}

fn counts_follow_changes<K: TestKey + ?Sized, V: TestValue + ?Sized>(
    (slots, fanout): (usize, usize),
    keys: u64,
    seed: u64,
) {
    let random = &mut Random::new(seed);
    let store = Store::<K, V>::with_options(options().sizes(slots, fanout));
    let mut model: BTreeSet<K::Owned> = BTreeSet::new();
    for round in 0..4000_u64 {
        // The store first grows and then shrinks.
        let inserts = if round / 1000 % 2 == 0 { 7 } else { 2 };
        let n = random.below(keys);
        match random.below(10) {
            _ if round % 397 == 396 => {
                let (from, to) = (K::number(n), K::number(n + keys / 8));
                if from < to {
                    let (lower, upper) = (from.borrow(), to.borrow());
                    store.remove_range((Bound::Included(lower), Bound::Excluded(upper))).unwrap();
                    model.retain(|key| *key < from || *key >= to);
                }
            }
            _ if round % 501 == 500 => store.collect_garbage(),
            _ if round % 97 == 96 => {
                let many: Vec<(K::Owned, V::Owned)> =
                    (n..n + 9).map(|n| (K::number(n), V::dress(n))).collect();
                let pairs: Vec<(&K, &V)> =
                    many.iter().map(|(key, value)| (key.borrow(), value.borrow())).collect();
                store.insert_many(&pairs).unwrap();
                model.extend(many.into_iter().map(|(key, _)| key));
            }
            op if op < inserts => {
                let key = K::number(n);
                store.insert(key.borrow(), V::dress(round).borrow()).unwrap();
                model.insert(key);
            }
            _ => {
                let key = K::number(n);
                store.remove(key.borrow()).unwrap();
                model.remove::<K::Owned>(&key);
            }
        }
        if !(1500..1700).contains(&round) {
            compare(&store, &model, random, keys);
        }
        if round % 250 == 0 {
            store.check_invariants().unwrap();
        }
    }
    store.check_invariants().unwrap();
}

#[test]
fn counts_of_integers_follow_changes() {
    counts_follow_changes::<u64, u64>((2, 3), 300, 1);
    counts_follow_changes::<u64, [u8]>((4, 3), 600, 2);
    counts_follow_changes::<u64, u64>((56, 4), 4000, 3);
}

#[test]
fn counts_of_byte_strings_follow_changes() {
    counts_follow_changes::<[u8], u64>((2, 3), 300, 4);
    counts_follow_changes::<[u8], [u8]>((4, 4), 600, 5);
}

/// Between counts, entries with deadlines are inserted, expire and lose their deadlines.
#[test]
fn counts_follow_deadlines() {
    let random = &mut Random::new(6);
    let now = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let hands = now.clone();
    let clock = move || hands.load(Ordering::Relaxed);
    let store = Store::<u64, u64>::with_options(options().sizes(4, 3).clock(clock));
    // For each key its deadline, or `u64::MAX`.
    let mut model = std::collections::BTreeMap::new();
    for round in 0..3000_u64 {
        now.store(round, Ordering::Relaxed);
        let key = random.below(400);
        match random.below(8) {
            0..4 => {
                store.insert(&key, &round).unwrap();
                model.insert(key, u64::MAX);
            }
            4 if model.get(&key).is_some_and(|end| *end > round) => {
                let end = if random.below(3) == 0 { None } else { Some(round + 50) };
                store.set_expiry(&key, end).unwrap();
                model.insert(key, end.unwrap_or(u64::MAX));
            }
            4 => {}
            _ => {
                store.remove(&key).unwrap();
                model.remove(&key);
            }
        }
        let shown = |key: &u64| model.range(..key).filter(|(_, end)| **end > round).count();
        let key = random.below(400);
        assert_eq!(store.rank(&key), shown(&key));
        assert_eq!(store.count(ALL.0, ALL.1), shown(&u64::MAX));
    }
    store.check_invariants().unwrap();
}

#[test]
fn counts_of_a_store_from_sorted_entries() {
    let entries = (0..20_000_u64).map(|key| (key * 2, key));
    let store = Store::<u64, u64>::from_sorted(options(), vec![entries]).unwrap();
    for key in (0..40_000).step_by(617) {
        assert_eq!(store.rank(&key), key.div_ceil(2) as usize);
        assert_eq!(store.select(key as usize / 2), Some((key / 2 * 2, key / 2)));
        store.insert(&(key / 2 * 2 + 1), &0).unwrap();
        assert_eq!(store.rank(&(key / 2 * 2 + 2)), key as usize / 2 + 2);
        assert!(store.remove(&(key / 2 * 2 + 1)).unwrap().is_some());
    }
    store.check_invariants().unwrap();
}

/// Each thread changes keys of its own, in ranges of its own and in ranges that alternate with
/// those of other threads. After each change it counts its range, and must see exactly the entries
/// that it has left there. The result of a concurrent counter must be between the minimum and the
/// maximum possible number.
fn counts_beside_writers(sizes: (usize, usize), span: u64) {
    const WRITERS: u64 = 3;
    const RANGES: u64 = 4;
    let store = Store::<u64, u64>::with_options(options().sizes(sizes.0, sizes.1));
    // Every fourth key is never removed.
    let all = WRITERS * RANGES * span;
    (0..all).step_by(4).for_each(|key| _ = store.insert(&key, &key).unwrap());
    let stay = (all / 4) as usize;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                let random = &mut Random::new(writer);
                let mut own = vec![BTreeSet::new(); RANGES as usize];
                while !stop.load(Ordering::Relaxed) {
                    let range = random.below(RANGES);
                    let from = (range * WRITERS + writer) * span;
                    let keys = &mut own[range as usize];
                    let grows = random.below(2) == 0;
                    for _ in 0..1 + random.below(4) {
                        let key = from + random.below(span / 4) * 4 + 1 + random.below(3);
                        if grows && keys.insert(key) {
                            store.insert(&key, &key).unwrap();
                        } else if !grows && keys.remove(&key) {
                            assert!(store.remove(&key).unwrap().is_some(), "{key}");
                        }
                    }
                    let upper = from + span;
                    let counted = store.count(Bound::Included(&from), Bound::Excluded(&upper));
                    assert_eq!(counted, keys.len() + span as usize / 4, "range at {from}");
                }
            });
        }
        let end = Instant::now() + ordna_testkit::budget();
        let random = &mut Random::new(99);
        while Instant::now() < end {
            let counted = store.count(ALL.0, ALL.1);
            assert!((stay..=all as usize).contains(&counted), "{counted}");
            let key = random.below(all) / 4 * 4;
            let rank = store.rank(&key);
            assert!((key as usize / 4..=key as usize).contains(&rank), "{rank} of {key}");
            let position = random.below(stay as u64);
            let found = store.select(position as usize).unwrap().0;
            assert!((position..=position * 4).contains(&found), "{found} at {position}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    store.check_invariants().unwrap();
    assert_eq!(store.count(ALL.0, ALL.1), store.range(..).count());
}

#[test]
fn counts_stay_within_bounds_beside_writers() {
    counts_beside_writers((4, 3), 64);
    counts_beside_writers((8, 8), 1024);
    counts_beside_writers((56, 64), 4096);
}

/// Creates a store with several levels, and counts it. The leaf with key 40 has room.
#[cfg(debug_assertions)]
fn counted_store() -> Store<u64, u64> {
    let store = Store::with_options(options().sizes(4, 3));
    (0..200).step_by(2).for_each(|key| _ = store.insert(&key, &key).unwrap());
    store.remove(&42).unwrap();
    assert_eq!(store.count(ALL.0, ALL.1), 99);
    store
}

/// Changes of single entries and of leaves, and the number of entries afterwards.
#[cfg(debug_assertions)]
type Change = (&'static str, fn(&Store<u64, u64>), usize);

#[cfg(debug_assertions)]
const CHANGES: [Change; 5] = [
    ("insert", |store| _ = store.insert(&41, &0).unwrap(), 100),
    ("remove", |store| _ = store.remove(&40).unwrap(), 98),
    ("splits", |store| (41..61).step_by(2).for_each(|key| _ = store.insert(&key, &0)), 109),
    ("merges", |store| (40..80).step_by(2).for_each(|key| _ = store.remove(&key)), 80),
    ("range", |store| _ = store.remove_range(30..90).unwrap(), 70),
];

/// If an entry changes during a count, this count or the next one sees it.
#[cfg(debug_assertions)]
#[test]
fn a_change_during_a_count_is_not_lost() {
    let stops = ["search.count.unmarked", "tree.count.bit_set", "search.count.refreshed"];
    for stop in stops {
        // The leaf that the count finds changed: the one of the next change, one near it, and a
        // distant one.
        for first in [46, 36, 100] {
            // These writes change no leaves; such a change would wait for the count.
            let insert: fn(&Store<u64, u64>) = |store| _ = store.insert(&41, &0).unwrap();
            let remove: fn(&Store<u64, u64>) = |store| _ = store.remove(&40).unwrap();
            for (change, after) in [(insert, 99), (remove, 97)] {
                let store = counted_store();
                store.remove(&first).unwrap();
                let counted = held(stop, || store.count(ALL.0, ALL.1)).meanwhile(|| change(&store));
                assert!(counted.abs_diff(98) <= 1, "{stop}, {first}: {counted}");
                assert_eq!(store.count(ALL.0, ALL.1), after, "{stop}, {first}");
                store.check_invariants().unwrap();
            }
        }
    }
}

/// A count has found a leaf unlocked. Then entries of a leaf that was counted already move to it.
#[cfg(debug_assertions)]
#[test]
fn a_leaf_in_the_middle_of_a_change_does_not_count() {
    let store = Store::<u64, u64>::with_options(options().sizes(8, 3));
    (0..200).step_by(2).for_each(|key| _ = store.insert(&key, &key).unwrap());
    // The leaf that begins at 48 has room for several entries of the full leaf before it.
    (50..58).step_by(2).for_each(|key| _ = store.remove(&key).unwrap());
    assert_eq!(store.count(ALL.0, ALL.1), 96);
    store.remove(&58).unwrap();
    let counted = std::thread::scope(|scope| {
        held("tree.count.bit_set", || store.count(ALL.0, ALL.1)).meanwhile(|| {
            // The change then waits until the count ends.
            scope.spawn(|| store.insert(&33, &0).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(50));
        })
    });
    assert!((95..=96).contains(&counted), "{counted}");
    assert_eq!(store.count(ALL.0, ALL.1), 96);
    store.check_invariants().unwrap();
}

/// Upper nodes of the search layer change, and are counted, after a report has determined its path.
#[cfg(debug_assertions)]
#[test]
fn a_report_marks_the_way_that_leads_to_its_leaf() {
    let store = counted_store();
    held("search.report.found", || store.insert(&41, &0).unwrap()).meanwhile(|| {
        (1..16).step_by(2).for_each(|key| _ = store.insert(&key, &0).unwrap());
        assert_eq!(store.count(ALL.0, ALL.1), 107);
    });
    assert_eq!(store.count(ALL.0, ALL.1), 108);
    store.check_invariants().unwrap();
}

/// A count during a change ends, and the next count is exact.
#[cfg(debug_assertions)]
#[test]
fn a_count_during_a_change_ends() {
    let stops = ["tree.report.forgotten", "search.report.found", "search.report.marked"];
    for stop in stops {
        for (name, change, after) in CHANGES {
            let store = counted_store();
            held(stop, || change(&store)).meanwhile(|| {
                // The changes hold one leaf, below 100: this count does not wait for it.
                assert_eq!(store.count(Bound::Included(&100), Bound::Unbounded), 50);
            });
            assert_eq!(store.count(ALL.0, ALL.1), after, "{name} at {stop}");
            store.check_invariants().unwrap();
        }
    }
}

/// Nodes of the search layer are changed between the steps of a report.
#[cfg(debug_assertions)]
#[test]
fn a_report_finds_its_leaf_in_a_node_that_changes() {
    for stop in ["tree.report.forgotten", "search.report.found", "search.report.marked"] {
        for removes in [false, true] {
            let store = counted_store();
            held(stop, || store.insert(&41, &0).unwrap()).meanwhile(|| {
                // Adds and removes leaves next to the one with key 41.
                let others = (0..30).chain(60..120);
                if removes {
                    others.for_each(|key| _ = store.remove(&key).unwrap());
                } else {
                    others.for_each(|key| _ = store.insert(&key, &0).unwrap());
                }
                let upper = store.count(Bound::Included(&60), Bound::Unbounded);
                assert_eq!(upper, if removes { 40 } else { 100 });
            });
            let expected = if removes { 55 } else { 145 };
            assert_eq!(store.count(ALL.0, ALL.1), expected, "{stop}, {removes}");
            store.check_invariants().unwrap();
        }
    }
}

/// A count between the steps of a split, a shift or a merge counts each entry once.
#[cfg(debug_assertions)]
#[test]
fn entries_that_move_during_a_count_count_once() {
    let stops = ["tree.count.run_counted", "tree.count.read"];
    for stop in stops {
        for (name, change, after) in CHANGES {
            let store = counted_store();
            // A leaf with a deadline ends the run of leaves within the bounds.
            store.set_expiry(&50, Some(u64::MAX - 1)).unwrap();
            let counted = held(stop, || store.count(ALL.0, ALL.1)).meanwhile(|| change(&store));
            let range = 99.min(after)..=99.max(after);
            assert!(range.contains(&counted), "{name} at {stop}: {counted}");
            assert_eq!(store.count(ALL.0, ALL.1), after, "{name} at {stop}");
        }
    }
}
