//! One build of one index: load it, run the workloads on it; timed, and every answer checked.

mod timed;

use std::panic::{AssertUnwindSafe, catch_unwind};

use hdrhistogram::Histogram;
use ordna_base::Key;
use ordna_base::entries::Sequence;
use serde::{Deserialize, Serialize};

use crate::memory;
use crate::sweep::{Held, Writes, check_loaded, check_whole, check_writes};
use crate::target::Target;
use crate::workload::{Action, Operation, Workload, Written};
use timed::{Task, timed};

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
    /// Keys of a call for groups, on average, where there were such calls.
    pub groups: Groups,
}

/// Keys of a call for groups, on average.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Of gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gets: Option<f64>,
    /// Of puts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub puts: Option<f64>,
    /// Of removes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<f64>,
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
    /// What was wrong with a scan of the whole index.
    wrong_scan: Option<String>,
    /// What it must hold.
    held: Held,
    /// Runs so far: each writes other versions.
    runs: u64,
}

impl<'j, 'a, K: Key + ?Sized> Instance<'j, 'a, K> {
    /// Makes it. If that fails, everything that is asked of it tells why.
    pub fn new(job: &'j Job<'a, K>, make: Make<'_, K>) -> Self {
        let before = (memory::allocated(), memory::resident());
        let held = Held::nothing(0);
        let mut new =
            Self { job, target: None, before, problem: None, wrong_scan: None, held, runs: 0 };
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

    /// Keeps a problem: after it nobody knows what the instance holds.
    fn keep<R>(&mut self, result: Result<R, Problem>) -> Result<R, Problem> {
        if let Err(problem) = &result {
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
        // Without reads no answer could be checked.
        let needed = || [Action::Insert, Action::Read].into_iter().find_map(|a| target.lacks(a));
        let why = first.filter(|_| reasons.all(|reason| reason.is_some())).or_else(needed);
        let loaded = match why {
            Some(why) => Err(Problem::NotApplicable(why)),
            None => self.fill(),
        };
        self.keep(loaded)
    }

    fn fill(&mut self) -> Result<Load, Problem> {
        let (job, before) = (self.job, self.before);
        let target = self.target()?;
        let threads = target.most_threads().map_or(job.threads, |most| most.min(job.threads));
        let part = |thread: usize| job.loaded * thread / threads;
        let insert = |key| Operation { action: Action::Insert, key: key as u32 };
        let operations: Vec<Vec<Operation>> = (0..threads)
            .map(|thread| (part(thread)..part(thread + 1)).map(insert).collect())
            .collect();
        let task = Task { batch: job.batch, ..Task::new(&operations, self.runs) };
        let ran = timed(job, target, &task).map_err(|p| during("while loading")(p))?;
        let bases: Vec<u8> = (0..threads).map(|thread| task.base(thread)).collect();
        drop(operations);
        let grown = memory::allocated().saturating_sub(before.0);
        let resident = before.1.zip(memory::resident());
        let mut held = Held::nothing(job.keys.len());
        for (thread, base) in bases.into_iter().enumerate() {
            held.load(part(thread)..part(thread + 1), base);
        }
        let mut wrong_scan = None;
        let checked = guarded(|| {
            let mut session = target.session(0, 1);
            // Scanned as a whole; if that cannot be, every key is looked up.
            let mut step = 1;
            if target.lacks(Action::Scan(1)).is_none() {
                wrong_scan = check_whole(job, &mut *session, &held).err();
                step = if wrong_scan.is_none() { (job.loaded / 100_000).max(1) } else { 1 };
            }
            check_loaded(job, &mut *session, &held, step)
        });
        let checked = checked.map_err(|problem| during("after loading")(problem));
        checked?.map_err(|wrong| Problem::Wrong(format!("after loading: {wrong}")))?;
        let per_key = |bytes: usize| bytes as f64 / job.loaded.max(1) as f64;
        let load = Load {
            mops: ran.measured.mops,
            bytes_per_key: target.on_our_allocator().then_some(per_key(grown)),
            rss_per_key: resident.map(|(before, after)| per_key(after.saturating_sub(before))),
            wrong_scan: wrong_scan.clone(),
        };
        (self.held, self.wrong_scan, self.runs) = (held, wrong_scan, self.runs + 1);
        Ok(load)
    }

    /// Runs a phase, checks what it left, and brings back what is missing then.
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
        self.target()?;
        if let Some(wrong) = self.wrong_scan.as_ref().filter(|_| judged(&phase.workload)) {
            return Err(Problem::Wrong(wrong.clone()));
        }
        match self.one_phase(phase) {
            Err(Problem::NotApplicable(why)) => Err(Problem::NotApplicable(why)),
            measured => self.keep(measured),
        }
    }

    fn one_phase(&mut self, phase: &Phase) -> Result<Measured, Problem> {
        let Written { operations, counted, first, actions } = &phase.written;
        let task = Task {
            counted,
            first: if actions.contains(&Action::Latest) { first } else { &[] },
            batch: phase.batch,
            roles: phase.workload.roles(),
            latency: phase.latency,
            ..Task::new(operations, self.runs)
        };
        let ran = timed(self.job, self.target()?, &task)?;
        if phase.workload != Workload::Load && ran.done.iter().all(|done| *done == 0) {
            return Err(Problem::NotApplicable("there was nothing to do".to_owned()));
        }
        let mut measured = ran.measured;
        measured.counts = guarded(|| self.target().ok().and_then(Target::counts))?;
        let writes = Writes::of(task.done(&ran.done));
        self.runs += 1;
        self.sweep(&writes)?;
        let missing = self.held.restore(&writes, self.job.loaded, phase.workload.returns());
        if !missing.is_empty() {
            let share = missing.len().div_ceil(operations.len().max(1));
            let missing: Vec<Vec<Operation>> = missing.chunks(share).map(<[_]>::to_vec).collect();
            let task = Task::new(&missing, self.runs);
            let ran = timed(self.job, self.target()?, &task)
                .map_err(|problem| during("while keys were put back")(problem))?;
            let writes = Writes::of(task.done(&ran.done));
            self.runs += 1;
            self.sweep(&writes)?;
        }
        Ok(measured)
    }

    /// Checks every key that was written.
    fn sweep(&mut self, writes: &Writes) -> Result<(), Problem> {
        let Self { job, target: Some(target), held, .. } = self else { return Ok(()) };
        let swept = guarded(|| check_writes(job, &mut *target.session(0, 1), held, writes));
        swept?.map_err(Problem::Wrong)
    }

    /// Scans the whole index, if it scans; tells what is wrong, once. Point operations may be right
    /// all the same.
    ///
    /// # Errors
    /// It panicked.
    pub fn look(&mut self) -> Result<Option<String>, Problem> {
        let (job, target) = (self.job, self.target()?);
        if self.wrong_scan.is_some() || target.lacks(Action::Scan(1)).is_some() {
            return Ok(None);
        }
        let looked = guarded(|| check_whole(job, &mut *target.session(0, 1), &self.held).err());
        let wrong = self.keep(looked)?;
        self.wrong_scan.clone_from(&wrong);
        Ok(wrong)
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
    let mut phase = |at: usize| {
        let measured = instance.phase(at)?;
        match instance.look()? {
            None => Ok(measured),
            Some(wrong) => Err(Problem::Wrong(wrong)),
        }
    };
    let phases = (0..job.phases.len()).map(&mut phase).collect();
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
    phase.written.actions.iter().find_map(|action| target.lacks(*action))
}

/// Whether a wrong scan of the whole index makes the figure void: it is of the load, or of scans.
pub fn judged(workload: &Workload) -> bool {
    *workload == Workload::Load || workload.scans()
}

#[cfg(test)]
pub mod broken;
#[cfg(test)]
mod tests;
