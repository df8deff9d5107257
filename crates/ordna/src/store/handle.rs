//! The type [`Store`].

use std::borrow::Borrow;
use std::ops::Bound;
use std::sync::{Arc, OnceLock, Weak};

use super::budget::{Budget, Lifted};
use super::engine::{Engine, Payment, WriteProgress};
use super::expiry::{HeldTime, Report};
use super::options::Options;
use super::reentry;
use super::snapshot::Snapshot;
use crate::entry::{Found, Put};
use crate::tree::Tree;
use crate::wal::checkpoints::CheckpointThread;
use crate::wal::durable::Durable;
use crate::wal::writer::Wal;
use ordna_base::index::{Change, bounds_cross};
use ordna_base::sync::{Lock, notice};
use ordna_base::{Error, Key, Value};

/// An ordered store with snapshots; see the [module](super).
///
/// Point operations, scans and batches are those of [`OrderedIndex`](crate::OrderedIndex). The
/// store may be dropped while snapshots are alive. Dropping a store that was opened in a directory
/// syncs and closes its log and releases the directory before the drop returns. A small store with
/// a long log is backed up first, see
/// [`OpenOptions::checkpoint_after`](crate::OpenOptions::checkpoint_after).
///
/// ```
/// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
/// towns.put("Lund", 94_393)?;
/// let before = towns.snapshot();
/// towns.put("Uppsala", 177_074)?;
/// assert_eq!((before.len(), towns.len()), (1, 2));
/// # Ok::<(), ordna::Error>(())
/// ```
pub struct Store<K: Key + ?Sized, V: Value + ?Sized> {
    /// The log and the backups of a store that was opened in a directory. Not in the engine, which
    /// snapshots and collector threads may keep alive after the store is dropped. Declared before
    /// the engine, because the last checkpoint reads it.
    pub(crate) attached: OnceLock<Attached<K, V>>,
    engine: Arc<Engine<K, V>>,
}

/// The parts that only a store with a directory has.
pub(crate) struct Attached<K: Key + ?Sized, V: Value + ?Sized> {
    /// Declared before the log, because the log is closed after the last checkpoint.
    pub checkpoints: Option<Arc<CheckpointThread>>,
    pub current: Arc<Current<K, V>>,
    /// The log and the backups.
    pub durable: Arc<Durable<K>>,
    /// The number that the log has given to the store.
    pub number: u64,
}

/// The store to which a log belongs: the opened one, or its last successor.
pub(crate) struct Current<K: Key + ?Sized, V: Value + ?Sized>(Lock<(Weak<Engine<K, V>>, u64)>);

impl<K: Key + ?Sized, V: Value + ?Sized> Current<K, V> {
    /// Returns another handle of the store, unless it was dropped. The handle does not keep the
    /// checkpoint thread alive.
    pub fn store(self: &Arc<Self>, durable: &Arc<Durable<K>>) -> Option<Store<K, V>> {
        let (engine, number) = {
            let current = self.0.lock();
            (current.0.upgrade()?, current.1)
        };
        let (current, durable) = (Arc::clone(self), Arc::clone(durable));
        let attached = Attached { checkpoints: None, current, durable, number };
        Some(Store { attached: attached.into(), engine })
    }
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
    /// Creates an empty store with the options of [`Options::new`].
    ///
    /// ```
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::new();
    /// assert!(towns.is_empty());
    /// ```
    pub fn new() -> Self {
        Self::with_options(Options::new())
    }

    /// Creates an empty store.
    ///
    /// ```
    /// use ordna::{Options, Store};
    ///
    /// let towns: Store<[u8], u64> = Store::with_options(Options::new().memory_limit(64 << 20));
    /// assert_eq!(towns.statistics().memory_limit, Some(64 << 20));
    /// ```
    pub fn with_options(options: Options) -> Self {
        let budget = options.budget();
        let tree = Tree::new(options.sizes, Tree::<K, V>::memory(options.records_stay));
        Self::of(options, budget, tree)
    }

