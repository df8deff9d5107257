//! `ordna-bench snapshots`: measures the cost of snapshots for writers, scans, memory and a hot
//! key.
//!
//! Every value that is read is checked. A round overwrites uniformly drawn keys, so under a live
//! snapshot nearly every overwrite needs its own undo record or version.

use std::collections::VecDeque;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use ordna::Direction;
use ordna_base::index::{ReadSnapshot, Versioned};
use ordna_papers::nitro;

use super::common::BenchError;

/// Number of live snapshots.
const ALIVE: usize = 10;

/// An index with snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    Store,
    Nitro,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The time to take a snapshot with two concurrent writers.
    Take,
    /// Overwrites with a snapshot every 10 ms and ten of them alive, alternating with overwrites
    /// without snapshots.
    Churn,
    /// A scan at a snapshot after every key has changed, compared with one of the latest state.
    Scan,
    /// Many successive snapshots of one key that is overwritten between them.
    Hot,
}

/// `ordna-bench snapshots`
#[derive(Debug, Args)]
pub struct Snapshots {
    /// Number of entries with integer keys and values.
    #[arg(long, default_value_t = 10_000_000)]
    n: u64,
    /// Engines.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "store,nitro")]
    index: Vec<Engine>,
    /// Parts.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "take,churn,scan,hot")]
    part: Vec<Part>,
    /// Rounds of churn, each with and without snapshots.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Seconds per round, and for taking snapshots.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Number of snapshots of the hot key.
    #[arg(long, default_value_t = 1_000_000)]
    hot: u64,
}

/// An index of integers with snapshots.
trait Words: Versioned<Key = u64, Value = u64> + Default {}

impl<I: Versioned<Key = u64, Value = u64> + Default> Words for I {}

