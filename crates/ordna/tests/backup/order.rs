//! The log's order of each key is the order of its writes; groups are whole.

use std::sync::Arc;
use std::thread;

use ordna::backup::{OpenOptions, Sync};
use ordna::{Change, OrderedIndex, Put, Store, Write};

use super::disk::Model;
use super::steps::DIR;

fn open(disk: &Model, sync: Sync) -> Store<u64, u64> {
    Store::open(DIR, OpenOptions::new().storage(Arc::new(disk.clone())).sync(sync)).unwrap()
}

#[test]
fn writes_and_appends_of_one_key_do_not_cross() {
    for round in 0..20 {
        let disk = Model::new();
        let store = open(&disk, Sync::Never);
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
        let again = open(&disk, Sync::Never);
        assert!(again.range(..).eq(last.iter().copied()), "round {round}: {last:?}");
    }
}

#[test]
fn a_group_that_panics_is_logged_as_far_as_it_went() {
    let disk = Model::new();
    let store = open(&disk, Sync::Always);
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
    assert!(open(&disk, Sync::Always).range(..).eq([(1, 1), (2, 2), (3, 3)]));
}

#[test]
fn many_writers_share_an_fsync() {
    let disk = Model::new();
    let store = open(&disk, Sync::Always);
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
    assert!(told.syncs < 16 * 50, "{} fsyncs for 800 writes", told.syncs);
    assert_eq!(store.approximate_len(), 800);
}
