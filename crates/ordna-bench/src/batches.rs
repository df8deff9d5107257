//! `ordna bench pi`: PI's batches beside single operations of other indexes.
//!
//! [`Plan::run`](crate::driver::Plan::run) gives every index the same calls. PI's own call, a batch of
//! mixed queries, no other index has: here a batch of PI stands beside as many single operations
//! of the others, in interleaved rounds of one process, every answer checked.

use std::ops::Bound;
use std::sync::Barrier;
use std::time::Instant;

use ordna_base::OrderedIndex;
use ordna_papers::Pi;
use ordna_papers::pi::{Answer, Options, Query};

use crate::keys::KeySet;
use crate::registry::Registry;
use crate::target::Target;
use crate::zipf::{Random, Zipf};

mod compare;
mod rebuild;

pub use compare::{Contender, Samples};

/// Most threads of a measurement.
const THREADS: usize = 2;

/// What is measured, and how much of it.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Keys loaded.
    pub n: usize,
    /// Operations of a round.
    pub ops: usize,
    /// Measurements of each contender.
    pub rounds: usize,
    /// Queries of a batch.
    pub batch: usize,
    /// Of keys and operations.
    pub seed: u64,
}

impl Settings {
    /// Refuses what cannot be carried out, before anything is made.
    ///
    /// # Errors
    /// An index is unknown, or takes no integers, or one thread only; or the memory is too small.
    pub fn check(&self, names: &[String]) -> Result<(), String> {
        names.iter().try_for_each(|name| singles(name).map(drop))?;
        // The factors have six indexes at once; the widest index has 130 bytes for a key.
        let indexes = (names.len() + 1).max(6);
        let keys = self.n.saturating_add(self.ops);
        let bytes = keys.saturating_mul(130 * indexes + 64);
        crate::driver::fits(bytes, crate::memory::available(), self.n)
    }
}

/// An empty index for single operations, by its name on the command line.
///
/// # Errors
/// It is unknown, or takes no integers, or one thread only.
fn singles(name: &str) -> Result<Box<dyn Target<u64>>, String> {
    let chosen = Registry::new().find(name)?;
    let make = chosen.entry.integers.as_ref().map_err(|why| format!("{name} {why}"))?;
    let index = make(&chosen.switches, THREADS)?;
    match index.most_threads() {
        None => Ok(index),
        Some(_) => Err(format!("{name:?} bears one thread only")),
    }
}

/// The value that each key has.
pub fn value(key: u64) -> u64 {
    Random::mix(key ^ 0x5EED)
}

fn wrong(what: impl std::fmt::Display) -> String {
    format!("wrong answer: {what}")
}

/// The loaded indexes, and the keys.
pub struct Experiment {
    settings: Settings,
    keys: Vec<u64>,
    pi: Pi<u64, u64>,
    peers: Vec<(String, Box<dyn Target<u64>>)>,
}

/// An operation of the mixed batches.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// Of a key that is there.
    Search(u64),
    /// Of a key that is not.
    Insert(u64),
}

/// Runs `work` on so many threads at once; operations per second of all.
fn timed(
    threads: usize,
    operations: usize,
    work: impl Fn(usize) -> Result<(), String> + Sync,
) -> Result<f64, String> {
    let barrier = Barrier::new(threads);
    let one = |thread: usize| {
        barrier.wait();
        let begin = Instant::now();
        work(thread).map(|()| (begin, Instant::now()))
    };
    let times: Vec<_> = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
            .collect::<Result<_, _>>()
    })?;
    let begin = times.iter().map(|(begin, _)| *begin).min();
    let end = times.iter().map(|(_, end)| *end).max();
    let (Some(begin), Some(end)) = (begin, end) else { return Err("no thread".to_owned()) };
    Ok(operations as f64 / (end - begin).as_secs_f64())
}

/// The part of the items that a thread does.
fn share<T>(items: &[T], thread: usize, threads: usize) -> &[T] {
    &items[items.len() * thread / threads..items.len() * (thread + 1) / threads]
}

