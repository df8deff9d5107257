//! An index as a trait object, so that the suite is compiled once for each type of keys and values.
//!
//! A check that is generic over the index is compiled again for each index, and so is each
//! operation that the contract derives from `modify` and `scan`. With a trait object, an index
//! contributes only one `get_with`, one `modify`, one `scan` and one `get_many_with`.

use std::borrow::Borrow;
use std::ops::ControlFlow;
use std::sync::Arc;

use ordna_base::index::Bounds;
use ordna_base::reclaim::Guard;
use ordna_base::{
    Change, Direction, Error, InvariantReport, Key, MemoryUsage, OrderedIndex, Value, Violation,
};

type KeyOf<K> = <K as ToOwned>::Owned;

/// A subject of the suite: an index, or [`Overriding`] one.
pub trait Subject: 'static {
    /// Type of the keys.
    type Key: Key + ?Sized;
    /// Type of the values.
    type Value: Value + ?Sized;

    /// Converts the index to a trait object.
    fn erase(self) -> Erased<Self::Key, Self::Value>;
}

impl<I: OrderedIndex + 'static> Subject for I {
    type Key = I::Key;
    type Value = I::Value;

    fn erase(self) -> Erased<I::Key, I::Value> {
        Erased { required: Arc::new(self), overrides: None }
    }
}

/// An index whose own `get`, `insert`, `remove`, `insert_many` and `remove_many` are called,
/// instead of those that the contract derives.
pub struct Overriding<I>(pub I);

impl<I: OrderedIndex + 'static> Subject for Overriding<I> {
    type Key = I::Key;
    type Value = I::Value;

    fn erase(self) -> Erased<I::Key, I::Value> {
        let index = Arc::new(self.0);
        Erased { required: index.clone(), overrides: Some(index) }
    }
}

/// An index of unknown type.
pub struct Erased<K: Key + ?Sized, V: Value + ?Sized> {
    required: Arc<dyn object::Object<K, V>>,
    /// The same index, if it overrides some operations.
    overrides: Option<Arc<dyn object::Overrides<K, V>>>,
}

/// Not imported, because an index also has these operations from the contract.
mod object {
    use super::*;

    /// The contract without type parameters.
    pub trait Object<K: Key + ?Sized, V: Value + ?Sized>: Send + Sync {
        fn get_with(&self, key: &K, read: &mut dyn FnMut(&V)) -> bool;

        fn modify(
            &self,
            key: &K,
            change: &mut dyn FnMut(Option<&V>) -> Change<V::Owned>,
        ) -> Result<(), Error>;

        fn scan_with(
            &self,
            bounds: Bounds<'_, K>,
            direction: Direction,
            limit: usize,
            visit: &mut dyn FnMut(&K, &V) -> ControlFlow<()>,
        );

        fn get_many_with(&self, keys: &[&K], each: &mut dyn FnMut(usize, Option<&V>));

        fn pin(&self) -> Option<Guard<'_>>;
        fn approximate_len(&self) -> usize;
        fn memory_usage(&self) -> MemoryUsage;
        fn check_invariants(&self) -> Result<InvariantReport, Violation>;
    }

    impl<I: OrderedIndex> Object<I::Key, I::Value> for I {
        fn get_with(&self, key: &I::Key, read: &mut dyn FnMut(&I::Value)) -> bool {
            OrderedIndex::get_with(self, key, read).is_some()
        }

        fn modify(
            &self,
            key: &I::Key,
            change: &mut dyn FnMut(Option<&I::Value>) -> Change<KeyOf<I::Value>>,
        ) -> Result<(), Error> {
            OrderedIndex::modify(self, key, change)
        }

        fn scan_with(
            &self,
            bounds: Bounds<'_, I::Key>,
            direction: Direction,
            limit: usize,
            visit: &mut dyn FnMut(&I::Key, &I::Value) -> ControlFlow<()>,
        ) {
            OrderedIndex::scan_with(self, bounds, direction, limit, visit);
        }

        fn get_many_with(&self, keys: &[&I::Key], each: &mut dyn FnMut(usize, Option<&I::Value>)) {
            OrderedIndex::get_many_with(self, keys, each);
        }

        fn pin(&self) -> Option<Guard<'_>> {
            OrderedIndex::pin(self)
        }

        fn approximate_len(&self) -> usize {
            OrderedIndex::approximate_len(self)
        }

