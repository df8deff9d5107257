//! The index layer: levels of packed keys over the data nodes, each level contiguous.
//!
//! # Contract
//! A layer is immutable once built, and shared by any number of threads. It is exact for the list
//! of nodes that it was built from: [`Layer::route`] gives the last of *those* nodes whose anchor
//! is not above the key. Nodes split off since are found by scanning on; a node that has become
//! obsolete is gone into the live one before it ([`super::storage`]). Nodes are not freed while a
//! layer that names them is in use ([`super::rebuild`]).
//!
//! # Layout
//! An entry is eight keys, one cache line, compared at once; it routes to nine places of the level
//! below, as the paper's four keys route to five (Figure 2). Place 9e + j of the next level belongs
//! to entry e, so the routing table is arithmetic. The lowest level routes to the data nodes. The
//! paper draws heights at random with p = 1/4, so that nodes can be linked into upper levels one by
//! one; but its layer is only ever built whole. So here every node is in the lowest level, and
//! every ninth entry of a level in the one above: the same search with fewer levels and no scanning
//! along them.
//!
//! Byte-string keys: an entry holds eight-byte heads behind the bytes that all keys of its range
//! share. A key that comes to an entry lies in its range, so the heads decide; only where the key's
//! head equals one of the entry's are whole anchors compared.
//!
//! Source: the PI paper, §3.1, §3.2.1, §4.1.

use super::bytes::{common, head_beyond};
use super::node::NodeRef;
use ordna_base::simd::{InstructionSet, LANES, Line, prefetch};
use ordna_base::{Key, Value};

/// Places that an entry routes to.
const FAN: usize = LANES + 1;

struct Level {
    entries: Box<[Line]>,
    /// Bytes shared by all keys of each entry's range; empty for `u64` keys.
    skips: Box<[u32]>,
    /// Data nodes below one place that an entry routes to.
    span: usize,
}

