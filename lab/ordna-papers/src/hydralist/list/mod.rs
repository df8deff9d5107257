//! The data list: lookups, changes, splits and merges.
//!
//! # Contract
//! Any number of threads call the operations at once. Each holds a guard of the collector, and
//! starts at a node that the search layer names, or at the first.
//!
//! # Invariants
//! 1. A live node holds the keys from its anchor up to the anchor of its successor. The first node
//!    has the smallest key for an anchor and never dies. So every key has one live node.
//! 2. `next` and the upper bound change under the node's own lock, `prev` under that of the
//!    predecessor, which is the one whose `next` points here.
//! 3. A node dies by being merged into its predecessor, under both locks, taken from left to right.
//!    Its lock is then obsolete, and its `prev` never changes again: it leads to the node that has
//!    its range.
//! 4. A dead node's `prev` counts as a reference to the heir. So the way exists as long as any
//!    thread can come to the dead node (see `node`). Its `next` does not: no thread follows it.
//!
//! # Finding the node of a key
//! From wherever the search began: off a dead node to its heir, back while the anchor is above the
//! key, forward while the end is not. `next` is followed if the node is seen alive *after* the
//! pointer was read: then it pointed to a live node during the caller's guard. That finds the right
//! node whatever the search layer says; whether it is right is decided under a version or the lock:
//!
//! - a reader takes a version, checks that the key is in range, looks for it, validates, and only
//!   then uses what it found. It linearizes at a moment between the two;
//! - a writer takes the lock and checks the range again. It linearizes where it unlocks.
//!
//! # Progress
//! Finding a node is lock-free. A reader whose versions did not hold [`LIMIT`] times takes the
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

/// How often a reader validates in vain before it takes the lock.
pub const LIMIT: u32 = 16;

/// The fixed part of the smallest key of each kind.
static ZERO: u64 = 0;

/// How many lookups of a batch are under way at once.
const LANES: usize = 16;

/// The key whose node a descent looks for.
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

/// The data list with what it stands on.
pub struct DataList<K: Key + ?Sized, V: Value + ?Sized, L: SearchLayer<K>, const N: usize> {
    first: AtomicPtr<Node<K, V, N>>,
    /// Written under the lock of the last node.
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

// SAFETY: the anchor never changes; references keep the node.
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
        // SAFETY: handed on from the caller.
        unsafe { self.release(times, guard) }
    }
}

