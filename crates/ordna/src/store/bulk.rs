//! Construction of a store from sorted entries: bulk loads and recovery from a backup.
//!
//! One thread builds the leaves of each part bottom-up, synchronized with others by the memory
//! limit only. Then the parts' leaves are linked together (the Nitro paper, §5.2). O(n).

use std::borrow::Borrow;
use std::thread;

use super::budget::Budget;
use super::handle::Store;
use super::options::Options;
use crate::entry::Put;
use crate::tree::{FOREVER, Run, Tree};
use ordna_base::sync::{Lock, joined};
use ordna_base::{Error, Key, Value};

/// A part of a store under construction: items in ascending order of distinct keys.
pub(crate) trait SortedPart<K: ?Sized, V: ?Sized>: Send {
    /// Calls `push` with each item until it returns an error.
    fn each(self, push: impl FnMut(&K, Put<&V>) -> Result<(), Error>) -> Result<(), Error>;
}

/// A caller's items with deadlines.
struct Items<P>(P);

impl<K, V, P, Q, W> SortedPart<K, V> for Items<P>
where
    K: ?Sized,
    V: ?Sized,
    P: IntoIterator<Item = (Q, Put<W>)> + Send,
    Q: Borrow<K>,
    W: Borrow<V>,
{
    fn each(self, mut push: impl FnMut(&K, Put<&V>) -> Result<(), Error>) -> Result<(), Error> {
        self.0.into_iter().try_for_each(|(key, put)| {
            push(key.borrow(), Put { value: put.value.borrow(), expires_at: put.expires_at })
        })
    }
}

/// A caller's items without deadlines.
struct Forever<P>(P);

impl<K, V, P, Q, W> SortedPart<K, V> for Forever<P>
where
    K: ?Sized,
    V: ?Sized,
    P: IntoIterator<Item = (Q, W)> + Send,
    Q: Borrow<K>,
    W: Borrow<V>,
{
    fn each(self, mut push: impl FnMut(&K, Put<&V>) -> Result<(), Error>) -> Result<(), Error> {
        let mut items = self.0.into_iter();
        items.try_for_each(|(key, value)| push(key.borrow(), Put::forever(value.borrow())))
    }
}

/// The leaves of a part, and the keys in them that expire, with their deadlines.
type Built<K, V> = (Run<K, V>, Vec<(<K as ToOwned>::Owned, u64)>);

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// Creates a store of the items of all parts. Keys must be distinct and in ascending order
    /// within each part and from part to part. As many parts are read concurrently as the machine
    /// runs threads, so a part must not wait for another one.
    ///
    /// # Errors
    /// A key or value is too long, an item is not above the previous one, or the items exceed the
    /// memory limit. Construction stops at the limit.
    ///
    /// ```
    /// use ordna::{Options, Store};
    ///
    /// let parts = vec![vec![(1, 10), (2, 20)], vec![(3, 30)]];
    /// let store: Store<u64, u64> = Store::from_sorted(Options::new(), parts)?;
    /// assert_eq!(store.len(), 3);
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn from_sorted<P, Q, W>(options: Options, parts: Vec<P>) -> Result<Self, Error>
    where
        P: IntoIterator<Item = (Q, W)> + Send,
        Q: Borrow<K>,
        W: Borrow<V>,
    {
        Self::from_parts(options, parts.into_iter().map(Forever).collect())
    }

    /// Works like [`from_sorted`](Self::from_sorted), for values with deadlines.
    ///
    /// # Errors
    /// Those of [`from_sorted`](Self::from_sorted).
    ///
    /// ```
    /// use ordna::{Options, Put, Store};
    ///
    /// let until = u64::MAX - 1;
    /// let part = vec![(1, Put::forever(10)), (2, Put { value: 20, expires_at: Some(until) })];
    /// let store: Store<u64, u64> = Store::from_sorted_entries(Options::new(), vec![part])?;
    /// assert_eq!((store.expiry(&1), store.expiry(&2)), (Some(None), Some(Some(until))));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn from_sorted_entries<P, Q, W>(options: Options, parts: Vec<P>) -> Result<Self, Error>
    where
        P: IntoIterator<Item = (Q, Put<W>)> + Send,
        Q: Borrow<K>,
        W: Borrow<V>,
    {
        Self::from_parts(options, parts.into_iter().map(Items).collect())
    }

    /// Works like [`from_sorted_entries`](Self::from_sorted_entries).
    pub(crate) fn from_parts<P: SortedPart<K, V>>(
        options: Options,
        parts: Vec<P>,
    ) -> Result<Self, Error> {
        let budget = options.budget();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(parts.len());
        let count = parts.len();
        let memory = Tree::<K, V>::memory(options.records_stay);
        let parts = Lock::new(parts.into_iter().enumerate());
        // Stops at an error. All earlier parts were begun, so the first error is found.
        let build = || {
            let mut runs = Vec::new();
            while runs.last().is_none_or(|(_, run): &(_, Result<_, _>)| run.is_ok()) {
                let next = parts.lock().next();
                let Some((number, part)) = next else { break };
                let run_of = Run::new(options.sizes, &memory, count);
                runs.push((number, run(run_of, number, part, &budget)));
            }
            runs
        };
        let mut runs = thread::scope(|scope| {
            // The calling thread builds too, alone if the system cannot start other threads.
            let start = |_| thread::Builder::new().spawn_scoped(scope, build).ok();
            let others: Vec<_> = (1..threads).map_while(start).collect();
            let mut runs = build();
            for other in others {
                // A panic comes from the caller's iterator.
                runs.extend(joined(other));
            }
            runs
        });
        runs.sort_unstable_by_key(|(number, _)| *number);
        let runs = runs.into_iter().map(|(_, run)| run).collect::<Result<Vec<Built<K, V>>, _>>()?;
        let (runs, deadlines): (Vec<_>, Vec<_>) = runs.into_iter().unzip();
        let items: usize = runs.iter().map(Run::len).sum();
        let tree = Tree::from_runs(options.sizes, memory.clone(), runs)
            .map_err(|part| Error::NotSorted { part, at: 0 })?;
        let store = Self::of(options, budget, tree);
        let engine = store.engine();
        engine.epochs.items.add(i64::try_from(items).unwrap_or(i64::MAX));
        for (key, deadline) in deadlines.into_iter().flatten() {
            engine.deadlines.add(key.borrow(), deadline);
            if engine.deadlines.schedule(deadline) {
                engine.wake_for_deadline();
            }
        }
        Ok(store)
    }
}

fn run<K: Key + ?Sized, V: Value + ?Sized>(
    mut run: Run<K, V>,
    part: usize,
    items: impl SortedPart<K, V>,
    budget: &Budget,
) -> Result<Built<K, V>, Error> {
    let mut deadlines = Vec::new();
    items.each(|key, put| {
        key.check()?;
        put.value.check()?;
        let deadline = put.deadline();
        budget.reserve(Tree::<K, V>::cost(key, put.value, deadline))?;
        if !run.push(key, put.value, deadline) {
            return Err(Error::NotSorted { part, at: run.len() });
        }
        if deadline != FOREVER {
            deadlines.push((key.to_owned(), deadline));
        }
        Ok(())
    })?;
    Ok((run, deadlines))
}
