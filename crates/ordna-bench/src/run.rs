//! One job: build an index, load it, run a workload on it; timed, and every answer checked.

use std::sync::Barrier;
use std::time::Instant;

use hdrhistogram::Histogram;
use ordna::Key;
use ordna::entries::Sequence;

use crate::target::Target;
use crate::workload::{Action, Operation};

/// What to measure on a fresh instance.
pub struct Job<'a, K: Key + ?Sized> {
    /// The keys: the first `loaded` are loaded, the others are the workload's to insert.
    pub keys: &'a K::Sequence,
    /// How many keys are loaded.
    pub loaded: usize,
    /// The operations of each thread; there are as many threads.
    pub operations: &'a [Vec<Operation>],
    /// Keys per call; 1: single operations.
    pub batch: usize,
    /// Times every operation by itself instead of all together.
    pub latency: bool,
}

/// Throughput of one round, or why there is none.
#[derive(Debug)]
pub enum Outcome {
    /// All answers were right.
    Measured(Measured),
    /// An answer was wrong.
    Wrong(String),
    /// The index cannot do this.
    NotApplicable(String),
}

/// One round's figures.
#[derive(Debug)]
pub struct Measured {
    /// Million inserts per second while loading.
    pub load_mops: f64,
    /// Million operations per second; `None` without operations.
    pub mops: Option<f64>,
    /// Bytes that the allocator handed out for the loaded index, per key.
    pub bytes_per_key: f64,
    /// Nanoseconds per operation, if they were timed one by one.
    pub latency: Option<Histogram<u64>>,
}

/// The value of a key: its position below, a version above.
fn value(position: usize, version: u64) -> u64 {
    version << 32 | position as u64
}

fn belongs(value: u64, position: usize) -> bool {
    value & 0xFFFF_FFFF == position as u64
}

/// Bytes handed out by the allocator and not taken back.
pub fn allocated() -> usize {
    // The statistics are a snapshot that has to be asked for.
    let fresh = tikv_jemalloc_ctl::epoch::advance();
    fresh.and_then(|_| tikv_jemalloc_ctl::stats::allocated::read()).unwrap_or(0)
}

/// Builds an index with `new`, loads it and runs the operations.
pub fn measure<K, T>(job: &Job<'_, K>, new: impl FnOnce() -> T) -> Outcome
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let scans = |operation: &Operation| matches!(operation.action, Action::Scan(_));
    if !T::SCANS && job.operations.iter().flatten().any(scans) {
        return Outcome::NotApplicable("it has no order to scan in".to_owned());
    }
    let before = allocated();
    let target = new();
    let threads = job.operations.len();
    let load: Vec<Vec<Operation>> = (0..threads)
        .map(|thread| {
            let from = job.loaded * thread / threads;
            let to = job.loaded * (thread + 1) / threads;
            (from..to).map(|key| Operation { action: Action::Insert, key: key as u32 }).collect()
        })
        .collect();
    let loading = match phase(job, &target, &load, false) {
        Ok(timed) => timed,
        Err(wrong) => return Outcome::Wrong(format!("while loading: {wrong}")),
    };
    drop(load);
    let bytes_per_key = allocated().saturating_sub(before) as f64 / job.loaded.max(1) as f64;
    if let Err(wrong) = check_all(job, &target) {
        return Outcome::Wrong(format!("after loading: {wrong}"));
    }
    let total: usize = job.operations.iter().map(Vec::len).sum();
    let mut measured = Measured {
        load_mops: job.loaded as f64 / loading.seconds / 1e6,
        mops: None,
        bytes_per_key,
        latency: None,
    };
    if total > 0 {
        match phase(job, &target, job.operations, job.latency) {
            Ok(timed) => {
                measured.mops = Some(total as f64 / timed.seconds / 1e6);
                measured.latency = timed.latency;
            }
            Err(wrong) => return Outcome::Wrong(wrong),
        }
    }
    Outcome::Measured(measured)
}

struct Timed {
    seconds: f64,
    latency: Option<Histogram<u64>>,
}

