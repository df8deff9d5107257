//! Transactions: reads at a snapshot, buffered writes, and a commit that applies them as one step.
//!
//! # Contract
//! A transaction belongs to one thread at a time. Transactions of a store run concurrently.
//!
//! # Protocol
//! Reads come from a snapshot and from the transaction's own writes, which are buffered. The
//! transaction records the keys and ranges that it reads, including absent keys. `commit` checks
//! that they are unchanged and applies the writes; no other writer writes in between. The module
//! `commit` describes how, and why that is serializable.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::{Bound, ControlFlow};
use std::thread;
use std::time::{Duration, Instant};

use super::handle::Store;
use super::snapshot::Snapshot;
use crate::entry::Put;
use ordna_base::index::{Bounds, Direction, Range, Source, bounds_cross};
use ordna_base::{AsData, Entries, Error, Key, KeyRange, Value};

/// Number of recorded keys above which a transaction records the range from the smallest to the
/// largest instead, and number of recorded ranges above which it records one that covers all. This
/// bounds the record, at the price of conflicts with writes in between.
const NOTED: usize = 1 << 16;

/// Longest pause before a retry: several times the usual duration of a transaction.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Options of transactions.
#[derive(Debug, Clone)]
pub struct TransactionOptions {
    attempts: u32,
    age_limit: Duration,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self { attempts: 100, age_limit: Duration::from_secs(60) }
    }
}

impl TransactionOptions {
    /// Returns the default options: 100 attempts and an age limit of one minute.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many times [`Store::transaction`] runs a transaction that conflicts with others, at
    /// least once.
    pub fn attempts(self, attempts: u32) -> Self {
        Self { attempts: attempts.max(1), ..self }
    }

    /// Sets the age after which a transaction can no longer commit. Its snapshot keeps the versions
    /// that it sees, so a program that never ends a transaction fills the memory;
    /// [`Store::statistics`] reports the age of the oldest snapshot.
    pub fn age_limit(self, age_limit: Duration) -> Self {
        Self { age_limit, ..self }
    }
}

/// A copy of an entry.
type Entry<K, V> = (<K as ToOwned>::Owned, <V as ToOwned>::Owned);
/// A copy of bounds.
type OwnedBounds<K> = (Bound<<K as ToOwned>::Owned>, Bound<<K as ToOwned>::Owned>);

/// The keys and ranges that a transaction has read.
#[derive(Debug)]
pub(super) struct ReadSet<K: Key + ?Sized> {
    pub keys: Vec<K::Owned>,
    pub ranges: Vec<OwnedBounds<K>>,
}

impl<K: Key + ?Sized> ReadSet<K> {
    fn note_key(&mut self, key: &K) {
        if self.keys.len() == NOTED {
            let smallest = self.keys.iter().min().cloned();
            let largest = self.keys.iter().max().cloned();
            if let (Some(smallest), Some(largest)) = (smallest, largest) {
                self.note_range(Bound::Included(smallest), Bound::Included(largest));
            }
            self.keys.clear();
        }
        self.keys.push(key.to_owned());
    }

    fn note_range(&mut self, lower: Bound<K::Owned>, upper: Bound<K::Owned>) {
        // The next chunk of a scan continues where the previous one ended.
        if let Some((from, to)) = self.ranges.last_mut() {
            match (&*to, &lower) {
                (Bound::Included(end), Bound::Excluded(start)) if end == start => {
                    *to = upper;
                    return;
                }
                _ => {}
            }
            match (&*from, &upper) {
                (Bound::Included(start), Bound::Excluded(end)) if end == start => {
                    *from = lower;
                    return;
                }
                _ => {}
            }
        }
        if self.ranges.len() == NOTED {
            self.ranges = vec![(Bound::Unbounded, Bound::Unbounded)];
        }
        self.ranges.push((lower, upper));
    }
}

