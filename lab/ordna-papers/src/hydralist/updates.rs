//! How splits and merges get into the search layers: logs, the combiner, the updaters.
//!
//! # Contract
//! [`Updates::log`] is called under the locks of the split or merge that it tells of. It appends to
//! the log of the calling thread. [`Updates::combine`] empties all logs, sorts what it found by
//! time, and gives every replica the same merged log; [`Updates::apply`] carries a replica's merged
//! logs out. Both may be called by any thread: the combiner and each replica have a lock, so that
//! one thread at a time is at work on each. In the background one thread combines, and one per
//! replica applies (one thread does both if there is one replica).
//!
//! # Order
//! Times order what follows from each other (`Clock`), but a merged log is no clean cut: a thread
//! may log a removal after the combiner has passed its log. The insertion before it, in a log that
//! the combiner comes to later, or earlier in the next round, is then in another merged log. So a
//! step decides by the state of the node and not by the order of steps:
//!
//! - an insertion of a dead node is skipped. A node dies before its removal is logged, so an
//!   insertion that comes after the removal finds it dead;
//! - a removal takes an anchor out only if it leads to that very node. A node with the same anchor
//!   that came later stays.
//!
//! From both: when every step has been carried out, in whatever order, a replica holds the anchors
//! of exactly the live nodes. If a node lives, its insertion was carried out; nothing that is
//! carried out later replaces it, for other nodes of its anchor died before it was made.
//!
//! # Memory
//! A logged node has a reference for each replica and each step, given up when the step is carried
//! out; an anchor in a replica keeps its reference. So a node is retired after it has left every
//! replica and every log. A merged log is freed by the last replica that carries it out. The paper
//! counts epochs (two rounds of the combiner) and compares ids of merged logs to the same end
//! (§4.4.2, §4.4.3); counts do not depend on when threads run.
//!
//! # Lag
//! The number of logged entries is bounded: a writer that finds more than the limit waits,
//! holding nothing, until the replicas are within it. Threads in the background sleep while there
//! is nothing to do.
//!
//! # Panics
//! A search layer that panics in a step loses that step and nothing else: the thread in the
//! background goes on with the next one, so that no thread waits for it in vain. The node of the
//! lost step keeps its reference and is never freed. If steps are carried out by the writer, its
//! call panics after the write.
//!
//! Source: HydraList §4.4, §4.5.

#![expect(unsafe_code, reason = "log entries hold nodes by reference count")]

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::search_layer::{AnchorAddress, LayerStep, SearchLayer};
use ordna_base::Key;
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use ordna_base::sync::lock::{Condvar, Mutex, MutexGuard};
use ordna_base::sync::{
    StripedCounter, THREAD_STRIPES, fault, notice, point, stripe_of_this_thread,
};

/// How long the combiner gathers before it merges again (§4.4.1).
const INTERVAL: Duration = Duration::from_micros(200);

/// How many operations a counted one stands for; a model runs few.
const SAMPLE: i64 = if cfg!(any(loom, shuttle)) { 1 } else { 64 };

/// 0, and with each 64th call of a thread 64.
#[inline]
fn sampled() -> i64 {
    thread_local! {
        static CALLS: Cell<i64> = const { Cell::new(0) };
    }
    if SAMPLE == 1 {
        return 1;
    }
    let calls = CALLS.get().wrapping_add(1);
    CALLS.set(calls);
    if calls % SAMPLE == 0 { SAMPLE } else { 0 }
}

/// A node with an anchor that can die and is kept by references: a data node, or a model's
/// stand-in.
///
/// # Safety
/// The anchor and its address never change. The value is not freed before its last reference is
/// given up and all guards of that moment have ended: those of the collector whose guards its owner
/// passes to [`Updates::apply`] and [`Updates::run`], and holds while it uses a search layer.
pub unsafe trait Anchored: Send + Sync + 'static {
    /// The kind of the anchor.
    type Key: Key + ?Sized;

    /// Its anchor.
    fn anchor(&self) -> &Self::Key;

    /// Where its anchor stands, as [`SearchLayer::apply`] wants it; the provenance is that of the
    /// whole value, and exposed.
    fn place(&self) -> AnchorAddress;

    /// The address of the value whose [`Anchored::place`] this is.
    fn at_place(place: AnchorAddress) -> usize;

    /// Whether its range belongs to another node now. Once true it stays so.
    fn is_dead(&self) -> bool;

    /// Gives up references.
    ///
    /// # Safety
    /// They are the caller's; the caller does not use the value by them afterwards.
    unsafe fn release(&self, times: usize, guard: &Guard<'_>);
}

/// A change of the data list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEvent {
    /// It came by a split.
    Made,
    /// It was merged into its predecessor.
    Died,
}

