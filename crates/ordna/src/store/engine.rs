//! The engine that a store and its snapshots share.
//!
//! # Contract
//! All methods may run concurrently. A write registers in its epoch, pins, and changes the tree
//! under one leaf's lock. The bytes that it takes of the memory limit are reserved before the
//! change; unused ones are given back after it. Undo records may exceed the limit: removals never
//! fail for it, and changes of deadlines only if a snapshot makes them copy an entry.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, OnceLock, Weak};

use super::below::Below;
use super::budget::Budget;
use super::collection_state::Collection;
use super::epochs::Epochs;
use super::expiry::{Deadlines, Timekeeper};
use super::long_scans::Scans;
use super::options::Options;
use super::reentry;
use crate::entry::{Found, Put};
use crate::epoch::Epoch;
use crate::tree::{
    FOREVER, GROUP, LeafAddress, LiveEpochs, Probe, RemovedEntries, SCAN_GROUP, ScanRequest, Tree,
    ValueRef, WriteCost, WriteOutcome, WriteScope, WriteStep,
};
use ordna_base::index::{Bounds, Change, Direction, bounds_cross};
use ordna_base::reclaim::Collector;
use ordna_base::sync::{Lock, StripedCounter, fault, notice, point, stripe_of_this_thread};
use ordna_base::{Error, Key, Value};

/// Number of cache lines over which the registrations of writers are spread.
const WRITER_STRIPES: usize = 32;
/// Number of entries that a thread retires before it passes them to the collector.
const RETIRED: usize = 256;
/// Number of reading sections after which a scan counts as long: about 1,000 entries.
const LONG_WALK: usize = 3;

/// Maximum size in bytes of an entry that a change of its deadline may copy beyond the limit for a
/// snapshot: a value of 1 KiB, a short key and their share of the leaf.
const MOST_FORCED: usize = (1 << 10) + 128;
/// Maximum number of entries that a group of scans returns while it holds one guard.
const AT_ONCE: usize = 4096;

/// The progress of a group of writes.
#[derive(Debug, Default)]
pub struct WriteProgress {
    /// Number of writes done.
    pub done: usize,
    /// Number of writes whose key was present.
    pub present: usize,
}

/// How the bytes of a write are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payment {
    Due,
    /// Reserved beyond the limit if necessary.
    Forced,
    /// For a change of the deadline: like [`Due`](Self::Due) if a snapshot keeps the former entry;
    /// up to [`MOST_FORCED`] bytes, it may then exceed the limit by a bounded number of bytes.
    /// Otherwise like [`Forced`](Self::Forced).
    Deadline,
    /// Already reserved by the batch, so that the limit no longer makes the write fail.
    Done,
}

/// The state that a reader sees.
#[derive(Debug, Clone, Copy)]
pub enum View {
    /// The latest state.
    Latest,
    /// The state at the end of a quiesced epoch, of which the reader holds a snapshot, and at a
    /// time.
    At { epoch: Epoch, time: u64 },
}

impl View {
    fn snapshot(self) -> Option<Epoch> {
        match self {
            Self::Latest => None,
            Self::At { epoch, .. } => Some(epoch),
        }
    }
}

