//! Tests of checkpoints, the backups that a store takes by itself.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ordna::Options;
use ordna::durability::{BackupOptions, Disk, OpenOptions, OutFile, Storage, SyncPolicy};

use super::disk::Model;
use super::steps::{Bytes, DIR, flush, options, state_of};

/// The directory of a test, which is removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("ordna-checkpoints-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    fn has_unfinished(&self) -> bool {
        let names = Disk.list(&self.0).unwrap();
        names.iter().any(|name| name.starts_with("unfinished"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the total size of the files whose names begin with `prefix`, including those in backups.
fn bytes_in(dir: &Path, prefix: &str) -> u64 {
    let mut bytes = 0;
    // Files may be created and removed concurrently.
    let names = Disk.list(dir).unwrap_or_default();
    for path in names.iter().filter(|name| name.starts_with(prefix)).map(|name| dir.join(name)) {
        bytes += match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => bytes_in(&path, ""),
            found => found.map_or(0, |it| it.len()),
        };
    }
    bytes
}

/// A disk on which backups are slow, and which reports the free space that a test sets.
#[derive(Debug, Clone)]
struct Slow {
    delay: Duration,
    free: Arc<AtomicU64>,
}

impl Slow {
    fn new(delay: Duration) -> Self {
        Self { delay, free: Arc::new(AtomicU64::new(u64::MAX)) }
    }
}

#[derive(Debug)]
struct SlowFile(Box<dyn OutFile>, Duration);

impl OutFile for SlowFile {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        thread::sleep(self.1);
        self.0.write(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

impl Storage for Slow {
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        let file = Disk.create(path)?;
        let is_shard = path.to_string_lossy().contains("/shard-");
        Ok(if is_shard { Box::new(SlowFile(file, self.delay)) } else { file })
    }

    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)> {
        Disk.open(path)
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        Disk.truncate(path, len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Disk.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Disk.create_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Disk.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        Disk.sync_dir(dir)
    }

    fn free_space(&self, _: &Path) -> io::Result<Option<u64>> {
        Ok(Some(self.free.load(Ordering::SeqCst)))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        Disk.lock(path)
    }
}

fn backups(store: &Bytes) -> u64 {
    u64::from(store.durability().unwrap().last.is_some())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_running(store: &Bytes) -> bool {
    store.durability().unwrap().running.is_some()
}

/// Inserts values of 1,000 bytes for numbered keys.
fn put(store: &Bytes, keys: std::ops::Range<u32>, value: u8) {
    keys.for_each(|key| store.put(&key.to_be_bytes(), &[value; 1000]).unwrap());
}

#[test]
fn the_log_is_bounded_while_entries_are_overwritten() {
    const KEYS: u32 = 8000;
    const AFTER: u64 = 8 << 20;
    let dir = Directory::new("bound");
    let options = OpenOptions::new().checkpoint_after(AFTER).tail_bytes(64 << 10);
    let store = Bytes::open(&dir.0, options).unwrap();
    put(&store, 0..KEYS, 0);
    let first = store.backup(&BackupOptions::new()).unwrap().path;
    let mut most = 0;
    for value in 1..8 {
        for from in (0..KEYS).step_by(250) {
            put(&store, from..from + 250, value);
            flush(&store);
            most = most.max(bytes_in(&dir.0, ""));
            // The log may grow by an eighth of the bytes while a checkpoint is written.
            wait_until("a checkpoint", || bytes_in(&dir.0, "log-") <= AFTER / 2 + AFTER / 8);
        }
    }
    let bound = 2 * u64::from(KEYS) * 1009 + AFTER;
    assert!(most <= bound, "{most} bytes of files");
    let last = store.durability().unwrap().last.unwrap().0.path;
    assert_ne!(first, last, "no checkpoint was taken");
    let state = state_of(&store);
    drop(store);
    let store = Bytes::open(&dir.0, OpenOptions::new()).unwrap();
    assert!(state_of(&store) == state);
}

#[test]
fn the_end_cancels_a_checkpoint_and_leaves_nothing_of_it() {
    let dir = Directory::new("end");
    let slow = Slow::new(Duration::from_millis(40));
    let options = OpenOptions::new().storage(Arc::new(slow)).checkpoint_after(1 << 20);
    let store = Bytes::open(&dir.0, options).unwrap();
    // More data than the bound for a last checkpoint.
    let mut key = 0;
    while !is_running(&store) || key < 40_000 {
        put(&store, key..key + 100, 1);
        key += 100;
        if backups(&store) > 0 {
            break;
        }
    }
    put(&store, 0..40_000, 2);
    wait_until("a checkpoint", || is_running(&store));
    let state = state_of(&store);
    let began = Instant::now();
    drop(store);
    let took = began.elapsed();
    // Completing the checkpoint would take more than three seconds.
    assert!(took < Duration::from_millis(2500), "the end took {took:?}");
    assert!(!dir.has_unfinished());
    let store = Bytes::open(&dir.0, OpenOptions::new()).unwrap();
    assert!(state_of(&store) == state);
}

#[test]
fn a_callers_backup_does_not_fail_because_of_a_checkpoint() {
    let dir = Directory::new("caller");
    let slow = Slow::new(Duration::from_millis(20));
    let options = OpenOptions::new().storage(Arc::new(slow)).checkpoint_after(1 << 16);
    let store = Bytes::open(&dir.0, options).unwrap();
    for round in 0..3 {
        put(&store, 0..4000, round);
        wait_until("a checkpoint", || is_running(&store));
        store.backup(&BackupOptions::new()).unwrap();
        assert_eq!(store.durability().unwrap().last_error, None);
    }
}

#[test]
fn a_backup_with_metadata_is_not_replaced() {
    let dir = Directory::new("metadata");
    let options = OpenOptions::new().checkpoint_after(1 << 16);
    for value in 0..2 {
        let store = Bytes::open(&dir.0, options.clone()).unwrap();
        if value == 0 {
            store.backup(&BackupOptions::new().metadata(|| b"mine".to_vec())).unwrap();
        }
        assert_eq!(store.durability().unwrap().recovery.metadata.is_empty(), value == 0);
        put(&store, 0..3000, value);
        flush(&store);
        thread::sleep(Duration::from_millis(50));
        assert!(!is_running(&store));
    }
    let store = Bytes::open(&dir.0, options).unwrap();
    assert_eq!(store.durability().unwrap().recovery.metadata, b"mine");
}

#[test]
fn a_checkpoint_waits_for_space_and_writes_continue() {
    let dir = Directory::new("space");
    let slow = Slow::new(Duration::ZERO);
    let free = Arc::clone(&slow.free);
    // Not enough space for any entries, see `LEFT_FREE`.
    free.store(32 << 20, Ordering::SeqCst);
    let options = OpenOptions::new().storage(Arc::new(slow)).checkpoint_after(1 << 20);
    let store = Bytes::open(&dir.0, options).unwrap();
    put(&store, 0..8000, 1);
    wait_until("a refusal", || store.durability().unwrap().last_error.is_some());
    assert_eq!(backups(&store), 0);
    let error = store.durability().unwrap().last_error.unwrap();
    assert!(error.contains(dir.0.to_str().unwrap()), "{error}");
    put(&store, 0..10, 2);
    free.store(u64::MAX, Ordering::SeqCst);
    wait_until("a checkpoint", || backups(&store) > 0);
    assert_eq!(store.durability().unwrap().last_error, None);
}

/// On a disk that does not report its free space, a checkpoint may fill the disk. It is then
/// cancelled in favour of the log.
#[test]
fn a_checkpoint_that_fills_the_disk_gives_way_to_the_log() {
    let disk = Model::new();
    let opened = options(&disk, SyncPolicy::EverySecond).checkpoint_after(1 << 16);
    let store = Bytes::open(DIR, opened.retry_after(Duration::from_millis(1))).unwrap();
    put(&store, 0..2000, 1);
    wait_until("a checkpoint", || backups(&store) > 0 && !is_running(&store));
    disk.set_free(3 << 20);
    for round in 0..60 {
        for key in (0..2000_u32).step_by(50) {
            // Waits until the log can use the space that the checkpoint took.
            let began = Instant::now();
            while store.put(&key.to_be_bytes(), &[round; 1000]).is_err() {
                assert!(began.elapsed() < Duration::from_secs(20), "the log does not work again");
                thread::sleep(Duration::from_millis(1));
            }
        }
        if store.durability().unwrap().last_error.is_some() {
            break;
        }
    }
    disk.set_free(usize::MAX);
    let state = state_of(&store);
    drop(store);
    let found = Bytes::open(DIR, options(&disk.after_exit(), SyncPolicy::Always)).unwrap();
    assert!(state_of(&found) == state);
}

#[test]
fn a_small_store_with_a_long_log_ends_with_a_checkpoint() {
    let dir = Directory::new("last");
    for (after, is_backed_up) in [(16 << 20, false), (1 << 20, true), (u64::MAX, false)] {
        let _ = std::fs::remove_dir_all(&dir.0);
        let options = OpenOptions::new().checkpoint_after(after);
        let store = Bytes::open(&dir.0, options.clone()).unwrap();
        put(&store, 0..700, 1);
        let state = state_of(&store);
        drop(store);
        let store = Bytes::open(&dir.0, options).unwrap();
        assert!(state_of(&store) == state);
        let recovery = store.durability().unwrap().recovery;
        assert!(recovery.log.closed);
        assert_eq!(recovery.log.records == 0, is_backed_up, "{after}: {recovery:?}");
    }
}

/// Records that the log's thread is still writing count for the decision about the last checkpoint.
#[test]
fn the_last_checkpoint_counts_what_is_being_written() {
    let disk = Model::new();
    let opened = options(&disk, SyncPolicy::EverySecond).checkpoint_after(1 << 20);
    let store = Bytes::open(DIR, opened).unwrap();
    disk.pause_log(0);
    put(&store, 0..700, 1);
    let state = state_of(&store);
    let ending = thread::spawn(move || drop(store));
    // Gives the store time to decide that it ends with a checkpoint.
    thread::sleep(Duration::from_millis(50));
    disk.resume_log();
    ending.join().unwrap();
    let found = Bytes::open(DIR, options(&disk.after_exit(), SyncPolicy::Always)).unwrap();
    assert_eq!(found.durability().unwrap().recovery.log.records, 0);
    assert!(state_of(&found) == state);
}

/// At its end, the store cancels the checkpoint that was due at the opening, and takes the last
/// one.
#[test]
fn a_store_of_nearly_four_times_the_bytes_ends_with_a_checkpoint() {
    let dir = Directory::new("four");
    let never = OpenOptions::new().checkpoint_after(u64::MAX);
    let store = Bytes::open(&dir.0, never.clone()).unwrap();
    put(&store, 0..3000, 1);
    let state = state_of(&store);
    drop(store);
    let slow = Arc::new(Slow::new(Duration::from_millis(20)));
    let store = Bytes::open(&dir.0, never.clone().storage(slow).checkpoint_after(1 << 20));
    drop(store.unwrap());
    let store = Bytes::open(&dir.0, never).unwrap();
    assert!(state_of(&store) == state);
    let recovery = store.durability().unwrap().recovery;
    assert_eq!(recovery.log.records, 0, "{recovery:?}");
}

#[test]
fn checkpoints_are_of_the_successor() {
    let dir = Directory::new("successor");
    let options = OpenOptions::new().checkpoint_after(1 << 16);
    let store = Bytes::open(&dir.0, options.clone()).unwrap();
    put(&store, 0..10, 1);
    let next = store.successor(Options::new()).unwrap();
    drop(store);
    put(&next, 100..300, 2);
    wait_until("a checkpoint", || backups(&next) > 0);
    let state = state_of(&next);
    assert_eq!(state.len(), 200);
    drop(next);
    let store = Bytes::open(&dir.0, options).unwrap();
    assert!(state_of(&store) == state);
}

/// Writes values until the store has taken this many checkpoints.
fn write_until(store: &Bytes, checkpoints: u64) {
    let newest = || store.durability().unwrap().last.map(|(summary, _)| summary.path);
    let (begin, mut last, mut seen) = (Instant::now(), newest(), 0);
    for value in 0_u64.. {
        if seen >= checkpoints {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no checkpoint is taken");
        for key in 0..50_u32 {
            store.put(key.to_be_bytes(), [value as u8; 500]).unwrap();
        }
        flush(store);
        thread::sleep(Duration::from_millis(1));
        let now = newest();
        seen += u64::from(now != last);
        last = now;
    }
}

/// Checkpoints do not remove backups that a caller keeps, however many checkpoints there are.
#[test]
fn checkpoints_leave_the_backups_that_a_caller_keeps() {
    let disk = Model::new();
    let opened = options(&disk, SyncPolicy::Never).checkpoint_after(1 << 16);
    let store = Bytes::open(DIR, opened).unwrap();
    let mut kept = Vec::new();
    for value in ["1", "2", "3"] {
        store.put("key", value).unwrap();
        kept.push(store.backup(&BackupOptions::new().keep(3)).unwrap().path);
    }
    write_until(&store, 3);
    drop(store);
    let manifests: Vec<PathBuf> = disk
        .list(Path::new(DIR))
        .unwrap()
        .into_iter()
        .filter(|name| name.starts_with("backup-"))
        .map(|name| Path::new(DIR).join(name))
        .collect();
    assert!(kept.iter().all(|path| manifests.contains(path)), "{kept:?} in {manifests:?}");
    assert_eq!(manifests.len(), 4, "{manifests:?}");
}

/// A panic of the clock ends one checkpoint, which is reported, but does not prevent later ones.
#[test]
fn a_panic_of_the_clock_does_not_end_checkpoints() {
    let disk = Model::new();
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = Arc::clone(&is_armed);
    let clock = move || {
        let is_checkpoint = thread::current().name().is_some_and(|name| name == "ordna checkpoint");
        assert!(!(is_checkpoint && armed.swap(false, Ordering::SeqCst)), "on purpose");
        1000
    };
    let opened = options(&disk, SyncPolicy::Never)
        .store(Options::new().clock(clock).background_collector(false))
        .checkpoint_after(1 << 16);
    let store = Bytes::open(DIR, opened).unwrap();
    store.insert_until(b"expires", b"1", 5000).unwrap();
    is_armed.store(true, Ordering::SeqCst);
    write_until(&store, 1);
    assert!(!is_armed.load(Ordering::SeqCst), "the clock did not panic");
}

/// A group may close its log, although the last checkpoint would wait for the group. The group's
/// writes are not kept.
#[test]
fn a_group_that_closes_its_log_is_not_kept() {
    let disk = Model::new();
    let opened = options(&disk, SyncPolicy::Never).checkpoint_after(0);
    let store = Bytes::open(DIR, opened.clone()).unwrap();
    let closed = store.log_group(|| {
        store.put("key", "value").unwrap();
        store.close_log().unwrap();
    });
    closed.unwrap_err();
    drop(store);
    let store = Bytes::open(DIR, options(&disk.after_exit(), SyncPolicy::Never)).unwrap();
    assert_eq!(store.get("key"), None);
}
