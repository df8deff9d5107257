//! `scc::TreeIndex`: a B+-tree optimized for reads, in which overwriting a value creates a new
//! entry.

use std::borrow::Borrow;

use ordna_base::Key;

use crate::target::{Session, Shared};

pub struct Scc<K: Key + ?Sized>(scc::TreeIndex<K::Owned, u64>);

pub fn new<K: Key + ?Sized>() -> Shared<Scc<K>> {
    Shared(Scc(scc::TreeIndex::new()))
}

impl<K: Key + ?Sized> Session<K> for &Scc<K> {
    fn put(&mut self, key: &K, value: u64) -> Option<bool> {
        self.0.upsert_sync(key.to_owned(), value);
        None
    }

    fn get(&mut self, key: &K) -> Option<u64> {
        self.0.peek_with(key, |_, value| *value)
    }

    fn remove(&mut self, key: &K) -> bool {
        self.0.remove_sync(key)
    }

    fn scan(&mut self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) {
        let guard = scc::Guard::new();
        for (key, value) in self.0.range(from.to_owned().., &guard).take(limit) {
            each(key.borrow(), *value);
        }
    }
}
