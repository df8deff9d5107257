//! The background rebuild of the index layer, concurrent with batches.
//!
//! # Protocol
//! One rebuild runs at a time, under the rebuild lock, which no query ever takes. A rebuild
//!
//! 1. takes the list of dead nodes. They are already unlinked, so the scan below cannot meet them;
//! 2. scans the list of data nodes, in parts if it has several threads, and builds a layer. Owners
//!    continue to write. A node that is split off after the scan has passed is reached through its
//!    neighbour. A node that is absorbed after the scan has passed stays in the new layer as a dead
//!    node, and in the next list of dead nodes;
//! 3. swaps the layers. A batch in progress keeps the layer that it began with; the next batch
//!    takes the new one. The old layer and the dead nodes of step 1, which only that layer may
//!    still name, are retired together. They are freed when the last batch or reader that pinned
//!    before the swap has ended. If that is a writer, it leaves the freeing to the daemon, because
//!    freeing many nodes would delay it.
//!
//! A rebuild is due when the nodes split off and absorbed since the last one exceed a share of all
//! nodes (15 % by default, §4.3.5). It is also due when writes, because of the stale layer, have
//! scanned as many extra steps as the layer has nodes, forward over split nodes and backward over
//! dead ones: the scans have then cost as much as a rebuild.
//!
//! The daemon thread starts with the first rebuild, parks when it has nothing to do, and ends with
//! the index. Without the daemon, the last thread that leaves frees the memory.
//!
//! Source: the PI paper, §4.1 and §4.3.5.

#![expect(unsafe_code, reason = "retires old layers and dead nodes")]

use std::sync::{Arc, PoisonError, TryLockError};
use std::thread::JoinHandle;

use super::layer::Layer;
use super::node::NodeRef;
use super::storage::Storage;
use ordna_base::reclaim::Retire;
use ordna_base::sync::atomic::{AtomicBool, Ordering};
use ordna_base::sync::lock::{Condvar, Mutex, MutexGuard};
use ordna_base::sync::{Shared as Watched, fault, handed_on, notice, point};
use ordna_base::{Key, Value};

/// Minimum number of changed nodes for a rebuild.
const FEWEST: usize = 8;
/// Number of nodes by which a scan prefetches ahead.
const AHEAD: usize = 12;
/// Minimum number of nodes for which a part of a scan gets its own thread.
const PART: usize = 4096;

/// When and how the layer is rebuilt.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Percentage of changed nodes at which a rebuild is due.
    pub threshold: usize,
    /// Number of threads that share a rebuild.
    pub threads: usize,
    /// Whether a background thread rebuilds, rather than the thread whose write made the rebuild
    /// due.
    pub in_background: bool,
}

/// A message to the daemon.
struct Orders<K: Key + ?Sized, V: Value + ?Sized> {
    stop: bool,
    thread: Option<JoinHandle<()>>,
    gone: Vec<Garbage<K, V>>,
}

