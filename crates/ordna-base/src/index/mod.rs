//! [`OrderedIndex`]: the contract of every index.

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
    /// Remove the entry if it is present.
    Remove,
}

/// Memory use of an index in bytes, by part. Counts what was requested from the allocator, without
/// its slack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Name and bytes of each part.
    pub parts: Vec<(&'static str, usize)>,
}

impl MemoryUsage {
    /// Returns the bytes of all parts together.
    pub fn total(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// The counts of an audit that found no violated invariant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InvariantReport {
    /// Live entries.
    pub entries: usize,
    /// Nodes of all kinds, live ones and those that are not unlinked yet.
    pub nodes: usize,
}

/// An ordered map for concurrent use by many threads.
///
/// # Consistency
/// Point operations ([`get`](Self::get), [`insert`](Self::insert), [`remove`](Self::remove), …) are
/// linearizable. Scans ([`visit`](Self::visit), [`range`](Self::range), [`floor`](Self::floor), …)
/// are *live*: they return, in order and at most once, every key that is present for the whole
/// scan, and nothing outside the bounds. A key that is inserted or removed concurrently may or may
/// not appear. Each value returned was the key's value at some moment of the scan. A batch
/// ([`get_many`](Self::get_many), …) is a number of single operations, each of which is
/// linearizable.
///
/// # Limits
/// Keys may have up to [`key::MAX_LEN`] bytes, values up to [`crate::value::MAX_LEN`]. A longer one
/// makes a write fail without a change, and a read find nothing.
///
/// # Implementing
/// One read, one read-modify-write and one scan are required. All other operations have default
/// implementations in terms of these, which an index can override with faster ones.
pub trait OrderedIndex: Send + Sync {
    /// `u64` or `[u8]`.
    type Key: Key + ?Sized;
    /// `u64` or `[u8]`.
    type Value: Value + ?Sized;

    /// Calls `read` with the value of `key`, without copying it; `None` if the key is absent.
    ///
    /// `read` may run inside a reading section, so it must be short and must not write to this
    /// index.
    fn get_with<R>(&self, key: &Self::Key, read: impl FnOnce(&Self::Value) -> R) -> Option<R>;

    /// Calls `change` with the value of `key`, or `None` if the key is absent, and applies the
    /// returned change, as one step.
    ///
    /// `change` may run several times; only the last run counts, and the value that it received is
    /// the one that was replaced or kept. It may run inside the index's critical section, so it
    /// must be short and must not use this index or its snapshots, because it could deadlock.
    /// Stores detect this and panic. If `change` panics, the index is unchanged and usable.
    ///
    /// # Errors
    /// The key or the new value is too long. Nothing is changed.
    fn modify<T, F>(&self, key: &Self::Key, change: F) -> Result<(), Error>
    where
        T: Borrow<Self::Value>,
        F: FnMut(Option<&Self::Value>) -> Change<T>;

    /// Calls `visit` with the entries within the bounds, in order, until it breaks. All scans of
    /// the contract are built on this method. Callers use [`visit`](Self::visit),
    /// [`collect`](Self::collect) or [`range`](Self::range).
    ///
    /// The bounds must not cross, and `limit` must not be zero. `visit` breaks after at most
    /// `limit` entries, so the index need not prefetch more than that.
    fn scan_with(
        &self,
        bounds: Bounds<'_, Self::Key>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&Self::Key, &Self::Value) -> ControlFlow<()>,
    );

    /// Enters a reading section, which makes the calls within it cheaper. Memory that is removed in
    /// the meantime is not freed before the section ends. Returns `None` if the index frees memory
    /// immediately.
    fn pin(&self) -> Option<Guard<'_>>;

    /// Returns the number of entries. Exact while no thread writes; otherwise it is off by at most
    /// the writes in progress.
    fn approximate_len(&self) -> usize;

    /// Returns the memory use in bytes, by part. O(n). Exact while no thread writes.
    fn memory_usage(&self) -> MemoryUsage;

    /// Audits the structure: order, links, counts and all other invariants of the index. O(n). Call
    /// it while no thread writes.
    ///
    /// # Errors
    /// The first violated invariant.
    fn check_invariants(&self) -> Result<InvariantReport, Violation>;

