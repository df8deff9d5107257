//! The contract that every index keeps.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

use crate::reclaim::Guard;
use crate::{Entries, Error, Key, Value, Violation, key};

mod range;
mod versioned;

pub use crate::bounds::{Bounds, Direction, bounds_cross, is_above, is_below};
#[doc(hidden)]
pub use range::Ends;
pub use range::{Chunk, READ_AHEAD_BYTES, Range, Source};
pub use versioned::{ReadSnapshot, Versioned};

/// The decision of an [`OrderedIndex::modify`] closure about the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<T> {
    /// Leave the entry, or its absence, as it is.
    Keep,
    /// Set the value, inserting the key if it is absent.
    Put(T),
    /// Remove the entry if it is there.
    Remove,
}

/// Bytes that an index holds, by part. Counts what was asked of the allocator, without its slack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Name and bytes of each part.
    pub parts: Vec<(&'static str, usize)>,
}

impl MemoryUsage {
    /// Bytes of all parts together.
    pub fn total(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// The counts of an audit that found nothing broken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InvariantReport {
    /// Live entries.
    pub entries: usize,
    /// Nodes of all sorts, live and awaiting unlinking.
    pub nodes: usize,
}

/// An ordered map that many threads use at once.
///
/// # Consistency
/// Point operations ([`get`](Self::get), [`insert`](Self::insert), [`remove`](Self::remove), …) are
/// linearizable. Scans ([`visit`](Self::visit), [`range`](Self::range), [`floor`](Self::floor), …)
/// are *live*: they return, in order and at most once, every key that is present for the whole
/// scan, and nothing outside the bounds; a key that comes or goes meanwhile may or may not appear,
/// and each value returned was the key's value at some moment of the scan. Batches
/// ([`get_many`](Self::get_many), …) are as many single operations, each linearizable by itself.
///
/// # Limits
/// Keys up to [`key::MAX_LEN`], values up to [`crate::value::MAX_LEN`]. A write beyond gives a
/// typed error and changes nothing; a read finds nothing.
///
/// # Implementing
/// Required are one read, one read-modify-write and one scan; the rest follows from them, and an
/// index overrides what it can do faster.
pub trait OrderedIndex: Send + Sync {
    /// `u64` or `[u8]`.
    type Key: Key + ?Sized;
    /// `u64` or `[u8]`.
    type Value: Value + ?Sized;

    /// Calls `read` with the value of `key`, without copying it; `None` if the key is absent.
    ///
    /// `read` may run inside a reading section: it must be short and must not write to this index.
    fn get_with<R>(&self, key: &Self::Key, read: impl FnOnce(&Self::Value) -> R) -> Option<R>;

    /// Reads the value of `key` (`None`: absent), lets `change` decide, and does what it says, all
    /// as one step.
    ///
    /// `change` may run several times; only the last run counts, and the value it saw last is the
    /// one that was replaced or kept. It may run inside the index's critical section: it must be
    /// short and must use neither this index nor its snapshots: it may wait for itself for ever.
    /// Stores panic in its place in debug builds. If it panics, the index is unchanged and usable.
    ///
    /// # Errors
    /// The key or the value put is too long. Nothing is changed.
    fn modify<T, F>(&self, key: &Self::Key, change: F) -> Result<(), Error>
    where
        T: Borrow<Self::Value>,
        F: FnMut(Option<&Self::Value>) -> Change<T>;

    /// Calls `visit` with the entries within the bounds, in order, until it breaks: what all scans
    /// of the contract stand on. Callers use [`visit`](Self::visit), [`collect`](Self::collect) or
    /// [`range`](Self::range).
    ///
    /// The bounds do not cross, and `limit` is not zero. `visit` breaks after `limit` entries at
    /// the latest: the index need not fetch more than that ahead.
    fn scan_with(
        &self,
        bounds: Bounds<'_, Self::Key>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&Self::Key, &Self::Value) -> ControlFlow<()>,
    );