/// Runs every thread's operations, pinned, from one starting shot.
fn phase<K, T>(
    job: &Job<'_, K>,
    target: &T,
    operations: &[Vec<Operation>],
    latency: bool,
) -> Result<Timed, String>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let start = Barrier::new(operations.len());
    let runs: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = operations
            .iter()
            .enumerate()
            .map(|(thread, operations)| {
                let (start, cores) = (&start, &cores);
                scope.spawn(move || {
                    if let Some(core) = cores.get(thread % cores.len().max(1)) {
                        core_affinity::set_for_current(*core);
                    }
                    let mut histogram =
                        latency.then(|| Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3));
                    start.wait();
                    let begin = Instant::now();
                    let result = match &mut histogram {
                        Some(Ok(histogram)) => one_by_one(job, target, operations, histogram),
                        _ if job.batch > 1 => in_groups(job, target, operations),
                        _ => singly(job, target, operations),
                    };
                    (begin, Instant::now(), result, histogram)
                })
            })
            .collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut timed = Timed { seconds: 0.0, latency: None };
    let (mut first, mut last) = (None::<Instant>, None::<Instant>);
    for run in runs {
        let (begin, end, result, histogram) = run.map_err(|_| "it panicked".to_owned())?;
        result?;
        first = Some(first.map_or(begin, |first| first.min(begin)));
        last = Some(last.map_or(end, |last| last.max(end)));
        if let Some(Ok(histogram)) = histogram {
            match &mut timed.latency {
                None => timed.latency = Some(histogram),
                // Same bounds: cannot fail.
                Some(all) => drop(all.add(histogram)),
            }
        }
    }
    if let (Some(first), Some(last)) = (first, last) {
        timed.seconds = (last - first).as_secs_f64();
    }
    Ok(timed)
}

fn key_at<'a, K: Key + ?Sized>(job: &Job<'a, K>, position: usize) -> Result<&'a K, String> {
    job.keys.get(position).ok_or_else(|| format!("the workload has no key {position}"))
}

fn wrong<K: Key + ?Sized>(what: &str, key: &K, found: impl std::fmt::Debug) -> String {
    let mut key = format!("{key:?}");
    key.truncate(200);
    format!("{what} of {key}: {found:?}")
}

/// Does one operation and checks its answer.
#[inline]
fn perform<K, T>(
    job: &Job<'_, K>,
    target: &T,
    operation: Operation,
    version: u64,
) -> Result<(), String>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let position = operation.key as usize;
    let key = key_at(job, position)?;
    match operation.action {
        Action::Read => {
            let found = target.get(key);
            if !found.is_some_and(|value| belongs(value, position)) {
                return Err(wrong("a read", key, found));
            }
        }
        Action::Miss => {
            let found = target.get(key);
            if found.is_some() {
                return Err(wrong("a read of an absent key", key, found));
            }
        }
        Action::Update => {
            if target.put(key, value(position, version)) == Some(true) {
                return Err(wrong("an update", key, "the key was absent"));
            }
        }
        Action::ReadUpdate => {
            let found = target.get(key);
            if !found.is_some_and(|value| belongs(value, position)) {
                return Err(wrong("a read", key, found));
            }
            if target.put(key, value(position, version)) == Some(true) {
                return Err(wrong("an update", key, "the key was absent"));
            }
        }
        Action::Insert => {
            if target.put(key, value(position, version)) == Some(false) {
                return Err(wrong("an insert", key, "the key was there"));
            }
        }
        Action::Delete => {
            if !target.remove(key) {
                return Err(wrong("a delete", key, "the key was absent"));
            }
        }
        Action::Scan(limit) => return check_scan(job, target, key, usize::from(limit)),
    }
    Ok(())
}

