//! Tests that force rare interleavings in the tree and the store.
#![cfg(debug_assertions)]

use std::ops::Bound;
use std::time::Duration;

use ordna::{Options, Snapshot, Store, Write};
use ordna_base::OrderedIndex;
use ordna_base::sync::schedule::{Schedule, held};
use ordna_testkit::kinds::{TestKey, TestValue};

type Words = Store<u64, u64>;

fn tiny(slots: usize) -> Options {
    Options::new().background_collector(false).sizes(slots, 3)
}

/// Creates a store with the values `of(n)` under the keys `from..to`.
fn filled(slots: usize, from: u64, to: u64, of: impl Fn(u64) -> u64) -> Words {
    let store = Words::with_options(tiny(slots));
    (from..to).for_each(|n| _ = store.insert(&n, &of(n)).unwrap());
    store
}

fn content(snapshot: &Snapshot<u64, u64>) -> Vec<(u64, u64)> {
    snapshot.iter().collect()
}

/// Waits long enough for a thread that is not held to do its work.
fn a_moment() {
    std::thread::sleep(Duration::from_millis(30));
}

/// A change of a leaf and its neighbours while a reader is held in the leaf.
#[derive(Debug, Clone, Copy)]
enum Change {
    Split,
    Merge,
    Clear,
    Rewrite,
    ComeAndGo,
}

const CHANGES: [Change; 5] =
    [Change::Split, Change::Merge, Change::Clear, Change::Rewrite, Change::ComeAndGo];

impl Change {
    /// Makes the change, which keeps the value of the key unless `fully` is set.
    fn run<K: TestKey + ?Sized>(self, store: &Store<K, u64>, keys: &[u64], own: u64, fully: bool) {
        let put = |n: u64, value: u64| _ = store.insert(as_key::<K>(n).as_ref(), &value).unwrap();
        let remove = |n: u64| _ = store.remove(as_key::<K>(n).as_ref());
        let others = || keys.iter().copied().filter(|n| fully || *n != own);
        match self {
            Self::Split => (1000..1060).for_each(|n| put(n, n)),
            Self::Merge => others().for_each(remove),
            Self::Clear if fully => {
                _ = store.remove_range(..);
            }
            Self::Clear | Self::Rewrite => others().for_each(|n| put(n, n + 500)),
            Self::ComeAndGo => {
                (1000..1060).for_each(|n| put(n, n));
                others().for_each(remove);
                (1000..1060).for_each(remove);
                others().for_each(|n| put(n, n + 600));
            }
        }
    }
}

struct Owned<K: ToOwned + ?Sized>(K::Owned);

impl<K: TestKey + ?Sized> AsRef<K> for Owned<K> {
    fn as_ref(&self) -> &K {
        std::borrow::Borrow::borrow(&self.0)
    }
}

fn as_key<K: TestKey + ?Sized>(n: u64) -> Owned<K> {
    Owned(K::number(n))
}

/// A reader that is held in a leaf finds the key there, or follows it to the leaf that it moved to.
fn readers_stand_while_leaves_change<K: TestKey + ?Sized>() {
    let points = ["tree.seek.begun", "tree.seek.found", "tree.seek.slot_read"];
    let keys: Vec<u64> = (10..22).collect();
    for (change, point) in CHANGES.iter().flat_map(|change| points.map(|point| (change, point))) {
        for at_snapshot in [false, true] {
            for own in [10, 13, 17, 21] {
                let store = Store::<K, u64>::with_options(tiny(4));
                for n in &keys {
                    store.insert(as_key::<K>(*n).as_ref(), n).unwrap();
                }
                let snapshot = at_snapshot.then(|| store.snapshot());
                let found = held(point, || match &snapshot {
                    Some(snapshot) => snapshot.get(as_key::<K>(own).as_ref()),
                    None => store.get(as_key::<K>(own).as_ref()),
                })
                .meanwhile(|| change.run(&store, &keys, own, at_snapshot));
                assert_eq!(found, Some(own), "{change:?} at {point}, snapshot {at_snapshot}");
                store.check_invariants().unwrap();
            }
        }
    }
}

