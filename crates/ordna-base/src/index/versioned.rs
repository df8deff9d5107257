//! The contract of indexes with snapshots.

use std::borrow::Borrow;
use std::ops::ControlFlow;

use super::{Direction, OrderedIndex, Source};

/// A copy of a value.
type ValueOf<S> = <<S as Source>::Value as ToOwned>::Owned;

/// A state of an index that does not change. Clones share it.
pub trait ReadSnapshot: Source + Clone + Send + Sync {
    /// Returns the number of entries, exact.
    fn len(&self) -> usize;

    /// Returns whether there are no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of `key`, copied.
    fn get(&self, key: &Self::Key) -> Option<ValueOf<Self>>;

    /// Appends the value of every key to `out`, in the order of `keys`.
    fn get_many<Q: Borrow<Self::Key>>(&self, keys: &[Q], out: &mut Vec<Option<ValueOf<Self>>>);

    /// Calls `visit` with all entries, in order, until it breaks.
    fn visit_all(
        &self,
        direction: Direction,
        visit: impl FnMut(&Self::Key, &Self::Value) -> ControlFlow<()>,
    );
}

/// An index with snapshots.
pub trait Versioned: OrderedIndex {
    /// Its snapshots.
    type Snapshot: ReadSnapshot<Key = Self::Key, Value = Self::Value>;

    /// Takes a snapshot: it holds every write that ended before this call, and none that begins
    /// after it.
    fn snapshot(&self) -> Self::Snapshot;

    /// Frees all old versions that no snapshot needs.
    fn collect_garbage(&self);

    /// Returns the number of old versions kept for snapshots, and how much was freed so far: in
    /// bytes for the store, in versions for other indexes.
    fn garbage(&self) -> (usize, usize);
}

/// Implements [`Versioned`] and [`ReadSnapshot`] for types whose inherent methods have these names.
#[doc(hidden)]
#[macro_export]
macro_rules! impl_versioned {
    ($index:ty, $snapshot:ty) => {
        impl<K: $crate::Key + ?Sized, V: $crate::Value + ?Sized> $crate::index::ReadSnapshot
            for $snapshot
        {
            fn len(&self) -> usize {
                self.len()
            }

            fn get(&self, key: &K) -> Option<V::Owned> {
                self.get(key)
            }

            fn get_many<Q: std::borrow::Borrow<K>>(
                &self,
                keys: &[Q],
                out: &mut Vec<Option<V::Owned>>,
            ) {
                let keys: Vec<&K> = keys.iter().map(std::borrow::Borrow::borrow).collect();
                self.get_many(&keys, out);
            }

            fn visit_all(
                &self,
                direction: $crate::Direction,
                visit: impl FnMut(&K, &V) -> std::ops::ControlFlow<()>,
            ) {
                use std::ops::Bound::Unbounded;
                self.visit(Unbounded, Unbounded, direction, visit);
            }
        }

        impl<K: $crate::Key + ?Sized, V: $crate::Value + ?Sized> $crate::index::Versioned
            for $index
        {
            type Snapshot = $snapshot;

            fn snapshot(&self) -> $snapshot {
                self.snapshot()
            }

            fn collect_garbage(&self) {
                self.collect_garbage();
            }

            fn garbage(&self) -> (usize, usize) {
                let counts = self.statistics();
                (counts.dead, counts.collected)
            }
        }
    };
}
