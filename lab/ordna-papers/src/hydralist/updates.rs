//! Updates of the search layers after splits and merges: logs, the combiner, the updaters.
//!
//! # Contract
//! [`Updates::log`] is called under the locks of the split or merge that it records, and appends to
//! the log of the calling thread. [`Updates::combine`] empties all logs, sorts their lines by time,
//! and passes the same merged log to every replica. [`Updates::apply`] applies the merged logs of a
//! replica. Any thread may call both: the combiner and each replica have a lock, so that one thread
//! at a time works on each. In the background, one thread combines, and one per replica applies
//! (the same thread does both if there is a single replica).
//!
//! # Order
//! Times order events that depend on each other (`Clock`), but a merged log does not contain all
//! lines up to some time: a thread may log a removal after the combiner has passed its log. The
//! insertion before it may be in a log that the combiner visits later in this round, or earlier in
//! the next one, and is then in another merged log. So an update depends on the state of the node
//! and not on the order of updates:
//!
//! - an insertion of a dead node is skipped. A node dies before its removal is logged, so an
//!   insertion that is applied after the removal finds it dead;
//! - a removal removes an anchor only if it leads to that very node. A later node with the same
//!   anchor stays.
//!
//! Therefore, when all updates have been applied, in whatever order, a replica has the anchors of
//! exactly the live nodes. If a node lives, its insertion was applied. No later update replaces it,
//! because other nodes with its anchor died before it was created.
//!
//! # Memory
//! A logged node has a reference for each replica and each log line, which is dropped when the line
//! is applied. An anchor in a replica keeps its reference. So a node is retired after it has left
//! every replica and every log. The last replica that applies a merged log frees it. For the same
//! purpose, the paper counts epochs (two rounds of the combiner) and compares ids of merged logs
//! (§4.4.2, §4.4.3). Reference counts do not depend on when threads run.
//!
//! # Lag
//! The number of logged lines is bounded: a writer that finds more than the limit waits without
//! locks until the replicas are within it. Background threads sleep while there is no work.
//!
//! # Panics
//! If a search layer panics in an update, only that update is lost: the background thread continues
//! with the next one, so that no thread waits forever. The node of the lost update keeps its
//! reference and is never freed. If the writer itself applies updates, its call panics after the
//! write.
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

/// Time for which the combiner gathers lines before it merges again (§4.4.1).
const INTERVAL: Duration = Duration::from_micros(200);

/// Number of operations for each counted one. A model runs only few.
const SAMPLE: i64 = if cfg!(any(loom, shuttle)) { 1 } else { 64 };

/// Returns 64 for each 64th call of a thread, and otherwise 0.
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

/// A node with an anchor that can die and is kept alive by references: a data node, or its
/// replacement in a model.
///
/// # Safety
/// The anchor and its address never change. The value is not freed before its last reference is
/// dropped and all guards of that moment have ended. These are guards of the collector whose guards
/// its owner passes to [`Updates::apply`] and [`Updates::run`], and holds while it uses a search
/// layer.
pub unsafe trait Anchored: Send + Sync + 'static {
    /// Type of the anchor.
    type Key: Key + ?Sized;

    /// Returns the anchor.
    fn anchor(&self) -> &Self::Key;

    /// Returns the address of the anchor, in the form that [`SearchLayer::apply`] requires. Its
    /// provenance is that of the whole value, and exposed.
    fn place(&self) -> AnchorAddress;

    /// Returns the address of the value with this [`Anchored::place`].
    fn at_place(place: AnchorAddress) -> usize;

    /// Returns whether its range now belongs to another node. Once it is `true`, it stays so.
    fn is_dead(&self) -> bool;

    /// Drops references.
    ///
    /// # Safety
    /// The references belong to the caller, which does not use the value through them afterwards.
    unsafe fn release(&self, times: usize, guard: &Guard<'_>);
}

/// A change of the data list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEvent {
    /// A split has created the node.
    Made,
    /// The node was merged into its predecessor.
    Died,
}

/// A line of a log. Has one reference to the node for each replica.
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

// SAFETY: a counted reference to a value that threads share.
unsafe impl<T: Anchored> Send for LogLine<T> {}
// SAFETY: as above.
unsafe impl<T: Anchored> Sync for LogLine<T> {}

#[repr(align(128))]
struct ThreadLog<T>(Mutex<Vec<LogLine<T>>>);

