//! Panics of the caller's code in a store with a log: in the clock, and in callbacks of a backup.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ordna::durability::{BackupOptions, Mode, SyncPolicy};
use ordna::{Options, Write};

use super::disk::Model;
use super::steps::{Bytes, DIR, options};

/// Returns a store with a clock that panics while the flag is set.
fn with_clock(disk: &Model) -> (Bytes, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(false));
    let is_broken = Arc::clone(&broken);
    let clock = move || match is_broken.load(Ordering::SeqCst) {
        true => resume_unwind(Box::new("clock")),
        false => 5,
    };
    let store = Options::new().clock(clock).background_collector(false);
    let store = Bytes::open(DIR, options(disk, SyncPolicy::Always).store(store)).unwrap();
    (store, broken)
}

/// Checks a `write` that changes "a" and panics in the clock at "b". Later acknowledged writes must
/// be kept.
fn panics_between(write: impl FnOnce(&Bytes)) {
    let disk = Model::new();
    let (store, broken) = with_clock(&disk);
    store.insert(b"a", b"old").unwrap();
    store.insert_until(b"b", b"1", 100).unwrap();
    broken.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| write(&store))).is_err());
    broken.store(false, Ordering::SeqCst);
    let read =
        |store: &Bytes| store.get(b"a".as_slice()).map(|value| value.escape_ascii().to_string());
    let mut kept = Some("old".to_owned());
    if store.append(b"a", b"!").is_ok() {
        kept = read(&store);
    }
    let again = Bytes::open(DIR, options(&disk.after_exit(), SyncPolicy::Always)).unwrap();
    assert_eq!(read(&again), kept, "what was acknowledged");
    // A backup contains everything in memory.
    store.backup(&BackupOptions::new()).unwrap();
    store.append(b"a", b"?").unwrap();
    let seen = read(&store);
    drop(store);
    let again = Bytes::open(DIR, options(&disk.after_exit(), SyncPolicy::Always)).unwrap();
    assert_eq!(read(&again), seen, "after a backup");
}

/// A batch that changes "a" first.
const BATCH: [(&[u8], &[u8]); 2] = [(b"a", b"much longer"), (b"b", b"2")];

#[test]
fn a_batch_that_panics_leaves_log_and_memory_alike() {
    panics_between(|store| {
        store.write_batch(&BATCH.map(|(key, value)| Write::put(key, value))).unwrap();
    });
}

#[test]
fn a_batch_that_panics_in_a_group_leaves_log_and_memory_alike() {
    panics_between(|store| {
        let batch = BATCH.map(|(key, value)| Write::put(key, value));
        store.log_group(|| store.write_batch(&batch)).unwrap().unwrap();
    });
}

/// A callback that the caller passed to a backup panics.
#[test]
fn a_backup_that_panics_leaves_the_store_usable() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    store.insert(b"before", b"1").unwrap();
    let panics = || -> Vec<u8> { resume_unwind(Box::new("metadata")) };
    let options = BackupOptions::new().metadata(panics);
    assert!(catch_unwind(AssertUnwindSafe(|| store.backup(&options))).is_err());
    store.insert(b"after", b"1").unwrap();
    store.backup(&BackupOptions::new()).expect("the next backup");
}

/// The clock panics while a worker reads an entry with a deadline. Without the cleanup, the set of
/// the live backup would stay attached, and a log that fails later would not retry.
#[test]
fn a_backup_whose_clock_panics_leaves_a_log_that_heals() {
    let disk = Model::new();
    let (store, broken) = with_clock(&disk);
    store.insert_until(b"before", b"1", 10).unwrap();
    broken.store(true, Ordering::SeqCst);
    let backup = BackupOptions::new().mode(Mode::Live);
    assert!(catch_unwind(AssertUnwindSafe(|| store.backup(&backup))).is_err());
    broken.store(false, Ordering::SeqCst);
    // A failed write of the log is retried.
    disk.set_free(150);
    let mut number = 0_u32;
    while store.insert(&number.to_be_bytes(), &[7; 100]).is_ok() {
        number += 1;
    }
    disk.set_free(1 << 26);
    let begin = Instant::now();
    while store.check_log().is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the log does not heal");
        thread::sleep(Duration::from_millis(2));
    }
}