pub struct Engine<K: Key + ?Sized, V: Value + ?Sized> {
    pub tree: Tree<K, V>,
    pub collector: Collector,
    pub epochs: Epochs,
    pub collection: Collection,
    pub budget: Budget,
    pub time: Arc<Timekeeper>,
    pub deadlines: Deadlines<K>,
    pub scans: Scans,
    /// The counter of the items below a key, if there is one.
    pub below: OnceLock<Below<K>>,
    /// Held by the transaction that commits.
    pub commits: Lock<()>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Engine<K, V> {
    pub fn new(options: Options, budget: Budget, tree: Tree<K, V>, me: Weak<Self>) -> Self {
        let collectors = options.collectors_or_own();
        Self {
            tree,
            collector: Collector::with_batches_of(RETIRED),
            epochs: Epochs::new(WRITER_STRIPES),
            collection: Collection::new(collectors, me),
            budget,
            time: Arc::new(Timekeeper::new(options.clock)),
            deadlines: Deadlines::new(),
            scans: Scans::default(),
            below: OnceLock::new(),
            commits: Lock::new(()),
        }
    }

    pub fn is_expired(&self, deadline: u64) -> bool {
        deadline != FOREVER && deadline <= self.time.now()
    }

    /// Returns whether a view shows an entry with this deadline.
    #[inline]
    fn shows(&self, view: View, deadline: u64) -> bool {
        deadline == FOREVER
            || match view {
                View::Latest => !self.is_expired(deadline),
                View::At { time, .. } => deadline > time,
            }
    }

    /// Calls `read` with value and deadline of the key.
    #[inline]
    pub fn get<R>(&self, view: View, key: &K, read: impl FnOnce(Found<'_, V>) -> R) -> Option<R> {
        reentry::check(self);
        let guard = self.collector.pin();
        let probe = Probe::new(key);
        let shown = |value: &V, deadline| {
            self.shows(view, deadline).then(|| read(Found { value, expires_at: expiry(deadline) }))
        };
        self.tree.get(&probe, view.snapshot(), &guard, shown).flatten()
    }

    /// Calls `read` with an entry of the latest state near the key, see [`Tree::near`].
    pub fn near<R>(&self, key: &K, place: usize, read: impl FnOnce(&K, &V) -> R) -> Option<R> {
        reentry::check(self);
        let guard = self.collector.pin();
        let shown = |key: &K, value: &V, deadline| {
            self.shows(View::Latest, deadline).then(|| read(key, value))
        };
        self.tree.near(key, place, &guard, shown).flatten()
    }

    /// Returns the value of the key, borrowed.
    #[inline]
    pub fn get_ref(&self, view: View, key: &K) -> Option<ValueRef<'_, V>> {
        reentry::check(self);
        let shows = |deadline| self.shows(view, deadline);
        self.tree.get_ref(&Probe::new(key), view.snapshot(), self.collector.pin(), shows)
    }

    /// Calls `each` with position and value of every key, in order.
    pub fn get_many<'k>(
        &self,
        view: View,
        keys: impl ExactSizeIterator<Item = &'k K>,
        mut each: impl FnMut(usize, Option<&V>),
    ) where
        K: 'k,
    {
        reentry::check(self);
        let guard = self.collector.pin();
        self.tree.get_many(keys, view.snapshot(), &guard, |at, found| {
            each(at, found.filter(|(_, deadline)| self.shows(view, *deadline)).map(|(v, _)| v));
        });
    }