#[test]
fn readers_of_words_stand_while_leaves_change() {
    readers_stand_while_leaves_change::<u64>();
}

#[test]
fn readers_of_bytes_stand_while_leaves_change() {
    readers_stand_while_leaves_change::<[u8]>();
}

/// A scan at a snapshot that is held in a leaf, or between two leaves, returns what the snapshot
/// contains.
#[test]
fn scans_at_a_snapshot_stand_while_leaves_change() {
    let keys: Vec<u64> = (10..40).collect();
    let places = ["tree.scan.before_validate", "tree.scan.read"];
    for (change, point) in CHANGES.iter().flat_map(|change| places.map(|point| (change, point))) {
        for upwards in [true, false] {
            let store = filled(3, 10, 40, |n| n);
            let snapshot = store.snapshot();
            let scan = || match upwards {
                true => snapshot.iter().map(|(key, _)| key).collect::<Vec<u64>>(),
                false => {
                    let mut down: Vec<u64> = snapshot.iter().rev().map(|(key, _)| key).collect();
                    down.reverse();
                    down
                }
            };
            let scanned = held(point, scan).meanwhile(|| change.run::<u64>(&store, &keys, 0, true));
            assert_eq!(scanned, keys, "{change:?} at {point}, upwards {upwards}");
        }
    }
}

/// While readers are held in a leaf, leaves shift entries to the right, and two leaves become
/// three.
#[test]
fn readers_stand_while_two_leaves_become_three() {
    fn check<K: TestKey + ?Sized>() {
        let points = ["search.find.routed", "tree.seek.begun", "tree.seek.found"];
        for (point, own) in points.iter().flat_map(|point| (0..12).map(move |own| (point, own))) {
            let store = Store::<K, u64>::with_options(tiny(4));
            let put = |n: u64, value| _ = store.insert(as_key::<K>(n).as_ref(), &value).unwrap();
            (0..12).for_each(|n| put(n * 10, n));
            let snapshot = store.snapshot();
            // Their undo records move with them.
            (0..12).for_each(|n| put(n * 10, n + 500));
            let key = as_key::<K>(own * 10);
            let between = || (0..120).filter(|n| n % 10 != 0).for_each(|n| put(n, n));
            let found = held(point, || snapshot.get(key.as_ref())).meanwhile(between);
            assert_eq!(found, Some(own), "key {own} at {point}");
            for n in 0..12 {
                let key = as_key::<K>(n * 10);
                assert_eq!(snapshot.get(key.as_ref()), Some(n), "key {n} afterwards");
                assert_eq!(store.get(key.as_ref()), Some(n + 500));
            }
            assert_eq!(store.check_invariants().unwrap().entries, 120);
        }
    }
    check::<u64>();
    check::<[u8]>();
}

/// If another key takes a slot while a reader is held there, the reader must not return that key's
/// value.
#[test]
fn a_slot_taken_by_another_key_is_not_the_answer() {
    fn check<K: TestKey + ?Sized, V: TestValue + ?Sized>() {
        for other in 100..160 {
            let store = Store::<K, V>::with_options(Options::new().background_collector(false));
            let (key, value) = (as_key::<K>(7), V::dress(7));
            store.insert(key.as_ref(), std::borrow::Borrow::borrow(&value)).unwrap();
            let found =
                held("tree.seek.found", || store.get_with(key.as_ref(), |value| value.word()))
                    .meanwhile(|| {
                        store.remove(key.as_ref()).unwrap();
                        let value = V::dress(other);
                        let key = as_key::<K>(other);
                        store.insert(key.as_ref(), std::borrow::Borrow::borrow(&value)).unwrap();
                    });
            assert!(found.is_none_or(|found| found == 7), "key 7 had {found:?}");
        }
    }
    check::<u64, u64>();
    check::<[u8], [u8]>();
}