/// The reads and the buffered writes of a transaction.
pub(super) struct Footprint<K: Key + ?Sized, V: Value + ?Sized> {
    pub reads: ReadSet<K>,
    /// The buffered writes; `None` removes the key.
    pub writes: BTreeMap<K::Owned, Option<Put<V::Owned>>>,
    /// Whether the writes were abandoned.
    is_abandoned: bool,
}

/// A transaction of a [`Store`], created by [`Store::transaction`] or [`Store::begin`].
///
/// Reads return the state of the store when the transaction began, with the transaction's own
/// writes. [`commit`](Self::commit) applies these writes as one step if nothing that the
/// transaction has read, including ranges and absent keys, was changed in the meantime. Otherwise
/// it fails with [`Error::Conflict`] and changes nothing. So transactions are serializable,
/// together with single writes and batches of other threads, and with snapshots. A transaction that
/// writes nothing never conflicts. Dropping a transaction discards its writes.
///
/// Reads of the latest state that are not part of a transaction may see some of its writes before
/// the others, as with a [batch](Store::write_batch).
pub struct Transaction<'s, K: Key + ?Sized, V: Value + ?Sized> {
    store: &'s Store<K, V>,
    snapshot: Snapshot<K, V>,
    began: Instant,
    age_limit: Duration,
    footprint: RefCell<Footprint<K, V>>,
}

/// A transaction without a reference to its store, created by [`Transaction::suspend`] and
/// continued by [`Store::resume`]. It can be kept in a struct or sent to another thread.
pub struct SuspendedTransaction<K: Key + ?Sized, V: Value + ?Sized> {
    snapshot: Snapshot<K, V>,
    began: Instant,
    age_limit: Duration,
    footprint: Footprint<K, V>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> fmt::Debug for SuspendedTransaction<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuspendedTransaction")
            .field("snapshot", &self.snapshot)
            .field("age", &self.began.elapsed())
            .field("writes", &self.footprint.writes.len())
            .finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> fmt::Debug for Transaction<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let footprint = self.footprint.borrow();
        f.debug_struct("Transaction")
            .field("snapshot", &self.snapshot)
            .field("age", &self.began.elapsed())
            .field("writes", &footprint.writes.len())
            .finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Runs `work` in a transaction and commits it. If it conflicts with other writes, runs it
    /// again, up to 100 times, after pauses that become longer. `work` may run several times, so it
    /// should have no other effects. If it returns an error, nothing is written.
    ///
    /// A commit blocks other writers for O(k log n) with k keys read and written, plus O(l) with l
    /// leaves of about 40 entries within the ranges read, or O(n) for the n entries of a range in
    /// which something has changed. Readers are not blocked.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Conflict`] if each attempt failed; [`Error::TransactionTooOld`]
    /// after a minute; those of [`write_batch`](Self::write_batch). Nothing is written, except that
    /// after [`Error::LogFailed`] the writes may have been applied.
    ///
    /// ```
    /// let accounts: ordna::Store<[u8], u64> = ordna::Store::new();
    /// accounts.insert("ann", 10)?;
    /// accounts.insert("bob", 0)?;
    /// let done = accounts.transaction(|tx| {
    ///     let (from, to) = (tx.get("ann").unwrap_or(0), tx.get("bob").unwrap_or(0));
    ///     let Some(rest) = from.checked_sub(7) else { return Ok(false) };
    ///     tx.put("ann", rest)?;
    ///     tx.put("bob", to + 7)?;
    ///     Ok(true)
    /// })?;
    /// assert!(done);
    /// assert_eq!((accounts.get("ann"), accounts.get("bob")), (Some(3), Some(7)));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn transaction<R>(
        &self,
        work: impl FnMut(&Transaction<'_, K, V>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.transaction_with(&TransactionOptions::new(), work)
    }

