//! Searches of several keys that descend together, so that their cache misses overlap.
//!
//! # Contract
//! [`SearchLayer::find_many`] does what [`SearchLayer::find`] does for each key.
//!
//! # Protocol
//! The keys pass level by level. A key enters a node when its cache lines were prefetched one pass
//! earlier: it reads the node's version and then validates the parent, as a single search does, so
//! the parent led there at that version. A group validates each node once: it follows an address
//! that is not validated yet, and that may be from a wrong slot. This is safe because a slot holds
//! null or the address of a node one level below that was not retired before the guard was taken:
//! writers overwrite an address in all nodes that a search may reach before they retire its node.
//! Addresses of leaves are validated before they are returned.
//!
//! If a writer interferes with a key, only that key searches again, alone.

use super::{GROUP, LeafAddress, Node, SearchLayer};
use ordna_base::Key;
use ordna_base::reclaim::Guard;
use ordna_base::simd::InstructionSet;
use ordna_base::sync::{Version, VersionLock, check, point};
use std::ptr;

/// Number of keys for which a smaller table of descents is created.
const FEW: usize = 16;

/// The descent of one key of a group.
struct Lane<'a, K: Key + ?Sized> {
    /// The node that the key is in or enters next, or `None` if a writer has interfered.
    node: Option<&'a Node<K>>,
    /// The lock of the node that the key has entered last, and its version then.
    above: (&'a VersionLock, Version),
    /// The numbers between which the child's position lies, see [`Node::narrow`].
    span: (usize, usize),
}

impl<K: Key + ?Sized> Clone for Lane<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: Key + ?Sized> Copy for Lane<'_, K> {}

impl<'a, K: Key + ?Sized> Lane<'a, K> {
    /// Enters the next node at a version at which the parent led to it, and does the first step
    /// there.
    #[inline]
    fn narrow(&mut self, key: &K, simd: InstructionSet) {
        let entered = self.enter();
        self.node = None;
        if let Some((node, version)) = entered
            && let Some(span) = node.narrow(key, simd)
        {
            *self = Lane { node: Some(node), above: (&node.lock, version), span };
        }
    }

    /// Returns the next node and its version.
    #[inline]
    fn enter(&self) -> Option<(&'a Node<K>, Version)> {
        let node = self.node?;
        let version = node.lock.try_read().ok().flatten()?;
        let (above, passed) = self.above;
        check!("search.group.validate", above.validate(passed)).then_some((node, version))
    }
}

impl<K: Key + ?Sized> SearchLayer<K> {
    /// Finds the addresses of up to [`GROUP`] keys. Calls `found` with the number of a key and its
    /// address, not in order; an address that is found first may be prefetched while others are
    /// searched.
    #[inline]
    pub fn find_many<'k>(
        &self,
        keys: impl ExactSizeIterator<Item = &'k K> + Clone,
        guard: &Guard<'_>,
        found: impl FnMut(usize, LeafAddress),
    ) where
        K: 'k,
    {
        if keys.len() <= FEW {
            self.descend::<FEW>(keys, guard, found);
        } else {
            self.descend::<GROUP>(keys, guard, found);
        }
    }

    /// Works like [`SearchLayer::find_many`], for up to `MOST` keys.
    fn descend<'k, const MOST: usize>(
        &self,
        keys: impl Iterator<Item = &'k K> + Clone,
        guard: &Guard<'_>,
        mut found: impl FnMut(usize, LeafAddress),
    ) where
        K: 'k,
    {
        let Ok((root, version)) = self.enter() else {
            return keys.enumerate().for_each(|(at, key)| found(at, self.find(key, false, guard)));
        };
        let start = Lane { node: Some(root), above: (&root.lock, version), span: (0, 0) };
        let mut lanes = [start; MOST];
        for height in (1..=root.height).rev() {
            // The nearest caches hold the upper levels. With integers, a pass more costs more than
            // the waits that it saves; the nodes of byte strings are larger.
            if !K::HEAD_IS_KEY {
                self.narrow_all(&mut lanes, keys.clone());
            }
            for (lane, key) in lanes.iter_mut().zip(keys.clone()) {
                if K::HEAD_IS_KEY {
                    lane.narrow(key, self.simd);
                }
                let Some(child) = self.child_of(lane, key) else {
                    lane.node = None;
                    continue;
                };
                // SAFETY: null, or a node that the guard keeps alive, see the protocol.
                lane.node = unsafe { ptr::with_exposed_provenance::<Node<K>>(child).as_ref() };
                if let Some(child) = lane.node {
                    debug_assert_eq!(child.height + 1, height, "all paths have the same length");
                    child.prefetch();
                    let down =
                        if height > 1 { "search.group.down" } else { "search.group.to_the_bottom" };
                    point(down);
                }
            }
        }
        self.narrow_all(&mut lanes, keys.clone());
        for (number, (lane, key)) in lanes.iter().zip(keys).enumerate() {
            let address = self.child_of(lane, key).and_then(|child| {
                point("search.group.routed");
                lane.node?.checked(lane.above.1).ok().map(|()| LeafAddress::of_child(child))
            });
            found(number, address.unwrap_or_else(|| self.find(key, false, guard)));
        }
    }

    /// Enters the next node of every key, and prefetches what the second step reads there.
    #[inline]
    fn narrow_all<'k>(&self, lanes: &mut [Lane<'_, K>], keys: impl Iterator<Item = &'k K>)
    where
        K: 'k,
    {
        for (lane, key) in lanes.iter_mut().zip(keys) {
            lane.narrow(key, self.simd);
            if let Some(node) = lane.node {
                node.prefetch_span(lane.span);
            }
        }
    }

    /// Returns the address of the child that covers the key of a lane that has entered its node.
    #[inline]
    fn child_of(&self, lane: &Lane<'_, K>, key: &K) -> Option<usize> {
        let node = lane.node?;
        let at = match lane.span {
            (from, to) if from == to => from,
            span => node.decide(key, false, span, self.simd)?,
        };
        Some(node.child(at))
    }
}
