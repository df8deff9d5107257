//! Inspection of the search layer: samples of its anchors, and its audit.
//!
//! # Contract
//! Both exclude changes for as long as they run.

use std::ptr;

use super::{LeafAddress, Node, Search};
use ordna_base::Key;
use ordna_base::sync::atomic::Ordering;

impl<K: Key + ?Sized> Node<K> {
    fn anchor(&self, at: usize) -> Option<K::Owned> {
        if K::HEAD_IS_KEY {
            return K::from_head(&self.head(at)).map(ToOwned::to_owned);
        }
        // SAFETY: under the writers' lock.
        self.separator(at).map(|separator| unsafe { separator.key::<'_>() }.to_owned())
    }
}

impl<K: Key + ?Sized> Search<K> {
    /// Up to `limit` anchors, evenly spread over all, in order; the first leaf has none. O(limit)
    /// nodes are read, at least one level.
    pub fn sample(&self, limit: usize) -> Vec<K::Owned>
    where
        K::Owned: Clone,
    {
        let _turn = self.turn();
        let mut level = vec![self.root.load(Ordering::Relaxed)];
        let mut anchors: Vec<K::Owned> = Vec::new();
        loop {
            let mut next = Vec::new();
            let mut found = Vec::new();
            let mut above = anchors.into_iter();
            for (at, node) in level.iter().enumerate() {
                // SAFETY: nothing changes under the writers' lock.
                let node = unsafe { &**node };
                if at > 0 {
                    found.extend(above.next());
                }
                for at in 0..node.len() - 1 {
                    found.extend(node.anchor(at));
                }
                if node.height > 0 {
                    let child = |at| ptr::with_exposed_provenance_mut(node.child(at));
                    next.extend((0..node.len()).map(child));
                }
            }
            anchors = found;
            if next.is_empty() || anchors.len() >= limit {
                let step = anchors.len().div_ceil(limit.max(1)).max(1);
                return anchors.into_iter().step_by(step).collect();
            }
            level = next;
        }
    }

    /// Calls `each` with every anchor and place in order; the first place has no anchor. Excludes
    /// changes. O(n).
    ///
    /// # Errors
    /// The first invariant broken in the layer itself.
    pub fn check_invariants(
        &self,
        mut each: impl FnMut(Option<&K>, LeafAddress),
    ) -> Result<usize, String> {
        let _turn = self.turn();
        let mut nodes = 0;
        let mut stack = vec![(self.root.load(Ordering::Relaxed), None::<K::Owned>, None)];
        while let Some((node, lower, height)) = stack.pop() {
            // SAFETY: nothing changes under the writers' lock.
            let node = unsafe { &*node };
            nodes += 1;
            let len = node.len();
            if len == 0 || len > self.fanout || height.is_some_and(|height| height != node.height) {
                return Err(format!("a node of height {} has {len} children", node.height));
            }
            let anchors: Vec<K::Owned> = (0..len - 1).filter_map(|at| node.anchor(at)).collect();
            let sorted = anchors.is_sorted_by(|a, b| a < b)
                && lower
                    .as_ref()
                    .is_none_or(|lower| anchors.first().is_none_or(|first| lower < first));
            if anchors.len() + 1 != len || !sorted {
                return Err("separators do not ascend".to_owned());
            }
            let lowers = std::iter::once(lower).chain(anchors.into_iter().map(Some));
            if node.height == 0 {
                for (at, lower) in lowers.enumerate() {
                    each(lower.as_ref().map(std::borrow::Borrow::borrow), node.child(at));
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
