//! The data list: lookups, changes, splits and merges.
//!
//! # Contract
//! All operations may be called concurrently by any number of threads. Each operation holds a guard
//! of the collector, and starts at a node that the search layer returns, or at the first node.
//!
//! # Invariants
//! 1. A live node contains the keys from its anchor up to the anchor of its successor. The anchor
//!    of the first node is the smallest key, and this node never dies. So every key belongs to
//!    exactly one live node.
//! 2. `next` and the upper bound change under the node's own lock. `prev` changes under the lock of
//!    the predecessor, which is the node whose `next` points here.
//! 3. A node dies when it is merged into its predecessor, under both locks, which are taken from
//!    left to right. Its lock is then obsolete, and its `prev` never changes again: it leads to the
//!    node that has taken over its range.
//! 4. The `prev` of a dead node counts as a reference to the node that took over its range, which
//!    is called its heir. So the path exists as long as any thread can reach the dead node (see
//!    `node`). Its `next` does not count, because no thread follows it.
//!
//! # Finding the node of a key
//! From the node at which the search starts, it goes from a dead node to its heir, back while the
//! anchor is above the key, and forward while the upper bound is not above it. `next` is followed
//! if the node is seen alive *after* the pointer was read, because the pointer then referred to a
//! live node during the caller's guard. This leads to the right node whatever the search layer
//! returns. Whether the node is right is decided under a version or the lock:
//!
//! - a reader takes a version, checks that the key is in range, searches for it, validates, and
//!   only then uses the result. It linearizes at a moment between taking the version and validating
//!   it;
//! - a writer takes the lock and checks the range again. It linearizes when it unlocks.
//!
//! # Progress
//! Finding a node is lock-free. A reader whose versions were invalid [`LIMIT`] times takes the
//! lock.
//!
//! Source: HydraList §4.2, §4.3, §4.7, §10.

#![expect(unsafe_code, reason = "links between nodes")]

mod node_scan;

use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::entry::{NodeEntry, prefetch_key};
use super::node::{Changed, Node, NodeSearch, Token};
use super::options::{HydraOptions, Update};
use super::stats::Counters;
use super::updates::{Anchored, NodeEvent, Updates};
use crate::search_layer::SearchLayer;
use crate::timestamp::Clock;
use crate::topology::Topology;
use ordna_base::index::Change;
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::slabs::Pool;
use ordna_base::sync::atomic::{AtomicPtr, Ordering};
use ordna_base::sync::{Backoff, StripedCounter, WriteGuard, check, notice, point, spin_hint};
use ordna_base::{Error, Key, Value};

/// Number of failed validations of a reader before it takes the lock.
pub const LIMIT: u32 = 16;

/// The fixed part of the smallest key of each type.
static ZERO: u64 = 0;

/// Number of interleaved lookups of a batch.
const LANES: usize = 16;

/// The key whose node a search is looking for.
pub enum Goal<'k, K: ?Sized> {
    /// A key, with its head.
    At(u64, &'k K),
    /// The largest key below this one.
    Before(u64, &'k K),
    /// The largest key of all.
    Last,
}

impl<K: ?Sized> Clone for Goal<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized> Copy for Goal<'_, K> {}

/// The data list with its search layers and collector.
pub struct DataList<K: Key + ?Sized, V: Value + ?Sized, L: SearchLayer<K>, const N: usize> {
    first: AtomicPtr<Node<K, V, N>>,
    /// Changed under the lock of the last node.
    last: AtomicPtr<Node<K, V, N>>,
    pub updates: Updates<Node<K, V, N>, L>,
    pub collector: Collector,
    clock: Clock,
    pub len: StripedCounter,
    pub counters: Counters,
    pub leaf: NodeSearch,
    backoff: bool,
    update: Update,
    topology: Topology,
    pub pool: Pool,
}

// SAFETY: the anchor never changes, and references keep the node alive.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized, const N: usize> Anchored for Node<K, V, N> {
    type Key = K;

    fn anchor(&self) -> &K {
        self.anchor()
    }

    fn place(&self) -> usize {
        self.place()
    }

    #[inline]
    fn at_place(place: usize) -> usize {
        Self::at_place(place)
    }

    fn is_dead(&self) -> bool {
        self.is_dead()
    }

    unsafe fn release(&self, times: usize, guard: &Guard<'_>) {
        // SAFETY: the caller upholds the contract.
        unsafe { self.release(times, guard) }
    }
}

