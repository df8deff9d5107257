//! The contract of indexes with snapshots, by which the benchmark and the tests compare
//! [`Nitro`] with the store.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use ordna_base::index::Source;
use ordna_base::{Direction, Key, OrderedIndex, Value};

use crate::nitro::{self, Nitro};

/// A copy of a value.
type ValueOf<S> = <<S as Source>::Value as ToOwned>::Owned;

/// A stable state of an index; clones share it.
pub trait Snapshot: Source + Clone + Send + Sync {
    /// Number of entries, exact.
    fn len(&self) -> usize;

    /// Whether there are no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of `key`, copied.
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
    type Snapshot: Snapshot<Key = Self::Key, Value = Self::Value>;

    /// Every write that ended before this call, no write that begins after it.
    fn snapshot(&self) -> Self::Snapshot;

    /// Collects all garbage that can be.
    fn collect_garbage(&self);

    /// Dead versions that are kept, and versions (the store: bytes) collected so far.
    fn garbage(&self) -> (usize, usize);
}

macro_rules! versioned {
    ($index:ty, $snapshot:ty) => {
        impl<K: Key + ?Sized, V: Value + ?Sized> Snapshot for $snapshot {
            fn len(&self) -> usize {
                self.len()
            }

            fn get(&self, key: &K) -> Option<V::Owned> {
                self.get(key)
            }

            fn get_many<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
                self.get_many(keys, out);
            }

            fn visit_all(
                &self,
                direction: Direction,
                visit: impl FnMut(&K, &V) -> ControlFlow<()>,
            ) {
                self.visit(Bound::Unbounded, Bound::Unbounded, direction, visit);
            }
        }

        impl<K: Key + ?Sized, V: Value + ?Sized> Versioned for $index {
            type Snapshot = $snapshot;

            fn snapshot(&self) -> $snapshot {
                self.snapshot()
            }

            fn collect_garbage(&self) {
                self.collect_garbage();
            }

            fn garbage(&self) -> (usize, usize) {
                let told = self.statistics();
                (told.dead, told.collected)
            }
        }
    };
}

versioned!(ordna::Store<K, V>, ordna::Snapshot<K, V>);
versioned!(Nitro<K, V>, nitro::Snapshot<K, V>);
