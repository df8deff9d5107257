//! The store itself: writes, snapshots, counts.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::budget::{Budget, Lifted};
use super::engine::{Engine, Payment, Progress, View};
use super::entry::{Found, Put};
use super::options::Options;
use super::snapshot::Snapshot;
use crate::durability::durable::Durable;
use crate::durability::wal::writer::Wal;
use crate::tree::Tree;
use ordna_base::index::{Change, Direction, bounds_cross};
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::notice;
use ordna_base::{Error, Key, Value};

/// A live snapshot, as [`Statistics`] tell of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveSnapshot {
    /// Its epoch.
    pub epoch: u64,
    /// Since it was first taken.
    pub age: Duration,
}

/// Counts of a store. Exact while no other thread uses it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Keys of the latest state; expired ones count until they are removed.
    pub items: usize,
    /// Entries and undo records.
    pub versions: usize,
    /// Undo records: states that live snapshots see, or that wait to be freed.
    pub dead: usize,
    /// Bytes of undo records freed so far.
    pub collected: usize,
    /// Bytes of entries and undo records.
    pub bytes: usize,
    /// The limit of `bytes`, and of those of all stores that share the budget.
    pub memory_limit: Option<usize>,
    /// Versions with a deadline, and about the bytes that their list takes.
    pub expiring: (usize, usize),
    /// The live snapshots, oldest first.
    pub snapshots: Vec<LiveSnapshot>,
    /// Scans under way: calls of `visit` of the store and its snapshots, and reads ahead of their
    /// ranges. Each delays the freeing of memory for a short stretch only, unless its caller stands
    /// still in it. (The Nitro paper counts sessions of its access barrier, which
    /// the store does not run on.) Reads of single keys and of groups of keys are not counted.
    pub scans: usize,
    /// Of these the long ones, which have passed some 1,000 entries: for how long each has been
    /// one, longest first.
    pub long_scans: Vec<Duration>,
    /// Times a write or a read waited for the writers of an ended epoch.
    pub waits: usize,
}

/// An ordered store with snapshots; see the [module](super).
///
/// Point operations, scans and batches are those of [`OrderedIndex`](crate::OrderedIndex). The
/// store may be dropped while snapshots live. Dropping a store that was opened in a directory ends
/// its log, durably, and releases the directory before the drop returns.
pub struct Store<K: Key + ?Sized, V: Value + ?Sized> {
    engine: Arc<Engine<K, V>>,
    /// The log and the backups, if the store has a directory. Not in the engine, which snapshots and
    /// collector threads may keep after the store is dropped.
    pub(super) durable: OnceLock<Arc<Durable<K>>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Default for Store<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> std::fmt::Debug for Store<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// An empty store, as [`Options::new`] says.
    pub fn new() -> Self {
        Self::with_options(Options::new())
    }

    /// An empty store.
    pub fn with_options(options: Options) -> Self {
        let budget = options.budget();
        let tree = Tree::new(options.sizes, Tree::<K, V>::arena(options.records_stay));
        Self::of(options, budget, tree)
    }

    /// A store of a tree whose entries were paid for from the budget.
    pub(super) fn of(options: Options, budget: Budget, tree: Tree<K, V>) -> Self {
        let engine = Arc::new_cyclic(|me| Engine::new(options, budget, tree, me.clone()));
        Self { engine, durable: OnceLock::new() }
    }

    #[inline]
    pub(super) fn engine(&self) -> &Engine<K, V> {
        &self.engine
    }

    /// The log and the backups, if the store has a directory.
    #[inline]
    pub(crate) fn durable(&self) -> Option<&Arc<Durable<K>>> {
        self.durable.get()
    }

    /// The log, if the store has a directory.
    #[inline]
    pub(super) fn wal(&self) -> Option<&Wal<K>> {
        self.durable.get().map(|durable| &durable.wal)
    }