/// An overwrite in place does not change the leaf's version: its undo record is stored before its
/// slot.
#[test]
fn an_overwrite_under_a_reader_at_a_snapshot() {
    for stop in ["tree.write.before_push", "undo.push.before_dead", "tree.write.pushed"] {
        let store = filled(4, 1, 4, |n| n * 10);
        let snapshot = store.snapshot();
        let schedule = Schedule::new();
        schedule.hold("reader", "tree.seek.begun");
        schedule.hold("reader", "tree.read.before_validate");
        schedule.hold("writer", stop);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| schedule.enroll("reader", || snapshot.get(&2)));
            schedule.wait_held("reader", "tree.seek.begun");
            let writer = scope.spawn(|| schedule.enroll("writer", || store.insert(&2, &99)));
            schedule.wait_held("writer", stop);
            schedule.release("reader", "tree.seek.begun");
            schedule.wait_held("reader", "tree.read.before_validate");
            schedule.release("writer", stop);
            assert_eq!(writer.join().unwrap(), Ok(Some(20)));
            schedule.release("reader", "tree.read.before_validate");
            assert_eq!(reader.join().unwrap(), Some(20), "the writer stood at {stop}");
        });
    }
}

/// Images are created, split and merged between the steps of a reader at a snapshot.
#[test]
fn range_versions_come_under_a_reader_at_a_snapshot() {
    let of_gets = ["tree.seek.begun", "tree.seek.found", "tree.seek.slot_read"];
    let of_scans =
        ["tree.scan.begun", "tree.scan.range_version_sought", "tree.scan.before_validate"];
    let of_both = ["undo.scan.newest_end_read", "undo.scan.follows"];
    let stops = of_gets.iter().chain(&of_scans).chain(&of_both);
    // Keys written before the reader begins, and keys written while it is held.
    let writes: [(&[u64], &[u64]); 5] = [
        (&[1, 3], &[2]),
        (&[1], &[2, 3]),
        (&[], &[1, 2, 3]),
        (&[1, 2, 3], &[4, 5, 6]),
        (&[2], &[]),
    ];
    for stop in stops {
        for (before, meanwhile) in writes {
            if before.is_empty() && *stop == "undo.scan.follows" {
                continue;
            }
            for key in 1..4 {
                let store = filled(4, 1, 4, |n| n * 10);
                let snapshot = store.snapshot();
                let write = |n: &u64| _ = store.insert(n, &99).unwrap();
                before.iter().for_each(write);
                let young = store.snapshot();
                before.iter().for_each(write);
                let read = || (snapshot.get(&key), content(&snapshot), young.get(&key));
                let read = held(stop, read).meanwhile(|| {
                    meanwhile.iter().for_each(write);
                    (7..12).for_each(|n| write(&n));
                    (1..12).filter(|n| n % 4 > 0).for_each(|n| _ = store.remove(&n));
                    store.collect_garbage();
                });
                let latest = if before.contains(&key) { 99 } else { key * 10 };
                let right = (Some(key * 10), vec![(1, 10), (2, 20), (3, 30)], Some(latest));
                assert_eq!(read, right, "at {stop}, {before:?}, then {meanwhile:?}");
                store.check_invariants().unwrap();
            }
        }
    }
}

/// A writer is held before, within and after the stores of a range version.
#[test]
fn an_image_is_written_under_a_reader_at_a_snapshot() {
    let stops = [
        "undo.range_version.stored",
        "undo.push.before_dead",
        "undo.range_version.linked",
        "tree.write.pushed",
    ];
    let gets = ("tree.seek.begun", "tree.read.before_validate");
    let scans = ("tree.scan.begun", "tree.scan.before_validate");
    for (stop, (begin, end)) in stops.iter().flat_map(|stop| [(stop, gets), (stop, scans)]) {
        let store = filled(4, 1, 4, |n| n * 10);
        let snapshot = store.snapshot();
        [1, 3].iter().for_each(|n| _ = store.insert(n, &99).unwrap());
        let schedule = Schedule::new();
        schedule.hold("reader", begin);
        schedule.hold("reader", end);
        schedule.hold("writer", stop);
        let read = || match begin {
            "tree.seek.begun" => snapshot.get(&2).map(|value| (2, value)).into_iter().collect(),
            _ => content(&snapshot),
        };
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| schedule.enroll("reader", read));
            schedule.wait_held("reader", begin);
            let writer = scope.spawn(|| schedule.enroll("writer", || store.insert(&2, &99)));
            schedule.wait_held("writer", stop);
            schedule.release("reader", begin);
            schedule.wait_held("reader", end);
            schedule.release("writer", stop);
            assert_eq!(writer.join().unwrap(), Ok(Some(20)));
            schedule.release("reader", end);
            let read = reader.join().unwrap();
            let right = [(1, 10), (2, 20), (3, 30)];
            assert!(read == right || read == [(2, 20)], "{read:?}, the writer stood at {stop}");
        });
        assert_eq!(store.statistics().dead, 1, "one range version is left");
    }
}

