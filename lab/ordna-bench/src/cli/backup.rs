//! `ordna-bench backup`: measures the cost of durability, each figure next to its limit in the same
//! run.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use ordna::durability::{
    BackupError, BackupOptions, Compression, Disk, Mode, OpenOptions, OutFile, Storage, SyncPolicy,
};
use ordna::{OrderedIndex, Store};

use super::common::BenchError;
use crate::memory;

/// The types of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Values {
    /// Keys of 16 bytes with values of 84 bytes.
    Bytes,
    /// Integer keys and values.
    Int,
}

/// `ordna-bench backup`
#[derive(Debug, Args)]
pub struct Backup {
    /// Number of entries.
    #[arg(long, default_value_t = 1_000_000)]
    n: u64,
    /// Types of keys and values.
    #[arg(long, value_enum, default_value = "bytes")]
    values: Values,
    /// Number of threads that insert, back up and restore.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// A directory on the disk to measure.
    #[arg(long, default_value = "target/bench-backup")]
    dir: PathBuf,
}

/// A key set whose entries are computed from their number.
trait Entries: 'static {
    type Key: ordna::Key + ?Sized;
    type Value: ordna::Value + ?Sized;
    fn put(store: &Store<Self::Key, Self::Value>, number: u64, round: u64) -> Result<(), String>;
    fn has(store: &Store<Self::Key, Self::Value>, number: u64, round: u64) -> bool;
}

/// Maps numbers, one to one, to numbers in a scattered order.
fn scatter(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

struct Ints;

impl Entries for Ints {
    type Key = u64;
    type Value = u64;
    fn put(store: &Store<u64, u64>, number: u64, round: u64) -> Result<(), String> {
        store.insert(&scatter(number), &(number + round)).map(drop).map_err(|e| e.to_string())
    }
    fn has(store: &Store<u64, u64>, number: u64, round: u64) -> bool {
        store.get(&scatter(number)) == Some(number + round)
    }
}

struct Strings;

impl Strings {
    fn entry(number: u64, round: u64) -> (String, [u8; 84]) {
        let mut value = [b'v'; 84];
        value[..8].copy_from_slice(&(number + round).to_le_bytes());
        (format!("{:016x}", scatter(number)), value)
    }
}

impl Entries for Strings {
    type Key = [u8];
    type Value = [u8];
    fn put(store: &Store<[u8], [u8]>, number: u64, round: u64) -> Result<(), String> {
        let (key, value) = Self::entry(number, round);
        store.insert(key.as_bytes(), &value).map(drop).map_err(|e| e.to_string())
    }
    fn has(store: &Store<[u8], [u8]>, number: u64, round: u64) -> bool {
        let (key, value) = Self::entry(number, round);
        store.get_with(key.as_bytes(), |found| *found == value) == Some(true)
    }
}

/// A storage that discards everything written to it, so that only the encoding is measured.
#[derive(Debug)]
struct Nowhere;

#[derive(Debug)]
struct Nothing;

impl OutFile for Nothing {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Storage for Nowhere {
    fn create(&self, _: &Path) -> io::Result<Box<dyn OutFile>> {
        Ok(Box::new(Nothing))
    }
    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)> {
        Disk.open(path)
    }
    fn truncate(&self, _: &Path, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn lock(&self, _: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        Ok(Some(Box::new(())))
    }
}

fn failed(error: BackupError) -> BenchError {
    BenchError::Request(error.to_string())
}

fn said(text: impl Into<String>) -> BenchError {
    BenchError::Request(text.into())
}

/// Runs `work` on several threads, each of which gets its number.
fn on_threads(
    threads: u64,
    work: impl Fn(u64) -> Result<(), String> + Sync,
) -> Result<Duration, BenchError> {
    let began = Instant::now();
    let results: Vec<_> = thread::scope(|scope| {
        let start = |number| {
            scope.spawn({
                let work = &work;
                move || work(number)
            })
        };
        let all: Vec<_> = (0..threads).map(start).collect();
        all.into_iter().map(|one| one.join().unwrap_or(Err("a thread panicked".into()))).collect()
    });
    results.into_iter().collect::<Result<(), _>>().map_err(said)?;
    Ok(began.elapsed())
}

/// Returns the writes per second of two threads while `work` runs, and the result of `work`.
fn writes_beside<E: Entries, R: Send>(
    store: &Store<E::Key, E::Value>,
    n: u64,
    work: impl FnOnce() -> R + Send,
) -> (f64, R) {
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for writer in 0..2 {
            let (stop, writes) = (&stop, &writes);
            scope.spawn(move || {
                let mut at = scatter(writer + 1);
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..64 {
                        at = at
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        // The entries are checked after the restore, so the writes do not change
                        // their values.
                        let _ = E::put(store, (at >> 33) % n, 0);
                    }
                    writes.fetch_add(64, Ordering::Relaxed);
                }
            });
        }
        let began = Instant::now();
        let done = work();
        let rate = writes.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        (rate, done)
    })
}

