//! One build of one index: load it, run the workloads on it; timed, and every answer checked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use ordna::Key;
use serde::{Deserialize, Serialize};

use crate::check::{Checker, check_points, check_stretch};
use crate::memory;
use crate::target::Target;
use crate::workload::{Action, Operation, Workload, Written};

/// What to measure on a fresh instance.
pub struct Job<'a, K: Key + ?Sized> {
    /// The keys: the first `loaded` are loaded, the others are the workloads' to insert.
    pub keys: &'a K::Sequence,
    /// How many keys are loaded.
    pub loaded: usize,
    /// Threads that load.
    pub threads: usize,
    /// Keys per call of the load; 1: single operations.
    pub batch: usize,
    /// The workloads that can be asked for, in any order, on the same instance.
    pub phases: &'a [Phase],
    /// The loaded keys' places in key order; there if a workload scans.
    pub ranks: Option<&'a [u32]>,
}

/// A workload, written down.
pub struct Phase {
    /// Which.
    pub workload: Workload,
    /// Keys per call.
    pub batch: usize,
    /// The operations of each thread; none for [`Workload::Load`].
    pub written: Written,
    /// Times every operation by itself instead of all together.
    pub latency: bool,
}

impl Phase {
    /// One operation of each sort that occurs.
    fn actions(&self) -> Vec<Action> {
        let mut found: Vec<Action> = Vec::new();
        for operation in self.written.operations.iter().flatten() {
            let same =
                |a: &Action| std::mem::discriminant(a) == std::mem::discriminant(&operation.action);
            if !found.iter().any(same) {
                found.push(operation.action);
            }
        }
        found
    }
}

/// Why there is no figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// An answer was wrong.
    Wrong(String),
    /// It panicked.
    Failed(String),
    /// It ended its process, or hung.
    Crashed(String),
    /// The index cannot do this.
    NotApplicable(String),
}

/// The figures of one build, or why there are none.
#[cfg(test)]
#[derive(Debug)]
pub struct Built {
    /// Of the load.
    pub load: Result<Load, Problem>,
    /// Of each phase.
    pub phases: Vec<Result<Measured, Problem>>,
}

/// Figures of a load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    /// Million inserts per second.
    pub mops: f64,
    /// Bytes that the allocator handed out for the loaded index, per key; `None` if the index
    /// allocates elsewhere.
    pub bytes_per_key: Option<f64>,
    /// By how much the resident set grew, per key.
    pub rss_per_key: Option<f64>,
    /// What was wrong with the scan after it. Point operations may be right all the same.
    pub wrong_scan: Option<String>,
}

/// Figures of a workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Million operations per second, of all threads together.
    pub mops: f64,
    /// The same of each role, where threads do different things.
    pub roles: Vec<f64>,
    /// What the index has counted about itself since it was made, if it does.
    pub counts: Option<String>,
    /// Of the operations, if they were timed one by one. An operation in a group takes as long as the
    /// group.
    pub latency: Option<Latency>,
}

/// How long operations took.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Latency {
    /// Share of the operations and the nanoseconds within which they were done.
    pub curve: Vec<(f64, u64)>,
    /// The slowest, in nanoseconds.
    pub max_ns: u64,
}

/// The shares of the curve.
const SHARES: [f64; 10] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];

impl Latency {
    fn of(all: &Histogram<u64>) -> Self {
        let curve = SHARES.map(|share| (share, all.value_at_quantile(share))).to_vec();
        Self { curve, max_ns: all.max() }
    }

    /// The nanoseconds within which this share of the operations was done.
    pub fn at(&self, share: f64) -> Option<u64> {
        let found = self.curve.iter().find(|(known, _)| (known - share).abs() < 1e-9);
        found.map(|(_, nanoseconds)| *nanoseconds)
    }
}

/// Runs `f`; a panic in it becomes an error that tells its message.
fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Problem> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Problem::Failed(format!("it panicked: {}", text.unwrap_or_default()))
    })
}

/// Says when it went wrong.
fn during(when: &str) -> impl Fn(Problem) -> Problem {
    move |problem| match problem {
        Problem::Wrong(what) => Problem::Wrong(format!("{when}: {what}")),
        Problem::Failed(what) => Problem::Failed(format!("{when}: {what}")),
        other => other,
    }
}

