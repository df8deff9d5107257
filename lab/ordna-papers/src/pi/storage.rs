//! The storage layer: the list of data nodes, how readers traverse it, and how owners change it.
//!
//! # Contract
//! Any number of readers may run at any time, without locks. They route a key through the layer,
//! scan to the node whose range contains it, and validate what they read. Writers are [`Owner`]s:
//! each owns a part of the list, and the parts do not overlap. [`super::execute`] assigns the
//! parts. So each node has a single writer, without a latch.
//!
//! # Protocol
//! - The part of an owner begins at a node that is alive when the part is assigned, and ends before
//!   the next owner's part. The owner never absorbs a node outside. The first node of a part
//!   therefore outlives the assignment, so a scan from the layer's node before a key stays within
//!   the part.
//! - A split links the new node after the old one. Readers of the old node find that the key is not
//!   below `upper`, and continue with the next node. The layer does not know the new node until it
//!   is rebuilt.
//! - A merge moves the entries of a node to its predecessor, and makes the node obsolete. A layer
//!   that names it still leads readers there. They go back to the layer's preceding node, from
//!   which a scan reaches the live one. The first node of the list is never absorbed.
//! - Absorbed nodes are *dead*. They are not freed before the layer was replaced by one whose
//!   construction began after they were unlinked ([`super::rebuild`]).
//!
//! # Progress
//! A reader waits for the owner that writes its node; write sections are bounded by the size of a
//! node. After [`RETRIES`] consecutive failed validations it returns [`Contended`], and the caller
//! takes a turn among the writers.
//!
//! Source: the PI paper, §3.2.2 to §3.2.4. Deleting and splitting nodes is our own.

#![expect(unsafe_code, reason = "entries of validated nodes, and retiring")]

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::PoisonError;

use super::layer::Layer;
use super::node::{CAPACITY, DataEntry, NodeRef};
use ordna_base::index::{Change, InvariantReport};
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::simd::InstructionSet;
use ordna_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use ordna_base::sync::lock::Mutex;
use ordna_base::sync::{Backoff, StripedCounter, Version, check, point};
use ordna_base::{Error, Key, Value, Violation};

/// Number of failed validations after which a reader takes a turn. Going back over dead places does
/// not count.
const RETRIES: usize = 256;

/// Number of nodes that a scan prefetches ahead.
const AHEAD: usize = 2;

/// The error of a reader that writers have invalidated too often.
#[derive(Debug)]
pub struct Contended;

