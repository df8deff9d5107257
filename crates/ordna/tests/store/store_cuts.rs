//! Tests with many threads: every snapshot is consistent and never changes.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ordna::{Change, Found, Options, Put, Store, Write};
use ordna_base::Direction;
use ordna_testkit::random::Random;
use ordna_testkit::snapshots::{Ends, check_cuts};

const WRITERS: u64 = 3;
/// Number of keys in a batch.
const BATCH: u64 = 5;

#[test]
fn every_snapshot_is_a_cut() {
    let options = Options::new;
    for options in [
        options().background_collector(true),
        options().background_collector(false),
        options().background_collector(true).sizes(3, 3),
        options().background_collector(false).sizes(2, 3),
    ] {
        check_cuts(&Store::with_options(options));
    }
}

/// In every snapshot all keys of a batch have the same number.
#[test]
fn no_snapshot_holds_a_part_of_a_batch() {
    let store: Store<[u8], u64> = Store::new();
    let end = Instant::now() + ordna_testkit::budget();
    let keys = |writer: u64| -> Vec<Vec<u8>> {
        (0..BATCH).map(|n| format!("{n}-{writer}").into_bytes()).collect()
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for writer in 0..WRITERS {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let keys = keys(writer);
                let mut round = 0;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    let writes: Vec<Write<'_, [u8], u64>> = keys
                        .iter()
                        .map(|key| match round % 4 {
                            0 => Write::Remove(key.as_slice()),
                            _ => Write::put(key.as_slice(), &round),
                        })
                        .collect();
                    store.write_batch(&writes).unwrap();
                }
            });
        }
        while Instant::now() < end {
            let snapshot = store.snapshot();
            for writer in 0..WRITERS {
                let values: Vec<_> = keys(writer).iter().map(|key| snapshot.get(key)).collect();
                assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            }
            assert!(snapshot.len().is_multiple_of(BATCH as usize));
        }
    });
    store.check_invariants().unwrap();
}

/// A snapshot contains all or nothing of the removal of a range, and transfers never change their
/// total.
#[test]
fn ranges_are_removed_wholly_and_transfers_keep_their_sum() {
    const SUM: u64 = 1000;
    let store: Store<u64, u64> = Store::new();
    let end = Instant::now() + ordna_testkit::budget();
    let done = AtomicBool::new(false);
    let fill = || {
        let pairs: Vec<(u64, u64)> = (100..130).map(|key| (key, 1)).collect();
        let batch: Vec<_> = pairs.iter().map(|(key, value)| Write::put(key, value)).collect();
        store.write_batch(&batch).unwrap();
    };
    store.write_batch(&[Write::put(&0, &SUM), Write::put(&1, &0)]).unwrap();
    let moves_back = |found: Option<Found<'_, u64>>| {
        let [first, second] = match found.map(|found| *found.value) {
            Some(0) => [&SUM, &0],
            _ => [&0, &SUM],
        };
        [first, second].map(|value| Change::Put(Put::forever(value)))
    };
    store.modify_two([&2, &3], moves_back).unwrap();
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.modify_two([&2, &3], moves_back).unwrap();
            }
        });
        scope.spawn(|| {
            let mut random = Random::new(4);
            while !done.load(Ordering::Relaxed) {
                let amount = random.below(SUM);
                store
                    .write_batch(&[Write::put(&0, &amount), Write::put(&1, &(SUM - amount))])
                    .unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fill();
                assert_eq!(
                    store.remove_range((Bound::Included(&100), Bound::Excluded(&130))).unwrap(),
                    30
                );
            }
        });
        while Instant::now() < end {
            let snapshot = store.snapshot();
            assert_eq!(snapshot.get(&0).unwrap() + snapshot.get(&1).unwrap(), SUM);
            assert_eq!(snapshot.get(&2).unwrap() + snapshot.get(&3).unwrap(), SUM);
            let within = snapshot.range(100..130).count();
            assert!(within == 0 || within == 30, "{within} of 30");
        }
    });
    store.check_invariants().unwrap();
}

