//! The search of HydraList's search layer: an anchor next to a key, at the cost of one descent.
//!
//! Source: the HydraList paper (Mathew and Min, VLDB 2020), §4.2.1 and §4.6.1.

use std::cmp::Ordering as Order;

use super::node::{Chunk, NodeRef, Position, TERMINAL, position};
use super::protocol::{Free, Protocol};
#[cfg(feature = "schedule")]
use super::tree::restarts;
use super::tree::{Keep, Tree};
use super::walk::side_of_stored;
use super::word::{Child, Leaf};
use crate::index::Direction;
use crate::{Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol<Read = Free>> Tree<K, V, P> {
    /// The record of `key`, or of a neighbour in the order of keys: goes as far as the bytes of the key
    /// lead, then to the largest key on the smaller side of the last node, and if there is none to the
    /// smallest one on the larger side. `None` if the tree is empty.
    pub fn jump<'g>(&'g self, key: &K, keep: &'g impl Keep) -> Option<Leaf<'g>> {
        let bytes = key.radix();
        let bytes = bytes.as_ref();
        let mut node = self.root(keep);
        let mut depth = 0;
        // The nodes whose prefixes were taken for equal, as in a seek.
        let mut unsure = Vec::new();
        loop {
            let level = node.level();
            let (side, in_full) = side_of_stored(node, depth, level, bytes);
            if side != Order::Equal {
                return Self::beside(&unsure, node, None, bytes).or_else(|| end_beside(node, side));
            }
            if !in_full {
                unsure.push(node);
            }
            let at = bytes.get(level).map_or(TERMINAL, |byte| position(*byte));
            match node.at(at).child() {
                Child::Leaf(leaf) => {
                    return Self::beside(&unsure, node, Some(leaf), bytes).or(Some(leaf));
                }
                Child::Node(child) => {
                    child.prefetch(bytes.get(level + 1));
                    (node, depth) = (child, level + 1);
                }
                Child::Empty => {
                    let below = at.checked_sub(1);
                    return Self::beside(&unsure, node, None, bytes)
                        .or_else(|| below.and_then(|at| from(node, at, Direction::Descending)))
                        .or_else(|| from(node, at + 1, Direction::Ascending));
                }
            }
        }
    }

    /// The record next to the key at the first of the nodes in whose prefix it differs, if there is one.
    /// `node` is the last on the way, `leaf` the record in its slot.
    fn beside<'g>(
        unsure: &[NodeRef<'g, P>],
        node: NodeRef<'g, P>,
        leaf: Option<Leaf<'g>>,
        bytes: &[u8],
    ) -> Option<Leaf<'g>> {
        if unsure.is_empty() {
            return None;
        }
        // In mode `Free` nothing restarts.
        let (at, side) = Self::difference(node, leaf, bytes).ok()?;
        end_beside(*unsure.iter().find(|node| node.level() > at)?, side)
    }
}

/// The record of a node next to a key that is smaller or larger than all below.
fn end_beside<'g, P: Protocol>(node: NodeRef<'g, P>, side: Order) -> Option<Leaf<'g>> {
    let direction = if side == Order::Less { Direction::Ascending } else { Direction::Descending };
    end_of(node, direction)
}

/// The first record of a node in a direction. A node below the root always has one; it is looked at
/// again if the writer emptied a slot before, and filled one behind, where the search stood.
fn end_of<'g, P: Protocol>(node: NodeRef<'g, P>, direction: Direction) -> Option<Leaf<'g>> {
    loop {
        if let Some(leaf) = from(node, NodeRef::<P>::start(direction), direction) {
            return Some(leaf);
        }
        #[cfg(feature = "schedule")]
        restarts::note();
    }
}

/// The first record of a node from a position on.
fn from<'g, P: Protocol>(
    node: NodeRef<'g, P>,
    position: Position,
    direction: Direction,
) -> Option<Leaf<'g>> {
    let mut chunk = Chunk::new();
    node.collect(position, direction, 1, &mut chunk);
    let mut node = match chunk.next()?.child() {
        Child::Leaf(leaf) => return Some(leaf),
        Child::Node(child) => child,
        Child::Empty => return None,
    };
    loop {
        node.collect(NodeRef::<P>::start(direction), direction, 1, &mut chunk);
        match chunk.next().map(|word| word.child()) {
            Some(Child::Leaf(leaf)) => return Some(leaf),
            Some(Child::Node(child)) => node = child,
            // As in `end_of`.
            Some(Child::Empty) | None => {
                #[cfg(feature = "schedule")]
                restarts::note();
            }
        }
    }
}