    /// Creates a store of a tree whose entries are already accounted for in the budget.
    pub(super) fn of(options: Options, budget: Budget, tree: Tree<K, V>) -> Self {
        let engine = Arc::new_cyclic(|me| Engine::new(options, budget, tree, me.clone()));
        Self { attached: OnceLock::new(), engine }
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Engine<K, V> {
        &self.engine
    }

    /// Returns the log and the backups if the store has a directory.
    #[inline]
    pub(crate) fn durable(&self) -> Option<&Arc<Durable<K>>> {
        self.attached.get().map(|attached| &attached.durable)
    }

    /// Returns the number that the log has given to this store.
    pub(crate) fn number_in_wal(&self) -> u64 {
        self.attached.get().map_or(0, |attached| attached.number)
    }

    /// Returns this store as the one that a log belongs to.
    pub(crate) fn as_current(&self) -> Arc<Current<K, V>> {
        Arc::new(Current(Lock::new((Arc::downgrade(&self.engine), 0))))
    }

    /// Logs all writes from now on. The store must not have a log.
    pub(crate) fn attach(&self, attached: Attached<K, V>) {
        let attached = self.attached.set(attached);
        debug_assert!(attached.is_ok(), "a store has one log");
    }

    /// Takes over the log of a former store, which has given this one the number.
    pub(crate) fn succeed(&self, former: &Attached<K, V>, number: u64) {
        *former.current.0.lock() = (Arc::downgrade(&self.engine), number);
        self.attach(Attached {
            checkpoints: former.checkpoints.clone(),
            current: Arc::clone(&former.current),
            durable: Arc::clone(&former.durable),
            number,
        });
    }

    /// Returns the checkpoint thread, if there is one.
    pub(crate) fn checkpoint_thread(&self) -> Option<&CheckpointThread> {
        self.attached.get()?.checkpoints.as_deref()
    }

    /// Returns the log if the store has a directory.
    #[inline]
    pub(super) fn wal(&self) -> Option<&Wal<K>> {
        let durable = self.durable()?;
        // Checked here, because a write locks a part of the log before it reaches the engine.
        self.check_reentry();
        Some(&durable.wal)
    }

    /// Panics if this thread is inside the closure of a write of this store. For operations that
    /// stop all writers.
    pub(crate) fn check_reentry(&self) {
        reentry::check(self.engine());
    }

    /// Runs an operation that may exceed the memory limit. As long as it does, collects a bounded
    /// amount of garbage and retries, so that a write does not wait longer than necessary.
    #[inline]
    pub(super) fn within_limit<R>(
        &self,
        mut attempt: impl FnMut(&Engine<K, V>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut more = true;
        loop {
            match attempt(self.engine()) {
                Err(error) if more && notice!("store.limit.collects", is_limit(&error)) => {
                    more = self.engine().free_some_bytes();
                }
                done => return done,
            }
        }
    }

    /// Checks whether the memory limit has room for `bytes` more, and collects garbage if it has
    /// not. To be called before [`lift_limit`](Self::lift_limit). O(1) if there is room.
    ///
    /// # Errors
    /// The limit has no room.
    ///
    /// ```
    /// let options = ordna::Options::new().memory_limit(1 << 20);
    /// let store: ordna::Store<u64, u64> = ordna::Store::with_options(options);
    /// assert!(store.check_room(1000).is_ok() && store.check_room(2 << 20).is_err());
    /// ```
    pub fn check_room(&self, bytes: usize) -> Result<(), Error> {
        self.within_limit(|engine| {
            engine.budget.reserve(bytes)?;
            engine.budget.release(bytes);
            Ok(())
        })
    }

    /// Checks whether a change of a deadline may take `bytes` more for a copy that a snapshot
    /// needs, as [`modify_expiry`](Self::modify_expiry) may. Collects if it may not.
    ///
    /// # Errors
    /// The memory limit has no room for them.
    ///
    /// ```
    /// let options = ordna::Options::new().memory_limit(1 << 20);
    /// let store: ordna::Store<u64, u64> = ordna::Store::with_options(options);
    /// assert!(store.check_room_for_deadline(1000).is_ok());
    /// ```
    pub fn check_room_for_deadline(&self, bytes: usize) -> Result<(), Error> {
        self.within_limit(|engine| engine.budget.check_room_for_deadline(bytes))
    }

    /// Lifts the memory limit; see [`MemoryBudget::lift`](super::MemoryBudget::lift).
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> =
    ///     ordna::Store::with_options(ordna::Options::new().memory_limit(0));
    /// assert!(store.put(1, 1).is_err());
    /// let lifted = store.lift_limit();
    /// store.put(1, 1)?;
    /// drop(lifted);
    /// assert!(store.put(2, 2).is_err());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn lift_limit(&self) -> Lifted {
        self.engine().budget.shared().lift()
    }

    /// Works like [`modify_entry`](Self::modify_entry), without the log, for a validated key.
    pub(super) fn modify_entry_unlogged<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<Found<'_, V>>) -> Change<Put<T>>,
    {
        self.within_limit(|engine| {
            engine.writing(|scope| engine.apply(key, scope, Payment::Due, &mut change))
        })
        .map(|_| ())
    }

    /// Applies `change` to the key of each item, without the log, beginning at the position in
    /// `progress`. Keys and values are validated.
    pub(super) fn write_many_unlogged<'a, I, T>(
        &self,
        items: &'a [I],
        key: impl Fn(&'a I) -> &'a K,
        mut change: impl FnMut(&'a I) -> Change<Put<T>>,
        progress: &mut WriteProgress,
    ) -> Result<(), Error>
    where
        T: Borrow<V>,
    {
        self.within_limit(|engine| engine.apply_many(items, &key, &mut change, progress))
    }

    /// Works like [`modify_expiry`](Self::modify_expiry), without the log, for a validated key.
    pub(super) fn modify_expiry_unlogged<F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        F: FnMut(Option<Found<'_, V>>) -> Change<Option<u64>>,
    {
        let mut change = |found: Option<Found<'_, V>>| match (change(found), found) {
            (Change::Put(expires_at), Some(found)) => {
                Change::Put(Put { value: found.value.to_owned(), expires_at })
            }
            (Change::Remove, _) => Change::Remove,
            (Change::Keep | Change::Put(_), _) => Change::Keep,
        };
        self.within_limit(|engine| {
            engine.writing(|scope| engine.apply(key, scope, Payment::Deadline, &mut change))
        })
        .map(|_| ())
    }

    /// Returns the current time of the store's clock. It never runs backwards.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> =
    ///     ordna::Store::with_options(ordna::Options::new().clock(|| 1_000));
    /// assert_eq!(store.now(), 1_000);
    /// ```
    pub fn now(&self) -> u64 {
        self.engine().time.now()
    }

    /// Stops the store's time for all threads until the returned value is dropped. No key expires
    /// in the meantime, so several operations agree on whether a key with a deadline is present.
    /// Calls nest: the time continues when the last [`HeldTime`] is dropped, and keys that are due
    /// by the clock expire then. O(1).
    ///
    /// # Examples
    ///
    /// ```
    /// let store = ordna::Store::<[u8], [u8]>::new();
    /// store.insert_until(b"key", b"value", store.now() + 20)?;
    /// let held = store.hold_time();
    /// let is_there = store.contains_key(b"key");
    /// std::thread::sleep(std::time::Duration::from_millis(30));
    /// assert_eq!(store.contains_key(b"key"), is_there);
    /// drop(held);
    /// assert!(!store.contains_key(b"key"));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn hold_time(&self) -> HeldTime {
        HeldTime::new(&self.engine().time)
    }

    /// Has the collector read the clock of [`Options::clock`](crate::Options::clock) at once,
    /// because it was set. Without this call the keys that are due by it are absent from reads at
    /// once, but are removed, and counted, up to a minute longer. O(1).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// let hands = Arc::new(AtomicU64::new(0));
    /// let clock = Arc::clone(&hands);
    /// let options = ordna::Options::new().clock(move || clock.load(Ordering::Relaxed));
    /// let store = ordna::Store::<[u8], [u8]>::with_options(options);
    /// store.insert_until(b"key", b"value", 1_000_000)?;
    /// hands.store(1_000_000, Ordering::Relaxed);
    /// assert!(!store.contains_key(b"key"));
    /// store.clock_was_set();
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn clock_was_set(&self) {
        self.engine().wake_for_deadline();
    }

    /// Works like [`remove_range`](Self::remove_range), without the log.
    pub(super) fn remove_range_unlogged(&self, lower: Bound<&K>, upper: Bound<&K>) -> usize {
        if bounds_cross(lower, upper) { 0 } else { self.engine().remove_range(lower, upper) }
    }

    /// Takes a snapshot: it holds every write that ended before this call, and none that begins
    /// after it. O(log s) with s live snapshots, whatever the number of items. Waits for no writer.
    /// The first read of the snapshot waits for the writes that were in progress.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// assert_eq!(before.get(1).as_deref(), Some(&b"Lund"[..]));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot<K, V> {
        self.snapshot_with(Vec::new())
    }

