//! The search for the longest prefix of a key that is in the table, and for the leaf whose range
//! contains the key.

use super::item::Item;
use super::leaf::TableLeaf;
use super::storage::{ITEM, Table};
use crate::wormhole::hash;
use crate::wormhole::switches::Switches;
use ordna_base::simd::prefetch;

/// The end of a search.
#[derive(Debug, Clone, Copy)]
pub struct TableHit<P> {
    /// The leaf whose range contains the key, if no tag was wrong.
    pub place: P,
    /// A leaf whose anchor must start with the prefix that was matched.
    witness: P,
    /// Length of that prefix.
    matched: usize,
    /// The byte that follows it in the witness' anchor, if the search continued to a sibling.
    sibling: Option<u8>,
    /// Whether the witness' anchor is the prefix itself, followed by the sibling's byte if there is
    /// one.
    whole: bool,
    /// The hash of the prefix.
    hash: u32,
}

impl<P: TableLeaf> TableHit<P> {
    /// Returns the length at which the search should have begun: that of the last item that it has
    /// read.
    #[inline]
    pub fn item_length(&self) -> usize {
        let whole = self.whole && self.sibling.is_none();
        self.matched - usize::from(whole && self.matched > 0)
    }

    /// Returns the leaf whose anchor [`TableHit::agrees`] reads.
    #[inline]
    pub fn witness(&self) -> P {
        self.witness
    }

    /// Creates a hit for a place that was not searched for.
    pub fn of(place: P) -> Self {
        let (matched, hash) = (0, hash::EMPTY);
        Self { place, witness: place, matched, sibling: None, whole: false, hash }
    }

    /// Returns whether the prefix is actually in the trie, so that `place` is right.
    #[inline]
    pub fn agrees(&self, key: &[u8]) -> bool {
        let anchor = self.witness.anchor();
        // A leaf that was found by its hash may have a longer anchor with the same hash.
        (!self.whole || anchor.len() == self.matched + usize::from(self.sibling.is_some()))
            && anchor.get(..self.matched) == Some(&key[..self.matched])
            && self.sibling.is_none_or(|byte| anchor.get(self.matched) == Some(&byte))
    }

    /// Returns the hash of the whole key.
    #[inline]
    pub fn key_hash(&self, key: &[u8], switches: &Switches) -> u32 {
        if switches.incremental_hashing {
            hash::extend(self.hash, &key[self.matched..])
        } else {
            hash::extend(hash::EMPTY, key)
        }
    }
}

/// A search in progress, so that many can be interleaved.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableSearch<P> {
    /// Length of the longest prefix that is known to be in the trie, with its hash and slot.
    matched: usize,
    hash: u32,
    slot: u64,
    /// Length of the shortest prefix that is known to be absent.
    missing: usize,
    /// The next prefix to look for, and its hash: one with a length in between, or the sibling.
    next: usize,
    next_hash: u32,
    pace: Pace,
    pub(super) stage: Stage<P>,
}

/// The way in which the next length is chosen.
#[derive(Debug, Clone, Copy)]
enum Pace {
    First,
    /// All prefixes so far were present: increase the length by this number.
    Longer(usize),
    /// No prefix so far was present: reduce the length by this number.
    Shorter(usize),
    Halves,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Stage<P> {
    /// Look for the prefix of length `next`. The one of length `matched` + 1 is known to exist.
    Length,
    /// The prefix was found, and has an item.
    Item,
    /// Look for this child of that item.
    Sibling(u8),
    /// The child was found, and has an item.
    SiblingItem(u8),
    Done(Option<TableHit<P>>),
}

impl<P: TableLeaf> TableSearch<P> {
    /// Returns where the search ended, or `None` if a tag was found to be wrong.
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

impl<P: TableLeaf> Table<P> {
    /// Returns the leaf whose range contains the key, if [`TableHit::agrees`], or `None` if a tag
    /// was found to be wrong.
    ///
    /// Takes O(log L) slots, where L is the length of the key or of the longest anchor, whichever
    /// is shorter.
    #[inline]
    pub fn search(&self, key: &[u8]) -> Option<TableHit<P>> {
        self.run(key, !self.switches.tag_matching)
    }

    /// Returns the leaf whose range contains the key. Compares every prefix completely.
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

    /// Works like [`Table::search`] for several keys. The searches are interleaved: each reads one
    /// slot or item, and prefetches what its next step needs.
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
    pub(super) fn begin(&self, key: &[u8]) -> TableSearch<P> {
        let mut search = TableSearch {
            matched: 0,
            hash: hash::EMPTY,
            slot: self.root,
            missing: self.prefixes.len().min(key.len() + 1),
            next: 0,
            next_hash: hash::EMPTY,
            pace: if self.switches.hints { Pace::First } else { Pace::Halves },
            stage: Stage::Item,
        };
        self.arrive(&mut search);
        search
    }

    /// Prefetches what the next step needs.
    #[inline(always)]
    fn fetch(&self, search: &TableSearch<P>) {
        match search.stage {
            // Their bucket was prefetched when they were chosen.
            Stage::Length | Stage::Sibling(_) | Stage::Done(_) => {}
            Stage::Item | Stage::SiblingItem(_) => {
                self.item(search.slot).into_iter().for_each(Item::prefetch);
            }
        }
    }

    /// Continues at a prefix that is in the trie, whose slot contains the leaf or an item.
    #[inline(always)]
    fn arrive(&self, search: &mut TableSearch<P>) {
        if search.slot & ITEM == 0 {
            // The prefix is an anchor, and nothing longer starts with it.
            let place = Self::leaf(search.slot);
            search.finish(place, place, None, true);
        } else {
            search.stage = Stage::Item;
            self.fetch(search);
        }
    }

    /// Chooses the next length between the known present and absent ones: the likely one first,
    /// then one that differs by one byte, two, four, … in the same direction. After the first
    /// change of direction, chooses the middle.
    #[inline(always)]
    fn narrow(&self, search: &mut TableSearch<P>, key: &[u8]) {
        let TableSearch { matched, missing, .. } = *search;
        let length = match search.pace {
            Pace::First => {
                let (first, known, hash) = self.hints.first(key);
                let length = first.clamp(matched + 1, missing - 1);
                // So far only the empty prefix is matched, so the hash can be computed from that of
                // the beginning.
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
    pub(super) fn step(&self, search: &mut TableSearch<P>, key: &[u8], comparing: bool) {
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
                    // The matched item has a child there, so a tag was wrong.
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
                        search.finish(place, place, Some(byte), true);
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

    /// Continues from the item of a prefix to the leaf, if it is the longest prefix.
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
                // The longest prefix is longer. If the next length is known to be absent, a tag was
                // wrong.
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
            // Only the first leaf has no predecessor, and its anchor, the empty one, ends the root.
            None => search.stage = Stage::Done(None),
        }
    }
}