/// Searches in batches through the executor; the nanoseconds of each.
fn search(pi: &Pi<u64, u64>, keys: &[u64], batch: usize) -> Result<Vec<u64>, String> {
    let mut times = Vec::new();
    for keys in keys.chunks(batch) {
        let begin = Instant::now();
        let queries: Vec<Query<'_, u64, u64>> = keys.iter().map(Query::Search).collect();
        let answers = pi.execute(&queries).map_err(|error| error.to_string())?;
        for (key, answer) in keys.iter().zip(&answers) {
            match answer {
                Answer::Value(Some(found)) if *found == value(*key) => {}
                other => return Err(wrong(format!("key {key}: {other:?}"))),
            }
        }
        times.push(begin.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

/// Searches in batches of `get_many_with`.
fn get_many(pi: &Pi<u64, u64>, keys: &[u64], batch: usize) -> Result<Vec<u64>, String> {
    let (mut times, mut bad) = (Vec::new(), 0);
    for keys in keys.chunks(batch) {
        let begin = Instant::now();
        pi.get_many_with(keys, |at, found| {
            bad += usize::from(found != Some(&value(keys[at])));
        });
        times.push(begin.elapsed().as_nanos() as u64);
    }
    if bad == 0 { Ok(times) } else { Err(wrong(format!("{bad} of get_many"))) }
}

/// Mixed batches; the nanoseconds of each.
fn mixed(pi: &Pi<u64, u64>, ops: &[Op], batch: usize) -> Result<Vec<u64>, String> {
    let mut times = Vec::new();
    for ops in ops.chunks(batch) {
        let values: Vec<u64> =
            ops.iter().map(|(Op::Search(key) | Op::Insert(key))| value(*key)).collect();
        let begin = Instant::now();
        let pairs = ops.iter().zip(&values);
        let queries = pairs.map(|(op, value)| match op {
            Op::Search(key) => Query::Search(key),
            Op::Insert(key) => Query::Insert(key, value),
        });
        let queries: Vec<Query<'_, u64, u64>> = queries.collect();
        let answers = pi.execute(&queries).map_err(|error| error.to_string())?;
        for ((op, answer), value) in ops.iter().zip(&answers).zip(&values) {
            match (op, answer) {
                (Op::Search(_), Answer::Value(Some(found))) if found == value => {}
                (Op::Insert(_), Answer::Value(None)) => {}
                _ => return Err(wrong(format!("{op:?}: {answer:?}"))),
            }
        }
        times.push(begin.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

fn mixed_singly(index: &dyn Target<u64>, ops: &[Op]) -> Result<(), String> {
    let mut index = index.session(0, 1);
    for op in ops {
        let right = match op {
            Op::Search(key) => index.get(key) == Some(value(*key)),
            Op::Insert(key) => index.put(key, value(*key)) == Some(true),
        };
        if !right {
            return Err(wrong(format!("{op:?}")));
        }
    }
    Ok(())
}

fn search_singly(index: &dyn Target<u64>, keys: &[u64]) -> Result<(), String> {
    let mut index = index.session(0, 1);
    match keys.iter().find(|key| index.get(key) != Some(value(**key))) {
        Some(key) => Err(wrong(format!("key {key}"))),
        None => Ok(()),
    }
}

impl Experiment {
    /// Loads PI and the others.
    ///
    /// # Errors
    /// An index is unknown, or has lost a key.
    pub fn load(settings: Settings, names: &[String]) -> Result<Self, String> {
        let keys = KeySet::Int.integers(settings.n + settings.ops, settings.seed);
        let loaded = &keys[..settings.n];
        let pi = load_pi(&Options::default(), loaded)?;
        let mut peers = Vec::new();
        for name in names {
            let index = singles(name)?;
            let ops: Vec<Op> = loaded.iter().map(|key| Op::Insert(*key)).collect();
            mixed_singly(&*index, &ops)?;
            peers.push((name.clone(), index));
        }
        Ok(Self { settings, keys, pi, peers })
    }

    /// Random keys that are there.
    fn draws(&self, theta: f64) -> Vec<u64> {
        let n = self.settings.n as u64;
        let mut random = Random::new(self.settings.seed ^ 1);
        let zipf = (theta > 0.0).then(|| Zipf::new(n, theta));
        let mut draw = || match &zipf {
            Some(zipf) => zipf.scattered(&mut random),
            None => random.below(n),
        };
        (0..self.settings.ops).map(|_| self.keys[draw() as usize]).collect()
    }

    /// Keys that are not there.
    fn fresh(&self) -> &[u64] {
        &self.keys[self.settings.n..]
    }

    /// Takes out what a measurement put in.
    fn clean(&self, index: Option<&dyn Target<u64>>, gone: &[u64]) -> Result<(), String> {
        let removed = match index {
            None => {
                let removed = gone.chunks(8192).map(|keys| self.pi.remove_many(keys)).sum();
                self.pi.rebuild();
                removed
            }
            Some(index) => {
                let mut index = index.session(0, 1);
                gone.iter().filter(|key| index.remove(key)).count()
            }
        };
        if removed == gone.len() {
            return Ok(());
        }
        Err(wrong(format!("{removed} of {} inserts were there", gone.len())))
    }

    fn peers(&self) -> impl Iterator<Item = (&str, &dyn Target<u64>)> {
        self.peers.iter().map(|(name, index)| (name.as_str(), &**index))
    }

    /// Searches: batches against single gets.
    ///
    /// # Errors
    /// An answer was wrong; so for all parts.
    pub fn search(&self, threads: usize) -> Result<(), String> {
        let (keys, batch) = (self.draws(0.0), self.settings.batch);
        let (keys, pi) = (&keys[..], &self.pi);
        let all = |work: &(dyn Fn(&[u64]) -> Result<(), String> + Sync)| {
            timed(threads, keys.len(), |thread| work(share(keys, thread, threads)))
        };
        let all = &all;
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        for (name, index) in self.peers() {
            let run = move || all(&|keys| search_singly(index, keys));
            contenders.push(Contender::single(name, run));
        }
        let run = move || all(&|keys| search(pi, keys, batch).map(drop));
        contenders.push(Contender::batch("pi, execute", run));
        let run = move || all(&|keys| get_many(pi, keys, batch).map(drop));
        contenders.push(Contender::batch("pi, get_many", run));
        let title = format!("Searches, {threads} threads, batches of {batch}");
        compare::run(&title, self.settings.rounds, "masstree", &contenders).map(drop)
    }

    /// Inserts of new keys: batches against single inserts.
    ///
    /// # Errors
    /// See [`Experiment::search`].
    pub fn insert(&self, threads: usize) -> Result<(), String> {
        let fresh = self.fresh();
        let pairs: Vec<(u64, u64)> = fresh.iter().map(|key| (*key, value(*key))).collect();
        let ops: Vec<Op> = fresh.iter().map(|key| Op::Insert(*key)).collect();
        let (pairs, ops, batch) = (&pairs[..], &ops[..], self.settings.batch);
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        for (name, index) in self.peers() {
            let run = move || {
                let rate = timed(threads, ops.len(), |thread| {
                    mixed_singly(index, share(ops, thread, threads))
                })?;
                self.clean(Some(index), fresh).map(|()| rate)
            };
            contenders.push(Contender::single(name, run));
        }
        let run = move || {
            let rate = timed(threads, pairs.len(), |thread| {
                for pairs in share(pairs, thread, threads).chunks(batch) {
                    let new = self.pi.insert_many(pairs).map_err(|error| error.to_string())?;
                    if new != pairs.len() {
                        return Err(wrong(format!("{new} of {} new", pairs.len())));
                    }
                }
                Ok(())
            })?;
            self.clean(None, fresh).map(|()| rate)
        };
        contenders.push(Contender::batch("pi, insert_many", run));
        let title = format!("Inserts of new keys, {threads} threads, batches of {batch}");
        compare::run(&title, self.settings.rounds, "masstree", &contenders).map(drop)
    }

    /// So many percent inserts of new keys among searches, and those keys.
    fn mixture(&self, percent: u64) -> (Vec<Op>, &[u64]) {
        let mut random = Random::new(percent);
        let mut new = 0;
        let ops = self.draws(0.0).into_iter().map(|key| {
            if random.below(100) < percent {
                new += 1;
                Op::Insert(self.fresh()[new - 1])
            } else {
                Op::Search(key)
            }
        });
        let ops = ops.collect();
        (ops, &self.fresh()[..new])
    }

    /// Searches and inserts mixed.
    ///
    /// # Errors
    /// See [`Experiment::search`].
    pub fn mixed(&self, percent: u64) -> Result<(), String> {
        let (ops, new) = self.mixture(percent);
        let (ops, batch) = (&ops[..], self.settings.batch);
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        for (name, index) in self.peers() {
            let run = move || {
                let rate = timed(1, ops.len(), |_| mixed_singly(index, ops))?;
                self.clean(Some(index), new).map(|()| rate)
            };
            contenders.push(Contender::single(name, run));
        }
        let run = move || {
            let rate = timed(1, ops.len(), |_| mixed(&self.pi, ops, batch).map(drop))?;
            self.clean(None, new).map(|()| rate)
        };
        contenders.push(Contender::batch("pi, execute", run));
        let title = format!("{percent} % inserts among searches, 1 thread, batches of {batch}");
        compare::run(&title, self.settings.rounds, "masstree", &contenders).map(drop)
    }

    /// Throughput and latency by batch size.
    ///
    /// # Errors
    /// See [`Experiment::search`].
    pub fn sizes(&self) -> Result<(), String> {
        let keys = self.draws(0.0);
        let (ops, new) = self.mixture(50);
        let sizes = (6..=15).map(|power| 1 << power);
        let sizes: Vec<usize> = sizes.filter(|size| *size <= self.settings.ops).collect();
        let mut found: Vec<[(Vec<f64>, Vec<u64>); 3]> = Vec::new();
        found.resize_with(sizes.len(), Default::default);
        for _ in 0..self.settings.rounds {
            for (size, found) in sizes.iter().zip(&mut found) {
                let mut add = |at: usize, times: Vec<u64>| {
                    let seconds = times.iter().sum::<u64>() as f64 / 1e9;
                    found[at].0.push(self.settings.ops as f64 / seconds);
                    found[at].1.extend(times);
                };
                add(0, search(&self.pi, &keys, *size)?);
                add(1, get_many(&self.pi, &keys, *size)?);
                add(2, mixed(&self.pi, &ops, *size)?);
                self.clean(None, new)?;
            }
        }
        println!("\nBatch size, 1 thread: million queries per second, and microseconds per batch");
        let kinds = ["search by execute", "get_many", "half inserts"];
        let mut head = vec!["batch".to_owned()];
        for kind in kinds {
            head.extend([
                format!("{kind}: M/s"),
                "p50 us".into(),
                "p99 us".into(),
                "max us".into(),
            ]);
        }
        let rows = sizes.iter().zip(found).map(|(size, found)| {
            let mut row = vec![size.to_string()];
            for (rates, mut times) in found {
                times.sort_unstable();
                let at = |share: f64| {
                    let at = ((times.len() - 1) as f64 * share) as usize;
                    format!("{:.1}", times[at] as f64 / 1e3)
                };
                row.push(format!("{:.2}", Samples(rates).median() / 1e6));
                row.extend([at(0.5), at(0.99), at(1.0)]);
            }
            row
        });
        compare::table(&head, &rows.collect::<Vec<_>>());
        Ok(())
    }

    /// Skewed searches beside uniform ones.
    ///
    /// # Errors
    /// See [`Experiment::search`].
    pub fn skew(&self) -> Result<(), String> {
        let (pi, batch) = (&self.pi, self.settings.batch);
        let draws: Vec<(f64, Vec<u64>)> =
            [0.0, 0.5, 0.9].map(|theta| (theta, self.draws(theta))).into();
        for get_many_too in [false, true] {
            let mut contenders: Vec<Contender<'_>> = Vec::new();
            for (theta, keys) in &draws {
                let run = move || {
                    timed(1, keys.len(), |_| {
                        let how = if get_many_too { get_many } else { search };
                        how(pi, keys, batch).map(drop)
                    })
                };
                contenders.push(Contender::batch(&format!("theta {theta}"), run));
            }
            let call = if get_many_too { "get_many" } else { "execute" };
            let title = format!("Skew, searches by {call}, 1 thread, batches of {batch}");
            compare::run(&title, self.settings.rounds, "theta 0", &contenders)?;
        }
        Ok(())
    }

    /// Ranges of so many entries; the rate is of ranges.
    ///
    /// # Errors
    /// See [`Experiment::search`].
    pub fn ranges(&self, granularity: usize) -> Result<(), String> {
        let mut sorted = self.keys[..self.settings.n].to_vec();
        sorted.sort_unstable();
        let count = (self.settings.ops / granularity.max(10)).max(self.settings.batch.min(1000));
        let mut random = Random::new(granularity as u64);
        let last = (sorted.len() + 1).saturating_sub(granularity) as u64;
        // Where each begins, and the sum of its keys.
        let ranges: Vec<(u64, u64)> = (0..count)
            .map(|_| {
                let at = random.below(last.max(1)) as usize;
                let entries = sorted[at..].iter().take(granularity);
                (sorted[at], entries.fold(0, |sum: u64, key| sum.wrapping_add(*key)))
            })
            .collect();
        drop(sorted);
        let (ranges, batch) = (&ranges[..], self.settings.batch);
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        for (name, index) in self.peers() {
            let run = move || {
                timed(1, ranges.len(), |_| {
                    let mut index = index.session(0, 1);
                    for (from, expected) in ranges {
                        let mut sum = 0_u64;
                        index.scan(from, granularity, &mut |key, _| sum = sum.wrapping_add(*key));
                        if sum != *expected {
                            return Err(wrong(format!("range from {from}")));
                        }
                    }
                    Ok(())
                })
            };
            contenders.push(Contender::single(name, run));
        }
        let run = move || {
            timed(1, ranges.len(), |_| {
                for ranges in ranges.chunks(batch) {
                    let query = |(from, _): &'_ (u64, u64)| *from;
                    let from: Vec<u64> = ranges.iter().map(query).collect();
                    let query = |from| Query::Range {
                        lower: Bound::Included(from),
                        upper: Bound::Unbounded,
                        limit: granularity,
                    };
                    let queries: Vec<Query<'_, u64, u64>> = from.iter().map(query).collect();
                    let answers = self.pi.execute(&queries).map_err(|error| error.to_string())?;
                    for ((from, expected), answer) in ranges.iter().zip(&answers) {
                        let sum = match answer {
                            Answer::Entries(all) => {
                                all.iter().fold(0, |sum: u64, (key, _)| sum.wrapping_add(*key))
                            }
                            Answer::Value(_) => 0,
                        };
                        if sum != *expected {
                            return Err(wrong(format!("range from {from}")));
                        }
                    }
                }
                Ok(())
            })
        };
        contenders.push(Contender::batch("pi, execute", run));
        let title = format!("Ranges of {granularity} entries, 1 thread, batches of {batch}");
        compare::run(&title, self.settings.rounds, "masstree", &contenders).map(drop)
    }
}

/// PI with these keys.
fn load_pi(options: &Options, keys: &[u64]) -> Result<Pi<u64, u64>, String> {
    let pi = Pi::with(options);
    for keys in keys.chunks(8192) {
        let pairs: Vec<(u64, u64)> = keys.iter().map(|key| (*key, value(*key))).collect();
        let new = pi.insert_many(&pairs).map_err(|error| error.to_string())?;
        if new != pairs.len() {
            return Err(wrong(format!("{new} of {} new", pairs.len())));
        }
    }
    pi.rebuild();
    Ok(pi)
}

/// Figure 15: the parts of PI taken out, one by one and together.
///
/// # Errors
/// An answer was wrong.
pub fn factors(settings: &Settings) -> Result<(), String> {
    use ordna_base::simd::InstructionSet;
    use ordna_base::topology::Topology;
    let keys = KeySet::Int.integers(settings.n + settings.ops, settings.seed);
    let (loaded, fresh) = keys.split_at(settings.n);
    let mut random = Random::new(settings.seed ^ 1);
    let draws = (0..settings.ops).map(|_| loaded[random.below(loaded.len() as u64) as usize]);
    let draws: Vec<u64> = draws.collect();
    let inserts: Vec<Op> = fresh.iter().map(|key| Op::Insert(*key)).collect();
    let all = Options { topology: Topology::single(), ..Options::default() };
    let scalar = InstructionSet::SCALAR;
    let none = Options { instructions: scalar, group: 1, prefetch: false, ..all.clone() };
    let variants = [
        ("all", all.clone()),
        ("without SIMD", Options { instructions: scalar, ..all.clone() }),
        ("without groups", Options { group: 1, ..all.clone() }),
        ("without prefetching", Options { prefetch: false, ..all.clone() }),
        ("two NUMA nodes declared", Options { topology: Topology::declared(2), ..all }),
        ("none", none),
    ];
    let mut built = Vec::new();
    for (name, options) in &variants {
        built.push((*name, load_pi(options, loaded)?));
    }
    let batch = settings.batch;
    for inserting in [false, true] {
        let mut contenders: Vec<Contender<'_>> = Vec::new();
        for (name, pi) in &built {
            let (draws, inserts) = (&draws[..], &inserts[..]);
            let run = move || {
                if !inserting {
                    return timed(1, draws.len(), |_| search(pi, draws, batch).map(drop));
                }
                let rate = timed(1, inserts.len(), |_| mixed(pi, inserts, batch).map(drop))?;
                let gone: usize = fresh.chunks(8192).map(|keys| pi.remove_many(keys)).sum();
                pi.rebuild();
                if gone == fresh.len() { Ok(rate) } else { Err(wrong("an insert is lost")) }
            };
            contenders.push(Contender::batch(name, run));
        }
        let what = if inserting { "inserts" } else { "searches" };
        let title = format!("Factors (Fig. 15), {what} by execute, 1 thread, batches of {batch}");
        compare::run(&title, settings.rounds, "none", &contenders)?;
    }
    Ok(())
}