/// If the leaf that a writer has found is merged away before it is locked, the write goes to the leaf
/// that has the key then.
#[test]
fn a_writer_finds_its_leaf_merged_away() {
    for own in 0..24 {
        let store = filled(4, 0, 24, |n| n);
        let done = held("tree.lock.searched", || store.insert(&own, &777))
            .meanwhile(|| (0..24).filter(|n| n % 7 != 3).for_each(|n| _ = store.remove(&n)));
        done.unwrap();
        assert_eq!(store.get(&own), Some(777), "key {own}");
        store.check_invariants().unwrap();
    }
}

/// A writer that trusts the search layer for its leaf's fence stands while the fence sinks.
#[test]
fn a_writer_finds_its_fence_sunk() {
    for stop in ["search.find.before_look", "search.find.looked", "tree.lock.searched"] {
        for own in (5..170).step_by(2) {
            // How far below and above the key the removed leaves reach.
            for (below, above) in [(3, 0), (6, 1), (9, 0), (1, 4), (12, 12)] {
                let store = Store::<[u8], u64>::with_options(tiny(4));
                let key = |n: u64| as_key::<[u8]>(n);
                let put = |n: u64| _ = store.insert(key(n).as_ref(), &n).unwrap();
                (0..170).filter(|n| n % 5 == 0).for_each(put);
                let done = held(stop, || store.insert(key(own).as_ref(), &777)).meanwhile(|| {
                    (own.saturating_sub(below)..own + above + 1).filter(|n| *n != own).for_each(put)
                });
                done.unwrap();
                let case = format!("key {own} at {stop}, {below} below and {above} above");
                assert_eq!(store.get(key(own).as_ref()), Some(777), "{case}");
                store.check_invariants().unwrap_or_else(|broken| panic!("{case}: {broken:?}"));
            }
        }
    }
}

/// A snapshot that is taken during a batch, while leaves are split concurrently, contains all of
/// the batch or nothing.
#[test]
fn a_batch_is_whole_while_its_leaves_split() {
    let store = filled(3, 0, 30, |n| n * 10);
    let keys: Vec<u64> = (0..30).step_by(4).collect();
    let writes: Vec<_> = keys.iter().map(|key| Write::put(key, &7)).collect();
    let before = store.snapshot();
    let mut during = None;
    held("store.batch.between_writes", || store.write_batch(&writes).unwrap())
        .meanwhile(|| during = Some(store.snapshot()));
    (100..160).for_each(|n| _ = store.insert(&n, &n).unwrap());
    keys.iter().for_each(|key| _ = store.remove(key));
    let during = during.unwrap();
    let values: Vec<_> = keys.iter().map(|key| during.get(key)).collect();
    assert!(values.iter().all(|value| *value == Some(7)), "{values:?}");
    assert!(content(&before).into_iter().eq((0..30).map(|n| (n, n * 10))));
    store.check_invariants().unwrap();
}

/// During a batch, another write in the same epoch splits leaves of both.
#[test]
fn a_batch_and_a_split_of_one_epoch() {
    let store = filled(3, 0, 30, |n| n * 10);
    let before = store.snapshot();
    let keys: Vec<u64> = (0..30).step_by(4).collect();
    let writes: Vec<_> = keys.iter().map(|key| Write::put(key, &7)).collect();
    held("store.batch.between_writes", || store.write_batch(&writes).unwrap()).meanwhile(|| {
        (100..160).for_each(|n| _ = store.insert(&n, &n).unwrap());
        (0..30).for_each(|n| _ = store.insert(&n, &8).unwrap());
    });
    assert!(content(&before).into_iter().eq((0..30).map(|n| (n, n * 10))));
    store.check_invariants().unwrap();
}

