//! An inner node of the trie.
//!
//! Beside what the paper's item has (bitmap of the children, first and last leaf) it holds the last
//! leaf of each of its first children. A key whose next byte is missing belongs to the last leaf of
//! the largest child below that byte: the paper looks up that child's item for it. And a child
//! whose only leaf it is needs no slot to be looked at. All of it is exact: a step sets it together
//! with the items' own leaves ([`Table::apply`](super::Table::apply)), and the audit compares it
//! with the list.

use super::leaf::TableLeaf;
use ordna_base::simd::prefetch;

/// An inner node of the trie: two cache lines, of which a search reads both at once.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Item<P> {
    /// The leaf before `first`.
    pub before: Option<P>,
    /// First and last leaf of the subtree.
    pub first: P,
    pub last: P,
    pub children: [u64; 4],
    /// Length of the prefix, in bytes; in the top bit, whether the prefix is an anchor itself, that
    /// of `first`.
    length: u32,
    /// Hash of the prefix.
    pub hash: u32,
    /// Last leaves of the first children. With more children the others are asked for in the table.
    lasts: Lasts,
}

const ENDS: u32 = 1 << 31;

/// Children that have their last leaf in the item: ten digits and one more that is the last.
const ROOM: usize = 10;

/// Words of leaves, six bytes each, in the order of the children: no item is longer than two lines.
#[derive(Debug, Clone, Copy, Default)]
struct Lasts {
    low: [u32; ROOM],
    high: [u16; ROOM],
    /// How many are there. A removal leaves one fewer, although there may be more children.
    known: u8,
}

impl Lasts {
    #[inline]
    fn get(&self, rank: usize) -> Option<u64> {
        let there = rank < usize::from(self.known) && rank < ROOM;
        there.then(|| u64::from(self.high[rank]) << 32 | u64::from(self.low[rank]))
    }

    fn set(&mut self, rank: usize, word: u64) {
        if rank < usize::from(self.known) {
            (self.low[rank], self.high[rank]) = (word as u32, (word >> 32) as u16);
        }
    }

    fn insert(&mut self, rank: usize, word: u64) {
        let known = usize::from(self.known);
        if rank <= known && rank < ROOM {
            self.low.copy_within(rank..known.min(ROOM - 1), rank + 1);
            self.high.copy_within(rank..known.min(ROOM - 1), rank + 1);
            self.known = (known + 1).min(ROOM) as u8;
            self.set(rank, word);
        }
    }

    fn remove(&mut self, rank: usize) {
        let known = usize::from(self.known);
        if rank < known {
            self.low.copy_within(rank + 1..known, rank);
            self.high.copy_within(rank + 1..known, rank);
            self.known -= 1;
        }
    }
}

/// An item's word about one of its children: its last leaf; in the low bit, whether that is the
/// only one, with its anchor here: the child's slot holds a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child(u64);

impl Child {
    pub fn new<P: TableLeaf>(last: P, is_leaf: bool) -> Self {
        Self(last.word() | u64::from(is_leaf))
    }

    /// The word of the last leaf.
    #[inline]
    pub fn last(self) -> u64 {
        self.0 & !1
    }

    #[inline]
    pub fn is_leaf(self) -> bool {
        self.0 & 1 == 1
    }
}

impl<P: TableLeaf> Item<P> {
    /// Of a prefix with one leaf, that of its only child, if it has one, or of its end.
    pub fn new(length: usize, hash: u32, leaf: P, before: Option<P>) -> Self {
        let (children, lasts) = ([0; 4], Lasts::default());
        let length = length as u32;
        Self { before, first: leaf, last: leaf, children, length, hash, lasts }
    }

    /// Asks for both lines.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self);
        prefetch(&raw const self.lasts);
    }

    #[inline]
    pub fn length(&self) -> usize {
        (self.length & !ENDS) as usize
    }

    #[inline]
    pub fn ends(&self) -> bool {
        self.length & ENDS != 0
    }

    pub fn set_ends(&mut self, ends: bool) {
        self.length = self.length & !ENDS | if ends { ENDS } else { 0 };
    }

    #[inline]
    pub fn has_child(&self, byte: u8) -> bool {
        self.children[usize::from(byte / 64)] >> (byte % 64) & 1 == 1
    }

    /// How many children are below `byte`.
    #[inline]
    fn rank(&self, byte: u8) -> usize {
        let at = usize::from(byte / 64);
        let word = self.children[at] & ((1 << (byte % 64)) - 1);
        let before = self.children[..at].iter().map(|word| word.count_ones()).sum::<u32>();
        (before + word.count_ones()) as usize
    }

    /// The word about a child that is there.
    #[inline]
    pub fn child(&self, byte: u8) -> Option<Child> {
        self.lasts.get(self.rank(byte)).map(Child)
    }

    /// A child that was not there.
    pub fn add_child(&mut self, byte: u8, child: Child) {
        self.lasts.insert(self.rank(byte), child.0);
        self.children[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    /// A child that was there has changed.
    pub fn set_child(&mut self, byte: u8, child: Child) {
        self.lasts.set(self.rank(byte), child.0);
    }

    pub fn drop_child(&mut self, byte: u8) {
        self.children[usize::from(byte / 64)] &= !(1 << (byte % 64));
        self.lasts.remove(self.rank(byte));
    }

    pub fn has_children(&self) -> bool {
        self.children.iter().any(|word| *word != 0)
    }

    /// The largest child below `byte`.
    #[inline]
    pub fn child_below(&self, byte: u8) -> Option<u8> {
        let mut at = usize::from(byte / 64);
        let mut word = self.children[at] & ((1 << (byte % 64)) - 1);
        loop {
            if word != 0 {
                return Some((at * 64) as u8 + 63 - word.leading_zeros() as u8);
            }
            at = at.checked_sub(1)?;
            word = self.children[at];
        }
    }

    /// Whether no child is at `byte` or above.
    #[inline]
    pub fn none_from(&self, byte: u8) -> bool {
        let at = usize::from(byte / 64);
        let rest = self.children[at + 1..].iter().fold(0, |all, word| all | word);
        self.children[at] >> (byte % 64) == 0 && rest == 0
    }
}