/// A line of a log. Holds one reference to the node for each replica.
struct LogLine<T> {
    time: u64,
    event: NodeEvent,
    node: *const T,
}

impl<T> Clone for LogLine<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for LogLine<T> {}

// SAFETY: a counted reference to something that threads share.
unsafe impl<T: Anchored> Send for LogLine<T> {}
// SAFETY: as above.
unsafe impl<T: Anchored> Sync for LogLine<T> {}

#[repr(align(128))]
struct ThreadLog<T>(Mutex<Vec<LogLine<T>>>);

struct Replica<L, T> {
    layer: L,
    merged: Mutex<VecDeque<Arc<[LogLine<T>]>>>,
    /// Held by the one thread that applies.
    turn: Mutex<()>,
    /// How many lines have been carried out.
    applied: AtomicUsize,
    /// How many of those lost to panics at the end of a log count when the next run of steps has
    /// ended.
    owed: AtomicUsize,
    /// About how many operations began here; counted only if there are several replicas.
    reads: StripedCounter,
}

/// Logs, and the replicas that they are for.
pub struct Updates<T: Anchored, L> {
    logs: Box<[ThreadLog<T>]>,
    replicas: Box<[Replica<L, T>]>,
    /// How many lines were logged, and how many of them merged.
    logged: AtomicUsize,
    merged: AtomicUsize,
    combiner: Mutex<()>,
    /// Most lines that may be logged and not applied when a writer goes on.
    limit: usize,
    /// Set to stop the threads.
    stop: Mutex<bool>,
    work: Condvar,
    progress: Condvar,
    /// The combiner sleeps, or is about to.
    idle: AtomicBool,
    /// How many threads wait for progress.
    waiting: AtomicUsize,
    /// How often a writer had to wait.
    pub stalls: StripedCounter,
    /// Steps in which a search layer panicked.
    pub skipped: StripedCounter,
    /// How often threads in the background looked for work.
    pub looks: StripedCounter,
}

/// A merged log that is being carried out. When it is dropped, be it by a panic of the search
/// layer, what was done counts and the rest is the first thing to do: be it no step, but the end of
/// the run, without which jumps may not see the steps before.
struct Turn<'a, T: Anchored, L> {
    updates: &'a Updates<T, L>,
    replica: &'a Replica<L, T>,
    merged: &'a [LogLine<T>],
    done: usize,
    /// A step is under way, or the end of the run is.
    in_step: bool,
    panicked: bool,
}