struct Replica<L, T> {
    layer: L,
    merged: Mutex<VecDeque<Arc<[LogLine<T>]>>>,
    /// Locked by the thread that applies.
    turn: Mutex<()>,
    /// Number of lines that were applied.
    applied: AtomicUsize,
    /// Number of those lines that panicked at the end of a log. They count as applied when the next
    /// run of updates has ended.
    owed: AtomicUsize,
    /// Approximate number of operations that began here, counted only if there are several
    /// replicas.
    reads: StripedCounter,
}

/// The logs, and the replicas that they update.
pub struct Updates<T: Anchored, L> {
    logs: Box<[ThreadLog<T>]>,
    replicas: Box<[Replica<L, T>]>,
    /// Number of lines that were logged, and of those that were merged.
    logged: AtomicUsize,
    merged: AtomicUsize,
    combiner: Mutex<()>,
    /// Maximum number of lines that are logged and not applied when a writer continues.
    limit: usize,
    /// Set when the threads must stop.
    stop: Mutex<bool>,
    work: Condvar,
    progress: Condvar,
    /// Whether the combiner sleeps or is about to.
    idle: AtomicBool,
    /// Number of threads that wait for progress.
    waiting: AtomicUsize,
    /// Number of times that a writer had to wait.
    pub stalls: StripedCounter,
    /// Number of updates in which a search layer panicked.
    pub skipped: StripedCounter,
    /// Number of times that background threads looked for work.
    pub looks: StripedCounter,
}

