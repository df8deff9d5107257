//! Retries of a failed write of the log, together with backups, rotations, flushes and power cuts.

use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use ordna::Options;
use ordna::durability::{BackupOptions, OutFile, Progress, Storage, SyncPolicy, verify};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::Schedule;
use ordna_testkit::random::Random;

use super::disk::{Fault, Model};
#[cfg(debug_assertions)]
use super::steps::flush;
use super::steps::{Bytes, DIR, options, state_of};

/// Free space that is sufficient for all records of these tests.
const ROOM: usize = 1 << 26;

/// Waits until a condition holds.
fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn works(store: &Bytes) -> bool {
    store.check_log().is_ok()
}

/// Inserts entries until the disk is full and the log has failed.
fn fill(disk: &Model, store: &Bytes) {
    disk.set_free(150);
    let mut number = 0_u32;
    while store.insert(&number.to_be_bytes(), &[7; 100]).is_ok() {
        number += 1;
        assert!(number < 1_000_000, "the disk is full");
    }
}

/// Checks that the state survives an exit and power failures.
fn check_kept(disk: &Model, store: &Bytes, context: &str) {
    let state = state_of(store);
    let mut left = vec![disk.after_exit()];
    left.extend((0..24).map(|seed| disk.after_power_cut(&mut Random::new(seed))));
    for (number, left) in left.into_iter().enumerate() {
        verify(&left, DIR, &Progress::default())
            .unwrap_or_else(|error| panic!("{context}, {number}: {error}"));
        let found = Bytes::open(DIR, options(&left, SyncPolicy::Always)).unwrap();
        let found = state_of(&found);
        let missing: Vec<_> = state.keys().filter(|key| !found.contains_key(*key)).collect();
        let extra: Vec<_> = found.keys().filter(|key| !state.contains_key(*key)).collect();
        assert!(found == state, "{context}, {number}: missing {missing:?}, more {extra:?}");
    }
}

/// A callback that replaces an operation of [`Hooked`].
type Hook = dyn Fn(&Model) -> io::Result<()> + Send + Sync;

/// A disk with a callback that runs once, either after a rename or before the first sync of a file.
#[derive(Clone)]
struct Hooked {
    disk: Model,
    /// Called instead of the sync of the directory that follows a rename.
    after_rename: Option<Arc<Hook>>,
    was_renamed: Arc<AtomicBool>,
    /// While set, syncs of files that were created in the meantime wait.
    holds_new_files: Arc<AtomicBool>,
    /// Whether such a sync is waiting.
    is_held: Arc<AtomicBool>,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooked").finish_non_exhaustive()
    }
}

impl Hooked {
    fn new(disk: &Model) -> Self {
        Self {
            disk: disk.clone(),
            after_rename: None,
            was_renamed: Arc::default(),
            holds_new_files: Arc::default(),
            is_held: Arc::default(),
        }
    }

    fn open(&self, sync: SyncPolicy) -> Bytes {
        Bytes::open(DIR, options(&self.disk, sync).storage(Arc::new(self.clone()))).unwrap()
    }
}

#[derive(Debug)]
struct HookedFile(Box<dyn OutFile>, Option<Hooked>);

impl OutFile for HookedFile {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
    fn sync(&self) -> io::Result<()> {
        if let Some(hooked) = &self.1 {
            while hooked.holds_new_files.load(Ordering::SeqCst) {
                hooked.is_held.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
            }
        }
        self.0.sync()
    }
}

impl Storage for Hooked {
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        let is_held = self.holds_new_files.load(Ordering::SeqCst).then(|| self.clone());
        Ok(Box::new(HookedFile(self.disk.create(path)?, is_held)))
    }
    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)> {
        self.disk.open(path)
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.disk.truncate(path, len)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)?;
        self.was_renamed.store(true, Ordering::SeqCst);
        Ok(())
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
        if dir == Path::new(DIR)
            && let Some(hook) = &self.after_rename
            && self.was_renamed.swap(false, Ordering::SeqCst)
        {
            hook(&self.disk)?;
        }
        self.disk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        self.disk.lock(path)
    }
}

/// The disk gets free space while a backup of a failed log is nearly complete. The log must not
/// continue in a different segment than the one of the backup.
#[test]
fn a_retry_does_not_overtake_the_backup_of_a_failed_log() {
    let disk = Model::new();
    let hook = |_: &Model| {
        // Time for several retries of the log.
        thread::sleep(Duration::from_millis(600));
        Ok(())
    };
    let hooked = Hooked { after_rename: Some(Arc::new(hook)), ..Hooked::new(&disk) };
    let store = hooked.open(SyncPolicy::Always);
    store.insert(b"before", b"1").unwrap();
    fill(&disk, &store);
    thread::scope(|scope| {
        disk.set_free(ROOM);
        let backup = scope.spawn(|| store.backup(&BackupOptions::new()));
        let mut number = 0_u32;
        while !backup.is_finished() {
            // Acknowledged writes must be present later.
            let _ = store.insert(&[b"meanwhile".as_slice(), &number.to_be_bytes()].concat(), b"1");
            number += 1;
            thread::sleep(Duration::from_millis(1));
        }
        backup.join().unwrap().unwrap();
    });
    wait_until("the log does not work again", || works(&store));
    store.insert(b"after", b"1").unwrap();
    check_kept(&disk, &store, "backup and retry");
}