/// The removal of a range is held between two leaves while a snapshot is taken, which must contain
/// all of the removal or nothing.
#[test]
fn a_range_is_removed_wholly_for_a_snapshot_taken_meanwhile() {
    let store = filled(3, 0, 40, |n| n);
    let before = store.snapshot();
    let mut during = None;
    let removed = held("tree.range.leaf_done", || {
        store.remove_range((Bound::Included(&5), Bound::Excluded(&35))).unwrap()
    })
    .meanwhile(|| {
        during = Some(store.snapshot());
        assert_eq!(store.get(&39), Some(39));
    });
    assert_eq!(removed, 30);
    let during = during.unwrap();
    assert!(content(&during).into_iter().map(|(key, _)| key).eq((0..5).chain(35..40)));
    assert!(content(&before).into_iter().map(|(key, _)| key).eq(0..40));
    drop((before, during));
    store.collect_garbage();
    assert_eq!(store.statistics().dead, 0);
    store.check_invariants().unwrap();
}

/// A writer reads the epoch before a snapshot is taken, and announces itself after it.
#[test]
fn a_writer_that_comes_late_writes_in_the_new_epoch() {
    for point in ["store.enter.before_registration", "store.enter.before_recheck"] {
        let store = filled(4, 1, 2, |_| 10);
        let mut taken = None;
        let writer = held(point, || store.insert(&1, &11)).meanwhile(|| {
            let snapshot = taken.insert(store.snapshot());
            if point == "store.enter.before_registration" {
                // No writer is announced, so the snapshot can be read. It must not change from now
                // on.
                assert_eq!(snapshot.get(&1), Some(10));
            }
        });
        writer.unwrap();
        let snapshot = taken.unwrap();
        assert_eq!((snapshot.get(&1), store.get(&1)), (Some(10), Some(11)));
    }
}

/// A snapshot ends while a writer is held between its undo record and its slot. Without collectors
/// the next write frees the record.
#[test]
fn a_record_that_outlives_its_snapshot_goes_with_the_next_write() {
    let store = filled(4, 1, 3, |_| 10);
    let snapshot = store.snapshot();
    let write = || store.insert(&1, &11).unwrap();
    held("tree.write.pushed", write).meanwhile(|| drop(snapshot));
    assert_eq!(store.statistics().dead, 1, "its epoch has not quiesced");
    store.insert(&2, &11).unwrap();
    assert_eq!(store.statistics().dead, 0);
}

/// A read returns the value and the deadline of the same write.
#[test]
fn a_read_beside_an_overwrite_takes_no_deadline_from_another_value() {
    let store = filled(4, 1, 3, |_| 10);
    let later = store.now() + 1_000_000;
    store.insert_until(&1, &10, later).unwrap();
    let read = || store.get_entry_with(&1, |put| (*put.value, put.expires_at));
    let found = held("tree.seek.word_read", read).meanwhile(|| store.insert(&1, &11).unwrap());
    assert!([Some((10, Some(later))), Some((11, None))].contains(&found), "{found:?}");
}

/// The barrier of a batch opens while a snapshot of the same epoch is taken. The batch then pushes
/// undo records for earlier snapshots only: one for each key, and not one for each write.
#[test]
fn a_snapshot_of_its_own_term_costs_a_batch_no_records() {
    let store = filled(4, 1, 3, |_| 10);
    let first = store.snapshot();
    let schedule = Schedule::new();
    schedule.hold("writer", "tree.lock.searched");
    schedule.hold("batch", "sync.waits");
    let writes = [11, 12, 13];
    let put = || store.write_batch(&writes.each_ref().map(|value| Write::put(&1, value)));
    let third = std::thread::scope(|scope| {
        let writer = scope.spawn(|| schedule.enroll("writer", || store.insert(&2, &11)));
        schedule.wait_held("writer", "tree.lock.searched");
        let _second = store.snapshot();
        let batch = scope.spawn(|| schedule.enroll("batch", put));
        schedule.wait_held("batch", "sync.waits");
        schedule.release("writer", "tree.lock.searched");
        writer.join().unwrap().unwrap();
        let third = store.snapshot();
        schedule.release("batch", "sync.waits");
        batch.join().unwrap().unwrap();
        third
    });
    assert_eq!((first.get(&1), third.get(&1)), (Some(10), Some(13)));
    assert_eq!(store.statistics().dead, 2, "of two keys");
}

