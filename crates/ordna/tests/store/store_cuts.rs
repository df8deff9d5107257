//! Many threads at once: every snapshot is a cut and never changes.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna::{Options, Snapshot, Store, Write};
use ordna_base::{Direction, OrderedIndex};
use ordna_testkit::random::Random;

const WRITERS: u64 = 3;
/// Keys of each writer.
const KEYS: u64 = 400;
/// Keys of a batch.
const BATCH: u64 = 5;

/// Ends the other threads when this one ends, by a panic too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each writer goes through the rounds 1, 2, 3 …; in round r it writes r to its key number r mod
/// KEYS, or removes it if r is a multiple of 3. After r rounds the state of its keys is known.
fn value_after(rounds: u64, key: u64) -> Option<u64> {
    // The last round up to `rounds` that was about this key.
    let behind = (rounds + KEYS - key) % KEYS;
    let last = rounds.checked_sub(behind).filter(|last| *last > 0)?;
    (!last.is_multiple_of(3)).then_some(last)
}

fn key_of(writer: u64, key: u64) -> u64 {
    key * WRITERS + writer
}

fn write_round(store: &Store<u64, u64>, writer: u64, round: u64) {
    let key = key_of(writer, round % KEYS);
    if round.is_multiple_of(3) {
        store.remove(&key);
    } else {
        store.insert(&key, &round).unwrap();
    }
}

/// The state of each writer's keys must be that after some number of rounds, between those that had
/// ended before the snapshot and those that had begun after it.
fn check(snapshot: &Snapshot<u64, u64>, ended: &[u64], begun: &[u64], upwards: bool) -> Vec<u64> {
    let mut content = vec![vec![None; KEYS as usize]; WRITERS as usize];
    let direction = if upwards { Direction::Ascending } else { Direction::Descending };
    let mut count = 0;
    snapshot.visit(Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        let place = &mut content[(key % WRITERS) as usize][(key / WRITERS) as usize];
        assert!(place.is_none(), "key {key} twice");
        *place = Some(*value);
        count += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(snapshot.len(), count, "the number of items");
    let mut cut = Vec::new();
    for writer in 0..WRITERS as usize {
        let right = |rounds: u64| {
            (0..KEYS).all(|key| content[writer][key as usize] == value_after(rounds, key))
        };
        let (low, high) = (ended[writer], begun[writer]);
        let Some(rounds) = (low..=high).find(|rounds| right(*rounds)) else {
            panic!("writer {writer}: the state after no number of rounds from {low} to {high}")
        };
        cut.push(rounds);
    }
    cut
}

fn cuts(options: Options) {
    let store: Store<u64, u64> = Store::with_options(options);
    let end = Instant::now() + ordna_testkit::budget();
    let begun: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let ended: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let look = |counters: &[AtomicU64]| -> Vec<u64> {
        counters.iter().map(|counter| counter.load(Ordering::SeqCst)).collect()
    };
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
        for writer in 0..WRITERS {
            let (store, begun, ended, done) = (&store, &begun, &ended, &done);
            scope.spawn(move || {
                let mut round = 0;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    begun[writer as usize].store(round, Ordering::SeqCst);
                    write_round(store, writer, round);
                    ended[writer as usize].store(round, Ordering::SeqCst);
                }
            });
        }
        let mut random = Random::new(3);
        let mut live: Vec<(Snapshot<u64, u64>, Vec<u64>)> = Vec::new();
        let mut snapshots = 0;
        // Writers may have to wait for their turn on a processor.
        let give_up = end + Duration::from_secs(20);
        let is_idle = || store.statistics().collected == 0 && Instant::now() < give_up;
        while Instant::now() < end || snapshots < 12 || is_idle() {
            let before = look(&ended);
            let snapshot = store.snapshot();
            let after = look(&begun);
            let cut = check(&snapshot, &before, &after, snapshots % 2 == 0);
            // Cuts are ordered as the snapshots are.
            if let Some((_, last)) = live.last() {
                assert!(last.iter().zip(&cut).all(|(a, b)| a <= b), "{last:?}, then {cut:?}");
            }
            live.push((snapshot, cut));
            snapshots += 1;
            if live.len() > 6 {
                let (snapshot, cut) = live.remove(random.below(6) as usize);
                assert_eq!(check(&snapshot, &cut, &cut, snapshots % 2 == 1), cut);
            }
        }
        for (snapshot, cut) in &live {
            assert_eq!(check(snapshot, cut, cut, true), *cut);
        }
    });
    store.collect_garbage();
    let audit = store.validate().unwrap();
    assert_eq!((audit.entries, store.statistics().dead), (store.statistics().items, 0));
    assert!(store.statistics().collected > 0, "rounds begun: {:?}", look(&begun));
}

#[test]
fn every_snapshot_is_a_cut() {
    cuts(Options::new().collectors(2));
}

#[test]
fn every_snapshot_is_a_cut_whoever_collects() {
    cuts(Options::new().collectors(0));
}

#[test]
fn every_snapshot_is_a_cut_of_tiny_nodes() {
    cuts(Options::new().collectors(1).sizes(3, 3));
    cuts(Options::new().collectors(0).sizes(2, 3));
}

/// All keys of a batch hold the same number, in every snapshot.
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
    store.validate().unwrap();
}

/// Removals of ranges are all or nothing too, and the sums of transfers stay.
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
    std::thread::scope(|scope| {
        let _ends = Ends(&done);
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
                assert_eq!(store.remove_range(Bound::Included(&100), Bound::Excluded(&130)), 30);
            }
        });
        while Instant::now() < end {
            let snapshot = store.snapshot();
            assert_eq!(snapshot.get(&0).unwrap() + snapshot.get(&1).unwrap(), SUM);
            let within = snapshot.range(100..130).count();
            assert!(within == 0 || within == 30, "{within} of 30");
        }
    });
    store.validate().unwrap();
}

/// Partition points divide evenly, more or less, and in order.
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
    // More parts than versions: one part for each.
    for parts in [20_000, 1 << 40, usize::MAX] {
        let points = store.partition_points(parts);
        assert_eq!(points, (1..20_000).map(|key| key * 7).collect::<Vec<_>>());
    }
}

/// Walks are counted while they last, however they end; the long ones with their age. Reads of keys
/// are not.
#[test]
fn walks_under_way_are_counted() {
    let store: Store<u64, u64> = Store::with_options(Options::new().collectors(0));
    (0..5000).for_each(|key| drop(store.insert(&key, &key)));
    let snapshot = store.snapshot();
    let counts = || {
        let told = store.statistics();
        (told.walks, told.long_walks)
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
            let (walks, long) = counts();
            assert_eq!(walks, 1);
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
                // A short one within, of the latest state, that is cut off.
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
    // A range that is held reads nothing.
    let mut range = snapshot.iter();
    assert_eq!(range.next(), Some((0, 0)));
    assert_eq!(counts(), (0, vec![]));
    // One that stands still is seen by others.
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
        let (walks, long) = counts();
        assert_eq!((walks, long.len()), (1, 1));
        assert!(counts().1[0] >= long[0]);
        told.wait();
    });
    assert_eq!(counts(), (0, vec![]));
}