/// Computes for five seconds at a lower priority, to measure what any concurrent work costs
/// writers.
fn only_compute(nice: i32) {
    thread::scope(|scope| {
        scope.spawn(|| {
            // On Linux this lowers the priority of this thread only.
            let _ = rustix::process::nice(nice);
            let began = Instant::now();
            let mut at = 1;
            while began.elapsed() < Duration::from_secs(5) {
                at = (0..1000).fold(at, |at, _| std::hint::black_box(scatter(at)));
            }
        });
    });
}

/// Returns the largest growth of resident memory while `work` runs, and the result of `work`.
fn growth<R: Send>(work: impl FnOnce() -> R + Send) -> (f64, R) {
    let start = memory::resident().unwrap_or(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !stop.load(Ordering::Relaxed) {
                most = most.max(memory::resident().unwrap_or(0));
                thread::sleep(Duration::from_millis(50));
            }
            most
        });
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let most = watch.join().unwrap_or(0);
        (most.saturating_sub(start) as f64 / start.max(1) as f64, done)
    })
}

impl Backup {
    pub fn run(&self) -> Result<(), BenchError> {
        match self.values {
            Values::Bytes => self.measure::<Strings>(),
            Values::Int => self.measure::<Ints>(),
        }
    }

    fn measure<E: Entries>(&self) -> Result<(), BenchError> {
        let (n, threads) = (self.n, self.threads);
        let io = |error: io::Error| said(format!("{}: {error}", self.dir.display()));
        if self.dir.exists() {
            std::fs::remove_dir_all(&self.dir).map_err(io)?;
        }
        std::fs::create_dir_all(&self.dir).map_err(io)?;
        println!("{n} entries, {threads} threads, {:?}\n", self.values);
        println!("| figure | value |\n|---|---|");
        let say = |name: &str, value: String| println!("| {name} | {value} |");

        // The store has the log's thread and files and a backup without a snapshot, but never calls
        // fsync.
        let open = OpenOptions::new().sync(SyncPolicy::Never);
        let plain = Store::<E::Key, E::Value>::new();
        let fill = |store: &Store<E::Key, E::Value>| {
            on_threads(threads, |thread| {
                (0..n)
                    .filter(|number| number % threads == thread)
                    .try_for_each(|number| E::put(store, number, 0))
            })
        };
        let inserted = fill(&plain)?;
        say("insertion into an empty store", format!("{:.2} s", inserted.as_secs_f64()));

        let options = || BackupOptions::new().workers(threads as usize);
        let nowhere = options().storage(Arc::new(Nowhere));
        let encoded = plain.backup_to(self.dir.join("nowhere"), &nowhere).map_err(failed)?;
        say("encoding alone", format!("{:.2} s", encoded.took.as_secs_f64()));
        let raw = plain_write(&self.dir.join("raw"), encoded.bytes).map_err(io)?;
        say("a plain writer of the same bytes, with fsync", format!("{:.2} s", raw.as_secs_f64()));
        let limit = raw.max(encoded.took);
        let target = self.dir.join("backup");
        let written = plain.backup_to(&target, &options()).map_err(failed)?;
        let share = limit.as_secs_f64() / written.took.as_secs_f64();
        let speed = written.bytes as f64 / 1e6 / written.took.as_secs_f64();
        say(
            "backup",
            format!(
                "{:.2} s, {:.0} MB, {speed:.0} MB/s, {:.0} % of the limit",
                written.took.as_secs_f64(),
                written.bytes as f64 / 1e6,
                share * 100.0
            ),
        );
        for (name, compression) in [("LZ4", Compression::Lz4), ("zstd", Compression::Zstd)] {
            let options = options().compression(compression);
            let done = plain.backup_to(self.dir.join(name), &options).map_err(failed)?;
            let (seconds, bytes) = (done.took.as_secs_f64(), done.bytes as f64 / 1e6);
            say(&format!("backup with {name}"), format!("{seconds:.2} s, {bytes:.0} MB"));
        }
        drop(plain);

        let began = Instant::now();
        let store =
            Store::<E::Key, E::Value>::restore(&target, OpenOptions::new()).map_err(failed)?;
        let restored = began.elapsed();
        let ratio = inserted.as_secs_f64() / restored.as_secs_f64();
        say(
            "restore",
            format!("{:.2} s, {ratio:.1} times as fast as insertion", restored.as_secs_f64()),
        );
        let lost = (0..n).filter(|number| !E::has(&store, *number, 0)).count();
        if lost > 0 || store.approximate_len() as u64 != n {
            return Err(said(format!("the restored store lacks {lost} of {n} entries")));
        }
        drop(store);

        let store = Store::<E::Key, E::Value>::open(self.dir.join("data"), open).map_err(failed)?;
        let logged = fill(&store)?;
        say(
            "insertion with a log, `no`",
            format!(
                "{:.2} s, {:.0} % of the time without",
                logged.as_secs_f64(),
                logged.as_secs_f64() / inserted.as_secs_f64() * 100.0
            ),
        );
        let background = |mode| BackupOptions::new().workers(1).background(true).mode(mode);
        // The rate without a backup drifts, for example because the system writes back pages. So it
        // is measured before and after.
        let rest = || writes_beside::<E, _>(&store, n, || thread::sleep(Duration::from_secs(5))).0;
        let mut before = rest();
        let mut shown = |rate: f64| {
            let after = rest();
            let alone = (std::mem::replace(&mut before, after) + after) / 2.0;
            format!("{:.0} % of {:.2} M writes/s", rate / alone * 100.0, alone / 1e6)
        };
        for nice in [0, 10] {
            let (beside, ()) = writes_beside::<E, _>(&store, n, || only_compute(nice));
            say(
                &format!("two writers beside a thread that only computes, nice {nice}"),
                shown(beside),
            );
        }
        for mode in [Mode::Live, Mode::Snapshot] {
            let (beside, done) =
                writes_beside::<E, _>(&store, n, || store.backup(&background(mode)));
            let (done, shown) = (done.map_err(failed)?, shown(beside));
            let took = done.took.as_secs_f64();
            say(
                &format!("two writers beside a background backup, {mode:?}"),
                format!("{shown}; backup {took:.2} s, {} states spilled", done.spilled),
            );
        }
        let overwrite =
            || (0..n / 5).try_for_each(|number| E::put(&store, number * 5, 0)).map_err(said);
        for mode in [Mode::Live, Mode::Snapshot] {
            let (grown, done) = growth(|| {
                thread::scope(|scope| {
                    let backup = scope.spawn(|| store.backup(&background(mode)));
                    overwrite()?;
                    let done = backup.join().map_err(|_| said("a thread panicked"))?;
                    done.map_err(failed)
                })
            });
            say(
                &format!("resident memory while a fifth is overwritten, {mode:?}"),
                format!("+{:.1} %, {} states spilled", grown * 100.0, done?.spilled),
            );
        }
        let (grown, done) = growth(overwrite);
        done?;
        say(
            "resident memory while a fifth is overwritten, without a backup",
            format!("+{:.1} %", grown * 100.0),
        );
        drop(store);
        let began = Instant::now();
        let store = Store::<E::Key, E::Value>::open(self.dir.join("data"), OpenOptions::new())
            .map_err(failed)?;
        let log = store.durability().map_or(0, |told| told.recovery.log.records);
        say(
            "opening: backup, delta and log",
            format!("{:.2} s, {log} records of the log", began.elapsed().as_secs_f64()),
        );
        let lost = (0..n).filter(|number| !E::has(&store, *number, 0)).count();
        if lost > 0 {
            return Err(said(format!("the opened store lacks {lost} of {n} entries")));
        }
        drop(store);
        std::fs::remove_dir_all(&self.dir).map_err(io)
    }
}

/// Writes `bytes` bytes in pieces of one mebibyte, and syncs the file.
fn plain_write(path: &Path, bytes: u64) -> io::Result<Duration> {
    const PIECE: u64 = 1 << 20;
    let piece: Vec<u8> = (0..PIECE).map(|at| scatter(at) as u8).collect();
    let began = Instant::now();
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let now = left.min(PIECE) as usize;
        file.write_all(piece.get(..now).unwrap_or(&piece))?;
        left -= now as u64;
    }
    file.sync_data()?;
    let took = began.elapsed();
    std::fs::remove_file(path)?;
    Ok(took)
}
