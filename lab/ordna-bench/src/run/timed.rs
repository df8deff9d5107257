//! The measurement itself, in which pinned threads start simultaneously.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use ordna_base::Key;

use crate::check::{Calls, Checker, Latest, in_order};
use crate::figures::{Groups, Latency, Measured, Problem, guarded};
use crate::job::Job;
use crate::target::{Session, Target};
use crate::workload::Operation;
use crate::zipf::Random;

/// Number of operations between two checks whether another role is done.
const STRIDE: usize = 64;

/// The work of the threads of a run.
pub struct Task<'t> {
    /// Operations by thread.
    pub operations: &'t [Vec<Operation>],
    /// Number of operations of the workload for which these count; by default their own number.
    pub counted: &'t [usize],
    /// The first of the keys that each thread inserts, if others read the latest ones.
    pub first: &'t [u32],
    /// Number of keys per call.
    pub batch: usize,
    /// Whether a call has operations of all kinds, in their order.
    pub ordered: bool,
    /// The roles of the first threads, if threads have different roles. They then stop together.
    pub roles: &'t [&'t str],
    /// Whether every operation is measured separately.
    pub latency: bool,
    /// Number of the run. Each run writes different versions.
    pub run: u64,
}

impl<'t> Task<'t> {
    /// Creates a task of single operations that are measured together.
    pub fn new(operations: &'t [Vec<Operation>], run: u64) -> Self {
        Self {
            operations,
            counted: &[],
            first: &[],
            batch: 1,
            ordered: false,
            roles: &[],
            latency: false,
            run,
        }
    }

    /// Returns the version of the first write of a thread.
    pub fn base(&self, thread: usize) -> u8 {
        Random::mix(self.run << 16 | thread as u64) as u8
    }

    /// Returns the operations that each thread has executed, with the version of the first.
    pub fn done<'a>(&self, done: &'a [usize]) -> impl Iterator<Item = (&'a [Operation], u8)>
    where
        't: 'a,
    {
        let bases: Vec<u8> = (0..done.len()).map(|thread| self.base(thread)).collect();
        let threads = self.operations.iter().zip(done).zip(bases);
        threads.map(|((all, done), base)| (all.get(..*done).unwrap_or(all), base))
    }
}

/// The figures of a run, and how many of its operations each thread has executed.
pub struct Ran {
    pub measured: Measured,
    pub done: Vec<usize>,
}

/// The figures of one thread.
struct ThreadFigures {
    begin: Instant,
    end: Instant,
    done: usize,
    latency: Option<Histogram<u64>>,
    calls: [Calls; 3],
}

