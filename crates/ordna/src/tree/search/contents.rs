//! What a node of the search layer holds, while a writer rearranges it.
//!
//! # Contract
//! A copy, the writer's own. Its separators are the node's: the writers' lock keeps them.

use super::{Boundary, Separator, bytes_of, common, head_at};
use ordna_base::Key;

/// What a node holds, while a writer rearranges it.
pub(super) struct Contents<K: Key + ?Sized> {
    pub(super) heads: Vec<u64>,
    pub(super) separators: Vec<Option<Separator<K>>>,
    pub(super) children: Vec<usize>,
}

impl<K: Key + ?Sized> Contents<K> {
    pub(super) fn put(&mut self, at: usize, boundary: &Boundary<K>, child: usize) {
        self.heads.insert(at, boundary.head);
        self.separators.insert(at, boundary.separator);
        self.children.insert(at + 1, child);
    }

    pub(super) fn take(&mut self, at: usize) -> Boundary<K> {
        let below = at.saturating_sub(1);
        self.children.remove(at);
        Boundary { head: self.heads.remove(below), separator: self.separators.remove(below) }
    }

    /// Splits behind `children`: what stays, the boundary between, what goes to the right.
    pub(super) fn split(mut self, children: usize) -> (Self, Boundary<K>, Self) {
        let right = Self {
            heads: self.heads.split_off(children),
            separators: self.separators.split_off(children),
            children: self.children.split_off(children),
        };
        let boundary = Boundary {
            head: self.heads.pop().unwrap_or(0),
            separator: self.separators.pop().flatten(),
        };
        (self, boundary, right)
    }

    /// The common prefix of the separators, and their heads behind it.
    pub(super) fn normalized(&self) -> (usize, Vec<u64>) {
        // SAFETY: separators of the node, under the writers' lock.
        let bytes = |separator: &Separator<K>| bytes_of(unsafe { separator.key::<'_>() });
        let (Some(Some(first)), Some(Some(last))) =
            (self.separators.first(), self.separators.last())
        else {
            return (0, self.heads.clone());
        };
        // Separators ascend: the first and the last share what all share.
        let prefix = common(bytes(first), bytes(last));
        let heads = self.separators.iter().flatten().map(|one| head_at(bytes(one), prefix));
        (prefix, heads.collect())
    }
}