    /// Enters a reading section that makes the calls within it cheaper; memory removed meanwhile
    /// is not freed before it ends. `None` if the index frees at once.
    fn pin(&self) -> Option<Guard<'_>>;

    /// Number of entries; exact while no thread writes, otherwise off by at most the writes under
    /// way.
    fn approximate_len(&self) -> usize;

    /// Bytes held, by part. O(n); exact while no thread writes.
    fn memory_usage(&self) -> MemoryUsage;

    /// Audits the structure: order, links, counts and whatever else the index promises itself.
    /// O(n); call it while no thread writes.
    ///
    /// # Errors
    /// The first invariant found broken.
    fn check_invariants(&self) -> Result<InvariantReport, Violation>;

    /// The value of `key`, copied.
    fn get(&self, key: &Self::Key) -> Option<<Self::Value as ToOwned>::Owned> {
        self.get_with(key, ToOwned::to_owned)
    }

    /// Whether `key` is present.
    fn contains(&self, key: &Self::Key) -> bool {
        self.get_with(key, |_| ()).is_some()
    }

    /// Sets the value of `key` and returns the one it had.
    ///
    /// # Errors
    /// The key or the value is too long.
    fn insert(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> Result<Option<<Self::Value as ToOwned>::Owned>, Error> {
        let mut old = None;
        self.modify(key, |current| {
            old = current.map(ToOwned::to_owned);
            Change::Put(value)
        })?;
        Ok(old)
    }

    /// Inserts `key` unless it is present; returns the value that is in the way, if one is.
    ///
    /// # Errors
    /// The key or the value is too long.
    fn insert_if_absent(
        &self,
        key: &Self::Key,
        value: &Self::Value,
    ) -> Result<Option<<Self::Value as ToOwned>::Owned>, Error> {
        let mut present = None;
        self.modify(key, |current| {
            present = current.map(ToOwned::to_owned);
            if present.is_some() { Change::Keep } else { Change::Put(value) }
        })?;
        Ok(present)
    }

    /// Removes `key` and returns the value it had. A key beyond the limit was never there.
    fn remove(&self, key: &Self::Key) -> Option<<Self::Value as ToOwned>::Owned> {
        let mut old = None;
        let done = self.modify::<&Self::Value, _>(key, |current| {
            old = current.map(ToOwned::to_owned);
            Change::Remove
        });
        done.ok().and(old)
    }

    /// Sets `key` to `new` (`None`: removes it) if its value is `expected` (`None`: if it is
    /// absent). `Ok(Err(actual))` if not, with the value found.
    ///
    /// # Errors
    /// The key or the new value is too long.
    #[expect(clippy::type_complexity, reason = "the two results mean different things")]
    fn compare_exchange(
        &self,
        key: &Self::Key,
        expected: Option<&Self::Value>,
        new: Option<&Self::Value>,
    ) -> Result<Result<(), Option<<Self::Value as ToOwned>::Owned>>, Error> {
        let mut outcome = Ok(());
        self.modify(key, |current| {
            if current != expected {
                outcome = Err(current.map(ToOwned::to_owned));
                return Change::Keep;
            }
            outcome = Ok(());
            new.map_or(Change::Remove, Change::Put)
        })?;
        Ok(outcome)
    }

    /// Replaces the value of `key` by what `update` makes of it and returns the new value; `None`
    /// if the key is absent. `update` is bound as in [`modify`](Self::modify).
    ///
    /// # Errors
    /// The key or the new value is too long.
    fn update(
        &self,
        key: &Self::Key,
        mut update: impl FnMut(&Self::Value) -> <Self::Value as ToOwned>::Owned,
    ) -> Result<Option<<Self::Value as ToOwned>::Owned>, Error> {
        let mut new = None;
        self.modify(key, |current| {
            new = current.map(&mut update);
            new.clone().map_or(Change::Keep, Change::Put)
        })?;
        Ok(new)
    }

    /// Calls `each` with the position and value of every key, in the order of `keys`.
    ///
    /// As many single gets, but an index may overlap their memory accesses.
    fn get_many_with<Q: Borrow<Self::Key>>(
        &self,
        keys: &[Q],
        mut each: impl FnMut(usize, Option<&Self::Value>),
    ) {
        let _pin = self.pin();
        for (at, key) in keys.iter().enumerate() {
            if self.get_with(key.borrow(), |value| each(at, Some(value))).is_none() {
                each(at, None);
            }
        }
    }

    /// Appends the value of every key to `out`, in the order of `keys`.
    fn get_many<Q: Borrow<Self::Key>>(
        &self,
        keys: &[Q],
        out: &mut Vec<Option<<Self::Value as ToOwned>::Owned>>,
    ) {
        out.reserve(keys.len());
        self.get_many_with(keys, |_, value| out.push(value.map(ToOwned::to_owned)));
    }

    /// Inserts every pair, later ones over earlier ones; returns how many keys were new.
    ///
    /// # Errors
    /// A key or value is too long: nothing of the batch is written.
    fn insert_many<Q, W>(&self, pairs: &[(Q, W)]) -> Result<usize, Error>
    where
        Q: Borrow<Self::Key>,
        W: Borrow<Self::Value>,
    {
        check_pairs::<Self::Key, Self::Value, _, _>(pairs)?;
        let _pin = self.pin();
        let mut new = 0;
        for (key, value) in pairs {
            let mut absent = false;
            self.modify(key.borrow(), |current| {
                absent = current.is_none();
                Change::Put(value.borrow())
            })?;
            new += usize::from(absent);
        }
        Ok(new)
    }

    /// Removes every key; returns how many were present.
    fn remove_many<Q: Borrow<Self::Key>>(&self, keys: &[Q]) -> usize {
        let _pin = self.pin();
        let mut removed = 0;
        for key in keys {
            let mut present = false;
            let done = self.modify::<&Self::Value, _>(key.borrow(), |current| {
                present = current.is_some();
                Change::Remove
            });
            removed += usize::from(done.is_ok() && present);
        }
        removed
    }

    /// Calls `each` with the position of a range and its entries in order, range by range; at most
    /// as many entries of a range as stand beside it.
    ///
    /// As many single scans, but an index may overlap their memory accesses.
    fn scan_many(
        &self,
        ranges: &[(Bounds<'_, Self::Key>, usize)],
        mut each: impl FnMut(usize, &Self::Key, &Self::Value),
    ) {
        let _pin = self.pin();
        for (at, ((lower, upper), limit)) in ranges.iter().enumerate() {
            let mut left = *limit;
            if left > 0 && !bounds_cross(*lower, *upper) {
                self.scan_with((*lower, *upper), Direction::Ascending, *limit, |key, value| {
                    each(at, key, value);
                    left -= 1;
                    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
            }
        }
    }

    /// The entry with the largest key that is at most `key`.
    fn floor(&self, key: &Self::Key) -> Option<Owned<Self>> {
        self.nearest(Bound::Unbounded, Bound::Included(key), Direction::Descending)
    }

    /// The entry with the smallest key that is at least `key`.
    fn ceiling(&self, key: &Self::Key) -> Option<Owned<Self>> {
        self.nearest(Bound::Included(key), Bound::Unbounded, Direction::Ascending)
    }

    /// The entry with the smallest key.
    fn first(&self) -> Option<Owned<Self>> {
        self.nearest(Bound::Unbounded, Bound::Unbounded, Direction::Ascending)
    }

    /// The entry with the largest key.
    fn last(&self) -> Option<Owned<Self>> {
        self.nearest(Bound::Unbounded, Bound::Unbounded, Direction::Descending)
    }

    /// Calls `visit` with the entries within the bounds, in order, until it breaks.
    ///
    /// Bounds that cross hold nothing. `visit` must not write to this index, and long work in it
    /// delays the freeing of memory; use [`scan`](Self::scan) or [`range`](Self::range) for that.
    fn visit(
        &self,
        lower: Bound<&Self::Key>,
        upper: Bound<&Self::Key>,
        direction: Direction,
        visit: impl FnMut(&Self::Key, &Self::Value) -> ControlFlow<()>,
    ) {
        if !bounds_cross(lower, upper) {
            self.scan_with((lower, upper), direction, usize::MAX, visit);
        }
    }

    /// The first entry within the bounds in the given direction.
    fn nearest(
        &self,
        lower: Bound<&Self::Key>,
        upper: Bound<&Self::Key>,
        direction: Direction,
    ) -> Option<Owned<Self>> {
        let mut found = None;
        if !bounds_cross(lower, upper) {
            self.scan_with((lower, upper), direction, 1, |key, value| {
                found = Some((key.to_owned(), value.to_owned()));
                ControlFlow::Break(())
            });
        }
        found
    }

    /// Appends the first `limit` entries from `from` (inclusive) upwards to `out`; returns how
    /// many.
    fn scan(
        &self,
        from: &Self::Key,
        limit: usize,
        out: &mut Entries<Self::Key, Self::Value>,
    ) -> usize {
        self.collect(Bound::Included(from), Bound::Unbounded, Direction::Ascending, limit, out)
    }

    /// Appends the first `limit` entries within the bounds to `out`, in the given direction;
    /// returns how many.
    fn collect(
        &self,
        lower: Bound<&Self::Key>,
        upper: Bound<&Self::Key>,
        direction: Direction,
        limit: usize,
        out: &mut Entries<Self::Key, Self::Value>,
    ) -> usize {
        let mut left = limit;
        if left > 0 && !bounds_cross(lower, upper) {
            self.scan_with((lower, upper), direction, limit, |key, value| {
                out.push(key, value);
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        limit - left
    }

    /// The entries within `bounds`, from both ends. Reads ahead in chunks and holds no lock and no
    /// reading section between calls.
    fn range<R: RangeBounds<Self::Key>>(&self, bounds: R) -> Range<'_, Self>
    where
        Self: Sized,
    {
        let owned = |bound: Bound<&Self::Key>| bound.map(ToOwned::to_owned);
        Range::new(self, owned(bounds.start_bound()), owned(bounds.end_bound()))
    }

    /// The entries whose key starts with `prefix`, from both ends.
    fn prefix(&self, prefix: &[u8]) -> Range<'_, Self>
    where
        Self: OrderedIndex<Key = [u8]> + Sized,
    {
        let end = key::prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        Range::new(self, Bound::Included(prefix.to_vec()), end)
    }
}

impl<I: OrderedIndex> Source for I {
    type Key = I::Key;
    type Value = I::Value;

    fn read_ahead(
        &self,
        lower: Bound<&I::Key>,
        upper: Bound<&I::Key>,
        direction: Direction,
        limit: usize,
        out: &mut Entries<I::Key, I::Value>,
    ) -> bool {
        let mut chunk = Chunk::new(out, limit);
        if limit > 0 && !bounds_cross(lower, upper) {
            self.scan_with((lower, upper), direction, limit, |key, value| chunk.push(key, value));
        }
        chunk.is_full()
    }
}

/// A copied entry of an index.
pub type Owned<I> =
    (<<I as OrderedIndex>::Key as ToOwned>::Owned, <<I as OrderedIndex>::Value as ToOwned>::Owned);

/// Refuses a batch with a key or value beyond the limits, before anything of it is written.
#[doc(hidden)]
pub fn check_pairs<K, V, Q, W>(pairs: &[(Q, W)]) -> Result<(), Error>
where
    K: Key + ?Sized,
    V: Value + ?Sized,
    Q: Borrow<K>,
    W: Borrow<V>,
{
    pairs.iter().try_for_each(|(key, value)| {
        key.borrow().check()?;
        value.borrow().check()
    })
}
