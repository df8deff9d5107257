//! Transactions in the log are present as a whole or not at all after a crash, and follow what they
//! have read.

use std::collections::BTreeMap;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
#[cfg(debug_assertions)]
use std::time::Duration;

use ordna::{Error, Store, SyncPolicy};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::held;
use ordna_testkit::random::Random;

use super::disk::Model;
use super::steps::{Bytes, DIR, flush, options};

/// The power fails during transfers between accounts. Each transfer adds its number to the lists of
/// both accounts. A list with a number has all earlier ones, and both lists have the number or
/// neither.
#[test]
fn transactions_survive_a_power_cut_whole_and_in_order() {
    for seed in 0..30 {
        let disk = Model::new();
        let store = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
        let transfer = |store: &Bytes, number: u64, random: &mut Random| {
            let (from, to) = (random.below(3), 3 + random.below(3));
            store.transaction(|tx| {
                for account in [from, to] {
                    let list = tx.get([account as u8]).unwrap_or_default();
                    tx.put([account as u8], [&list[..], &number.to_le_bytes()].concat())?;
                }
                Ok(())
            })
        };
        thread::scope(|scope| {
            for thread in 0..2_u64 {
                let store = &store;
                scope.spawn(move || {
                    let mut random = Random::new(seed * 2 + thread);
                    for number in 0..40 {
                        transfer(store, number * 2 + thread, &mut random).unwrap();
                        if random.below(8) == 0 {
                            flush(store);
                        }
                    }
                });
            }
        });
        let mut random = Random::new(seed);
        let lists = |store: &Bytes| -> BTreeMap<u8, Vec<u64>> {
            let numbers = |list: &[u8]| {
                list.chunks_exact(8)
                    .map(|eight| u64::from_le_bytes(eight.try_into().unwrap()))
                    .collect()
            };
            store.iter().map(|(key, list)| (key[0], numbers(&list))).collect()
        };
        let whole = lists(&store);
        let cut = Bytes::open(DIR, options(&disk.after_power_cut(&mut random), SyncPolicy::Never));
        let cut = lists(&cut.unwrap());
        let mut times: BTreeMap<u64, u32> = BTreeMap::new();
        for (account, list) in &cut {
            assert!(whole[account].starts_with(list), "seed {seed}: {list:?} of {whole:?}");
            list.iter().for_each(|number| *times.entry(*number).or_default() += 1);
        }
        assert!(times.values().all(|times| *times == 2), "seed {seed}: {cut:?}");
        drop(store);
        let again = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
        assert_eq!(lists(&again), whole);
    }
}

/// A transaction that has read the result of a write is logged after that write, no matter how long
/// the write takes.
#[cfg(debug_assertions)]
#[test]
fn a_transaction_is_logged_behind_what_it_has_read() {
    for by_range in [false, true] {
        let disk = Model::new();
        let store: Store<u64, u64> = Store::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
        let has_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut committer = None;
            held("log.write.done", || store.put(1, 5))
                .meanwhile(|| {
                    committer = Some(scope.spawn(|| {
                        let done = store.transaction(|tx| {
                            let read = match by_range {
                                false => tx.get(1),
                                true => tx.range(..2).next().map(|(_, value)| value),
                            };
                            tx.put(100, read.unwrap() + 1)
                        });
                        has_ended.store(true, Ordering::SeqCst);
                        done
                    }));
                    thread::sleep(Duration::from_millis(50));
                    assert!(!has_ended.load(Ordering::SeqCst), "by range: {by_range}");
                })
                .unwrap();
            assert_eq!(committer.unwrap().join().unwrap(), Ok(()));
        });
        assert_eq!(store.get(100), Some(6));
    }
}

#[test]
fn a_failed_log_refuses_a_transaction_and_a_group_takes_it() {
    let disk = Model::new();
    let store: Store<u64, u64> = Store::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    store.put(1, 1).unwrap();
    let add = || store.transaction(|tx| tx.put(2, tx.get(1).unwrap_or(0) + 1));
    store.log_group(|| add().and_then(|()| store.put(3, 3))).unwrap().unwrap();
    store.close_log().unwrap();
    assert!(matches!(add(), Err(Error::LogFailed { .. })));
    assert!(matches!(store.remove(1), Err(Error::LogFailed { .. })));
    assert!(matches!(store.remove_many(&[1, 2]), Err(Error::LogFailed { .. })));
    assert!(matches!(store.remove_range(..), Err(Error::LogFailed { .. })));
    assert!(matches!(store.clear(), Err(Error::LogFailed { .. })));
    assert_eq!(store.iter().collect::<Vec<_>>(), [(1, 1), (2, 2), (3, 3)]);
    drop(store);
    let again: Store<u64, u64> = Store::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    assert_eq!(again.iter().collect::<Vec<_>>(), [(1, 1), (2, 2), (3, 3)]);
}