/// An index layer.
pub struct Layer<K: Key + ?Sized, V: Value + ?Sized> {
    /// From the top.
    levels: Vec<Level>,
    nodes: Box<[NodeRef<K, V>]>,
    /// Bytes shared by the keys between a node's anchor and the next one's when this was built;
    /// empty for `u64` keys.
    shared: Box<[u32]>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Layer<K, V> {
    /// The layer over these nodes, which are in order of their anchors, and at least one.
    pub fn build(nodes: Vec<NodeRef<K, V>>) -> Self {
        let anchor = |at: usize| nodes.get(at).map(|node| node.anchor());
        // Bytes that all keys from one node's anchor up to another's share; none if there is no
        // end.
        let between = |from: usize, to: usize| match (anchor(from), anchor(to)) {
            (Some(from), Some(to)) => common(from, to) as u32,
            _ => 0,
        };
        let skips_of = |count: usize, span: usize| -> Box<[u32]> {
            if K::HEAD_IS_KEY {
                return Box::default();
            }
            (0..count).map(|at| between(at * span, (at + 1) * span)).collect()
        };
        let mut levels = Vec::new();
        let (mut places, mut span) = (nodes.len(), 1);
        while places > 1 {
            let count = places.div_ceil(FAN);
            let skips = skips_of(count, span * FAN);
            let entry = |at: usize| {
                let skip = skips.get(at).map_or(0, |skip| *skip as usize);
                let line = Line::filled(u64::MAX);
                for lane in 0..LANES {
                    if let Some(anchor) = anchor((at * FAN + lane + 1) * span) {
                        line.set(lane, head_beyond(anchor, skip));
                    }
                }
                line
            };
            let entries = (0..count).map(entry).collect();
            levels.push(Level { entries, skips, span });
            (places, span) = (count, span * FAN);
        }
        levels.reverse();
        let shared = skips_of(nodes.len(), 1);
        Self { levels, nodes: nodes.into(), shared }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node at a place of the lowest level.
    #[inline]
    pub fn node(&self, at: usize) -> NodeRef<K, V> {
        self.nodes[at]
    }

    /// How many first bytes a key that was routed to a place shares with the node's anchor.
    #[inline]
    pub fn shared(&self, at: usize) -> usize {
        self.shared.get(at).map_or(0, |shared| *shared as usize)
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> &[NodeRef<K, V>] {
        &self.nodes
    }

    /// Number of levels above the nodes.
    pub fn height(&self) -> usize {
        self.levels.len()
    }

    /// Where the search of a key goes on below an entry: one step of Algorithm 2.
    #[inline]
    pub fn step(&self, level: usize, entry: usize, key: &K, set: InstructionSet) -> usize {
        let Level { entries, skips, span } = &self.levels[level];
        let line = &entries[entry];
        let skip = skips.get(entry).map_or(0, |skip| *skip as usize);
        let head = head_beyond(key, skip);
        let first = entry * FAN;
        let above = first + set.at_most(line, head).count_ones() as usize;
        // The last entry is filled up with the maximum, which a key may have.
        let last = self.levels.get(level + 1).map_or(self.nodes.len(), |l| l.entries.len()) - 1;
        let mut to = above.min(last);
        if !K::HEAD_IS_KEY {
            let mut from = first + set.below(line, head).count_ones() as usize;
            while from < to {
                let middle = (from + to).div_ceil(2);
                if self.nodes[middle * span].anchor() <= key {
                    from = middle;
                } else {
                    to = middle - 1;
                }
            }
            to = from.min(last);
        }
        to
    }

    /// Fetches the entry, or behind the last level the link to the node, at a place.
    #[inline]
    pub fn prefetch(&self, level: usize, at: usize) {
        match self.levels.get(level) {
            Some(level) => {
                prefetch(&raw const level.entries[at]);
                if let Some(skip) = level.skips.get(at) {
                    prefetch(&raw const *skip);
                }
            }
            None => prefetch(&raw const self.nodes[at]),
        }
    }

    /// The place of the last node whose anchor is not above the key: O(log n).
    #[inline]
    pub fn route(&self, key: &K, set: InstructionSet) -> usize {
        (0..self.levels.len()).fold(0, |at, level| self.step(level, at, key, set))
    }

    /// Bytes asked of the allocator.
    pub fn size(&self) -> usize {
        let levels = self.levels.iter().map(|level| {
            size_of::<Level>() + size_of_val(&*level.entries) + size_of_val(&*level.skips)
        });
        let nodes = size_of_val(&*self.nodes) + size_of_val(&*self.shared);
        size_of::<Self>() + levels.sum::<usize>() + nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Borrow;

    /// Builds a layer over nodes with these anchors and compares every route with the definition.
    fn check<K: Key + ?Sized>(anchors: Vec<K::Owned>, keys: &[K::Owned]) {
        let nodes = anchors.iter().cloned().map(NodeRef::<K, u64>::new).collect::<Vec<_>>();
        let layer = Layer::build(nodes.clone());
        for key in keys {
            let key: &K = key.borrow();
            let expected = anchors.iter().filter(|anchor| (*anchor).borrow() <= key).count() - 1;
            for set in InstructionSet::available() {
                assert_eq!(layer.route(key, set), expected, "{key:?} among {}", anchors.len());
            }
        }
        #[expect(unsafe_code, reason = "frees the test's own nodes")]
        // SAFETY: the nodes are this test's own, and have no records.
        nodes.into_iter().for_each(|node| unsafe { node.free() });
    }

    #[test]
    fn routes_to_the_last_anchor_that_is_not_above_the_key() {
        for count in [1, 2, 8, 9, 10, 72, 73, 81, 82, 700, 730] {
            let anchors: Vec<u64> = (0..count).map(|at| at * 3).collect();
            let keys: Vec<u64> = (0..count * 3 + 2).chain([u64::MAX]).collect();
            check::<u64>(anchors.clone(), &keys);
            let ends = [vec![u64::MAX - 1, u64::MAX], anchors.iter().map(|a| a + 1).collect()];
            let mut high = anchors.clone();
            high.extend_from_slice(&ends[0]);
            check::<u64>(high, &[ends.concat(), vec![0, 5, u64::MAX - 2]].concat());
        }
    }

    #[test]
    fn equal_heads_are_decided_by_whole_anchors() {
        let tails: Vec<Vec<u8>> = (0..300_u16)
            .flat_map(|n| {
                let n = n.to_be_bytes();
                let short = [&[0xFF; 9], n.as_slice()].concat();
                let long = [b"common prefix ".as_slice(), &[0; 20], &n].concat();
                [short, long, vec![0; n[1] as usize], vec![0xFF; n[1] as usize]]
            })
            .collect();
        let mut keys = tails;
        keys.push(Vec::new());
        keys.sort();
        keys.dedup();
        for step in [1, 2, 3, 7] {
            check::<[u8]>(keys.iter().step_by(step).cloned().collect(), &keys);
        }
    }
}
