//! Turns among writers, and the threads that share the work of the one whose turn it is.
//!
//! # Contract
//! Batches with writes are admitted one after the other: [`Crew::enter`] gives the *turn* to one
//! caller at a time. Its batch is cut into pieces, and [`Turn::run`] shares them among the threads
//! at hand: the caller itself, the pool's workers, and the callers that wait for their own turn.
//! Each piece is done once, by one thread; `run` returns when all are done.
//!
//! # Progress
//! Waiting callers are parked on a condition variable and woken by a job or the end of a turn; idle
//! workers wait on one of their own, which only a job notifies. A caller that comes when the turn is
//! free takes it, before those that are still waking up: turns in the order of their callers would
//! cost single writes a switch of threads each, forty times as much where two threads load. So a
//! caller may wait for any number of turns. A reader comes here only after too many restarts.
//!
//! # NUMA
//! Pieces belong to the node that holds their part of the key range, and pieces are of about equal
//! size: a node's share of them is its share of the queries. Threads take pieces of their own node
//! first and then what other nodes have left. So the threads at work on a node's queries are in
//! proportion to them. Workers are bound to their node; the data nodes that they make there are of its
//! memory. A node whose threads are used up has its work offloaded (§4.3.2, §4.3.3),
//! without a plan made beforehand.
//!
//! Source: the PI paper, Algorithm 1; that waiting callers lend a hand is ours.

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

/// A job under way: pieces not yet taken, and the threads at work.
struct Job {
    work: *const Work<'static>,
    /// Pieces not taken, by NUMA node.
    left: Vec<VecDeque<usize>>,
    inside: usize,
    panic: Option<Box<dyn Any + Send>>,
}

// SAFETY: the work is `Sync`, and `Turn::run` keeps it alive while the job is there.
unsafe impl Send for Job {}

#[derive(Default)]
struct CrewState {
    busy: bool,
    stop: bool,
    job: Option<Job>,
    /// Callers that wait on `changed`.
    parked: usize,
    /// Workers that wait on `work`, and how often one was woken.
    idle: usize,
    woken: usize,
    /// Pieces done by threads of their NUMA node, and by others.
    done: (usize, usize),
}

/// The turn, and the pool.
pub struct Crew {
    shared: Arc<Shared>,
    topology: Topology,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<CrewState>,
    /// The turn is free, a piece of a job is to be had, or a job's last piece is done.
    changed: Condvar,
    /// Work for the pool: a job has come, or it is time to stop. Of its own, so that a single write
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

    /// Does one piece of the job, if there is one left; prefers those of the NUMA node.
    fn help<'a>(
        &'a self,
        mut state: MutexGuard<'a, CrewState>,
        node: usize,
    ) -> (MutexGuard<'a, CrewState>, bool) {
        let Some(job) = &mut state.job else { return (state, false) };
        let own = job.left.get_mut(node).and_then(VecDeque::pop_front);
        let is_own = own.is_some();
        // Offload: what other nodes' threads have not come to, the fullest node first.
        let piece = own.or_else(|| job.left.iter_mut().max_by_key(|left| left.len())?.pop_back());
        let Some(piece) = piece else { return (state, false) };
        job.inside += 1;
        let work = job.work;
        let done = &mut state.done;
        *(if is_own { &mut done.0 } else { &mut done.1 }) += 1;
        drop(state);
        // SAFETY: the leader keeps the work alive until no thread is inside.
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
    /// A crew with this many worker threads, dealt out among the NUMA nodes in turn. Threads that
    /// the system refuses are missing, and their work is done by the callers.
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

    /// Number of NUMA nodes.
    pub fn nodes(&self) -> usize {
        self.topology.nodes()
    }

    /// Pieces done by threads of their own NUMA node, and by others.
    pub fn done(&self) -> (usize, usize) {
        self.shared.state().done
    }

    /// Waits for the turn; works for the batch in front meanwhile.
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
            // A worker's panics are caught and handed to the leader: there is none to report.
            let _ = worker.join();
        }
    }
}

/// The right to write; given back on drop.
pub struct Turn<'a>(&'a Crew);

impl Turn<'_> {
    /// Does the pieces, given by the NUMA nodes that they belong to, and returns when all are done.
    ///
    /// # Panics
    /// If the work of a piece does, once all others are done.
    pub fn run(&self, pieces: Vec<VecDeque<usize>>, work: &Work<'_>) {
        let shared = &self.0.shared;
        let node = self.0.topology.node_of_this_thread();
        let mut state = shared.state();
        let work: *const Work<'_> = work;
        // SAFETY: only the lifetime is changed. The work is borrowed for this call, which does not
        // return before the job is gone and no thread is inside.
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
