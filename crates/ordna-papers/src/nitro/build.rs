//! A store from what is sorted already: recovery from a backup, loading in bulk.
//!
//! Each part becomes a run of versions, built bottom-up by one thread with no synchronization but the
//! memory limit's; then the runs are stitched together (the Nitro paper, §5.2). O(n).

use std::borrow::Borrow;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::engine::Versions;
use super::handle::Store;
use super::options::Options;
use super::raw::{NewVersion, Version, cost};
use crate::skiplist::raw::Segment;
use ordna::store::budget::Budget;
use ordna_base::{Error, Key, Value};

/// What a thread made of its part.
struct Run<K: Key + ?Sized, V: Value + ?Sized> {
    segment: Segment<Version<K, V>>,
    items: usize,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// A store of the items of all parts, each part and all of them together in ascending order of
    /// distinct keys. As many parts at once as the machine runs threads, so a part must not wait for
    /// another.
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
        let budget = options.budget();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(parts.len());
        let parts = Mutex::new(parts.into_iter().enumerate());
        // Stops at an error. All parts before that one were begun, so the first error is found.
        let build = || {
            let mut runs = Vec::new();
            while runs.last().is_none_or(|(_, run): &(_, Result<_, _>)| run.is_ok()) {
                let next = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((number, part)) = next else { break };
                runs.push((number, run(number, part, &budget)));
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
                runs.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            runs
        });
        runs.sort_unstable_by_key(|(number, _)| *number);
        let runs = runs.into_iter().map(|(_, run)| run).collect::<Result<Vec<Run<K, V>>, _>>()?;
        let items: usize = runs.iter().map(|run| run.items).sum();
        let segments = runs.into_iter().map(|run| run.segment).collect();
        let versions =
            Versions::from_segments(segments).map_err(|part| Error::NotSorted { part, at: 0 })?;
        let store = Self::of(options, budget, versions);
        store.engine().terms.items.add(i64::try_from(items).unwrap_or(i64::MAX));
        Ok(store)
    }
}

fn run<K, V, Q, W>(
    part: usize,
    items: impl IntoIterator<Item = (Q, W)>,
    budget: &Budget,
) -> Result<Run<K, V>, Error>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    Q: Borrow<K>,
    W: Borrow<V>,
{
    let mut run = Run { segment: Segment::new(), items: 0 };
    for (key, value) in items {
        let (key, value) = (key.borrow(), value.borrow());
        key.check()?;
        value.check()?;
        budget.reserve(cost(key, value, false))?;
        // As if written in the first term.
        if !run.segment.push(&NewVersion::new(key, value, 1, None)) {
            return Err(Error::NotSorted { part, at: run.items });
        }
        run.items += 1;
    }
    Ok(run)
}
