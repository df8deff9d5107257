//! The index for one thread keeps the same contract, put behind a lock.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ordna::reclaim::Guard;
use ordna::{
    Audit, Change, Direction, Error, Key, MemoryUsage, OrderedIndex, Value, Violation,
    WormholeUnsafe,
};

struct Alone<K: Key + ?Sized, V: Value + ?Sized, const LEAF: usize>(
    Mutex<WormholeUnsafe<K, V, LEAF>>,
);

impl<K: Key + ?Sized, V: Value + ?Sized, const LEAF: usize> Alone<K, V, LEAF> {
    fn new() -> Self {
        Self(Mutex::new(WormholeUnsafe::new()))
    }

    fn lock(&self) -> MutexGuard<'_, WormholeUnsafe<K, V, LEAF>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, const LEAF: usize> OrderedIndex for Alone<K, V, LEAF> {
    type Key = K;
    type Value = V;

    fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
        self.lock().get_with(key, read)
    }

    fn modify<T, F>(&self, key: &K, change: F) -> Result<(), Error>
    where
        T: Borrow<V>,
        F: FnMut(Option<&V>) -> Change<T>,
    {
        self.lock().modify(key, change)
    }

    fn visit(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        direction: Direction,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.lock().visit(lower, upper, direction, visit);
    }

    fn pin(&self) -> Option<Guard<'_>> {
        None
    }

    fn approximate_len(&self) -> usize {
        self.lock().len()
    }

    fn memory_usage(&self) -> MemoryUsage {
        self.lock().memory_usage()
    }

    fn validate(&self) -> Result<Audit, Violation> {
        self.lock().validate()
    }

    fn get_many_with<Q: Borrow<K>>(&self, keys: &[Q], each: impl FnMut(usize, Option<&V>)) {
        self.lock().get_many_with(keys, each);
    }
}

ordna_testkit::conformance! {
    mod u64_words: Alone<u64, u64, 128> = Alone::new();
    mod small_bytes_bytes: Alone<[u8], [u8], 4> = Alone::new();
    mod small_bytes_words: Alone<[u8], u64, 4> = Alone::new();
}
