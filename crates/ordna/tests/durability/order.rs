//! The log has the writes of each key in their order, and groups as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ordna::durability::{BackupOptions, OpenOptions, SyncPolicy};
use ordna::{Change, MemoryBudget, Options, OrderedIndex, Put, Store, Write};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::Schedule;

use ordna_testkit::random::Random;

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
                            // Reads and writes in one step, so that a lost update would be visible.
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
    // The file header was durable before any record was written, so shorter prefixes do not occur.
    for len in 48..=content.len() {
        let copy = disk.after_exit();
        copy.replace(&path, content[..len].to_vec());
        lens.insert(open(&copy, SyncPolicy::Always).range(..).count());
    }
    assert_eq!(lens, BTreeSet::from([0, 1, 4]));
}

/// Several threads replay the writes of single keys. The removal of a range waits for the writes
/// before it.
#[test]
fn a_removed_range_is_repeated_between_the_writes_around_it() {
    let disk = Model::new();
    let store = open(&disk, SyncPolicy::Never);
    // A single block contains all of it.
    let group = || {
        (0..20_000).for_each(|key| _ = store.insert(&key, &key).unwrap());
        assert_eq!(store.remove_range(..).unwrap(), 20_000);
        store.insert(&1, &2).unwrap()
    };
    assert_eq!(store.log_group(group), Ok(None));
    drop(store);
    assert!(open(&disk, SyncPolicy::Never).range(..).eq([(1, 2)]));
}

/// A writer waits while another writer is between its write in memory and the append of its record.
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
    // A thread that arrives alone waits for the threads that the last sync served.
    assert!(told.syncs < 16 * 50 / 4, "{} fsyncs for 800 writes", told.syncs);
    assert_eq!(store.approximate_len(), 800);
}

/// Returns a key with one long prefix, with several, or with zeros that only its length
/// distinguishes.
fn key_of(number: u64) -> Vec<u8> {
    match number % 4 {
        0 => format!("a prefix of many keys, {number:05}").into_bytes(),
        1 => [b"b".to_vec(), vec![0; number as usize % 70]].concat(),
        2 => number.to_be_bytes().to_vec(),
        _ => format!("a prefix of many{number}").into_bytes(),
    }
}

#[test]
fn the_log_is_merged_with_the_backup() {
    for (has_backup, has_range) in [(false, false), (true, false), (true, true)] {
        let disk = Model::new();
        let open = || -> Store<[u8], [u8]> {
            let options = OpenOptions::new().storage(Arc::new(disk.clone()));
            Store::open(DIR, options.sync(SyncPolicy::Never)).unwrap()
        };
        let (store, mut expected) = (open(), BTreeMap::new());
        let mut random = Random::new(7);
        for number in 0..20_000_u64 {
            if number == 8000 && has_backup {
                store.backup(&BackupOptions::new()).unwrap();
            }
            if number == 15_000 && has_range {
                store.remove_range(&b"b"[..]..&b"c"[..]).unwrap();
                expected.retain(|key: &Vec<u8>, _| !key.starts_with(b"b"));
            }
            let key = key_of(random.below(3000));
            if random.below(3) == 0 {
                store.remove(&*key).unwrap();
                expected.remove(&key);
            } else {
                let value = number.to_be_bytes().to_vec();
                store.insert(&*key, &*value).unwrap();
                expected.insert(key, value);
            }
        }
        drop(store);
        // A limit without room, limits with room for a part of the log or all of it, and no limit.
        let limits = [1, 600 << 10, 800 << 10, 64 << 20, usize::MAX];
        let limited = |bytes| Options::new().memory_budget(&MemoryBudget::new(bytes));
        for store in limits.map(limited).into_iter().chain([Options::new().memory_limit(1)]) {
            let what = format!("{has_backup} {has_range} {store:?}");
            let options = OpenOptions::new().storage(Arc::new(disk.clone())).store(store);
            let again: Store<[u8], [u8]> =
                Store::open(DIR, options.checkpoint_after(u64::MAX)).unwrap();
            assert!(again.range(..).eq(expected.clone()), "{what}");
        }
    }
}
