//! The index layer is rebuilt in the background, while batches run.
//!
//! # Protocol
//! One rebuild at a time, under the rebuild lock, which no query ever takes. A rebuild
//!
//! 1. takes the list of dead nodes: unlinked by now, so the scan below cannot meet them;
//! 2. scans the list of data nodes, in parts if it has several threads, and builds a layer. Owners
//!    go on writing: a node split off behind the scan is found by scanning. A node absorbed behind
//!    it stays in the new layer as a dead one, and in the next list of dead nodes;
//! 3. swaps the layers. A batch under way keeps the one that it began with; the next one takes the
//!    new. The old layer and the dead nodes of step 1, which only it may name, are retired
//!    together. They are freed when the last batch or reader that pinned before the swap has ended.
//!    A writer among them leaves the nodes to the daemon: freeing many nodes would delay it.
//!
//! A rebuild is due when the nodes split off and absorbed since the last one pass a share of all
//! (15 % by default, §4.3.5). It is due too when writes had to scan as many steps as the layer has
//! nodes because it is stale, on over split nodes and back over dead ones: scanning has then cost
//! what rebuilding costs.
//!
//! The daemon thread starts with the first rebuild, parks when there is nothing to do, and ends
//! with the index. Without the daemon the last thread to leave frees.
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

/// Fewest changed nodes that are worth a rebuild.
const FEWEST: usize = 8;
/// How far ahead of a scan nodes are fetched.
const AHEAD: usize = 12;
/// Nodes below which a part of a scan is not worth a thread.
const PART: usize = 4096;

/// When and how the layer is rebuilt.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Changed nodes, in percent of all, from which a rebuild is due.
    pub threshold: usize,
    /// Threads that share a rebuild.
    pub threads: usize,
    /// Whether a thread of its own does it, or the caller whose write made it due.
    pub in_background: bool,
}

/// A message to the daemon.
struct Orders<K: Key + ?Sized, V: Value + ?Sized> {
    stop: bool,
    thread: Option<JoinHandle<()>>,
    gone: Vec<Garbage<K, V>>,
}

/// Where the daemon gets its orders.
struct Desk<K: Key + ?Sized, V: Value + ?Sized> {
    orders: Mutex<Orders<K, V>>,
    told: Condvar,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Desk<K, V> {
    fn orders(&self) -> MutexGuard<'_, Orders<K, V>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A layer that no thread uses any more and the nodes that only it named; freed on drop.
struct Garbage<K: Key + ?Sized, V: Value + ?Sized> {
    /// Held for its drop.
    _layer: Box<Layer<K, V>>,
    dead: Vec<NodeRef<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Garbage<K, V> {
    fn drop(&mut self) {
        // SAFETY: made in `Old::free` only, when no guard is left under which a layer that names
        // these nodes was in use. They are linked nowhere, and their records have moved.
        self.dead.drain(..).for_each(|node| unsafe { node.free() });
    }
}

/// The layer and nodes that a rebuild replaced, as they are retired.
struct Old<K: Key + ?Sized, V: Value + ?Sized> {
    layer: *mut Layer<K, V>,
    dead: Vec<NodeRef<K, V>>,
    desk: Arc<Desk<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Retire for Old<K, V> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: boxed by `rebuild`, exclusively the caller's.
        let Self { layer, dead, desk } = *unsafe { Box::from_raw(memory) };
        // SAFETY: boxed when it was put into use, and no thread uses it any more.
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
    /// Whether a rebuild is asked for.
    due: AtomicBool,
    desk: Arc<Desk<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Rebuilder<K, V> {
    pub fn new(plan: Plan) -> Self {
        let orders = Orders { stop: false, thread: None, gone: Vec::new() };
        let desk = Arc::new(Desk { orders: Mutex::new(orders), told: Condvar::new() });
        Self { plan, lock: Mutex::new(()), due: AtomicBool::new(false), desk }
    }

    /// The rebuild lock.
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
    /// Rebuilds the layer now; waits for a rebuild under way.
    pub fn rebuild(self: &Arc<Self>) {
        if self.rebuilder.plan.in_background {
            // For what it leaves to be freed; if there is no thread to be had, others free it.
            self.employ();
        }
        self.rebuild_here();
    }

    fn rebuild_here(&self) {
        let _lock = self.rebuilder.lock();
        self.storage.rebuild(&self.rebuilder);
    }

    /// Whether there is a daemon; starts it if there is none yet.
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

    /// Whether the layer is stale enough; see the top.
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

    /// Has the layer rebuilt if that is due. Called after writes, without the turn.
    #[inline]
    pub fn rebuild_if_due(self: &Arc<Self>) {
        let (storage, rebuilder) = (&self.storage, &self.rebuilder);
        if !self.is_due() {
            return;
        }
        if !rebuilder.plan.in_background {
            // The holder of the lock is rebuilding: one is enough, and no query waits for it.
            let lock = if fault!("pi.due.waits") {
                Some(rebuilder.lock())
            } else {
                match rebuilder.lock.try_lock() {
                    Ok(lock) => Some(lock),
                    // A rebuild that panicked left the layer as it was.
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
            // No thread to be had: the next write that finds it due tries again.
            rebuilder.due.store(false, Ordering::Release);
        }
    }

    /// The daemon.
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
                // Acquire: the changes of a thread that asked in vain meanwhile are seen.
                due.swap(false, Ordering::AcqRel);
                // It may have been the last write for long.
                if notice!("pi.due.asks_again", self.is_due()) {
                    due.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Ends the daemon. A rebuild under way is finished first.
    pub fn stop(&self) {
        let thread = {
            let mut orders = self.rebuilder.desk.orders();
            orders.stop = true;
            orders.thread.take()
        };
        self.rebuilder.desk.told.notify_all();
        if let Some(thread) = thread {
            // If it panicked, the layer is an old one, which is slow and right.
            let _ = thread.join();
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Storage<K, V> {
    /// Builds a layer from the list and puts it into use. One call at a time.
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
                // A thread that the system refuses: this one does its part.
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
        // The dead nodes were unlinked before the new layer's building began, and pushed once each.
        // SAFETY: layer and dead nodes are out of use for threads that pin from now on: they are
        // linked neither in the list nor in the new layer.
        unsafe { guard.retire(old) };
        // One entry would wait for a batch of them, however large it is: a watch hands over all
        // that this thread has retired.
        guard.watch(Watched::new(AtomicBool::new(false)));
    }

    /// The live nodes from one place of a layer up to another, and what was split off between.
    fn scan(&self, layer: &Layer<K, V>, from: usize, to: usize) -> Vec<NodeRef<K, V>> {
        let end = layer.nodes().get(to);
        let mut found = Vec::with_capacity((to - from) + (to - from) / 4);
        let mut ahead = layer.nodes()[from..to].iter().skip(AHEAD);
        let mut at = Some(layer.node(from));
        while let Some(node) = at {
            // Not the node itself but its place: it may be absorbed meanwhile, and never met.
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
