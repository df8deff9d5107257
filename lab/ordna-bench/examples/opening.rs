//! Measures opened stores: durable puts, a writer with concurrent views, disk use, opening times,
//! and puts lost in a kill.
//!
//! ```text
//! cargo run --release -p ordna-bench --example opening -- DIR [ENTRIES] [ROUNDS]
//! ```
//!
//! `DIR` must not exist, and is removed at the end. Keys have 16 bytes and values 100, as in the
//! review of embedded stores. Prints a line for each figure and round.

use std::error::Error;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ordna::{OpenOptions, Store, SyncPolicy, Write};

type Bytes = Store<[u8], [u8]>;
type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Returns a number that looks random, so that keys are in no order.
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(number).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(number: u64) -> [u8; 100] {
    std::array::from_fn(|at| (mix(number + at as u64) >> 24) as u8)
}

fn open(dir: &Path, sync: SyncPolicy) -> Done<Bytes> {
    Ok(Store::open(dir, OpenOptions::new().sync(sync))?)
}

fn bytes_in(dir: &Path) -> Done<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let found = entry.metadata()?;
        bytes += if found.is_dir() { bytes_in(&entry.path())? } else { found.len() };
    }
    Ok(bytes)
}

fn load(store: &Bytes, entries: u64) -> Done {
    for from in (0..entries).step_by(10_000) {
        let items: Vec<_> =
            (from..entries.min(from + 10_000)).map(|it| (key(it), value(it))).collect();
        let writes: Vec<Write<'_, [u8], [u8]>> =
            items.iter().map(|(key, value)| Write::put(&key[..], &value[..])).collect();
        store.write_batch(&writes)?;
    }
    Ok(())
}

/// Returns the puts per second of `threads` threads, each of which executes `puts` puts.
fn puts(store: &Bytes, threads: u64, puts: u64, entries: u64) -> Done<f64> {
    let began = Instant::now();
    thread::scope(|scope| {
        let write = |thread: u64| {
            let first = thread * puts;
            (first..first + puts).try_for_each(|it| store.put(&key(mix(it) % entries), &value(it)))
        };
        let threads: Vec<_> = (0..threads).map(|it| scope.spawn(move || write(it))).collect();
        threads
            .into_iter()
            .try_for_each(|it| it.join().map_err(|_| "a writer panicked")?.map_err(Into::into))
    })
    .map(|()| (threads * puts) as f64 / began.elapsed().as_secs_f64())
}

/// Returns the puts per second of one writer during a fixed time, alone or with a reader that
/// iterates over one view after the other.
fn beside_views(store: &Bytes, entries: u64, walks: bool) -> Done<f64> {
    const TIME: Duration = Duration::from_secs(3);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let walk = || {
            while walks && !ends.load(Ordering::Relaxed) {
                std::hint::black_box(store.snapshot().range(..).count());
            }
        };
        scope.spawn(walk);
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < TIME {
            for _ in 0..1000 {
                store.put(&key(mix(count) % entries), &value(count))?;
                count += 1;
            }
        }
        let rate = count as f64 / began.elapsed().as_secs_f64();
        ends.store(true, Ordering::Relaxed);
        Ok(rate)
    })
}

/// Runs this program as a child until its condition holds, and kills it. Returns the last number
/// that it reported.
fn kill(dir: &Path, mode: &str, entries: u64, time: Duration) -> Done<u64> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--child", mode])
        .arg(dir)
        .arg(entries.to_string())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut pipe = child.stdout.take().ok_or("no pipe")?;
    let mut first = [0; 8];
    pipe.read_exact(&mut first)?;
    thread::sleep(time);
    child.kill()?;
    child.wait()?;
    let mut told = Vec::new();
    pipe.read_to_end(&mut told)?;
    let last = told.chunks_exact(8).next_back().and_then(|it| it.first_chunk::<8>());
    Ok(u64::from_le_bytes(*last.unwrap_or(&first)))
}

/// Runs the child, which puts under `EverySecond` and reports each acknowledged put.
fn child(mode: &str, dir: &Path, entries: u64) -> Done {
    let store = open(dir, SyncPolicy::EverySecond)?;
    let mut out = std::io::stdout().lock();
    if mode == "load" {
        load(&store, entries)?;
        puts(&store, 1, entries * 3 / 10, entries)?;
    }
    out.write_all(&0_u64.to_le_bytes())?;
    out.flush()?;
    for number in 0_u64.. {
        if mode == "puts" {
            store.put(&number.to_be_bytes(), b"acknowledged")?;
            out.write_all(&(number + 1).to_le_bytes())?;
            out.flush()?;
        } else {
            thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["--child", mode, dir, entries] = texts[..] {
        return child(mode, Path::new(dir), entries.parse()?);
    }
    let dir = PathBuf::from(texts.first().ok_or("usage: opening DIR [ENTRIES] [ROUNDS]")?);
    let entries: u64 = texts.get(1).map_or(Ok(1_000_000), |it| it.parse())?;
    let rounds: u64 = texts.get(2).map_or(Ok(3), |it| it.parse())?;
    if dir.exists() {
        return Err("the directory exists".into());
    }
    for round in 1..=rounds {
        let print = |what: &str, figure: f64| println!("round {round}: {what}: {figure:.3}");
        let fresh = || std::fs::remove_dir_all(&dir).unwrap_or(());
        fresh();
        let store = open(&dir, SyncPolicy::Always)?;
        print("durable puts a second, 1 thread", puts(&store, 1, 5000, entries)?);
        print("durable puts a second, 8 threads", puts(&store, 8, 5000, entries)?);
        drop(store);
        fresh();
        let store = open(&dir, SyncPolicy::EverySecond)?;
        let began = Instant::now();
        load(&store, entries)?;
        print("load, entries a second", entries as f64 / began.elapsed().as_secs_f64());
        print("puts synced each second", puts(&store, 1, entries * 3 / 10, entries)?);
        let began = Instant::now();
        drop(store);
        print("closing, s", began.elapsed().as_secs_f64());
        let began = Instant::now();
        let store = open(&dir, SyncPolicy::EverySecond)?;
        print("opening after a close, s", began.elapsed().as_secs_f64());
        let alone = beside_views(&store, entries, false)?;
        let beside = beside_views(&store, entries, true)?;
        print("a writer keeps beside views", beside / alone);
        print("disk after that, MB", bytes_in(&dir)? as f64 / 1e6);
        drop(store);
        fresh();
        kill(&dir, "load", entries, Duration::ZERO)?;
        let began = Instant::now();
        let store = open(&dir, SyncPolicy::EverySecond)?;
        print("opening after a kill, s", began.elapsed().as_secs_f64());
        drop(store);
        let mut lost = 0;
        for time in 0..20 {
            fresh();
            let told = kill(&dir, "puts", entries, Duration::from_millis(5 + 7 * time))?;
            let store = open(&dir, SyncPolicy::EverySecond)?;
            lost += (0..told).filter(|it: &u64| store.get(&it.to_be_bytes()).is_none()).count();
        }
        print("puts lost at 20 kills", lost as f64);
        fresh();
    }
    Ok(())
}
