//! Scans: where they begin, and how they continue.
//!
//! Scans write nothing. They may reach a removed node, whose frozen links lead to all nodes that
//! were after it, and to the node that replaced it.

use std::cmp::Ordering as Order;
use std::collections::VecDeque;
use std::ptr::NonNull;

use super::list::List;
use super::node::{MAX_HEIGHT, Node, NodeRef, is_marked, prefetch, unmarked};
use super::shortcuts::{FAR, LEVEL, Start};
use crate::skiplist::item::Item;
use ordna_base::reclaim::Guard;
use ordna_base::sync::{fault, point};

impl<I: Item> List<I> {
    /// Returns the first node on level 0 whose key is not below the bound (`inclusive`) or is above
    /// it. The node may have been removed, so callers check [`NodeRef::is_live`].
    pub fn locate(
        &self,
        from: Option<(I::Rank<'_>, bool)>,
        guard: &Guard<'_>,
    ) -> Option<NodeRef<I>> {
        let is_before = |node: &NodeRef<I>| {
            from.is_some_and(|(rank, inclusive)| match I::compare(node.rank(), rank) {
                Order::Less => true,
                Order::Equal => !inclusive,
                Order::Greater => false,
            })
        };
        let mut before = self.head();
        if let Some((rank, _)) = from {
            before = self
                .last_before(0, Some(rank), guard, is_before)
                .map_or(before, |node| node.tower());
        }
        point("skiplist.locate.found_before");
        let mut at = NonNull::new(unmarked(before.load(0))).map(NodeRef);
        // Other nodes before the bound may have been inserted after `before` in the meantime.
        while let Some(node) = at.filter(|node| passes_inserted() && is_before(node)) {
            at = NonNull::new(unmarked(node.tower().load(0))).map(NodeRef);
        }
        at
    }

    /// Returns a live node some way before `key`, for scanning backwards in stretches: the last one
    /// with a tower above `level`. `None` means the head.
    pub fn stretch_before(
        &self,
        rank: Option<I::Rank<'_>>,
        level: usize,
        guard: &Guard<'_>,
    ) -> Option<NodeRef<I>> {
        self.last_before(level, rank, guard, |node| {
            rank.is_none_or(|rank| I::compare(node.rank(), rank).is_lt())
        })
    }

    /// Returns the unmarked link on `level` of the last node that is not above `rank`.
    pub(super) fn link_behind(
        &self,
        rank: I::Rank<'_>,
        level: usize,
        guard: &Guard<'_>,
    ) -> *mut Node<I> {
        let is_before = |node: &NodeRef<I>| I::compare(node.rank(), rank).is_le();
        let before = self.last_before(level, Some(rank), guard, is_before);
        unmarked(before.map_or(self.head(), |node| node.tower()).load(level))
    }

    /// Returns the last node reachable on `level` or above for which `is_before` returns `true`, as
    /// it does for all nodes below `rank`.
    fn last_before(
        &self,
        level: usize,
        rank: Option<I::Rank<'_>>,
        guard: &Guard<'_>,
        is_before: impl Fn(&NodeRef<I>) -> bool,
    ) -> Option<NodeRef<I>> {
        let start = rank.filter(|_| level <= LEVEL);
        let start = start.and_then(|rank| self.shortcuts.start(rank, guard));
        let found = start.and_then(|start| self.last_behind(level, Some(start), &is_before));
        found.or_else(|| self.last_behind(level, None, &is_before))
    }

    /// Works like [`last_before`](Self::last_before), from the start or the head. Returns `None` if
    /// there is no such node, or the start is too [`FAR`] away.
    fn last_behind(
        &self,
        level: usize,
        start: Option<Start<I>>,
        is_before: impl Fn(&NodeRef<I>) -> bool,
    ) -> Option<NodeRef<I>> {
        let mut last = start.map(|start| start.before);
        let (mut before, height, mut left) = match last {
            Some(start) => (start.tower(), LEVEL + 1, FAR),
            None => (self.head(), self.height().max(level + 1), usize::MAX),
        };
        for level in (level..height).rev() {
            let mut at = unmarked(before.load(level));
            while let Some(node) = NonNull::new(at).map(NodeRef) {
                let next = node.tower().load(level);
                if is_marked(next) {
                    at = unmarked(next);
                    continue;
                }
                if !is_before(&node) {
                    break;
                }
                last = Some(node);
                before = node.tower();
                at = next;
                if level == LEVEL {
                    left -= 1;
                    if left == 0 {
                        return None;
                    }
                }
            }
        }
        last
    }

    /// Returns the next node on level 0, removed or not.
    #[inline]
    pub fn next(&self, node: NodeRef<I>, _guard: &Guard<'_>) -> Option<NodeRef<I>> {
        let next = NonNull::new(unmarked(node.tower().load(0))).map(NodeRef);
        if let Some(next) = next {
            prefetch(next.tower().load(0));
        }
        next
    }

    /// Returns up to `limit` live nodes with towers above `level`, in order: the first ones above
    /// `from`.
    pub fn tall_behind(
        &self,
        from: I::Rank<'_>,
        level: usize,
        limit: usize,
        guard: &Guard<'_>,
    ) -> Vec<NodeRef<I>> {
        let mut at = self.link_behind(from, level, guard);
        let mut row = Vec::with_capacity(limit);
        while let Some(node) = NonNull::new(unmarked(at)).map(NodeRef) {
            if row.len() == limit {
                break;
            }
            at = node.tower().load(level);
            // A node that is not above may have been inserted after `before` in the meantime.
            if !is_marked(at) && I::compare(node.rank(), from).is_gt() {
                row.push(node);
            }
        }
        row
    }

    /// Returns up to `limit` live nodes with towers above `level`, in order: some of the last ones
    /// below `to`, if there are any.
    pub fn tall_before(
        &self,
        to: Option<I::Rank<'_>>,
        level: usize,
        limit: usize,
        guard: &Guard<'_>,
    ) -> Vec<NodeRef<I>> {
        let is_before = |node: &NodeRef<I>| to.is_none_or(|to| I::compare(node.rank(), to).is_lt());
        // On this level, there is one node for twice as many as are needed. The row begins there.
        let higher = level + limit.next_power_of_two().trailing_zeros() as usize + 1;
        let higher = if limit == 1 { level } else { higher.min(MAX_HEIGHT - 1) };
        let first = self.last_before(higher, to, guard, is_before);
        let mut row = VecDeque::with_capacity(limit + 1);
        row.extend(first);
        let mut at = first.map_or(self.head(), |node| node.tower()).load(level);
        while let Some(node) = NonNull::new(unmarked(at)).map(NodeRef).filter(is_before) {
            at = node.tower().load(level);
            if !is_marked(at) {
                row.push_back(node);
                if row.len() > limit {
                    row.pop_front();
                }
            }
        }
        row.into()
    }

    /// Scans from each of the nodes `starts`, which are in order, to the next one, and from the
    /// last one to the first node that is `beyond`. A lane receives those of its nodes for which
    /// `keep` returned `true` when it passed them.
    ///
    /// The lanes are interleaved, so that their cache misses overlap.
    pub fn scan_lanes(
        &self,
        starts: &[NodeRef<I>],
        beyond: impl Fn(NodeRef<I>) -> bool,
        lanes: &mut Vec<Vec<NodeRef<I>>>,
        _guard: &Guard<'_>,
        mut keep: impl FnMut(NodeRef<I>) -> bool,
    ) {
        lanes.iter_mut().for_each(Vec::clear);
        if lanes.len() < starts.len() {
            lanes.resize_with(starts.len(), Vec::new);
        }
        let mut running: Vec<(usize, NodeRef<I>)> = starts.iter().copied().enumerate().collect();
        while !running.is_empty() {
            running.retain_mut(|(lane, node)| {
                let is_over = match starts.get(*lane + 1) {
                    Some(next) => node == next || I::compare(node.rank(), next.rank()).is_ge(),
                    None => beyond(*node),
                };
                if is_over {
                    return false;
                }
                if keep(*node) {
                    lanes[*lane].push(*node);
                }
                let next = unmarked(node.tower().load(0));
                prefetch(next);
                NonNull::new(next).map(NodeRef).is_some_and(|next| {
                    *node = next;
                    true
                })
            });
        }
    }
}

/// Returns whether a scan skips nodes before its bound that were inserted during the search.
fn passes_inserted() -> bool {
    !fault!("nitro.locate.passes_inserted")
}
