//! What an index must offer to be measured, and how those of this workspace do.

use std::ops::{Bound, ControlFlow};

use ordna::{Direction, Key, OrderedIndex};

/// A map from keys to words under measurement. Every call is one operation of a workload.
pub trait Target<K: Key + ?Sized>: Sync {
    /// Whether [`Target::scan`] works: a hash table has no order.
    const SCANS: bool = true;

    /// Sets the value of a key; returns whether the key was new, if the index can say.
    fn put(&self, key: &K, value: u64) -> Option<bool>;
    /// The value of a key.
    fn get(&self, key: &K) -> Option<u64>;
    /// Removes a key; returns whether it was there.
    fn remove(&self, key: &K) -> bool;
    /// Calls `each` with up to `limit` entries from `from` on, in order.
    fn scan(&self, from: &K, limit: usize, each: &mut dyn FnMut(&K, u64));
    /// Looks up a group of keys.
    fn get_group(&self, keys: &[&K], each: &mut dyn FnMut(usize, Option<u64>)) {
        for (at, key) in keys.iter().enumerate() {
            each(at, self.get(key));
        }
    }
    /// Inserts a group of new keys; returns how many were new.
    fn put_group(&self, pairs: &[(&K, u64)]) -> usize {
        pairs.iter().filter(|(key, value)| self.put(key, *value) != Some(false)).count()
    }
}

/// An index of this workspace.
pub struct Ours<I>(pub I);

impl<I> Target<I::Key> for Ours<I>
where
    I: OrderedIndex<Value = u64>,
{
    fn put(&self, key: &I::Key, value: u64) -> Option<bool> {
        Some(self.0.insert(key, &value).is_ok_and(|old| old.is_none()))
    }

    fn get(&self, key: &I::Key) -> Option<u64> {
        self.0.get(key)
    }

    fn remove(&self, key: &I::Key) -> bool {
        self.0.remove(key).is_some()
    }

    fn scan(&self, from: &I::Key, limit: usize, each: &mut dyn FnMut(&I::Key, u64)) {
        let mut left = limit;
        self.0.visit(
            Bound::Included(from),
            Bound::Unbounded,
            Direction::Ascending,
            |key, value| {
                each(key, *value);
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
    }

    fn get_group(&self, keys: &[&I::Key], each: &mut dyn FnMut(usize, Option<u64>)) {
        self.0.get_many_with(keys, |at, value| each(at, value.copied()));
    }

    fn put_group(&self, pairs: &[(&I::Key, u64)]) -> usize {
        self.0.insert_many(pairs).unwrap_or(0)
    }
}
