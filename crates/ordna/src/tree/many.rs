//! Operations on groups of keys, which descend together so that their cache misses overlap.
//!
//! # Contract
//! A group is a number of single reads or writes, each of which is linearizable.
//!
//! Source: PI, whose batches descend level by level.

use crate::epoch::Epoch;
use ordna_base::reclaim::Guard;
use ordna_base::simd::prefetch;
use ordna_base::sync::{check, point};
use ordna_base::{Key, Value};

use super::Tree;
use super::leaf::{Leaf, Probe, is_inline};
use super::search::{GROUP, LeafAddress};

/// Maximum number of scans that begin together. All lines of their leaves are prefetched, which
/// fill a third of the nearest cache.
pub const SCAN_GROUP: usize = 16;

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Returns the addresses of the leaves of up to [`GROUP`] keys, each to be used with its key
    /// under the same guard. Prefetches what writes of the keys need.
    #[inline]
    pub fn locate_many(&self, probes: &[Probe<'_, K>], guard: &Guard<'_>) -> [LeafAddress; GROUP] {
        let mut addresses = [self.first.address(); GROUP];
        self.find_leaves(probes, &mut addresses, guard);
        for (probe, address) in probes.iter().zip(&addresses) {
            let leaf = Self::leaf_at(*address);
            leaf.prefetch_if_full(probe);
            self.prefetch_candidate(leaf, probe);
        }
        addresses
    }

    /// Finds the leaves of up to [`GROUP`] keys, and prefetches their headers and buckets.
    #[inline]
    fn find_leaves(
        &self,
        probes: &[Probe<'_, K>],
        addresses: &mut [LeafAddress; GROUP],
        guard: &Guard<'_>,
    ) {
        let probes = &probes[..probes.len().min(GROUP)];
        self.search.find_many(probes.iter().map(|probe| probe.key), guard, |at, address| {
            addresses[at] = address;
            Self::leaf_at(address).prefetch(&probes[at]);
        });
    }

    /// Prefetches the record that probably has the key, if entries have records.
    #[inline]
    fn prefetch_candidate(&self, leaf: Leaf<K, V>, probe: &Probe<'_, K>) {
        if !is_inline::<K, V>()
            && let Some(word) = leaf.candidate(probe, self.simd)
        {
            prefetch(Leaf::<K, V>::record_address(word));
        }
    }

    /// Returns word and deadline of an integer in its own bucket of a leaf. Returns `None` if the
    /// key is not there or if a writer interferes, and then prefetches the next bucket if the key
    /// may be there.
    #[inline]
    fn peek(&self, leaf: Leaf<K, V>, probe: &Probe<'_, K>, _: &Guard<'_>) -> Option<(u64, u64)> {
        let lock = &leaf.header().lock;
        let version = lock.try_read().ok().flatten()?;
        let Some(slot) = leaf.find_in_bucket(probe, self.simd) else {
            leaf.prefetch_if_full(probe);
            return None;
        };
        point("tree.peek.found");
        let found = (leaf.word(slot), leaf.deadline(slot));
        check!("tree.peek.validate", lock.validate(version)).then_some(found)
    }

    /// Returns the addresses of the leaves where ascending scans from up to [`SCAN_GROUP`] keys
    /// begin, and prefetches these leaves.
    pub fn locate_scans(&self, keys: &[&K], guard: &Guard<'_>) -> [LeafAddress; SCAN_GROUP] {
        let mut addresses = [self.first.address(); SCAN_GROUP];
        let keys = &keys[..keys.len().min(SCAN_GROUP)];
        self.search.find_many(keys.iter().copied(), guard, |at, address| {
            addresses[at] = address;
            Self::leaf_at(address).prefetch_whole();
        });
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
        let mut probes: Vec<Probe<'_, K>> = Vec::with_capacity(keys.len().min(GROUP));
        let mut addresses = [self.first.address(); GROUP];
        let mut first = 0;
        loop {
            probes.clear();
            probes.extend(keys.by_ref().take(GROUP).map(Probe::new));
            if probes.is_empty() {
                return;
            }
            self.find_leaves(&probes, &mut addresses, guard);
            let mut peeked = [None; GROUP];
            for ((probe, address), peeked) in probes.iter().zip(&addresses).zip(&mut peeked) {
                let leaf = Self::leaf_at(*address);
                if K::HEAD_IS_KEY && snapshot.is_none() {
                    *peeked = self.peek(leaf, probe, guard);
                }
                match peeked {
                    Some((word, _)) if !is_inline::<K, V>() => {
                        prefetch(Leaf::<K, V>::record_address(*word));
                    }
                    Some(_) => {}
                    None => self.prefetch_candidate(leaf, probe),
                }
            }
            let leaves = addresses.iter().zip(peeked);
            for (at, (probe, (address, peeked))) in probes.iter().zip(leaves).enumerate() {
                let find = || self.find_from(Self::leaf_at(*address), probe, snapshot, guard);
                match peeked.or_else(find) {
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
