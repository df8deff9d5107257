//! PI: batches over a SIMD index layer, without latches.
//!
//! A sorted list of data nodes below packed levels of keys. A batch of queries is sorted, cut so
//! that each node is accessed by one thread only, and executed in groups whose memory accesses
//! overlap. The levels never change: new ones are built in the background and swapped in between
//! batches.
//!
//! ```
//! use ordna_papers::pi::{Answer, Pi, Query};
//!
//! let index: Pi<u64, u64> = Pi::new();
//! let batch = [
//!     Query::Insert(&1988, &94_393),
//!     Query::Insert(&1632, &177_074),
//!     Query::Search(&1988),
//!     Query::Delete(&1632),
//! ];
//! let answers = index.execute(&batch)?;
//! assert!(matches!(answers[2], Answer::Value(Some(94_393))));
//! assert!(matches!(answers[3], Answer::Value(Some(177_074))));
//! # Ok::<(), ordna_papers::Error>(())
//! ```
//!
//! | part | holds |
//! |---|---|
//! | `node` | data nodes: up to 32 entries behind a version |
//! | `storage`, `storage_scan` | the list: how readers follow it, how owners change it |
//! | `layer` | the index layer: one cache line of keys compared at once, level by level |
//! | `execute`, `batch`, `sort` | the executor: order, cuts at interceptions, groups |
//! | `ranges` | range queries of a batch: split between pieces, joined |
//! | `crew` | turns among writers; the worker pool |
//! | `rebuild` | the layer's rebuilding in the background |
//!
//! # Concurrency
//! Batches with writes, and single writes, which are batches of one, run one after the other.
//! Callers that wait work for the batch in progress. Reads never wait for a turn: single lookups,
//! scans and `get_many` are optimistic and validate the version of the one node that they read. No
//! query ever takes the rebuild lock.
//!
//! Source: Xie, Cai, Jagadish, Ooi, Wong: "PI: a Parallel in-memory skip list based Index" (2016).

mod batch;
mod bytes;
mod crew;
mod execute;
mod layer;
mod node;
mod query;
mod ranges;
mod rebuild;
mod sort;
mod storage;
mod storage_scan;

use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::sync::Arc;

use self::crew::Crew;
use self::execute::{GROUP, PIECE, Traversal};
use self::node::{CAPACITY, DataEntry, Node};
use self::rebuild::{Plan, Rebuilder, Shared};
use self::storage::{Contended, Owner, Storage};
use crate::topology::Topology;
use ordna_base::index::{
    Bounds, Change, Direction, InvariantReport, MemoryUsage, OrderedIndex, check_pairs,
};
use ordna_base::reclaim::Guard;
use ordna_base::simd::InstructionSet;
use ordna_base::{Error, Key, Value, Violation};

pub use query::{Answer, Query};

/// Options of an index, with switches for its optimizations.
#[derive(Debug, Clone)]
pub struct PiOptions {
    /// Number of threads in the pool that share the work of batches with the caller. With 0, only
    /// callers work.
    pub workers: usize,
    /// Percentage of nodes changed since the last rebuild at which the next one is due. A rebuild
    /// is also due when writes, because the layer is stale, have scanned as many extra nodes as
    /// there are.
    pub rebuild_threshold: usize,
    /// Number of threads that share a rebuild.
    pub rebuild_threads: usize,
    /// Whether a background thread rebuilds, rather than the thread whose write made the rebuild
    /// due.
    pub rebuild_in_background: bool,
    /// The instruction set for comparisons of keys.
    pub instructions: InstructionSet,
    /// Number of queries that descend the layer together, at most 32. With 1 they descend one at a
    /// time.
    pub group: usize,
    /// Whether the memory that a group needs next is prefetched.
    pub prefetch: bool,
    /// Assignment of the key range and the threads to NUMA nodes. Threads first do the pieces of
    /// their own node. Workers are bound to their node. Memory is not moved.
    pub topology: Topology,
    /// Minimum number of queries for which a batch uses another thread.
    pub piece: usize,
    /// Number of entries at which a data node is split, 2 to 32. Fewer than 32 only for tests.
    pub node_entries: usize,
}

