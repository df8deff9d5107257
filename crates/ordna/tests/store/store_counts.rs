//! Tests of `count`, `rank` and `select`, on the latest state and at snapshots.

use std::borrow::Borrow;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ordna::{Options, OrderedIndex, Store, Write};
use ordna_base::Value;
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::held;
use ordna_testkit::kinds::{TestKey, TestValue};

fn bounds<'a, K: ?Sized>(
    lower: &'a impl Borrow<K>,
    upper: &'a impl Borrow<K>,
) -> [(Bound<&'a K>, Bound<&'a K>); 4] {
    let (lower, upper) = (lower.borrow(), upper.borrow());
    [
        (Bound::Included(lower), Bound::Excluded(upper)),
        (Bound::Excluded(lower), Bound::Included(upper)),
        (Bound::Unbounded, Bound::Included(upper)),
        (Bound::Included(lower), Bound::Unbounded),
    ]
}

fn within<K: Ord + ?Sized>(key: &K, (lower, upper): (Bound<&K>, Bound<&K>)) -> bool {
    let above = match lower {
        Bound::Included(lower) => key >= lower,
        Bound::Excluded(lower) => key > lower,
        Bound::Unbounded => true,
    };
    above
        && match upper {
            Bound::Included(upper) => key <= upper,
            Bound::Excluded(upper) => key < upper,
            Bound::Unbounded => true,
        }
}

/// Compares the results with those computed from the keys.
fn check<K: TestKey + ?Sized, V: Value + ?Sized>(
    keys: &[K::Owned],
    others: &[K::Owned],
    count: impl Fn(Bound<&K>, Bound<&K>) -> usize,
    select: impl Fn(usize) -> Option<(K::Owned, V::Owned)>,
) {
    for (at, key) in keys.iter().enumerate() {
        let found = select(at).expect("the position is there").0;
        assert!(found.borrow() == key.borrow(), "position {at}");
    }
    assert!(select(keys.len()).is_none());
    let all = keys.iter().chain(others);
    for (lower, upper) in
        all.clone().step_by(7).flat_map(|a| all.clone().step_by(11).map(move |b| (a, b)))
    {
        for bounds in bounds::<K>(lower, upper) {
            let expected = keys.iter().filter(|key| within((*key).borrow(), bounds)).count();
            assert_eq!(count(bounds.0, bounds.1), expected);
        }
    }
}

fn counts_are_those_of_a_scan<K: TestKey + ?Sized, V: TestValue + ?Sized>(slots: usize, keys: u64) {
    let store =
        Store::<K, V>::with_options(Options::new().background_collector(false).sizes(slots, 4));
    let scanned = || store.iter_keys();
    let mut snapshots = Vec::new();
    let others: Vec<K::Owned> = (keys..keys + 20).map(K::number).collect();
    for round in 0..4_u64 {
        for n in (0..keys).filter(|n| !(n + round).is_multiple_of(3)) {
            store.insert(K::number(n).borrow(), V::dress(n + round).borrow()).unwrap();
        }
        for n in (0..keys).filter(|n| (n * 7 + round).is_multiple_of(4)) {
            store.remove(K::number(n).borrow()).unwrap();
        }
        let now = scanned();
        check::<K, V>(&now, &others, |l, u| store.count(l, u), |at| store.select(at));
        assert_eq!(now.iter().position(|key| store.rank(key.borrow()) > 0), Some(1));
        snapshots.push((store.snapshot(), now));
        for (snapshot, then) in &snapshots {
            check::<K, V>(then, &others, |l, u| snapshot.count(l, u), |at| snapshot.select(at));
        }
    }
}

trait IterKeys<K: TestKey + ?Sized> {
    fn iter_keys(&self) -> Vec<K::Owned>;
}

impl<K: TestKey + ?Sized, V: Value + ?Sized> IterKeys<K> for Store<K, V> {
    fn iter_keys(&self) -> Vec<K::Owned> {
        self.range(..).map(|(key, _)| key).collect()
    }
}

#[test]
fn counts_of_integers() {
    counts_are_those_of_a_scan::<u64, u64>(4, 160);
    counts_are_those_of_a_scan::<u64, [u8]>(56, 700);
}

#[test]
fn counts_of_byte_strings() {
    counts_are_those_of_a_scan::<[u8], [u8]>(4, 160);
    counts_are_those_of_a_scan::<[u8], u64>(56, 700);
}

#[test]
fn expired_entries_do_not_count() {
    let clock = Arc::new(AtomicU64::new(0));
    let hands = Arc::clone(&clock);
    let options = Options::new().background_collector(false).sizes(4, 3);
    let store: Store<u64, u64> =
        Store::with_options(options.clock(move || hands.load(Ordering::Relaxed)));
    for key in 0..40 {
        store.insert(&key, &key).unwrap();
        if key % 5 == 0 {
            store.set_expiry(&key, Some(10)).unwrap();
        }
    }
    let before = store.snapshot();
    clock.store(10, Ordering::Relaxed);
    assert_eq!((store.rank(&20), before.rank(&20)), (16, 20));
    assert_eq!((store.select(4), before.select(4)), (Some((6, 6)), Some((4, 4))));
    assert_eq!(store.count(Bound::Unbounded, Bound::Unbounded), 32);
}

