//! Transactions step by step: reads of own writes, conflicts, limits and exclusion of other
//! writers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ordna::{Error, Options, Store, TransactionOptions, Write};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::held;
use ordna_testkit::random::Random;

type Words = Store<u64, u64>;

fn store_of(keys: impl IntoIterator<Item = u64>) -> Words {
    let store: Words = Store::with_options(Options::new().sizes(4, 4));
    keys.into_iter().for_each(|key| store.put(key, key).unwrap());
    store
}

const CONFLICT: Result<(), Error> = Err(Error::Conflict { attempts: 1 });

/// Compares reads in both directions and in several parts with a map that holds the snapshot and
/// the transaction's writes.
#[test]
fn a_transaction_reads_its_own_writes() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let store = store_of((0..40).filter(|key| key % 3 != 0));
        let tx = store.begin();
        let mut model: BTreeMap<u64, u64> = store.iter().collect();
        store.put(1000, 1).unwrap();
        for step in 0..30 {
            let key = random.below(50);
            match random.below(6) {
                0 => assert_eq!(tx.remove(key), Ok(model.remove(&key))),
                1 => assert_eq!(tx.insert(key, step), Ok(model.insert(key, step))),
                2 => {
                    tx.put(key, step).unwrap();
                    model.insert(key, step);
                }
                3 if random.below(8) == 0 => {
                    let gone = model.len();
                    model.retain(|other, _| !(key..key + 9).contains(other));
                    assert_eq!(tx.remove_range(key..key + 9), Ok(gone - model.len()));
                }
                4 if random.below(8) == 0 => {
                    assert_eq!(tx.pop_first(), Ok(model.pop_first()));
                    assert_eq!(tx.pop_last(), Ok(model.pop_last()));
                }
                _ => assert_eq!(tx.get(key), model.get(&key).copied()),
            }
            let (low, high) = (random.below(50), random.below(50));
            if low <= high {
                let want: Vec<(u64, u64)> = model.range(low..high).map(|(k, v)| (*k, *v)).collect();
                assert!(tx.range(low..high).eq(want.iter().copied()), "seed {seed}");
                assert!(tx.range(low..high).rev().eq(want.iter().rev().copied()), "seed {seed}");
                assert_eq!(tx.count(Bound::Included(&low), Bound::Excluded(&high)), want.len());
                let mut both = tx.range(low..high);
                let ends = (both.next(), both.next_back());
                let mut want = want.into_iter();
                assert_eq!(ends, (want.next(), want.next_back()));
                assert!(both.eq(want));
            }
        }
        assert_eq!(tx.first(), model.first_key_value().map(|(k, v)| (*k, *v)));
        assert_eq!(tx.last(), model.last_key_value().map(|(k, v)| (*k, *v)));
        assert_eq!(tx.select_with(2, |key, _| *key), model.keys().nth(2).copied());
        // Nothing is visible before the commit. The transaction has also read the end of all keys.
        assert_eq!(store.len(), 27);
        assert_eq!(tx.commit(), CONFLICT);
        assert_eq!(store.len(), 27);
    }
}