/// Runs every thread's operations. The threads are pinned and start simultaneously. Threads with
/// roles stop when the first of them is done, so that no role is measured while another one is
/// idle.
pub fn timed<K: Key + ?Sized>(
    job: &Job<'_, K>,
    target: &dyn Target<K>,
    task: &Task<'_>,
) -> Result<Ran, Problem> {
    let count = task.operations.len();
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let start = Barrier::new(count);
    let stop = AtomicBool::new(false);
    let stop_together = !task.roles.is_empty();
    let latest = (!task.first.is_empty()).then(|| Latest::new(task.first, job.loaded));
    let figures: Vec<Result<ThreadFigures, Problem>> = std::thread::scope(|scope| {
        let threads: Vec<_> = task
            .operations
            .iter()
            .enumerate()
            .map(|(thread, operations)| {
                let (start, stop, cores, latest) = (&start, &stop, &cores, latest.as_ref());
                scope.spawn(move || {
                    if let Some(core) = cores.get(thread % cores.len().max(1)) {
                        core_affinity::set_for_current(*core);
                    }
                    // The others wait at the barrier, so this thread must reach it even after a
                    // panic.
                    let session = guarded(|| target.session(thread, count));
                    let copies = guarded(|| in_order::<K>(job.keys, operations));
                    start.wait();
                    let copies = copies?;
                    let mut session = session?;
                    let own = guarded(|| {
                        let stop = stop_together.then_some(stop);
                        let base = task.base(thread);
                        let checker = Checker::new(job, copies.as_ref(), thread, base, latest);
                        one_thread(checker, &mut *session, operations, task, stop)
                    });
                    stop.store(true, Ordering::Relaxed);
                    let own = match own {
                        Err(panicked) => {
                            std::mem::forget(session);
                            return Err(panicked);
                        }
                        Ok(own) => own.map_err(Problem::Wrong),
                    };
                    guarded(|| drop(session))?;
                    own
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| guarded(|| thread.join()));
        let lost = |_| Problem::Failed("its thread was lost".to_owned());
        joined.map(|own| own.and_then(|own| own.map_err(lost)?)).collect()
    });
    let figures: Vec<ThreadFigures> = figures.into_iter().collect::<Result<_, _>>()?;
    let done = figures.iter().map(|own| own.done).collect();
    Ok(Ran { measured: measured(task, figures), done })
}

/// Combines the figures of all threads.
fn measured(task: &Task<'_>, figures: Vec<ThreadFigures>) -> Measured {
    let begin = figures.iter().map(|own| own.begin).min();
    let end = figures.iter().map(|own| own.end).max();
    let seconds = begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
    let counted = |thread: usize, own: &ThreadFigures| {
        let all = task.operations.get(thread).map(Vec::len);
        let counted = task.counted.get(thread).filter(|_| all == Some(own.done));
        counted.copied().unwrap_or(own.done)
    };
    let done: usize = figures.iter().enumerate().map(|(thread, own)| counted(thread, own)).sum();
    let mops = |done: usize, seconds: f64| done as f64 / seconds.max(1e-9) / 1e6;
    let roles = figures.iter().take(task.roles.len());
    let roles = roles.map(|own| mops(own.done, (own.end - own.begin).as_secs_f64())).collect();
    let mut calls = [Calls::default(); 3];
    let mut all: Option<Histogram<u64>> = None;
    for own in figures {
        calls.iter_mut().zip(own.calls).for_each(|(sum, more)| *sum += more);
        match (&mut all, own.latency) {
            (None, latency) => all = latency,
            // Both have the same bounds, so this cannot fail.
            (Some(all), Some(latency)) => drop(all.add(latency)),
            (Some(_), None) => {}
        }
    }
    let [gets, puts, removes] =
        calls.map(|calls| (calls.calls > 0).then(|| calls.keys as f64 / calls.calls as f64));
    Measured {
        mops: mops(done, seconds),
        roles,
        counts: None,
        latency: all.as_ref().map(Latency::of),
        groups: Groups { gets, puts, removes },
    }
}

fn one_thread<K: Key + ?Sized>(
    mut checker: Checker<'_, '_, K>,
    session: &mut dyn Session<K>,
    operations: &[Operation],
    task: &Task<'_>,
    stop: Option<&AtomicBool>,
) -> Result<ThreadFigures, String> {
    let bounds = || Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3).ok();
    let mut latency = if task.latency { bounds() } else { None };
    let stopped = || stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
    let (mut at, call) = (0, (task.batch, task.ordered));
    let begin = Instant::now();
    // Each thread executes at least one group, or it would have no figure: the other thread may be
    // done before this one gets a processor.
    while at < operations.len() && (at == 0 || !stopped()) {
        let stride = (at + STRIDE).min(operations.len());
        if let Some(histogram) = &mut latency {
            while at < stride {
                let begin = Instant::now();
                let next = checker.call(session, operations, at, call)?;
                let took = begin.elapsed().as_nanos() as u64;
                for _ in at..next {
                    histogram.saturating_record(took);
                }
                at = next;
            }
        } else if task.batch > 1 || task.ordered {
            while at < stride {
                at = checker.call(session, operations, at, call)?;
            }
        } else {
            for operation in &operations[at..stride] {
                checker.perform(session, *operation, at)?;
                at += 1;
            }
        }
    }
    let end = Instant::now();
    checker.settle(0)?;
    Ok(ThreadFigures { begin, end, done: at, latency, calls: checker.calls })
}