    /// Works like [`transaction`](Self::transaction), with options.
    ///
    /// # Errors
    /// Those of [`transaction`](Self::transaction).
    pub fn transaction_with<R>(
        &self,
        options: &TransactionOptions,
        mut work: impl FnMut(&Transaction<'_, K, V>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut attempts = 0;
        loop {
            let transaction = self.begin_with(options);
            let done = work(&transaction)?;
            match transaction.commit() {
                Ok(()) => return Ok(done),
                Err(Error::Conflict { .. }) => attempts += 1,
                Err(error) => return Err(error),
            }
            if attempts >= options.attempts {
                return Err(Error::Conflict { attempts });
            }
            pause(attempts);
        }
    }

    /// Begins a transaction. O(log s) with s live snapshots.
    ///
    /// ```
    /// use ordna::{Error, Store};
    ///
    /// let store: Store<u64, u64> = Store::new();
    /// let one = store.begin();
    /// assert_eq!(one.get(1), None);
    /// one.put(2, 2)?;
    /// store.put(1, 1)?; // in between
    /// assert_eq!(one.commit(), Err(Error::Conflict { attempts: 1 }));
    /// assert_eq!(store.get(2), None);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn begin(&self) -> Transaction<'_, K, V> {
        self.begin_with(&TransactionOptions::new())
    }

    /// Works like [`begin`](Self::begin), with options. The number of attempts is ignored.
    pub fn begin_with(&self, options: &TransactionOptions) -> Transaction<'_, K, V> {
        let reads = ReadSet { keys: Vec::new(), ranges: Vec::new() };
        Transaction {
            store: self,
            snapshot: self.snapshot(),
            began: Instant::now(),
            age_limit: options.age_limit,
            footprint: RefCell::new(Footprint {
                reads,
                writes: BTreeMap::new(),
                is_abandoned: false,
            }),
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Continues a transaction of this store. O(1).
    ///
    /// # Errors
    /// [`Error::OtherStore`] if the transaction belongs to another store. The transaction then
    /// ends.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::new();
    /// let tx = store.begin();
    /// tx.put(1, 1)?;
    /// let suspended = tx.suspend();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| store.resume(suspended)?.commit()).join().unwrap()
    /// })?;
    /// assert_eq!(store.get(1), Some(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn resume(
        &self,
        suspended: SuspendedTransaction<K, V>,
    ) -> Result<Transaction<'_, K, V>, Error> {
        let SuspendedTransaction { snapshot, began, age_limit, footprint } = suspended;
        if !self.has_taken(&snapshot) {
            return Err(Error::OtherStore);
        }
        let footprint = RefCell::new(footprint);
        Ok(Transaction { store: self, snapshot, began, age_limit, footprint })
    }
}

/// Waits before another attempt. The first pauses only yield to other threads; later ones are
/// random and up to twice as long each time, so that two transactions do not conflict again.
fn pause(attempts: u32) {
    if attempts < 3 {
        return thread::yield_now();
    }
    let longest = Duration::from_micros(1 << attempts.min(16)).min(LONGEST_PAUSE);
    let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX).max(1);
    thread::sleep(Duration::from_nanos(RandomState::new().hash_one(attempts) % nanos));
}