    /// Tries something that may exceed the memory limit; collects and tries again if it does.
    #[inline]
    pub(super) fn within_limit<R>(
        &self,
        mut attempt: impl FnMut(&Engine<K, V>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        match attempt(self.engine()) {
            Err(error) if notice!("store.limit.collects", is_limit(&error)) => {
                self.engine().collect();
                attempt(self.engine())
            }
            done => done,
        }
    }

    /// Whether the memory limit has room for `bytes` more. Callers ask before
    /// [`lift_limit`](Self::lift_limit). Collects if it has not. O(1) if it has.
    ///
    /// # Errors
    /// It has none.
    pub fn check_room(&self, bytes: usize) -> Result<(), Error> {
        self.within_limit(|engine| {
            engine.budget.reserve(bytes)?;
            engine.budget.release(bytes);
            Ok(())
        })
    }

    /// Lifts the memory limit; see [`MemoryBudget::lift`](super::MemoryBudget::lift).
    pub fn lift_limit(&self) -> Lifted {
        self.engine().budget.shared().lift()
    }

    /// [`modify_entry`](Self::modify_entry) without the log, of a key that was checked.
    pub(super) fn modify_entry_unlogged<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    {
        self.within_limit(|engine| {
            engine.writing(|turn| engine.apply(key, turn, Payment::Due, &mut change))
        })
        .map(|_| ())
    }

    /// Applies `change` to each item's key, without the log, from where `progress` stands. Keys
    /// and values were checked.
    pub(super) fn write_many_unlogged<'a, I, T>(
        &self,
        items: &'a [I],
        key: impl Fn(&'a I) -> &'a K,
        mut change: impl FnMut(&'a I) -> Change<Put<T>>,
        progress: &mut Progress,
    ) -> Result<(), Error>
    where
        T: Borrow<V>,
    {
        self.within_limit(|engine| engine.apply_many(items, &key, &mut change, progress))
    }

    /// Sets `key` to a value that is gone at `expires_at`, in milliseconds on the store's clock.
    ///
    /// # Errors
    /// As [`modify_entry`](Self::modify_entry).
    pub fn insert_until(&self, key: &K, value: &V, expires_at: u64) -> Result<(), Error> {
        let put = Put { value, expires_at: Some(expires_at) };
        self.modify_entry(key, |_| Change::Put(put))
    }

    /// [`modify_expiry`](Self::modify_expiry) without the log, of a key that was checked.
    pub(super) fn modify_expiry_unlogged<F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        F: FnMut(Option<Found<'_, V>>) -> Change<Option<u64>>,
    {
        let engine = self.engine();
        engine
            .writing(|turn| {
                engine.apply(key, turn, Payment::Forced, |found| match (change(found), found) {
                    (Change::Put(expires_at), Some(found)) => {
                        Change::Put(Put { value: found.value.to_owned(), expires_at })
                    }
                    (Change::Remove, _) => Change::Remove,
                    (Change::Keep | Change::Put(_), _) => Change::Keep,
                })
            })
            .map(|_| ())
    }

    /// Sets or lifts (`None`) the time at which `key` expires; returns whether it is there.
    ///
    /// # Errors
    /// As [`modify_expiry`](Self::modify_expiry).
    pub fn set_expiry(&self, key: &K, expires_at: Option<u64>) -> Result<bool, Error> {
        let mut present = false;
        self.modify_expiry(key, |found| {
            present = found.is_some();
            Change::Put(expires_at)
        })?;
        Ok(present)
    }

    /// Calls `read` with the value of `key` and its deadline, without copying them. O(log n).
    pub fn get_entry_with<R>(&self, key: &K, read: impl FnOnce(Put<&V>) -> R) -> Option<R> {
        self.engine().get(View::Latest, key, |found| {
            read(Put { value: found.value, expires_at: found.expires_at })
        })
    }

    /// As [`visit`](ordna_base::OrderedIndex::visit), with the deadlines.
    pub fn visit_entries(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        mut visit: impl FnMut(&K, Put<&V>) -> ControlFlow<()>,
    ) {
        if !bounds_cross(lower, upper) {
            let bounds = (lower, upper);
            self.engine().visit(View::Latest, bounds, direction, usize::MAX, |key, found| {
                visit(key, Put { value: found.value, expires_at: found.expires_at })
            });
        }
    }

    /// How many keys lie within the bounds: 40 entries at a time, O(log n + l) with l leaves within
    /// them. Beside writers it counts as a scan does: every key that is there throughout counts
    /// once. At a [`Snapshot`] it is exact.
    pub fn count(&self, lower: Bound<&K>, upper: Bound<&K>) -> usize {
        self.engine().count_range(View::Latest, (lower, upper))
    }

    /// How many keys are below `key`: its position from the front, if it is there. As
    /// [`count`](Self::count).
    pub fn rank(&self, key: &K) -> usize {
        self.count(Bound::Unbounded, Bound::Excluded(key))
    }

    /// The entry at this position from the front, the first one at 0. O(log n + l) with l leaves
    /// before it. Beside writers as [`count`](Self::count).
    pub fn select(&self, position: usize) -> Option<(K::Owned, V::Owned)> {
        self.select_with(position, |key, value| (key.to_owned(), value.to_owned()))
    }

    /// Calls `read` with the entry at this position, see [`select`](Self::select).
    pub fn select_with<R>(&self, position: usize, read: impl FnOnce(&K, &V) -> R) -> Option<R> {
        self.engine().select(View::Latest, position, read)
    }

    /// When `key` expires; `None` if it is absent, `Some(None)` if it does not expire.
    pub fn expiry(&self, key: &K) -> Option<Option<u64>> {
        self.engine().get(View::Latest, key, |found| found.expires_at)
    }

    /// The present time on the store's clock. Never runs backwards.
    pub fn now(&self) -> u64 {
        self.engine().time.now()
    }

    /// [`remove_range`](Self::remove_range) without the log.
    pub(super) fn remove_range_unlogged(&self, lower: Bound<&K>, upper: Bound<&K>) -> usize {
        if bounds_cross(lower, upper) { 0 } else { self.engine().remove_range(lower, upper) }
    }

    /// A snapshot: every write that ended before this call, none that begins after it. O(log s)
    /// with s live snapshots, whatever the number of items; waits for no writer. The first read of
    /// it waits for the writes that were under way.
    pub fn snapshot(&self) -> Snapshot<K, V> {
        self.snapshot_with(Vec::new())
    }

    /// A snapshot that carries something of the caller's: the position in a change stream, say.
    pub fn snapshot_with(&self, metadata: impl Into<Vec<u8>>) -> Snapshot<K, V> {
        Snapshot::take(Arc::clone(&self.engine), metadata.into())
    }

    /// Removes expired keys and frees the undo records that no snapshot needs, and waits for the
    /// writes under way. Collection runs by itself; this is for a moment of quiet.
    pub fn collect_garbage(&self) {
        self.engine().collect();
    }

    /// At most `parts - 1` keys, in order, that divide the store into parts of about the same
    /// number of entries. O(parts), and no more than O(n).
    pub fn partition_points(&self, parts: usize) -> Vec<K::Owned> {
        let wanted = parts.saturating_mul(8);
        let mut sample = self.engine().tree.sample(wanted);
        if sample.len() < wanted {
            // Few leaves: their keys divide them more evenly than their anchors.
            sample.clear();
            let all = (Bound::Unbounded, Bound::Unbounded);
            self.engine().visit(View::Latest, all, Direction::Ascending, usize::MAX, |key, _| {
                sample.push(key.to_owned());
                ControlFlow::Continue(())
            });
        }
        let parts = parts.min(sample.len());
        let point = |part: usize| sample.get(part * sample.len() / parts).cloned();
        let mut points: Vec<K::Owned> = (1..parts).filter_map(point).collect();
        points.dedup();
        points
    }

    /// Counts. O(live snapshots and long scans).
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

fn is_limit(error: &Error) -> bool {
    matches!(error, Error::MemoryLimit { .. })
}