    /// Calls `each` with the position of a range and its entries, range by range.
    pub fn scan_many(
        &self,
        view: View,
        ranges: &[(Bounds<'_, K>, usize)],
        mut each: impl FnMut(usize, &K, &V),
    ) {
        let empty = K::Owned::default();
        for (group, ranges) in ranges.chunks(SCAN_GROUP).enumerate() {
            let entries = ranges.iter().fold(0_usize, |sum, (_, limit)| sum.saturating_add(*limit));
            // The addresses are valid while the guard is held, which is not appropriate for long
            // scans.
            let guard = (entries <= AT_ONCE).then(|| self.collector.pin());
            let addresses = guard.as_ref().map(|guard| {
                let mut keys = [empty.borrow(); SCAN_GROUP];
                for (key, ((lower, _), _)) in keys.iter_mut().zip(ranges) {
                    if let Bound::Included(lower) | Bound::Excluded(lower) = lower {
                        *key = lower;
                    }
                }
                self.tree.locate_scans(&keys[..ranges.len()], guard)
            });
            for (at, (bounds, limit)) in ranges.iter().enumerate() {
                let mut left = *limit;
                if left == 0 || bounds_cross(bounds.0, bounds.1) {
                    continue;
                }
                let from = addresses.map(|addresses| addresses[at]);
                self.scan_with(
                    view,
                    *bounds,
                    Direction::Ascending,
                    (*limit, from),
                    |key, found| {
                        each(group * SCAN_GROUP + at, key, found.value);
                        left -= 1;
                        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    },
                );
            }
        }
    }

    /// Returns the number of entries within the bounds.
    pub fn count_range(&self, view: View, (lower, upper): Bounds<'_, K>) -> usize {
        if bounds_cross(lower, upper) {
            return 0;
        }
        reentry::check(self);
        let _scan = self.scans.begin();
        let shows = |deadline| self.shows(view, deadline);
        self.tree.count(view.snapshot(), (lower, upper), &self.collector, shows)
    }

    /// Calls `read` with the entry at this position from the front.
    pub fn select<R>(
        &self,
        view: View,
        position: usize,
        read: impl FnOnce(&K, &V) -> R,
    ) -> Option<R> {
        reentry::check(self);
        let _scan = self.scans.begin();
        let shows = |deadline| self.shows(view, deadline);
        self.tree.select(view.snapshot(), position, &self.collector, shows, |key, value, _| {
            read(key, value)
        })
    }

    /// Calls `visit` with the entries within the bounds, in order, until it breaks. `limit` is the
    /// maximum number of entries that the caller needs.
    pub fn visit(
        &self,
        view: View,
        bounds: Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&K, Found<'_, V>) -> ControlFlow<()>,
    ) {
        self.scan_with(view, bounds, direction, (limit, None), visit);
    }

    /// Works like [`Engine::visit`], but begins at an address that the tree has returned, if one is
    /// given.
    fn scan_with(
        &self,
        view: View,
        (lower, upper): Bounds<'_, K>,
        direction: Direction,
        (limit, from): (usize, Option<LeafAddress>),
        mut visit: impl FnMut(&K, Found<'_, V>) -> ControlFlow<()>,
    ) {
        reentry::check(self);
        let mut scan = self.scans.begin();
        let mut sections = 0;
        let section = || {
            sections += 1;
            if sections == LONG_WALK {
                scan.note_as_long();
            }
        };
        let span = ScanRequest { lower, upper, direction, limit, from };
        self.tree.visit(
            view.snapshot(),
            &span,
            &self.collector,
            section,
            |key, value, deadline| {
                if self.shows(view, deadline) {
                    visit(key, Found { value, expires_at: expiry(deadline) })
                } else {
                    ControlFlow::Continue(())
                }
            },
        );
    }

    /// Runs `write` as a writer registered in the current epoch.
    #[inline]
    pub fn writing<R>(&self, write: impl FnOnce(&WriteScope<'_>) -> R) -> R {
        reentry::check(self);
        // Pinned first, so that an undo record that the youngest snapshot needs is not freed while
        // the writer uses it.
        let guard = self.collector.pin();
        let done = {
            let writer = self.epochs.enter(stripe_of_this_thread());
            let youngest = self.epochs.youngest();
            write(&WriteScope { epoch: writer.epoch, youngest, guard: &guard })
        };
        drop(guard);
        self.help();
        done
    }

    /// Runs `write` while no other writer writes, see [`Epochs::enter_alone`].
    pub fn writing_alone<R>(&self, write: impl FnOnce(&WriteScope<'_>) -> R) -> R {
        reentry::check(self);
        let guard = self.collector.pin();
        let done = {
            let _turn = self.commits.lock();
            let writer = self.epochs.enter_alone(stripe_of_this_thread());
            let youngest = self.epochs.youngest();
            write(&WriteScope { epoch: writer.epoch, youngest, guard: &guard })
        };
        drop(guard);
        self.help();
        done
    }

    /// Returns whether the entries within the bounds certainly equal those of the snapshot and
    /// never expire. No thread may write concurrently. O(log n + l), where l is the number of
    /// leaves within the bounds.
    pub fn is_unchanged(&self, snapshot: Epoch, bounds: Bounds<'_, K>) -> bool {
        bounds_cross(bounds.0, bounds.1)
            || self.tree.is_unchanged(snapshot, bounds, &self.collector)
    }

    /// Returns the live snapshots, for the pruning of undo records.
    pub fn live(&self) -> Option<LiveEpochs> {
        let (epochs, quiesced) = self.epochs.live_epochs();
        Some(LiveEpochs { epochs, quiesced })
    }

    /// Calls `change` with the entry of `key` and applies the returned change. An expired entry
    /// counts as absent. Returns the word of the new entry, or 0 if there is none.
    #[inline]
    pub fn apply<T, F>(
        &self,
        key: &K,
        scope: &WriteScope<'_>,
        payment: Payment,
        change: F,
    ) -> Result<u64, Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    {
        self.apply_from(&Probe::new(key), None, scope, payment, change)
    }

    /// Applies `change` to the key of each item as single writes that descend in groups. Begins at
    /// the position in `progress`.
    pub fn apply_many<'a, I, T>(
        &self,
        items: &'a [I],
        key: impl Fn(&'a I) -> &'a K,
        mut change: impl FnMut(&'a I) -> Change<Put<T>>,
        progress: &mut WriteProgress,
    ) -> Result<(), Error>
    where
        T: Borrow<V>,
    {
        let mut probes: Vec<Probe<'_, K>> = Vec::with_capacity(items.len().min(GROUP));
        let first = progress.done;
        for group in items.get(first..).unwrap_or_default().chunks(GROUP) {
            probes.clear();
            probes.extend(group.iter().map(|item| Probe::new(key(item))));
            self.writing(|scope| {
                let addresses = self.tree.locate_many(&probes, scope.guard);
                for ((item, probe), address) in group.iter().zip(&probes).zip(addresses) {
                    let mut present = false;
                    self.apply_from(probe, Some(address), scope, Payment::Due, |found| {
                        present = found.is_some();
                        change(item)
                    })?;
                    progress.done += 1;
                    progress.present += usize::from(present);
                    point("store.many.between_writes");
                }
                Ok::<(), Error>(())
            })?;
        }
        Ok(())
    }

    /// Works like [`Engine::apply`], but begins at an address of [`Tree::locate_many`].
    #[inline]
    pub fn apply_from<T, F>(
        &self,
        probe: &Probe<'_, K>,
        from: Option<LeafAddress>,
        scope: &WriteScope<'_>,
        payment: Payment,
        change: F,
    ) -> Result<u64, Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    {
        let mut write = StoreWrite::new(self, probe.key, payment, change);
        self.tree.apply(probe, from, scope, &mut write)
    }

    /// Counts the effect of a write and gives back the bytes that are no longer needed.
    pub fn count(&self, key: &K, outcome: &WriteOutcome) {
        let (before, after) = (outcome.before.is_some(), outcome.after.is_some());
        if before != after {
            let change = if after { 1 } else { -1 };
            self.epochs.items.add(change);
            if let Some(below) = self.below.get()
                && key < below.end.borrow()
            {
                below.items.add(change);
            }
        }
        if outcome.undo.0 > 0 {
            self.budget.reserve_forced(outcome.undo.0);
        }
        if outcome.undo.1 > 0 {
            self.budget.release(outcome.undo.1);
        }
        if let Some(deadline) = outcome.before
            && deadline != FOREVER
        {
            self.deadlines.forget(key, deadline);
        }
    }

    /// Removes the entries within the bounds and returns how many were visible.
    pub fn remove_range(&self, lower: Bound<&K>, upper: Bound<&K>) -> usize {
        let mut removed = 0;
        self.writing(|scope| {
            self.tree.remove_range(lower, upper, scope, |gone| match gone {
                RemovedEntries::Entry(key, outcome) => {
                    // Counted first, because the caller's clock may panic.
                    self.count(key, &outcome);
                    self.budget.release(outcome.shrinks);
                    removed += usize::from(outcome.before.is_some_and(|at| !self.is_expired(at)));
                }
                RemovedEntries::Leaf { entries, bytes } => {
                    removed += entries;
                    self.epochs.items.add(-(entries as i64));
                    self.budget.release(bytes);
                }
            });
        });
        removed
    }

    /// Removes the key if it has expired, and returns whether it had.
    pub fn remove_expired(&self, key: &K) -> bool {
        let mut has_expired = false;
        self.writing(|scope| {
            // An absent entry is one that has expired or does not exist. Removals need no memory.
            let done = self.apply::<&V, _>(key, scope, Payment::Due, |found| {
                has_expired = found.is_none();
                if has_expired { Change::Remove } else { Change::Keep }
            });
            debug_assert!(done.is_ok());
        });
        has_expired
    }
}

impl<V: Value + ?Sized> Engine<[u8], V> {
    /// Begins to count the items below `end`. Returns `false` if they are already counted for some
    /// key.
    pub fn count_below(&self, end: &[u8]) -> bool {
        self.writing_alone(|_| {
            let bounds = (Bound::Unbounded, Bound::Excluded(end));
            // Expired items count until they are removed, as they do in the number of all items.
            let count = match bounds_cross(bounds.0, bounds.1) {
                true => 0,
                false => self.tree.count(None, bounds, &self.collector, |_| true),
            };
            let items = StripedCounter::new();
            items.add(i64::try_from(count).unwrap_or(i64::MAX));
            self.below.set(Below { end: end.to_vec(), items }).is_ok()
        })
    }
}

/// Converts a stored deadline to the form that users see.
pub fn expiry(deadline: u64) -> Option<u64> {
    (deadline != FOREVER).then_some(deadline)
}

/// A write of one key, with the bytes and the deadline that were reserved for it. They are given
/// back when it is dropped, unless the change was made.
pub struct StoreWrite<'a, K: Key + ?Sized, V: Value + ?Sized, F> {
    engine: &'a Engine<K, V>,
    key: &'a K,
    payment: Payment,
    /// The function that decides on the change.
    change: F,
    /// Number of reserved bytes in addition to those of the replaced entry.
    grows: usize,
    /// Number of bytes by which the new entry is smaller than the replaced one.
    shrinks: usize,
    /// The deadline that was added to the list, or [`FOREVER`].
    deadline: u64,
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized, F> StoreWrite<'a, K, V, F> {
    #[inline]
    pub fn new(engine: &'a Engine<K, V>, key: &'a K, payment: Payment, change: F) -> Self {
        Self { engine, key, payment, change, grows: 0, shrinks: 0, deadline: FOREVER }
    }

    /// Reserves the bytes of a write, and adds its deadline to the list.
    #[inline]
    pub fn reserve(&mut self, cost: WriteCost) -> Result<(), Error> {
        let needs = if self.payment == Payment::Done { 0 } else { cost.grows };
        let grows = needs.saturating_sub(cost.shrinks);
        let is_small = cost.undo == 0 || cost.shrinks <= MOST_FORCED;
        match self.payment {
            // The batch has begun: an undo record may exceed the limit, but must not make the write
            // fail.
            Payment::Done if !fault!("store.batch.undo_exceeds") => {}
            Payment::Forced => self.engine.budget.reserve_forced(grows),
            Payment::Deadline if notice!("store.limit.forces_deadlines", is_small) => {
                self.engine.budget.reserve_for_deadline(grows, cost.undo)?;
            }
            Payment::Due | Payment::Done | Payment::Deadline => {
                // Includes room for the undo record, which is taken when it is pushed.
                self.engine.budget.reserve(grows + cost.undo)?;
                self.engine.budget.release(cost.undo);
            }
        }
        (self.grows, self.shrinks) = (grows, cost.shrinks.saturating_sub(needs));
        if cost.deadline != FOREVER {
            self.engine.deadlines.add(self.key, cost.deadline);
            self.deadline = cost.deadline;
        }
        point("store.apply.prepared");
        Ok(())
    }

    /// Accounts for the change that was made: the reserved bytes are kept.
    #[inline]
    pub fn commit(&mut self, outcome: &WriteOutcome) {
        self.grows = 0;
        let shrinks = if outcome.after.is_some() { self.shrinks } else { outcome.shrinks };
        if shrinks > 0 {
            self.engine.budget.release(shrinks);
        }
        self.engine.count(self.key, outcome);
        let deadline = std::mem::replace(&mut self.deadline, FOREVER);
        if deadline != FOREVER {
            let is_next = self.engine.deadlines.schedule(deadline);
            if notice!("store.apply.schedules", is_next) {
                self.engine.wake_for_deadline();
            }
        }
    }
}

impl<K, V, F, T> WriteStep<V> for StoreWrite<'_, K, V, F>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    T: Borrow<V>,
{
    type New = T;

    #[inline]
    fn decide(&mut self, old: Option<(&V, u64)>) -> Change<(T, u64)> {
        let found = old.filter(|(_, deadline)| !self.engine.is_expired(*deadline));
        let found = found.map(|(value, deadline)| Found { value, expires_at: expiry(deadline) });
        match (self.change)(found) {
            Change::Keep => Change::Keep,
            Change::Remove => Change::Remove,
            Change::Put(put) => {
                let deadline = put.deadline();
                Change::Put((put.value, deadline))
            }
        }
    }

    #[inline]
    fn prepare(&mut self, cost: WriteCost) -> Result<(), Error> {
        self.reserve(cost)
    }

    fn live(&self) -> Option<LiveEpochs> {
        self.engine.live()
    }

    #[inline]
    fn done(&mut self, outcome: &WriteOutcome) {
        self.commit(outcome);
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, F> Drop for StoreWrite<'_, K, V, F> {
    fn drop(&mut self) {
        if self.grows > 0 {
            self.engine.budget.release(self.grows);
        }
        if self.deadline != FOREVER {
            self.engine.deadlines.forget(self.key, self.deadline);
        }
    }
}