/// # Reads
impl<K: Key + ?Sized, V: Value + ?Sized> Transaction<'_, K, V> {
    /// Returns the value of `key`, copied. O(log n).
    pub fn get(&self, key: impl AsData<K>) -> Option<V::Owned> {
        self.get_with(key, ToOwned::to_owned)
    }

    /// Calls `read` with the value of `key`. O(log n).
    pub fn get_with<R>(&self, key: impl AsData<K>, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.get_entry_with(key.as_data(), |entry| read(entry.value))
    }

    /// Calls `read` with value and deadline of `key`. O(log n).
    pub fn get_entry_with<R>(&self, key: &K, read: impl FnOnce(Put<&V>) -> R) -> Option<R> {
        let own = {
            let mut footprint = self.footprint.borrow_mut();
            let own = footprint.writes.get(key).cloned();
            if own.is_none() {
                footprint.reads.note_key(key);
            }
            own
        };
        match own {
            Some(put) => {
                put.map(|Put { value, expires_at }| read(Put { value: value.borrow(), expires_at }))
            }
            None => self.snapshot.get_entry_with(key, read),
        }
    }

    /// Calls `each` with the position and value of every key, in the order of `keys`.
    pub fn get_many_with<Q: AsData<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        for (at, key) in keys.iter().enumerate() {
            if self.get_with(key, |value| each(at, Some(value))).is_none() {
                each(at, None);
            }
        }
    }

    /// Returns whether `key` is present. O(log n).
    pub fn contains_key(&self, key: impl AsData<K>) -> bool {
        self.get_with(key, |_| ()).is_some()
    }

    /// Returns an iterator over the entries of a range, in order, from both ends. The entries that
    /// it reads ahead, at most as many as it has returned, count as read. O(log n), then amortized
    /// O(1) per entry.
    pub fn range(&self, range: impl KeyRange<K>) -> Range<'_, Self> {
        let (lower, upper) = range.ends();
        Range::new(self, lower.map(ToOwned::to_owned), upper.map(ToOwned::to_owned))
    }

    /// Returns all entries, in order, from both ends; see [`range`](Self::range).
    pub fn iter(&self) -> Range<'_, Self> {
        self.range(..)
    }

    /// Returns the entry with the smallest key. O(log n).
    pub fn first(&self) -> Option<Entry<K, V>> {
        self.iter().next()
    }

    /// Returns the entry with the largest key. O(log n).
    pub fn last(&self) -> Option<Entry<K, V>> {
        self.iter().next_back()
    }

    /// Calls `visit` with the entries within the bounds, in order, until it breaks.
    pub fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut entries = self.range((lower, upper));
        loop {
            let next = match direction {
                Direction::Ascending => entries.next_ref(),
                Direction::Descending => entries.next_back_ref(),
            };
            let Some((key, value)) = next else { return };
            if visit(key, value).is_break() {
                return;
            }
        }
    }

    /// Returns the number of keys within the bounds. O(n).
    pub fn count(&self, lower: Bound<&K>, upper: Bound<&K>) -> usize {
        let mut count = 0;
        self.visit(lower, upper, Direction::Ascending, |_, _| {
            count += 1;
            ControlFlow::Continue(())
        });
        count
    }

    /// Returns the number of keys below `key`. O(n).
    pub fn rank(&self, key: &K) -> usize {
        self.count(Bound::Unbounded, Bound::Excluded(key))
    }

    /// Calls `read` with the entry at a position, counted from 0. O(position).
    pub fn select_with<R>(&self, position: usize, read: impl FnOnce(&K, &V) -> R) -> Option<R> {
        let mut entries = self.iter();
        for _ in 0..position {
            entries.next_ref()?;
        }
        entries.next_ref().map(|(key, value)| read(key, value))
    }

    /// Returns the snapshot that the transaction reads. Reads of the snapshot itself do not count
    /// as reads of the transaction.
    pub fn snapshot(&self) -> &Snapshot<K, V> {
        &self.snapshot
    }

    /// Returns the transaction without its store; [`Store::resume`] continues it. O(1).
    pub fn suspend(self) -> SuspendedTransaction<K, V> {
        let Self { snapshot, began, age_limit, footprint, .. } = self;
        SuspendedTransaction { snapshot, began, age_limit, footprint: footprint.into_inner() }
    }

    /// Returns the store of the transaction.
    pub(crate) fn store(&self) -> &Store<K, V> {
        self.store
    }
}

