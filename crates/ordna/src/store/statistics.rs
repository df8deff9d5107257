//! Statistics of a store.

use std::time::Duration;

use super::engine::Engine;
use super::handle::Store;
use ordna_base::sync::atomic::Ordering;
use ordna_base::{Key, Value};

/// A live snapshot, as [`Statistics`] reports it.
///
/// ```
/// let store: ordna::Store<u64, u64> = ordna::Store::new();
/// let snapshot = store.snapshot();
/// assert_eq!(store.statistics().snapshots.len(), 1);
/// # drop(snapshot);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveSnapshot {
    /// Epoch of the snapshot.
    pub epoch: u64,
    /// Time since it was taken.
    pub age: Duration,
}

/// Statistics of a store. Exact while no other thread uses it.
///
/// ```
/// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
/// towns.put("Lund", 94_393)?;
/// towns.put("Uppsala", 177_074)?;
/// let statistics = towns.statistics();
/// assert_eq!((statistics.items, statistics.snapshots.len()), (2, 0));
/// # Ok::<(), ordna::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Number of keys in the latest state. Expired keys count until they are removed.
    pub items: usize,
    /// Number of entries and undo records.
    pub versions: usize,
    /// Number of keys that were removed because their deadline had passed. Keys that were
    /// overwritten between their deadline and their removal are not counted.
    pub expired: u64,
    /// Number of undo records: states that live snapshots see, or that wait to be freed.
    pub dead: usize,
    /// Total size in bytes of the undo records freed so far.
    pub collected: usize,
    /// Size in bytes of entries and undo records.
    pub bytes: usize,
    /// Limit of `bytes`, summed over all stores that share the budget.
    pub memory_limit: Option<usize>,
    /// Number of versions with a deadline, and the approximate bytes of their list.
    pub expiring: (usize, usize),
    /// The live snapshots, oldest first.
    pub snapshots: Vec<LiveSnapshot>,
    /// Number of scans in progress: calls of `visit` on the store and its snapshots, and chunks
    /// that ranges read ahead. Each delays the freeing of memory for a short time only, unless its
    /// callback blocks. (The Nitro paper counts sessions of its access barrier, which this store
    /// does not have.) Reads of single keys and of groups of keys are not counted.
    pub scans: usize,
    /// Ages of the scans in progress that have passed about 1,000 entries, longest first.
    pub long_scans: Vec<Duration>,
    /// Number of times that a write or a read waited for the writers of an ended epoch.
    pub waits: usize,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Returns the statistics. O(live snapshots and long scans).
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// towns.put("Lund", 94_393)?;
    /// towns.put("Uppsala", 177_074)?;
    /// assert_eq!(towns.statistics().items, 2);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn statistics(&self) -> Statistics {
        Statistics::of(self.engine())
    }
}

impl Statistics {
    fn of<K: Key + ?Sized, V: Value + ?Sized>(engine: &Engine<K, V>) -> Self {
        let (items, dead) = (engine.epochs.items.sum(), engine.tree.log().size().0);
        let live = engine.epochs.live();
        let snapshots = live
            .iter()
            .map(|(epoch, live)| LiveSnapshot { epoch: epoch.get(), age: live.since.elapsed() });
        let snapshots = snapshots.collect();
        drop(live);
        Self {
            items,
            versions: items + dead,
            expired: engine.deadlines.expired.load(Ordering::Relaxed),
            dead,
            collected: engine.collection.freed(),
            bytes: engine.budget.used(),
            memory_limit: engine.budget.limit(),
            expiring: engine.deadlines.size(),
            snapshots,
            scans: engine.scans.under_way(),
            long_scans: engine.scans.long(),
            waits: engine.epochs.waits.load(Ordering::Relaxed),
        }
    }
}
