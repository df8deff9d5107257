//! `dashmap::DashMap`: a map without order, as the upper bound for point operations.

use dashmap::DashMap;
use ordna_base::Key;

use crate::target::{Session, Shared};
use crate::workload::Action;

pub struct Dash<K: Key + ?Sized>(DashMap<K::Owned, u64>);

pub fn new<K: Key + ?Sized>() -> Shared<Dash<K>> {
    Shared(Dash(DashMap::new()))
}

impl<K: Key + ?Sized> Session<K> for &Dash<K> {
    fn put(&mut self, key: &K, value: u64) -> Option<bool> {
        Some(self.0.insert(key.to_owned(), value).is_none())
    }

    fn get(&mut self, key: &K) -> Option<u64> {
        self.0.get(key).map(|value| *value)
    }

    fn remove(&mut self, key: &K) -> bool {
        self.0.remove(key).is_some()
    }

    fn scan(&mut self, _: &K, _: usize, _: &mut dyn FnMut(&K, u64)) {}

    fn lacks(action: Action) -> Option<String> {
        matches!(action, Action::Scan(_)).then(|| "a hash table has no order to scan in".to_owned())
    }
}
