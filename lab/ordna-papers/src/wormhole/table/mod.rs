//! MetaTrieHT: every prefix of every anchor, in one hash table.
//!
//! # What it holds
//! The leaves of the list stand in order, each with an *anchor*: a byte string not above any of its
//! keys and above every key of the leaf before. The anchors form a trie. Each node of the trie is
//! one slot of the table, found by the hash of its prefix: the leaf itself if the prefix is an
//! anchor and nothing longer starts with it, else an `Item`. A slot is a 16-bit tag and 48 bits
//! that tell which; eight slots are a cache line.
//!
//! A search finds the longest prefix of the key in the trie by binary search on its length
//! (trusting tags). From that node it finds, in constant time, the leaf whose range holds the key.
//! It begins where searches of such keys have ended of late (`hints`), not in the middle. It goes
//! on from there by one byte, two, four…: at most twice the steps of the binary search. It looks at
//! the item of each prefix that it finds: if that has no child for the key's next byte it is the
//! longest, whatever lengths are left. Items know the last leaves of their first ten children
//! (`item`): as a rule the search ends at the item, whether the key goes on to a child that is a
//! leaf or belongs before a child that is missing. [`TableHit::agrees`] compares the prefix with an
//! anchor: if a tag has lied, [`Table::search_by_comparing`] starts over.
//!
//! # Thread safety
//! None of its own: a plain structure, changed by its only owner or read by many (`twin`). Changes
//! come as [`TableStep`]s, in the order in which they were made to the list.
//!
//! # Departures from the paper
//! - *Any byte content.* The paper keeps anchors free of prefixes of each other by appending the
//!   smallest token. It lets a leaf grow without bound where keys of zero bytes leave no such
//!   anchor. Here an anchor that is a prefix of others is the *end* of its item, a child before
//!   child 0. So any two keys can be told apart by an anchor, and no leaf is ever fat.
//! - *An item knows the leaf before its first*, so a search never has to go back along the list.
//! - *And the last leaves of its children*, so the sibling's slot and item are mostly not looked
//!   at.
//! - *Items hold no prefix.* All anchors of a subtree start with it: comparing with one of them is
//!   as good, and a table takes O(1) bytes per prefix and not its length.
//!
//! Source: the Wormhole paper, §2.3, §2.4, §3.1.

#![expect(unsafe_code, reason = "leaves in slots of 48 bits, and prefetching")]

mod change;
mod hints;
mod item;
mod leaf;
#[cfg(test)]
mod tests;

use self::hints::Hints;
use self::item::{Child, Item};
pub use self::leaf::TableLeaf;
use super::hash;
use super::switches::Switches;
use ordna_base::simd::prefetch;

/// A change of the leaf list.
#[derive(Debug, Clone, Copy)]
pub struct TableStep<P> {
    /// The leaf that came or went.
    pub place: P,
    /// Whether it came.
    pub came: bool,
    /// Its neighbours at that moment. The first leaf neither comes nor goes, so there is a left
    /// one.
    pub left: P,
    /// None if it is the last leaf.
    pub right: Option<P>,
    /// The leaf before `left`.
    pub outer: Option<P>,
    /// Where the search ended of the key that caused the change ([`TableHit::item_length`]): a sample.
    pub ended: usize,
}

const SLOTS: usize = 8;
const POINTER: u64 = (1 << 48) - 1;
/// Low bit of a slot: it holds the number of an item, not a leaf.
const ITEM: u64 = 1;

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct Bucket([u64; SLOTS]);

impl Bucket {
    #[inline]
    fn tagged(&self, tag: u64) -> u32 {
        let mut found = 0;
        for (at, slot) in self.0.iter().enumerate() {
            found |= u32::from(slot >> 48 == tag) << at;
        }
        found
    }

    #[inline]
    fn vacant(&self) -> Option<usize> {
        self.0.iter().position(|slot| *slot == 0)
    }
}

/// Where a search ended.
#[derive(Debug, Clone, Copy)]
pub struct TableHit<P> {
    /// The leaf whose range holds the key, if no tag has lied.
    pub place: P,
    /// A leaf whose anchor must start with the prefix that was matched.
    witness: P,
    /// Length of that prefix.
    matched: usize,
    /// The byte that follows it in the witness' anchor, where the search went on to a sibling.
    sibling: Option<u8>,
    /// Whether the witness' anchor is the prefix itself.
    whole: bool,
    /// The hash of the prefix.
    hash: u32,
}

impl<P: TableLeaf> TableHit<P> {
    /// The length at which a search should have begun: that of the last item that it has looked at.
    #[inline]
    pub fn item_length(&self) -> usize {
        self.matched - usize::from(self.whole && self.matched > 0)
    }

    /// The leaf whose anchor [`TableHit::agrees`] looks at.
    #[inline]
    pub fn witness(&self) -> P {
        self.witness
    }

