//! HydraList: a list of slotted nodes that is always correct, with search layers that lag behind.
//!
//! ```
//! use ordna_papers::{HydraList, OrderedIndex};
//!
//! let index: HydraList<[u8], u64> = HydraList::new();
//! index.insert(b"Lund", &94_393)?;
//! index.insert(b"Uppsala", &177_074)?;
//! assert_eq!(index.get(b"Lund"), Some(94_393));
//! let first = index.range(..).next();
//! assert_eq!(first, Some((b"Lund".to_vec(), 94_393)));
//! # Ok::<(), ordna_papers::Error>(())
//! ```
//!
//! Entries are in nodes with up to 64 slots, which form a doubly linked list. A search layer maps
//! the smallest possible key of each node, its *anchor*, to the node. A split or merge is complete
//! when the list is changed. It is recorded in a log, from which background threads update the
//! search layer, or one search layer per NUMA node. An operation that reaches a node too far to the
//! left or right, or an obsolete node, continues with a scan of the list.
//!
//! Point operations are linearizable. They take O(length of the key) in the search layer, then one
//! node and usually no scan. Scans are live, as [`OrderedIndex`] defines, and copy a few entries at
//! a time. Readers do not write shared memory, with two exceptions: the first scan through a node
//! after a write stores the sorted order of its slots, and with several search layers one operation
//! in 64 is counted.
//!
//! | file | contents |
//! |---|---|
//! | `entry` | the contents of a slot, for all types of keys and values |
//! | `node`, `node::run` | a data node: layout, search, sorted order, references; scans of one |
//! | `order` | computation of the sorted order of a node |
//! | `list`, `list::node_scan` | lookups, changes, splits and merges; scans |
//! | [`layer`] | search layers |
//! | [`updates`] | logs, combiner, updaters |
//!
//! Source: "HydraList: A Scalable In-Memory Index Using Asynchronous Updates and Partial
//! Replication" (Mathew and Min, VLDB 2020), §3 to §5 and §10. The top of each file describes what
//! differs from it.

mod entry;
mod invariants;
pub mod layer;
mod list;
mod node;
mod options;
mod stats;
pub mod updates;

use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use self::layer::ArtLayer;
use self::list::DataList;
use self::node::{MOST, Node};
pub use self::options::{HydraOptions, Update};
pub use self::stats::HydraStatistics;
use crate::search_layer::SearchLayer;
use crate::topology::Topology;
use ordna_base::index::{Bounds, Change, Direction, InvariantReport, MemoryUsage, OrderedIndex};
use ordna_base::reclaim::Guard;
use ordna_base::{Error, Key, Value, Violation};

/// An ordered map: a list of nodes with `N` slots (2 to 64) below search layers of type `L`. See
/// the [module](self).
pub struct HydraList<K, V, L = ArtLayer<K>, const N: usize = MOST>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    L: SearchLayer<K>,
{
    list: Arc<DataList<K, V, L, N>>,
    threads: Vec<JoinHandle<()>>,
}

crate::shell!("HydraList" [K: Key + ?Sized, V: Value + ?Sized, L: SearchLayer<K>, const N: usize] HydraList<K, V, L, N>);

impl<K, V, L, const N: usize> HydraList<K, V, L, N>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    L: SearchLayer<K>,
{
    /// Creates an empty index with all features enabled.
    pub fn new() -> Self {
        Self::with(&HydraOptions::default())
    }

    /// Creates an empty index with these options. If the system cannot start threads for background
    /// updates, updates are synchronous.
    pub fn with(options: &HydraOptions) -> Self {
        let mut options = options.clone();
        if options.update == Update::Background {
            let list = Arc::new(DataList::new(&options));
            if let Ok(threads) = Self::start(&list, &options.topology) {
                return Self { list, threads };
            }
            options.update = Update::Synchronous;
        }
        Self { list: Arc::new(DataList::new(&options)), threads: Vec::new() }
    }

    fn start(
        list: &Arc<DataList<K, V, L, N>>,
        topology: &Topology,
    ) -> std::io::Result<Vec<JoinHandle<()>>> {
        type Body<K, V, L, const N: usize> = Box<dyn Fn(&DataList<K, V, L, N>) + Send>;
        let mut bodies: Vec<Body<K, V, L, N>> =
            vec![Box::new(|list| list.updates.combine_in_background(&list.collector))];
        let replicas = list.updates.replicas();
        for replica in (0..replicas).filter(|_| replicas > 1) {
            let topology = topology.clone();
            bodies.push(Box::new(move |list| {
                // This thread allocates the nodes of a search layer, so the memory is local to
                // their NUMA node.
                topology.bind_this_thread(replica);
                list.updates.apply_in_background(replica, &list.collector);
            }));
        }
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for body in bodies {
            let shared = list.clone();
            let thread = std::thread::Builder::new().name("hydralist".to_owned());
            // A panic of the search layer has been reported. The updates after it must still be
            // applied.
            let survive =
                move || while catch_unwind(AssertUnwindSafe(|| body(&shared))).is_err() {};
            match thread.spawn(survive) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    list.updates.stop();
                    threads.drain(..).for_each(|thread| drop(thread.join()));
                    return Err(error);
                }
            }
        }
        Ok(threads)
    }

    /// Updates the search layers on the calling thread. The index is correct without it; it is for
    /// [`Update::OnDemand`].
    pub fn follow(&self) {
        self.list.updates.run(&self.list.collector.pin());
    }

    /// Returns the counts of the index since its creation. Those of other threads' writes in
    /// progress may be missing.
    pub fn statistics(&self) -> HydraStatistics {
        let counters = &self.list.counters;
        HydraStatistics {
            jumps: counters.jumps(),
            splits: counters.splits.sum(),
            merges: counters.merges.sum(),
            retries: counters.retries.sum(),
            lag: self.list.updates.lag(),
            stalls: self.list.updates.stalls.sum(),
            skipped: self.list.updates.skipped.sum(),
            looks: self.list.updates.looks.sum(),
            reads: self.list.updates.reads(),
        }
    }
}

impl<K, V, L, const N: usize> Drop for HydraList<K, V, L, N>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    L: SearchLayer<K>,
{
    fn drop(&mut self) {
        self.list.updates.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl<K, V, L, const N: usize> OrderedIndex for HydraList<K, V, L, N>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    L: SearchLayer<K>,
{
    type Key = K;
    type Value = V;

    #[inline]
    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.list.get(key, read)
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        self.list.modify(key, change)
    }

    fn scan_with(
        &self,
        (lower, upper): Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.list.visit(lower, upper, direction, limit, visit);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        Some(self.list.collector.pin())
    }

    fn approximate_len(&self) -> usize {
        self.list.len.sum()
    }

    fn memory_usage(&self) -> MemoryUsage {
        let guard = self.list.collector.pin();
        let (mut nodes, mut anchors, mut records) = (0, 0, 0);
        for node in self.list.nodes(&guard) {
            nodes += size_of::<Node<K, V, N>>();
            anchors += node.anchor_bytes();
            records += node.record_bytes();
        }
        let (logs, layers) = self.list.updates.memory_usage();
        MemoryUsage {
            parts: vec![
                ("data nodes", nodes),
                ("anchors", anchors),
                ("records", records),
                ("search layers", layers.iter().sum()),
                ("logs", logs),
                ("free nodes", self.list.pool.spare()),
            ],
        }
    }

    fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        invariants::check_invariants(&self.list)
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.list.get_many(keys, each);
    }
}
