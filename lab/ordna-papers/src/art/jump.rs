//! The search of HydraList's search layer: finds an anchor next to a key with a single descent.
//!
//! Source: the HydraList paper (Mathew and Min, VLDB 2020), §4.2.1 and §4.6.1. In addition, a
//! result above the key is replaced by the entry below it if that entry is in the same node or in
//! its parent, because the entry below is the one whose range contains the key.
//!
//! Prefixes are compared as far as nodes store them. If a prefix is longer, the record at the end
//! of the path shows whether it matched. Only if it did not, the path is repeated, to the node in
//! whose prefix the key differs.

use std::borrow::Borrow;
use std::cmp::Ordering as Order;

use super::node::{NodeRef, Position, TERMINAL, position};
#[cfg(debug_assertions)]
use super::probes::{restarts, steps};
use super::protocol::{Free, Protocol};
use super::tree::{Keep, Tree};
use super::tree_scan::side_of_stored;
use super::word::{Child, RecordRef, Word};
use ordna_base::index::Direction;
use ordna_base::simd::prefetch;
use ordna_base::sync::{fault, notice, point};
use ordna_base::{Key, Value};

/// Number of concurrent searches of a batch.
const LANES: usize = 16;

impl<K: Key + ?Sized, V: Value + ?Sized, P: Protocol<Read = Free>> Tree<K, V, P> {
    /// Returns the record of `key`, or of a neighbour in the order of keys. The search follows the
    /// bytes of the key as far as possible. Then it returns the largest key on the smaller side of
    /// the last node or its parent or, if there is none, the smallest key on the larger side.
    /// Returns `None` if the tree is empty.
    #[inline]
    pub fn jump<'g>(&'g self, key: &K, keep: &'g impl Keep) -> Option<RecordRef<'g>> {
        let bytes = key.radix();
        let root = self.root(keep);
        let mut jump = Jump::new(root);
        loop {
            if let Jump::Done(leaf) = jump {
                leaf.inspect(|leaf| Self::prefetch(*leaf));
                return leaf;
            }
            jump = Self::step(root, jump, key, bytes.as_ref());
        }
    }

    /// Calls `each` with the result of [`Tree::jump`] for every key, in the order of `keys`.
    /// Sixteen searches run interleaved, so that their cache misses overlap.
    pub fn jump_many<'g, Q: Borrow<K>>(
        &'g self,
        keys: &[Q],
        keep: &'g impl Keep,
        mut each: impl FnMut(usize, Option<RecordRef<'g>>),
    ) {
        let root = self.root(keep);
        let mut lanes: [Jump<'g, P>; LANES] = std::array::from_fn(|_| Jump::Done(None));
        for (group, keys) in keys.chunks(LANES).enumerate() {
            let mut running = keys.len();
            lanes[..running].fill(Jump::new(root));
            while running > 0 {
                for (lane, key) in lanes.iter_mut().zip(keys) {
                    if matches!(lane, Jump::Done(_)) {
                        continue;
                    }
                    let key: &K = key.borrow();
                    *lane = Self::step(root, *lane, key, key.radix().as_ref());
                    if let Jump::Done(leaf) = lane {
                        leaf.inspect(|leaf| Self::prefetch(*leaf));
                        running -= 1;
                    }
                }
            }
            for (at, lane) in lanes[..keys.len()].iter().enumerate() {
                if let Jump::Done(leaf) = lane {
                    each(group * LANES + at, *leaf);
                }
            }
        }
    }

    /// Passes through one node, or looks at one record.
    #[inline]
    fn step<'g>(root: NodeRef<'g, P>, jump: Jump<'g, P>, key: &K, bytes: &[u8]) -> Jump<'g, P> {
        let (node, depth, above, unproven) = match jump {
            Jump::Down { node, depth, above, unproven } => (node, depth, above, unproven),
            Jump::Found { leaf, node, at, above, unproven } => {
                if Self::misled(node, Some(leaf), bytes, unproven) {
                    return Self::beside_prefix(root, node, Some(leaf), bytes);
                }
                if Self::key(leaf) <= key {
                    return Jump::Done(Some(leaf));
                }
                let below =
                    below(node, at).or_else(|| above.and_then(|(node, at)| below(node, at)));
                return below.map_or(Jump::Done(Some(leaf)), |word| {
                    Jump::aside(word, Direction::Descending)
                });
            }
            Jump::End { node, direction } => {
                #[cfg(debug_assertions)]
                steps::add(1);
                let word = node.nearest(NodeRef::<P>::start(direction), direction);
                return match word {
                    Some(word) => Jump::aside(word, direction),
                    // Only the root can be without entries.
                    None if notice!("art.jump.empty_root", node == root) => Jump::Done(None),
                    None => Jump::again(node, direction),
                };
            }
            Jump::Done(_) => return jump,
        };
        let level = node.level();
        let (side, in_full) = side_of_stored(node, depth, level, bytes);
        let unproven = if in_full || side.is_ne() { unproven } else { level };
        let byte = bytes.get(level);
        let at = byte.map_or(TERMINAL, |byte| position(*byte));
        let next = byte.map_or_else(|| node.terminal(), |byte| node.child(*byte)).child();
        let ends = side.is_ne() || matches!(next, Child::Empty);
        if ends && Self::misled(node, None, bytes, unproven) {
            return Self::beside_prefix(root, node, None, bytes);
        }
        if side.is_ne() {
            return Jump::beside(node, side, above);
        }
        match next {
            Child::Record(leaf) => {
                Self::prefetch(leaf);
                // Half of the time this record is above the key, and the record below it is the
                // answer.
                if let Some(Child::Record(other)) = below(node, at).map(Word::child) {
                    Self::prefetch(other);
                }
                Jump::Found { leaf, node, at, above, unproven }
            }
            Child::Node(child) => {
                child.prefetch(bytes.get(level + 1));
                // If the node has few entries, none may be below the key. Then the entries of the
                // preceding node are needed.
                if !node.is_small()
                    && let Some(word) = below(node, at)
                {
                    word.prefetch_small();
                }
                Jump::Down { node: child, depth: level + 1, above: Some((node, at)), unproven }
            }
            Child::Empty => Jump::around(node, at, above),
        }
    }

    /// Returns whether the key differs from the records below a node before the level `unproven`.
    /// Up to that level, prefixes were assumed to match without being stored. `leaf` is one of the
    /// records, if the caller has one.
    fn misled(
        node: NodeRef<'_, P>,
        leaf: Option<RecordRef<'_>>,
        bytes: &[u8],
        unproven: usize,
    ) -> bool {
        // In mode `Free`, nothing restarts.
        unproven > 0 && Self::difference(node, leaf, bytes).is_ok_and(|(at, _)| at < unproven)
    }

    /// Descends from the root to the node in whose prefix the key differs, and then to a neighbour.
    #[cold]
    fn beside_prefix<'g>(
        root: NodeRef<'g, P>,
        node: NodeRef<'g, P>,
        leaf: Option<RecordRef<'g>>,
        bytes: &[u8],
    ) -> Jump<'g, P> {
        let Ok((differs, side)) = Self::difference(node, leaf, bytes) else {
            return Jump::End { node, direction: Direction::Descending };
        };
        let (mut node, mut above) = (root, None);
        loop {
            let level = node.level();
            let Some(byte) = bytes.get(level).filter(|_| level <= differs) else {
                return Jump::beside(node, side, above);
            };
            match node.child(*byte).child() {
                Child::Node(child) => (node, above) = (child, Some((node, position(*byte)))),
                // A writer has changed the path in the meantime.
                Child::Record(leaf) => return Jump::Done(Some(leaf)),
                Child::Empty if fault!("art.jump.both_sides") => {
                    return Jump::beside(node, side, above);
                }
                Child::Empty => return Jump::around(node, position(*byte), above),
            }
        }
    }
}