/// A scan must begin at its key, be in order, and return values of loaded or inserted keys.
fn check_scan<K, T>(job: &Job<'_, K>, target: &T, from: &K, limit: usize) -> Result<(), String>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let mut last: Option<u64> = None;
    let mut count = 0;
    let mut broken = None;
    target.scan(from, limit, &mut |key, value| {
        let position = (value & 0xFFFF_FFFF) as usize;
        // Heads decide the order of almost all pairs without another key kept; equal ones pass.
        let head = key.head();
        let starts_right = count > 0 || key == from;
        if !starts_right || last.is_some_and(|last| last > head) || position >= job.keys.len() {
            broken.get_or_insert_with(|| wrong("a scan", key, value));
        }
        last = Some(head);
        count += 1;
    });
    if count == 0 || count > limit {
        return Err(wrong("a scan", from, format!("{count} entries for {limit}")));
    }
    broken.map_or(Ok(()), Err)
}

fn singly<K, T>(job: &Job<'_, K>, target: &T, operations: &[Operation]) -> Result<(), String>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let mut version = 0;
    operations.iter().try_for_each(|operation| {
        version += 1;
        perform(job, target, *operation, version & 0xFFFF_FFFF)
    })
}

fn one_by_one<K, T>(
    job: &Job<'_, K>,
    target: &T,
    operations: &[Operation],
    histogram: &mut Histogram<u64>,
) -> Result<(), String>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    for (version, operation) in operations.iter().enumerate() {
        let begin = Instant::now();
        perform(job, target, *operation, version as u64 & 0xFFFF_FFFF)?;
        histogram.saturating_record(begin.elapsed().as_nanos() as u64);
    }
    Ok(())
}

/// Runs of reads and of inserts go through the group calls; everything else singly.
fn in_groups<K, T>(job: &Job<'_, K>, target: &T, operations: &[Operation]) -> Result<(), String>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let mut keys: Vec<&K> = Vec::with_capacity(job.batch);
    let mut pairs: Vec<(&K, u64)> = Vec::with_capacity(job.batch);
    let mut at = 0;
    while at < operations.len() {
        let action = operations[at].action;
        let run = operations[at..].iter().take(job.batch);
        let run = run.take_while(|operation| operation.action == action).count();
        let group = &operations[at..at + run];
        match action {
            Action::Read => {
                keys.clear();
                for operation in group {
                    keys.push(key_at(job, operation.key as usize)?);
                }
                let mut broken = None;
                target.get_group(&keys, &mut |at, found| {
                    let position = group[at].key as usize;
                    if !found.is_some_and(|value| belongs(value, position)) {
                        broken.get_or_insert_with(|| wrong("a read in a group", keys[at], found));
                    }
                });
                broken.map_or(Ok(()), Err)?;
            }
            Action::Insert => {
                pairs.clear();
                for operation in group {
                    let position = operation.key as usize;
                    pairs.push((key_at(job, position)?, value(position, 0)));
                }
                let new = target.put_group(&pairs);
                if new != run {
                    return Err(format!("{new} of {run} inserted keys were new"));
                }
            }
            _ => {
                for operation in group {
                    perform(job, target, *operation, at as u64 & 0xFFFF_FFFF)?;
                }
            }
        }
        at += run;
    }
    Ok(())
}

/// Entries of the stretch that is scanned after each load.
const STRETCH: usize = 100_000;

/// After the load, off the clock: a sample of keys, and one scan of a stretch, complete.
fn check_all<K, T>(job: &Job<'_, K>, target: &T) -> Result<(), String>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let step = (job.loaded / 100_000).max(1);
    for position in (0..job.loaded).step_by(step) {
        let key = key_at(job, position)?;
        let found = target.get(key);
        if found != Some(value(position, found.map_or(0, |value| value >> 32))) {
            return Err(wrong("a read", key, found));
        }
    }
    if T::SCANS && job.loaded > 0 { check_stretch(job, target) } else { Ok(()) }
}