/// A backup of a failed log is in place, but reports a failure. The log must not continue before
/// that position.
#[test]
fn a_retry_does_not_go_on_before_a_backup_that_is_in_place() {
    let disk = Model::new();
    let failures = AtomicUsize::new(0);
    let hook = move |_: &Model| match failures.fetch_add(1, Ordering::SeqCst) {
        0 => Err(io::Error::other("injected failure")),
        _ => Ok(()),
    };
    let hooked = Hooked { after_rename: Some(Arc::new(hook)), ..Hooked::new(&disk) };
    let store = hooked.open(SyncPolicy::Always);
    store.insert(b"before", b"1").unwrap();
    fill(&disk, &store);
    disk.set_free(ROOM);
    store.backup(&BackupOptions::new()).unwrap_err();
    thread::sleep(Duration::from_millis(600));
    if !works(&store) {
        store.backup(&BackupOptions::new()).unwrap();
    }
    store.insert(b"after", b"1").unwrap();
    check_kept(&disk, &store, "backup in place");
}

/// A former segment may not be durable when a write to the next segment fails.
#[test]
#[cfg(debug_assertions)]
fn a_retry_syncs_the_segments_before() {
    let disk = Model::new();
    let schedule = Schedule::new();
    let opened = options(&disk, SyncPolicy::Always).segment_bytes(200).acknowledge_later();
    let store = schedule.enroll("log", || Bytes::open(DIR, opened)).unwrap();
    schedule.hold("log", "log.sync.begun");
    store.insert(b"first segment", &[1; 300]).unwrap();
    // The log's thread has written the record, and the log has continued in the next segment.
    schedule.wait_held("log", "log.sync.begun");
    store.insert(b"next segment", &[2; 300]).unwrap();
    flush(&store);
    schedule.hold("log", "log.sync.targeted");
    schedule.release("log", "log.sync.begun");
    schedule.wait_held("log", "log.sync.targeted");
    disk.set_free(0);
    store.insert(b"fails", &[3; 300]).unwrap();
    schedule.release("log", "log.sync.targeted");
    wait_until("the log does not fail", || !works(&store));
    disk.set_free(ROOM);
    wait_until("the log does not work again", || works(&store));
    store.sync_log().unwrap();
    check_kept(&disk, &store, "former segment");
}

/// A segment could not be created, and its incomplete file could not be removed. The file does no
/// harm when the disk works again.
#[test]
fn a_segment_that_could_not_be_removed_is_replaced() {
    let mut left = 0;
    for number in 1..8 {
        let disk = Model::new();
        let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
        store.insert(b"before", b"1").unwrap();
        let segments = || disk.files().iter().filter(|path| is_segment(path)).count();
        let before = segments();
        disk.fail("sync_dir", number);
        disk.fail("remove", 1);
        let failed = store.backup(&BackupOptions::new()).is_err();
        left += usize::from(failed && segments() > before);
        disk.calm();
        store.backup(&BackupOptions::new()).unwrap();
        store.insert(b"after", b"1").unwrap();
        check_kept(&disk, &store, "a segment that was left");
    }
    assert!(left > 0, "no segment was left");
}

fn is_segment(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.contains("/log-"))
}

/// A write of another thread fails just before the log would rotate. The log retries nevertheless.
#[test]
#[cfg(debug_assertions)]
fn a_rotation_does_not_end_retries() {
    let disk = Model::new();
    let schedule = Schedule::new();
    let opened = options(&disk, SyncPolicy::Never).segment_bytes(200);
    let store = schedule.enroll("log", || Bytes::open(DIR, opened)).unwrap();
    schedule.hold("log", "log.run.before_rotation");
    store.insert(b"fills the segment", &[1; 300]).unwrap();
    schedule.wait_held("log", "log.run.before_rotation");
    disk.set_free(0);
    store.insert(b"fails", b"1").unwrap();
    store.sync_log().unwrap_err();
    disk.set_free(ROOM);
    schedule.release("log", "log.run.before_rotation");
    wait_until("the log does not work again", || works(&store));
    store.insert(b"after", b"1").unwrap();
    store.sync_log().unwrap();
    check_kept(&disk, &store, "rotation and retry");
}

