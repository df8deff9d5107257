//! Building a list bottom-up from sorted items (Nitro, §5.2).
//!
//! Threads build a [`Segment`] each, with no synchronization; [`List::from_segments`] stitches them
//! together. O(n), and one after the other in memory as far as the allocator does so.

use std::ptr::{self, NonNull};

use super::{LINKED, List, MAX_HEIGHT, Node, NodeRef, random_height};
use crate::skiplist::item::Item;
use ordna_base::reclaim::Collector;
use ordna_base::sync::atomic::Ordering;

/// A sorted run of nodes, linked at all levels.
pub struct Segment<I: Item> {
    first: [*mut Node<I>; MAX_HEIGHT],
    last: [Option<NodeRef<I>>; MAX_HEIGHT],
}

// SAFETY: nodes hold plain data and atomics of Send + Sync kinds, and are the segment's own.
unsafe impl<I: Item> Send for Segment<I> {}

impl<I: Item> Segment<I> {
    pub fn new() -> Self {
        Self { first: [ptr::null_mut(); MAX_HEIGHT], last: [None; MAX_HEIGHT] }
    }

    /// Appends an item. `false`, and nothing done, if it is not above the last one.
    pub fn push(&mut self, item: &I::New<'_>) -> bool {
        let height = random_height();
        let node = NodeRef::new(item, height);
        if self.last[0].is_some_and(|last| I::compare(last.rank(), node.rank()).is_ge()) {
            // SAFETY: nobody else knows it.
            unsafe { node.free() };
            return false;
        }
        for level in 0..height {
            match self.last[level] {
                Some(last) => last.tower().store(level, node.0.as_ptr()),
                None => self.first[level] = node.0.as_ptr(),
            }
            self.last[level] = Some(node);
        }
        node.tower().tag(0, LINKED);
        true
    }
}

impl<I: Item> Drop for Segment<I> {
    fn drop(&mut self) {
        let mut at = self.first[0];
        while let Some(node) = NonNull::new(at).map(NodeRef) {
            at = node.tower().load(0);
            // SAFETY: the nodes are the segment's own, and each is met once.
            unsafe { node.free() };
        }
    }
}

impl<I: Item> List<I> {
    /// A list of the segments' items. If a segment is not above those before it, its number.
    pub fn from_segments(segments: Vec<Segment<I>>) -> Result<Self, usize> {
        let list = Self::new();
        let mut last: [Option<NodeRef<I>>; MAX_HEIGHT] = [None; MAX_HEIGHT];
        for (number, mut segment) in segments.into_iter().enumerate() {
            let Some(first) = NonNull::new(segment.first[0]).map(NodeRef) else { continue };
            if last[0].is_some_and(|last| I::compare(last.rank(), first.rank()).is_ge()) {
                return Err(number);
            }
            // From here on the nodes are the list's.
            let first = std::mem::replace(&mut segment.first, [ptr::null_mut(); MAX_HEIGHT]);
            for level in (0..MAX_HEIGHT).filter(|level| !first[*level].is_null()) {
                let before = last[level].map_or(list.head(), |last| last.tower());
                before.store(level, first[level]);
                last[level] = segment.last[level];
                list.height.fetch_max(level + 1, Ordering::Relaxed);
            }
        }
        // For reading, until there are changes. Nobody else knows the list, and nothing is retired.
        list.renew_shortcuts(&Collector::new().pin());
        Ok(list)
    }
}