/// A merged log that is being applied. When it is dropped, even by a panic of the search layer, the
/// applied lines count, and the rest is put first in the queue. The rest may have no lines, but
/// only the end of the run, without which jumps may not see the updates before it.
struct Turn<'a, T: Anchored, L> {
    updates: &'a Updates<T, L>,
    replica: &'a Replica<L, T>,
    merged: &'a [LogLine<T>],
    done: usize,
    /// Whether an update or the end of the run is in progress.
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
        // Relaxed: both are accessed under the lock of the turn. A thread that waits for the last
        // update waits for the end.
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
    // The data under these locks are consistent between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Anchored, L: SearchLayer<T::Key>> Updates<T, L> {
    /// Creates empty logs, and this many empty replicas (at least one).
    pub fn new(replicas: usize, limit: usize) -> Self {
        let replica = |_| Replica {
            layer: L::default(),
            merged: Mutex::new(VecDeque::new()),
            turn: Mutex::new(()),
            applied: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            reads: StripedCounter::new(),
        };
        // Under loom, every thread has the same stripe.
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

    /// Returns the number of replicas.
    pub fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// Returns the search layer of a NUMA node.
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

    /// Returns the search layers of all replicas.
    pub fn layers(&self) -> impl Iterator<Item = &L> {
        self.replicas.iter().map(|replica| &replica.layer)
    }

    /// Returns the approximate number of operations that began at each replica, if there are
    /// several. Each thread counts one operation in 64.
    pub fn reads(&self) -> Vec<usize> {
        self.replicas.iter().map(|replica| replica.reads.sum()).collect()
    }

    /// Appends to the calling thread's log. The caller holds the locks of the split or merge, and
    /// gives the line a reference to the node for each replica.
    ///
    /// # Safety
    /// As for [`Updates::log_at`].
    pub unsafe fn log(&self, time: u64, event: NodeEvent, node: &T) {
        let log = stripe_of_this_thread() % self.logs.len();
        // SAFETY: the caller upholds the contract.
        unsafe { self.log_at(log, time, event, node) };
    }

    /// Appends to one of the logs.
    ///
    /// # Safety
    /// The caller gives the line a reference to the node for each replica.
    pub unsafe fn log_at(&self, log: usize, time: u64, event: NodeEvent, node: &T) {
        let mut lines = lock(&self.logs[log].0);
        lines.push(LogLine { time, event, node });
        // Counted under the lock, so that the combiner has never merged more lines than were
        // counted. SeqCst: see `wake`.
        self.logged.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of lines that the slowest replica has not applied yet.
    pub fn lag(&self) -> usize {
        let logged = self.logged.load(Ordering::SeqCst);
        let slowest =
            self.replicas.iter().map(|replica| replica.applied.load(Ordering::SeqCst)).min();
        logged.saturating_sub(slowest.unwrap_or(logged))
    }

    /// Merges the contents of the logs and passes them to all replicas. Returns the number of
    /// lines.
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

    /// Applies everything that was merged for one replica.
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
            // SAFETY: for each address that leaves the layer, this thread takes over the layer's
            // reference.
            replica.layer.publish(|left| unsafe { Self::node_at(left).release(1, guard) });
            turn.panicked = false;
        }
    }

    /// # Safety
    /// This call drops the line's reference for this replica.
    unsafe fn carry_out(layer: &L, line: LogLine<T>, guard: &Guard<'_>) {
        // SAFETY: the reference keeps the node alive.
        let node = unsafe { &*line.node };
        let place = node.place();
        // SAFETY: as long as the layer leads to the node, the reference that the line passes to it
        // keeps the node alive, and then any thread's guard does. All calls of layers are under a
        // guard.
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
        // SAFETY: for each address that leaves the layer, this thread takes over the layer's
        // reference; that of the line is already its own.
        unsafe {
            if let Some(left) = left {
                Self::node_at(left).release(1, guard);
            }
            if references > 0 {
                node.release(references, guard);
            }
        }
    }

    /// Returns the node of an address.
    ///
    /// # Safety
    /// The address came from a search layer of this index, under a guard that is held for `'g`, or
    /// with the layer's reference.
    #[inline]
    pub unsafe fn node_at<'g>(place: AnchorAddress) -> &'g T {
        // SAFETY: addresses are created from nodes in `carry_out`, and the caller ensures that the
        // node is alive.
        unsafe { &*std::ptr::with_exposed_provenance::<T>(T::at_place(place)) }
    }

    /// Merges and applies everything, on the calling thread.
    pub fn run(&self, guard: &Guard<'_>) {
        self.combine();
        for replica in 0..self.replicas.len() {
            self.apply(replica, guard);
        }
    }

    /// Wakes the combiner if it sleeps.
    #[inline]
    pub fn wake(&self) {
        // SeqCst, as in `combine_in_background`: either the combiner sees the log line, or this
        // thread sees that it sleeps.
        if self.idle.load(Ordering::SeqCst) {
            drop(lock(&self.stop));
            self.work.notify_all();
        }
    }

    /// Waits until the lag is within the limit. If the caller holds a guard, as a batch does, this
    /// delays reclamation, but not the updater.
    pub fn wait_for_limit(&self) {
        if notice!("hydralist.log.pressure", self.lag() > self.limit) {
            self.stalls.add(1);
            self.wait_for(|| self.lag() <= self.limit);
        }
    }

    /// Waits until all lines that are logged now have been applied everywhere.
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
        // SeqCst: either the updater sees that this thread waits, or this thread sees what was
        // applied.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while !done() && !*stop {
            self.work.notify_all();
            stop = self.progress.wait(stop).unwrap_or_else(PoisonError::into_inner);
        }
        drop(stop);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Combines until it is stopped. If there is a single replica, applies as well.
    pub fn combine_in_background(&self, collector: &Collector) {
        let has_work = || {
            // Set before the check: a writer logs first and then checks this flag, both with
            // SeqCst.
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

    /// Applies to one replica until it is stopped.
    pub fn apply_in_background(&self, replica: usize, collector: &Collector) {
        while self.sleep(|| !lock(&self.replicas[replica].merged).is_empty()) {
            self.apply(replica, &collector.pin());
        }
    }

    /// Sleeps until there is work. Returns `false` if the thread must stop.
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

    /// Makes the threads stop.
    pub fn stop(&self) {
        *lock(&self.stop) = true;
        self.work.notify_all();
        self.progress.notify_all();
    }

    /// Returns the sizes in bytes of the logs, and of each search layer.
    pub fn memory_usage(&self) -> (usize, Vec<usize>) {
        let lines: usize = self.logs.iter().map(|log| lock(&log.0).capacity()).sum();
        // All replicas share the merged lines, and the slowest has the most of them.
        let waiting = |replica: &Replica<L, T>| -> usize {
            lock(&replica.merged).iter().map(|merged| merged.len()).sum()
        };
        let merged = self.replicas.iter().map(waiting).max().unwrap_or(0);
        let logs = size_of_val(&*self.logs) + (lines + merged) * size_of::<LogLine<T>>();
        (logs, self.layers().map(SearchLayer::memory_usage).collect())
    }
}
