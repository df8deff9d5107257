//! Snapshots: stable states of the index.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

use super::engine::{Engine, View};
use ordna::store::epochs::Epoch;
use ordna_base::index::{Chunk, Direction, Range, Source, bounds_cross};
use ordna_base::sync::fault;
use ordna_base::{Entries, Key, Value};

/// Ends the collectors when the index and all its snapshots are dropped.
pub struct Owner<K: Key + ?Sized, V: Value + ?Sized>(pub Arc<Engine<K, V>>);

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Owner<K, V> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

struct Registration<K: Key + ?Sized, V: Value + ?Sized> {
    owner: Arc<Owner<K, V>>,
    epoch: Epoch,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Registration<K, V> {
    fn drop(&mut self) {
        let engine = &self.owner.0;
        if engine.epochs.release(self.epoch) {
            engine.examine_again(engine.garbage.release(self.epoch.get()));
        }
    }
}

/// A stable state of a [`Nitro`](super::Nitro), from the moment at which it was taken.
///
/// Clones share the snapshot, which ends with the last of them. It keeps the versions that it sees.
/// The index may be dropped first.
pub struct Snapshot<K: Key + ?Sized, V: Value + ?Sized>(Arc<Registration<K, V>>);

impl<K: Key + ?Sized, V: Value + ?Sized> Clone for Snapshot<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Snapshot<K, V> {
    pub(super) fn take(owner: Arc<Owner<K, V>>) -> Self {
        let epoch = owner.0.epochs.snapshot();
        Self(Arc::new(Registration { owner, epoch }))
    }

    /// Returns the engine when all writes that the snapshot contains are complete.
    fn engine(&self) -> &Engine<K, V> {
        let engine = &self.0.owner.0;
        if !fault!("nitro.read.quiesces") {
            engine.epochs.wait_quiesced(self.0.epoch);
        }
        engine
    }

    fn view(&self) -> View {
        View::At(self.0.epoch.get())
    }

    /// Returns the last epoch whose writes the snapshot contains. Two snapshots may have the same
    /// epoch if no write began and ended between them; then they contain the same versions.
    pub fn epoch(&self) -> u64 {
        self.0.epoch.get()
    }

    /// Returns the exact number of items. O(1).
    pub fn len(&self) -> usize {
        self.engine().epochs.len_at(self.0.epoch)
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a copy of the value of `key`. O(log n).
    pub fn get(&self, key: &K) -> Option<V::Owned> {
        let engine = self.engine();
        let guard = engine.collector.pin();
        engine.get(self.view(), key, &guard).map(|node| node.with_value(ToOwned::to_owned))
    }

    /// Appends the value of every key to `out`, in the order of `keys`. The memory accesses of the
    /// searches overlap.
    pub fn get_many<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.reserve(keys.len());
        let each = |_, value: Option<&V>| out.push(value.map(ToOwned::to_owned));
        self.engine().get_many(self.view(), keys, each);
    }

    /// Calls `visit` with the entries within the bounds, in order, until it breaks. O(log n), and
    /// O(1) amortized for each version passed. Even a long scan delays reclamation only for short
    /// periods.
    pub fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        if !bounds_cross(lower, upper) {
            self.engine().visit(self.view(), lower, upper, direction, visit);
        }
    }

    /// Returns an iterator over the entries within `bounds`, from both ends.
    pub fn range<R: RangeBounds<K>>(&self, bounds: R) -> Range<'_, Self> {
        let owned = |bound: Bound<&K>| bound.map(ToOwned::to_owned);
        Range::new(self, owned(bounds.start_bound()), owned(bounds.end_bound()))
    }

    /// Returns an iterator over all entries, from both ends.
    pub fn iter(&self) -> Range<'_, Self> {
        Range::new(self, Bound::Unbounded, Bound::Unbounded)
    }
}

impl<'a, K: Key + ?Sized, V: Value + ?Sized> IntoIterator for &'a Snapshot<K, V> {
    type Item = (K::Owned, V::Owned);
    type IntoIter = Range<'a, Snapshot<K, V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Source for Snapshot<K, V> {
    type Key = K;
    type Value = V;

    fn read_ahead(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        limit: usize,
        out: &mut Entries<K, V>,
    ) -> bool {
        let mut chunk = Chunk::new(out, limit);
        self.visit(lower, upper, direction, |key, value| chunk.push(key, value));
        chunk.is_full()
    }
}
