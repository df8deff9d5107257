//! An index behind a vtable: the suite is compiled once for each kind of keys and values.
//!
//! A check that is generic over the index is compiled again for each index, and so is each
//! operation that the contract derives from `modify` and `walk`. Behind the vtable an index
//! contributes one `get_with`, one `modify`, one `walk` and one `get_many_with`.

use std::borrow::Borrow;
use std::ops::ControlFlow;

use ordna_base::index::Bounds;
use ordna_base::reclaim::Guard;
use ordna_base::{
    Audit, Change, Direction, Error, Key, MemoryUsage, OrderedIndex, Value, Violation,
};

type KeyOf<K> = <K as ToOwned>::Owned;

/// What the suite tests: an index, or [`Overriding`] one.
pub trait Subject: 'static {
    /// The kind of its keys.
    type Key: Key + ?Sized;
    /// The kind of its values.
    type Value: Value + ?Sized;

    /// Puts the index behind a vtable.
    fn erase(self) -> Erased<Self::Key, Self::Value>;
}

impl<I: OrderedIndex + 'static> Subject for I {
    type Key = I::Key;
    type Value = I::Value;

    fn erase(self) -> Erased<I::Key, I::Value> {
        Erased(Box::new(Required(self)))
    }
}

/// An index whose own `get`, `insert`, `remove`, `insert_many` and `remove_many` are to be called,
/// not those of the contract.
pub struct Overriding<I>(pub I);

impl<I: OrderedIndex + 'static> Subject for Overriding<I> {
    type Key = I::Key;
    type Value = I::Value;

    fn erase(self) -> Erased<I::Key, I::Value> {
        Erased(Box::new(Whole(Required(self.0))))
    }
}

/// An index of unknown type.
pub struct Erased<K: Key + ?Sized, V: Value + ?Sized>(Box<dyn Object<K, V>>);

/// The contract without type parameters.
trait Object<K: Key + ?Sized, V: Value + ?Sized>: Send + Sync {
    fn get_with(&self, key: &K, read: &mut dyn FnMut(&V)) -> bool;

    fn modify(
        &self,
        key: &K,
        change: &mut dyn FnMut(Option<&V>) -> Change<V::Owned>,
    ) -> Result<(), Error>;

    fn walk(
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
    fn validate(&self) -> Result<Audit, Violation>;

    /// What the index does in a way of its own.
    fn overrides(&self) -> Option<&dyn Overrides<K, V>> {
        None
    }
}

/// The operations that an index may override.
trait Overrides<K: Key + ?Sized, V: Value + ?Sized> {
    fn get(&self, key: &K) -> Option<V::Owned>;
    fn insert(&self, key: &K, value: &V) -> Result<Option<V::Owned>, Error>;
    fn remove(&self, key: &K) -> Option<V::Owned>;
    fn insert_many(&self, pairs: &[(&K, &V)]) -> Result<usize, Error>;
    fn remove_many(&self, keys: &[&K]) -> usize;
}

struct Required<I>(I);

impl<I: OrderedIndex> Object<I::Key, I::Value> for Required<I> {
    fn get_with(&self, key: &I::Key, read: &mut dyn FnMut(&I::Value)) -> bool {
        self.0.get_with(key, read).is_some()
    }

    fn modify(
        &self,
        key: &I::Key,
        change: &mut dyn FnMut(Option<&I::Value>) -> Change<KeyOf<I::Value>>,
    ) -> Result<(), Error> {
        self.0.modify(key, change)
    }

    fn walk(
        &self,
        bounds: Bounds<'_, I::Key>,
        direction: Direction,
        limit: usize,
        visit: &mut dyn FnMut(&I::Key, &I::Value) -> ControlFlow<()>,
    ) {
        self.0.walk(bounds, direction, limit, visit);
    }

    fn get_many_with(&self, keys: &[&I::Key], each: &mut dyn FnMut(usize, Option<&I::Value>)) {
        self.0.get_many_with(keys, each);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        self.0.pin()
    }

    fn approximate_len(&self) -> usize {
        self.0.approximate_len()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.0.memory_usage()
    }

    fn validate(&self) -> Result<Audit, Violation> {
        self.0.validate()
    }
}

struct Whole<I>(Required<I>);

impl<I: OrderedIndex> Object<I::Key, I::Value> for Whole<I> {
    fn get_with(&self, key: &I::Key, read: &mut dyn FnMut(&I::Value)) -> bool {
        self.0.get_with(key, read)
    }