impl Default for PiOptions {
    fn default() -> Self {
        Self {
            workers: 0,
            rebuild_threshold: 15,
            rebuild_threads: 1,
            rebuild_in_background: true,
            instructions: InstructionSet::widest(),
            group: GROUP,
            prefetch: true,
            topology: Topology::system(),
            piece: PIECE,
            node_entries: CAPACITY,
        }
    }
}

/// An ordered map for batches; see the [module](self).
pub struct Pi<K: Key + ?Sized, V: Value + ?Sized> {
    shared: Arc<Shared<K, V>>,
    crew: Crew,
    how: Traversal,
}

crate::shell!("Pi" [K: Key + ?Sized, V: Value + ?Sized] Pi<K, V>);

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Pi<K, V> {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Pi<K, V> {
    /// Creates an empty index with the default options.
    pub fn new() -> Self {
        Self::with(&PiOptions::default())
    }

    /// Creates an empty index. Options outside their bounds are set to the nearest bound.
    pub fn with(options: &PiOptions) -> Self {
        let limit = options.node_entries.clamp(2, CAPACITY);
        // The default key, 0 or the empty string, is the smallest of its kind.
        let storage = Storage::new(K::Owned::default(), options.instructions, limit);
        let rebuilder = Rebuilder::new(Plan {
            threshold: options.rebuild_threshold,
            threads: options.rebuild_threads,
            in_background: options.rebuild_in_background,
        });
        let (group, piece) = (options.group.clamp(1, GROUP), options.piece);
        let how = Traversal { group, prefetch: options.prefetch, piece };
        let crew = Crew::new(options.workers, options.topology.clone());
        Self { shared: Arc::new(Shared { storage, rebuilder }), crew, how }
    }

    /// Rebuilds the index layer now, on the calling thread and [`PiOptions::rebuild_threads`] − 1
    /// others. Queries continue concurrently.
    pub fn rebuild(&self) {
        self.shared.rebuild();
    }

    /// Returns the number of data nodes that the index layer names. Nodes that were split off after
    /// its construction are not included.
    pub fn places(&self) -> usize {
        let guard = self.storage().collector.pin();
        self.storage().layer(&guard).len()
    }

    /// Runs `body` while the rebuild lock is held. For tests: queries must not need that lock.
    #[doc(hidden)]
    pub fn while_rebuild_is_locked<R>(&self, body: impl FnOnce() -> R) -> R {
        let _lock = self.shared.rebuilder.lock();
        body()
    }

    /// Returns the numbers of pieces that threads of their own NUMA node and other threads have
    /// done.
    pub fn pieces_done(&self) -> (usize, usize) {
        self.crew.done()
    }

    fn storage(&self) -> &Storage<K, V> {
        &self.shared.storage
    }

    /// Returns the entry of a key.
    #[inline]
    fn find(&self, key: &K, guard: &Guard<'_>) -> Option<DataEntry<K, V>> {
        let storage = self.storage();
        let layer = storage.layer(guard);
        self.find_at(key, layer, layer.route(key, storage.set))
    }

    #[inline]
    fn find_at(
        &self,
        key: &K,
        layer: &layer::Layer<K, V>,
        place: usize,
    ) -> Option<DataEntry<K, V>> {
        let storage = self.storage();
        match storage.get(key, layer, place) {
            Ok(found) => found,
            Err(Contended) => self.find_in_turn(key, layer, place),
        }
    }

    /// Finds the entry of a key while no thread writes.
    #[cold]
    fn find_in_turn(
        &self,
        key: &K,
        layer: &layer::Layer<K, V>,
        place: usize,
    ) -> Option<DataEntry<K, V>> {
        let _turn = self.crew.enter();
        loop {
            // No thread writes, so the first attempt validates.
            if let Ok(found) = self.storage().get(key, layer, place) {
                return found;
            }
        }
    }
}

#[expect(unsafe_code, reason = "entries of validated nodes, and the owner of the whole list")]
impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Pi<K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        let guard = self.storage().collector.pin();
        let entry = self.find(key, &guard)?;
        // SAFETY: validated under the guard.
        Some(unsafe { entry.with_value(read) })
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        key.check()?;
        let storage = self.storage();
        let turn = self.crew.enter();
        let done = {
            let guard = storage.collector.pin();
            let layer = storage.layer(&guard);
            // SAFETY: this thread has the turn, so there is no other owner.
            let mut owner = unsafe { Owner::new(storage, layer, &guard, (None, None)) };
            owner.modify(key, layer.route(key, storage.set), change)
        };
        drop(turn);
        self.shared.rebuild_if_due();
        done
    }

    fn scan_with(
        &self,
        (lower, upper): Bounds<'_, K>,
        direction: Direction,
        _limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let guard = self.storage().collector.pin();
        match direction {
            Direction::Ascending => self.storage().ascend(lower, upper, &guard, visit),
            Direction::Descending => self.storage().descend(lower, upper, &guard, visit),
        }
    }

    fn pin(&self) -> Option<Guard<'_>> {
        Some(self.storage().collector.pin())
    }

    fn approximate_len(&self) -> usize {
        self.storage().len.sum()
    }

    fn memory_usage(&self) -> MemoryUsage {
        let storage = self.storage();
        let guard = storage.collector.pin();
        let (mut nodes, mut anchors, mut records) = (0, 0, 0);
        let mut at = Some(storage.first());
        while let Some(node) = at {
            nodes += size_of::<Node<K, V>>();
            anchors += node.anchor().tail().len();
            // SAFETY: no thread writes concurrently, as the contract of this function requires.
            // Even if one did, the guard would keep the records alive.
            node.records(|record| records += unsafe { record.size() });
            at = node.next();
        }
        let layer = storage.layer(&guard).size();
        let parts =
            vec![("nodes", nodes), ("anchors", anchors), ("records", records), ("layer", layer)];
        MemoryUsage { parts }
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        let _lock = self.shared.rebuilder.lock();
        self.storage().check_invariants()
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let storage = self.storage();
        let guard = storage.collector.pin();
        let layer = storage.layer(&guard);
        let mut places = [0; GROUP];
        let mut first = 0;
        for group in keys.chunks(self.how.group) {
            let places = &mut places[..group.len()];
            storage.route_group(layer, self.how, places, |at| group[at].borrow());
            for (at, (key, place)) in group.iter().zip(places).enumerate() {
                match self.find_at(key.borrow(), layer, *place) {
                    // SAFETY: validated under the guard.
                    Some(entry) => unsafe { entry.with_value(|v| each(first + at, Some(v))) },
                    None => each(first + at, None),
                }
            }
            first += group.len();
        }
    }

    fn insert_many<Q, W>(&self, pairs: &[(Q, W)]) -> Result<usize, Error>
    where
        Q: Borrow<K>,
        W: Borrow<V>,
    {
        // References can be shared among threads whatever the type of the pairs is, and the checked
        // values are the ones that are written.
        let pairs: Vec<(&K, &V)> = pairs.iter().map(|(k, v)| (k.borrow(), v.borrow())).collect();
        check_pairs::<K, V, _, _>(&pairs)?;
        let key = |at: usize| pairs[at].0;
        Ok(self.change_many(pairs.len(), key, |at| Some(pairs[at].1), |present| !present))
    }

    fn remove_many<Q: Borrow<K>>(&self, keys: &[Q]) -> usize {
        let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
        let key = |at: usize| keys[at];
        self.change_many(keys.len(), key, |_| None, |present| present)
    }
}
