//! Tests that change the search layer while searches are held on their way down.
#![cfg(debug_assertions)]

use std::time::Duration;

use ordna::{Options, Store};
use ordna_base::sync::schedule::{Schedule, held};

type Words = Store<u64, u64>;

/// Creates a store with small nodes that maps the keys `0..to` to themselves.
fn filled(slots: usize, to: u64) -> Words {
    let options = Options::new().background_collector(false).sizes(slots, 3);
    let store = Words::with_options(options);
    (0..to).for_each(|n| _ = store.insert(&n, &n).unwrap());
    store
}

/// The places of a search that leads from the root to a leaf, alone or in a group.
const ON_THE_WAY: [&str; 6] = [
    "search.step.down",
    "search.step.to_the_bottom",
    "search.find.routed",
    "search.group.down",
    "search.group.to_the_bottom",
    "search.group.routed",
];

/// Reads a key in the way that passes this place.
fn get_by(place: &str, store: &Words, key: u64) -> Option<u64> {
    if !place.starts_with("search.group") {
        return store.get(key);
    }
    let mut values = Vec::new();
    store.get_many(&[key, key + 1], &mut values);
    values[0]
}

/// A search is held on its way down while leaves to its left, and its own leaf, are merged into
/// others.
#[test]
fn searches_stand_while_the_search_layer_shrinks() {
    const KEYS: u64 = 120;
    for point in ON_THE_WAY {
        for own in (0..KEYS).step_by(3) {
            // How far below and above the key the removed leaves reach.
            for (below, above) in [(3, 0), (6, 3), (0, 3), (12, 3), (3, 12), (KEYS, KEYS)] {
                let store = filled(4, KEYS);
                let around = own.saturating_sub(below)..(own + above + 1).min(KEYS);
                let found = held(point, || get_by(point, &store, own))
                    .meanwhile(|| around.filter(|n| *n != own).for_each(|n| _ = store.remove(&n)));
                assert_eq!(found, Some(own), "at {point}, {below} below and {above} above gone");
            }
        }
    }
}

/// A search is held before a node, and continues while two nodes are merged.
#[test]
fn a_search_goes_on_while_search_nodes_merge() {
    const KEYS: u64 = 120;
    for stop in ON_THE_WAY {
        for own in (0..KEYS).step_by(7) {
            let store = filled(4, KEYS);
            let schedule = Schedule::new();
            schedule.hold("reader", stop);
            schedule.hold("writer", "search.merge.locked");
            std::thread::scope(|scope| {
                let reader =
                    scope.spawn(|| schedule.enroll("reader", || get_by(stop, &store, own)));
                schedule.wait_held("reader", stop);
                let writer = scope.spawn(|| {
                    schedule.enroll("writer", || {
                        (0..KEYS).filter(|n| *n != own).for_each(|n| _ = store.remove(&n).unwrap());
                    })
                });
                schedule.wait_held("writer", "search.merge.locked");
                schedule.release("reader", stop);
                // Long enough for a reader that is not held.
                std::thread::sleep(Duration::from_millis(30));
                schedule.release("writer", "search.merge.locked");
                writer.join().unwrap();
                assert_eq!(reader.join().unwrap(), Some(own), "at {stop}");
            });
            store.check_invariants().unwrap();
        }
    }
}

/// The same while the search layer grows.
#[test]
fn searches_stand_while_the_search_layer_grows() {
    for point in ON_THE_WAY {
        for own in (0..60).step_by(7) {
            let store = filled(2, 60);
            let get = || get_by(point, &store, own);
            let found = held(point, get)
                .meanwhile(|| (60..200).for_each(|n| _ = store.insert(&n, &n).unwrap()));
            assert_eq!(found, Some(own), "at {point}");
        }
    }
}

/// If another key takes a slot while a group of reads is held there, the group must not return that
/// key's value.
#[test]
fn a_group_does_not_return_the_value_of_a_key_that_took_the_slot() {
    for other in 100..160 {
        let store = Words::with_options(Options::new().background_collector(false));
        store.insert(&7, &7).unwrap();
        let found = held("tree.peek.found", || get_by("search.group", &store, 7)).meanwhile(|| {
            store.remove(&7).unwrap();
            store.insert(&other, &other).unwrap();
        });
        assert!(found.is_none_or(|value| value == 7), "{found:?} instead of 7, key {other}");
    }
}