/// Spreads the numbers over all `u64`, one to one, because an odd factor and xorshifts are
/// invertible.
fn key(n: u64) -> u64 {
    let mut x = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn failed(what: impl std::fmt::Display) -> BenchError {
    BenchError::Request(what.to_string())
}

fn row(what: &str, aim: &str, measured: &str) {
    println!("| {what} | {aim} | {measured} |");
}

impl Snapshots {
    pub fn run(&self) -> Result<(), BenchError> {
        for engine in &self.index {
            println!("\n| {engine:?}, {} entries | aim | measured |\n|---|---|---|", self.n);
            match engine {
                Engine::Store => self.of::<ordna::Store<u64, u64>>()?,
                Engine::Nitro => self.of::<nitro::Nitro<u64, u64>>()?,
            }
        }
        Ok(())
    }

    fn of<S: Words>(&self) -> Result<(), BenchError> {
        let store = S::default();
        for n in 0..self.n {
            store.insert(&key(n), &n).map_err(failed)?;
        }
        let huge = ordna_base::slabs::huge_bytes();
        let held = store.memory_usage().total();
        row(
            "bytes per entry",
            "≤ 25",
            &format!(
                "{:.1}; {} MiB of slabs stand on huge pages",
                held as f64 / self.n as f64,
                huge.map_or("?".to_owned(), |bytes| (bytes >> 20).to_string())
            ),
        );
        for part in &self.part {
            match part {
                Part::Take => self.take(&store),
                Part::Churn => {
                    self.churn(&store, 2, "≥ 0.90");
                    self.churn(&store, 1, "≥ 0.95");
                }
                Part::Scan => self.scan(&store)?,
                Part::Hot => self.hot(&store)?,
            }
        }
        store.collect_garbage();
        let after = store.memory_usage().total() as f64 / held as f64;
        row("memory after all snapshots have ended", "≤ 1.02", &format!("{after:.3}"));
        store.check_invariants().map_err(failed)?;
        // Freeing every node individually is not part of any figure.
        std::mem::forget(store);
        Ok(())
    }

    /// Overwrites entries until `end`. The value of a key does not change, so that scans can be
    /// checked.
    fn overwrite<S: Words>(&self, store: &S, seed: u64, end: Instant) -> u64 {
        let (mut state, mut done) = (seed, 0);
        while done % 64 != 0 || Instant::now() < end {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let n = ((u128::from(key(state)) * u128::from(self.n)) >> 64) as u64;
            let old = store.insert(&key(n), &n);
            assert_eq!(old, Ok(Some(n)), "an overwrite found another value");
            done += 1;
        }
        done
    }

    fn take<S: Words>(&self, store: &S) {
        let mut nanos: Vec<u64> = Vec::new();
        let end = Instant::now() + Duration::from_secs(self.seconds);
        thread::scope(|scope| {
            for writer in 0..2 {
                scope.spawn(move || self.overwrite(store, writer, end));
            }
            let mut live = VecDeque::new();
            while Instant::now() < end {
                let start = Instant::now();
                live.push_back(store.snapshot());
                nanos.push(start.elapsed().as_nanos() as u64);
                if live.len() > ALIVE {
                    live.pop_front();
                }
                thread::sleep(Duration::from_millis(2));
            }
        });
        store.collect_garbage();
        nanos.sort_unstable();
        let at = |share: f64| nanos[((nanos.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
        let (half, most, longest) = (at(0.5), at(0.99), at(1.0));
        row(
            "taking a snapshot beside two writers, ten alive",
            "p50 ≤ 1 µs, p99 ≤ 10 µs",
            &format!("p50 {half:.2}, p99 {most:.2}, longest {longest:.0} µs of {}", nanos.len()),
        );
    }

    fn churn<S: Words>(&self, store: &S, writers: u64, aim: &str) {
        let mut rates: [Vec<f64>; 2] = Default::default();
        for round in 0..2 * self.rounds {
            let with = round % 2 == 1;
            let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
            let start = Instant::now();
            let end = start + Duration::from_secs(self.seconds);
            thread::scope(|scope| {
                for writer in 0..writers {
                    let (count, done) = (&count, &done);
                    scope.spawn(move || {
                        let seed = key(round * 8 + writer);
                        count.fetch_add(self.overwrite(store, seed, end), Ordering::Relaxed);
                        done.store(true, Ordering::Relaxed);
                    });
                }
                let mut live = VecDeque::new();
                while with && !done.load(Ordering::Relaxed) {
                    live.push_back(store.snapshot());
                    if live.len() > ALIVE {
                        live.pop_front();
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            });
            let rate = count.into_inner() as f64 / start.elapsed().as_secs_f64() / 1e6;
            rates[usize::from(with)].push(rate);
            // Each round begins without garbage of the previous one.
            store.collect_garbage();
        }
        let ratios = rates[0].iter().zip(&rates[1]).map(|(without, with)| with / without);
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_by(f64::total_cmp);
        let spread = format!("{:.2}–{:.2}", ratios[0], ratios[ratios.len() - 1]);
        let [without, with] = rates.map(median);
        row(
            &format!("overwrites, writers: {writers}; a snapshot every 10 ms, ten alive, or none"),
            aim,
            &format!("{:.2} ({spread}): {with:.3} of {without:.3} M/s", median(ratios)),
        );
    }

    fn scan<S: Words>(&self, store: &S) -> Result<(), BenchError> {
        let all = self.n * (self.n - 1) / 2;
        let scan = |snapshot: &S::Snapshot, expected: u64| {
            let (start, mut count, mut sum) = (Instant::now(), 0_u64, 0_u64);
            snapshot.visit_all(Direction::Ascending, |_, value| {
                count += 1;
                sum = sum.wrapping_add(*value);
                ControlFlow::Continue(())
            });
            if (count, sum) != (self.n, expected) {
                return Err(failed(format!("a wrong scan: {count} entries, sum {sum}")));
            }
            Ok(self.n as f64 / start.elapsed().as_secs_f64() / 1e6)
        };
        let old = store.snapshot();
        for n in 0..self.n {
            store.insert(&key(n), &(n + 1)).map_err(failed)?;
        }
        let young = store.snapshot();
        let mut rates: [Vec<f64>; 2] = Default::default();
        for _ in 0..3 {
            rates[0].push(scan(&old, all)?);
            rates[1].push(scan(&young, all + self.n)?);
        }
        let [old_rate, young_rate] = rates.map(median);
        row(
            "a scan at a snapshot whose every key has changed, against the latest state",
            "≥ 0.6",
            &format!("{:.2}: {old_rate:.1} of {young_rate:.1} M/s", old_rate / young_rate),
        );
        drop((old, young));
        for n in 0..self.n {
            store.insert(&key(n), &n).map_err(failed)?;
        }
        store.collect_garbage();
        Ok(())
    }

    fn hot<S: Words>(&self, store: &S) -> Result<(), BenchError> {
        let hot = key(self.n / 2);
        let nanos = || {
            const GETS: u32 = 1_000_000;
            let start = Instant::now();
            for _ in 0..GETS {
                black_box(store.get(black_box(&hot)));
            }
            start.elapsed().as_nanos() as f64 / f64::from(GETS)
        };
        let old = store.snapshot();
        let before = nanos();
        let start = Instant::now();
        let mut live: VecDeque<(S::Snapshot, u64)> = VecDeque::new();
        for round in 0..self.hot {
            store.insert(&hot, &round).map_err(failed)?;
            live.push_back((store.snapshot(), round));
            if live.len() > ALIVE {
                let ended = live.pop_front();
                let right =
                    ended.is_some_and(|(snapshot, value)| snapshot.get(&hot) == Some(value));
                if !right {
                    return Err(failed("a snapshot of the hot key has another value"));
                }
            }
        }
        let each = start.elapsed().as_nanos() as f64 / self.hot as f64;
        let after = nanos();
        if old.get(&hot) != Some(self.n / 2) {
            return Err(failed("the oldest snapshot has another value of the hot key"));
        }
        row(
            &format!("get of a hot key after {} snapshots of it, the first one alive", self.hot),
            "as before",
            &format!("{after:.0} of {before:.0} ns; a snapshot and an overwrite {each:.0} ns"),
        );
        drop((old, live));
        store.insert(&hot, &(self.n / 2)).map_err(failed)?;
        store.collect_garbage();
        Ok(())
    }
}