    /// A place that was not searched for.
    pub fn of(place: P) -> Self {
        let (matched, hash) = (0, hash::EMPTY);
        Self { place, witness: place, matched, sibling: None, whole: false, hash }
    }

    /// Whether the prefix is truly in the trie, and `place` therefore the right one.
    #[inline]
    pub fn agrees(&self, key: &[u8]) -> bool {
        let anchor = self.witness.anchor();
        (!self.whole || anchor.len() == self.matched)
            && anchor.get(..self.matched) == Some(&key[..self.matched])
            && self.sibling.is_none_or(|byte| anchor.get(self.matched) == Some(&byte))
    }

    /// The hash of the whole key.
    #[inline]
    pub fn key_hash(&self, key: &[u8], switches: &Switches) -> u32 {
        if switches.incremental_hashing {
            hash::extend(self.hash, &key[self.matched..])
        } else {
            hash::extend(hash::EMPTY, key)
        }
    }
}

/// A search under way, so that many can take turns.
#[derive(Debug, Clone, Copy)]
struct TableSearch<P> {
    /// The prefix of this length is in the trie, with this hash and slot.
    matched: usize,
    hash: u32,
    slot: u64,
    /// The prefix of this length is not.
    missing: usize,
    /// The next prefix to look for, and its hash: of one of the lengths between, or the sibling.
    next: usize,
    next_hash: u32,
    pace: Pace,
    stage: Stage<P>,
}

/// How the next length is chosen.
#[derive(Debug, Clone, Copy)]
enum Pace {
    First,
    /// All prefixes looked for were there: so much further.
    Longer(usize),
    /// None was: so much less far.
    Shorter(usize),
    Halves,
}

#[derive(Debug, Clone, Copy)]
enum Stage<P> {
    /// Looks for the prefix of length `next`; that of length `matched` + 1 is known to be there.
    Length,
    /// Has a prefix, an item.
    Item,
    /// Looks for the child `.0` of that item.
    Sibling(u8),
    /// Has it, an item.
    SiblingItem(u8),
    Done(Option<TableHit<P>>),
}

impl<P: TableLeaf> TableSearch<P> {
    /// Where it ended; `None` if a tag was found to lie.
    #[inline]
    fn found(&self) -> Option<TableHit<P>> {
        if let Stage::Done(found) = self.stage { found } else { None }
    }

    #[inline(always)]
    fn finish(&mut self, place: P, witness: P, sibling: Option<u8>, whole: bool) {
        let (matched, hash) = (self.matched, self.hash);
        self.stage = Stage::Done(Some(TableHit { place, witness, matched, sibling, whole, hash }));
    }
}

/// The table. `P` is a leaf.
#[derive(Debug, Clone)]
pub struct Table<P> {
    /// The slot of the empty prefix.
    root: u64,
    buckets: Vec<Bucket>,
    /// 64 minus the binary logarithm of the number of buckets.
    shift: u32,
    used: usize,
    items: Vec<Item<P>>,
    vacant_items: Vec<u32>,
    /// How many prefixes there are of each length; the last is not 0.
    prefixes: Vec<u32>,
    anchors: usize,
    /// Where searches begin.
    hints: Hints,
    /// Number of the last step in it.
    version: u64,
    switches: Switches,
}

impl<P: TableLeaf> Table<P> {
    const LEAST_BUCKETS: usize = 2;

    /// The trie of one leaf, whose anchor is empty.
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

