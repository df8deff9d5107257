//! Sparse nodes of the search layer merge with a neighbour.
//!
//! # Contract
//! A writer's own, under the writers' lock. Both nodes and the one above are locked while the left
//! node takes the children of the right one, so a search that overlaps restarts.

use std::ptr;

use super::{Node, Search};
use ordna_base::Key;
use ordna_base::reclaim::Guard;
use ordna_base::sync::point;

impl<K: Key + ?Sized> Search<K> {
    /// Merges the nodes on the way to `key`, from the lowest up, while one is under a quarter full
    /// and fits into three quarters of a node with its neighbour. O(log n).
    pub(super) fn merge_sparse(&self, key: &K, guard: &Guard<'_>) {
        let mut path = self.path(key, false);
        while let Some((node, _)) = path.pop() {
            let Some((above, at)) = path.last() else { return };
            // SAFETY: the writers' lock keeps the nodes.
            let (node, above) = unsafe { (&*node, &**above) };
            let Some(last) = above.len().checked_sub(2) else { return };
            let at = last.min(*at);
            let child = |at| ptr::with_exposed_provenance_mut::<Node<K>>(above.child(at));
            // SAFETY: as above.
            let (left, right) = unsafe { (&*child(at), &*child(at + 1)) };
            if node.len() > self.fanout.div_ceil(4)
                || left.len() + right.len() > self.fanout * 3 / 4
            {
                return;
            }
            let mut contents = left.contents();
            let more = right.contents();
            let held = [left.lock.enter_owned(), above.lock.enter_owned()];
            point("search.merge.locked");
            let boundary = above.take(at + 1);
            contents.heads.push(boundary.head);
            contents.separators.push(boundary.separator);
            contents.heads.extend(more.heads);
            contents.separators.extend(more.separators);
            contents.children.extend(more.children);
            left.fill(&contents);
            self.retire_node(ptr::from_ref(right).cast_mut(), guard);
            drop(held);
        }
    }
}