// SAFETY: nodes contain atomics and immutable anchors of types that are Send + Sync, shared as
// described at the top.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized, L: SearchLayer<K>, const N: usize> Send
    for DataList<K, V, L, N>
{
}
// SAFETY: as above.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized, L: SearchLayer<K>, const N: usize> Sync
    for DataList<K, V, L, N>
{
}

impl<K: Key + ?Sized, V: Value + ?Sized, L: SearchLayer<K>, const N: usize> DataList<K, V, L, N> {
    pub fn new(options: &HydraOptions) -> Self {
        // SAFETY: zeros are the number 0, and a tail without bytes is empty.
        let smallest: &K = unsafe { K::view((&raw const ZERO).cast(), (&raw const ZERO).cast()) };
        let pool = Node::<K, V, N>::pool();
        let first = Node::new(smallest, 1, &pool);
        Self {
            first: AtomicPtr::new(first),
            last: AtomicPtr::new(first),
            updates: Updates::new(options.topology.nodes(), options.lag_limit),
            collector: Collector::new(),
            clock: Clock::new(),
            len: StripedCounter::new(),
            counters: Counters::default(),
            leaf: options.leaf(),
            backoff: options.backoff,
            update: options.update,
            topology: options.topology.clone(),
            pool,
        }
    }

    #[inline]
    pub fn first<'g>(&self, _guard: &'g Guard<'_>) -> &'g Node<K, V, N> {
        // SAFETY: the pointer is set at the start and never changed. The first node lives as long
        // as the list, which the guard borrows through its collector.
        unsafe { &*self.first.load(Ordering::Relaxed) }
    }