#[test]
fn what_was_read_must_not_change() {
    type Step = fn(&Words);
    let put: Step = |store| store.put(20, 99).unwrap();
    let insert: Step = |store| store.put(21, 99).unwrap();
    let remove: Step = |store| _ = store.remove(20).unwrap();
    let range: Step = |store| _ = store.remove_range(20..22).unwrap();
    let batch: Step = |store| store.write_batch(&[Write::Remove(&20)]).unwrap();
    let nothing: Step = |_| {};
    let same: Step = |store| {
        store.put(20, 99).unwrap();
        store.remove(21).unwrap();
        store.put(20, 20).unwrap();
    };
    let there_and_back: Step = |store| {
        store.put(21, 1).unwrap();
        store.remove(21).unwrap();
    };
    type Reads = fn(&ordna::Transaction<'_, u64, u64>);
    let key: Reads = |tx| assert_eq!(tx.get(20), Some(20));
    let absent: Reads = |tx| assert_eq!(tx.get(21), None);
    let some: Reads = |tx| assert_eq!(tx.range(10..30).count(), 10);
    let back: Reads = |tx| assert_eq!(tx.range(10..30).rev().count(), 10);
    let first: Reads = |tx| assert_eq!(tx.range(19..).next(), Some((20, 20)));
    let last: Reads = |tx| assert_eq!(tx.range(..22).next_back(), Some((20, 20)));
    let elsewhere: Reads = |tx| assert_eq!(tx.range(22..=26).count() + tx.range(..=18).count(), 13);
    let blind: Reads = |_| {};
    for (at, (reads, changes, is_valid)) in [
        (key, put, false),
        (key, remove, false),
        (key, range, false),
        (key, batch, false),
        (key, insert, true),
        (key, nothing, true),
        (key, same, true),
        (absent, insert, false),
        (absent, put, true),
        (absent, there_and_back, true),
        (some, put, false),
        (some, insert, false),
        (some, remove, false),
        (some, range, false),
        (some, same, true),
        (some, there_and_back, true),
        (back, insert, false),
        (back, remove, false),
        (first, put, false),
        (first, remove, false),
        (first, insert, true),
        (last, remove, false),
        (last, insert, false),
        (elsewhere, range, true),
        (elsewhere, insert, true),
        (blind, range, true),
    ]
    .into_iter()
    .enumerate()
    {
        let store = store_of((0..60).step_by(2));
        let tx = store.begin();
        reads(&tx);
        tx.put(1, 1).unwrap();
        changes(&store);
        let want = if is_valid { Ok(()) } else { CONFLICT };
        assert_eq!(tx.commit(), want, "case {at}");
        assert_eq!(store.get(1), is_valid.then_some(1), "case {at}");
        store.check_invariants().unwrap();
    }
}

#[test]
fn readers_never_conflict() {
    let store = store_of(0..10);
    let tx = store.begin();
    assert_eq!(tx.iter().count(), 10);
    store.clear().unwrap();
    assert_eq!(tx.get(5), Some(5));
    assert_eq!(tx.commit(), Ok(()));
    // A transaction that discards its writes is a reader.
    let tx = store.begin();
    assert_eq!(tx.get(5), None);
    tx.put(6, 6).unwrap();
    store.put(5, 1).unwrap();
    tx.abandon();
    assert_eq!((tx.commit(), store.get(6)), (Ok(()), None));
}

#[test]
fn expired_entries_are_changes() {
    let time = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&time);
    let options = Options::new().background_collector(false);
    let store: Words = Store::with_options(options.clock(move || clock.load(Ordering::SeqCst)));
    store.insert_until(&1, &1, 100).unwrap();
    for read_all in [false, true] {
        let tx = store.begin();
        if read_all {
            assert_eq!(tx.iter().count(), usize::from(time.load(Ordering::SeqCst) < 100));
        } else {
            assert_eq!(tx.get(1), Some(1));
        }
        tx.put_for(2, 2, Duration::from_millis(50)).unwrap();
        if read_all {
            time.store(100, Ordering::SeqCst);
            assert_eq!(tx.commit(), CONFLICT);
        } else {
            assert_eq!(tx.commit(), Ok(()));
            assert_eq!(store.expiry(&2), Some(Some(50)));
            store.remove(2).unwrap();
        }
    }
}

/// When most keys of a leaf change, one version of the whole leaf replaces the single ones. A
/// transaction must see it as a change, too.
#[test]
fn ranges_of_which_most_keys_changed_are_seen() {
    for slots in [4, 64] {
        for changed in [1, 8, 40, 60] {
            for removes in [false, true] {
                let store: Words = Store::with_options(Options::new().sizes(slots, 4));
                (0..60).for_each(|key| store.put(key, key).unwrap());
                let tx = store.begin();
                assert_eq!(tx.range(..).count(), 60);
                tx.put(1000, 0).unwrap();
                for key in 0..changed {
                    match removes {
                        true => _ = store.remove(key).unwrap(),
                        false => store.put(key, 99).unwrap(),
                    }
                }
                assert_eq!(tx.commit(), CONFLICT, "{changed} keys, leaves of {slots}, {removes}");
            }
        }
    }
}