    /// Number of the last step in it.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        self.anchors
    }

    /// The last leaf.
    pub fn last(&self) -> P {
        self.item(self.root).map_or_else(|| Self::leaf(self.root), |item| item.last)
    }

    /// Bytes asked of the allocator.
    pub fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
            + self.items.capacity() * size_of::<Item<P>>()
            + (self.vacant_items.capacity() + self.prefixes.capacity()) * size_of::<u32>()
            + self.hints.bytes()
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        (hash::spread(hash) >> self.shift) as usize
    }

    /// 1 to 65,535: an empty slot has the tag 0.
    #[inline]
    fn tag(hash: u32) -> u64 {
        (hash::spread(hash) >> 16 & 0xFFFF).max(1)
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }

    #[inline]
    fn item(&self, slot: u64) -> Option<&Item<P>> {
        let number = (slot & POINTER) >> 1;
        if slot & ITEM == 0 { None } else { self.items.get(number as usize) }
    }

    #[inline]
    fn leaf(slot: u64) -> P {
        // SAFETY: a slot that is not empty and no item holds the word of a leaf. Leaves are freed
        // only after every table that holds them is out of use (`twin`).
        unsafe { P::from_word(slot & POINTER) }
    }

    /// The first slot with the hash's tag.
    #[inline]
    fn by_tag(&self, hash: u32) -> Option<u64> {
        let tag = Self::tag(hash);
        let mut at = self.home(hash);
        loop {
            let bucket = &self.buckets[at];
            let found = bucket.tagged(tag);
            if found != 0 {
                return Some(bucket.0[found.trailing_zeros() as usize]);
            }
            // No bucket chain is longer than the buckets that are full, and one has room.
            bucket.vacant().is_none().then_some(())?;
            at = self.after(at);
        }
    }

    /// Where the slot of this very prefix is: bucket and position; not for the empty prefix.
    fn locate(&self, prefix: &[u8], hash: u32) -> Option<(usize, usize)> {
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

    /// The slot of this very prefix.
    fn exact(&self, prefix: &[u8], hash: u32) -> Option<u64> {
        if prefix.is_empty() {
            return Some(self.root);
        }
        let (bucket, position) = self.locate(prefix, hash)?;
        Some(self.buckets[bucket].0[position])
    }

    fn stands_for(&self, slot: u64, prefix: &[u8]) -> bool {
        match self.item(slot) {
            Some(item) => item.length() == prefix.len() && item.first.anchor().starts_with(prefix),
            None => Self::leaf(slot).anchor() == prefix,
        }
    }

    /// The leaf whose range holds the key, if [`TableHit::agrees`]; `None` if a tag was found to lie.
    ///
    /// O(log L) slots, where L is the shorter of the key and the longest anchor.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Option<TableHit<P>> {
        self.run(key, !self.switches.tag_matching)
    }

    /// The leaf whose range holds the key; compares every prefix in full.
    #[cold]
    pub fn search_by_comparing(&self, key: &[u8]) -> Option<TableHit<P>> {
        self.run(key, true)
    }

    #[inline]
    fn run(&self, key: &[u8], comparing: bool) -> Option<TableHit<P>> {
        let mut search = self.begin(key);
        loop {
            if let Stage::Done(found) = search.stage {
                return found;
            }
            self.step(&mut search, key, comparing);
        }
    }

    /// As [`Table::search`], for each of some keys at once: they take turns, one slot or item each,
    /// and fetch what their next turn needs.
    pub fn search_many<const N: usize>(
        &self,
        keys: [Option<&[u8]>; N],
    ) -> [Option<TableHit<P>>; N] {
        let mut searches = keys.map(|key| {
            let key = key?;
            Some((key, self.begin(key)))
        });
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for (key, search) in searches.iter_mut().flatten() {
                if !matches!(search.stage, Stage::Done(_)) {
                    self.step(search, key, !self.switches.tag_matching);
                    goes_on = true;
                }
            }
        }
        searches.map(|search| search?.1.found())
    }

    #[inline(always)]
    fn begin(&self, key: &[u8]) -> TableSearch<P> {
        let mut search = TableSearch {
            matched: 0,
            hash: hash::EMPTY,
            slot: self.root,
            missing: self.prefixes.len().min(key.len() + 1),
            next: 0,
            next_hash: hash::EMPTY,
            pace: Pace::First,
            stage: Stage::Item,
        };
        self.arrive(&mut search);
        search
    }

    /// Fetches what the next step needs.
    #[inline(always)]
    fn fetch(&self, search: &TableSearch<P>) {
        match search.stage {
            // Their bucket was asked for when they were chosen.
            Stage::Length | Stage::Sibling(_) | Stage::Done(_) => {}
            Stage::Item | Stage::SiblingItem(_) => {
                self.item(search.slot).into_iter().for_each(Item::prefetch);
            }
        }
    }

    /// At a prefix that is in the trie: its slot holds the leaf, or an item to look at.
    #[inline(always)]
    fn arrive(&self, search: &mut TableSearch<P>) {
        if search.slot & ITEM == 0 {
            // An anchor that nothing longer starts with.
            let place = Self::leaf(search.slot);
            search.finish(place, place, None, true);
        } else {
            search.stage = Stage::Item;
            self.fetch(search);
        }
    }

    /// Chooses the next length to look for, between what is known to be there and what is not: the
    /// likely one, then one byte off, two, four… in the same direction; from the first turn on the
    /// middle.
    #[inline(always)]
    fn narrow(&self, search: &mut TableSearch<P>, key: &[u8]) {
        let TableSearch { matched, missing, .. } = *search;
        let length = match search.pace {
            Pace::First => {
                let (first, known, hash) = self.hints.first(key);
                let length = first.clamp(matched + 1, missing - 1);
                // Only the empty prefix is matched as yet: the hash can go on from that of the
                // beginning.
                if self.switches.incremental_hashing && known <= length {
                    let hash = hash::extend(hash, &key[known..length]);
                    return self.look_for_hash(search, length, hash);
                }
                length
            }
            Pace::Longer(stride) => matched + stride,
            Pace::Shorter(stride) => missing.saturating_sub(stride),
            Pace::Halves => (matched + 1).midpoint(missing),
        };
        self.look_for(search, key, length.clamp(matched + 1, missing - 1));
    }

    #[inline(always)]
    fn look_for(&self, search: &mut TableSearch<P>, key: &[u8], length: usize) {
        let hash = if self.switches.incremental_hashing {
            hash::extend(search.hash, &key[search.matched..length])
        } else {
            hash::extend(hash::EMPTY, &key[..length])
        };
        self.look_for_hash(search, length, hash);
    }

    #[inline(always)]
    fn look_for_hash(&self, search: &mut TableSearch<P>, length: usize, hash: u32) {
        (search.next, search.next_hash) = (length, hash);
        prefetch(&raw const self.buckets[self.home(hash)]);
    }

    #[inline(always)]
    fn step(&self, search: &mut TableSearch<P>, key: &[u8], comparing: bool) {
        match search.stage {
            Stage::Length => {
                let slot = if comparing {
                    self.exact(&key[..search.next], search.next_hash)
                } else {
                    self.by_tag(search.next_hash)
                };
                match slot {
                    Some(slot) => {
                        (search.matched, search.hash) = (search.next, search.next_hash);
                        search.slot = slot;
                        search.pace = match search.pace {
                            Pace::First => Pace::Longer(1),
                            Pace::Longer(stride) => Pace::Longer(stride * 2),
                            Pace::Shorter(_) | Pace::Halves => Pace::Halves,
                        };
                        self.arrive(search);
                    }
                    // The matched item has a child there.
                    None if search.next == search.matched + 1 => search.stage = Stage::Done(None),
                    None => {
                        search.missing = search.next;
                        search.pace = match search.pace {
                            Pace::First => Pace::Shorter(1),
                            Pace::Shorter(stride) => Pace::Shorter(stride * 2),
                            Pace::Longer(_) | Pace::Halves => Pace::Halves,
                        };
                        self.narrow(search, key);
                    }
                }
            }
            Stage::Item => self.turn(search, key),
            Stage::Sibling(byte) => {
                let slot = if comparing {
                    let sibling = [&key[..search.matched], &[byte]].concat();
                    self.exact(&sibling, search.next_hash)
                } else {
                    self.by_tag(search.next_hash)
                };
                match slot {
                    Some(slot) if slot & ITEM == 0 => {
                        let place = Self::leaf(slot);
                        search.finish(place, place, Some(byte), false);
                    }
                    Some(slot) => {
                        search.slot = slot;
                        search.stage = Stage::SiblingItem(byte);
                        self.fetch(search);
                    }
                    None => search.stage = Stage::Done(None),
                }
            }
            Stage::SiblingItem(byte) => match self.item(search.slot) {
                Some(item) if item.length() == search.matched + 1 => {
                    search.finish(item.last, item.last, Some(byte), false);
                }
                _ => search.stage = Stage::Done(None),
            },
            Stage::Done(_) => {}
        }
    }

    /// From the item of a prefix on: to the leaf, if it is the longest prefix.
    #[inline(always)]
    fn turn(&self, search: &mut TableSearch<P>, key: &[u8]) {
        let item = self.item(search.slot).filter(|item| item.length() == search.matched);
        let Some(item) = item else {
            search.stage = Stage::Done(None);
            return;
        };
        let missing = key.get(search.matched).copied();
        if let Some(byte) = missing {
            if item.has_child(byte) {
                // The longest prefix is longer; unless that is known to be missing: a tag has lied.
                if search.missing <= search.matched + 1 {
                    search.stage = Stage::Done(None);
                } else if let Some(child) = item.child(byte).filter(|child| child.is_leaf()) {
                    search.matched += 1;
                    search.hash = hash::extend(search.hash, &[byte]);
                    let place = Self::leaf(child.last());
                    search.finish(place, place, None, true);
                } else {
                    search.stage = Stage::Length;
                    self.narrow(search, key);
                }
                return;
            }
            if item.none_from(byte) {
                search.finish(item.last, item.last, None, false);
                return;
            }
            if let Some(sibling) = item.child_below(byte) {
                if let Some(child) = item.child(sibling) {
                    let place = Self::leaf(child.last());
                    search.finish(place, place, Some(sibling), false);
                    return;
                }
                search.next_hash = hash::extend(search.hash, &[sibling]);
                prefetch(&raw const self.buckets[self.home(search.next_hash)]);
                search.stage = Stage::Sibling(sibling);
                return;
            }
        }
        match item.before {
            _ if item.ends() => search.finish(item.first, item.first, None, false),
            Some(before) => search.finish(before, item.first, None, false),
            // Only the first leaf has none before it, and its anchor, the empty one, ends the root.
            None => search.stage = Stage::Done(None),
        }
    }
}
