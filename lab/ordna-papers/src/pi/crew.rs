//! Turns of writers, and the threads that share the work of the one whose turn it is.
//!
//! # Contract
//! Batches with writes are admitted one after the other: [`Crew::enter`] gives the *turn* to one
//! caller at a time. Its batch is cut into pieces, and [`Turn::run`] shares them among the
//! available threads: the caller itself, the pool's workers, and the callers that wait for their
//! own turn. Each piece is done once, by one thread. `run` returns when all are done.
//!
//! # Progress
//! Waiting callers park on a condition variable, and are woken by a job or the end of a turn. Idle
//! workers wait on a separate one, which only a job notifies. A caller that arrives when the turn
//! is free takes it, before callers that are just waking up. Turns in the order of arrival would
//! cost each single write a switch of threads, which is forty times as slow when two threads load.
//! So a caller may wait for any number of turns. A reader enters only after too many restarts.
//!
//! # NUMA
//! Pieces belong to the NUMA node that has their part of the key range, and all have about the same
//! size, so a node's share of the pieces is its share of the queries. Threads first take pieces of
//! their own node, and then remaining pieces of other nodes. So the number of threads that work on
//! a node's queries is in proportion to them. Workers are bound to their node, and data nodes that
//! they create use its memory. If a node has no free threads, its work is offloaded (§4.3.2,
//! §4.3.3), without a plan made in advance.
//!
//! Source: the PI paper, Algorithm 1. That waiting callers help is our own.

#![expect(unsafe_code, reason = "a job on the leader's stack, done by other threads")]

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use crate::topology::Topology;
use ordna_base::sync::lock::{Condvar, Mutex, MutexGuard};
use ordna_base::sync::point;

type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// A job in progress: the remaining pieces, and the threads that work on it.
struct Job {
    work: *const Work<'static>,
    /// Remaining pieces, by NUMA node.
    left: Vec<VecDeque<usize>>,
    inside: usize,
    panic: Option<Box<dyn Any + Send>>,
}

// SAFETY: the work is `Sync`, and `Turn::run` keeps it alive as long as the job exists.
unsafe impl Send for Job {}

#[derive(Default)]
struct CrewState {
    busy: bool,
    stop: bool,
    job: Option<Job>,
    /// Number of callers that wait on `changed`.
    parked: usize,
    /// Number of workers that wait on `work`, and how often one was woken.
    idle: usize,
    woken: usize,
    /// Numbers of pieces that threads of their NUMA node and other threads have done.
    done: (usize, usize),
}

/// The turn and the pool.
pub struct Crew {
    shared: Arc<Shared>,
    topology: Topology,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<CrewState>,
    /// Notified when the turn is free, a piece of a job is available, or the last piece of a job is
    /// done.
    changed: Condvar,
    /// Notified when a job begins or the workers must stop. It is separate, so that a single write
    /// wakes no worker.
    work: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, CrewState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn park<'a>(&'a self, mut state: MutexGuard<'a, CrewState>) -> MutexGuard<'a, CrewState> {
        state.parked += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.parked -= 1;
        state
    }

    /// Does one remaining piece of the job, if there is one. Prefers pieces of the NUMA node.
    fn help<'a>(
        &'a self,
        mut state: MutexGuard<'a, CrewState>,
        node: usize,
    ) -> (MutexGuard<'a, CrewState>, bool) {
        let Some(job) = &mut state.job else { return (state, false) };
        let own = job.left.get_mut(node).and_then(VecDeque::pop_front);
        let is_own = own.is_some();
        // Offload: takes a piece of another node, namely the one with the most pieces.
        let piece = own.or_else(|| job.left.iter_mut().max_by_key(|left| left.len())?.pop_back());
        let Some(piece) = piece else { return (state, false) };
        job.inside += 1;
        let work = job.work;
        let done = &mut state.done;
        *(if is_own { &mut done.0 } else { &mut done.1 }) += 1;
        drop(state);
        // SAFETY: the leader keeps the work alive until no thread executes it.
        let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(piece) }));
        let mut state = self.state();
        if let Some(job) = &mut state.job {
            job.inside -= 1;
            if let Err(panic) = done {
                job.panic.get_or_insert(panic);
            }
            if job.inside == 0 && state.parked > 0 {
                self.changed.notify_all();
            }
        }
        (state, true)
    }

    fn work(&self, node: usize) {
        let mut state = self.state();
        while !state.stop {
            let helped;
            (state, helped) = self.help(state, node);
            if !helped && !state.stop {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                state.woken += 1;
            }
        }
    }
}