/// A change of a value keeps the key's deadline. If others have changed the deadline that a
/// transaction has read, the transaction conflicts.
#[test]
fn deadlines_are_read_and_kept() {
    let store: Words = Store::with_options(Options::new().clock(|| 0));
    store.insert_until(&1, &1, 100).unwrap();
    store.put(2, 2).unwrap();
    let add = |tx: &ordna::Transaction<'_, u64, u64>| {
        assert_eq!(tx.update(1, |value| value + 1), Ok(Some(2)));
        assert_eq!(tx.update(1, |value| value + 1), Ok(Some(3)));
        assert_eq!(tx.update(3, |value| value + 1), Ok(None));
        tx.put(2, 1)
    };
    let tx = store.begin();
    add(&tx).unwrap();
    store.set_expiry(&1, Some(200)).unwrap();
    assert_eq!(tx.commit(), CONFLICT);
    store.transaction(add).unwrap();
    assert_eq!((store.get(1), store.expiry(&1)), (Some(3), Some(Some(200))));
    let map: ordna::Map<u64, u64> = ordna::Map::new();
    map.insert_for(1, 1, Duration::from_secs(60)).unwrap();
    assert_eq!(map.transaction(|tx| tx.update(1, |value| value + 1)), Ok(Some(2)));
    assert!(map.expires_in(1).unwrap().is_some());
}

/// A suspended transaction resumes with its reads and writes, but only in its own store.
#[test]
fn suspended_transactions_go_on() {
    let (store, other) = (store_of([1, 2]), store_of([1]));
    for conflicts in [false, true] {
        let tx = store.begin();
        assert_eq!(tx.insert(2, 5), Ok(Some(2 + 3 * u64::from(conflicts))));
        let suspended = tx.suspend();
        if conflicts {
            store.put(2, 9).unwrap();
        }
        let done = thread::scope(|scope| {
            let resumed = scope.spawn(|| {
                let tx = store.resume(suspended)?;
                assert_eq!(tx.get(2), Some(5));
                tx.commit()
            });
            resumed.join().unwrap()
        });
        assert_eq!(done, if conflicts { CONFLICT } else { Ok(()) });
    }
    let foreign = other.begin().suspend();
    assert!(matches!(store.resume(foreign), Err(Error::OtherStore)));
    assert_eq!(store.statistics().snapshots.len(), 0);
}

/// A panic in the closure of a transaction writes nothing and blocks no other thread.
#[test]
fn a_panic_in_a_transaction_writes_nothing() {
    let store = store_of([1]);
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.transaction(|tx| -> Result<(), Error> {
            tx.put(1, 2)?;
            panic!("the user's")
        })
    }));
    assert!(panics.is_err());
    assert_eq!(store.get(1), Some(1));
    assert_eq!(store.statistics().snapshots.len(), 0);
    assert_eq!(store.transaction(|tx| tx.insert(1, 3)), Ok(Some(1)));
}

#[test]
fn errors_name_the_limit_and_write_nothing() {
    let store: Store<[u8], [u8]> = Store::with_options(Options::new().memory_limit(100_000));
    store.put("a", "1").unwrap();
    let tx = store.begin();
    let long = vec![0; 70_000];
    assert_eq!(tx.put(&long, "x"), Err(Error::KeyTooLong { len: 70_000 }));
    assert_eq!((tx.get(&long), tx.remove(&long)), (None, Ok(None)));
    tx.put("a", "2").unwrap();
    tx.put("b", vec![0; 200_000]).unwrap();
    assert_eq!(tx.commit(), Err(Error::MemoryLimit { limit: 100_000 }));
    assert_eq!((store.get("a"), store.get("b")), (Some(b"1".to_vec()), None));
    let options = TransactionOptions::new().age_limit(Duration::ZERO).attempts(0);
    let old = store.transaction_with(&options, |tx| tx.put("a", "2"));
    assert_eq!(old, Err(Error::TransactionTooOld { limit: Duration::ZERO }));
    // The number of attempts is bounded; here each attempt meets a change.
    let options = TransactionOptions::new().attempts(7);
    let mut runs = 0;
    let refused = store.transaction_with(&options, |tx| {
        runs += 1;
        assert!(tx.contains_key("a"));
        store.put("a", [runs])?;
        tx.put("c", "")
    });
    assert_eq!((refused, runs), (Err(Error::Conflict { attempts: 7 }), 7));
    let stopped: Result<(), Error> = store.transaction(|tx| {
        tx.put("c", "")?;
        Err(Error::OtherStore)
    });
    assert_eq!((stopped, store.get("c")), (Err(Error::OtherStore), None));
    store.check_invariants().unwrap();
}

