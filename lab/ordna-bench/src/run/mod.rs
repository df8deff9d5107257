//! One build of one index: loads it, and runs the workloads on it. Operations are timed, and every
//! answer is checked.

mod timed;

use std::ops::Range;

use ordna_base::Key;
use ordna_base::entries::Sequence;

use crate::figures::{Load, Measured, Problem, guarded};
use crate::job::{Job, Phase};
use crate::memory;
use crate::sweep::{Contents, Writes, check_loaded, check_whole, check_writes};
use crate::target::Target;
use crate::workload::{Action, Operation, Workload, Written};
use timed::{Ran, Task, timed};

/// The figures of one build, or the reason why there are none.
#[cfg(test)]
#[derive(Debug)]
pub struct Built {
    /// The figures of the load.
    pub load: Result<Load, Problem>,
    /// The figures of each phase.
    pub phases: Vec<Result<Measured, Problem>>,
}

/// Adds to a problem when it occurred.
fn during(when: &str) -> impl Fn(Problem) -> Problem {
    move |problem| match problem {
        Problem::Wrong(what) => Problem::Wrong(format!("{when}: {what}")),
        Problem::Failed(what) => Problem::Failed(format!("{when}: {what}")),
        other => other,
    }
}

/// Creates an empty index, or returns the reason why this is impossible.
pub type Make<'m, K> = &'m dyn Fn() -> Result<Box<dyn Target<K>>, String>;

/// Returns the operations that load the keys, by thread.
fn loading<K: Key + ?Sized>(job: &Job<'_, K>, target: &dyn Target<K>) -> Vec<Vec<Operation>> {
    let most = if target.one_caller() { Some(1) } else { target.most_threads() };
    let threads = most.map_or(job.threads, |most| most.min(job.threads));
    let insert = |key| Operation { action: Action::Insert, key: key as u32 };
    (0..threads).map(|thread| part(job, thread, threads).map(insert).collect()).collect()
}

/// Returns the keys that one of the threads loads.
fn part<K: Key + ?Sized>(job: &Job<'_, K>, thread: usize, threads: usize) -> Range<usize> {
    let begin = |thread: usize| job.loaded * thread / threads;
    begin(thread)..begin(thread + 1)
}

/// An instance of an index that is being measured. A panic anywhere, including the drop, becomes a
/// [`Problem::Failed`] and does not end the run.
pub struct Instance<'j, 'a, K: Key + ?Sized> {
    job: &'j Job<'a, K>,
    target: Option<Box<dyn Target<K>>>,
    /// Numbers of bytes that were allocated and resident before it was created.
    before: (usize, Option<usize>),
    /// The reason why nothing can be measured on it any more.
    problem: Option<Problem>,
    /// The fault of a scan of the whole index.
    wrong_scan: Option<String>,
    /// The entries that it must contain.
    held: Contents,
    /// Number of runs so far. Each writes different versions.
    runs: u64,
}

impl<'j, 'a, K: Key + ?Sized> Instance<'j, 'a, K> {
    /// Creates an instance. If this fails, all of its methods return the reason.
    pub fn new(job: &'j Job<'a, K>, make: Make<'_, K>) -> Self {
        Self::holding(job, make, (memory::allocated(), memory::resident()))
    }

    /// Creates an instance in a process that has already used as much memory, because another
    /// instance is loaded and dropped before. For a virtual machine, memory that the system has
    /// just provided is expensive, in particular huge pages. The second instance has no figure if
    /// the first one is wrong or fails. Memory that the first one leaves behind counts against the
    /// second.
    pub fn warmed(job: &'j Job<'a, K>, make: Make<'_, K>) -> Self {
        let before = (memory::allocated(), memory::resident());
        memory::keep_pages();
        let mut first = Self::holding(job, make, before);
        let loaded = first.check_use().and_then(|()| first.insert_all().map(drop));
        let loaded = first.keep(loaded);
        let failed = loaded.and(first.finish()).err();
        let failed = failed.filter(|problem| !matches!(problem, Problem::NotApplicable(_)));
        let mut second = Self::holding(job, make, before);
        second.problem = second.problem.or(failed);
        second
    }

