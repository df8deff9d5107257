//! Forces rare interleavings of Nitro. A number is that of a known defect of published
//! implementations.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ordna_base::sync::schedule::{PATIENCE, Schedule, held, two_at};
use ordna_base::{Direction, OrderedIndex};
use ordna_papers::Nitro;
use ordna_papers::nitro::{Order, Snapshot};
use ordna_testkit::shorthand::Shorthand as _;

type Words = Nitro<u64, u64>;

/// Returns an index on which the calling threads collect.
fn words() -> Words {
    Nitro::with(0, Order::LiveSet)
}

fn fill(index: &Words, keys: impl Iterator<Item = u64>, value: u64) {
    index.put_all(keys.map(|key| (key, value)));
}

fn clear(index: &Words, keys: impl Iterator<Item = u64>) {
    index.remove_all(keys);
}

fn scanned(snapshot: &Snapshot<u64, u64>) -> Vec<(u64, u64)> {
    scanned_in(snapshot, Direction::Ascending)
}

/// Returns the entries in ascending order, scanned in either direction.
fn scanned_in(snapshot: &Snapshot<u64, u64>, direction: Direction) -> Vec<(u64, u64)> {
    let mut scanned = Vec::new();
    snapshot.visit(Bound::Unbounded, Bound::Unbounded, direction, |key, value| {
        scanned.push((*key, *value));
        ControlFlow::Continue(())
    });
    if matches!(direction, Direction::Descending) {
        scanned.reverse();
    }
    scanned
}

/// Waits long enough for a thread that is not blocked to do its part. If this has no effect, the
/// test has shown that the thread is blocked.
fn a_moment() {
    std::thread::sleep(Duration::from_millis(60));
}

/// 1: a scan that leaves and enters its reading section continues after the version that it passed
/// last, whatever happened to that version in the meantime.
#[test]
fn n1_a_refreshed_scan_neither_repeats_nor_loses_nor_shows_what_is_dead() {
    refreshed_scan(Direction::Ascending);
    refreshed_scan(Direction::Descending);
}

fn refreshed_scan(direction: Direction) {
    const KEYS: u64 = 1500;
    let index = words();
    fill(&index, 0..KEYS, 0);
    let old = index.snapshot();
    // There are several versions per key, so that a section ends between two versions of one key.
    for round in 1..4 {
        fill(&index, (0..KEYS).filter(|key| key % 3 != 0), round);
        if round < 3 {
            clear(&index, (0..KEYS).step_by(7));
        }
    }
    let now = index.snapshot();
    let right: Vec<_> = index.range(..).collect();
    let [first, oldest, second] =
        held("nitro.scan.refreshes", || [&now, &old, &now].map(|of| scanned_in(of, direction)))
            .meanwhile(|| {
                // Everything around the place changes, and everything that no snapshot sees is
                // collected.
                for key in 0..KEYS {
                    index.insert(&key, &9).unwrap();
                    index.remove(&key);
                }
                index.collect_garbage();
            });
    assert!(first == right, "{} entries, not {}", first.len(), right.len());
    assert!(second == right);
    assert_eq!(oldest, (0..KEYS).map(|key| (key, 0)).collect::<Vec<_>>());
    index.check_invariants().unwrap();
}

/// 1: the version passed last was just replaced by one with the same rank, which follows it.
#[test]
fn n1_a_refreshed_scan_meets_what_was_exchanged_where_it_left() {
    const LAST_OF_SECTION: u64 = 63;
    let index = words();
    fill(&index, 0..1000, 0);
    let schedule = Schedule::new();
    // The old version is logically unlinked, but still physically present.
    schedule.hold("writer", "skiplist.replace.after_swap");
    std::thread::scope(|scope| {
        scope.spawn(|| schedule.enroll("writer", || index.insert(&LAST_OF_SECTION, &1).unwrap()));
        schedule.wait_held("writer", "skiplist.replace.after_swap");
        let keys: Vec<u64> =
            index.scanned(Direction::Ascending).into_iter().map(|(key, _)| key).collect();
        schedule.release("writer", "skiplist.replace.after_swap");
        assert_eq!(keys, (0..1000).collect::<Vec<_>>());
    });
}