/// Makes an empty index; the reason if that cannot be.
pub type Make<'m, K> = &'m dyn Fn() -> Result<Box<dyn Target<K>>, String>;

/// One instance of an index, under measurement. A panic anywhere, the drop included, is a
/// [`Problem::Failed`] and not the end of the run.
pub struct Instance<'j, 'a, K: Key + ?Sized> {
    job: &'j Job<'a, K>,
    target: Option<Box<dyn Target<K>>>,
    /// Bytes that were allocated and resident before it was made.
    before: (usize, Option<usize>),
    /// Why nothing can be measured on it any more.
    problem: Option<Problem>,
    /// What was wrong with the scan after the load.
    wrong_scan: Option<String>,
}

impl<'j, 'a, K: Key + ?Sized> Instance<'j, 'a, K> {
    /// Makes it. If that fails, everything that is asked of it tells why.
    pub fn new(job: &'j Job<'a, K>, make: Make<'_, K>) -> Self {
        let before = (memory::allocated(), memory::resident());
        let mut new = Self { job, target: None, before, problem: None, wrong_scan: None };
        let refused = |why: Option<String>| why.map(Problem::NotApplicable);
        match guarded(make) {
            Ok(Ok(target)) => {
                new.problem = guarded(|| target.refuses(job)).map_or_else(Some, refused);
                new.target = Some(target);
            }
            Ok(Err(why)) => new.problem = Some(Problem::NotApplicable(why)),
            Err(problem) => new.problem = Some(during("while being made")(problem)),
        }
        new
    }

    /// Keeps a problem after which the instance is of no use.
    fn keep<R>(&mut self, result: Result<R, Problem>, always: bool) -> Result<R, Problem> {
        if let Err(problem) = &result
            && (always || matches!(problem, Problem::Failed(_)))
        {
            self.problem = Some(problem.clone());
        }
        result
    }

    fn target(&self) -> Result<&dyn Target<K>, Problem> {
        match (&self.problem, &self.target) {
            (Some(problem), _) => Err(problem.clone()),
            (None, Some(target)) => Ok(&**target),
            (None, None) => Err(Problem::Failed("it was not made".to_owned())),
        }
    }

    /// Loads the keys and checks what it holds then. Nothing is loaded if no phase could follow.
    ///
    /// # Errors
    /// What was wrong.
    pub fn load(&mut self) -> Result<Load, Problem> {
        let target = self.target()?;
        let mut reasons = self.job.phases.iter().map(|phase| unable(target, phase));
        let first = reasons.next().flatten();
        let loaded = match first.filter(|_| reasons.all(|reason| reason.is_some())) {
            Some(why) => Err(Problem::NotApplicable(why)),
            None => load(self.job, target, self.before),
        };
        let loaded = self.keep(loaded, true)?;
        self.wrong_scan.clone_from(&loaded.wrong_scan);
        Ok(loaded)
    }

    /// Runs a phase of the job, and brings back what is missing then.
    ///
    /// # Errors
    /// What was wrong.
    pub fn phase(&mut self, at: usize) -> Result<Measured, Problem> {
        let Some(phase) = self.job.phases.get(at) else {
            return Err(Problem::Failed(format!("there is no phase {at}")));
        };
        // What it can never do is a better reason than what went wrong before.
        if let Some(why) = self.target.as_ref().and_then(|target| unable(&**target, phase)) {
            return Err(Problem::NotApplicable(why));
        }
        let target = self.target()?;
        if let Some(wrong) = self.wrong_scan.as_ref().filter(|_| judged(phase)) {
            return Err(Problem::Wrong(wrong.clone()));
        }
        let measured = one_phase(self.job, target, phase);
        self.keep(measured, false)
    }

    /// Drops it.
    ///
    /// # Errors
    /// It panicked.
    pub fn finish(self) -> Result<(), Problem> {
        let Some(target) = self.target else { return Ok(()) };
        if matches!(self.problem, Some(Problem::Failed(_))) {
            // Its state is unknown: a drop could hang or worse.
            std::mem::forget(target);
            return Ok(());
        }
        guarded(|| drop(target)).map_err(during("while being dropped"))
    }
}

