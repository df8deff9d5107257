//! Operations on groups of keys, which descend together so that their cache misses overlap.
//!
//! # Contract
//! A group is a number of single reads or writes, each of which is linearizable.
//!
//! Source: PI, whose batches descend level by level.

use crate::epoch::Epoch;
use ordna_base::reclaim::Guard;
use ordna_base::simd::prefetch;
use ordna_base::{Key, Value};

use super::Tree;
use super::leaf::{Leaf, Probe, is_inline};
use super::search::{GROUP, LeafAddress};

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Returns the addresses of the leaves of up to [`GROUP`] keys, each to be used with its key
    /// under the same guard. Prefetches what reads and writes of the keys need.
    pub fn locate_many(&self, probes: &[Probe<'_, K>], guard: &Guard<'_>) -> [LeafAddress; GROUP] {
        let mut addresses = [self.first.address(); GROUP];
        let Some(first) = probes.first() else { return addresses };
        let mut keys = [first.key; GROUP];
        for (key, probe) in keys.iter_mut().zip(probes) {
            *key = probe.key;
        }
        self.search.find_many(&keys[..probes.len().min(GROUP)], &mut addresses, guard);
        for (probe, address) in probes.iter().zip(&addresses) {
            Self::leaf_at(*address).prefetch(probe);
        }
        if !is_inline::<K, V>() {
            for (probe, address) in probes.iter().zip(&addresses) {
                if let Some(word) = Self::leaf_at(*address).candidate(probe, self.simd) {
                    prefetch(Leaf::<K, V>::record_address(word));
                }
            }
        }
        addresses
    }

    /// Returns the addresses of the leaves where ascending scans from up to [`GROUP`] keys begin,
    /// and prefetches these leaves.
    pub fn locate_scans(&self, keys: &[&K], guard: &Guard<'_>) -> [LeafAddress; GROUP] {
        let mut addresses = [self.first.address(); GROUP];
        let keys = &keys[..keys.len().min(GROUP)];
        self.search.find_many(keys, &mut addresses, guard);
        for address in &addresses[..keys.len()] {
            Self::leaf_at(*address).prefetch_whole();
        }
        addresses
    }

    /// Calls `each` with position, value and deadline of every key, in order.
    pub fn get_many<'k>(
        &self,
        keys: impl ExactSizeIterator<Item = &'k K>,
        snapshot: Option<Epoch>,
        guard: &Guard<'_>,
        mut each: impl FnMut(usize, Option<(&V, u64)>),
    ) where
        K: 'k,
    {
        let mut keys = keys;
        let mut probes: Vec<Probe<'_, K>> = Vec::with_capacity(GROUP);
        let mut first = 0;
        loop {
            probes.clear();
            probes.extend(keys.by_ref().take(GROUP).map(Probe::new));
            if probes.is_empty() {
                return;
            }
            let addresses = self.locate_many(&probes, guard);
            for (at, (probe, address)) in probes.iter().zip(&addresses).enumerate() {
                let found = self.find_from(Self::leaf_at(*address), probe, snapshot, guard);
                match found {
                    None => each(first + at, None),
                    Some((word, deadline)) => Leaf::<K, V>::with_value(word, |value| {
                        each(first + at, Some((value, deadline)));
                    }),
                }
            }
            first += probes.len();
        }
    }
}