    /// Returns the value of `key`, copied.
    fn get(&self, key: &Self::Key) -> Option<<Self::Value as ToOwned>::Owned> {
        self.get_with(key, ToOwned::to_owned)
    }

    /// Returns whether `key` is present.
    fn contains(&self, key: &Self::Key) -> bool {
        self.get_with(key, |_| ()).is_some()
    }

    /// Sets the value of `key` and returns its former value.
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

    /// Inserts `key` unless it is present; if it is, returns its value.
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

    /// Removes `key` and returns its former value. A key that is too long is absent.
    fn remove(&self, key: &Self::Key) -> Option<<Self::Value as ToOwned>::Owned> {
        let mut old = None;
        let done = self.modify::<&Self::Value, _>(key, |current| {
            old = current.map(ToOwned::to_owned);
            Change::Remove
        });
        done.ok().and(old)
    }

    /// Sets `key` to `new`, or removes it if `new` is `None`, provided that its value is
    /// `expected`, or that it is absent if `expected` is `None`. Otherwise returns
    /// `Ok(Err(actual))` with the value found.
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

    /// Replaces the value of `key` by the result of `update` and returns it, or `None` if the key
    /// is absent. The rules for `update` are those for the closure of [`modify`](Self::modify).
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
    /// Equivalent to single gets, but an index may overlap their memory accesses.
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

    /// Inserts every pair and returns how many keys were new. If a key occurs twice, the later pair
    /// wins.
    ///
    /// # Errors
    /// A key or value is too long; nothing of the batch is written.
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

    /// Removes every key and returns how many were present.
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

    /// Calls `each` with the position of a range and the range's entries in order, range by range.
    /// The number next to each range is the maximum number of its entries.
    ///
    /// Equivalent to single scans, but an index may overlap their memory accesses.
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

    /// Returns the entry with the largest key that is at most `key`.
    fn floor(&self, key: &Self::Key) -> Option<Owned<Self>> {
        self.nearest(Bound::Unbounded, Bound::Included(key), Direction::Descending)
    }

    /// Returns the entry with the smallest key that is at least `key`.
    fn ceiling(&self, key: &Self::Key) -> Option<Owned<Self>> {
        self.nearest(Bound::Included(key), Bound::Unbounded, Direction::Ascending)
    }

    /// Returns the entry with the smallest key.
    fn first(&self) -> Option<Owned<Self>> {
        self.nearest(Bound::Unbounded, Bound::Unbounded, Direction::Ascending)
    }

    /// Returns the entry with the largest key.
    fn last(&self) -> Option<Owned<Self>> {
        self.nearest(Bound::Unbounded, Bound::Unbounded, Direction::Descending)
    }

    /// Calls `visit` with the entries within the bounds, in order, until it breaks.
    ///
    /// Crossed bounds hold no entries. `visit` must not write to this index, and long work in it
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

    /// Returns the first entry within the bounds in the given direction.
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

    /// Appends the first `limit` entries from `from` (inclusive) on, in ascending order, to `out`.
    /// Returns their number.
    fn scan(
        &self,
        from: &Self::Key,
        limit: usize,
        out: &mut Entries<Self::Key, Self::Value>,
    ) -> usize {
        self.collect(Bound::Included(from), Bound::Unbounded, Direction::Ascending, limit, out)
    }

    /// Appends the first `limit` entries within the bounds to `out`, in the given direction.
    /// Returns their number.
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

    /// Returns an iterator over the entries within `bounds`, in order, from both ends. It reads
    /// ahead in chunks and holds no lock and no reading section between calls.
    fn range<R: RangeBounds<Self::Key>>(&self, bounds: R) -> Range<'_, Self>
    where
        Self: Sized,
    {
        let owned = |bound: Bound<&Self::Key>| bound.map(ToOwned::to_owned);
        Range::new(self, owned(bounds.start_bound()), owned(bounds.end_bound()))
    }

    /// Returns an iterator over the entries whose key starts with `prefix`, in order, from both
    /// ends.
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

/// Returns an error if a key or value of a batch is too long, before any of it is written.
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