/// Makes an instance, loads it and runs all phases on it.
#[cfg(test)]
pub fn measure<K: Key + ?Sized>(job: &Job<'_, K>, make: Make<'_, K>) -> Built {
    let mut instance = Instance::new(job, make);
    let load = instance.load();
    let phases = (0..job.phases.len()).map(|at| instance.phase(at)).collect();
    match instance.finish() {
        Ok(()) => Built { load, phases },
        Err(problem) => Built {
            load: Err(problem.clone()),
            phases: job.phases.iter().map(|_| Err(problem.clone())).collect(),
        },
    }
}

/// Why the index cannot do this; `None` if it can.
fn unable<K: Key + ?Sized>(target: &dyn Target<K>, phase: &Phase) -> Option<String> {
    if target.most_threads().is_some_and(|most| most < phase.written.operations.len()) {
        return Some("one thread only: it has no synchronization".to_owned());
    }
    phase.actions().into_iter().find_map(|action| target.lacks(action))
}

/// Runs a phase, and brings back what is missing then.
fn one_phase<K: Key + ?Sized>(
    job: &Job<'_, K>,
    target: &dyn Target<K>,
    phase: &Phase,
) -> Result<Measured, Problem> {
    let Written { operations, restore } = &phase.written;
    let mut measured =
        timed(job, target, operations, phase.batch, phase.workload.roles(), phase.latency)?;
    measured.counts = guarded(|| target.counts())?;
    if restore.iter().any(|operations| !operations.is_empty()) {
        timed(job, target, restore, 1, &[], false)
            .map_err(|problem| during("while keys were put back")(problem))?;
    }
    Ok(measured)
}

/// Whether a wrong scan after the load makes the figure void: it is of the load, or of scans.
fn judged(phase: &Phase) -> bool {
    phase.workload == Workload::Load || phase.workload.scans()
}

fn load<K: Key + ?Sized>(
    job: &Job<'_, K>,
    target: &dyn Target<K>,
    before: (usize, Option<usize>),
) -> Result<Load, Problem> {
    let threads = target.most_threads().map_or(job.threads, |most| most.min(job.threads));
    let operations: Vec<Vec<Operation>> = (0..threads)
        .map(|thread| {
            let from = job.loaded * thread / threads;
            let to = job.loaded * (thread + 1) / threads;
            (from..to).map(|key| Operation { action: Action::Insert, key: key as u32 }).collect()
        })
        .collect();
    // Without reads no answer could be checked.
    if let Some(why) = [Action::Insert, Action::Read].into_iter().find_map(|a| target.lacks(a)) {
        return Err(Problem::NotApplicable(why));
    }
    let timed = timed(job, target, &operations, job.batch, &[], false)
        .map_err(|p| during("while loading")(p))?;
    drop(operations);
    let grown = memory::allocated().saturating_sub(before.0) as f64 / job.loaded.max(1) as f64;
    let resident = before.1.zip(memory::resident());
    let mut wrong_scan = None;
    let checked = guarded(|| {
        let mut session = target.session(0, 1);
        check_points(job, &mut *session)?;
        if target.lacks(Action::Scan(1)).is_none() {
            wrong_scan = check_stretch(job, &mut *session).err();
        }
        Ok(())
    });
    let checked = checked.map_err(|problem| during("after loading")(problem));
    checked?.map_err(|wrong: String| Problem::Wrong(format!("after loading: {wrong}")))?;
    Ok(Load {
        mops: timed.mops,
        bytes_per_key: target.on_our_allocator().then_some(grown),
        rss_per_key: resident
            .map(|(before, after)| after.saturating_sub(before) as f64 / job.loaded.max(1) as f64),
        wrong_scan,
    })
}

/// Operations between two looks at whether another role is done.
const STRIDE: usize = 64;

/// What one thread brought home.
struct Ran {
    begin: Instant,
    end: Instant,
    done: usize,
    latency: Option<Histogram<u64>>,
}