/// A transaction that has read more keys and ranges than it records one by one still detects
/// changes.
#[test]
fn many_reads_are_noted_as_ranges() {
    let store: Words = Store::new();
    for key in 0..70_000 {
        store.put(2 * key, 0).unwrap();
    }
    for by_ranges in [false, true] {
        let tx = store.begin();
        for key in 0..70_000 {
            match by_ranges {
                false => assert_eq!(tx.get(2 * key), Some(0)),
                true => assert_eq!(tx.range(2 * key..=2 * key).count(), 1),
            }
        }
        tx.put(1, 1).unwrap();
        store.put(77_777 + u64::from(by_ranges) * 2, 1).unwrap();
        assert_eq!(tx.commit(), CONFLICT, "{by_ranges}");
    }
}

/// A typical leaderboard: a score by player, and a row of a ranking that repeats the score.
#[test]
fn a_leaderboard_is_exact() {
    let scores = |player: u64| player;
    let row = |score: u64, player: u64| 1000 + score * 16 + player;
    let store: Words = Store::new();
    thread::scope(|scope| {
        for thread in 0..2_u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..3000 {
                    let (player, score) = (round % 4, round * 2 + thread);
                    store
                        .transaction(|tx| {
                            if let Some(old) = tx.insert(scores(player), score)? {
                                tx.remove(row(old, player))?;
                            }
                            tx.put(row(score, player), 0)
                        })
                        .unwrap();
                }
            });
        }
    });
    let rows: Vec<u64> = store.range(1000..).map(|(key, _)| key).collect();
    let mut want: Vec<u64> =
        (0..4).map(|player| row(store.get(scores(player)).unwrap(), player)).collect();
    want.sort_unstable();
    assert_eq!(rows, want);
}

/// No other writer writes between the validation of a transaction and its writes, whether it began
/// before the validation or begins after it.
#[cfg(debug_assertions)]
#[test]
fn no_writer_comes_between_validation_and_writes() {
    for what in 0..4 {
        let store = store_of([1, 2]);
        let has_written = AtomicBool::new(false);
        let commit = || store.transaction(|tx| tx.put(2, tx.get(1).unwrap() + 10));
        thread::scope(|scope| {
            let mut writer = None;
            let held = held("transaction.commit.validated", commit);
            held.meanwhile(|| {
                writer = Some(scope.spawn(|| {
                    match what {
                        0 => store.put(1, 5).unwrap(),
                        1 => store.write_batch(&[Write::put(&1, &5)]).unwrap(),
                        2 => _ = store.remove_range(..2).unwrap(),
                        _ => store.transaction(|tx| tx.put(1, 5)).unwrap(),
                    }
                    has_written.store(true, Ordering::SeqCst);
                }));
                // Readers and snapshots continue.
                assert_eq!(store.get(1), Some(1));
                thread::sleep(Duration::from_millis(50));
                assert!(!has_written.load(Ordering::SeqCst), "writer {what}");
            })
            .unwrap();
            writer.unwrap().join().unwrap();
        });
        assert_eq!(store.get(2), Some(11));
        assert_ne!(store.get(1), Some(1));
    }
}

/// A batch that began earlier ends before the validation, which therefore sees all of it. Otherwise
/// the transaction would overwrite the half that it sees and miss the other half.
#[cfg(debug_assertions)]
#[test]
fn a_commit_waits_for_the_writers_of_its_epoch() {
    let store = store_of([1, 2]);
    let tx = store.begin();
    assert_eq!(tx.get(1), Some(1));
    tx.put(2, 0).unwrap();
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut committer = None;
        let writes = [Write::put(&2, &5), Write::put(&1, &5)];
        held("store.batch.between_writes", || store.write_batch(&writes))
            .meanwhile(|| {
                committer = Some(scope.spawn(|| {
                    let done = tx.commit();
                    has_ended.store(true, Ordering::SeqCst);
                    done
                }));
                thread::sleep(Duration::from_millis(50));
                assert!(!has_ended.load(Ordering::SeqCst));
            })
            .unwrap();
        assert_eq!(committer.unwrap().join().unwrap(), CONFLICT);
    });
    assert_eq!((store.get(1), store.get(2)), (Some(5), Some(5)));
}