    fn modify(
        &self,
        key: &I::Key,
        change: &mut dyn FnMut(Option<&I::Value>) -> Change<KeyOf<I::Value>>,
    ) -> Result<(), Error> {
        self.0.modify(key, change)
    }

    fn walk(
        &self,
        bounds: Bounds<'_, I::Key>,
        direction: Direction,
        limit: usize,
        visit: &mut dyn FnMut(&I::Key, &I::Value) -> ControlFlow<()>,
    ) {
        self.0.walk(bounds, direction, limit, visit);
    }

    fn get_many_with(&self, keys: &[&I::Key], each: &mut dyn FnMut(usize, Option<&I::Value>)) {
        self.0.get_many_with(keys, each);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        self.0.pin()
    }

    fn approximate_len(&self) -> usize {
        self.0.approximate_len()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.0.memory_usage()
    }

    fn validate(&self) -> Result<Audit, Violation> {
        self.0.validate()
    }

    fn overrides(&self) -> Option<&dyn Overrides<I::Key, I::Value>> {
        Some(self)
    }
}

impl<I: OrderedIndex> Overrides<I::Key, I::Value> for Whole<I> {
    fn get(&self, key: &I::Key) -> Option<KeyOf<I::Value>> {
        self.0.0.get(key)
    }

    fn insert(&self, key: &I::Key, value: &I::Value) -> Result<Option<KeyOf<I::Value>>, Error> {
        self.0.0.insert(key, value)
    }

    fn remove(&self, key: &I::Key) -> Option<KeyOf<I::Value>> {
        self.0.0.remove(key)
    }

    fn insert_many(&self, pairs: &[(&I::Key, &I::Value)]) -> Result<usize, Error> {
        self.0.0.insert_many(pairs)
    }

    fn remove_many(&self, keys: &[&I::Key]) -> usize {
        self.0.0.remove_many(keys)
    }
}

/// The contract, with all that it derives from the required operations.
struct Derived<'a, K: Key + ?Sized, V: Value + ?Sized>(&'a dyn Object<K, V>);

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

    fn walk(
        &self,
        bounds: Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.0.walk(bounds, direction, limit, &mut visit);
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
        self.0.get_many_with(&keys, &mut each);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        self.0.pin()
    }

    fn approximate_len(&self) -> usize {
        self.0.approximate_len()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.0.memory_usage()
    }

    fn validate(&self) -> Result<Audit, Violation> {
        self.0.validate()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Erased<K, V> {
    fn derived(&self) -> Derived<'_, K, V> {
        Derived(&*self.0)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> OrderedIndex for Erased<K, V> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.derived().get_with(key, read)
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        self.derived().modify(key, change)
    }

    fn walk(
        &self,
        bounds: Bounds<'_, K>,
        direction: Direction,
        limit: usize,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.derived().walk(bounds, direction, limit, visit);
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.derived().get_many_with(keys, each);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        self.0.pin()
    }

    fn approximate_len(&self) -> usize {
        self.0.approximate_len()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.0.memory_usage()
    }

    fn validate(&self) -> Result<Audit, Violation> {
        self.0.validate()
    }

    fn get(&self, key: &K) -> Option<V::Owned> {
        match self.0.overrides() {
            Some(index) => index.get(key),
            None => self.derived().get(key),
        }
    }

    fn insert(&self, key: &K, value: &V) -> Result<Option<V::Owned>, Error> {
        match self.0.overrides() {
            Some(index) => index.insert(key, value),
            None => self.derived().insert(key, value),
        }
    }

    fn remove(&self, key: &K) -> Option<V::Owned> {
        match self.0.overrides() {
            Some(index) => index.remove(key),
            None => self.derived().remove(key),
        }
    }

    fn insert_many<Q: Borrow<K>, W: Borrow<V>>(&self, pairs: &[(Q, W)]) -> Result<usize, Error> {
        let pairs: Vec<(&K, &V)> =
            pairs.iter().map(|(key, value)| (key.borrow(), value.borrow())).collect();
        match self.0.overrides() {
            Some(index) => index.insert_many(&pairs),
            None => self.derived().insert_many(&pairs),
        }
    }

    fn remove_many<Q: Borrow<K>>(&self, keys: &[Q]) -> usize {
        let keys: Vec<&K> = keys.iter().map(Borrow::borrow).collect();
        match self.0.overrides() {
            Some(index) => index.remove_many(&keys),
            None => self.derived().remove_many(&keys),
        }
    }
}
