//! The store itself: options, writes, snapshots, counts.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::engine::{Engine, Removed, Versions, View};
use super::options::Options;
use super::owner::Owner;
use super::payment::Payment;
use super::snapshot::{Handle, Snapshot};
use super::structure::Structure;
use super::write::{Found, Put};
use ordna::store::budget::{Budget, Lifted};
use ordna_base::index::{Change, Direction, bounds_cross};
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{fault, stripe_of_this_thread};
use ordna_base::{Error, Key, Value};

/// So many keys of a range are removed in one go.
const RANGE_CHUNK: usize = 256;

/// A live snapshot, as [`Statistics`] tell of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveSnapshot {
    /// Its term.
    pub term: u64,
    /// Since it was first taken.
    pub age: Duration,
    /// Dead versions that await its end, perhaps among others'.
    pub keeps: usize,
}

/// What a store counts. Exact while nothing else runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Keys of the latest state; expired ones count until they are removed.
    pub items: usize,
    /// Versions, dead ones included.
    pub versions: usize,
    /// Dead versions that live snapshots keep, or that await their examination.
    pub dead: usize,
    /// Dead versions queued for the collectors: how far they lag.
    pub collector_lag: usize,
    /// Versions unlinked so far because no snapshot saw them any more.
    pub collected: usize,
    /// Bytes of all versions, towers at their mean height.
    pub bytes: usize,
    /// The limit of `bytes`, and of those of all stores that share the budget.
    pub memory_limit: Option<usize>,
    /// Versions with a deadline, and about the bytes that their list takes.
    pub expiring: (usize, usize),
    /// The live snapshots, oldest first.
    pub snapshots: Vec<LiveSnapshot>,
    /// Walks under way: calls of `visit` of the store and its snapshots, and what their ranges just
    /// read ahead. Each holds back the freeing of what is unlinked for a short stretch only, unless
    /// its caller stands still in it. (The Nitro paper counts sessions of its access barrier, which
    /// the store does not run on.) Reads of single keys and of groups of keys are not counted.
    pub walks: usize,
    /// Of these the long ones, which have passed some 600 versions: for how long each has been one,
    /// longest first.
    pub long_walks: Vec<Duration>,
    /// Rounds of writes beyond the first, because another write came between.
    pub retries: usize,
    /// Times a write or a read waited for the writers of an ended term.
    pub waits: usize,
}

