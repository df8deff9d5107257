//! One build of one index: load it, run the workloads on it; timed, and every answer checked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use ordna::Key;

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
    /// Keys per call; 1: single operations.
    pub batch: usize,
    /// The workloads, one after the other on the same instance.
    pub phases: &'a [Phase],
    /// The loaded keys' places in key order; there if a workload scans.
    pub ranks: Option<&'a [u32]>,
}

/// A workload, written down.
pub struct Phase {
    /// Which.
    pub workload: Workload,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// An answer was wrong.
    Wrong(String),
    /// It panicked.
    Failed(String),
    /// The index cannot do this.
    NotApplicable(String),
}

/// The figures of one build, or why there are none.
#[derive(Debug)]
pub struct Built {
    /// Of the load.
    pub load: Result<Load, Problem>,
    /// Of each phase.
    pub phases: Vec<Result<Measured, Problem>>,
}

impl Built {
    /// Nothing, and why for each phase.
    fn not_applicable(reasons: Vec<String>) -> Self {
        let why = reasons.first().cloned().unwrap_or_default();
        Self {
            load: Err(Problem::NotApplicable(why)),
            phases: reasons.into_iter().map(|why| Err(Problem::NotApplicable(why))).collect(),
        }
    }

    /// The same problem everywhere.
    pub fn nothing(phases: usize, problem: &Problem) -> Self {
        Self {
            load: Err(problem.clone()),
            phases: (0..phases).map(|_| Err(problem.clone())).collect(),
        }
    }
}

/// Figures of a load.
#[derive(Debug, Clone)]
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
#[derive(Debug)]
pub struct Measured {
    /// Million operations per second, of all threads together.
    pub mops: f64,
    /// The same of each role, where threads do different things.
    pub roles: Vec<f64>,
    /// Nanoseconds per operation, if they were timed one by one. An operation in a group takes as
    /// long as the group.
    pub latency: Option<Histogram<u64>>,
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
        Problem::NotApplicable(why) => Problem::NotApplicable(why),
    }
}

/// Builds an index with `new`, loads it and runs the workloads on it. A panic anywhere, the drop
/// included, is a [`Problem::Failed`] and not the end of the run.
pub fn measure<K, T>(job: &Job<'_, K>, new: impl FnOnce() -> T) -> Built
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let phases = job.phases.len();
    let before = (memory::allocated(), memory::resident());
    let target = match guarded(new) {
        Ok(target) => target,
        Err(problem) => return Built::nothing(phases, &during("while being made")(problem)),
    };
    let mut built = match guarded(|| target.refuses(job)) {
        Ok(None) => on(job, &target, before),
        Ok(Some(why)) => Built::nothing(phases, &Problem::NotApplicable(why)),
        Err(problem) => Built::nothing(phases, &problem),
    };
    let failed = |problem: Option<&Problem>| matches!(problem, Some(Problem::Failed(_)));
    let panicked = failed(built.load.as_ref().err())
        || built.phases.iter().any(|phase| failed(phase.as_ref().err()));
    if panicked {
        // Its state is unknown: a drop could hang or worse.
        std::mem::forget(target);
    } else if let Err(problem) = guarded(|| drop(target)) {
        built = Built::nothing(phases, &during("while being dropped")(problem));
    }
    built
}

fn on<K, T>(job: &Job<'_, K>, target: &T, before: (usize, Option<usize>)) -> Built
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let reasons: Vec<Option<String>> =
        job.phases.iter().map(|phase| unable(target, phase)).collect();
    if !reasons.is_empty()
        && let Some(reasons) = reasons.iter().cloned().collect::<Option<Vec<String>>>()
    {
        return Built::not_applicable(reasons);
    }
    let load = match load(job, target, before) {
        Ok(load) => load,
        Err(problem) => return Built::nothing(job.phases.len(), &problem),
    };
    let mut phases: Vec<Result<Measured, Problem>> = Vec::new();
    for (phase, reason) in job.phases.iter().zip(reasons) {
        let before = phases.iter().find_map(|phase| match phase {
            Err(Problem::Failed(what)) => Some(what.clone()),
            _ => None,
        });
        phases.push(if let Some(what) = before {
            Err(Problem::Failed(what))
        } else if let Some(why) = reason {
            Err(Problem::NotApplicable(why))
        } else if let Some(wrong) = load.wrong_scan.as_ref().filter(|_| judged(phase)) {
            Err(Problem::Wrong(wrong.clone()))
        } else {
            one_phase(job, target, phase)
        });
    }
    Built { load: Ok(load), phases }
}

/// Why the index cannot do this; `None` if it can.
fn unable<K, T>(target: &T, phase: &Phase) -> Option<String>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    if target.most_threads().is_some_and(|most| most < phase.written.operations.len()) {
        return Some("one thread only: it has no synchronization".to_owned());
    }
    phase.actions().into_iter().find_map(|action| target.lacks(action))
}

/// Runs a phase, and brings back what is missing then.
fn one_phase<K, T>(job: &Job<'_, K>, target: &T, phase: &Phase) -> Result<Measured, Problem>
where
    K: Key + ?Sized,
    T: Target<K>,
{
    let Written { operations, restore } = &phase.written;
    let measured = timed(job, target, operations, phase.workload.roles(), phase.latency)?;
    if restore.iter().any(|operations| !operations.is_empty()) {
        timed(job, target, restore, &[], false)
            .map_err(|problem| during("while keys were put back")(problem))?;
    }
    Ok(measured)
}

/// Whether a wrong scan after the load makes the figure void: it is of the load, or of scans.
fn judged(phase: &Phase) -> bool {
    phase.workload == Workload::Load || phase.workload.scans()
}

fn load<K, T>(job: &Job<'_, K>, target: &T, before: (usize, Option<usize>)) -> Result<Load, Problem>
where
    K: Key + ?Sized,
    T: Target<K>,
{
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
    let timed =
        timed(job, target, &operations, &[], false).map_err(|p| during("while loading")(p))?;
    drop(operations);
    let grown = memory::allocated().saturating_sub(before.0) as f64 / job.loaded.max(1) as f64;
    let resident = before.1.zip(memory::resident());
    let mut wrong_scan = None;
    let checked = guarded(|| {
        let mut session = target.session(0, 1);
        check_points(job, &mut session)?;
        if target.lacks(Action::Scan(1)).is_none() {
            wrong_scan = check_stretch(job, &mut session).err();
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
fn timed<K, T>(
    job: &Job<'_, K>,
    target: &T,
    operations: &[Vec<Operation>],
    roles: &[&str],
    latency: bool,
) -> Result<Measured, Problem>
where
    K: Key + ?Sized,
    T: Target<K>,
{
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
                        one_thread(job, &mut session, operations, latency, stop)
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
    Ok(Measured { mops: done as f64 / seconds.max(1e-9) / 1e6, roles, latency: all })
}

fn one_thread<'a, K: Key + ?Sized>(
    job: &Job<'a, K>,
    session: &mut impl crate::target::Session<K>,
    operations: &[Operation],
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
                let same = operations[at..].iter().take(job.batch);
                let run = same.take_while(|operation| operation.action == action).count();
                let begin = Instant::now();
                if job.batch > 1 {
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
        None if job.batch > 1 => checker.in_groups(session, operations, job.batch)?,
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