/// Runs every thread's operations, pinned, from one starting shot. Threads with roles stop when the
/// first of them is done: no role is measured while another rests.
fn timed<K: Key + ?Sized>(
    job: &Job<'_, K>,
    target: &dyn Target<K>,
    operations: &[Vec<Operation>],
    batch: usize,
    roles: &[&str],
    latency: bool,
) -> Result<Measured, Problem> {
    let count = operations.len();
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let start = Barrier::new(operations.len());
    let stop = AtomicBool::new(false);
    let stop_together = !roles.is_empty();
    let runs: Vec<Result<Ran, Problem>> = std::thread::scope(|scope| {
        let threads: Vec<_> = operations
            .iter()
            .enumerate()
            .map(|(thread, operations)| {
                let (start, stop, cores) = (&start, &stop, &cores);
                scope.spawn(move || {
                    if let Some(core) = cores.get(thread % cores.len().max(1)) {
                        core_affinity::set_for_current(*core);
                    }
                    // The others wait at the barrier: it is passed even if this panics.
                    let session = guarded(|| target.session(thread, count));
                    start.wait();
                    let mut session = session?;
                    let run = guarded(|| {
                        let stop = stop_together.then_some(stop);
                        one_thread(job, &mut *session, operations, batch, latency, stop)
                    });
                    stop.store(true, Ordering::Relaxed);
                    let run = match run {
                        Err(panicked) => {
                            std::mem::forget(session);
                            return Err(panicked);
                        }
                        Ok(run) => run.map_err(Problem::Wrong),
                    };
                    guarded(|| drop(session))?;
                    run
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| guarded(|| thread.join()));
        let lost = |_| Problem::Failed("its thread was lost".to_owned());
        joined.map(|run| run.and_then(|run| run.map_err(lost)?)).collect()
    });
    let runs: Vec<Ran> = runs.into_iter().collect::<Result<_, _>>()?;
    let begin = runs.iter().map(|run| run.begin).min();
    let end = runs.iter().map(|run| run.end).max();
    let seconds = begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
    let done: usize = runs.iter().map(|run| run.done).sum();
    let roles = runs.iter().take(roles.len());
    let roles =
        roles.map(|run| run.done as f64 / (run.end - run.begin).as_secs_f64() / 1e6).collect();
    let mut all: Option<Histogram<u64>> = None;
    for histogram in runs.into_iter().filter_map(|run| run.latency) {
        match &mut all {
            None => all = Some(histogram),
            // Same bounds: cannot fail.
            Some(all) => drop(all.add(histogram)),
        }
    }
    Ok(Measured {
        mops: done as f64 / seconds.max(1e-9) / 1e6,
        roles,
        counts: None,
        latency: all.as_ref().map(Latency::of),
    })
}

fn one_thread<'a, K: Key + ?Sized>(
    job: &Job<'a, K>,
    session: &mut dyn crate::target::Session<K>,
    operations: &[Operation],
    batch: usize,
    latency: bool,
    stop: Option<&AtomicBool>,
) -> Result<Ran, String> {
    let mut checker = Checker::new(job, job.ranks);
    let bounds = || Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3).ok();
    let mut histogram = if latency { bounds() } else { None };
    let mut done = operations.len();
    let begin = Instant::now();
    match &mut histogram {
        Some(histogram) => {
            let mut at = 0;
            while at < operations.len() {
                let action = operations[at].action;
                let same = operations[at..].iter().take(batch);
                let run = same.take_while(|operation| operation.action == action).count();
                let begin = Instant::now();
                if batch > 1 {
                    checker.group(session, &operations[at..at + run])?;
                } else {
                    checker.perform(session, operations[at], at as u64)?;
                }
                let took = begin.elapsed().as_nanos() as u64;
                for _ in 0..run {
                    histogram.saturating_record(took);
                }
                at += run;
                if stop.is_some_and(|stop| at % STRIDE < run && stop.load(Ordering::Relaxed)) {
                    done = at;
                    break;
                }
            }
        }
        None if batch > 1 => checker.in_groups(session, operations, batch)?,
        None => {
            let stopped = |stop: &AtomicBool| stop.load(Ordering::Relaxed);
            let mut version = 0;
            for (stride, operations) in operations.chunks(STRIDE).enumerate() {
                if stop.is_some_and(stopped) {
                    done = stride * STRIDE;
                    break;
                }
                for operation in operations {
                    version += 1;
                    checker.perform(session, *operation, version)?;
                }
            }
        }
    }
    Ok(Ran { begin, end: Instant::now(), done, latency: histogram })
}

#[cfg(test)]
mod tests;
