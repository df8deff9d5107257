//! An inner node of the trie.
//!
//! In addition to the contents of the paper's item (bitmap of the children, first and last leaf),
//! an item has the last leaf of each of its first children. A key whose next byte has no child
//! belongs to the last leaf of the largest child below that byte. The paper looks up that child's
//! item for this. For a child with a single leaf, no slot needs to be read. All of this is exact: a
//! step sets it together with the items' own leaves ([`Table::apply`](super::Table::apply)), and
//! the audit compares it with the list.

use super::leaf::TableLeaf;
use ordna_base::simd::prefetch;

/// An inner node of the trie, on two cache lines that a search reads at once.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Item<P> {
    /// The leaf before `first`.
    pub before: Option<P>,
    /// First leaf of the subtree.
    pub first: P,
    pub last: P,
    pub children: [u64; 4],
    /// Length of the prefix in bytes. The top bit shows whether the prefix itself is an anchor,
    /// namely that of `first`.
    length: u32,
    /// Hash of the prefix.
    pub hash: u32,
    /// Last leaves of the first children. Those of further children are looked up in the table.
    lasts: Lasts,
}

const ENDS: u32 = 1 << 31;

/// Number of children whose last leaf is in the item.
const ROOM: usize = 10;

/// Words of leaves with six bytes each, in the order of the children, so that no item exceeds two
/// cache lines.
#[derive(Debug, Clone, Copy, Default)]
struct Lasts {
    low: [u32; ROOM],
    high: [u16; ROOM],
    /// Number of known leaves. After a removal there is one fewer, even if there are more children.
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

/// An item's word about one of its children: its last leaf. The low bit shows whether that is the
/// only one and its anchor ends here, so that the child's slot contains a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child(u64);

impl Child {
    pub fn new<P: TableLeaf>(last: P, is_leaf: bool) -> Self {
        Self(last.word() | u64::from(is_leaf))
    }

    /// Returns the word of the last leaf.
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
    /// Creates the item of a prefix with one leaf, which belongs to its only child, if it has one,
    /// or to its end.
    pub fn new(length: usize, hash: u32, leaf: P, before: Option<P>) -> Self {
        let (children, lasts) = ([0; 4], Lasts::default());
        let length = length as u32;
        Self { before, first: leaf, last: leaf, children, length, hash, lasts }
    }

    /// Prefetches both cache lines.
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

    /// Returns the number of children below `byte`.
    #[inline]
    fn rank(&self, byte: u8) -> usize {
        let at = usize::from(byte / 64);
        let word = self.children[at] & ((1 << (byte % 64)) - 1);
        let before = self.children[..at].iter().map(|word| word.count_ones()).sum::<u32>();
        (before + word.count_ones()) as usize
    }

    /// Returns the word about an existing child.
    #[inline]
    pub fn child(&self, byte: u8) -> Option<Child> {
        self.lasts.get(self.rank(byte)).map(Child)
    }

    /// Adds a new child.
    pub fn add_child(&mut self, byte: u8, child: Child) {
        self.lasts.insert(self.rank(byte), child.0);
        self.children[usize::from(byte / 64)] |= 1 << (byte % 64);
    }

    /// Changes the word about an existing child.
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

    /// Returns the largest child below `byte`.
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

    /// Returns whether there is no child at `byte` or above.
    #[inline]
    pub fn none_from(&self, byte: u8) -> bool {
        let at = usize::from(byte / 64);
        let rest = self.children[at + 1..].iter().fold(0, |all, word| all | word);
        self.children[at] >> (byte % 64) == 0 && rest == 0
    }
}