/// The mailbox from which the daemon receives its orders.
struct Desk<K: Key + ?Sized, V: Value + ?Sized> {
    orders: Mutex<Orders<K, V>>,
    told: Condvar,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Desk<K, V> {
    fn orders(&self) -> MutexGuard<'_, Orders<K, V>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A layer that no thread uses any longer, and the nodes that only it named. Freed on drop.
struct Garbage<K: Key + ?Sized, V: Value + ?Sized> {
    /// Kept only to be dropped.
    _layer: Box<Layer<K, V>>,
    dead: Vec<NodeRef<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Garbage<K, V> {
    fn drop(&mut self) {
        // SAFETY: created in `Old::free` only, when no guard is held under which a layer that names
        // these nodes was in use. The nodes are linked nowhere, and their records have moved.
        self.dead.drain(..).for_each(|node| unsafe { node.free() });
    }
}

/// The layer and the nodes that a rebuild replaced, in the form in which they are retired.
struct Old<K: Key + ?Sized, V: Value + ?Sized> {
    layer: *mut Layer<K, V>,
    dead: Vec<NodeRef<K, V>>,
    desk: Arc<Desk<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Retire for Old<K, V> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: boxed by `rebuild`, and exclusively the caller's.
        let Self { layer, dead, desk } = *unsafe { Box::from_raw(memory) };
        // SAFETY: boxed before it was published, and no thread uses it any longer.
        let garbage = Garbage { _layer: unsafe { Box::from_raw(layer) }, dead };
        let mut orders = desk.orders();
        if orders.thread.is_some() {
            orders.gone.push(garbage);
            drop(orders);
            desk.told.notify_all();
        } else {
            drop(orders);
            drop(garbage);
        }
    }
}

/// The state of rebuilds: which thread rebuilds, and when.
pub struct Rebuilder<K: Key + ?Sized, V: Value + ?Sized> {
    pub plan: Plan,
    /// Held during a rebuild.
    lock: Mutex<()>,
    /// Whether a rebuild has been requested.
    due: AtomicBool,
    desk: Arc<Desk<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Rebuilder<K, V> {
    pub fn new(plan: Plan) -> Self {
        let orders = Orders { stop: false, thread: None, gone: Vec::new() };
        let desk = Arc::new(Desk { orders: Mutex::new(orders), told: Condvar::new() });
        Self { plan, lock: Mutex::new(()), due: AtomicBool::new(false), desk }
    }

    /// Takes the rebuild lock.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State that the index and its daemon share.
pub struct Shared<K: Key + ?Sized, V: Value + ?Sized> {
    pub storage: Storage<K, V>,
    pub rebuilder: Rebuilder<K, V>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Shared<K, V> {
    /// Rebuilds the layer now. Waits for a rebuild in progress.
    pub fn rebuild(self: &Arc<Self>) {
        if self.rebuilder.plan.in_background {
            // The daemon frees what the rebuild retires. If no thread can be started, other threads
            // free it.
            self.employ();
        }
        self.rebuild_here();
    }

    fn rebuild_here(&self) {
        let _lock = self.rebuilder.lock();
        self.storage.rebuild(&self.rebuilder);
    }

    /// Starts the daemon if there is none. Returns whether there is one.
    fn employ(self: &Arc<Self>) -> bool {
        let mut orders = self.rebuilder.desk.orders();
        if orders.thread.is_none() && !orders.stop {
            let shared = self.clone();
            let name = "ordna-pi-rebuild".to_owned();
            let serve = handed_on(move || shared.serve());
            let thread = std::thread::Builder::new().name(name).spawn(serve);
            orders.thread = thread.ok();
        }
        orders.thread.is_some()
    }

    /// Returns whether the layer is stale enough for a rebuild; see the module documentation.
    #[inline]
    fn is_due(&self) -> bool {
        let storage = &self.storage;
        let changed = storage.changed.load(Ordering::Relaxed);
        let scanned = storage.scanned.load(Ordering::Relaxed);
        if changed < FEWEST {
            return false;
        }
        let nodes = storage.layer(&storage.collector.pin()).len();
        let threshold = nodes.saturating_mul(self.rebuilder.plan.threshold);
        changed * 100 >= threshold || scanned >= nodes
    }

    /// Starts a rebuild if one is due. Called after writes, without the turn.
    #[inline]
    pub fn rebuild_if_due(self: &Arc<Self>) {
        let (storage, rebuilder) = (&self.storage, &self.rebuilder);
        if !self.is_due() {
            return;
        }
        if !rebuilder.plan.in_background {
            // The holder of the lock is rebuilding. One rebuild is enough, and no query waits for
            // it.
            let lock = if fault!("pi.due.waits") {
                Some(rebuilder.lock())
            } else {
                match rebuilder.lock.try_lock() {
                    Ok(lock) => Some(lock),
                    // A rebuild that panicked has left the layer as it was.
                    Err(TryLockError::Poisoned(lock)) => Some(lock.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                }
            };
            if lock.is_some() {
                storage.rebuild(rebuilder);
            }
            return;
        }
        if rebuilder.due.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.employ() {
            rebuilder.desk.told.notify_all();
        } else {
            // No thread could be started. The next write that finds the rebuild due tries again.
            rebuilder.due.store(false, Ordering::Release);
        }
    }

    /// Runs the loop of the daemon.
    fn serve(&self) {
        let (desk, due) = (&self.rebuilder.desk, &self.rebuilder.due);
        loop {
            let mut orders = desk.orders();
            while !orders.stop && !due.load(Ordering::Acquire) && orders.gone.is_empty() {
                orders = desk.told.wait(orders).unwrap_or_else(PoisonError::into_inner);
            }
            if orders.stop {
                return;
            }
            let gone = std::mem::take(&mut orders.gone);
            drop(orders);
            drop(gone);
            if due.load(Ordering::Acquire) {
                self.rebuild_here();
                // Acquire: this thread sees the changes of a thread that requested a rebuild in the
                // meantime.
                due.swap(false, Ordering::AcqRel);
                // Checked again, because no other write may follow for a long time.
                if notice!("pi.due.asks_again", self.is_due()) {
                    due.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Ends the daemon after a rebuild in progress.
    pub fn stop(&self) {
        let thread = {
            let mut orders = self.rebuilder.desk.orders();
            orders.stop = true;
            orders.thread.take()
        };
        self.rebuilder.desk.told.notify_all();
        if let Some(thread) = thread {
            // If it panicked, the index still has an older layer, which is slower but correct.
            let _ = thread.join();
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Storage<K, V> {
    /// Builds a layer from the list and publishes it. Only one call may run at a time.
    fn rebuild(&self, rebuilder: &Rebuilder<K, V>) {
        let threads = rebuilder.plan.threads;
        let early = !fault!("pi.rebuild.dead_after_scan");
        let mut dead = if early { self.take_dead() } else { Vec::new() };
        self.changed.store(0, Ordering::Relaxed);
        self.scanned.store(0, Ordering::Relaxed);
        let guard = self.collector.pin();
        let old = self.layer(&guard);
        let parts = (old.len() / PART).clamp(1, threads.max(1));
        let starts = (0..parts).map(|part| part * old.len() / parts);
        let starts: Vec<usize> = starts.chain([old.len()]).collect();
        let scan = |part: usize| self.scan(old, starts[part], starts[part + 1]);
        let mut nodes: Vec<NodeRef<K, V>> = Vec::new();
        if parts == 1 {
            nodes = scan(0);
        } else {
            std::thread::scope(|scope| {
                let scan = &scan;
                // If the system cannot start a thread, this one scans the part.
                let start = |part: usize| {
                    let thread = std::thread::Builder::new().name("ordna-pi-scan".to_owned());
                    thread.spawn_scoped(scope, move || scan(part)).ok()
                };
                let others: Vec<_> = (1..parts).map(start).collect();
                nodes = scan(0);
                for (part, other) in others.into_iter().enumerate() {
                    let done = other.and_then(|other| other.join().ok());
                    nodes.extend(done.unwrap_or_else(|| scan(part + 1)));
                }
            });
        }
        point("pi.rebuild.after_scan");
        if !early {
            dead = self.take_dead();
        }
        let layer = self.replace_layer(Layer::build(nodes));
        let desk = rebuilder.desk.clone();
        let old = Box::into_raw(Box::new(Old { layer, dead, desk }));
        // The dead nodes were unlinked before the construction of the new layer began, and each was
        // pushed once. SAFETY: threads that pin from now on cannot reach the layer and the dead
        // nodes, which are linked neither in the list nor in the new layer.
        unsafe { guard.retire(old) };
        // A single retired allocation, however large, would wait until a batch of them is full. A
        // watch passes on everything that this thread has retired.
        guard.watch(Watched::new(AtomicBool::new(false)));
    }

    /// Returns the live nodes between two positions of a layer, including those split off between
    /// them.
    fn scan(&self, layer: &Layer<K, V>, from: usize, to: usize) -> Vec<NodeRef<K, V>> {
        let end = layer.nodes().get(to);
        let mut found = Vec::with_capacity((to - from) + (to - from) / 4);
        let mut ahead = layer.nodes()[from..to].iter().skip(AHEAD);
        let mut at = Some(layer.node(from));
        while let Some(node) = at {
            // Compares anchors and not nodes: the end node may be absorbed concurrently and then is
            // never met.
            if end.is_some_and(|end| node.anchor() >= end.anchor()) {
                break;
            }
            if !node.lock.is_obsolete() {
                found.push(node);
            }
            if let Some(ahead) = ahead.next() {
                ahead.prefetch();
            }
            at = node.next();
        }
        found
    }
}
