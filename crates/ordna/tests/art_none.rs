//! The tree for one thread keeps the same contract, put behind a lock.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ordna::index::art::{ArtNone, Minimal, Protocol, Unsynchronized};
use ordna::reclaim::Guard;
use ordna::{Audit, Change, Direction, Error, Key, MemoryUsage, OrderedIndex, Value, Violation};

struct Alone<K: Key + ?Sized, V: Value + ?Sized, P: Protocol>(Mutex<ArtNone<K, V, P>>);

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> Alone<K, V, P> {
    fn lock(&self) -> MutexGuard<'_, ArtNone<K, V, P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol> OrderedIndex for Alone<K, V, P> {
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

fn alone<K: Key + ?Sized, V: Value + ?Sized>() -> Alone<K, V, Unsynchronized> {
    Alone(Mutex::new(ArtNone::new()))
}

ordna_testkit::conformance! {
    mod u64_words: Alone<u64, u64, Unsynchronized> = alone();
    mod u64_bytes: Alone<u64, [u8], Unsynchronized> = alone();
    mod bytes_words: Alone<[u8], u64, Unsynchronized> = alone();
    mod bytes_bytes: Alone<[u8], [u8], Unsynchronized> = alone();
    mod minimal_words: Alone<u64, u64, Minimal<Unsynchronized>> = Alone(Mutex::new(ArtNone::minimal()));
    mod minimal_bytes: Alone<[u8], [u8], Minimal<Unsynchronized>> = Alone(Mutex::new(ArtNone::minimal()));
}
