//! Measures `ordna::Store`: against `crossbeam-skiplist`, and against itself without snapshots.
//! Every answer, scan and count is checked. Prints a table.
//!
//! `cargo run --release -p ordna-bench --example mvcc_bench -- all [KEYS]`, or some of its parts,
//! as `scan,churn`. On jemalloc, as the server; and here, because the tests' features are on in the
//! examples of `ordna`.
//!
//! - `peers`: inserts and gets beside `crossbeam-skiplist`, one thread and two
//! - `memory`: bytes per item, when full and after churn
//! - `scan`: walking a whole snapshot
//! - `snapshots`: how long taking one takes while two threads write
//! - `churn`: overwriting with a snapshot every 10 ms and ten alive, and without, in turns

use std::collections::VecDeque;
use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna::{Options, Store};
use ordna_base::{Direction, OrderedIndex};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ROUNDS: usize = 3;
/// Gets of a round.
const GETS: u64 = 3_000_000;
/// Seconds.
const CHURN: u64 = 5;
const SNAPSHOTS: u64 = 20;

type Words = Store<u64, u64>;

trait Map: Sync {
    fn make() -> Self;
    fn put(&self, key: u64, value: u64);
    fn look(&self, key: u64) -> Option<u64>;
}

impl Map for Words {
    fn make() -> Self {
        Self::new()
    }
    fn put(&self, key: u64, value: u64) {
        self.insert(&key, &value).expect("no limit was set");
    }
    fn look(&self, key: u64) -> Option<u64> {
        self.get(&key)
    }
}

impl Map for crossbeam_skiplist::SkipMap<u64, u64> {
    fn make() -> Self {
        Self::new()
    }
    fn put(&self, key: u64, value: u64) {
        self.insert(key, value);
    }
    fn look(&self, key: u64) -> Option<u64> {
        self.get(&key).map(|entry| *entry.value())
    }
}

/// Spreads the numbers over all `u64`, one to one (an odd factor and xorshifts can be undone).
fn key(n: u64) -> u64 {
    let mut x = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Million operations per second of so many threads, each of which does its share of `0..keys`.
fn rate(keys: u64, threads: u64, each: impl Fn(u64) + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let each = &each;
            scope.spawn(move || (thread..keys).step_by(threads as usize).for_each(each));
        }
    });
    keys as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Inserts and gets, million per second, and resident bytes per item.