/// A search in progress, which advances by one node or record at a time.
enum Jump<'g, P> {
    /// The bytes of the key lead to this node. Includes its parent and the position there.
    Down {
        node: NodeRef<'g, P>,
        depth: usize,
        above: Option<(NodeRef<'g, P>, Position)>,
        /// Level up to which prefixes were assumed to match without being stored, or 0 if there is
        /// none.
        unproven: usize,
    },
    /// The bytes of the key lead to this record, which is in this node.
    Found {
        leaf: RecordRef<'g>,
        node: NodeRef<'g, P>,
        at: Position,
        above: Option<(NodeRef<'g, P>, Position)>,
        unproven: usize,
    },
    /// Continue to the first record of a node in this direction.
    End {
        node: NodeRef<'g, P>,
        direction: Direction,
    },
    Done(Option<RecordRef<'g>>),
}

impl<P> Clone for Jump<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for Jump<'_, P> {}

impl<'g, P: Protocol> Jump<'g, P> {
    #[inline]
    fn new(root: NodeRef<'g, P>) -> Self {
        Self::Down { node: root, depth: 0, above: None, unproven: 0 }
    }

    /// Continues to a neighbour of everything below a node: to its smaller side if the key is
    /// larger. Otherwise to the entries below the node's position in its parent, if there are any.
    fn beside(
        node: NodeRef<'g, P>,
        side: Order,
        above: Option<(NodeRef<'g, P>, Position)>,
    ) -> Self {
        if side == Order::Greater {
            return Self::End { node, direction: Direction::Descending };
        }
        match above.and_then(|(node, at)| below(node, at)) {
            Some(word) => Self::aside(word, Direction::Descending),
            None => Self::End { node, direction: Direction::Ascending },
        }
    }

    /// Continues to a neighbour of an empty slot: to the entries below it in the node or its
    /// parent, and otherwise to the entries above it in the node.
    fn around(
        node: NodeRef<'g, P>,
        at: Position,
        above: Option<(NodeRef<'g, P>, Position)>,
    ) -> Self {
        let smaller = below(node, at).or_else(|| above.and_then(|(node, at)| below(node, at)));
        if let Some(word) = smaller {
            return Self::aside(word, Direction::Descending);
        }
        point("art.jump.nothing_below");
        match node.nearest(at + 1, Direction::Ascending) {
            Some(word) => Self::aside(word, Direction::Ascending),
            None if fault!("art.jump.nothing_around") => Self::Done(None),
            None => Self::again(node, Direction::Ascending),
        }
    }

    /// Searches a node again in which no entry was found. Every node except the root has entries:
    /// the writer emptied a slot before the search reached it, and filled one that the search had
    /// passed.
    #[cold]
    fn again(node: NodeRef<'g, P>, direction: Direction) -> Self {
        #[cfg(debug_assertions)]
        restarts::note();
        Self::End { node, direction }
    }

    /// Continues to the first record of an entry next to the key. The entry is not empty.
    #[inline]
    fn aside(word: Word<'g, P>, direction: Direction) -> Self {
        match word.child() {
            Child::Record(leaf) => {
                prefetch(leaf.as_ptr());
                Self::Done(Some(leaf))
            }
            Child::Node(node) => {
                node.prefetch(None);
                Self::End { node, direction }
            }
            Child::Empty => Self::Done(None),
        }
    }
}

/// Returns the next entry of a node below a position.
#[inline]
fn below<'g, P: Protocol>(node: NodeRef<'g, P>, at: Position) -> Option<Word<'g, P>> {
    node.nearest(at.checked_sub(1)?, Direction::Descending)
}
