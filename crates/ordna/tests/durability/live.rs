//! Backups with concurrent writers. A restore returns the state at the snapshot point, for each
//! key.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ordna::durability::{BackupError, BackupOptions, Mode, OpenOptions, Progress, SyncPolicy};
use ordna::{Options, Store, Write};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::held;
use ordna_testkit::random::Random;

use super::disk::Model;
use super::golden::Hooked;
use super::steps::{Bytes, DIR, options, state_of};

/// Writers change everything while the backup runs. The callback for the metadata records the state
/// at the snapshot point, because writers wait while it runs.
fn under_writers(mode: Mode, seed: u64) -> u64 {
    const KEYS: u64 = 20_000;
    let disk = Model::new();
    let opened = options(&disk, SyncPolicy::Never)
        .store(Options::new().clock(|| 1000).background_collector(true));
    let store = Arc::new(Bytes::open(DIR, opened).unwrap());
    let key = |number: u64| format!("k{number:06}").into_bytes();
    for number in 0..KEYS {
        store.insert(&key(number), &[number as u8; 60]).unwrap();
    }
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    let at_cut = Arc::new(Mutex::new(BTreeMap::new()));
    let mut spilled = 0;
    thread::scope(|scope| {
        for writer in 0..3 {
            let (store, stop, rounds) = (&store, &stop, &rounds);
            scope.spawn(move || {
                let mut random = Random::new(seed << 8 | writer);
                while !stop.load(Ordering::Relaxed) {
                    let number = random.below(KEYS + KEYS / 4);
                    // Sometimes a hot key.
                    let own = key(if random.below(4) == 0 { KEYS - 3 } else { number });
                    let value = random.next_u64().to_le_bytes();
                    match random.below(14) {
                        0..=3 => drop(store.insert(&own, &value).unwrap()),
                        4..=6 => drop(store.remove(&own)),
                        7 => store.insert_until(&own, &value, 5000 + number).unwrap(),
                        8 => drop(store.set_expiry(&own, Some(6000)).unwrap()),
                        9 => {
                            let other = key(random.below(KEYS));
                            let batch: [Write<'_, [u8], [u8]>; 2] = [
                                Write::put(own.as_slice(), value.as_slice()),
                                Write::Remove(&other),
                            ];
                            store.write_batch(&batch).unwrap();
                        }
                        10 => {
                            let group = || {
                                store.insert(&own, &value).unwrap();
                                store.remove(&key(number / 2)).unwrap();
                            };
                            store.log_group(group).unwrap();
                        }
                        11 => drop(store.append(&own, &value).unwrap()),
                        12 => drop(store.splice(&own, |_| Some((3, value))).unwrap()),
                        _ => {
                            let end = key(number + 5);
                            let bounds = (
                                std::ops::Bound::Included(own.as_slice()),
                                std::ops::Bound::Excluded(end.as_slice()),
                            );
                            store.remove_range(bounds).unwrap();
                        }
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(20));
            let (seen, read) = (Arc::clone(&at_cut), Arc::clone(&store));
            let backup = BackupOptions::new().workers(2).mode(mode).metadata(move || {
                *seen.lock().unwrap() = state_of(&read);
                Vec::new()
            });
            let summary = store.backup(&backup).unwrap();
            spilled += summary.spilled;
            let restored =
                Bytes::restore(&summary.path, options(&disk, SyncPolicy::Never)).unwrap();
            let restored = state_of(&restored);
            let expected = at_cut.lock().unwrap();
            assert_eq!(restored.len(), expected.len(), "seed {seed}");
            assert!(restored == *expected, "seed {seed}: other values or deadlines");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(rounds.load(Ordering::Relaxed) > 100);
    let last = state_of(&store);
    drop(store);
    // The log after the last backup leads to the last state.
    let again = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    assert!(state_of(&again) == last, "seed {seed}: the log leads elsewhere");
    spilled
}

#[test]
fn a_backup_without_a_snapshot_is_the_state_of_its_cut() {
    let spilled: u64 = (0..4).map(|seed| under_writers(Mode::Live, seed)).sum();
    assert!(spilled > 0, "no writer met a backup: the test tests nothing");
}

/// A worker has read a block that ends between keys with the same first eight bytes.
#[test]
#[cfg(debug_assertions)]
fn keys_of_one_head_spill_if_they_stand_behind_the_worker() {
    const KEYS: u64 = 4000;
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    let fill = |byte| {
        for number in 0..KEYS {
            let key = format!("one head of all keys {number:06}");
            store.insert(key.as_bytes(), &[byte; 1000]).unwrap();
        }
    };
    fill(1);
    let expected = state_of(&store);
    let backup = || store.backup(&BackupOptions::new().workers(1)).unwrap();
    let summary = held("backup.shard.passed", backup).meanwhile(|| fill(2));
    // The first block contains half a mebibyte.
    assert!((KEYS / 2..KEYS - 400).contains(&summary.spilled), "{summary:?}");
    let restored = Bytes::restore(&summary.path, options(&disk, SyncPolicy::Never)).unwrap();
    assert!(state_of(&restored) == expected, "the state is not that of the cut");
}

/// A key that is overwritten many times before the backup reads it is saved once.
#[test]
#[cfg(debug_assertions)]
fn a_backup_saves_the_state_of_a_key_once() {
    const KEYS: u64 = 4000;
    let disk = Model::new();
    // No checkpoints, because one would replace the backup.
    let never = options(&disk, SyncPolicy::Never).checkpoint_after(u64::MAX);
    let store = Bytes::open(DIR, never).unwrap();
    let key = |number: u64| format!("{number:06}").into_bytes();
    let fill = |byte| {
        (0..KEYS).for_each(|number| _ = store.insert(&key(number), &[byte; 1000]).unwrap());
    };
    fill(1);
    let expected = state_of(&store);
    let backup = || store.backup(&BackupOptions::new().workers(1)).unwrap();
    let summary = held("backup.shard.passed", backup).meanwhile(|| {
        for round in 2..12 {
            fill(round);
            let keys: Vec<_> = (0..KEYS).map(key).collect();
            let writes: Vec<Write<'_, [u8], [u8]>> =
                keys.iter().map(|key| Write::put(key.as_slice(), b"batch".as_slice())).collect();
            writes.chunks(7).for_each(|writes| store.write_batch(writes).unwrap());
            _ = store.remove_range(..);
        }
    });
    assert!((KEYS / 2..=KEYS).contains(&summary.spilled), "{summary:?}");
    // Each range has its own delta file, which a restore reads only with the range's shard.
    let deltas = disk.files().into_iter().filter(|path| path.to_str().unwrap().contains("/delta-"));
    assert!(deltas.count() > 1);
    let restored = Bytes::restore(&summary.path, options(&disk, SyncPolicy::Never)).unwrap();
    assert!(state_of(&restored) == expected, "the state is not that of the snapshot point");
}

/// Keys that a backup does not remember are saved with each write. A restore uses the first state.
#[test]
#[cfg(debug_assertions)]
fn of_several_states_of_a_key_the_first_is_restored() {
    // More keys than a debug build remembers.
    const KEYS: u64 = 24_000;
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    let fill = |byte| {
        for number in 0..KEYS {
            store.insert(format!("{number:06}").as_bytes(), &[byte; 100]).unwrap();
        }
    };
    fill(1);
    let expected = state_of(&store);
    let backup = || store.backup(&BackupOptions::new().workers(1)).unwrap();
    let summary = held("backup.shard.passed", backup).meanwhile(|| (2..5).for_each(fill));
    assert!(summary.spilled > KEYS, "no key was saved twice: {summary:?}");
    let restored = Bytes::restore(&summary.path, options(&disk, SyncPolicy::Never)).unwrap();
    assert!(state_of(&restored) == expected, "the state is not that of the snapshot point");
}

#[test]
fn a_backup_of_a_held_snapshot_is_the_state_of_its_cut() {
    assert_eq!(under_writers(Mode::Snapshot, 9), 0);
}

#[test]
fn one_backup_at_a_time_and_a_cancelled_one_leaves_nothing() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
    store.insert(b"k", b"v").unwrap();
    store.backup(&BackupOptions::new()).unwrap();
    let files = disk.files();
    let progress = Progress::default();
    progress.cancel();
    let error = store.backup(&BackupOptions::new().progress(&progress)).unwrap_err();
    assert_eq!(error.to_string(), "the backup was cancelled");
    assert_eq!(store.durability().unwrap().last_error.as_deref(), Some("the backup was cancelled"));
    let is_of_the_log = |path: &PathBuf| {
        ["/log-", "/newest-"].iter().any(|name| path.to_str().unwrap().contains(name))
    };
    let now: Vec<_> = disk.files().into_iter().filter(|path| !is_of_the_log(path)).collect();
    assert!(now.iter().all(|path| files.contains(path)), "{now:?}");
    let inner = Arc::new(store);
    let again = Arc::clone(&inner);
    let nested = Arc::new(Mutex::new(None));
    let told = Arc::clone(&nested);
    let backup = BackupOptions::new().metadata(move || {
        *told.lock().unwrap() = Some(again.backup(&BackupOptions::new()).unwrap_err().to_string());
        Vec::new()
    });
    inner.backup(&backup).unwrap();
    assert_eq!(nested.lock().unwrap().as_deref(), Some("another backup is in progress"));
}

/// A backup of a store that was replaced would bring its entries back and drop the log of its
/// successor.
#[test]
fn a_store_that_was_replaced_is_not_backed_up() {
    for during in [false, true] {
        let disk = Model::new();
        let hooked = Hooked::new(Arc::new(disk.clone()));
        let opened = options(&disk, SyncPolicy::Always).storage(hooked.clone());
        let old = Arc::new(Bytes::open(DIR, opened).unwrap());
        old.insert(b"old", b"1").unwrap();
        let new = Arc::new(Mutex::new(None));
        let (replaced, slot) = (Arc::clone(&old), Arc::clone(&new));
        let replace = move || {
            let next = replaced.successor(Options::new()).unwrap();
            next.insert(b"new", b"1").unwrap();
            *slot.lock().unwrap() = Some(next);
        };
        if during {
            hooked.before_the_second_segment(replace);
        } else {
            let replace: Box<dyn FnOnce()> = Box::new(replace);
            replace();
        }
        let error = old.backup(&BackupOptions::new()).unwrap_err();
        assert!(matches!(error, BackupError::Replaced), "{error}");
        let next = new.lock().unwrap().take().unwrap();
        next.insert(b"newer", b"1").unwrap();
        for crashed in [disk.after_exit(), disk.after_power_cut(&mut Random::new(1))] {
            let store = Bytes::open(DIR, options(&crashed, SyncPolicy::Always)).unwrap();
            let keys: Vec<_> = state_of(&store).into_keys().collect();
            assert_eq!(keys, [b"new".to_vec(), b"newer".to_vec()], "during: {during}");
        }
        // The successor can be backed up.
        next.backup(&BackupOptions::new()).unwrap();
        let last = state_of(&next);
        drop((old, next));
        let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
        assert_eq!(state_of(&store), last);
    }
}

/// A flush, and later writes of the same keys, happen after the snapshot point of a backup.
#[test]
fn a_backup_that_a_flush_overtakes_is_the_state_of_its_cut() {
    let disk = Model::new();
    let hooked = Hooked::new(Arc::new(disk.clone()));
    let opened = options(&disk, SyncPolicy::Always).storage(hooked.clone());
    let old = Arc::new(Bytes::open(DIR, opened).unwrap());
    for key in 0..100_u8 {
        old.insert(&[key], b"old").unwrap();
    }
    let at_cut = state_of(&old);
    let (replaced, new) = (Arc::clone(&old), Arc::new(Mutex::new(None)));
    let slot = Arc::clone(&new);
    hooked.before_the_first_shard(move || {
        let next = replaced.successor(Options::new()).unwrap();
        for key in 50..150_u8 {
            next.insert(&[key], b"new").unwrap();
        }
        *slot.lock().unwrap() = Some(next);
    });
    // A second worker might already have passed some keys.
    let summary = old.backup(&BackupOptions::new().workers(1)).unwrap();
    let restored = Bytes::restore(&summary.path, options(&disk, SyncPolicy::Never)).unwrap();
    assert_eq!(state_of(&restored), at_cut);
    let next = new.lock().unwrap().take().unwrap();
    let last = state_of(&next);
    drop((old, next));
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    assert_eq!(state_of(&store), last);
}

/// A flush in a group that writes both before and after it, during a backup.
#[test]
fn a_backup_that_a_flush_in_a_group_overtakes_is_the_state_of_its_cut() {
    let disk = Model::new();
    let hooked = Hooked::new(Arc::new(disk.clone()));
    let opened = options(&disk, SyncPolicy::Always).storage(hooked.clone());
    let old = Arc::new(Bytes::open(DIR, opened).unwrap());
    for key in 0..100_u8 {
        old.insert(&[key], b"old").unwrap();
    }
    let at_cut = state_of(&old);
    let (replaced, new) = (Arc::clone(&old), Arc::new(Mutex::new(None)));
    let slot = Arc::clone(&new);
    hooked.before_the_first_shard(move || {
        let group = || {
            replaced.insert(&[10], b"changed").unwrap();
            replaced.remove(&[11]).unwrap();
            let next = replaced.successor(Options::new()).unwrap();
            for key in 50..150_u8 {
                next.insert(&[key], b"new").unwrap();
            }
            next
        };
        let next = replaced.log_group(group).unwrap();
        for key in 20..40_u8 {
            next.insert(&[key], b"newer").unwrap();
        }
        *slot.lock().unwrap() = Some(next);
    });
    let summary = old.backup(&BackupOptions::new().workers(1)).unwrap();
    let restored = Bytes::restore(&summary.path, options(&disk, SyncPolicy::Never)).unwrap();
    assert_eq!(state_of(&restored), at_cut);
    let next = new.lock().unwrap().take().unwrap();
    let last = state_of(&next);
    for crashed in [disk.after_exit(), disk.after_power_cut(&mut Random::new(1))] {
        let store = Bytes::open(DIR, options(&crashed, SyncPolicy::Always)).unwrap();
        assert_eq!(state_of(&store), last);
    }
    // The successor can be backed up.
    next.backup(&BackupOptions::new()).unwrap();
    drop((old, next));
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    assert_eq!(state_of(&store), last);
}

#[test]
fn memory_does_not_grow_while_everything_is_overwritten() {
    // Returns the number of versions in the store after all keys were overwritten during a backup.
    let versions = |mode| {
        let hooked = Hooked::new(Arc::new(Model::new()));
        let options = OpenOptions::new().storage(hooked.clone()).sync(SyncPolicy::Never);
        let store: Store<u64, [u8]> = Store::open(DIR, options).unwrap();
        let fill = |store: &Store<u64, [u8]>, byte| {
            (0..4000).for_each(|key| drop(store.insert(&key, &[byte; 100]).unwrap()));
        };
        fill(&store, 1);
        let (store, seen) = (Arc::new(store), Arc::new(AtomicU64::new(0)));
        let (held, told) = (Arc::clone(&store), Arc::clone(&seen));
        hooked.before_the_first_shard(move || {
            fill(&held, 2);
            held.collect_garbage();
            told.store(held.statistics().versions as u64, Ordering::Relaxed);
        });
        store.backup(&BackupOptions::new().mode(mode).workers(1)).unwrap();
        seen.load(Ordering::Relaxed)
    };
    assert_eq!(versions(Mode::Live), 4000);
    // The other mode keeps all versions, which shows that this test can detect them.
    assert_eq!(versions(Mode::Snapshot), 8000);
}