/// A snapshot that is taken between a writer's announcement and its write contains the write.
/// Readers of the snapshot wait for it.
#[test]
fn a_snapshot_between_announcement_and_write_waits_for_the_write() {
    for stop in ["tree.lock.searched", "store.apply.prepared"] {
        let store = filled(4, 1, 2, |_| 10);
        let schedule = Schedule::new();
        schedule.hold("writer", stop);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| schedule.enroll("writer", || store.insert(&1, &11)));
            schedule.wait_held("writer", stop);
            let (snapshot, again) = (store.snapshot(), store.snapshot());
            assert_eq!(snapshot.epoch(), again.epoch(), "nothing can be written between them");
            drop(again);
            let read = snapshot.clone();
            let reader = scope.spawn(|| schedule.enroll("reader", move || read.get(&1)));
            schedule.wait_waiting("reader");
            schedule.release("writer", stop);
            writer.join().unwrap().unwrap();
            assert_eq!((reader.join().unwrap(), snapshot.get(&1)), (Some(11), Some(11)));
            // This snapshot outlives the other one of its epoch.
            store.insert(&1, &12).unwrap();
            assert_eq!(snapshot.get(&1), Some(11));
        });
    }
}

/// Chunks are freed while a writer pushes onto a list with links into them.
#[test]
fn undo_records_are_freed_beside_a_push_and_a_prune() {
    for stop in ["undo.push.before_dead", "tree.write.before_push", "undo.prune.relinked"] {
        let store = Store::<[u8], [u8]>::with_options(tiny(4));
        let key = |n: u64| n.to_be_bytes();
        let write = |n: u64, round: u64| {
            store.insert(&key(n), &[round as u8; 100]).unwrap();
        };
        let mut live = Vec::new();
        // Enough records to fill many chunks.
        for round in 0..300 {
            (0..4).for_each(|n| write(n, round));
            if round % 2 == 0 {
                live.push(store.snapshot());
            }
        }
        let last = store.snapshot();
        let schedule = Schedule::new();
        schedule.hold("writer", stop);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                schedule.enroll("writer", || {
                    for round in 0..1000 {
                        let _young = store.snapshot();
                        write(round % 4, 200);
                    }
                });
            });
            schedule.wait_held("writer", stop);
            // Frees all records that only these snapshots could see.
            let frees = scope.spawn(|| live.clear());
            a_moment();
            schedule.release("writer", stop);
            writer.join().unwrap();
            frees.join().unwrap();
        });
        assert!(last.iter().all(|(_, value)| value == [299_u64 as u8; 100]));
        assert_eq!(last.len(), 4);
        drop(last);
        store.collect_garbage();
        let told = store.statistics();
        assert_eq!((told.dead, told.items), (0, 4), "{stop}");
        store.check_invariants().unwrap();
        (0..4).for_each(|n| _ = store.remove(&key(n)));
        assert_eq!(store.statistics().bytes, 0, "{stop}: bytes are given back once");
    }
}

/// Undo records are freed while a reader at an older snapshot is held in their list.
#[test]
fn undo_records_are_freed_beside_a_reader() {
    let store = filled(4, 0, 4, |n| n);
    let old = store.snapshot();
    (0..4).for_each(|n| _ = store.insert(&n, &(n + 10)).unwrap());
    let young = store.snapshot();
    (0..4).for_each(|n| _ = store.insert(&n, &(n + 20)).unwrap());
    let found = held("tree.seek.slot_read", || young.get(&2)).meanwhile(|| {
        drop(old);
        store.collect_garbage();
        (0..40).for_each(|n| _ = store.insert(&(n % 4), &n).unwrap());
    });
    assert_eq!(found, Some(12));
}