    /// # Safety
    /// The pointer was read during the guard from where it referred to a node that was alive, or
    /// had a reference, at that time.
    #[inline]
    unsafe fn node<'g>(
        node: *const Node<K, V, N>,
        _guard: &'g Guard<'_>,
    ) -> Option<&'g Node<K, V, N>> {
        // SAFETY: a node that was alive or referenced during the guard is freed after it.
        unsafe { node.as_ref() }
    }

    /// Returns the successor of a node that was alive when the pointer was read; see the top.
    #[inline]
    fn next<'g>(node: &'g Node<K, V, N>, guard: &'g Guard<'_>) -> Option<&'g Node<K, V, N>> {
        let next = node.next.load(Ordering::Acquire);
        // SAFETY: callers hold the node's lock or a version of it, so it was alive during the
        // guard.
        unsafe { Self::node(next, guard) }
    }

    /// Returns the node at which the search layer says to start.
    #[inline]
    fn jump<'g>(&self, key: &K, guard: &'g Guard<'_>) -> &'g Node<K, V, N> {
        let layer = self.updates.layer(self.topology.node_of_this_thread());
        match layer.jump(key) {
            // SAFETY: the address was in the layer during the guard.
            Some(place) => unsafe { Updates::<Node<K, V, N>, L>::node_at(place) },
            None => self.first(guard),
        }
    }

    #[inline]
    fn lies_before(goal: Goal<'_, K>, node: &Node<K, V, N>) -> bool {
        match goal {
            Goal::At(head, key) => node.compare_anchor(head, key) == Order::Less,
            Goal::Before(head, key) => node.compare_anchor(head, key) != Order::Greater,
            Goal::Last => false,
        }
    }

    #[inline]
    fn lies_behind(goal: Goal<'_, K>, node: &Node<K, V, N>, next: Option<&Node<K, V, N>>) -> bool {
        let Some(next) = next else { return false };
        match goal {
            Goal::At(head, key) => node.compare_upper(head, key, next) != Order::Less,
            Goal::Before(head, key) => node.compare_upper(head, key, next) == Order::Greater,
            Goal::Last => true,
        }
    }

    /// Returns whether the goal is in the node's range. The result is valid if the node's token is
    /// valid afterwards.
    #[inline]
    fn is_in(goal: Goal<'_, K>, node: &Node<K, V, N>, next: Option<&Node<K, V, N>>) -> bool {
        let is_first = node.prev.load(Ordering::Acquire).is_null();
        (is_first || !Self::lies_before(goal, node)) && !Self::lies_behind(goal, node, next)
    }

    /// Scans to the node of the goal, and counts the steps.
    #[inline]
    fn scan_with<'g>(
        &self,
        from: &'g Node<K, V, N>,
        goal: Goal<'_, K>,
        steps: &mut usize,
        guard: &'g Guard<'_>,
    ) -> &'g Node<K, V, N> {
        let mut node = from;
        loop {
            let next = node.next.load(Ordering::Acquire);
            // Checked after the pointer was read. No thread stays at a dead node.
            let is_dead = notice!("hydralist.scan.dead", node.is_dead());
            let step_back = is_dead || Self::lies_before(goal, node);
            if step_back {
                // SAFETY: the `prev` of a live node refers to its predecessor, and that of a dead
                // one counts as a reference.
                let Some(prev) = (unsafe { Self::node(node.prev.load(Ordering::Acquire), guard) })
                else {
                    return node;
                };
                node = prev;
            } else {
                // SAFETY: the node was alive after the pointer was read, so the pointer was valid
                // at that time.
                let next = unsafe { Self::node(next, guard) };
                if !Self::lies_behind(goal, node, next) {
                    return node;
                }
                node = next.unwrap_or(node);
            }
            *steps += 1;
        }
    }

    /// Returns a version of the node for a reader, or `None` if the node is dead.
    #[inline]
    fn read<'g>(&self, node: &'g Node<K, V, N>) -> Option<Token<'g>> {
        let mut patience = Patience::new(self.backoff);
        loop {
            if let Some(token) = node.try_read().ok()? {
                return Some(token);
            }
            patience.wait();
        }
    }

    /// Takes the node's lock. Returns `None` if the node is dead.
    #[inline]
    fn lock<'g>(&self, node: &'g Node<K, V, N>) -> Option<WriteGuard<'g>> {
        let mut patience = Patience::new(self.backoff);
        loop {
            if let Some(version) = node.lock.try_read().ok()?
                && let Some(lock) = node.lock.try_upgrade(version)
            {
                return Some(lock);
            }
            patience.wait();
        }
    }

    /// Reads the goal's node. `read` receives the node, its successor and a token; its result
    /// counts if the token is valid afterwards.
    fn read_at<'g, R>(
        &self,
        from: &'g Node<K, V, N>,
        goal: Goal<'_, K>,
        guard: &'g Guard<'_>,
        mut read: impl FnMut(
            &'g Node<K, V, N>,
            Option<&'g Node<K, V, N>>,
            Token<'g>,
        ) -> Result<R, Changed>,
    ) -> R {
        let mut node = from;
        let mut failed = 0;
        let mut patience = Patience::new(self.backoff);
        loop {
            node = self.scan_with(node, goal, &mut 0, guard);
            if failed < LIMIT {
                point("hydralist.read.before_version");
                // The node has died in the meantime: the scan continues from there.
                let Some(token) = self.read(node) else { continue };
                let next = Self::next(node, guard);
                if !check!("hydralist.read.range", Self::is_in(goal, node, next)) {
                    continue;
                }
                let found = read(node, next, token);
                if let Ok(found) = found
                    && check!("hydralist.read.validate", token.holds())
                {
                    return found;
                }
                failed += 1;
                self.counters.retries.add(1);
                patience.wait();
            } else {
                let Some(lock) = self.lock(node) else { continue };
                let next = Self::next(node, guard);
                let found = if Self::is_in(goal, node, next) {
                    read(node, next, Token::Lock).ok()
                } else {
                    None
                };
                // The node was only read, so other readers' versions and the sorted order stay
                // valid.
                lock.unlock_unchanged();
                if let Some(found) = found {
                    return found;
                }
            }
        }
    }

    #[inline]
    fn find_from(
        &self,
        from: &Node<K, V, N>,
        head: u64,
        key: &K,
        guard: &Guard<'_>,
    ) -> Option<NodeEntry<K, V>> {
        self.read_at(from, Goal::At(head, key), guard, |node, _, _| {
            Ok(node.find(key, head, self.leaf).map(|(_, entry)| entry))
        })
    }

    /// Calls `read` with the value of the key.
    #[inline]
    pub fn get<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        let guard = self.collector.pin();
        let head = key.head();
        let start = self.jump(key, &guard);
        Node::prefetch(start);
        let entry = self.find_from(start, head, key, &guard)?;
        point("hydralist.get.before_value");
        // SAFETY: the entry was in the list during the guard.
        Some(unsafe { entry.with_value(read) })
    }

    /// Calls `each` with the value of every key, in order. The memory accesses of sixteen lookups
    /// overlap: those to the search layer, to the nodes, to the slots, and to the records.
    pub fn get_many<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let guard = self.collector.pin();
        let layer = self.updates.layer(self.topology.node_of_this_thread());
        let mut places = [None; LANES];
        let mut following = keys.iter();
        following.by_ref().take(LANES).for_each(|key| prefetch_key::<K>(key.borrow()));
        for (group, keys) in keys.chunks(LANES).enumerate() {
            let next = following.by_ref().take(LANES);
            next.for_each(|key| prefetch_key::<K>(key.borrow()));
            layer.jump_many(keys, &mut places[..keys.len()]);
            let starts: [&Node<K, V, N>; LANES] = std::array::from_fn(|lane| {
                let start = match places[lane] {
                    // SAFETY: the address was in the layer during the guard. A lane beyond the keys
                    // has an address from an earlier group under the same guard.
                    Some(place) => unsafe { Updates::<Node<K, V, N>, L>::node_at(place) },
                    None => self.first(&guard),
                };
                Node::prefetch(start);
                start
            });
            let mut slots = [None; LANES];
            for ((key, start), slot) in keys.iter().zip(&starts).zip(&mut slots) {
                *slot = start.prefetch_slot(key.borrow(), self.leaf);
            }
            if !NodeEntry::<K, V>::INLINE {
                for slot in slots.iter().flatten() {
                    slot.load::<K, V>().prefetch();
                }
            }
            for (lane, (key, start)) in keys.iter().zip(&starts).enumerate() {
                let key: &K = key.borrow();
                let at = group * LANES + lane;
                match self.find_from(start, key.head(), key, &guard) {
                    // SAFETY: the entry was in the list during the guard.
                    Some(entry) => unsafe { entry.with_value(|value| each(at, Some(value))) },
                    None => each(at, None),
                }
            }
        }
    }

    /// Reads, decides and writes under the lock of the key's node.
    pub fn modify<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        key.check()?;
        let restructured = {
            let guard = self.collector.pin();
            let head = key.head();
            let goal = Goal::At(head, key);
            let mut node = self.jump(key, &guard);
            Node::prefetch(node);
            let mut steps = 0;
            let lock = loop {
                node = self.scan_with(node, goal, &mut steps, &guard);
                point("hydralist.write.before_lock");
                let Some(lock) = self.lock(node) else { continue };
                let is_in = || Self::is_in(goal, node, Self::next(node, &guard));
                if check!("hydralist.write.range", is_in()) {
                    break lock;
                }
            };
            self.counters.jumped(steps);
            self.change_locked(node, lock, key, head, &mut change, &guard)?
        };
        if restructured {
            self.after_restructuring();
        }
        Ok(())
    }

    /// Executes the part of a change under the lock. Returns `true` if nodes were split or merged.
    fn change_locked<T, F>(
        &self,
        node: &Node<K, V, N>,
        lock: WriteGuard<'_>,
        key: &K,
        head: u64,
        change: &mut F,
        guard: &Guard<'_>,
    ) -> Result<bool, Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        let found = node.find(key, head, self.leaf);
        let Some((at, entry)) = found else {
            let Change::Put(value) = change(None) else {
                lock.unlock_unchanged();
                return Ok(false);
            };
            let value = value.borrow();
            value.check()?;
            let entry = NodeEntry::new(key, value);
            self.len.add(1);
            if node.is_full() {
                self.split(node, entry, guard);
                return Ok(true);
            }
            node.add(entry, self.leaf);
            return Ok(false);
        };
        // SAFETY: the entry is in the node, whose lock is held.
        match unsafe { entry.with_value(|value| change(Some(value))) } {
            Change::Keep => {
                lock.unlock_unchanged();
                Ok(false)
            }
            Change::Put(value) => {
                let value = value.borrow();
                value.check()?;
                // SAFETY: as above.
                let replaced = unsafe { entry.replace(node.slot(at), key, value) };
                drop(lock);
                if replaced {
                    point("hydralist.change.before_retire");
                    // SAFETY: the record has left its only slot.
                    unsafe { entry.retire(guard) };
                }
                Ok(false)
            }
            Change::Remove => {
                node.take(at, self.leaf);
                self.len.add(-1);
                let left = node.len();
                drop(lock);
                point("hydralist.change.before_retire");
                // SAFETY: the record has left its slot.
                unsafe { entry.retire(guard) };
                // If two neighbours fit together, one of them has at most this many entries.
                Ok(left <= Node::<K, V, N>::MERGED / 2 && self.merge_around(node, guard))
            }
        }
    }

    /// Splits a full node at its median and adds the entry to the half to which it belongs. The
    /// caller holds the lock.
    fn split(&self, node: &Node<K, V, N>, entry: NodeEntry<K, V>, guard: &Guard<'_>) {
        let made = node.split_off(self.leaf, 1 + self.updates.replicas(), entry, &self.pool);
        // SAFETY: the node is new, and cannot die before the lock is released.
        let upper = unsafe { &*made };
        let time = self.clock.after(node.stamp.load(Ordering::Relaxed));
        node.stamp.store(time, Ordering::Relaxed);
        upper.stamp.store(time, Ordering::Relaxed);
        let next = node.next.load(Ordering::Relaxed);
        debug_assert!(!node.is_dead() && node.anchor_head() <= upper.anchor_head());
        upper.set_next(next, node.upper_head());
        upper.prev.store(std::ptr::from_ref(node).cast_mut(), Ordering::Release);
        // From here on, other threads can reach the new node through its successor. It is complete,
        // and its entries are nowhere else. SAFETY: the successor of a locked node is alive.
        match unsafe { Self::node(next, guard) } {
            Some(next) => next.prev.store(made, Ordering::Release),
            None => self.last.store(made, Ordering::Release),
        }
        point("hydralist.split.half_linked");
        node.set_next(made, upper.anchor_head());
        // SAFETY: the node was created with the references of the log entry.
        unsafe { self.updates.log(time, NodeEvent::Made, upper) };
        self.update_inside(guard);
        self.counters.splits.add(1);
    }

    /// Merges the node with a neighbour, if they fit into one node.
    fn merge_around(&self, node: &Node<K, V, N>, guard: &Guard<'_>) -> bool {
        // SAFETY: as in `scan`.
        let prev = unsafe { Self::node(node.prev.load(Ordering::Acquire), guard) };
        if prev.is_some_and(|prev| self.merge(prev, node, guard)) {
            return true;
        }
        let next = node.next.load(Ordering::Acquire);
        if node.is_dead() {
            return false;
        }
        // SAFETY: the node was alive after the pointer was read.
        let next = unsafe { Self::node(next, guard) };
        next.is_some_and(|next| self.merge(node, next, guard))
    }

    /// Merges `right` into `left`, if they are neighbours and fit into half a node.
    fn merge(&self, left: &Node<K, V, N>, right: &Node<K, V, N>, guard: &Guard<'_>) -> bool {
        let fit = || left.len() + right.len() <= Node::<K, V, N>::MERGED;
        if !fit() {
            return false;
        }
        point("hydralist.merge.before_locks");
        let Some(left_lock) = self.lock(left) else { return false };
        let are_neighbours =
            std::ptr::eq(left.next.load(Ordering::Acquire), std::ptr::from_ref(right));
        if !check!("hydralist.merge.neighbours", are_neighbours) {
            left_lock.unlock_unchanged();
            return false;
        }
        let Some(right_lock) = self.lock(right) else {
            left_lock.unlock_unchanged();
            return false;
        };
        if !check!("hydralist.merge.fit", fit()) {
            right_lock.unlock_unchanged();
            left_lock.unlock_unchanged();
            return false;
        }
        let time = left.stamp.load(Ordering::Relaxed).max(right.stamp.load(Ordering::Relaxed));
        let time = self.clock.after(time);
        left.stamp.store(time, Ordering::Relaxed);
        left.absorb(right, self.leaf);
        let next = right.next.load(Ordering::Relaxed);
        // SAFETY: the successor of a locked node is alive.
        match unsafe { Self::node(next, guard) } {
            Some(next) => next.prev.store(std::ptr::from_ref(left).cast_mut(), Ordering::Release),
            None => self.last.store(std::ptr::from_ref(left).cast_mut(), Ordering::Release),
        }
        left.set_next(next, right.upper_head());
        // For the path from the dead node to its heir, and for the log entries.
        left.refer(1);
        right.refer(self.updates.replicas());
        point("hydralist.merge.before_death");
        // Marked dead before it is logged: see `updates`.
        right_lock.unlock_obsolete();
        // SAFETY: the references were taken above.
        unsafe { self.updates.log(time, NodeEvent::Died, right) };
        self.update_inside(guard);
        self.counters.merges.add(1);
        if right.anchor_bytes() == 0 {
            self.pool.forget();
        }
        drop(left_lock);
        // SAFETY: this is the list's own reference; the guard keeps the node alive until the caller
        // returns.
        unsafe { right.release(1, guard) };
        true
    }

    /// Applies the update within the critical section, for [`Update::Inside`]. A thread that
    /// applies updates takes no node's lock, so the caller may hold some.
    fn update_inside(&self, guard: &Guard<'_>) {
        if self.update == Update::Inside {
            self.updates.run(guard);
        }
    }

    /// Makes the search layers follow the change. Called without locks, and without a guard except
    /// that of the caller's batch.
    fn after_restructuring(&self) {
        match self.update {
            Update::Synchronous => self.updates.run(&self.collector.pin()),
            Update::Background => {
                self.updates.wake();
                self.updates.wait_for_limit();
            }
            Update::Inside => {}
            Update::OnDemand => self.updates.wait_for_limit(),
        }
    }

    /// Applies all logged updates, or waits for them.
    pub fn settle(&self) {
        match self.update {
            Update::Background => self.updates.wait_until_applied(),
            Update::Synchronous | Update::Inside | Update::OnDemand => {
                self.updates.run(&self.collector.pin())
            }
        }
    }

    /// Returns all live nodes, in order. They do not change while no thread writes.
    pub fn nodes<'g>(&self, guard: &'g Guard<'_>) -> impl Iterator<Item = &'g Node<K, V, N>> {
        std::iter::successors(Some(self.first(guard)), |node| Self::next(node, guard))
    }

    pub fn last<'g>(&self, _guard: &'g Guard<'_>) -> &'g Node<K, V, N> {
        // SAFETY: the last node is alive when it is read there.
        unsafe { &*self.last.load(Ordering::Acquire) }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, L: SearchLayer<K>, const N: usize> DataList<K, V, L, N> {
    fn free_nodes(&mut self) {
        let mut node = self.first.load(Ordering::Relaxed);
        while !node.is_null() {
            // SAFETY: this thread owns the list. A live node is in it once, and dead ones belong to
            // the collector.
            unsafe {
                (*node).free_entries();
                let next = (*node).next.load(Ordering::Relaxed);
                Node::free(node);
                node = next;
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, L: SearchLayer<K>, const N: usize> Drop
    for DataList<K, V, L, N>
{
    fn drop(&mut self) {
        // Dead nodes are then in no log and no layer, so they are retired. If a search layer
        // panics, it loses one update each time, which was reported.
        let run = || self.updates.run(&self.collector.pin());
        while catch_unwind(AssertUnwindSafe(run)).is_err() {}
        self.free_nodes();
    }
}

/// Waits for another thread's critical section.
struct Patience {
    backoff: Option<Backoff>,
}

impl Patience {
    fn new(on: bool) -> Self {
        Self { backoff: on.then(Backoff::new) }
    }

    /// Waits longer each time, and finally for a random time, so that two threads do not stay
    /// synchronized (§4.6.2). Without back-off, retries at once.
    #[cold]
    fn wait(&mut self) {
        let Some(backoff) = &mut self.backoff else { return spin_hint() };
        if backoff.is_long() {
            random_spin();
        }
        backoff.wait();
    }
}

/// Spins a random number of times, up to 255.
fn random_spin() {
    thread_local! {
        static STATE: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    let spins = STATE.with(|state| {
        let seed = (&raw const *state).addr() as u64 | 1;
        let next = state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
        state.set(next);
        next >> 56
    });
    // Under a model checker, every spin switches threads.
    let spins = if cfg!(any(loom, shuttle)) { 1 } else { spins };
    (0..spins).for_each(|_| spin_hint());
}