/// Scans from a key in the middle of the load order. Every entry must be a loaded key with its own
/// value, above the one before; and there must be as many as the key set has in that stretch.
fn check_stretch<K, T>(job: &Job<'_, K>, target: &T) -> Result<(), String>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let from = key_at(job, job.loaded / 2)?;
    let (mut last, mut count, mut broken) = (None::<&K>, 0, None);
    target.scan(from, STRETCH, &mut |key, found| {
        let position = (found & 0xFFFF_FFFF) as usize;
        let own = job.keys.get(position).filter(|own| position < job.loaded && *own == key);
        let follows = last.map_or(key == from, |last| last < key);
        if own.is_none() || !follows {
            broken.get_or_insert_with(|| wrong("the scan after loading", key, found));
        }
        last = own.or(last);
        count += 1;
    });
    if let Some(broken) = broken {
        return Err(broken);
    }
    // A scan that was not cut short by its limit reaches the end of the keys.
    let end = last.filter(|_| count >= STRETCH);
    let within = |key: &K| key >= from && end.is_none_or(|end| key <= end);
    let expected = (0..job.loaded).filter(|at| job.keys.get(*at).is_some_and(within)).count();
    if count == expected {
        Ok(())
    } else {
        Err(wrong("the scan after loading", from, format!("{count} entries of {expected}")))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use ordna::{Direction, Locked, OrderedIndex};

    use super::*;
    use crate::keys::KeySet;
    use crate::target::Ours;
    use crate::workload::Workload;

    fn outcome<T: Target<u64>>(workload: &str, batch: usize, new: impl FnOnce() -> T) -> Outcome {
        let workload: Workload = workload.parse().unwrap();
        let (loaded, total) = (2000, 6000);
        let extra = workload.extra_keys(total);
        let keys = KeySet::Int.integers(loaded + extra, 1);
        let operations = workload.operations(loaded, extra, total, 2, 1);
        let job = Job { keys: &keys, loaded, operations: &operations, batch, latency: false };
        measure(&job, new)
    }

    #[test]
    fn every_workload_passes_on_the_oracle() {
        for workload in ["a", "b", "c", "d", "e", "f", "c-uniform", "delmix", "mix:50", "scan:20"] {
            for batch in [1, 16] {
                let outcome = outcome(workload, batch, || Ours(Locked::<u64, u64>::new()));
                assert!(matches!(outcome, Outcome::Measured(_)), "{workload}: {outcome:?}");
            }
        }
    }

    /// Wrong in one way each.
    struct Broken(Locked<u64, u64>, &'static str);

    impl Target<u64> for Broken {
        fn put(&self, key: &u64, value: u64) -> Option<bool> {
            if self.1 == "loses" && key.is_multiple_of(101) {
                return Some(true);
            }
            Some(self.0.insert(key, &value).unwrap().is_none())
        }
        fn get(&self, key: &u64) -> Option<u64> {
            let value = self.0.get(key)?;
            Some(if self.1 == "mixes up" && key.is_multiple_of(101) { value ^ 1 } else { value })
        }
        fn remove(&self, key: &u64) -> bool {
            self.1 == "keeps" || self.0.remove(key).is_some()
        }
        fn scan(&self, from: &u64, limit: usize, each: &mut dyn FnMut(&u64, u64)) {
            let direction =
                if self.1 == "turns around" { Direction::Descending } else { Direction::Ascending };
            use std::ops::Bound::{Included, Unbounded};
            let (low, high) = if self.1 == "turns around" {
                (Unbounded, Included(from))
            } else {
                (Included(from), Unbounded)
            };
            let mut left = limit;
            self.0.visit(low, high, direction, |key, value| {
                if self.1 == "skips" && key.is_multiple_of(101) {
                    return ControlFlow::Continue(());
                }
                each(key, *value);
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
    }

    #[test]
    fn a_wrong_index_gets_no_figure() {
        for (fault, workload) in [
            ("loses", "c-uniform"),
            ("mixes up", "c-uniform"),
            ("keeps", "delmix"),
            ("turns around", "scan:20"),
            ("skips", "load"),
        ] {
            let outcome = outcome(workload, 1, || Broken(Locked::new(), fault));
            assert!(matches!(outcome, Outcome::Wrong(_)), "{fault}: {outcome:?}");
        }
    }
}