/// A group removes everything while the log retries. Either its writes are kept, or the log does
/// not continue.
#[test]
#[cfg(debug_assertions)]
fn a_retry_does_not_go_on_without_a_flush() {
    let disk = Model::new();
    let hooked = Hooked::new(&disk);
    let opened = options(&disk, SyncPolicy::Never).storage(Arc::new(hooked.clone()));
    let schedule = Schedule::new();
    let store = schedule.enroll("log", || Bytes::open(DIR, opened)).unwrap();
    store.insert(b"old", b"1").unwrap();
    store.sync_log().unwrap();
    schedule.hold("log", "log.run.before_drain");
    store.insert(b"fails", b"1").unwrap();
    schedule.wait_held("log", "log.run.before_drain");
    disk.set_free(0);
    let successor = OnceLock::new();
    let told = store.log_group(|| {
        schedule.release("log", "log.run.before_drain");
        wait_until("the log does not fail", || !works(&store));
        hooked.holds_new_files.store(true, Ordering::SeqCst);
        disk.set_free(ROOM);
        wait_until("the log does not retry", || hooked.is_held.load(Ordering::SeqCst));
        let next = store.successor(Options::new()).unwrap();
        next.insert(b"new", b"1").unwrap();
        successor.set(next).unwrap();
    });
    assert!(told.is_err());
    hooked.holds_new_files.store(false, Ordering::SeqCst);
    thread::sleep(Duration::from_millis(600));
    let successor = successor.get().unwrap();
    if !works(successor) {
        successor.backup(&BackupOptions::new()).unwrap();
    }
    successor.insert(b"after", b"1").unwrap();
    successor.sync_log().unwrap();
    check_kept(&disk, successor, "flush and retry");
}

/// The power fails at each operation of a retry. The next opening must succeed, because nothing in
/// the new segment was acknowledged.
#[test]
fn a_power_cut_during_a_retry_refuses_no_start() {
    for number in 1..40 {
        let disk = Model::new();
        let store = Bytes::open(DIR, options(&disk, SyncPolicy::Always)).unwrap();
        store.insert(b"before", b"1").unwrap();
        fill(&disk, &store);
        let disk = disk.fault(number, Fault::PowerCut);
        disk.set_free(ROOM);
        wait_until("the log does nothing", || disk.is_off() || works(&store));
        if !disk.is_off() {
            let _ = store.insert(b"after", b"1");
            if !disk.is_off() {
                break;
            }
        }
        for seed in 0..60 {
            let left = disk.after_power_cut(&mut Random::new(seed));
            let found = Bytes::open(DIR, options(&left, SyncPolicy::Always));
            let found = found.unwrap_or_else(|error| panic!("{:?}, {seed}: {error}", disk.hit()));
            assert!(found.get(b"before".as_slice()).is_some(), "{:?}, {seed}", disk.hit());
        }
    }
}

/// A disk with a callback that runs once, before a new segment is created.
#[derive(Clone)]
struct AtCreation(Model, Arc<AtomicBool>, Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

impl std::fmt::Debug for AtCreation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AtCreation").finish_non_exhaustive()
    }
}

impl Storage for AtCreation {
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        if self.1.swap(false, Ordering::SeqCst)
            && let Some(hook) = self.2.get()
        {
            hook();
        }
        self.0.create(path)
    }
    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)> {
        self.0.open(path)
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.0.truncate(path, len)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        self.0.lock(path)
    }
}

/// A write of another thread fails while the log's thread creates the next segment.
#[test]
fn a_failure_beside_a_rotation_is_retried() {
    let disk = Model::new();
    let (armed, hook) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::new()));
    let storage = Arc::new(AtCreation(disk.clone(), Arc::clone(&armed), Arc::clone(&hook)));
    let opened = options(&disk, SyncPolicy::EverySecond)
        .segment_bytes(400)
        .storage(storage)
        .acknowledge_later();
    let store = Arc::new(Bytes::open(DIR, opened).unwrap());
    let other = Arc::downgrade(&store);
    let _ = hook.set(Box::new(move || {
        let Some(store) = other.upgrade() else { return };
        let disk = disk.clone();
        let fails = move || {
            disk.set_free(100);
            store.insert(b"large", &[1; 300]).unwrap();
            store.sync_log().unwrap_err();
            disk.set_free(1 << 26);
        };
        thread::spawn(fails).join().unwrap();
    }) as Box<dyn Fn() + Send + Sync>);
    armed.store(true, Ordering::SeqCst);
    store.insert(b"first", &[0; 500]).unwrap();
    wait_until("there is no rotation", || !armed.load(Ordering::SeqCst));
    wait_until("the log does not fail", || store.durability().unwrap().failures > 0);
    wait_until("the log does not heal", || store.check_log().is_ok());
}
