//! Measures `ordna::skiplist::SkipList` against `crossbeam-skiplist` with random `u64` keys.
//!
//! `cargo run --release -p ordna --example skiplist_peers [-- KEYS [GETS]]`, or
//! `… -- memory ordna|crossbeam KEYS` for the resident bytes per key in a process of its own.

use std::hint::black_box;
use std::time::Instant;

use ordna::skiplist::SkipList;
use ordna_base::OrderedIndex;

trait Map: Sync {
    const NAME: &'static str;
    fn new() -> Self;
    fn put(&self, key: u64, value: u64);
    fn look(&self, key: u64) -> Option<u64>;
    fn look_many(&self, keys: &[u64]) -> u64;
}

impl Map for SkipList<u64, u64> {
    const NAME: &'static str = "ordna";
    fn new() -> Self {
        SkipList::new()
    }
    fn put(&self, key: u64, value: u64) {
        self.insert(&key, &value).expect("no limit on words");
    }
    fn look(&self, key: u64) -> Option<u64> {
        self.get(&key)
    }
    fn look_many(&self, keys: &[u64]) -> u64 {
        let mut sum = 0_u64;
        self.get_many_with(keys, |_, value| {
            sum = sum.wrapping_add(*value.expect("the key was inserted"));
        });
        sum
    }
}

impl Map for crossbeam_skiplist::SkipMap<u64, u64> {
    const NAME: &'static str = "crossbeam";
    fn new() -> Self {
        Self::new()
    }
    fn put(&self, key: u64, value: u64) {
        self.insert(key, value);
    }
    fn look(&self, key: u64) -> Option<u64> {
        self.get(&key).map(|entry| *entry.value())
    }
    fn look_many(&self, keys: &[u64]) -> u64 {
        keys.iter()
            .fold(0, |sum, key| sum.wrapping_add(self.look(*key).expect("the key was inserted")))
    }
}

/// Spreads the numbers over all `u64`, one to one (an odd factor and xorshifts can be undone).
fn key(n: u64) -> u64 {
    let mut x = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Millions a second of `total` calls spread over the threads.
fn rate(threads: u64, total: u64, work: impl Fn(u64) + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || {
                let mut n = thread;
                while n < total {
                    work(n);
                    n += threads;
                }
            });
        }
    });
    total as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn measure<M: Map>(threads: u64, keys: u64, gets: u64) -> [f64; 3] {
    let map = M::new();
    let insert = rate(threads, keys, |n| map.put(key(n), n));
    let get = rate(threads, gets, |n| {
        // Another order than that of insertion.
        let n = key(n ^ 0x5555) % keys;
        assert_eq!(map.look(key(n)), Some(n), "a wrong value");
    });
    let batches = gets / 64;
    let many = rate(threads, batches, |batch| {
        let numbers: Vec<u64> = (0..64).map(|at| key(batch * 64 + at) % keys).collect();
        let wanted: Vec<u64> = numbers.iter().map(|n| key(*n)).collect();
        assert_eq!(map.look_many(&wanted), numbers.iter().sum::<u64>(), "a wrong value");
    });
    assert_eq!(map.look(key(keys)), None, "a key that was never inserted");
    [insert, get, many * 64.0]
}

fn compare(threads: u64, keys: u64, gets: u64) {
    let ours = measure::<SkipList<u64, u64>>(threads, keys, gets);
    let theirs = measure::<crossbeam_skiplist::SkipMap<u64, u64>>(threads, keys, gets);
    for (at, name) in ["insert", "get", "get, 64 a batch"].into_iter().enumerate() {
        let ratio = ours[at] / theirs[at];
        println!("{threads} {name:<16} {:>8.3} {:>10.3} {ratio:>7.2}", ours[at], theirs[at]);
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or("VmRSS: 0");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn memory<M: Map>(keys: u64) {
    let before = resident();
    let map = M::new();
    (0..keys).for_each(|n| map.put(key(n), n));
    let bytes = (resident() - before) as f64 / keys as f64;
    println!("{:<10} {bytes:.1} resident bytes a key", M::NAME);
    black_box(map.look(0));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        arguments.get(at).map_or(default, |text| text.parse().expect("a number"))
    };
    if arguments.first().is_some_and(|first| first == "memory") {
        match arguments.get(1).map(String::as_str) {
            Some("crossbeam") => {
                memory::<crossbeam_skiplist::SkipMap<u64, u64>>(number(2, 1 << 20))
            }
            _ => memory::<SkipList<u64, u64>>(number(2, 1 << 20)),
        }
        return;
    }
    let keys = number(0, 1 << 20);
    let gets = number(1, 1 << 20);
    println!("{keys} keys, {gets} gets; millions a second\nthreads       ordna  crossbeam   ratio");
    compare(1, keys, gets);
    compare(2, keys, gets);
}