/// Leaves are split and merged while a group of writes is in progress that has already found its
/// leaves.
#[test]
fn a_group_of_writes_stands_while_its_leaves_change() {
    fn check<K: TestKey + ?Sized>() {
        let keys: Vec<u64> = (10..22).collect();
        for change in CHANGES {
            for removes in [false, true] {
                let store = Store::<K, u64>::with_options(tiny(4));
                keys.iter().for_each(|n| _ = store.insert(as_key::<K>(*n).as_ref(), n).unwrap());
                let group: Vec<K::Owned> = (8..24).map(|n| as_key::<K>(n).0).collect();
                let pairs: Vec<_> = group.iter().map(|key| (key.clone(), 7)).collect();
                held("store.many.between_writes", || match removes {
                    true => _ = store.remove_many(&group),
                    false => _ = store.insert_many(&pairs).unwrap(),
                })
                .meanwhile(|| change.run(&store, &keys, 10, true));
                store.check_invariants().unwrap();
                // The first write took place before the change, all others after it.
                let expected = (!removes).then_some(7);
                for key in &group[1..] {
                    let key = std::borrow::Borrow::borrow(key);
                    assert_eq!(store.get(key), expected, "{change:?}, removes {removes}");
                }
            }
        }
    }
    check::<u64>();
    check::<[u8]>();
}

/// Whole leaves are dropped while readers, scans and writers are held in them.
#[test]
fn a_range_is_dropped_under_readers_and_writers() {
    fn check<K: TestKey + ?Sized>() {
        let keys: Vec<u64> = (0..60).collect();
        let mut sorted: Vec<K::Owned> = keys.iter().map(|n| K::number(*n)).collect();
        sorted.sort();
        let as_ref = |key: &K::Owned| as_owned::<K>(key.clone());
        let filled = || {
            let store = Store::<K, u64>::with_options(tiny(4));
            sorted.iter().for_each(|key| _ = store.insert(as_ref(key).as_ref(), &1).unwrap());
            store
        };
        let (low, high) = (as_ref(&sorted[10]), as_ref(&sorted[50]));
        let drop_range = |store: &Store<K, u64>| {
            let (low, high) = (Bound::Included(low.as_ref()), Bound::Excluded(high.as_ref()));
            assert_eq!(store.remove_range((low, high)).unwrap(), 40);
        };
        for own in (0..60).step_by(3) {
            let key = as_ref(&sorted[own]);
            let gone = (10..50).contains(&own);
            for stop in ["tree.seek.begun", "tree.seek.slot_read", "search.find.routed"] {
                let store = filled();
                let found = held(stop, || store.get(key.as_ref())).meanwhile(|| drop_range(&store));
                assert!(found == Some(1) || found.is_none() && gone, "key {own} at {stop}");
            }
            let store = filled();
            let write = || store.insert(key.as_ref(), &2).unwrap();
            held("tree.lock.searched", write).meanwhile(|| drop_range(&store));
            assert_eq!(store.get(key.as_ref()), Some(2), "key {own}");
            assert_eq!(store.approximate_len(), 20 + usize::from(gone));
            store.check_invariants().unwrap();
        }
        for stop in ["tree.scan.before_validate", "tree.scan.read"] {
            let store = filled();
            let all = || store.range(..);
            let scanned: Vec<K::Owned> =
                held(stop, || all().map(|(key, _)| key).collect()).meanwhile(|| drop_range(&store));
            assert!(scanned.is_sorted(), "at {stop}");
            let stays = |key: &&K::Owned| !sorted[10..50].contains(key);
            assert!(scanned.iter().filter(stays).eq(sorted.iter().filter(stays)), "at {stop}");
        }
    }
    fn as_owned<K: TestKey + ?Sized>(key: K::Owned) -> Owned<K> {
        Owned(key)
    }
    check::<u64>();
    check::<[u8]>();
}