impl<T: Anchored, L> Drop for Turn<'_, T, L> {
    fn drop(&mut self) {
        let rest = self.merged.get(self.done..).unwrap_or_default();
        let ends_run = rest.is_empty();
        let is_left = if ends_run {
            notice!("hydralist.apply.end", self.in_step)
        } else {
            !fault!("hydralist.apply.rest")
        };
        if is_left {
            lock(&self.replica.merged).push_front(rest.into());
        }
        let mut done = self.done;
        if self.panicked {
            self.updates.skipped.add(1);
        }
        // Relaxed: both are under the turn's lock. A thread that waits for the last step waits for
        // the end.
        if ends_run && self.in_step {
            self.replica.owed.fetch_add(1, Ordering::Relaxed);
            done -= 1;
        } else if ends_run {
            done += self.replica.owed.swap(0, Ordering::Relaxed);
        }
        // SeqCst: see `wait_for`.
        self.replica.applied.fetch_add(done, Ordering::SeqCst);
        if self.updates.waiting.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.updates.stop));
            self.updates.progress.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks are whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Anchored, L: SearchLayer<T::Key>> Updates<T, L> {
    /// Empty logs, and this many empty replicas (at least one).
    pub fn new(replicas: usize, limit: usize) -> Self {
        let replica = |_| Replica {
            layer: L::default(),
            merged: Mutex::new(VecDeque::new()),
            turn: Mutex::new(()),
            applied: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            reads: StripedCounter::new(),
        };
        // Under loom every thread has the same stripe.
        let logs = if cfg!(loom) { 2 } else { THREAD_STRIPES };
        Self {
            logs: (0..logs).map(|_| ThreadLog(Mutex::new(Vec::new()))).collect(),
            replicas: (0..replicas.max(1)).map(replica).collect(),
            logged: AtomicUsize::new(0),
            merged: AtomicUsize::new(0),
            combiner: Mutex::new(()),
            limit,
            stop: Mutex::new(false),
            work: Condvar::new(),
            progress: Condvar::new(),
            idle: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            stalls: StripedCounter::new(),
            skipped: StripedCounter::new(),
            looks: StripedCounter::new(),
        }
    }

    /// How many replicas there are.
    pub fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// The search layer of a NUMA node.
    #[inline]
    pub fn layer(&self, node: usize) -> &L {
        let replica = &self.replicas[node];
        if self.replicas.len() > 1 {
            let operations = sampled();
            if operations > 0 {
                replica.reads.add(operations);
            }
        }
        &replica.layer
    }

    /// The search layers of all replicas.
    pub fn layers(&self) -> impl Iterator<Item = &L> {
        self.replicas.iter().map(|replica| &replica.layer)
    }

    /// About how many operations began at each replica, if there are several: each thread counts one
    /// in 64, for all of them.
    pub fn reads(&self) -> Vec<usize> {
        self.replicas.iter().map(|replica| replica.reads.sum()).collect()
    }

    /// Appends to the calling thread's log. The caller holds the locks of the split or merge, and
    /// gives the line a reference to the node for each replica.
    ///
    /// # Safety
    /// That of [`Updates::log_at`].
    pub unsafe fn log(&self, time: u64, event: NodeEvent, node: &T) {
        let log = stripe_of_this_thread() % self.logs.len();
        // SAFETY: the caller's promise.
        unsafe { self.log_at(log, time, event, node) };
    }

    /// Appends to one of the logs.
    ///
    /// # Safety
    /// The caller gives up a reference to the node for each replica.
    pub unsafe fn log_at(&self, log: usize, time: u64, event: NodeEvent, node: &T) {
        let mut lines = lock(&self.logs[log].0);
        lines.push(LogLine { time, event, node });
        // Within the lock: the combiner never has merged more than was counted. SeqCst: see `wake`.
        self.logged.fetch_add(1, Ordering::SeqCst);
    }

    /// Lines that the slowest replica has yet to carry out.
    pub fn lag(&self) -> usize {
        let logged = self.logged.load(Ordering::SeqCst);
        let slowest =
            self.replicas.iter().map(|replica| replica.applied.load(Ordering::SeqCst)).min();
        logged.saturating_sub(slowest.unwrap_or(logged))
    }

    /// Merges what is in the logs and gives it to all replicas; returns how many lines it was.
    pub fn combine(&self) -> usize {
        let _turn = lock(&self.combiner);
        let mut lines: Vec<LogLine<T>> = Vec::new();
        for log in &self.logs {
            point("hydralist.combine.before_log");
            lines.append(&mut lock(&log.0));
        }
        if lines.is_empty() {
            return 0;
        }
        if !fault!("hydralist.combine.sort") {
            lines.sort_by_key(|line| line.time);
        }
        let merged: Arc<[LogLine<T>]> = lines.into();
        for replica in &self.replicas {
            lock(&replica.merged).push_back(merged.clone());
        }
        self.merged.fetch_add(merged.len(), Ordering::SeqCst);
        merged.len()
    }

    /// Carries out all that was merged for one replica.
    pub fn apply(&self, replica: usize, guard: &Guard<'_>) {
        let replica = &self.replicas[replica];
        let _turn = lock(&replica.turn);
        loop {
            let merged = lock(&replica.merged).pop_front();
            let Some(merged) = merged else { return };
            let mut turn = Turn {
                updates: self,
                replica,
                merged: &merged,
                done: 0,
                in_step: true,
                panicked: true,
            };
            for line in &*merged {
                turn.done += 1;
                // SAFETY: the line has a reference for this replica.
                unsafe { Self::carry_out(&replica.layer, *line, guard) };
            }
            turn.in_step = false;
            // SAFETY: what leaves the layer leaves the layer's reference behind.
            replica.layer.publish(|left| unsafe { Self::node_at(left).release(1, guard) });
            turn.panicked = false;
        }
    }

    /// # Safety
    /// The line's reference for this replica is given up here.
    unsafe fn carry_out(layer: &L, line: LogLine<T>, guard: &Guard<'_>) {
        // SAFETY: alive by the reference.
        let node = unsafe { &*line.node };
        let place = node.place();
        // SAFETY: the node is kept as long as the layer leads to it, by the reference that the
        // line's becomes, and then as long as any thread's guard; all calls on layers are under
        // one.
        let apply = |step| unsafe { layer.apply(node.anchor(), step) };
        let (left, references) = match line.event {
            NodeEvent::Made if notice!("hydralist_updates.dead", node.is_dead()) => (None, 1),
            // The line's reference becomes the layer's.
            NodeEvent::Made => (apply(LayerStep::Insert(place)), 0),
            NodeEvent::Died if fault!("hydralist_updates.pointer") => {
                let mut there = None;
                layer.for_each(|anchor, place| {
                    if anchor == node.anchor() {
                        there = Some(place);
                    }
                });
                (there.and_then(|place| apply(LayerStep::Remove(place))), 1)
            }
            NodeEvent::Died => (apply(LayerStep::Remove(place)), 1),
        };
        // SAFETY: a place that leaves the layer leaves the layer's reference behind; the line's is
        // ours.
        unsafe {
            if let Some(left) = left {
                Self::node_at(left).release(1, guard);
            }
            if references > 0 {
                node.release(references, guard);
            }
        }
    }

    /// The node of a place.
    ///
    /// # Safety
    /// The place came from a search layer of this index, under a guard that is held for `'g`, or
    /// with the layer's reference.
    #[inline]
    pub unsafe fn node_at<'g>(place: AnchorAddress) -> &'g T {
        // SAFETY: places are made from nodes in `carry_out`; alive by the caller.
        unsafe { &*std::ptr::with_exposed_provenance::<T>(T::at_place(place)) }
    }

    /// Merges and carries out everything, on the calling thread.
    pub fn run(&self, guard: &Guard<'_>) {
        self.combine();
        for replica in 0..self.replicas.len() {
            self.apply(replica, guard);
        }
    }

    /// Wakes the combiner if it sleeps.
    #[inline]
    pub fn wake(&self) {
        // SeqCst, as in `combine_in_background`: of "sleeps" and "has logged", one side sees the
        // other's.
        if self.idle.load(Ordering::SeqCst) {
            drop(lock(&self.stop));
            self.work.notify_all();
        }
    }

    /// Waits until the lag is within the limit. A caller that holds a guard, as a batch does, holds
    /// up the freeing of memory meanwhile, but not the updater.
    pub fn wait_for_limit(&self) {
        if notice!("hydralist.log.pressure", self.lag() > self.limit) {
            self.stalls.add(1);
            self.wait_for(|| self.lag() <= self.limit);
        }
    }

    /// Waits until all that is logged now has been carried out everywhere.
    pub fn wait_until_applied(&self) {
        let logged = self.logged.load(Ordering::SeqCst);
        let is_there = || {
            let mut applied = self.replicas.iter().map(|r| r.applied.load(Ordering::SeqCst));
            applied.all(|applied| applied >= logged)
        };
        self.wait_for(is_there);
    }

    fn wait_for(&self, done: impl Fn() -> bool) {
        let mut stop = lock(&self.stop);
        // SeqCst: of "I wait" and "I have applied", one side sees the other's.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while !done() && !*stop {
            self.work.notify_all();
            stop = self.progress.wait(stop).unwrap_or_else(PoisonError::into_inner);
        }
        drop(stop);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Combines until told to stop, and applies too if there is one replica.
    pub fn combine_in_background(&self, collector: &Collector) {
        let has_work = || {
            // Announced before the look: a writer logs first and looks here second, both SeqCst.
            self.idle.store(true, Ordering::SeqCst);
            self.logged.load(Ordering::SeqCst) != self.merged.load(Ordering::SeqCst)
                || self.replicas.len() == 1 && !lock(&self.replicas[0].merged).is_empty()
        };
        while self.sleep(has_work) {
            self.idle.store(false, Ordering::SeqCst);
            self.combine();
            if self.replicas.len() == 1 {
                self.apply(0, &collector.pin());
            } else {
                drop(lock(&self.stop));
                self.work.notify_all();
            }
            let stop = lock(&self.stop);
            if !*stop && self.waiting.load(Ordering::SeqCst) == 0 {
                drop(self.work.wait_timeout(stop, INTERVAL));
            }
        }
    }

    /// Applies to one replica until told to stop.
    pub fn apply_in_background(&self, replica: usize, collector: &Collector) {
        while self.sleep(|| !lock(&self.replicas[replica].merged).is_empty()) {
            self.apply(replica, &collector.pin());
        }
    }

    /// Sleeps until there is work; `false` if it is time to stop.
    fn sleep(&self, has_work: impl Fn() -> bool) -> bool {
        let mut stop = lock(&self.stop);
        loop {
            if *stop {
                return false;
            }
            self.looks.add(1);
            if has_work() {
                return true;
            }
            stop = self.work.wait(stop).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells the threads to stop.
    pub fn stop(&self) {
        *lock(&self.stop) = true;
        self.work.notify_all();
        self.progress.notify_all();
    }

    /// Bytes of logs, and of each search layer.
    pub fn memory_usage(&self) -> (usize, Vec<usize>) {
        let lines: usize = self.logs.iter().map(|log| lock(&log.0).capacity()).sum();
        // All replicas share what was merged; the slowest has the most of it.
        let waiting = |replica: &Replica<L, T>| -> usize {
            lock(&replica.merged).iter().map(|merged| merged.len()).sum()
        };
        let merged = self.replicas.iter().map(waiting).max().unwrap_or(0);
        let logs = size_of_val(&*self.logs) + (lines + merged) * size_of::<LogLine<T>>();
        (logs, self.layers().map(SearchLayer::memory_usage).collect())
    }
}