        fn memory_usage(&self) -> MemoryUsage {
            OrderedIndex::memory_usage(self)
        }

        fn check_invariants(&self) -> Result<InvariantReport, Violation> {
            OrderedIndex::check_invariants(self)
        }
    }

    /// The operations that an index may override.
    pub trait Overrides<K: Key + ?Sized, V: Value + ?Sized>: Send + Sync {
        fn get(&self, key: &K) -> Option<V::Owned>;
        fn insert(&self, key: &K, value: &V) -> Result<Option<V::Owned>, Error>;
        fn remove(&self, key: &K) -> Option<V::Owned>;
        fn insert_many(&self, pairs: &[(&K, &V)]) -> Result<usize, Error>;
        fn remove_many(&self, keys: &[&K]) -> usize;
    }

    impl<I: OrderedIndex> Overrides<I::Key, I::Value> for I {
        fn get(&self, key: &I::Key) -> Option<KeyOf<I::Value>> {
            OrderedIndex::get(self, key)
        }

        fn insert(&self, key: &I::Key, value: &I::Value) -> Result<Option<KeyOf<I::Value>>, Error> {
            OrderedIndex::insert(self, key, value)
        }

        fn remove(&self, key: &I::Key) -> Option<KeyOf<I::Value>> {
            OrderedIndex::remove(self, key)
        }

        fn insert_many(&self, pairs: &[(&I::Key, &I::Value)]) -> Result<usize, Error> {
            OrderedIndex::insert_many(self, pairs)
        }

        fn remove_many(&self, keys: &[&I::Key]) -> usize {
            OrderedIndex::remove_many(self, keys)
        }
    }
}

/// The contract, with everything that it derives from the required operations.
struct Derived<'a, K: Key + ?Sized, V: Value + ?Sized>(&'a dyn object::Object<K, V>);

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Derived<'_, K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        let (mut read, mut result) = (Some(read), None);
        let found = self.0.get_with(key, &mut |value| {
            result = read.take().map(|read| read(value));
        });
        assert_eq!(found, result.is_some(), "get_with calls its closure once if the key is there");
        result
    }

    fn modify<T, F>(&self, key: &K, mut change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        self.0.modify(key, &mut |current| match change(current) {
            Change::Keep => Change::Keep,
            Change::Put(value) => Change::Put(value.borrow().to_owned()),
            Change::Remove => Change::Remove,
        })
    }

    fn scan_with(
        &self,
        bounds: Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.0.scan_with(bounds, direction, limit, &mut visit);
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
        self.0.get_many_with(&keys, &mut each);
    }

    crate::forward!(self, self.0; pin, approximate_len, memory_usage, check_invariants);
}

impl<K: Key + ?Sized, V: Value + ?Sized> Erased<K, V> {
    fn derived(&self) -> Derived<'_, K, V> {
        Derived(&*self.required)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Erased<K, V> {
    type Key = K;
    type Value = V;

    crate::forward!(self, self.derived(); get_with, modify, scan_with, get_many_with);
    crate::forward!(self, self.required; pin, approximate_len, memory_usage, check_invariants);

    fn get(&self, key: &K) -> Option<V::Owned> {
        match &self.overrides {
            Some(index) => index.get(key),
            None => self.derived().get(key),
        }
    }

    fn insert(&self, key: &K, value: &V) -> Result<Option<V::Owned>, Error> {
        match &self.overrides {
            Some(index) => index.insert(key, value),
            None => self.derived().insert(key, value),
        }
    }

    fn remove(&self, key: &K) -> Option<V::Owned> {
        match &self.overrides {
            Some(index) => index.remove(key),
            None => self.derived().remove(key),
        }
    }

    fn insert_many<Q: Borrow<K>, W: Borrow<V>>(&self, pairs: &[(Q, W)]) -> Result<usize, Error> {
        let pairs: Vec<(&K, &V)> =
            pairs.iter().map(|(key, value)| (key.borrow(), value.borrow())).collect();
        match &self.overrides {
            Some(index) => index.insert_many(&pairs),
            None => self.derived().insert_many(&pairs),
        }
    }

    fn remove_many<Q: Borrow<K>>(&self, keys: &[Q]) -> usize {
        let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
        match &self.overrides {
            Some(index) => index.remove_many(&keys),
            None => self.derived().remove_many(&keys),
        }
    }
}