// SAFETY: nodes are atomics and immutable anchors of Send + Sync kinds, shared as the top says.
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
        // SAFETY: zeroes are the number 0, and a tail of no bytes is empty.
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
        // SAFETY: set at the start, never changed; the first node dies with the list, which the
        // guard borrows by its collector.
        unsafe { &*self.first.load(Ordering::Relaxed) }
    }

    /// # Safety
    /// The pointer was read during the guard from where it pointed to a node that was alive, or had
    /// a reference, at that time.
    #[inline]
    unsafe fn node<'g>(
        node: *const Node<K, V, N>,
        _guard: &'g Guard<'_>,
    ) -> Option<&'g Node<K, V, N>> {
        // SAFETY: what was alive or referenced during the guard is freed after it.
        unsafe { node.as_ref() }
    }

    /// The successor of a node that was alive when it was read; see the top.
    #[inline]
    fn next<'g>(node: &'g Node<K, V, N>, guard: &'g Guard<'_>) -> Option<&'g Node<K, V, N>> {
        let next = node.next.load(Ordering::Acquire);
        // SAFETY: callers hold the node's lock or a version of it, so it was alive during the
        // guard.
        unsafe { Self::node(next, guard) }
    }

    /// Where the search layer says to begin.
    #[inline]
    fn jump<'g>(&self, key: &K, guard: &'g Guard<'_>) -> &'g Node<K, V, N> {
        let layer = self.updates.layer(self.topology.node_of_this_thread());
        match layer.jump(key) {
            // SAFETY: the place was in the layer during the guard.
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

    /// Whether the goal is in the node's range. Right if the node's token holds afterwards.
    #[inline]
    fn is_in(goal: Goal<'_, K>, node: &Node<K, V, N>, next: Option<&Node<K, V, N>>) -> bool {
        let is_first = node.prev.load(Ordering::Acquire).is_null();
        (is_first || !Self::lies_before(goal, node)) && !Self::lies_behind(goal, node, next)
    }

    /// Scans to the node of the goal; counts the steps.
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
            // Looked at after the pointer was read. No thread stays at a dead node.
            let is_dead = notice!("hydralist.scan.dead", node.is_dead());
            let step_back = is_dead || Self::lies_before(goal, node);
            if step_back {
                // SAFETY: a live node's `prev` points to its predecessor, a dead one's has a
                // reference.
                let Some(prev) = (unsafe { Self::node(node.prev.load(Ordering::Acquire), guard) })
                else {
                    return node;
                };
                node = prev;
            } else {
                // SAFETY: the node was alive after the pointer was read, so then it had been right.
                let next = unsafe { Self::node(next, guard) };
                if !Self::lies_behind(goal, node, next) {
                    return node;
                }
                node = next.unwrap_or(node);
            }
            *steps += 1;
        }
    }

    /// A version of the node to read under; `None` if it is dead.
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

    /// The node's lock; `None` if it is dead.
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

    /// Reads the goal's node: `read` is given it, its successor and a token, and what it returns
    /// counts if the token holds.
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
                // A node that died meanwhile: the scan goes on from there.
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
                // It has read: other readers' versions, and the sorted order, stay valid.
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
    /// overlap: those of the search layer, of the nodes, of the slots, and of the records.
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
                    // SAFETY: the place was in the layer during the guard; a lane beyond the keys
                    // has one of an earlier group, under the same guard.
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

    /// The part of a change under the lock; `true` if nodes were split or merged.
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
        // SAFETY: the entry stands in the node, whose lock is held.
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
                // SAFETY: it has left its slot.
                unsafe { entry.retire(guard) };
                // Of two neighbours that fit together, one has at most this many.
                Ok(left <= Node::<K, V, N>::MERGED / 2 && self.merge_around(node, guard))
            }
        }
    }

    /// Splits a full node at its median and adds the entry to the right half. The caller holds the
    /// lock.
    fn split(&self, node: &Node<K, V, N>, entry: NodeEntry<K, V>, guard: &Guard<'_>) {
        let made = node.split_off(self.leaf, 1 + self.updates.replicas(), entry, &self.pool);
        // SAFETY: new, and it cannot die before the lock is given up.
        let upper = unsafe { &*made };
        let time = self.clock.after(node.stamp.load(Ordering::Relaxed));
        node.stamp.store(time, Ordering::Relaxed);
        upper.stamp.store(time, Ordering::Relaxed);
        let next = node.next.load(Ordering::Relaxed);
        debug_assert!(!node.is_dead() && node.anchor_head() <= upper.anchor_head());
        upper.set_next(next, node.upper_head());
        upper.prev.store(std::ptr::from_ref(node).cast_mut(), Ordering::Release);
        // From here on the new node is known, from behind: whole, and what it holds is nowhere
        // else. SAFETY: the successor of a locked node is alive.
        match unsafe { Self::node(next, guard) } {
            Some(next) => next.prev.store(made, Ordering::Release),
            None => self.last.store(made, Ordering::Release),
        }
        point("hydralist.split.half_linked");
        node.set_next(made, upper.anchor_head());
        // SAFETY: it was made with the line's references.
        unsafe { self.updates.log(time, NodeEvent::Made, upper) };
        self.update_inside(guard);
        self.counters.splits.add(1);
    }

    /// Merges the node with a neighbour, if they fit.
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
        // For the way from the dead node to its heir, and for the lines in the logs.
        left.refer(1);
        right.refer(self.updates.replicas());
        point("hydralist.merge.before_death");
        // Dead before it is logged: see `updates`.
        right_lock.unlock_obsolete();
        // SAFETY: the references were taken above.
        unsafe { self.updates.log(time, NodeEvent::Died, right) };
        self.update_inside(guard);
        self.counters.merges.add(1);
        if right.anchor_bytes() == 0 {
            self.pool.forget();
        }
        drop(left_lock);
        // SAFETY: the list's own reference; the guard keeps the node until the caller is done.
        unsafe { right.release(1, guard) };
        true
    }

    /// Carries the step out within the critical section, for [`Update::Inside`]. No thread that
    /// carries out steps takes a node's lock, so the caller may hold some.
    fn update_inside(&self, guard: &Guard<'_>) {
        if self.update == Update::Inside {
            self.updates.run(guard);
        }
    }

    /// Sees to it that the search layers follow. Holds no locks; a guard only if its caller's batch
    /// does.
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

    /// Carries out, or waits for, all that is logged.
    pub fn settle(&self) {
        match self.update {
            Update::Background => self.updates.wait_until_applied(),
            Update::Synchronous | Update::Inside | Update::OnDemand => {
                self.updates.run(&self.collector.pin())
            }
        }
    }

    /// All live nodes, in order. They do not change while no thread writes.
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
            // SAFETY: the list is this thread's own; a live node is in it once, and dead ones are
            // the collector's.
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
        // Dead nodes are then in no log and no layer, so they are retired. A search layer that
        // panics loses a step each time, and has said so.
        let run = || self.updates.run(&self.collector.pin());
        while catch_unwind(AssertUnwindSafe(run)).is_err() {}
        self.free_nodes();
    }
}

/// Waiting for another thread's critical section.
struct Patience {
    backoff: Option<Backoff>,
}

impl Patience {
    fn new(on: bool) -> Self {
        Self { backoff: on.then(Backoff::new) }
    }

    /// Waits longer each time, a random while at last, so that two threads do not stay in step
    /// (§4.6.2). Without back-off: tries again at once.
    #[cold]
    fn wait(&mut self) {
        let Some(backoff) = &mut self.backoff else { return spin_hint() };
        if backoff.is_long() {
            random_spin();
        }
        backoff.wait();
    }
}

/// Spins up to 255 times.
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
    // Under a model checker every spin is a switch.
    let spins = if cfg!(any(loom, shuttle)) { 1 } else { spins };
    (0..spins).for_each(|_| spin_hint());
}