/// 1: keys are inserted after the place at which the scan continues, and before the key with which
/// it continues.
#[test]
fn n1_a_refreshed_scan_does_not_go_back_to_what_was_inserted_before_its_place() {
    const SECTION: u64 = 64;
    let index = words();
    fill(&index, 0..1000, 0);
    // The last keys of the first section, except for the very last one.
    let gap = SECTION - 4..SECTION - 1;
    let schedule = Schedule::new();
    schedule.hold("scanner", "nitro.scan.refreshes");
    std::thread::scope(|scope| {
        let scanner =
            scope.spawn(|| schedule.enroll("scanner", || index.scanned(Direction::Ascending)));
        schedule.wait_held("scanner", "nitro.scan.refreshes");
        clear(&index, gap.start..SECTION);
        schedule.hold("scanner", "skiplist.locate.found_before");
        schedule.release("scanner", "nitro.scan.refreshes");
        schedule.wait_held("scanner", "skiplist.locate.found_before");
        fill(&index, gap.clone(), 1);
        schedule.release("scanner", "skiplist.locate.found_before");
        let scanned = scanner.join().unwrap();
        assert_eq!(scanned, (0..1000).map(|key| (key, 0)).collect::<Vec<_>>());
    });
}

/// 2: a version is removed, and the snapshot of one ends, while its upper levels are linked.
#[test]
fn n2_a_version_is_removed_while_its_tower_is_being_linked() {
    for round in 0..20_u64 {
        let index = words();
        let schedule = Schedule::new();
        schedule.hold("inserter", "skiplist.link_upper.before_link");
        std::thread::scope(|scope| {
            let inserter = scope.spawn(|| {
                schedule.enroll("inserter", || {
                    fill(&index, (0..400).step_by(2), round);
                });
            });
            schedule.wait_held("inserter", "skiplist.link_upper.before_link");
            let half_linked = index.last().unwrap().0;
            assert_eq!(index.remove(&half_linked), Some(round));
            index.insert(&half_linked, &7).unwrap();
            schedule.release("inserter", "skiplist.link_upper.before_link");
            inserter.join().unwrap();
            assert_eq!(index.get(&half_linked), Some(7));
        });
        index.check_invariants().unwrap();
        clear(&index, (0..400).step_by(2));
        assert_eq!(index.check_invariants().unwrap().nodes, 0);
    }
}

/// 3: two threads remove an item that a snapshot sees. One of them succeeds, and the item is
/// collected once.
#[test]
fn n3_of_two_racing_removers_exactly_one_wins() {
    let index = words();
    index.insert(&5, &50).unwrap();
    let snapshot = index.snapshot();
    let wins = two_at("nitro.remove.before_death", || index.remove(&5));
    assert_eq!(wins.iter().flatten().count(), 1, "{wins:?}");
    let statistics = index.statistics();
    assert_eq!((statistics.items, statistics.dead), (0, 1));
    assert_eq!(snapshot.get(&5), Some(50));
    drop(snapshot);
    assert_eq!(index.check_invariants().unwrap().nodes, 0);
}

/// 4: two snapshots have the same epoch. The end of one is not the end of the other.
#[test]
fn n4_a_snapshot_that_shares_its_term_outlives_the_other() {
    let index = words();
    fill(&index, 1..3, 10);
    let older = index.snapshot();
    let mut other = None;
    held("nitro.put.before_claim", || index.insert(&2, &20).unwrap()).meanwhile(|| {
        let one = index.snapshot();
        let other = other.insert(index.snapshot());
        assert_eq!(one.epoch(), other.epoch(), "no write can have ended between them");
    });
    let other = other.unwrap();
    clear(&index, 1..3);
    index.collect_garbage();
    assert_eq!(scanned(&other), [(1, 10), (2, 20)]);
    assert_eq!(other.len(), 2);
    // Clones share it, too.
    let clone = other.clone();
    drop(other);
    index.collect_garbage();
    assert_eq!(scanned(&clone), [(1, 10), (2, 20)]);
    drop((older, clone));
    index.collect_garbage();
    assert_eq!(index.check_invariants().unwrap().nodes, 0);
}