    /// Takes a snapshot that carries bytes of the caller, for example the position in a change
    /// stream.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// let snapshot = store.snapshot_with(b"offset 17");
    /// assert_eq!(snapshot.metadata(), b"offset 17");
    /// ```
    pub fn snapshot_with(&self, metadata: impl Into<Vec<u8>>) -> Snapshot<K, V> {
        Snapshot::take(Arc::clone(&self.engine), metadata.into())
    }

    /// Registers a function that is called with each key that was removed because its deadline has
    /// passed. The thread that removes the key calls it, so it must not block or wait for that
    /// thread. It must not write to the store or collect its garbage either: the thread may be a
    /// writer that makes room within the memory limit and holds locks for which such a write would
    /// wait. Only the first call has an effect; returns whether this was the first. A key that is
    /// written between its deadline and its removal is not reported.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::mpsc::channel;
    /// use std::time::Duration;
    ///
    /// let store = ordna::Store::<[u8], [u8]>::new();
    /// let (expired, keys) = channel();
    /// store.on_expiry(move |key: &[u8]| drop(expired.send(key.to_vec())));
    /// store.insert_until(b"key", b"value", store.now() + 1).unwrap();
    /// assert_eq!(keys.recv_timeout(Duration::from_secs(10)).unwrap(), b"key");
    /// ```
    pub fn on_expiry(&self, report: impl Fn(&K) + Send + Sync + 'static) -> bool {
        self.engine().deadlines.report.set(Report(Box::new(report))).is_ok()
    }

    /// Returns whether a snapshot was taken of this store.
    pub(crate) fn has_taken(&self, snapshot: &Snapshot<K, V>) -> bool {
        snapshot.is_of(self.engine())
    }

    /// Removes expired keys and frees the undo records that no snapshot needs. Waits for the writes
    /// in progress. Collection also runs by itself; call this when the store is idle.
    ///
    /// ```
    /// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
    /// names.put(1, "Lund")?;
    /// names.put(2, "Uppsala")?;
    /// let before = names.snapshot();
    /// names.remove(1)?;
    /// drop(before);
    /// names.collect_garbage();
    /// assert_eq!(names.statistics().dead, 0);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn collect_garbage(&self) {
        self.engine().collect();
    }

    /// Does a bounded part of [`collect_garbage`](Self::collect_garbage), for a thread that needs
    /// memory within the limit: removes some expired keys and frees the undo records that no
    /// snapshot needs. Waits for the writes in progress. Returns whether there may be more expired
    /// keys.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// while store.collect_some() {}
    /// ```
    pub fn collect_some(&self) -> bool {
        self.engine().free_some_bytes()
    }
}

fn is_limit(error: &Error) -> bool {
    matches!(error, Error::MemoryLimit { .. })
}
