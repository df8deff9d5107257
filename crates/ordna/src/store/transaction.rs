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

mod operations;

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::thread;
use std::time::{Duration, Instant};

use super::handle::Store;
use super::snapshot::Snapshot;
use crate::entry::Put;
use ordna_base::index::{Bounds, Direction, Source, bounds_cross};
use ordna_base::{Entries, Error, Key, Value};

/// Number of recorded keys above which a transaction records the range from the smallest to the
/// largest instead, and number of recorded ranges above which it records one that covers all. This
/// bounds the record, at the price of conflicts with writes in between.
const NOTED: usize = 1 << 16;

/// Longest pause before a retry: several times the usual duration of a transaction.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Options of transactions.
///
/// ```
/// use ordna::{Store, TransactionOptions};
///
/// let store: Store<u64, u64> = Store::new();
/// let options = TransactionOptions::new().attempts(5);
/// store.transaction_with(&options, |tx| tx.put(1, 10))?;
/// assert_eq!(store.get(1), Some(10));
/// # Ok::<(), ordna::Error>(())
/// ```
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
    ///
    /// ```
    /// use ordna::{Store, TransactionOptions};
    ///
    /// let store: Store<u64, u64> = Store::new();
    /// let tx = store.begin_with(&TransactionOptions::new());
    /// assert!(tx.commit().is_ok());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many times [`Store::transaction`] runs a transaction that conflicts with others, at
    /// least once.
    ///
    /// ```
    /// use ordna::{Error, Store, TransactionOptions};
    ///
    /// let store: Store<u64, u64> = Store::new();
    /// let once = TransactionOptions::new().attempts(1);
    /// let done = store.transaction_with(&once, |tx| {
    ///     tx.get(1);
    ///     store.put(1, 1)?; // a conflicting write
    ///     tx.put(2, 2)
    /// });
    /// assert_eq!(done, Err(Error::Conflict { attempts: 1 }));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn attempts(self, attempts: u32) -> Self {
        Self { attempts: attempts.max(1), ..self }
    }

    /// Sets the age after which a transaction can no longer commit. Its snapshot keeps the versions
    /// that it sees, so a program that never ends a transaction fills the memory;
    /// [`Store::statistics`] reports the age of the oldest snapshot.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ordna::{Error, Store, TransactionOptions};
    ///
    /// let store: Store<u64, u64> = Store::new();
    /// let options = TransactionOptions::new().age_limit(Duration::ZERO);
    /// let tx = store.begin_with(&options);
    /// tx.put(1, 1)?;
    /// std::thread::sleep(Duration::from_millis(1));
    /// assert_eq!(tx.commit(), Err(Error::TransactionTooOld { limit: Duration::ZERO }));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
///
/// ```
/// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
/// names.put(1, "Lund")?;
/// names.put(2, "Uppsala")?;
/// let tx = names.begin();
/// tx.put(3, "Visby")?;
/// assert_eq!((tx.iter().count(), names.len()), (3, 2));
/// tx.commit()?;
/// assert_eq!(names.len(), 3);
/// # Ok::<(), ordna::Error>(())
/// ```
pub struct Transaction<'s, K: Key + ?Sized, V: Value + ?Sized> {
    store: &'s Store<K, V>,
    snapshot: Snapshot<K, V>,
    began: Instant,
    age_limit: Duration,
    footprint: RefCell<Footprint<K, V>>,
}

/// A transaction without a reference to its store, created by [`Transaction::suspend`] and
/// continued by [`Store::resume`]. It can be kept in a struct or sent to another thread.
///
/// ```
/// let names: ordna::Store<u64, [u8]> = ordna::Store::new();
/// names.put(1, "Lund")?;
/// names.put(2, "Uppsala")?;
/// let tx = names.begin();
/// tx.put(3, "Visby")?;
/// let suspended = tx.suspend();
/// names.resume(suspended)?.commit()?;
/// assert!(names.contains_key(3));
/// # Ok::<(), ordna::Error>(())
/// ```
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
    ///
    /// ```
    /// use ordna::{Store, TransactionOptions};
    ///
    /// let counts: Store<u64, u64> = Store::new();
    /// let options = TransactionOptions::new().attempts(1_000);
    /// counts.transaction_with(&options, |tx| tx.put(1, tx.get(1).unwrap_or(0) + 1))?;
    /// assert_eq!(counts.get(1), Some(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
    ///
    /// ```
    /// use ordna::{Store, TransactionOptions};
    ///
    /// let store: Store<u64, u64> = Store::new();
    /// let tx = store.begin_with(&TransactionOptions::new());
    /// tx.put(1, 10)?;
    /// tx.commit()?;
    /// assert_eq!(store.get(1), Some(10));
    /// # Ok::<(), ordna::Error>(())
    /// ```
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