/// 5: a collector finishes while another snapshot ends.
#[test]
fn n5_a_trigger_that_meets_a_finishing_collector_is_not_lost() {
    let index = words();
    let schedule = Schedule::new();
    fill(&index, 0..2, 0);
    let [first, second] = [0, 1].map(|key| {
        let snapshot = index.snapshot();
        index.remove(&key);
        snapshot
    });
    schedule.hold("first", "nitro.collect.examined");
    std::thread::scope(|scope| {
        let dropper = scope.spawn(|| schedule.enroll("first", || drop(first)));
        schedule.wait_held("first", "nitro.collect.examined");
        // It has read the live set, and assumes that the second snapshot keeps key 1.
        drop(second);
        schedule.release("first", "nitro.collect.examined");
        dropper.join().unwrap();
    });
    assert_eq!(index.statistics().dead, 0);
    assert_eq!(index.check_invariants().unwrap().nodes, 0);
}

/// 5: the same with the index's own threads: no other thread triggers a collection.
#[test]
fn n5_background_collectors_lose_nothing() {
    let index: Words = Nitro::with(2, Order::LiveSet);
    for round in 0..200 {
        index.insert(&round, &0).unwrap();
        let snapshots = [index.snapshot(), index.snapshot()];
        index.remove(&round);
        std::thread::scope(|scope| {
            snapshots.into_iter().for_each(|snapshot| drop(scope.spawn(|| drop(snapshot))));
        });
    }
    let give_up = Instant::now() + Duration::from_secs(20);
    while index.statistics().dead > 0 {
        assert!(Instant::now() < give_up, "{:?}", index.statistics());
        std::thread::yield_now();
    }
    index.collect_garbage();
    assert_eq!(index.check_invariants().unwrap().nodes, 0);
}

/// 5: the last snapshot that sees a version ends after the remover has read the live set and before
/// the version is in its list.
#[test]
fn n5_a_snapshot_ends_while_a_version_it_sees_is_being_buried() {
    let index = words();
    index.insert(&1, &0).unwrap();
    let snapshot = index.snapshot();
    held("nitro.dispose.seen", || index.remove(&1)).meanwhile(|| drop(snapshot));
    assert_eq!(index.statistics().dead, 0, "no thread is left to trigger a collection");
    assert_eq!(index.check_invariants().unwrap().nodes, 0);
}

/// A put and a removal of the same version: exactly one of them returns its value.
#[test]
fn a_removal_waits_for_a_put_that_has_claimed_its_version() {
    let index = words();
    index.insert(&1, &10).unwrap();
    let _snapshot = index.snapshot();
    let schedule = Schedule::new();
    schedule.hold("putter", "nitro.put.claimed");
    std::thread::scope(|scope| {
        let putter = scope.spawn(|| schedule.enroll("putter", || index.insert(&1, &11).unwrap()));
        schedule.wait_held("putter", "nitro.put.claimed");
        assert_eq!(index.get(&1), Some(10), "claimed, not ended");
        assert_eq!(index.scanned(Direction::Ascending), [(1, 10)]);
        let remover = scope.spawn(|| schedule.enroll("remover", || index.remove(&1)));
        schedule.wait_waiting("remover");
        schedule.release("putter", "nitro.put.claimed");
        assert_eq!((putter.join().unwrap(), remover.join().unwrap()), (Some(10), Some(11)));
    });
    index.check_invariants().unwrap();
}

/// While both versions exist, the claimed one is no longer the latest.
#[test]
fn a_claimed_version_with_one_behind_it_is_not_shown() {
    // Heights are random, so a search may find either version first.
    for _ in 0..20 {
        let index = words();
        index.insert(&1, &10).unwrap();
        let _snapshot = index.snapshot();
        let putter = held("nitro.put.inserted", || index.insert(&1, &11)).meanwhile(|| {
            assert_eq!(index.get(&1), Some(11));
            assert_eq!(index.scanned(Direction::Ascending), [(1, 11)]);
            assert_eq!(index.last(), Some((1, 11)));
            // It is removed in the same epoch, and the claimed version must not become visible
            // again.
            assert_eq!(index.remove(&1), Some(11));
            assert_eq!(index.get(&1), None);
            assert_eq!(index.scanned(Direction::Ascending), []);
        });
        assert_eq!(putter, Ok(Some(10)));
        assert_eq!(index.get(&1), None);
        index.check_invariants().unwrap();
    }
}

