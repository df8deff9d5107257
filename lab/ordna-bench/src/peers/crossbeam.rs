//! `crossbeam_skiplist::SkipMap`. Its insert does not return whether the key was new.
//!
//! Overwriting a key is not atomic: its documentation says that an entry with the same key "will be
//! removed before inserting the new one". A get between the two finds nothing, so workloads in
//! which one thread overwrites and another reads are reported as `wrong`. `tests.rs` demonstrates
//! this.

use std::borrow::Borrow;
use std::ops::Bound;

use crossbeam_skiplist::SkipMap;
use ordna_base::Key;

use crate::target::{Session, Shared};

pub struct Crossbeam<K: Key + ?Sized>(SkipMap<K::Owned, u64>);

pub fn new<K: Key + ?Sized>() -> Shared<Crossbeam<K>> {
    Shared(Crossbeam(SkipMap::new()))
}

impl<K: Key + ?Sized> Session<K> for &Crossbeam<K> {
    fn put(&mut self, key: &K, value: u64) -> Option<bool> {
        self.0.insert(key.to_owned(), value);
        None
    }

    fn get(&mut self, key: &K) -> Option<u64> {
        self.0.get(key).map(|entry| *entry.value())
    }

    fn remove(&mut self, key: &K) -> bool {
        self.0.remove(key).is_some()
    }

    fn scan(&mut self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) {
        let range = self.0.range::<K, _>((Bound::Included(from), Bound::Unbounded));
        for entry in range.take(limit) {
            each(entry.key().borrow(), *entry.value());
        }
    }
}
