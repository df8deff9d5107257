//! Reads of many keys: groups of them go down all layers together, so that their cache misses overlap.
//!
//! # Contract
//! As many single reads, each linearizable by itself.
//!
//! Source: PI, whose batches descend level by level.

use ordna_base::reclaim::Guard;
use ordna_base::simd::prefetch;
use ordna_base::{Key, Value};

use super::Tree;
use super::leaf::{Leaf, Probe, is_inline};
use super::search::GROUP;

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Calls `each` with position, value and deadline of every key, in order.
    pub fn get_many<'k>(
        &self,
        keys: impl ExactSizeIterator<Item = &'k K>,
        snapshot: Option<u64>,
        guard: &Guard<'_>,
        mut each: impl FnMut(usize, Option<(&V, u64)>),
    ) where
        K: 'k,
    {
        let mut keys = keys.enumerate();
        let mut group: Vec<&K> = Vec::with_capacity(GROUP);
        loop {
            group.clear();
            let mut first = None;
            for (at, key) in keys.by_ref().take(GROUP) {
                first.get_or_insert(at);
                group.push(key);
            }
            let Some(first) = first else { return };
            let mut places = [0; GROUP];
            self.search.find_many(&group, &mut places, guard);
            let probes: [Option<Probe<'_, K>>; GROUP] =
                std::array::from_fn(|at| group.get(at).map(|key| Probe::new(*key)));
            let leaves = || probes.iter().flatten().zip(&places);
            for (probe, place) in leaves() {
                Self::leaf_at(*place).prefetch(probe);
            }
            if !is_inline::<K, V>() {
                for (probe, place) in leaves() {
                    if let Some(word) = Self::leaf_at(*place).candidate(probe, self.simd) {
                        prefetch(Leaf::<K, V>::address(word));
                    }
                }
            }
            for (at, (probe, place)) in leaves().enumerate() {
                let found = self.find_from(Self::leaf_at(*place), probe, snapshot, guard);
                match found {
                    None => each(first + at, None),
                    Some((word, deadline)) => Leaf::<K, V>::with_value(word, |value| {
                        each(first + at, Some((value, deadline)));
                    }),
                }
            }
        }
    }
}
