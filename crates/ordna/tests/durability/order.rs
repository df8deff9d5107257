//! The log's order of each key is the order of its writes; groups are whole.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ordna::durability::{OpenOptions, SyncPolicy};
use ordna::{Change, OrderedIndex, Put, Store, Write};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::Schedule;

use super::damage::last_segment;
use super::disk::Model;
use super::steps::DIR;

fn open(disk: &Model, sync: SyncPolicy) -> Store<u64, u64> {
    Store::open(DIR, OpenOptions::new().storage(Arc::new(disk.clone())).sync(sync)).unwrap()
}

#[test]
fn writes_and_appends_of_one_key_do_not_cross() {
    for round in 0..20 {
        let disk = Model::new();
        let store = open(&disk, SyncPolicy::Never);
        thread::scope(|scope| {
            for writer in 0..4_u64 {
                let store = &store;
                scope.spawn(move || {
                    for number in 0..300_u64 {
                        let value = writer << 32 | number;
                        match number % 5 {
                            0 => drop(store.insert(&1, &value).unwrap()),
                            1 => drop(store.remove(&1)),
                            2 => store
                                .write_batch(&[Write::put(&2, &value), Write::put(&1, &value)])
                                .unwrap(),
                            3 => store
                                .log_group(|| store.insert(&1, &value))
                                .unwrap()
                                .map(|_| ())
                                .unwrap(),
                            // Reads and writes as one: a lost update would show.
                            _ => store
                                .modify_entry(&3, |found| {
                                    let sum = found.map_or(0, |found| *found.value) + 1;
                                    Change::Put(Put::forever(sum))
                                })
                                .unwrap(),
                        }
                    }
                });
            }
        });
        let last: Vec<_> = store.range(..).collect();
        assert_eq!(store.get(&3), Some(4 * 60));
        drop(store);
        let again = open(&disk, SyncPolicy::Never);
        assert!(again.range(..).eq(last.iter().copied()), "round {round}: {last:?}");
    }
}

#[test]
fn a_group_is_logged_wholly_or_not_at_all() {
    let disk = Model::new();
    let store = open(&disk, SyncPolicy::Always);
    let insert = |key| _ = store.insert(&key, &key).unwrap();
    insert(0);
    store.log_group(|| (1..4).for_each(insert)).unwrap();
    let (path, content) = last_segment(&disk);
    let mut lens = BTreeSet::new();
    // The file header was durable before anything was written: without it, records are lost.
    for len in 48..=content.len() {
        let copy = disk.after_exit();
        copy.replace(&path, content[..len].to_vec());
        lens.insert(open(&copy, SyncPolicy::Always).range(..).count());
    }
    assert_eq!(lens, BTreeSet::from([0, 1, 4]));
}

/// Several threads repeat the writes of single keys; a removed range waits for those before it.
#[test]
fn a_removed_range_is_repeated_between_the_writes_around_it() {
    let disk = Model::new();
    let store = open(&disk, SyncPolicy::Never);
    // One block has all of it.
    let group = || {
        (0..20_000).for_each(|key| _ = store.insert(&key, &key).unwrap());
        assert_eq!(store.remove_range(..).unwrap(), 20_000);
        store.insert(&1, &2).unwrap()
    };
    assert_eq!(store.log_group(group), Ok(None));
    drop(store);
    assert!(open(&disk, SyncPolicy::Never).range(..).eq([(1, 2)]));
}

/// A writer that comes between another one's write and its append waits.
#[test]
#[cfg(debug_assertions)]
fn a_write_of_a_key_waits_until_the_one_before_is_appended() {
    const DONE: &str = "log.write.done";
    const BEGINS: &str = "log.write.begins";
    let disk = Model::new();
    let store = open(&disk, SyncPolicy::Never);
    let schedule = &Schedule::new();
    schedule.hold("first", DONE);
    schedule.hold("second", BEGINS);
    thread::scope(|scope| {
        let insert = |value: u64| _ = store.insert(&1, &value).unwrap();
        scope.spawn(move || schedule.enroll("first", || insert(1)));
        schedule.wait_held("first", DONE);
        scope.spawn(move || schedule.enroll("second", || insert(2)));
        schedule.wait_held("second", BEGINS);
        schedule.release("second", BEGINS);
        thread::sleep(Duration::from_millis(30));
        schedule.release("first", DONE);
    });
    assert_eq!(store.get(&1), Some(2));
    drop(store);
    assert!(open(&disk, SyncPolicy::Never).range(..).eq([(1, 2)]));
}

#[test]
fn a_group_that_panics_is_logged_as_far_as_it_went() {
    let disk = Model::new();
    let store = open(&disk, SyncPolicy::Always);
    let group = std::panic::AssertUnwindSafe(|| {
        store.log_group(|| {
            store.insert(&1, &1).unwrap();
            store.log_group(|| store.insert(&2, &2).unwrap()).unwrap();
            panic!("on purpose");
        })
    });
    assert!(std::panic::catch_unwind(group).is_err());
    store.insert(&3, &3).unwrap();
    drop(store);
    assert!(open(&disk, SyncPolicy::Always).range(..).eq([(1, 1), (2, 2), (3, 3)]));
}

#[test]
fn many_writers_share_an_fsync() {
    let disk = Model::new().slow_syncs(Duration::from_micros(500));
    let store = open(&disk, SyncPolicy::Always);
    thread::scope(|scope| {
        for writer in 0..16_u64 {
            let store = &store;
            scope.spawn(move || {
                (0..50).for_each(|key| drop(store.insert(&(writer << 8 | key), &1).map(|_| ())))
            });
        }
    });
    let told = store.durability().unwrap();
    assert_eq!(told.appended, told.synced);
    // A thread that comes alone waits for those that were served together with it.
    assert!(told.syncs < 16 * 50 / 4, "{} fsyncs for 800 writes", told.syncs);
    assert_eq!(store.approximate_len(), 800);
}