/// Partition points divide the store into parts of similar size, and are sorted.
#[test]
fn partition_points_divide_the_store() {
    let store: Store<u64, u64> = Store::new();
    assert!(store.partition_points(4).is_empty());
    for key in 0..20_000 {
        store.insert(&(key * 7), &key).unwrap();
    }
    for parts in [1, 2, 3, 8, 50] {
        let points = store.partition_points(parts);
        assert_eq!(points.len(), parts - 1);
        let mut from = Bound::Unbounded;
        let mut sizes = Vec::new();
        for point in &points {
            sizes.push(store.range((from, Bound::Excluded(*point))).count());
            from = Bound::Included(*point);
        }
        sizes.push(store.range((from, Bound::Unbounded)).count());
        assert_eq!(sizes.iter().sum::<usize>(), 20_000);
        let largest = *sizes.iter().max().unwrap();
        assert!(largest < 4 * 20_000 / parts, "{parts} parts: {sizes:?}");
    }
    assert!(store.partition_points(0).is_empty());
    // If more parts are requested than there are versions, each version is a part.
    for parts in [20_000, 1 << 40, usize::MAX] {
        let points = store.partition_points(parts);
        assert_eq!(points, (1..20_000).map(|key| key * 7).collect::<Vec<_>>());
    }
}

/// Scans count as in progress until they end, however they end. The statistics include the age of
/// long ones. Reads of single keys do not count.
#[test]
fn scans_under_way_are_counted() {
    let store: Store<u64, u64> = Store::with_options(Options::new().background_collector(false));
    (0..5000).for_each(|key| drop(store.insert(&key, &key)));
    let snapshot = store.snapshot();
    let counts = || {
        let told = store.statistics();
        (told.scans, told.long_scans)
    };
    assert_eq!(counts(), (0, vec![]));
    store.get_with(&7, |_| assert_eq!(counts().0, 0)).unwrap();
    store.get_many_with(&[1, 2, 3], |_, _| assert_eq!(counts().0, 0));
    let all = (Bound::Unbounded, Bound::Unbounded);
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut passed = 0;
        let mut oldest = Duration::ZERO;
        snapshot.visit(all.0, all.1, direction, |key, _| {
            passed += 1;
            let (scans, long) = counts();
            assert_eq!(scans, 1);
            match passed {
                1..=50 => assert!(long.is_empty(), "after {passed}"),
                2500.. => {
                    assert_eq!(long.len(), 1);
                    assert!(long[0] >= oldest);
                    oldest = long[0];
                }
                _ => {}
            }
            if passed % 1000 == 0 {
                // Inside it, a short scan of the latest state, which is ended early.
                store.visit(Bound::Included(key), all.1, direction, |_, _| {
                    assert_eq!((counts().0, counts().1.len()), (2, long.len()));
                    ControlFlow::Break(())
                });
            }
            ControlFlow::Continue(())
        });
        assert_eq!((passed, counts()), (5000, (0, vec![])));
        assert!(oldest > Duration::ZERO);
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.visit(all.0, all.1, Direction::Ascending, |key, _| {
            if *key == 4000 {
                std::panic::resume_unwind(Box::new("a visitor"));
            }
            ControlFlow::Continue(())
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(counts(), (0, vec![]));
    // An iterator reads nothing until it is used.
    let mut range = snapshot.iter();
    assert_eq!(range.next(), Some((0, 0)));
    assert_eq!(counts(), (0, vec![]));
    // Other threads can see a scan that is held.
    let (inside, told) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            snapshot.visit(all.0, all.1, Direction::Ascending, |key, _| {
                if *key == 4000 {
                    inside.wait();
                    told.wait();
                }
                ControlFlow::Continue(())
            });
        });
        inside.wait();
        let (scans, long) = counts();
        assert_eq!((scans, long.len()), (1, 1));
        assert!(counts().1[0] >= long[0]);
        told.wait();
    });
    assert_eq!(counts(), (0, vec![]));
}