/// # Writes
///
/// Writes are buffered until the commit, and fail with [`Error::KeyTooLong`] and
/// [`Error::ValueTooLong`] only.
impl<K: Key + ?Sized, V: Value + ?Sized> Transaction<'_, K, V> {
    /// Sets the value of `key`, without a read. The entry does not expire.
    ///
    /// # Errors
    /// See [writes](#writes).
    pub fn put(&self, key: impl AsData<K>, value: impl AsData<V>) -> Result<(), Error> {
        self.put_entry(key.as_data(), Put::forever(value.as_data()))
    }

    /// Sets the value of `key`, which expires after `life`, counted from now.
    ///
    /// # Errors
    /// See [writes](#writes).
    pub fn put_for(
        &self,
        key: impl AsData<K>,
        value: impl AsData<V>,
        life: Duration,
    ) -> Result<(), Error> {
        let expires_at = Some(self.store.deadline_after(life));
        self.put_entry(key.as_data(), Put { value: value.as_data(), expires_at })
    }

    /// Sets value and deadline of `key`.
    pub(crate) fn put_entry(&self, key: &K, put: Put<&V>) -> Result<(), Error> {
        key.check()?;
        put.value.check()?;
        let put = Put { value: put.value.to_owned(), expires_at: put.expires_at };
        self.footprint.borrow_mut().writes.insert(key.to_owned(), Some(put));
        Ok(())
    }

    /// Sets the value of `key` and returns its former value.
    ///
    /// # Errors
    /// See [writes](#writes).
    pub fn insert(
        &self,
        key: impl AsData<K>,
        value: impl AsData<V>,
    ) -> Result<Option<V::Owned>, Error> {
        let key = key.as_data();
        let old = self.get(key);
        self.put(key, value)?;
        Ok(old)
    }

    /// Replaces the value of `key` by the result of `update` and returns it, or `None` if the key
    /// is absent. The entry keeps its deadline.
    ///
    /// # Errors
    /// See [writes](#writes).
    pub fn update(
        &self,
        key: impl AsData<K>,
        update: impl FnOnce(&V) -> V::Owned,
    ) -> Result<Option<V::Owned>, Error> {
        let key = key.as_data();
        let updated = |entry: Put<&V>| (update(entry.value), entry.expires_at);
        let Some((value, expires_at)) = self.get_entry_with(key, updated) else { return Ok(None) };
        self.put_entry(key, Put { value: value.borrow(), expires_at })?;
        Ok(Some(value))
    }

    /// Removes `key` and returns its former value.
    ///
    /// # Errors
    /// See [writes](#writes).
    pub fn remove(&self, key: impl AsData<K>) -> Result<Option<V::Owned>, Error> {
        let key = key.as_data();
        let old = self.get(key);
        if old.is_some() {
            self.footprint.borrow_mut().writes.insert(key.to_owned(), None);
        }
        Ok(old)
    }

    /// Removes every key of a range and returns how many there were. O(n) with n entries in the
    /// range.
    ///
    /// # Errors
    /// See [writes](#writes).
    pub fn remove_range(&self, range: impl KeyRange<K>) -> Result<usize, Error> {
        let keys: Vec<K::Owned> = self.range(range).map(|(key, _)| key).collect();
        let removed = keys.len();
        let mut footprint = self.footprint.borrow_mut();
        footprint.writes.extend(keys.into_iter().map(|key| (key, None)));
        Ok(removed)
    }

    /// Removes the entry with the smallest key and returns it.
    ///
    /// # Errors
    /// See [writes](#writes).
    pub fn pop_first(&self) -> Result<Option<Entry<K, V>>, Error> {
        let first = self.first();
        if let Some((key, _)) = &first {
            self.remove(Borrow::<K>::borrow(key))?;
        }
        Ok(first)
    }

    /// Removes the entry with the largest key and returns it.
    ///
    /// # Errors
    /// See [writes](#writes).
    pub fn pop_last(&self) -> Result<Option<Entry<K, V>>, Error> {
        let last = self.last();
        if let Some((key, _)) = &last {
            self.remove(Borrow::<K>::borrow(key))?;
        }
        Ok(last)
    }

    /// Discards all writes: the transaction ends without a change and never conflicts. Later writes
    /// are discarded, too.
    pub fn abandon(&self) {
        self.footprint.borrow_mut().is_abandoned = true;
    }

    /// Applies the writes as one step if nothing that the transaction has read has changed since it
    /// began; see [`Store::transaction`] for the cost. After a crash, a store that was opened in a
    /// directory holds all of the writes or none. The linearization point is within this call.
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::TransactionTooOld`], and those of
    /// [`write_batch`](Store::write_batch). Nothing is written, except that after
    /// [`Error::LogFailed`] the writes may have been applied.
    pub fn commit(self) -> Result<(), Error> {
        let footprint = self.footprint.into_inner();
        if footprint.is_abandoned || footprint.writes.is_empty() {
            return Ok(());
        }
        if self.began.elapsed() > self.age_limit {
            return Err(Error::TransactionTooOld { limit: self.age_limit });
        }
        self.store.commit(&self.snapshot, &footprint)
    }
}

/// Reads chunks of the snapshot, merged with the transaction's own writes. The range of a chunk is
/// recorded as read.
impl<K: Key + ?Sized, V: Value + ?Sized> Source for Transaction<'_, K, V> {
    type Key = K;
    type Value = V;
    const FIRST_CHUNK: usize = 1;

    fn read_ahead(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        limit: usize,
        out: &mut Entries<K, V>,
    ) -> bool {
        let owned = |bound: Bound<&K>| bound.map(ToOwned::to_owned);
        let (mut lower, mut upper) = (owned(lower), owned(upper));
        let mut chunk = Entries::new();
        let before = out.len();
        loop {
            let bounds = (lower.as_ref().map(Borrow::borrow), upper.as_ref().map(Borrow::borrow));
            if limit == 0 || bounds_cross(bounds.0, bounds.1) {
                return false;
            }
            chunk.clear();
            let more = self.snapshot.read_ahead(bounds.0, bounds.1, direction, limit, &mut chunk);
            // The last key that the chunk covers.
            let last = chunk.last().filter(|_| more).map(|(key, _)| key.to_owned());
            let (low, high) = match (&last, direction) {
                (None, _) => (lower.clone(), upper.clone()),
                (Some(last), Direction::Ascending) => {
                    (lower.clone(), Bound::Included(last.clone()))
                }
                (Some(last), Direction::Descending) => {
                    (Bound::Included(last.clone()), upper.clone())
                }
            };
            let mut footprint = self.footprint.borrow_mut();
            let within = (low.as_ref().map(Borrow::borrow), high.as_ref().map(Borrow::borrow));
            merge(&footprint.writes, &chunk, within, direction, out);
            footprint.reads.note_range(low, high);
            drop(footprint);
            // If the transaction removes all entries of a chunk, the next chunk is read.
            let Some(last) = last.filter(|_| out.len() == before) else { return more };
            match direction {
                Direction::Ascending => lower = Bound::Excluded(last),
                Direction::Descending => upper = Bound::Excluded(last),
            }
        }
    }
}

/// Appends the entries of a chunk and a transaction's own writes within its bounds, in order.
fn merge<K: Key + ?Sized, V: Value + ?Sized>(
    writes: &BTreeMap<K::Owned, Option<Put<V::Owned>>>,
    chunk: &Entries<K, V>,
    within: Bounds<'_, K>,
    direction: Direction,
    out: &mut Entries<K, V>,
) {
    let mut own: Vec<(&K, Option<&V>)> = writes
        .range::<K, _>(within)
        .map(|(key, put)| (key.borrow(), put.as_ref().map(|put| put.value.borrow())))
        .collect();
    if direction == Direction::Descending {
        own.reverse();
    }
    let mut own = own.into_iter().peekable();
    let comes_first = |one: &K, other: &K| match direction {
        Direction::Ascending => one <= other,
        Direction::Descending => one >= other,
    };
    for (key, value) in chunk.iter() {
        let mut is_written = false;
        while let Some((written, put)) = own.next_if(|(written, _)| comes_first(written, key)) {
            is_written |= written == key;
            if let Some(put) = put {
                out.push(written, put);
            }
        }
        if !is_written {
            out.push(key, value);
        }
    }
    for (key, put) in own {
        if let Some(put) = put {
            out.push(key, put);
        }
    }
}
