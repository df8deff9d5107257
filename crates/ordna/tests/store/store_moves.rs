//! Reads of a leaf while inserts and removals move its entries between slots.

#![cfg(debug_assertions)]

use std::ops::{Bound, ControlFlow};

use ordna::{Direction, Options, OrderedIndex, Snapshot, Store};
use ordna_base::sync::schedule::held;
use ordna_testkit::random::Random;

type Strings = Store<[u8], [u8]>;

/// Keys that are never removed; they are in the same leaf as those that are.
const STAY: u64 = 16;
/// Keys that are removed and inserted. Together with the others they nearly fill a leaf.
const GO: u64 = 36;

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn insert_those_that_go(store: &Strings) {
    (STAY..STAY + GO).for_each(|n| drop(store.insert(&key(n), b"goes").unwrap()));
}

/// Creates a store with one leaf. The keys below [`STAY`] are inserted last, so that many of them
/// find their buckets full.
fn full_leaf() -> Strings {
    let store = Strings::with_options(Options::new().background_collector(false));
    insert_those_that_go(&store);
    (0..STAY).for_each(|n| drop(store.insert(&key(n), b"stays").unwrap()));
    store
}

/// Removes the keys from [`STAY`] on and inserts others, which moves those that stay back to their
/// buckets. At the end the original keys are back.
fn churn(store: &Strings, seed: u64) {
    (STAY..STAY + GO).for_each(|n| drop(store.remove(&key(n))));
    let random = &mut Random::new(seed);
    let others: Vec<u64> = (0..12).map(|_| 1000 + random.below(1000)).collect();
    others.iter().for_each(|n| drop(store.insert(&key(*n), b"goes").unwrap()));
    store.check_invariants().unwrap();
    others.iter().for_each(|n| drop(store.remove(&key(*n))));
    insert_those_that_go(store);
    store.check_invariants().unwrap();
}

fn keys_of(visit: impl FnOnce(&mut dyn FnMut(&[u8]))) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    visit(&mut |key| keys.push(key.to_vec()));
    keys
}

fn scanned(store: &Strings) -> Vec<Vec<u8>> {
    keys_of(|each| {
        let all = (Bound::Unbounded, Bound::Unbounded);
        store.scan_with(all, Direction::Ascending, usize::MAX, |key, _| {
            each(key);
            ControlFlow::Continue(())
        });
    })
}

fn scanned_at(snapshot: &Snapshot<[u8], [u8]>) -> Vec<Vec<u8>> {
    keys_of(|each| {
        snapshot.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |key, _| {
            each(key);
            ControlFlow::Continue(())
        });
    })
}

#[test]
fn a_key_that_moves_is_found() {
    for point in ["tree.seek.begun", "tree.seek.found", "tree.seek.word_read"] {
        for n in 0..STAY {
            let store = full_leaf();
            let found = held(point, || store.get(key(n).as_slice())).meanwhile(|| churn(&store, n));
            assert_eq!(found.as_deref(), Some(&b"stays"[..]), "{point}, {n}");
        }
    }
}

#[test]
fn a_snapshot_keeps_keys_that_moved_or_went() {
    for point in ["tree.seek.begun", "tree.seek.found", "tree.seek.slot_read"] {
        for n in 0..STAY + GO {
            let store = full_leaf();
            let snapshot = store.snapshot();
            let found =
                held(point, || snapshot.get(key(n).as_slice())).meanwhile(|| churn(&store, n));
            let value = if n < STAY { &b"stays"[..] } else { b"goes" };
            assert_eq!(found.as_deref(), Some(value), "{point}, {n}");
        }
    }
}

#[test]
fn a_scan_over_moves_shows_each_key_once() {
    let all: Vec<Vec<u8>> = (0..STAY + GO).map(key).collect();
    for point in ["tree.scan.begun", "tree.leaf.entries_copied", "tree.scan.before_validate"] {
        for seed in 0..8 {
            let store = full_leaf();
            let snapshot = store.snapshot();
            let found = held(point, || scanned(&store)).meanwhile(|| churn(&store, seed));
            assert_eq!(found, all, "{point}, {seed}");
            let found = held(point, || scanned_at(&snapshot)).meanwhile(|| churn(&store, seed));
            assert_eq!(found, all, "{point}, {seed}, at a snapshot");
        }
    }
}
