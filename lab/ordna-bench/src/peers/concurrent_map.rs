//! `concurrent_map::ConcurrentMap`: a lock-free B+-tree. It is not `Sync`; every thread uses its
//! own clone. A sole owner of the map writes in place, without copying nodes, so a run on one
//! thread uses the map itself, as a program with one thread would.

use std::borrow::Borrow;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use concurrent_map::{ConcurrentMap, Minimum};
use ordna_base::Key;

use crate::target::{Session, Target};

type Tree<K> = ConcurrentMap<<K as ToOwned>::Owned, u64>;

pub struct Map<K: Key<Owned: Minimum> + ?Sized>(Mutex<Tree<K>>);

pub fn new<K: Key<Owned: Minimum> + ?Sized>() -> Map<K> {
    Map(Mutex::new(ConcurrentMap::new()))
}

pub enum Own<'a, K: Key<Owned: Minimum> + ?Sized> {
    Original(MutexGuard<'a, Tree<K>>),
    Clone(Box<Tree<K>>),
}

impl<K: Key<Owned: Minimum> + ?Sized> Own<'_, K> {
    #[inline]
    fn map(&self) -> &Tree<K> {
        match self {
            Self::Original(map) => map,
            Self::Clone(map) => map,
        }
    }
}

impl<K: Key<Owned: Minimum> + ?Sized> Target<K> for Map<K> {
    fn session(&self, _: usize, threads: usize) -> Box<dyn Session<K> + '_> {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = if threads == 1 { Own::Original(map) } else { Own::Clone(Box::new(map.clone())) };
        Box::new(own)
    }
}

impl<K: Key<Owned: Minimum> + ?Sized> Session<K> for Own<'_, K> {
    fn put(&mut self, key: &K, value: u64) -> Option<bool> {
        Some(self.map().insert(key.to_owned(), value).is_none())
    }
    fn get(&mut self, key: &K) -> Option<u64> {
        self.map().get(key)
    }
    fn remove(&mut self, key: &K) -> bool {
        self.map().remove(key).is_some()
    }
    fn scan(&mut self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64)) {
        let range = self.map().range::<K, _>((Bound::Included(from), Bound::Unbounded));
        for (key, value) in range.take(limit) {
            each(key.borrow(), value);
        }
    }
}
