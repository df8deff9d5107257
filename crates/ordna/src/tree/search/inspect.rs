//! Inspection of the search layer: samples of its low fences, and an audit.
//!
//! # Contract
//! Both exclude changes while they run.

use std::ptr;

use super::{ChildCount, LeafAddress, Node, SearchLayer};
use ordna_base::Key;
use ordna_base::sync::atomic::Ordering;

impl<K: Key + ?Sized> Node<K> {
    fn low_fence(&self, at: usize) -> Option<K::Owned> {
        if K::HEAD_IS_KEY {
            return K::from_head(&self.head(at)).map(ToOwned::to_owned);
        }
        // SAFETY: the writers' lock is held.
        self.separator(at).map(|separator| unsafe { separator.key::<'_>() }.to_owned())
    }
}

impl<K: Key + ?Sized> SearchLayer<K> {
    /// Returns `limit` low fences, or all if there are fewer, evenly spaced and in order. The first
    /// leaf has none. Reads O(limit) nodes, at least one level.
    pub fn sample(&self, limit: usize) -> Vec<K::Owned> {
        let _writers = self.writers.lock();
        let mut level = vec![self.root.load(Ordering::Relaxed)];
        let mut low_fences: Vec<K::Owned> = Vec::new();
        loop {
            let mut next = Vec::new();
            let mut found = Vec::new();
            let mut above = low_fences.into_iter();
            for (at, node) in level.iter().enumerate() {
                // SAFETY: no thread changes the layer while the writers' lock is held.
                let node = unsafe { &**node };
                if at > 0 {
                    found.extend(above.next());
                }
                for at in 0..node.len() - 1 {
                    found.extend(node.low_fence(at));
                }
                if node.height > 0 {
                    let child = |at| ptr::with_exposed_provenance_mut(node.child(at));
                    next.extend((0..node.len()).map(child));
                }
            }
            low_fences = found;
            if next.is_empty() || low_fences.len() >= limit {
                let wanted = limit.min(low_fences.len());
                let all = low_fences.len();
                let mut fences = low_fences.into_iter().enumerate();
                let mut chosen = Vec::with_capacity(wanted);
                for part in 0..wanted {
                    let at = (part as u128 * all as u128 / wanted as u128) as usize;
                    chosen.extend(fences.by_ref().find(|(own, _)| *own == at).map(|(_, key)| key));
                }
                return chosen;
            }
            level = next;
        }
    }

    /// Compares the counts of entries with the leaves. `leaf` returns the number of a leaf's
    /// entries and whether the leaf is counted. Excludes changes. O(n).
    ///
    /// # Errors
    /// The first wrong count.
    pub fn check_counts(
        &self,
        leaf: &impl Fn(LeafAddress) -> (ChildCount, bool),
    ) -> Result<(), String> {
        let _writers = self.writers.lock();
        // SAFETY: no thread changes the layer while the writers' lock is held.
        Self::audit_counts(unsafe { &*self.root.load(Ordering::Relaxed) }, leaf).map(|_| ())
    }

    /// Returns the entries of a node, and whether all leaves below it are counted. The node itself
    /// may still have stale children, because a late report may have marked other children by
    /// mistake.
    fn audit_counts(
        node: &Node<K>,
        leaf: &impl Fn(LeafAddress) -> (ChildCount, bool),
    ) -> Result<(ChildCount, bool), String> {
        let (mut sum, mut are_counted) = (ChildCount::default(), true);
        for at in 0..node.len() {
            let (below, is_known) = if node.height == 0 {
                leaf(LeafAddress::of_child(node.child(at)))
            } else {
                let child = ptr::with_exposed_provenance::<Node<K>>(node.child(at));
                // SAFETY: as above.
                Self::audit_counts(unsafe { &*child }, leaf)?
            };
            let (own, is_fresh) = node.known_count(at);
            if is_fresh && !is_known {
                return Err("a change below a count was not reported".to_owned());
            }
            if (is_fresh || is_known && node.height == 0) && own != below {
                return Err(format!("a count of {own:?} should be {below:?}"));
            }
            sum.add(below);
            are_counted &= is_known;
        }
        Ok((sum, are_counted))
    }

    /// Calls `each` with every low fence and its address in order; the first address has no low
    /// fence. Excludes changes. O(n).
    ///
    /// # Errors
    /// The first violated invariant of the layer itself.
    pub fn check_invariants(
        &self,
        mut each: impl FnMut(Option<&K>, LeafAddress),
    ) -> Result<usize, String> {
        let _writers = self.writers.lock();
        let mut nodes = 0;
        let mut stack = vec![(self.root.load(Ordering::Relaxed), None::<K::Owned>, None)];
        while let Some((node, lower, height)) = stack.pop() {
            // SAFETY: no thread changes the layer while the writers' lock is held.
            let node = unsafe { &*node };
            nodes += 1;
            let len = node.len();
            if len == 0 || len > self.fanout || height.is_some_and(|height| height != node.height) {
                return Err(format!("a node of height {} has {len} children", node.height));
            }
            let low_fences: Vec<K::Owned> =
                (0..len - 1).filter_map(|at| node.low_fence(at)).collect();
            let sorted = low_fences.is_sorted_by(|a, b| a < b)
                && lower
                    .as_ref()
                    .is_none_or(|lower| low_fences.first().is_none_or(|first| lower < first));
            if low_fences.len() + 1 != len || !sorted {
                return Err("separators do not ascend".to_owned());
            }
            let lowers = std::iter::once(lower).chain(low_fences.into_iter().map(Some));
            if node.height == 0 {
                for (at, lower) in lowers.enumerate() {
                    each(
                        lower.as_ref().map(std::borrow::Borrow::borrow),
                        LeafAddress::of_child(node.child(at)),
                    );
                }
            } else {
                let children: Vec<_> = lowers.enumerate().collect();
                for (at, lower) in children.into_iter().rev() {
                    let child = ptr::with_exposed_provenance_mut(node.child(at));
                    stack.push((child, lower, Some(node.height - 1)));
                }
            }
        }
        Ok(nodes)
    }
}