/// The list and its index layer.
pub struct Storage<K: Key + ?Sized, V: Value + ?Sized> {
    layer: AtomicPtr<Layer<K, V>>,
    first: NodeRef<K, V>,
    /// Nodes that were absorbed since the last rebuild began.
    dead: Mutex<Vec<NodeRef<K, V>>>,
    /// Number of nodes that were split off and absorbed since the last rebuild began.
    pub changed: AtomicUsize,
    /// Number of extra nodes scanned and dead places skipped since then, which is the cost of a
    /// stale layer.
    pub scanned: AtomicUsize,
    pub len: StripedCounter,
    pub set: InstructionSet,
    /// Number of entries at which a node is split.
    pub limit: usize,
    // Declared last, so that retired memory is freed when everything else is dropped.
    pub collector: Collector,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Storage<K, V> {
    /// Creates an empty list below a layer with one node, whose anchor is the smallest of all keys.
    pub fn new(least: K::Owned, set: InstructionSet, limit: usize) -> Self {
        let first = NodeRef::new(least);
        let layer = Box::new(Layer::build(vec![first]));
        Self {
            layer: AtomicPtr::new(Box::into_raw(layer)),
            first,
            dead: Mutex::new(Vec::new()),
            changed: AtomicUsize::new(0),
            scanned: AtomicUsize::new(0),
            len: StripedCounter::new(),
            set,
            limit,
            collector: Collector::new(),
        }
    }

    pub fn first(&self) -> NodeRef<K, V> {
        self.first
    }

    /// Returns the smallest key of the type.
    pub fn least(&self) -> &K {
        self.first.anchor()
    }

    /// Returns the current layer for the lifetime of the guard. Neither it nor the nodes that it
    /// names are freed in that time.
    #[inline]
    pub fn layer<'g>(&self, _guard: &'g Guard<'_>) -> &'g Layer<K, V> {
        // SAFETY: never null. Acquire pairs with the swap in `replace_layer`. The thread that swaps
        // retires the old layer afterwards, and the guard, which was taken before this load, keeps
        // it alive.
        unsafe { &*self.layer.load(Ordering::Acquire) }
    }

    /// Returns nodes that are unlinked now, so that no layer whose construction begins after this
    /// call names them.
    pub fn take_dead(&self) -> Vec<NodeRef<K, V>> {
        std::mem::take(&mut *self.dead.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Publishes a layer. Returns the previous one, which was created by [`Box::into_raw`] and must
    /// be freed by the caller when no thread uses it any more.
    pub fn replace_layer(&self, layer: Layer<K, V>) -> *mut Layer<K, V> {
        let new = Box::into_raw(Box::new(layer));
        let old = self.layer.swap(new, Ordering::AcqRel);
        point("pi.rebuild.after_swap");
        old
    }

    /// Calls `read` with the node whose range contains the key and repeats this until the node's
    /// version is valid afterwards. `place` is the place to which the layer routes the key.
    #[inline]
    pub fn read_at<R>(
        &self,
        key: &K,
        layer: &Layer<K, V>,
        mut place: usize,
        mut read: impl FnMut(NodeRef<K, V>, Version) -> Option<R>,
    ) -> Result<R, Contended> {
        let mut backoff = Backoff::new();
        let mut node = layer.node(place);
        let mut shared = layer.shared(place);
        for _ in 0..RETRIES {
            let Ok(version) = node.lock.try_read() else {
                // The node was absorbed, so its keys are in an earlier node. A key that was routed
                // to it may share fewer bytes with that node's anchor. Any number of neighbouring
                // places may have died since the layer was built, and they stay dead while it is in
                // use. If they counted as retries, every attempt with the same layer would fail in
                // the same way.
                while place > 0 && layer.node(place).lock.is_obsolete() {
                    place -= 1;
                }
                (node, shared) = (layer.node(place), 0);
                continue;
            };
            let Some(version) = version else {
                backoff.wait();
                continue;
            };
            let mut at = (node, version);
            // Continuing with the next node is not a retry.
            let version = loop {
                let (here, version) = at;
                let Some(next) = here.beyond(key, shared) else { break Some(version) };
                if !check!("pi.scan_on.unvalidated", here.lock.validate(version)) {
                    break None;
                }
                (node, shared) = (next, 0);
                match next.lock.try_read() {
                    Ok(Some(version)) => at = (next, version),
                    _ => break None,
                }
            };
            if let Some(answer) = version.and_then(|version| read(node, version)) {
                return Ok(answer);
            }
        }
        Err(Contended)
    }

    /// Returns the entry of a key.
    #[inline]
    pub fn get(
        &self,
        key: &K,
        layer: &Layer<K, V>,
        place: usize,
    ) -> Result<Option<DataEntry<K, V>>, Contended> {
        self.read_at(key, layer, place, |node, version| {
            point("pi.get.before_find");
            let found = node.find(key, self.set).ok();
            point("pi.get.before_entry");
            let found = found.map(|at| node.entry(at));
            check!("pi.get.unvalidated", node.lock.validate(version)).then_some(found)
        })
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Storage<K, V> {
    fn drop(&mut self) {
        // SAFETY: `&mut self` excludes readers, owners and rebuilds. Each node is visited once:
        // linked nodes in the list, absorbed ones in `dead`, and retired ones in the collector.
        unsafe {
            drop(Box::from_raw(self.layer.load(Ordering::Relaxed)));
            let mut at = Some(self.first);
            while let Some(node) = at {
                at = node.next();
                node.records(|record| record.free());
                node.free();
            }
            self.take_dead().into_iter().for_each(|node| node.free());
        }
    }
}

/// The single writer of a part of the list, for its lifetime.
///
/// It is called only with keys in its part, in ascending order.
pub struct Owner<'a, K: Key + ?Sized, V: Value + ?Sized> {
    storage: &'a Storage<K, V>,
    layer: &'a Layer<K, V>,
    guard: &'a Guard<'a>,
    /// The anchors of the first node of the part, and of the first node after it.
    begin: Option<&'a K>,
    end: Option<&'a K>,
    /// The node of the last key, and the preceding place of the layer.
    finger: Option<(usize, NodeRef<K, V>)>,
    changed: usize,
    scanned: usize,
    grown: i64,
    dead: Vec<NodeRef<K, V>>,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> Owner<'a, K, V> {
    /// Creates the owner of the part between two anchors. `None` means the start or the end of the
    /// list.
    ///
    /// # Safety
    /// No other owner's part overlaps this one during its lifetime. Both anchors belong to live
    /// nodes, which no thread except the owner before them would absorb.
    pub unsafe fn new(
        storage: &'a Storage<K, V>,
        layer: &'a Layer<K, V>,
        guard: &'a Guard<'a>,
        (begin, end): (Option<&'a K>, Option<&'a K>),
    ) -> Self {
        let (finger, dead) = (None, Vec::new());
        let (changed, scanned, grown) = (0, 0, 0);
        Self { storage, layer, guard, begin, end, finger, changed, scanned, grown, dead }
    }

    /// Returns the node whose range contains the key. `place` is the place to which the layer
    /// routes the key.
    #[inline]
    fn locate(&mut self, key: &K, place: usize) -> NodeRef<K, V> {
        let (mut node, mut shared) = (self.layer.node(place), self.layer.shared(place));
        let mut start = place;
        loop {
            if let Some((_, finger)) = self.finger.filter(|(behind, _)| start <= *behind) {
                (node, shared) = (finger, 0);
                break;
            }
            if !node.lock.is_obsolete() {
                break;
            }
            start = start.saturating_sub(1);
            self.scanned += 1;
            (node, shared) = (self.layer.node(start), 0);
        }
        let behind = self.finger.map_or(start, |(behind, _)| behind.max(start));
        while let Some(next) = node.beyond(key, shared) {
            (node, shared) = (next, 0);
            self.scanned += 1;
        }
        debug_assert!(
            self.begin.is_none_or(|begin| begin <= node.anchor())
                && self.end.is_none_or(|end| node.anchor() < end),
            "an owner stays within its stretch"
        );
        self.finger = Some((behind, node));
        node
    }

    /// Returns the current value of a key.
    #[inline]
    pub fn get<R>(&mut self, key: &K, place: usize, read: impl FnOnce(&V) -> R) -> Option<R> {
        let node = self.locate(key, place);
        let at = node.find(key, self.storage.set).ok()?;
        // SAFETY: only this owner removes entries.
        Some(unsafe { node.entry(at).with_value(read) })
    }

    /// Visits the entries from a bound to the end of the part, while no thread writes there.
    /// `place` is the place to which the layer routes the bound, and `hint` is the approximate
    /// number of entries that are needed.
    pub fn scan(
        &mut self,
        from: Bound<&K>,
        place: usize,
        hint: usize,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let least = self.least();
        let (key, past) = match from {
            Bound::Included(key) => (key, 0),
            Bound::Excluded(key) => (key, 1),
            Bound::Unbounded => (least, 0),
        };
        let mut node = self.locate(key, place);
        let mut at = node.find(key, self.storage.set).map_or_else(|at| at, |at| at + past);
        // The layer knows most of the following nodes, so they are prefetched before the scan
        // reaches them.
        let places = hint.saturating_sub(1) / (self.storage.limit / 2) + 1;
        let mut ahead = self.layer.nodes()[place + 1..].iter().take(places.min(self.layer.len()));
        ahead.by_ref().take(AHEAD).for_each(|node| node.prefetch_all(CAPACITY));
        loop {
            for at in at..node.len() {
                let entry = node.entry(at);
                // SAFETY: no thread writes: see above.
                let flow = unsafe { entry.with_key(|key| entry.with_value(|v| visit(key, v))) };
                if flow.is_break() {
                    return;
                }
            }
            match node.next() {
                Some(next) if self.end.is_none_or(|end| next.anchor() < end) => node = next,
                _ => return,
            }
            at = 0;
            if let Some(node) = ahead.next() {
                node.prefetch_all(CAPACITY);
            }
        }
    }

    /// Returns the smallest key of the type.
    pub fn least(&self) -> &'a K {
        self.storage.least()
    }

    /// Reads, calls `change` for a decision, and applies it, as one step for all readers.
    #[inline]
    pub fn modify<T, F>(&mut self, key: &K, place: usize, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        let node = self.locate(key, place);
        match node.find(key, self.storage.set) {
            Err(at) => {
                let Change::Put(value) = change(None) else { return Ok(()) };
                let value = value.borrow();
                value.check()?;
                point("pi.modify.before_insert");
                self.insert(node, at, key, value);
            }
            Ok(at) => {
                // SAFETY: only this owner removes entries.
                match unsafe { node.entry(at).with_value(|value| change(Some(value))) } {
                    Change::Keep => {}
                    Change::Put(value) => {
                        let value = value.borrow();
                        value.check()?;
                        if let Some(old) = node.set(at, key, value) {
                            // SAFETY: no slot contains the address any more, and it was removed
                            // once.
                            unsafe { old.retire(self.guard) };
                        }
                    }
                    Change::Remove => {
                        point("pi.modify.before_remove");
                        if let Some(old) = node.remove(at) {
                            // SAFETY: as above.
                            unsafe { old.retire(self.guard) };
                        }
                        self.grown -= 1;
                        self.tidy(node);
                    }
                }
            }
        }
        Ok(())
    }

    fn insert(&mut self, node: NodeRef<K, V>, at: usize, key: &K, value: &V) {
        let len = node.len();
        self.grown += 1;
        if len < self.storage.limit {
            return node.insert(at, key, value);
        }
        self.changed += 1;
        if at == len && node.next().is_none() {
            // With ascending inserts, the preceding nodes stay full.
            return node.split(len, Some(key)).insert(0, key, value);
        }
        let middle = len / 2;
        let right = node.split(middle, None);
        point("pi.insert.after_split");
        if at > middle {
            right.insert(at - middle, key, value)
        } else {
            node.insert(at, key, value)
        }
    }

    /// Merges the node with a neighbour if they fit into one node. An empty node absorbs any
    /// neighbour.
    fn tidy(&mut self, node: NodeRef<K, V>) {
        let (len, limit) = (node.len(), self.storage.limit);
        if len > limit / 4 {
            return;
        }
        let fit = |one: usize, other: usize| {
            one + other <= if one == 0 || other == 0 { limit } else { limit * 3 / 4 }
        };
        if let Some(next) = node.next() {
            let is_own = self.end.is_none_or(|end| next.anchor() < end);
            if check!("pi.tidy.foreign_node", is_own) && fit(len, next.len()) {
                return self.absorb(node, next);
            }
        }
        // Finding the preceding node takes some steps, so not every removal does it.
        if (len == 0 || len.is_power_of_two())
            && let Some((place, before)) = self.before(node)
            && fit(before.len(), len)
        {
            self.absorb(before, node);
            self.finger = Some((place, before));
        }
    }

    fn absorb(&mut self, node: NodeRef<K, V>, next: NodeRef<K, V>) {
        debug_assert!(node.anchor() < next.anchor(), "a node absorbs one behind it");
        node.absorb(next);
        debug_assert!(check!("pi.absorb.not_obsolete", next.lock.is_obsolete()));
        self.dead.push(next);
        self.changed += 1;
    }

    /// Returns the node before the one that was last located, if it is in the part, and the
    /// preceding place of the layer.
    fn before(&self, node: NodeRef<K, V>) -> Option<(usize, NodeRef<K, V>)> {
        if node == self.storage.first || self.begin.is_some_and(|begin| node.anchor() <= begin) {
            return None;
        }
        let mut place = self.finger?.0;
        while self.layer.node(place).lock.is_obsolete()
            || self.layer.node(place).anchor() >= node.anchor()
        {
            place = place.checked_sub(1)?;
        }
        let mut before = self.layer.node(place);
        loop {
            match before.next()? {
                next if next == node => return Some((place, before)),
                next => before = next,
            }
        }
    }

    /// Returns the layer through which keys are routed.
    pub fn layer(&self) -> &'a Layer<K, V> {
        self.layer
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Owner<'_, K, V> {
    fn drop(&mut self) {
        let storage = self.storage;
        if self.grown != 0 {
            storage.len.add(self.grown);
        }
        if self.changed > 0 {
            storage.changed.fetch_add(self.changed, Ordering::Relaxed);
        }
        if self.scanned > 0 {
            storage.scanned.fetch_add(self.scanned, Ordering::Relaxed);
        }
        if !self.dead.is_empty() {
            let mut dead = storage.dead.lock().unwrap_or_else(PoisonError::into_inner);
            dead.append(&mut self.dead);
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Storage<K, V> {
    /// Checks the list and the layer, while no thread writes or rebuilds.
    pub fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        let broken = |what: String| Err(Violation(format!("pi: {what}")));
        let guard = self.collector.pin();
        let mut report = InvariantReport::default();
        let mut at = Some(self.first);
        while let Some(node) = at {
            if let Err(what) = node.check_invariants() {
                return broken(format!("node {} at {:?}: {what}", report.nodes, node.anchor()));
            }
            report.nodes += 1;
            report.entries += node.len();
            at = node.next();
        }
        if report.entries != self.len.sum() {
            return broken(format!("{} entries, {} counted", report.entries, self.len.sum()));
        }
        let layer = self.layer(&guard);
        let dead = self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = Some(self.first);
        for (place, node) in layer.nodes().iter().enumerate() {
            let above = place == 0 || layer.node(place - 1).anchor() < node.anchor();
            while let Some(at) = list.filter(|at| at.anchor() < node.anchor()) {
                list = at.next();
            }
            let linked = list == Some(*node);
            if !above || !(linked || node.lock.is_obsolete() && dead.contains(node)) {
                return broken(format!("place {place} of the layer is neither live nor dead"));
            }
        }
        Ok(report)
    }
}