/// Entries that move to the right, after one leaf was read and before the next one is, count once.
#[cfg(debug_assertions)]
#[test]
fn counts_stand_while_leaves_change() {
    use ordna_base::sync::schedule::held;

    type Change = (&'static str, fn(&Store<u64, u64>));
    let changes: [Change; 3] = [
        ("shift", |store| _ = store.insert(&1, &1).unwrap()),
        ("split", |store| (33..47).step_by(2).for_each(|key| _ = store.insert(&key, &0).unwrap())),
        ("merge", |store| (64..100).step_by(2).for_each(|key| _ = store.remove(&key))),
    ];
    for (name, change) in changes {
        for at_snapshot in [false, true] {
            let store: Store<u64, u64> =
                Store::with_options(Options::new().background_collector(false).sizes(8, 3));
            (0..100).step_by(2).for_each(|key| _ = store.insert(&key, &key).unwrap());
            // Makes room in the second leaf.
            [18, 22, 26].iter().for_each(|key| _ = store.remove(key));
            let before = store.count(Bound::Unbounded, Bound::Unbounded);
            assert_eq!(before, 47);
            let snapshot = at_snapshot.then(|| store.snapshot());
            // A count from a key on, which reads the first leaves one by one.
            let counted = held("tree.count.counted", || match &snapshot {
                Some(snapshot) => snapshot.count(Bound::Included(&0), Bound::Unbounded),
                None => store.count(Bound::Included(&0), Bound::Unbounded),
            })
            .meanwhile(|| change(&store));
            let after = store.count(Bound::Unbounded, Bound::Unbounded);
            let range =
                if at_snapshot { before..=before } else { before.min(after)..=before.max(after) };
            assert!(range.contains(&counted), "{name}: {counted} of {range:?}");
        }
    }
}

/// After a count has read a leaf, entries move from it to the next one. The low fence of the next
/// leaf becomes the key of the first of them. None of the entries, one or several, may count twice.
#[cfg(debug_assertions)]
#[test]
fn entries_that_move_away_from_a_count_are_counted_once() {
    for right in 1..=4 {
        let store: Store<u64, u64> = Store::with_options(Options::new().sizes(4, 3));
        for number in 0..4 + right {
            store.insert(&(number * 10), &number).unwrap();
        }
        let snapshot = store.snapshot();
        let count =
            held("tree.count.read", || snapshot.count(Bound::Included(&5), Bound::Unbounded))
                .meanwhile(|| store.insert(&35, &0).unwrap());
        assert_eq!(count as u64, 3 + right, "{right} entries in the next leaf");
    }
}

/// A count begins in a leaf that has no entries in its range. Then entries below its lower bound
/// move to the next leaf. They must not count.
#[cfg(debug_assertions)]
#[test]
fn entries_below_a_count_stay_below_it() {
    for (stop, right) in [("tree.count.read", 1), ("tree.count.read", 3), ("tree.scan.begun", 3)] {
        for at_snapshot in [false, true] {
            let store: Store<u64, u64> = Store::with_options(Options::new().sizes(4, 3));
            for number in 0..4 + right {
                store.insert(&(number * 10), &number).unwrap();
            }
            let snapshot = at_snapshot.then(|| store.snapshot());
            let bounds = (Bound::Included(&39), Bound::Unbounded);
            let counted = held(stop, || match &snapshot {
                Some(snapshot) => snapshot.count(bounds.0, bounds.1),
                None => store.count(bounds.0, bounds.1),
            })
            .meanwhile(|| (5..9).for_each(|key| _ = store.insert(&key, &0).unwrap()));
            assert_eq!(counted as u64, right, "{stop}, {right} entries in the next leaf");
        }
    }
}

/// Makes each kind of write on both sides of the key.
#[test]
fn all_writes_are_counted_on_their_side() {
    let now = Arc::new(AtomicU64::new(1));
    let clock = Arc::clone(&now);
    let options = Options::new().clock(move || clock.load(Ordering::SeqCst));
    let store: Store<[u8], [u8]> = Store::with_options(options.background_collector(false));
    let counts = || (store.len_below(), store.approximate_len());
    assert_eq!(counts(), (None, 0));
    for key in ["a", "b", "m", "n"] {
        store.insert_until(key.as_bytes(), b"v", 5).unwrap();
    }
    now.store(9, Ordering::SeqCst);
    assert!(store.count_below(b"m") && !store.count_below(b"z"));
    assert_eq!(counts(), (Some(2), 4), "expired items count until they are removed");
    store.collect_garbage();
    assert_eq!(counts(), (Some(0), 0));
    for at in 0..500 {
        store.insert(format!("a{at}").as_bytes(), b"v").unwrap();
        store.insert(format!("m{at}").as_bytes(), b"v").unwrap();
    }
    store.insert(b"a1".as_slice(), b"other").unwrap();
    assert_eq!(counts(), (Some(500), 1000));
    let batch = [Write::put(&b"b"[..], &b"v"[..]), Write::put(b"l", b"v"), Write::Remove(b"m1")];
    store.write_batch(&batch).unwrap();
    assert_eq!(counts(), (Some(502), 1001));
    store.remove(b"l".as_slice()).unwrap();
    let _snapshot = store.snapshot();
    store.remove_range(&b"a4"[..]..&b"m2"[..]).unwrap();
    let below = store.count(Bound::Unbounded, Bound::Excluded(&b"m"[..]));
    assert_eq!(counts(), (Some(below), store.iter().count()));
    store.clear().unwrap();
    assert_eq!(counts(), (Some(0), 0));
}
