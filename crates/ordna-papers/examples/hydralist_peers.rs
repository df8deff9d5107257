//! HydraList beside the B-tree under one lock: `cargo run --release --example hydralist_peers [n]`.
//!
//! One thread, interleaved rounds, medians; every answer is checked.

use std::time::Instant;

use ordna_base::{Entries, OrderedIndex};
use ordna_papers::{HydraList, Locked};

const ROUNDS: usize = 3;

/// Spread over all bits, each number once.
fn spread(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// Million operations per second of each part.
fn measure<I: OrderedIndex<Key = u64, Value = u64>>(index: &I, n: u64) -> [f64; 4] {
    let rate =
        |operations: u64, start: Instant| operations as f64 / 1e6 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    for i in 0..n {
        index.insert(&spread(i), &i).expect("within the limits");
    }
    let load = rate(n, start);
    let wanted = |i: u64| spread(i) % n;
    let start = Instant::now();
    for i in 0..n {
        assert_eq!(index.get(&spread(wanted(i))), Some(wanted(i)));
    }
    let get = rate(n, start);
    let start = Instant::now();
    let mut found = Vec::new();
    for batch in 0..n / 64 {
        let keys: Vec<u64> = (0..64).map(|i| spread(wanted(batch * 64 + i))).collect();
        found.clear();
        index.get_many(&keys, &mut found);
        assert!((0..64).all(|i| found[i as usize] == Some(wanted(batch * 64 + i))));
    }
    let get_many = rate(n / 64 * 64, start);
    let start = Instant::now();
    let mut entries = Entries::new();
    for i in 0..n / 20 {
        entries.clear();
        let from = spread(wanted(i));
        index.scan(&from, 50, &mut entries);
        assert!(entries.get(0).is_some_and(|(key, value)| *key == from && *value == wanted(i)));
    }
    [load, get, get_many, rate(n / 20, start)]
}

fn main() {
    let n: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let mut rates: [Vec<[f64; 4]>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        rates[0].push(measure(&Locked::<u64, u64>::new(), n));
        let index = HydraList::<u64, u64>::new();
        rates[1].push(measure(&index, n));
        let statistics = index.statistics();
        let usage = index.memory_usage();
        println!("{usage:?}: {:.1} bytes per key", usage.total() as f64 / n as f64);
        println!("{statistics:?}");
    }
    println!("{n} keys, million per second: lock + B-tree, HydraList, ratio");
    for (part, name) in ["insert", "get", "get_many of 64", "scan of 50"].iter().enumerate() {
        let [one, other] = rates.each_ref().map(|rounds| {
            let mut rounds: Vec<f64> = rounds.iter().map(|round| round[part]).collect();
            rounds.sort_by(f64::total_cmp);
            rounds[ROUNDS / 2]
        });
        println!("{name:16} {one:8.3} {other:8.3} {:6.2}", other / one);
    }
}
