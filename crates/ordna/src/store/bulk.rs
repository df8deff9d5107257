//! A store from sorted entries: recovery from a backup, loading in bulk.
//!
//! Each part becomes a run of leaves, built bottom-up by one thread with no synchronization but the
//! memory limit's; then the runs are stitched together (the Nitro paper, §5.2). O(n).

use std::borrow::Borrow;
use std::thread;

use super::budget::Budget;
use super::handle::Store;
use super::options::Options;
use crate::entry::Put;
use crate::tree::{FOREVER, Run, Tree};
use ordna_base::sync::{Lock, joined};
use ordna_base::{Error, Key, Value};

/// A part of a store that is built: items in ascending order of distinct keys.
pub(crate) trait SortedPart<K: ?Sized, V: ?Sized>: Send {
    /// Calls `push` with each item, until it returns an error.
    fn each(self, push: impl FnMut(&K, Put<&V>) -> Result<(), Error>) -> Result<(), Error>;
}

/// Items of a caller.
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

/// Items that do not expire.
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

/// A part's leaves, and the keys in them that expire.
type Built<K, V> = (Run<K, V>, Vec<(<K as ToOwned>::Owned, u64)>);

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// A store of the items of all parts, each part and all of them together in ascending order of
    /// distinct keys. As many parts at once as the machine runs threads, so a part must not wait
    /// for another.
    ///
    /// # Errors
    /// A key or value is too long, an item is not above the one before, or all of them together
    /// exceed the memory limit; no more is built than that allows.
    pub fn from_sorted<P, Q, W>(options: Options, parts: Vec<P>) -> Result<Self, Error>
    where
        P: IntoIterator<Item = (Q, W)> + Send,
        Q: Borrow<K>,
        W: Borrow<V>,
    {
        Self::from_parts(options, parts.into_iter().map(Forever).collect())
    }

    /// As [`from_sorted`](Self::from_sorted), with the deadlines of the values.
    ///
    /// # Errors
    /// As [`from_sorted`](Self::from_sorted).
    pub fn from_sorted_entries<P, Q, W>(options: Options, parts: Vec<P>) -> Result<Self, Error>
    where
        P: IntoIterator<Item = (Q, Put<W>)> + Send,
        Q: Borrow<K>,
        W: Borrow<V>,
    {
        Self::from_parts(options, parts.into_iter().map(Items).collect())
    }

    /// As [`from_sorted_entries`](Self::from_sorted_entries).
    pub(crate) fn from_parts<P: SortedPart<K, V>>(
        options: Options,
        parts: Vec<P>,
    ) -> Result<Self, Error> {
        let budget = options.budget();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(parts.len());
        let count = parts.len();
        let memory = Tree::<K, V>::memory(options.records_stay);
        let parts = Lock::new(parts.into_iter().enumerate());
        // Stops at an error. All parts before that one were begun, so the first error is found.
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
            // The calling thread is one of them, and the only one if the system gives no other.
            let start = |_| thread::Builder::new().spawn_scoped(scope, build).ok();
            let others: Vec<_> = (1..threads).map_while(start).collect();
            let mut runs = build();
            for other in others {
                // A panic is that of the caller's iterator.
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
