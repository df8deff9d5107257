//! The buckets, slots and items of the table, and lookups of one prefix.

#![expect(unsafe_code, reason = "leaves in slots of 48 bits")]

use super::hints::Hints;
use super::item::Item;
use super::leaf::TableLeaf;
use crate::wormhole::hash;
use crate::wormhole::switches::Switches;

/// A change of the leaf list.
#[derive(Debug, Clone, Copy)]
pub struct TableStep<P> {
    /// The leaf that was added or removed.
    pub place: P,
    /// Whether it was added.
    pub came: bool,
    /// The left neighbour at that moment. It exists, because the first leaf is neither added nor
    /// removed.
    pub left: P,
    /// The right neighbour, or `None` for the last leaf.
    pub right: Option<P>,
    /// The leaf before `left`.
    pub outer: Option<P>,
    /// The length at which the search for the key that caused the change ended
    /// (`TableHit::item_length`), as a sample.
    pub ended: usize,
}

pub(super) const SLOTS: usize = 8;
pub(super) const POINTER: u64 = (1 << 48) - 1;
/// Low bit of a slot: it contains the number of an item instead of a leaf.
pub(super) const ITEM: u64 = 1;

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct Bucket(pub(super) [u64; SLOTS]);

impl Bucket {
    #[inline]
    pub(super) fn tagged(&self, tag: u64) -> u32 {
        let mut found = 0;
        for (at, slot) in self.0.iter().enumerate() {
            found |= u32::from(slot >> 48 == tag) << at;
        }
        found
    }

    #[inline]
    pub(super) fn vacant(&self) -> Option<usize> {
        self.0.iter().position(|slot| *slot == 0)
    }
}

/// The table. `P` is the type of leaves.
#[derive(Debug, Clone)]
pub struct Table<P> {
    /// The slot of the empty prefix.
    pub(super) root: u64,
    pub(super) buckets: Vec<Bucket>,
    /// 64 minus the binary logarithm of the number of buckets.
    pub(super) shift: u32,
    pub(super) used: usize,
    pub(super) items: Vec<Item<P>>,
    pub(super) vacant_items: Vec<u32>,
    /// Number of prefixes of each length. The last number is not 0.
    pub(super) prefixes: Vec<u32>,
    pub(super) anchors: usize,
    /// The lengths at which searches begin.
    pub(super) hints: Hints,
    /// Number of the last step that was applied.
    pub(super) version: u64,
    pub(super) switches: Switches,
}

impl<P: TableLeaf> Table<P> {
    pub(super) const LEAST_BUCKETS: usize = 2;

    /// Creates the trie of a single leaf, whose anchor is empty.
    pub fn new(first: P, switches: Switches) -> Self {
        Self {
            root: first.word(),
            buckets: vec![Bucket::default(); Self::LEAST_BUCKETS],
            shift: 64 - Self::LEAST_BUCKETS.ilog2(),
            used: 0,
            items: Vec::new(),
            vacant_items: Vec::new(),
            prefixes: vec![1],
            anchors: 1,
            hints: Hints::default(),
            version: 0,
            switches,
        }
    }

    /// Returns the number of the last step that was applied.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of leaves.
    pub fn leaves(&self) -> usize {
        self.anchors
    }

    /// Returns the last leaf.
    pub fn last(&self) -> P {
        self.item(self.root).map_or_else(|| Self::leaf(self.root), |item| item.last)
    }

    /// Returns the number of allocated bytes.
    pub fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
            + self.items.capacity() * size_of::<Item<P>>()
            + (self.vacant_items.capacity() + self.prefixes.capacity()) * size_of::<u32>()
            + self.hints.bytes()
    }

    #[inline]
    pub(super) fn home(&self, hash: u32) -> usize {
        (hash::spread(hash) >> self.shift) as usize
    }

    /// Returns a tag from 1 to 65,535, because an empty slot has the tag 0.
    #[inline]
    pub(super) fn tag(hash: u32) -> u64 {
        (hash::spread(hash) >> 16 & 0xFFFF).max(1)
    }

    #[inline]
    pub(super) fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }

    #[inline]
    pub(super) fn item(&self, slot: u64) -> Option<&Item<P>> {
        let number = (slot & POINTER) >> 1;
        if slot & ITEM == 0 { None } else { self.items.get(number as usize) }
    }

    #[inline]
    pub(super) fn leaf(slot: u64) -> P {
        // SAFETY: a slot that is not empty and not an item contains the word of a leaf. Leaves are
        // freed only after every table that contains them is out of use (`twin`).
        unsafe { P::from_word(slot & POINTER) }
    }

    /// Returns the first slot with the tag of the hash.
    #[inline]
    pub(super) fn by_tag(&self, hash: u32) -> Option<u64> {
        let tag = Self::tag(hash);
        let mut at = self.home(hash);
        loop {
            let bucket = &self.buckets[at];
            let found = bucket.tagged(tag);
            if found != 0 {
                return Some(bucket.0[found.trailing_zeros() as usize]);
            }
            // A chain is not longer than the number of full buckets, and some bucket has room.
            bucket.vacant().is_none().then_some(())?;
            at = self.after(at);
        }
    }

    /// Returns the bucket and position of the slot of exactly this prefix. Not for the empty
    /// prefix.
    pub(super) fn locate(&self, prefix: &[u8], hash: u32) -> Option<(usize, usize)> {
        let tag = Self::tag(hash);
        let mut at = self.home(hash);
        loop {
            let bucket = &self.buckets[at];
            for (position, slot) in bucket.0.iter().enumerate() {
                let alike = if self.switches.tag_matching { slot >> 48 == tag } else { *slot != 0 };
                if alike && self.stands_for(*slot, prefix) {
                    return Some((at, position));
                }
            }
            bucket.vacant().is_none().then_some(())?;
            at = self.after(at);
        }
    }

    /// Returns the slot of exactly this prefix.
    pub(super) fn exact(&self, prefix: &[u8], hash: u32) -> Option<u64> {
        if prefix.is_empty() {
            return Some(self.root);
        }
        let (bucket, position) = self.locate(prefix, hash)?;
        Some(self.buckets[bucket].0[position])
    }

    pub(super) fn stands_for(&self, slot: u64, prefix: &[u8]) -> bool {
        match self.item(slot) {
            Some(item) => item.length() == prefix.len() && item.first.anchor().starts_with(prefix),
            None => Self::leaf(slot).anchor() == prefix,
        }
    }
}
