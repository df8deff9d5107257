//! Closing a log concurrently with writes and backups.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ordna::durability::{BackupOptions, SyncPolicy};
use ordna_base::sync::schedule::Schedule;

use super::disk::Model;
use super::steps::{Bytes, DIR, options};

/// Checks a write that passes its check while another thread closes the log, and is acknowledged.
fn write_beside_close(sync: SyncPolicy) {
    let disk = Model::new();
    let store = Arc::new(Bytes::open(DIR, options(&disk, sync)).unwrap());
    store.insert(b"before", b"1").unwrap();
    let schedule = Schedule::new();
    schedule.hold("writer", "log.write.done");
    schedule.hold("closer", "log.sync.begun");
    let (done, told) = channel();
    let (roles, shared) = (schedule.clone(), Arc::clone(&store));
    thread::spawn(move || {
        let written = roles.enroll("writer", || shared.insert(b"beside", b"1").map(|_| ()));
        let _ = done.send(written);
    });
    schedule.wait_held("writer", "log.write.done");
    let (roles, shared) = (schedule.clone(), Arc::clone(&store));
    let closer = thread::spawn(move || roles.enroll("closer", || shared.close_log()));
    // The log's thread has ended, and everything is written and durable.
    schedule.wait_held("closer", "log.sync.begun");
    schedule.release("writer", "log.write.done");
    thread::sleep(Duration::from_millis(100));
    schedule.release("closer", "log.sync.begun");
    closer.join().unwrap().unwrap();
    let written = told.recv_timeout(Duration::from_secs(5)).expect("the write waits for ever");
    drop(store);
    let again = Bytes::open(DIR, options(&disk.after_exit(), sync)).unwrap();
    assert_eq!(again.get(b"before".as_slice()), Some(b"1".to_vec()));
    let is_there = again.get(b"beside".as_slice()).is_some();
    assert!(is_there || written.is_err(), "an acknowledged write is lost: {written:?}");
}

#[test]
fn a_write_beside_the_close_of_the_log_is_kept_or_refused() {
    write_beside_close(SyncPolicy::EverySecond);
}

#[test]
fn a_write_that_waits_beside_the_close_of_the_log_ends() {
    write_beside_close(SyncPolicy::Always);
}

/// A backup of a store whose log was closed.
#[test]
fn a_backup_after_the_close_of_the_log_loses_no_later_write() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::EverySecond)).unwrap();
    store.insert(b"before", b"1").unwrap();
    store.close_log().unwrap();
    store.insert(b"refused", b"1").unwrap_err();
    let _ = store.backup(&BackupOptions::new());
    let written = store.insert(b"after", b"1");
    let is_refused = store.get(b"after".as_slice()).is_none();
    assert!(is_refused || written.is_ok(), "a write that is refused stays in memory");
    let synced = store.close_log();
    drop(store);
    let again = Bytes::open(DIR, options(&disk.after_exit(), SyncPolicy::EverySecond)).unwrap();
    let is_there = again.get(b"after".as_slice()).is_some();
    assert!(is_there || written.is_err(), "lost: {written:?}, then close_log: {synced:?}");
}