/// A scan that is held in a leaf, or between leaves, returns each key that is not removed once, in
/// order.
#[test]
fn scans_stand_while_entries_move() {
    type Change = (&'static str, fn(&Words));
    let changes: [Change; 4] = [
        ("shift", |store| _ = store.insert(&1, &1).unwrap()),
        ("shift further on", |store| _ = store.insert(&37, &1).unwrap()),
        ("split", |store| (33..47).step_by(2).for_each(|key| _ = store.insert(&key, &0).unwrap())),
        ("merge", |store| {
            (0..100).filter(|key| key % 8 != 4).for_each(|key| _ = store.remove(&key));
        }),
    ];
    let stops = ["tree.leaf.entries_copied", "tree.scan.before_validate", "tree.scan.read"];
    for ((name, change), stop) in changes.iter().flat_map(|c| stops.map(move |stop| (c, stop))) {
        for upwards in [true, false] {
            for skipped in 0..4 {
                let store = Words::with_options(tiny(8));
                (0..100).step_by(2).for_each(|key| _ = store.insert(&key, &key).unwrap());
                // Makes room in the second leaf, and in the one after the sixteenth key from the
                // end.
                [18, 22, 26, 50, 54, 58].iter().for_each(|key| _ = store.remove(key));
                let stays = (0..100).filter(|key| key % 8 == 4);
                // The scan begins `skipped` leaves after the first one, or before the last one. A
                // reverse scan that skips three begins in a leaf with room, which a shift fills
                // during the scan.
                let skipped = skipped * 16;
                let (low, high) = if upwards { (skipped, 100) } else { (0, 100 - skipped) };
                let scan = || -> Vec<u64> {
                    let range = store.range(low..high).map(|(key, _)| key);
                    if upwards { range.collect() } else { range.rev().collect() }
                };
                let mut scanned = held(stop, scan).meanwhile(|| change(&store));
                if !upwards {
                    scanned.reverse();
                }
                let told = format!("{name} at {stop}, upwards {upwards}, from {low}: {scanned:?}");
                assert!(scanned.is_sorted_by(|one, other| one < other), "{told}");
                for key in stays.filter(|key| (low..high).contains(key)) {
                    assert!(scanned.contains(&key), "{key} is missing; {told}");
                }
            }
        }
    }
}

/// A writer that begins after undo records were retired must not follow links to them.
#[test]
fn a_split_beside_the_end_of_undo_records() {
    let store = Words::with_options(tiny(4));
    (0..4).for_each(|key| _ = store.insert(&(key * 10), &key).unwrap());
    let old = store.snapshot();
    (0..4).for_each(|key| _ = store.insert(&(key * 10), &(key + 7)).unwrap());
    drop(old);
    let schedule = Schedule::new();
    schedule.hold("end", "undo.free.chunks_gone");
    schedule.hold("writer", "undo.collect.horizon_read");
    std::thread::scope(|scope| {
        let end = scope.spawn(|| schedule.enroll("end", || store.collect_garbage()));
        schedule.wait_held("end", "undo.free.chunks_gone");
        let writer = scope.spawn(|| schedule.enroll("writer", || store.insert(&15, &1)));
        schedule.wait_held("writer", "undo.collect.horizon_read");
        schedule.release("end", "undo.free.chunks_gone");
        end.join().unwrap();
        schedule.release("writer", "undo.collect.horizon_read");
        assert_eq!(writer.join().unwrap(), Ok(None));
    });
    let again = store.snapshot();
    (0..4).for_each(|key| _ = store.insert(&(key * 10), &0).unwrap());
    store.check_invariants().unwrap();
    assert!(content(&again).into_iter().eq([(0, 7), (10, 8), (15, 1), (20, 9), (30, 10)]));
}

/// A reader that loads the newest end epoch before a split, and the head of the list after it, must
/// not follow a link.
#[test]
fn a_reader_between_a_death_and_its_link_meets_a_split() {
    let store = Words::with_options(tiny(4));
    (0..4).for_each(|key| _ = store.insert(&(key * 10), &key).unwrap());
    let first = store.snapshot();
    store.insert(&0, &7).unwrap();
    let second = store.snapshot();
    // The record of key 30 precedes that of key 0, which the second snapshot does not need.
    store.insert(&30, &9).unwrap();
    let read = held("undo.scan.newest_end_read", || second.get(&0))
        .meanwhile(|| assert_eq!(store.insert(&25, &1), Ok(None)));
    assert_eq!(read, Some(7));
    assert!(content(&first).into_iter().eq([(0, 0), (10, 1), (20, 2), (30, 3)]));
}