impl Crew {
    /// Creates a crew with this number of worker threads, which are distributed over the NUMA nodes
    /// in turn. If the system cannot start all of them, the callers do their work.
    pub fn new(workers: usize, topology: Topology) -> Self {
        let shared = Arc::<Shared>::default();
        let spawn = |number: usize| {
            let (shared, topology) = (shared.clone(), topology.clone());
            let node = number % topology.nodes();
            let work = move || {
                topology.bind_this_thread(node);
                shared.work(node);
            };
            std::thread::Builder::new().name(format!("ordna-pi-{number}")).spawn(work).ok()
        };
        let workers = (0..workers).filter_map(spawn).collect();
        Self { shared, topology, workers }
    }

    /// Returns the number of NUMA nodes.
    pub fn nodes(&self) -> usize {
        self.topology.nodes()
    }

    /// Returns the numbers of pieces that threads of their own NUMA node and other threads have
    /// done.
    pub fn done(&self) -> (usize, usize) {
        self.shared.state().done
    }

    /// Waits for the turn, and meanwhile works for the current batch.
    pub fn enter(&self) -> Turn<'_> {
        let mut state = self.shared.state();
        while state.busy {
            let helped;
            (state, helped) = self.shared.help(state, self.topology.node_of_this_thread());
            if !helped && state.busy {
                point("pi.enter.before_park");
                state = self.shared.park(state);
            }
        }
        state.busy = true;
        Turn(self)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker's panics are caught and passed to the leader, so there is none to report.
            let _ = worker.join();
        }
    }
}

/// The right to write, which is given back on drop.
pub struct Turn<'a>(&'a Crew);

impl Turn<'_> {
    /// Does the pieces, which are grouped by their NUMA nodes. Returns when all are done.
    ///
    /// # Panics
    /// Panics if the work of a piece panics, after all others are done.
    pub fn run(&self, pieces: Vec<VecDeque<usize>>, work: &Work<'_>) {
        let shared = &self.0.shared;
        let node = self.0.topology.node_of_this_thread();
        let mut state = shared.state();
        let work: *const Work<'_> = work;
        // SAFETY: only the lifetime is changed. The work is borrowed for this call, which returns
        // only when the job is removed and no thread executes it.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        state.job = Some(Job { work, left: pieces, inside: 0, panic: None });
        if state.parked > 0 {
            shared.changed.notify_all();
        }
        if state.idle > 0 {
            shared.work.notify_all();
        }
        loop {
            let helped;
            (state, helped) = shared.help(state, node);
            if !helped {
                let nobody =
                    |state: &CrewState| state.job.as_ref().is_none_or(|job| job.inside == 0);
                if nobody(&state) {
                    break;
                }
                drop(state);
                point("pi.run.before_wait");
                state = shared.state();
                if !nobody(&state) {
                    state = shared.park(state);
                }
            }
        }
        let panic = state.job.take().and_then(|job| job.panic);
        drop(state);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let shared = &self.0.shared;
        let mut state = shared.state();
        state.busy = false;
        if state.parked > 0 {
            shared.changed.notify_all();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn until(what: &str, crew: &Crew, is_so: impl Fn(&CrewState) -> bool) {
        let begin = Instant::now();
        while !is_so(&crew.shared.state()) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_turn_without_a_job_wakes_no_worker() {
        let crew = Crew::new(2, Topology::single());
        until("workers wait", &crew, |state| state.idle == 2);
        (0..500).for_each(|_| drop(crew.enter()));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(crew.shared.state().woken, 0);
        let turn = crew.enter();
        turn.run(vec![(0..8).collect()], &|_| std::thread::sleep(Duration::from_millis(2)));
        drop(turn);
        assert!(crew.shared.state().woken > 0);
    }
}