fn points<M: Map>(keys: u64, threads: u64) -> [f64; 3] {
    let before = resident();
    let map = M::make();
    let insert = rate(keys, threads, |n| map.put(key(n), n));
    let bytes = (resident() - before) as f64 / keys as f64;
    // In another order than they were inserted.
    let get = rate(keys.min(GETS), threads, |n| {
        let n = n.wrapping_mul(0x9E37_79B1) % keys;
        assert_eq!(map.look(key(n)), Some(n), "a wrong answer");
    });
    black_box(&map);
    [insert, get, bytes]
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn row(what: &str, aim: &str, measured: &str) {
    println!("| {what} | {aim} | {measured} |");
}

/// Both lists in turns, each in a process of its own, so that none inherits the other's heap.
fn peers(keys: u64, rounds: usize) {
    for threads in [1, 2] {
        let mut figures: [Vec<[f64; 3]>; 2] = Default::default();
        for _ in 0..rounds {
            for (which, figures) in ["theirs", "ours"].into_iter().zip(&mut figures) {
                let program = std::env::current_exe().expect("this program has a path");
                let arguments = [which, &keys.to_string(), &threads.to_string()];
                let output = std::process::Command::new(program).args(arguments).output();
                let output = output.expect("it starts once more");
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                let told = String::from_utf8_lossy(&output.stdout).into_owned();
                let mut numbers = told.split_whitespace().map(|n| n.parse().expect("a number"));
                figures.push(std::array::from_fn(|_| numbers.next().expect("three numbers")));
            }
        }
        for (at, what) in ["insert", "get", "resident bytes per item"].into_iter().enumerate() {
            let [theirs, ours] =
                [0, 1].map(|of: usize| median(figures[of].iter().map(|round| round[at]).collect()));
            let of = |round: (&[f64; 3], &[f64; 3])| round.1[at] / round.0[at];
            let ratios: Vec<f64> = figures[0].iter().zip(&figures[1]).map(of).collect();
            let (low, high) = (f64::INFINITY, 0.0);
            let (low, high) =
                ratios.iter().fold((low, high), |(low, high), r| (r.min(low), r.max(high)));
            let unit = if at < 2 { " M/s" } else { "" };
            row(
                &format!("{what}, threads: {threads}"),
                if at < 2 { "≥ 1.2 × crossbeam-skiplist" } else { "" },
                &format!(
                    "crossbeam-skiplist {theirs:.3}{unit}, store {ours:.3}{unit}, ratio {:.2} ({low:.2}–{high:.2})",
                    ours / theirs
                ),
            );
        }
    }
}

fn filled(keys: u64) -> Words {
    let store = Words::with_options(Options::new().collectors(2));
    rate(keys, 2, |n| store.put(key(n), n));
    store
}

fn snapshots(store: &Words, keys: u64) {
    let done = AtomicBool::new(false);
    let mut nanos: Vec<u64> = Vec::new();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut n = writer;
                while !done.load(Ordering::Relaxed) {
                    store.put(key(n % keys), n % keys);
                    n += 2;
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(SNAPSHOTS);
        let mut live = VecDeque::new();
        while Instant::now() < end {
            let start = Instant::now();
            live.push_back(store.snapshot());
            nanos.push(start.elapsed().as_nanos() as u64);
            if live.len() > 10 {
                live.pop_front();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        done.store(true, Ordering::Relaxed);
    });
    nanos.sort_unstable();
    let at = |share: f64| nanos[((nanos.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    row(
        "taking a snapshot, two writers running, ten alive",
        "p50 ≤ 2 µs, p99 ≤ 50 µs",
        &format!(
            "p50 {:.2} µs, p99 {:.2} µs, p99.9 {:.2} µs, longest {:.0} µs, of {}",
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            nanos.len()
        ),
    );
}

fn scan(store: &Words, keys: u64) {
    let snapshot = store.snapshot();
    let mut rates: [Vec<f64>; 2] = Default::default();
    for _ in 0..ROUNDS {
        for direction in [Direction::Ascending, Direction::Descending] {
            let (start, mut count, mut sum) = (Instant::now(), 0_u64, 0_u64);
            snapshot.visit(Bound::Unbounded, Bound::Unbounded, direction, |_, value| {
                count += 1;
                sum = sum.wrapping_add(*value);
                ControlFlow::Continue(())
            });
            assert_eq!((count, sum), (keys, keys * (keys - 1) / 2), "a wrong scan");
            let rate = keys as f64 / start.elapsed().as_secs_f64() / 1e6;
            rates[usize::from(matches!(direction, Direction::Descending))].push(rate);
        }
    }
    for (rates, direction) in rates.into_iter().zip(["ascending", "descending"]) {
        let what = format!("scan of a whole snapshot, one thread, {direction}");
        row(&what, "≥ 5 M items/s", &format!("{:.2} M items/s", median(rates)));
    }
}

/// Overwrites for a while, million per second. Every key keeps its value, so that scans can be
/// checked: it is the writing that counts.
fn overwrite(store: &Words, keys: u64, writers: u64, snapshots: bool, round: u64) -> f64 {
    let start = Instant::now();
    let end = start + Duration::from_secs(CHURN);
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let count = &count;
            scope.spawn(move || {
                let mut n = round * 7_777_777 + writer * (keys / 2);
                let mut done = 0;
                while done % 64 != 0 || Instant::now() < end {
                    n += 1;
                    store.put(key(n % keys), n % keys);
                    done += 1_u64;
                }
                count.fetch_add(done, Ordering::Relaxed);
            });
        }
        let mut live = VecDeque::new();
        while snapshots && Instant::now() < end {
            live.push_back(store.snapshot());
            if live.len() > 10 {
                live.pop_front();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    count.into_inner() as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn churn(store: &Words, keys: u64, writers: u64) {
    let mut rounds: [Vec<f64>; 2] = Default::default();
    let mut lag = 0;
    for round in 0..2 * ROUNDS as u64 {
        let snapshots = round % 2 == 1;
        let rate = overwrite(store, keys, writers, snapshots, round);
        rounds[usize::from(snapshots)].push(rate);
        lag = lag.max(store.statistics().dead);
        // Each round begins with nothing left of the one before.
        store.collect_garbage();
    }
    assert_eq!(store.statistics().items as u64, keys);
    let [without, with] = rounds.map(median);
    row(
        &format!(
            "overwriting, writers: {writers}; a snapshot every 10 ms, ten alive, against none"
        ),
        "≥ 0.85",
        &format!(
            "{with:.3} M/s against {without:.3} M/s: {:.2}; at most {lag} versions queued",
            with / without
        ),
    );
}

/// Resident bytes of the process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Bytes of a fresh store, then everything that changes it, then what is left of that.
fn all(keys: u64, parts: &[&str]) {
    let wanted = |part: &str| parts.contains(&"all") || parts.contains(&part);
    println!("| {keys} items of 16 bytes | aim | measured |\n|---|---|---|");
    if wanted("peers") {
        peers(keys, if wanted("all") { 2 } else { ROUNDS });
    }
    let before = resident();
    let store = filled(keys);
    let full = (resident() - before) as f64;
    let held = store.memory_usage().total() as f64;
    let each = |bytes: f64| bytes / keys as f64;
    if wanted("memory") {
        row(
            "bytes per item, the item's 16 included",
            "≤ 64 + 16, if possible 40 + 16",
            &format!("{:.1} asked of the allocator, {:.1} resident", each(held), each(full)),
        );
    }
    if wanted("scan") {
        scan(&store, keys);
    }
    if wanted("snapshots") {
        snapshots(&store, keys);
    }
    if wanted("churn") {
        churn(&store, keys, 2);
        churn(&store, keys, 1);
    }
    if wanted("memory") {
        overwrite(&store, keys, 2, true, 9);
        store.collect_garbage();
        let audit = store.validate().expect("a sound structure");
        assert_eq!((audit.entries as u64, audit.nodes as u64), (keys, keys), "versions are left");
        let after = store.memory_usage().total() as f64;
        row(
            "bytes after churn and collection, against those before",
            "≤ 1.05",
            &format!("{:.3}; resident {:.3}", after / held, (resident() - before) as f64 / full),
        );
    }
    // Giving back every node one by one is no part of any figure.
    std::mem::forget(store);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (keys, threads) = (number(1, 10_000_000), number(2, 1));
    let points = match arguments.first().map(String::as_str) {
        Some("theirs") => points::<crossbeam_skiplist::SkipMap<u64, u64>>(keys, threads),
        Some("ours") => points::<Words>(keys, threads),
        Some(parts) => return all(keys, &parts.split(',').collect::<Vec<_>>()),
        None => return eprintln!("all|peers|memory|scan|snapshots|churn[,…] [KEYS]"),
    };
    println!("{} {} {}", points[0], points[1], points[2]);
}
