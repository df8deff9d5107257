//! Several instances of an index, each with a part of the keys: figure 9 of the Nitro paper.
//!
//! A hash of the key selects the instance, so a scan merges the entries of all instances. Groups of
//! keys are processed one key at a time.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::{Bound, ControlFlow};

use ordna_base::{Direction, OrderedIndex};

use crate::target::Session;

/// Instances of an index.
pub struct Partitions<I>(Vec<I>);

impl<I: OrderedIndex<Value = u64>> Partitions<I> {
    /// Creates `count` instances.
    pub fn new(count: usize, make: impl Fn() -> I) -> Self {
        Self((0..count.max(1)).map(|_| make()).collect())
    }

    fn of(&self, key: &I::Key) -> &I {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        &self.0[hash as usize % self.0.len()]
    }
}

impl<I: OrderedIndex<Value = u64>> Session<I::Key> for &Partitions<I> {
    fn put(&mut self, key: &I::Key, value: u64) -> Option<bool> {
        Some(self.of(key).insert(key, &value).is_ok_and(|old| old.is_none()))
    }

    fn get(&mut self, key: &I::Key) -> Option<u64> {
        self.of(key).get(key)
    }

    fn remove(&mut self, key: &I::Key) -> bool {
        self.of(key).remove(key).is_some()
    }

    fn scan(&mut self, from: &I::Key, limit: usize, each: &mut dyn FnMut(&I::Key, u64)) {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        let mut entries = Vec::new();
        for index in &self.0 {
            index.scan_with(bounds, Direction::Ascending, limit, |key, value| {
                entries.push((key.to_owned(), *value));
                ControlFlow::Continue(())
            });
        }
        entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        for (key, value) in entries.into_iter().take(limit) {
            each(std::borrow::Borrow::borrow(&key), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use ordna::Store;

    use super::*;

    #[test]
    fn all_keys_are_found_and_scans_are_in_order() {
        let partitions = Partitions::new(4, Store::<u64, u64>::new);
        let mut session = &partitions;
        for key in 0..1000 {
            assert_eq!(session.put(&key, key + 1), Some(true));
        }
        assert!(partitions.0.iter().all(|index| index.approximate_len() > 100));
        assert_eq!(session.get(&7), Some(8));
        assert!(session.remove(&7) && !session.remove(&7));
        let mut found = Vec::new();
        session.scan(&5, 4, &mut |key, value| found.push((*key, value)));
        assert_eq!(found, [(5, 6), (6, 7), (8, 9), (9, 10)]);
    }
}
