//! Merges of sparse nodes of the search layer with a neighbour.
//!
//! # Contract
//! A writer merges nodes under the writers' lock. The left node and the parent are locked while the
//! left node takes over the children of the right one, which then becomes obsolete. Until then, a
//! search in the right node finds the right leaves; any other search that overlaps restarts.

use std::ptr;

use super::{Node, SearchLayer};
use ordna_base::Key;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::point;

impl<K: Key + ?Sized> SearchLayer<K> {
    /// Merges each node on the path to `key` that is at most a quarter full, if it fits into three
    /// quarters of a node together with its right or left neighbour. O(log n).
    pub(super) fn merge_sparse(&self, key: &K, guard: &Guard<'_>) {
        let mut path = self.path(key, false);
        while let Some((node, _)) = path.pop() {
            let Some((above, at)) = path.last() else { return };
            // SAFETY: the writers' lock keeps the nodes alive.
            let (node, above) = unsafe { (&*node, &**above) };
            if node.len() > self.fanout.div_ceil(4) {
                continue;
            }
            let child = |at| {
                let child = ptr::with_exposed_provenance_mut::<Node<K>>(above.child(at));
                // SAFETY: as above.
                unsafe { &*child }
            };
            let fit = |left: &usize| {
                left + 1 < above.len()
                    && child(*left).len() + child(left + 1).len() <= self.fanout * 3 / 4
            };
            let Some(at) = [Some(*at), at.checked_sub(1)].into_iter().flatten().find(fit) else {
                continue;
            };
            let (left, right) = (child(at), child(at + 1));
            let (mut contents, more) = (left.contents(), right.contents());
            let held = [left.lock.enter_owned(), above.lock.enter_owned()];
            point("search.merge.locked");
            let boundary = above.take(at + 1);
            let before = left.size();
            contents.append(&boundary, more);
            left.fill(&contents);
            self.bytes.fetch_add(left.size() - before, Ordering::Relaxed);
            self.retire_node(ptr::from_ref(right).cast_mut(), guard);
            drop(held);
        }
    }
}
