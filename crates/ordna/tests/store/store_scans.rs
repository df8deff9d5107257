//! Scans of leaves whose sorted order an earlier scan has published.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::{Direction, Options, OrderedIndex, Store};

type Strings = Store<[u8], u64>;

/// Returns the keys of an ascending scan from a bound, at most `limit`.
fn scan_with(store: &Strings, lower: Bound<&[u8]>, limit: usize) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    store.scan_with((lower, Bound::Unbounded), Direction::Ascending, limit, |key, _| {
        keys.push(key.to_vec());
        if keys.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    keys
}

/// Scans begin at the right entry, for bounds with and without the prefix of a leaf's keys, in
/// leaves with and without a published order.
#[test]
fn scans_begin_where_they_should_in_a_leaf_with_an_order() {
    let store = Strings::new();
    let mut model = BTreeMap::new();
    for n in 0..40_u64 {
        let key = format!("common prefix {:03}", n * 7 % 100).into_bytes();
        store.insert(&key, &n).unwrap();
        model.insert(key, n);
    }
    let mut bounds: Vec<Vec<u8>> = model.keys().cloned().collect();
    for key in model.keys() {
        bounds.extend([[key, &b"x"[..]].concat(), key[..key.len() - 1].to_vec()]);
    }
    bounds.extend(["", "a", "common", "common prefix", "common prefiy", "z"].map(Into::into));
    for round in 0..2 {
        for bound in &bounds {
            for lower in [Bound::Included(bound), Bound::Excluded(bound)] {
                for limit in [1, 3, 100] {
                    let right = model.range((lower.cloned(), Bound::Unbounded));
                    let right: Vec<Vec<u8>> =
                        right.take(limit).map(|(key, _)| key.clone()).collect();
                    let lower = lower.map(Vec::as_slice);
                    assert_eq!(scan_with(&store, lower, limit), right, "{lower:?}, round {round}");
                }
            }
        }
        // From here on, the published order belongs to an older version of the leaf.
        let key = b"common prefix 999";
        store.insert(key, &0).unwrap();
        model.insert(key.to_vec(), 0);
    }
}

/// A scan whose first entries have expired still returns as many entries as requested, in a leaf
/// with a published order, too.
#[test]
fn a_scan_goes_on_behind_expired_entries() {
    let clock = Arc::new(AtomicU64::new(0));
    let now = Arc::clone(&clock);
    let options =
        Options::new().background_collector(false).clock(move || now.load(Ordering::Relaxed));
    let store = Store::<u64, u64>::with_options(options);
    for key in 0..50 {
        if key < 20 {
            store.insert_until(&key, &key, 5).unwrap();
        } else {
            store.insert(&key, &key).unwrap();
        }
    }
    let scan = |limit: usize| {
        let mut keys = Vec::new();
        let bounds = (Bound::Included(&0), Bound::Unbounded);
        store.scan_with(bounds, Direction::Ascending, limit, |key, _| {
            keys.push(*key);
            if keys.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        keys
    };
    assert_eq!(scan(50), (0..50).collect::<Vec<u64>>());
    clock.store(10, Ordering::Relaxed);
    for limit in [1, 3, 30] {
        assert_eq!(scan(limit), (20..20 + limit as u64).collect::<Vec<u64>>());
    }
}

/// While a scan is between two leaves, keys that it has returned move into the second one: more
/// keys than the scan still has to return.
#[test]
fn a_scan_passes_returned_keys_that_moved_to_the_right() {
    let store = Strings::with_options(Options::new().background_collector(false).sizes(4, 3));
    for key in ["a", "b", "c", "d", "m", "n", "o", "p"] {
        store.insert(key.as_bytes(), &0).unwrap();
    }
    let mut keys = Vec::new();
    let lower = Bound::Included(&b"a"[..]);
    store.scan_with((lower, Bound::Unbounded), Direction::Ascending, 5, |key, _| {
        keys.push(key.to_vec());
        if key == b"d" {
            store.insert(b"bb", &0).unwrap();
            assert_eq!(scan_with(&store, Bound::Unbounded, 100).len(), 9);
        }
        if keys.len() < 5 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!(keys, [b"a", b"b", b"c", b"d", b"m"]);
}

/// Scans for one entry in leaves without a published order, because each leaf is changed before
/// each scan. Every seventh key has expired.
#[test]
fn the_outer_entry_of_a_changing_leaf_is_found() {
    let clock = Arc::new(AtomicU64::new(10));
    let now = Arc::clone(&clock);
    let options =
        Options::new().background_collector(false).clock(move || now.load(Ordering::Relaxed));
    let store = Store::<[u8], u64>::with_options(options);
    let mut model = BTreeMap::new();
    let key = |n: u64| format!("common prefix {:03}", n * 389 % 500).into_bytes();
    for n in 0..500_u64 {
        // The first half of the entries fills the leaves, and the second half changes them.
        if n % 7 == 3 {
            store.insert_until(&key(n), &n, 20).unwrap();
        } else if n % 2 == 0 {
            store.insert(&key(n), &n).unwrap();
            model.insert(key(n), n);
        }
    }
    clock.store(30, Ordering::Relaxed);
    for n in 0..500_u64 {
        let upper = key(n * 13 % 500);
        let lower = key(n * 31 % 500);
        let changed = key(n | 1);
        if n % 7 != 3 && (n | 1) % 7 != 3 {
            store.insert(&changed, &n).unwrap();
            model.insert(changed, n);
        }
        for upper in [Bound::Included(&upper), Bound::Excluded(&upper), Bound::Unbounded] {
            for lower in [Bound::Unbounded, Bound::Included(&lower), Bound::Excluded(&lower)] {
                if let (
                    Bound::Included(low) | Bound::Excluded(low),
                    Bound::Included(high) | Bound::Excluded(high),
                ) = (lower, upper)
                    && low >= high
                {
                    continue;
                }
                let bounds = (lower.map(Vec::as_slice), upper.map(Vec::as_slice));
                for direction in [Direction::Descending, Direction::Ascending] {
                    let mut right = model.range::<Vec<u8>, _>((lower, upper));
                    let right = match direction {
                        Direction::Ascending => right.next(),
                        Direction::Descending => right.next_back(),
                    };
                    let mut found = None;
                    store.scan_with(bounds, direction, 1, |key, value| {
                        found = Some((key.to_vec(), *value));
                        ControlFlow::Break(())
                    });
                    let found = found.as_ref().map(|(key, value)| (key, value));
                    assert_eq!(found, right, "{bounds:?} {direction:?}");
                }
            }
        }
        // The insertion gives the key's leaf a new version.
        store.insert(&key(n), &n).unwrap();
        model.insert(key(n), n);
    }
}

/// Searches in nodes whose separators share a prefix of any length. The searched keys are shorter,
/// end in zeroes, or differ in one byte of the prefix.
#[test]
fn keys_are_compared_with_prefixes_of_any_length() {
    for length in (0..=40).chain([63, 64, 65]) {
        let store = Strings::new();
        let mut model = BTreeMap::new();
        let prefix: Vec<u8> =
            (0..length).map(|at| if at % 3 == 0 { 0 } else { at as u8 }).collect();
        for n in 0..3000_u64 {
            let key = [&prefix[..], &(n * 7919 % 3000).to_be_bytes()[6..]].concat();
            store.insert(&key, &n).unwrap();
            model.insert(key, n);
        }
        let mut bounds: Vec<Vec<u8>> = (0..=length).map(|at| prefix[..at].to_vec()).collect();
        for at in 0..length {
            for by in [1, 255] {
                let mut other = [&prefix[..], &[5, 5]].concat();
                other[at] = other[at].wrapping_add(by);
                bounds.push(other);
            }
            bounds.push([&prefix[..at], &[0; 9][..]].concat());
        }
        for bound in &bounds {
            let right = model.range((Bound::Included(bound.clone()), Bound::Unbounded)).next();
            let found = scan_with(&store, Bound::Included(bound), 1);
            assert_eq!(found.first(), right.map(|(key, _)| key), "{length} {bound:?}");
            assert_eq!(store.get(bound), model.get(bound).copied(), "{length} {bound:?}");
        }
    }
}

/// Each entry is found near some key, and no removed or expired entry is.
#[test]
fn entries_are_found_near_keys() {
    let time = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&time);
    let options =
        Options::new().background_collector(false).clock(move || clock.load(Ordering::Relaxed));
    let store = Strings::with_options(options);
    assert_eq!(store.near_with(b"a", 0, |_, _| ()), None);
    let key = |n: u64| format!("key {n:04}").into_bytes();
    let near = || {
        let found = (0..1000).flat_map(|n| (0..60).map(move |place| (key(n), place)));
        let found = found
            .filter_map(|(key, place)| store.near_with(&key, place, |key, n| (key.to_vec(), *n)));
        found.collect::<BTreeMap<Vec<u8>, u64>>()
    };
    for n in 0..1000 {
        store.insert(&key(n), &n).unwrap();
    }
    assert!(near().into_iter().eq((0..1000).map(|n| (key(n), n))));
    for n in 0..1000 {
        match n % 3 {
            0 => drop(store.remove(&key(n))),
            1 => drop(store.set_expiry(&key(n), Some(5)).unwrap()),
            _ => {}
        }
    }
    time.store(5, Ordering::Relaxed);
    assert!(near().into_iter().eq((0..1000).filter(|n| n % 3 == 2).map(|n| (key(n), n))));
}
