//! A store from what is sorted already: recovery from a backup, loading in bulk.
//!
//! One thread for each part builds its run of versions bottom-up, with no synchronization; then the
//! runs are stitched together (the Nitro paper, §5.2). O(n).

use std::borrow::Borrow;

use super::engine::Versions;
use super::raw::{NewVersion, Version, cost};
use super::store::{Options, Store};
use crate::index::skiplist::raw::Segment;
use crate::{Error, Key, Value};

/// What a thread made of its part.
struct Run<K: Key + ?Sized, V: Value + ?Sized> {
    segment: Segment<Version<K, V>>,
    items: usize,
    bytes: usize,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Store<K, V> {
    /// A store of the items of all parts, each part and all of them together in ascending order of
    /// distinct keys. One thread for each part.
    ///
    /// # Errors
    /// A key or value is too long, an item is not above the one before, or all of them together
    /// exceed the memory limit.
    pub fn from_sorted<P, Q, W>(options: Options, parts: Vec<P>) -> Result<Self, Error>
    where
        P: IntoIterator<Item = (Q, W)> + Send,
        Q: Borrow<K>,
        W: Borrow<V>,
    {
        let runs: Vec<Result<Run<K, V>, Error>> = std::thread::scope(|scope| {
            let threads = parts.into_iter().enumerate();
            let threads: Vec<_> =
                threads.map(|(number, part)| scope.spawn(move || run(number, part))).collect();
            let runs = threads.into_iter().map(|thread| thread.join());
            // A panic is that of the caller's iterator.
            runs.map(|run| run.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
        let items: usize = runs.iter().map(|run| run.items).sum();
        let bytes: usize = runs.iter().map(|run| run.bytes).sum();
        let segments = runs.into_iter().map(|run| run.segment).collect();
        let versions =
            Versions::from_segments(segments).map_err(|part| Error::NotSorted { part, at: 0 })?;
        let store = Self::of(options, versions);
        store.engine().budget.reserve(bytes)?;
        store.engine().terms.items.add(i64::try_from(items).unwrap_or(i64::MAX));
        Ok(store)
    }
}

fn run<K, V, Q, W>(part: usize, items: impl IntoIterator<Item = (Q, W)>) -> Result<Run<K, V>, Error>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    Q: Borrow<K>,
    W: Borrow<V>,
{
    let mut run = Run { segment: Segment::new(), items: 0, bytes: 0 };
    for (key, value) in items {
        let (key, value) = (key.borrow(), value.borrow());
        key.check()?;
        value.check()?;
        // As if written in the first term.
        if !run.segment.push(&NewVersion::new(key, value, 1, None)) {
            return Err(Error::NotSorted { part, at: run.items });
        }
        run.items += 1;
        run.bytes += cost(key, value, false);
    }
    Ok(run)
}