/// The version after a claimed one is inserted before the scan, and removed before the scan reaches
/// it.
#[test]
fn a_claimed_version_does_not_rise_when_the_one_behind_it_is_removed() {
    let index = words();
    index.insert(&5, &0).unwrap();
    let _snapshot = index.snapshot();
    let schedule = Schedule::new();
    schedule.hold("writer", "nitro.put.inserted");
    schedule.hold("scanner", "nitro.read.claimed");
    std::thread::scope(|scope| {
        scope.spawn(|| schedule.enroll("writer", || index.insert(&5, &1).unwrap()));
        schedule.wait_held("writer", "nitro.put.inserted");
        assert_eq!(index.get(&5), Some(1), "the old value is gone before the scan begins");
        let scanner =
            scope.spawn(|| schedule.enroll("scanner", || index.scanned(Direction::Ascending)));
        schedule.wait_held("scanner", "nitro.read.claimed");
        assert_eq!(index.remove(&5), Some(1));
        schedule.release("scanner", "nitro.read.claimed");
        let scanned = scanner.join().unwrap();
        schedule.release("writer", "nitro.put.inserted");
        assert!(scanned.is_empty() || scanned == [(5, 1)], "{scanned:?}");
    });
    index.check_invariants().unwrap();
}

/// A writer with a long list of dead versions starts their examination after its write, not during
/// it.
#[test]
fn nobody_waits_for_a_writer_that_collects() {
    let index = words();
    fill(&index, 0..600, 0);
    let _old = index.snapshot();
    let schedule = Schedule::new();
    schedule.hold("writer", "nitro.collect.examined");
    std::thread::scope(|scope| {
        scope.spawn(|| schedule.enroll("writer", || fill(&index, 0..600, 1)));
        schedule.wait_held("writer", "nitro.collect.examined");
        let (tell, told) = mpsc::channel();
        let index = &index;
        scope.spawn(move || {
            let snapshot = index.snapshot();
            index.insert(&1000, &1).unwrap();
            tell.send(snapshot.get(&0)).unwrap();
        });
        let read = told.recv_timeout(Duration::from_secs(20));
        schedule.release("writer", "nitro.collect.examined");
        assert_eq!(read, Ok(Some(1)), "it waited for the collection");
    });
    index.check_invariants().unwrap();
}

/// A key that is continually overwritten is never absent, even if the version that a reader finds
/// last is dead when the reader examines it.
#[test]
fn a_read_goes_on_from_a_version_that_was_overwritten_under_it() {
    let mut forced = 0;
    // Heights are random, and only reads that find an old version first reach this point.
    for _ in 0..40 {
        let index = words();
        index.insert(&1, &10).unwrap();
        let _oldest = index.snapshot();
        index.insert(&1, &11).unwrap();
        let _old = index.snapshot();
        let schedule = Schedule::new();
        schedule.hold("reader", "nitro.get.found_last");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let found = schedule.enroll("reader", || index.get(&1));
                done.store(true, Ordering::SeqCst);
                found
            });
            while !done.load(Ordering::SeqCst)
                && !schedule.is_held("reader", "nitro.get.found_last")
            {
                std::thread::yield_now();
            }
            forced += u64::from(!done.load(Ordering::SeqCst));
            index.insert(&1, &12).unwrap();
            schedule.release("reader", "nitro.get.found_last");
            let found = reader.join().unwrap();
            assert!([Some(11), Some(12)].contains(&found), "{found:?}");
        });
    }
    assert!(forced > 0, "the interleaving never happened");
}

