//! The audit of a tree that no thread writes, and its memory use.

use std::borrow::Borrow;

use ordna_base::arena::Arena;
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::point;
use ordna_base::{InvariantReport, Key, Value, Violation};

use super::Tree;
use super::leaf::{Leaf, LeafCopy, Probe, is_inline};

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Audits leaves, fences, slots, undo lists and the search layer. O(n log n).
    ///
    /// # Errors
    /// The first violated invariant.
    pub fn check_invariants(&self) -> Result<InvariantReport, Violation> {
        self.without_compaction(|| self.validate_at_rest())
    }

    fn validate_at_rest(&self) -> Result<InvariantReport, Violation> {
        let broken = |what: &str| Err(Violation(what.to_owned()));
        let mut listed = Vec::new();
        let mut entries = 0;
        let mut next = Some(self.first);
        let mut before: Option<K::Owned> = None;
        while let Some(leaf) = next {
            let low_fence = leaf.with_low_fence(|low_fence| low_fence.map(ToOwned::to_owned));
            let copy = leaf.copy();
            point("tree.check.leaf_read");
            if leaf.header().lock.try_read().ok().flatten().is_none() {
                return broken("a leaf in the list is locked or unlinked");
            }
            if copy.count > self.slots {
                return broken("a leaf holds more than it may");
            }
            next = leaf.next();
            let high = next.map_or(u64::MAX, |next| {
                next.with_low_fence(|low_fence| low_fence.map_or(0, Key::head))
            });
            if leaf.high_fence() != high {
                return broken("a leaf's upper fence is not its neighbour's low fence");
            }
            let order = copy.sorted(self.simd);
            for at in &order[..copy.count] {
                let entry = copy.entry(usize::from(*at));
                let sound = Leaf::<K, V>::with_key(&entry, |key| {
                    let probe = Probe::new(key);
                    let ascends = before.as_ref().is_none_or(|before| before.borrow() < key);
                    let above =
                        low_fence.as_ref().is_none_or(|low_fence| low_fence.borrow() <= key);
                    before = Some(key.to_owned());
                    ascends
                        && above
                        && leaf.covers(&probe)
                        && leaf.find(&probe, self.simd).is_some()
                });
                if !sound {
                    return broken(
                        "a key is out of order, outside its leaf's fences, or not found",
                    );
                }
            }
            if !self.log.is_sound(leaf, |key| {
                leaf.covers(&Probe::new(key))
                    && low_fence.as_ref().is_none_or(|low_fence| low_fence.borrow() <= key)
            }) {
                return broken("an undo list is out of order or in the wrong leaf");
            }
            entries += copy.count;
            listed.push((low_fence, leaf.address()));
        }
        if listed.len() != self.leaves.load(Ordering::Relaxed) {
            return broken("the number of leaves is not what was counted");
        }
        let mut known = listed.iter();
        let mut agrees = true;
        let nodes = self.search.check_invariants(|low_fence, address| {
            let listed = known.next();
            agrees &= listed.is_some_and(|(own, at)| {
                // The first leaf has no separator.
                *at == address
                    && (low_fence.is_none() || own.as_ref().map(Borrow::borrow) == low_fence)
            });
        });
        let counts = self.search.check_counts(&|address| {
            let leaf = Self::leaf_at(address);
            (leaf.entries(), leaf.is_counted())
        });
        match counts.and(nodes) {
            Err(what) => broken(&what),
            Ok(_) if !agrees || known.next().is_some() => {
                broken("the search layer does not lead to the leaves")
            }
            Ok(nodes) => Ok(InvariantReport { entries, nodes: nodes + listed.len() }),
        }
    }

    /// Returns the bytes of leaves, of records, and of the search layer. O(n).
    pub fn memory_usage(&self) -> (usize, usize, usize) {
        let (mut leaves, mut records) = (0, 0);
        let mut next = Some(self.first);
        while let Some(leaf) = next {
            leaves += Leaf::<K, V>::size() + leaf.extra_bytes();
            if !is_inline::<K, V>() {
                // A leaf that a split has not yet emptied holds words of its neighbour's records.
                // An unlinked leaf holds none.
                let copy = self.consistent(&leaf, |_| Some(leaf.copy()));
                let copy = copy.unwrap_or_else(|_| LeafCopy::empty());
                for word in &copy.words[..copy.count] {
                    #[expect(unsafe_code, reason = "records of linked leaves")]
                    // SAFETY: the caller holds a guard.
                    let size = Leaf::<K, V>::record(*word).map_or(0, |at| unsafe { at.size() });
                    records += size;
                }
            }
            next = leaf.next();
        }
        (leaves, records, self.search.memory_usage())
    }

    /// Returns the unused bytes in slabs of leaves and in slabs of records.
    pub fn spare_bytes(&self) -> (usize, usize) {
        (self.pool.spare(), self.arena.as_ref().map_or(0, Arena::spare))
    }

    /// Returns at most `limit` low fences, evenly spaced, in order.
    pub fn sample(&self, limit: usize) -> Vec<K::Owned> {
        self.search.sample(limit)
    }
}
