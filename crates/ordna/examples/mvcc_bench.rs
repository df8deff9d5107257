//! Measures `ordna::mvcc::Store`: against `crossbeam-skiplist`, and against itself without snapshots.
//! Every answer is checked.
//!
//! `cargo run --release -p ordna --example mvcc_bench -- peers [KEYS [THREADS]]`
//! `… -- snapshots [KEYS]`: how long taking one takes while two threads write
//! `… -- scan [KEYS]`: walking a whole snapshot
//! `… -- churn [KEYS]`: writing with a snapshot every 10 ms and ten alive, and without
//! `… -- memory [KEYS]`: resident bytes per item, before and after churn

use std::collections::VecDeque;
use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna::mvcc::{Options, Store};
use ordna::{Direction, OrderedIndex};

const ROUNDS: usize = 3;

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

/// Insert and get, million per second.
fn points<M: Map>(keys: u64, threads: u64) -> [f64; 2] {
    let map = M::make();
    let insert = rate(keys, threads, |n| map.put(key(n), n));
    // In another order than they were inserted.
    let get = rate(keys, threads, |n| {
        let n = n.wrapping_mul(0x9E37_79B1) % keys;
        assert_eq!(map.look(key(n)), Some(n), "a wrong answer");
    });
    [insert, get]
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn peers(keys: u64, threads: u64) {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let theirs = points::<crossbeam_skiplist::SkipMap<u64, u64>>(keys, threads);
        let ours = points::<Words>(keys, threads);
        rounds.push((theirs, ours));
    }
    for (at, what) in ["insert", "get"].into_iter().enumerate() {
        let theirs = median(rounds.iter().map(|round| round.0[at]).collect());
        let ours = median(rounds.iter().map(|round| round.1[at]).collect());
        let ratio = ours / theirs;
        println!(
            "{what}, {threads} threads: crossbeam-skiplist {theirs:.3} M/s, store {ours:.3} M/s, ratio {ratio:.2}"
        );
    }
}

fn filled(keys: u64) -> Words {
    let store = Words::with_options(Options::new().collectors(2));
    rate(keys, 2, |n| store.put(key(n), n));
    store
}

fn snapshots(keys: u64) {
    let store = filled(keys);
    let done = AtomicBool::new(false);
    let mut nanos: Vec<u64> = Vec::new();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut n = writer;
                while !done.load(Ordering::Relaxed) {
                    store.put(key(n % keys), n);
                    n += 2;
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(30);
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
    println!(
        "{} snapshots of {keys} items, two writers: p50 {:.2} us, p99 {:.2} us, p99.9 {:.2} us, max {:.2} us",
        nanos.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn scan(keys: u64) {
    let store = filled(keys);
    let snapshot = store.snapshot();
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        for direction in [Direction::Ascending, Direction::Descending] {
            let (start, mut count, mut sum) = (Instant::now(), 0_u64, 0_u64);
            snapshot.visit(Bound::Unbounded, Bound::Unbounded, direction, |_, value| {
                count += 1;
                sum = sum.wrapping_add(*value);
                ControlFlow::Continue(())
            });
            assert_eq!((count, sum), (keys, keys * (keys - 1) / 2), "a wrong scan");
            rates.push((direction, keys as f64 / start.elapsed().as_secs_f64() / 1e6));
        }
    }
    for direction in [Direction::Ascending, Direction::Descending] {
        let of = rates.iter().filter(|(d, _)| *d == direction).map(|(_, rate)| *rate).collect();
        println!("scan of a snapshot of {keys} items, {direction:?}: {:.2} M items/s", median(of));
    }
}

/// Overwrites by two threads for a while, million per second.
fn overwrite(store: &Words, keys: u64, snapshots: bool, round: u64) -> f64 {
    let end = Instant::now() + Duration::from_secs(6);
    let count = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let count = &count;
            scope.spawn(move || {
                let mut n = round * 7_777_777 + writer * (keys / 2);
                let mut done = 0;
                while done % 64 != 0 || Instant::now() < end {
                    n += 1;
                    store.put(key(n % keys), n);
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

fn churn(keys: u64) {
    let store = filled(keys);
    let mut rounds = Vec::new();
    for round in 0..ROUNDS as u64 {
        store.collect_garbage();
        let without = overwrite(&store, keys, false, round * 2);
        let with = overwrite(&store, keys, true, round * 2 + 1);
        rounds.push((without, with));
    }
    let statistics = store.statistics();
    assert_eq!(statistics.items as u64, keys);
    let without = median(rounds.iter().map(|round| round.0).collect());
    let with = median(rounds.iter().map(|round| round.1).collect());
    println!(
        "two writers over {keys} items: {without:.3} M/s without snapshots, {with:.3} M/s with one every 10 ms and ten alive, ratio {:.2}; lag {}, waits {}",
        with / without,
        statistics.collector_lag,
        statistics.waits
    );
}

/// Resident bytes of the process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn memory(keys: u64) {
    let before = resident();
    let store = filled(keys);
    let full = resident() - before;
    let held = store.memory_usage().total();
    println!(
        "{keys} items of 16 bytes: {:.1} resident bytes each, {:.1} asked of the allocator",
        full as f64 / keys as f64,
        held as f64 / keys as f64
    );
    overwrite(&store, keys, true, 1);
    store.collect_garbage();
    let after = store.memory_usage().total();
    println!(
        "after churn and collection: {:.3} times the bytes, {:.3} times the resident bytes; {} versions",
        after as f64 / held as f64,
        (resident() - before) as f64 / full as f64,
        store.statistics().versions
    );
    black_box(&store);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let keys = number(1, 10_000_000);
    match arguments.first().map(String::as_str) {
        Some("peers") => peers(keys, number(2, 1)),
        Some("snapshots") => snapshots(keys),
        Some("scan") => scan(keys),
        Some("churn") => churn(keys),
        Some("memory") => memory(keys),
        _ => eprintln!("peers|snapshots|scan|churn|memory [KEYS [THREADS]]"),
    }
}
