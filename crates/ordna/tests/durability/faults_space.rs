//! Full and slow disks: the log recovers by itself, and writes wait for a slow sync.

use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use ordna::Options;
use ordna::durability::{BackupOptions, OutFile, Progress, Storage, SyncPolicy, verify};
use ordna_testkit::random::Random;

use super::disk::Model;
use super::steps::{Bytes, DIR, options, state_of};

/// Waits until the log works.
fn wait_for_the_log(store: &Bytes) {
    let begin = Instant::now();
    while store.check_log().is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the log does not work again");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Checks the state after an exit and after power failures.
fn check(disk: &Model, store: &Bytes, context: &str) {
    let state = state_of(store);
    let mut left = vec![disk.after_exit()];
    left.extend((0..8).map(|seed| disk.after_power_cut(&mut Random::new(seed))));
    for (number, left) in left.into_iter().enumerate() {
        let report = verify(&left, DIR, &Progress::default()).unwrap();
        assert!(report.is_whole(), "{context}, {number}: {report:?}");
        let found = Bytes::open(DIR, options(&left, SyncPolicy::Always)).unwrap();
        let found = state_of(&found);
        let missing: Vec<_> = state.keys().filter(|key| !found.contains_key(*key)).collect();
        assert!(found == state, "{context}, {number}: {missing:?} of {} are missing", state.len());
    }
}

#[test]
fn the_log_works_again_once_the_disk_has_space() {
    for sync in [SyncPolicy::Always, SyncPolicy::EverySecond, SyncPolicy::Never] {
        for free in [0, 1, 30, 60, 150, 500] {
            let disk = Model::new();
            let store = Bytes::open(DIR, options(&disk, sync)).unwrap();
            store.insert(b"before", b"1").unwrap();
            store.sync_log().unwrap();
            disk.set_free(free);
            let mut number = 0_u32;
            while store.insert(&number.to_be_bytes(), &[7; 100]).is_ok() {
                number += 1;
                assert!(number < 1_000_000, "the disk is full");
            }
            let failed = store.durability().unwrap();
            assert!(failed.failure.is_some() && failed.failures > 0);
            let memory = state_of(&store);
            store.insert(b"refused", b"1").unwrap_err();
            assert!(state_of(&store) == memory);
            // The log retries without success, and leaves no files behind.
            thread::sleep(Duration::from_millis(400));
            store.insert(b"refused", b"1").unwrap_err();
            let segments =
                disk.files().iter().filter(|it| it.to_str().unwrap().contains("/log-")).count();
            assert_eq!(segments, 1);
            disk.set_free(1 << 26);
            wait_for_the_log(&store);
            store.insert(b"after", b"1").unwrap();
            store.sync_log().unwrap();
            assert_eq!(state_of(&store).len(), memory.len() + 1);
            check(&disk, &store, &format!("{sync:?}, {free} bytes free"));
            store.backup(&BackupOptions::new()).unwrap();
            store.insert(b"at last", b"1").unwrap();
            store.sync_log().unwrap();
            check(&disk, &store, &format!("{sync:?}, {free} bytes free, backup"));
        }
    }
}

#[test]
fn a_reserve_lets_the_log_continue_on_a_full_disk() {
    let disk = Model::new();
    let opened = options(&disk, SyncPolicy::Always).reserve(8 << 20);
    let store = Bytes::open(DIR, opened).unwrap();
    let reserve = Path::new(DIR).join("reserve-log");
    assert_eq!(disk.read(&reserve).len(), 4 << 20);
    disk.set_free(1000);
    for number in 0..1000_u32 {
        if store.insert(&number.to_be_bytes(), &[7; 100]).is_err() {
            break;
        }
    }
    wait_for_the_log(&store);
    assert!(!disk.files().contains(&reserve), "the reserve was not given up");
    store.insert(b"after", b"1").unwrap();
    check(&disk, &store, "with a reserve");
    // When there is space again, a backup reserves it.
    disk.set_free(10 << 20);
    store.backup(&BackupOptions::new()).unwrap();
    assert_eq!(disk.read(&reserve).len(), 4 << 20);
    drop(store);
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    assert_eq!(store.get(b"after".as_slice()), Some(b"1".to_vec()));
}

/// If creating a successor fails, the record that removes everything is never written later.
#[test]
fn a_failed_successor_is_no_flush_later() {
    let disk = Model::new();
    let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
    store.insert(b"kept", b"1").unwrap();
    disk.set_free(10);
    store.successor(Options::new()).unwrap_err();
    disk.set_free(1 << 26);
    thread::sleep(Duration::from_millis(400));
    // The frames do not lead to the state in memory, so only a backup makes the log work again.
    store.insert(b"refused", b"1").unwrap_err();
    store.backup(&BackupOptions::new()).unwrap();
    store.insert(b"after", b"1").unwrap();
    assert_eq!(state_of(&store).len(), 2);
    check(&disk, &store, "successor");
}

/// A disk whose syncs wait while a gate is closed.
#[derive(Debug, Clone)]
struct Slow {
    disk: Model,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

#[derive(Debug)]
struct SlowFile(Box<dyn OutFile>, Arc<(Mutex<bool>, Condvar)>);

impl OutFile for SlowFile {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
    fn sync(&self) -> io::Result<()> {
        let (closed, opened) = &*self.1;
        drop(opened.wait_while(closed.lock().unwrap(), |closed| *closed).unwrap());
        self.0.sync()
    }
}

impl Storage for Slow {
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        Ok(Box::new(SlowFile(self.disk.create(path)?, Arc::clone(&self.gate))))
    }
    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)> {
        self.disk.open(path)
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.disk.truncate(path, len)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        self.disk.lock(path)
    }
}

/// Opens the gate on drop, even if the test fails, because its store waits for its last sync.
struct Opens<'a>(&'a Slow);

impl Opens<'_> {
    fn open(&self) {
        *self.0.gate.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.gate.1.notify_all();
    }
}

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.open();
    }
}

#[test]
fn writes_wait_for_a_sync_that_hangs() {
    let slow = Slow { disk: Model::new(), gate: Arc::default() };
    let opened = options(&slow.disk, SyncPolicy::EverySecond).storage(Arc::new(slow.clone()));
    let store = Bytes::open(DIR, opened).unwrap();
    *slow.gate.0.lock().unwrap() = true;
    let gate = Opens(&slow);
    store.insert(b"first", b"1").unwrap();
    let mut context = Context::from_waker(Waker::noop());
    // The sync begins within a second. Two seconds later, writes are no longer acknowledged.
    let begin = Instant::now();
    loop {
        let position = store.log_position();
        match store.poll_flushed(position, &mut context) {
            Poll::Pending if begin.elapsed() > Duration::from_millis(1900) => break,
            told => assert!(begin.elapsed() < Duration::from_secs(6), "acknowledged: {told:?}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
    thread::scope(|scope| {
        let writer = scope.spawn(|| store.insert(b"second", b"1").unwrap());
        thread::sleep(Duration::from_millis(100));
        let waits = !writer.is_finished();
        let reads = store.get(b"first".as_slice()).is_some();
        gate.open();
        assert_eq!(writer.join().unwrap(), None);
        assert!(waits, "a write does not wait");
        assert!(reads, "reads do not wait");
    });
    let position = store.log_position();
    while store.poll_flushed(position, &mut context).is_pending() {
        assert!(begin.elapsed() < Duration::from_secs(10));
        thread::yield_now();
    }
}