    fn holding(job: &'j Job<'a, K>, make: Make<'_, K>, before: (usize, Option<usize>)) -> Self {
        let held = Contents::nothing(0);
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

    /// Records a problem, after which the contents of the instance are unknown.
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

    /// Loads the keys and checks the contents. Loads nothing if no phase could follow.
    ///
    /// # Errors
    /// Returns the first wrong answer.
    pub fn load(&mut self) -> Result<Load, Problem> {
        let loaded = self.check_use().and_then(|()| self.fill());
        self.keep(loaded)
    }

    /// Returns an error if no phase could follow a load.
    fn check_use(&self) -> Result<(), Problem> {
        let target = self.target()?;
        let mut reasons = self.job.phases.iter().map(|phase| unable(target, phase));
        let first = reasons.next().flatten();
        // Without reads, no answer could be checked.
        let needed = || [Action::Insert, Action::Read].into_iter().find_map(|a| target.lacks(a));
        let why = first.filter(|_| reasons.all(|reason| reason.is_some())).or_else(needed);
        why.map_or(Ok(()), |why| Err(Problem::NotApplicable(why)))
    }

    /// Inserts the keys of the load. Returns the measurement and the base of each thread.
    fn insert_all(&self) -> Result<(Ran, Vec<u8>), Problem> {
        let (job, target) = (self.job, self.target()?);
        let operations = loading(job, target);
        let batch = if target.one_caller() { job.batch * job.threads } else { job.batch };
        let ordered = job.ordered;
        let task = Task { batch, ordered, ..Task::new(&operations, self.runs) };
        let ran = timed(job, target, &task).map_err(|p| during("while loading")(p))?;
        Ok((ran, (0..operations.len()).map(|thread| task.base(thread)).collect()))
    }

    fn fill(&mut self) -> Result<Load, Problem> {
        let (job, before) = (self.job, self.before);
        let (ran, bases) = self.insert_all()?;
        let (target, threads) = (self.target()?, bases.len());
        let grown = memory::allocated().saturating_sub(before.0);
        let resident = before.1.zip(memory::resident());
        let huge = ordna_base::slabs::huge_bytes();
        let mut held = Contents::nothing(job.keys.len());
        for (thread, base) in bases.into_iter().enumerate() {
            held.load(part(job, thread, threads), base);
        }
        let mut wrong_scan = None;
        let checked = guarded(|| {
            let mut session = target.session(0, 1);
            // The index is scanned as a whole. If it cannot scan, every key is looked up.
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
            huge_per_key: huge.filter(|bytes| *bytes > 0).map(per_key),
            rss_per_key: resident.map(|(before, after)| per_key(after.saturating_sub(before))),
            wrong_scan: wrong_scan.clone(),
        };
        (self.held, self.wrong_scan, self.runs) = (held, wrong_scan, self.runs + 1);
        Ok(load)
    }

    /// Runs a phase, checks the contents after it, and restores missing keys.
    ///
    /// # Errors
    /// Returns the first wrong answer.
    pub fn phase(&mut self, at: usize) -> Result<Measured, Problem> {
        let Some(phase) = self.job.phases.get(at) else {
            return Err(Problem::Failed(format!("there is no phase {at}")));
        };
        // A missing operation is a better reason than an earlier wrong answer.
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
        let (mut operations, mut counted, mut batch) = (operations, counted, phase.batch);
        let (merged, sum);
        if self.target()?.one_caller() {
            (merged, sum) = (in_one(operations, batch), vec![counted.iter().sum()]);
            batch *= operations.len();
            (operations, counted) = (&merged, &sum);
        }
        let task = Task {
            counted,
            first: if actions.contains(&Action::Latest) { first } else { &[] },
            batch,
            ordered: self.job.ordered,
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

    /// Scans the whole index, if it supports scans. Returns the fault, once. Point operations may
    /// be correct nevertheless.
    ///
    /// # Errors
    /// Returns an error if the scan panics.
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

    /// Drops the instance.
    ///
    /// # Errors
    /// Returns an error if the drop panics.
    pub fn finish(self) -> Result<(), Problem> {
        let Some(target) = self.target else { return Ok(()) };
        if matches!(self.problem, Some(Problem::Failed(_))) {
            // Its state is unknown, so a drop could block or do worse.
            std::mem::forget(target);
            return Ok(());
        }
        guarded(|| drop(target)).map_err(during("while being dropped"))
    }
}

/// Creates an instance, loads it and runs all phases on it.
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

/// Merges the operations of all threads for a single caller: `batch` of each thread in turn.
fn in_one(operations: &[Vec<Operation>], batch: usize) -> Vec<Vec<Operation>> {
    let most = operations.iter().map(Vec::len).max().unwrap_or(0);
    let starts = (0..most).step_by(batch.max(1));
    let parts = starts.flat_map(|start| {
        operations.iter().flat_map(move |all| all.iter().skip(start).take(batch).copied())
    });
    vec![parts.collect()]
}

/// Returns the reason why the index cannot do this, or `None` if it can.
fn unable<K: Key + ?Sized>(target: &dyn Target<K>, phase: &Phase) -> Option<String> {
    if target.most_threads().is_some_and(|most| most < phase.written.operations.len()) {
        return Some("one thread only: it has no synchronization".to_owned());
    }
    let by_thread =
        !phase.workload.roles().is_empty() || phase.written.actions.contains(&Action::Latest);
    if target.one_caller() && by_thread {
        return Some("one caller: the workload is one of threads".to_owned());
    }
    phase.written.actions.iter().find_map(|action| target.lacks(*action))
}

/// Returns whether a wrong scan of the whole index makes the figure invalid, because it is that of
/// the load or of scans.
pub fn judged(workload: &Workload) -> bool {
    *workload == Workload::Load || workload.scans()
}

#[cfg(test)]
pub mod broken;
#[cfg(test)]
mod tests;
