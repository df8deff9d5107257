//! The index layer: levels of packed keys over the data nodes, each level contiguous in memory.
//!
//! # Contract
//! A layer is immutable once built, and shared by any number of threads. It is exact for the list
//! of nodes from which it was built: [`Layer::route`] returns the last of *those* nodes whose
//! anchor is not above the key. Nodes that were split off since are found by scanning from there.
//! An obsolete node was absorbed by the live one before it ([`super::storage`]). Nodes are not
//! freed while a layer that names them is in use ([`super::rebuild`]).
//!
//! # Layout
//! An entry consists of eight keys in one cache line, which are compared at once. It routes to nine
//! places of the level below, as the paper's four keys route to five (Figure 2). Place 9e + j of
//! the next level belongs to entry e, so the routing table is arithmetic. The lowest level routes
//! to the data nodes. The paper chooses heights at random with p = 1/4, so that nodes can be linked
//! into upper levels individually, but its layer is only ever built as a whole. So here every node
//! is in the lowest level, and every ninth entry of a level is in the level above: this is the same
//! search with fewer levels and without scans along them.
//!
//! For byte-string keys, an entry has the eight-byte heads that follow the bytes shared by all keys
//! of its range. A key that reaches an entry is in its range, so the heads are sufficient. Whole
//! anchors are compared only if the key's head equals one of the entry's.
//!
//! Source: the PI paper, §3.1, §3.2.1, §4.1.

use super::bytes::{common, head_beyond};
use super::node::NodeRef;
use ordna_base::simd::{InstructionSet, LANES, Line, prefetch};
use ordna_base::{Key, Value};

/// Number of places to which an entry routes.
const FAN: usize = LANES + 1;

struct Level {
    entries: Box<[Line]>,
    /// Number of bytes shared by all keys of each entry's range. Empty for `u64` keys.
    skips: Box<[u32]>,
    /// Number of data nodes below one place to which an entry routes.
    span: usize,
}

/// An index layer.
pub struct Layer<K: Key + ?Sized, V: Value + ?Sized> {
    /// Levels from the top.
    levels: Vec<Level>,
    nodes: Box<[NodeRef<K, V>]>,
    /// Number of bytes shared by the keys between a node's anchor and the next one's when the layer
    /// was built. Empty for `u64` keys.
    shared: Box<[u32]>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Layer<K, V> {
    /// Builds the layer over these nodes, of which there is at least one. They are in the order of
    /// their anchors.
    pub fn build(nodes: Vec<NodeRef<K, V>>) -> Self {
        let anchor = |at: usize| nodes.get(at).map(|node| node.anchor());
        // Number of bytes that all keys between two nodes' anchors share; 0 if there is no end.
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

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the node at a place of the lowest level.
    #[inline]
    pub fn node(&self, at: usize) -> NodeRef<K, V> {
        self.nodes[at]
    }

    /// Returns how many first bytes a key that was routed to a place shares with the node's anchor.
    #[inline]
    pub fn shared(&self, at: usize) -> usize {
        self.shared.get(at).map_or(0, |shared| *shared as usize)
    }

    /// Returns all nodes, in order.
    pub fn nodes(&self) -> &[NodeRef<K, V>] {
        &self.nodes
    }

    /// Returns the number of levels above the nodes.
    pub fn height(&self) -> usize {
        self.levels.len()
    }

    /// Returns where the search of a key continues below an entry: one step of Algorithm 2.
    #[inline]
    pub fn step(&self, level: usize, entry: usize, key: &K, set: InstructionSet) -> usize {
        let Level { entries, skips, span } = &self.levels[level];
        let line = &entries[entry];
        let skip = skips.get(entry).map_or(0, |skip| *skip as usize);
        let head = head_beyond(key, skip);
        let first = entry * FAN;
        let above = first + set.at_most(line, head).count_ones() as usize;
        // The last entry is filled up with the maximum, which may also be a key.
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

    /// Prefetches the entry at a place or, after the last level, the link to the node.
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

    /// Returns the place of the last node whose anchor is not above the key. O(log n).
    #[inline]
    pub fn route(&self, key: &K, set: InstructionSet) -> usize {
        (0..self.levels.len()).fold(0, |at, level| self.step(level, at, key, set))
    }

    /// Returns the number of allocated bytes.
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
        // SAFETY: the nodes belong to this test, and have no records.
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