/// If a conditional write finds nothing and does nothing, the key must have been absent.
#[test]
fn a_write_that_does_nothing_saw_that_nothing_was_there() {
    let index = words();
    index.insert(&1, &10).unwrap();
    let _snapshot = index.snapshot();
    let updater = held("nitro.apply.found_older", || index.update(&1, |value| value + 1))
        .meanwhile(|| assert_eq!(index.insert(&1, &20), Ok(Some(10))));
    assert_eq!(updater, Ok(Some(21)));
    assert_eq!(index.get(&1), Some(21));
    index.check_invariants().unwrap();
}

/// A write is in progress when the snapshot is taken. The reader of the snapshot waits for the
/// write, and sees it.
#[test]
fn a_write_under_way_is_in_the_snapshot() {
    let index = words();
    index.insert(&1, &10).unwrap();
    let _older = index.snapshot();
    let schedule = Schedule::new();
    schedule.hold("writer", "nitro.put.before_claim");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| schedule.enroll("writer", || index.insert(&1, &11)));
        schedule.wait_held("writer", "nitro.put.before_claim");
        let snapshot = index.snapshot();
        let read = move || (snapshot.get(&1), scanned(&snapshot), snapshot.len());
        let reader = scope.spawn(|| schedule.enroll("reader", read));
        schedule.wait_waiting("reader");
        schedule.release("writer", "nitro.put.before_claim");
        assert_eq!(writer.join().unwrap(), Ok(Some(10)));
        assert_eq!(reader.join().unwrap(), (Some(11), vec![(1, 11)], 1));
    });
}

/// Returns an index with a dead version, and a collector that has found this version.
fn with_a_busy_collector(schedule: &Schedule) -> Words {
    let index = Words::with(1, Order::LiveSet);
    index.insert(&1, &0).unwrap();
    let snapshot = index.snapshot();
    index.remove(&1);
    schedule.hold("collector", "nitro.collect.examined");
    // The thread that starts the collector passes its role on.
    schedule.enroll("collector", || drop(snapshot));
    schedule.wait_held("collector", "nitro.collect.examined");
    index
}

/// A working collector is not notified of versions that other threads queue in the meantime.
#[test]
fn a_collector_looks_for_more_before_it_sleeps() {
    let schedule = Schedule::new();
    let index = with_a_busy_collector(&schedule);
    index.insert(&2, &0).unwrap();
    let snapshot = index.snapshot();
    index.remove(&2);
    drop(snapshot);
    schedule.release("collector", "nitro.collect.examined");
    let give_up = Instant::now() + PATIENCE;
    while index.statistics().dead > 0 {
        assert!(Instant::now() < give_up, "{:?}", index.statistics());
        std::thread::yield_now();
    }
}

#[test]
fn an_index_waits_for_its_collectors_when_it_is_dropped() {
    let (schedule, released) = (Schedule::new(), AtomicBool::new(false));
    let index = with_a_busy_collector(&schedule);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            a_moment();
            released.store(true, Ordering::Relaxed);
            schedule.release("collector", "nitro.collect.examined");
        });
        drop(index);
        assert!(released.load(Ordering::Relaxed), "the collector is at work");
    });
}

/// An audit counts the dead version that another thread examines. A collection returns when that
/// thread is done.
#[test]
fn audits_and_collections_wait_for_threads_that_collect() {
    let report: fn(&Words) = |index| assert_eq!(index.check_invariants().unwrap().nodes, 0);
    let collection: fn(&Words) = |index| index.collect_garbage();
    for wait in [report, collection] {
        let (index, released) = (words(), AtomicBool::new(false));
        index.insert(&1, &0).unwrap();
        let snapshot = index.snapshot();
        index.remove(&1);
        let schedule = Schedule::new();
        schedule.hold("collector", "nitro.collect.examined");
        std::thread::scope(|scope| {
            scope.spawn(|| schedule.enroll("collector", || drop(snapshot)));
            schedule.wait_held("collector", "nitro.collect.examined");
            let waiting = scope.spawn(|| {
                wait(&index);
                released.load(Ordering::Relaxed)
            });
            a_moment();
            released.store(true, Ordering::Relaxed);
            schedule.release("collector", "nitro.collect.examined");
            assert!(waiting.join().unwrap(), "the collector is at work");
        });
        assert_eq!(index.statistics().dead, 0);
    }
}