/// An ordered store with snapshots; see the [module](super).
///
/// Point operations, walks and batches are those of [`OrderedIndex`](ordna_base::OrderedIndex). The
/// store may be dropped while snapshots live: they keep what they need.
pub struct Store<K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) owner: Arc<Owner<K, V>>,
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
        Self::of(options, budget, Versions::new())
    }

    /// A store of versions that were paid for from the budget.
    pub(super) fn of(options: Options, budget: Budget, versions: Versions<K, V>) -> Self {
        let engine = Arc::new_cyclic(|me| Engine::new(options, budget, versions, me.clone()));
        Self { owner: Arc::new(Owner(engine)) }
    }

    pub(super) fn engine(&self) -> &Engine<K, V> {
        &self.owner.0
    }

    /// Runs a write in the current term.
    #[inline]
    pub(super) fn writing<R>(
        &self,
        write: impl FnOnce(&Engine<K, V>, u64, &Guard<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let engine = self.engine();
        let done = {
            let writing = engine.terms.enter(stripe_of_this_thread());
            let guard = engine.collector.pin();
            write(engine, writing.term, &guard)
        };
        engine.help();
        done
    }

    /// Tries something that may exceed the memory limit; collects and tries again if it does.
    #[inline]
    pub(super) fn within_limit<R>(
        &self,
        mut attempt: impl FnMut(&Engine<K, V>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        match attempt(self.engine()) {
            Err(Error::MemoryLimit { .. }) if !fault!("mvcc.limit.collects") => {
                // What is held back for searches is not counted, and stays.
                self.engine().collect();
                attempt(self.engine())
            }
            done => done,
        }
    }

    /// Whether the memory limit has room for so many bytes more. To be asked before
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

    /// Lifts the memory limit; see [`MemoryBudget::lift`](ordna::MemoryBudget::lift).
    pub fn lift_limit(&self) -> Lifted {
        self.engine().budget.shared().lift()
    }

    /// Shows the entry of `key` (`None`: absent or expired) to `change` and does what it says, as
    /// one step. As [`OrderedIndex::modify`](ordna_base::OrderedIndex::modify), which puts values that
    /// do not expire, and under the same rules. O(log n).
    ///
    /// # Errors
    /// Key or value too long, or the memory limit is reached. Nothing is changed.
    pub fn modify_entry<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    {
        key.check()?;
        self.within_limit(|_| {
            self.writing(|engine, term, guard| {
                engine.apply(key, term, guard, Payment::Due, &mut change)
            })
        })
    }

    /// Sets `key` to a value that is gone at `expires_at`, in milliseconds on the store's clock.
    ///
    /// # Errors
    /// As [`modify_entry`](Self::modify_entry).
    pub fn insert_until(&self, key: &K, value: &V, expires_at: u64) -> Result<(), Error> {
        let put = Put { value, expires_at: Some(expires_at) };
        self.modify_entry(key, |_| Change::Put(put))
    }

    /// As [`modify_entry`](Self::modify_entry), but what `change` puts is a deadline for the value
    /// as it is (`None`: it does not expire). Of an absent key there is none to be put.
    ///
    /// The memory limit does not refuse this, and may be exceeded by it: by a deadline's eight bytes,
    /// or, if a snapshot keeps the version that had the former one, by a version as large as that.
    ///
    /// # Errors
    /// Key too long.
    pub fn modify_expiry<F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        F: FnMut(Option<Found<'_, V>>) -> Change<Option<u64>>,
    {
        key.check()?;
        self.writing(|engine, term, guard| {
            engine.apply(key, term, guard, Payment::Forced, |found| match (change(found), found) {
                (Change::Put(expires_at), Some(found)) => {
                    Change::Put(Put { value: found.value.to_owned(), expires_at })
                }
                (Change::Remove, _) => Change::Remove,
                (Change::Keep | Change::Put(_), _) => Change::Keep,
            })
        })
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

    /// When `key` expires; `None` if it is absent, `Some(None)` if it does not expire.
    pub fn expiry(&self, key: &K) -> Option<Option<u64>> {
        let engine = self.engine();
        let guard = engine.collector.pin();
        engine.get(View::Latest, key, &guard).map(|node| node.expires_at())
    }

    /// The present time on the store's clock. Never runs backwards.
    pub fn now(&self) -> u64 {
        self.engine().time.now()
    }

    /// The value of `key`, copied, and its version: a number that is different for every value that
    /// the key has had, or will have, when it is asked for. For
    /// [`compare_exchange_version`](Self::compare_exchange_version).
    ///
    /// The version is the term of the write. Terms that this call has told of are closed, so it may
    /// wait for the writes under way, as the first read of a snapshot does.
    pub fn get_versioned(&self, key: &K) -> Option<(V::Owned, u64)> {
        let engine = self.engine();
        loop {
            let found = {
                let guard = engine.collector.pin();
                let node = engine.get(View::Latest, key, &guard)?;
                (node.with_value(ToOwned::to_owned), node.born())
            };
            if engine.terms.is_settled(found.1) || fault!("mvcc.version.closes_the_term") {
                return Some(found);
            }
            // Its term may bring more values yet.
            engine.terms.advance_past(found.1);
            engine.terms.settle(found.1);
        }
    }

    /// Sets `key` to `new` (`None`: removes it) if its version is `expected`, as
    /// [`get_versioned`](Self::get_versioned) told it. Returns whether it was.
    ///
    /// # Errors
    /// As [`modify_entry`](Self::modify_entry).
    pub fn compare_exchange_version(
        &self,
        key: &K,
        expected: u64,
        new: Option<&V>,
    ) -> Result<bool, Error> {
        let mut matched = false;
        self.modify_entry(key, |found| {
            matched = found.is_some_and(|found| found.version == expected);
            match new {
                _ if !matched => Change::Keep,
                Some(value) => Change::Put(Put::forever(value)),
                None => Change::Remove,
            }
        })?;
        Ok(matched)
    }

    /// Removes the entry of a handle if it is still the latest of its key; returns whether it was.
    /// One that has expired is not, whether it is collected or not. O(1): nothing is searched for.
    pub fn remove_at(&self, handle: &Handle<K, V>) -> bool {
        if !handle.is_of(&self.owner) {
            return false;
        }
        let done = self.writing(|engine, term, guard| {
            let expired = engine.is_expired(handle.node());
            // Snapshots are of terms that are over: it was born before this one.
            Ok(engine.end(handle.node(), term, guard) && !expired)
        });
        done.unwrap_or(false)
    }

    /// Removes every key within the bounds; returns how many. Every snapshot holds all of them or
    /// none; keys inserted meanwhile may stay. O(log n) each; snapshots taken meanwhile are readable
    /// when it is done.
    pub fn remove_range(&self, lower: Bound<&K>, upper: Bound<&K>) -> usize {
        if bounds_cross(lower, upper) {
            return 0;
        }
        let mut removed = 0;
        let done = self.writing(|engine, term, guard| {
            let mut from: Option<K::Owned> = None;
            loop {
                let lower = from.as_ref().map_or(lower, |key| Bound::Excluded(key.borrow()));
                let mut keys: Vec<K::Owned> = Vec::new();
                engine.visit(View::Latest, lower, upper, Direction::Ascending, |key, _| {
                    keys.push(key.to_owned());
                    let full = keys.len() == RANGE_CHUNK;
                    if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                for key in &keys {
                    let mut present = false;
                    engine.apply::<&V, _>(key.borrow(), term, guard, Payment::Due, |found| {
                        present = found.is_some();
                        Change::Remove
                    })?;
                    removed += usize::from(present);
                }
                if keys.len() < RANGE_CHUNK {
                    return Ok(());
                }
                from = keys.pop();
            }
        });
        debug_assert_eq!(done, Ok(()), "removals need no memory");
        removed
    }

    /// A snapshot: every write that ended before this call, none that begins after it. O(log s)
    /// with s live snapshots, whatever the number of items; waits for no writer. The first read of
    /// it waits for the writes that were under way.
    pub fn snapshot(&self) -> Snapshot<K, V> {
        self.snapshot_with(Vec::new())
    }

    /// A snapshot that carries something of the caller's: the position in a change stream, say.
    pub fn snapshot_with(&self, metadata: impl Into<Vec<u8>>) -> Snapshot<K, V> {
        Snapshot::take(Arc::clone(&self.owner), metadata.into())
    }

    /// Collects everything that can be, expired keys too, and waits for the collectors at work. Not
    /// needed for anything but a moment of quiet: collection runs by itself. What is collected and freed
    /// later, a fiftieth of the versions at most, is given back as well, in O(n).
    pub fn collect_garbage(&self) {
        self.engine().collect();
        let guard = self.engine().collector.pin();
        self.engine().versions.give_back(&guard);
        guard.flush();
    }

    /// Has `hook` called with every version that is about to be removed because no snapshot sees it
    /// any more, by the thread that removes it; `None` ends that. When this returns, all removals
    /// that the former hook does not know of are told to the new one.
    ///
    /// The hook must be short and must not use the store. If it panics, the version is removed all
    /// the same, and the panic goes no further.
    pub fn on_removal<F>(&self, hook: Option<F>)
    where
        F: Fn(&Removed<'_, K, V>) + Send + Sync + 'static,
    {
        let mut slot = self.engine().hook.write().unwrap_or_else(PoisonError::into_inner);
        *slot = hook.map(|hook| Box::new(hook) as _);
    }

    /// At most `parts - 1` keys, in order, that divide the store into parts of about the same
    /// number of versions. O(parts), and no more than O(n).
    pub fn partition_points(&self, parts: usize) -> Vec<K::Owned> {
        let engine = self.engine();
        let guard = engine.collector.pin();
        // Eight in each part: levels are random, and their unevenness averages out.
        let sample = engine.versions.sample(parts.saturating_mul(8), &guard);
        let parts = parts.min(sample.len());
        let points = (1..parts).filter_map(|part| sample.get(part * sample.len() / parts));
        let mut points: Vec<K::Owned> = points.map(|node| node.key(&guard).to_owned()).collect();
        points.dedup();
        points
    }

    /// Counts. O(live snapshots and long walks).
    pub fn statistics(&self) -> Statistics {
        Statistics::of(self.engine())
    }
}

impl Statistics {
    fn of<K: Key + ?Sized, V: Value + ?Sized>(engine: &Engine<K, V>) -> Self {
        let (items, dead) = (engine.terms.items.sum(), engine.corpses());
        let live = engine.terms.live();
        let snapshots = live.iter().map(|(term, live)| LiveSnapshot {
            term: *term,
            age: live.since.elapsed(),
            keeps: live.keeps.iter().map(Vec::len).sum(),
        });
        let snapshots = snapshots.collect();
        drop(live);
        Self {
            items,
            versions: items + dead,
            dead,
            collector_lag: engine.graves.queued(),
            collected: engine.graves.collected(),
            bytes: engine.budget.used(),
            memory_limit: engine.budget.limit(),
            expiring: engine.deadlines.size(),
            snapshots,
            walks: engine.walks.under_way(),
            long_walks: engine.walks.long(),
            retries: engine.retries.sum(),
            waits: engine.terms.waits.load(Ordering::Relaxed),
        }
    }
}
