//! Applies steps of the list to the table.
//!
//! Adding or removing an anchor affects few items. An anchor shares its longest prefix with a
//! neighbour. So the lengths of the prefixes shared with both neighbours determine, without a
//! search, the items of which it is the only, the first or the last leaf ([`Shared`]).

use super::item::{Child, Item};
use super::leaf::TableLeaf;
use super::storage::{Bucket, ITEM, POINTER, SLOTS, Table, TableStep};
use crate::wormhole::hash;
use ordna_base::key::common_prefix;
use ordna_base::sync::notice;

impl<P: TableLeaf> Table<P> {
    /// Applies a change of the list to the table: step number `version`.
    pub fn apply(&mut self, step: &TableStep<P>, version: u64) {
        self.version = version;
        if step.came {
            self.add(step)
        } else {
            self.drop_anchor(step)
        }
        self.hints.sample(step.place.anchor(), step.ended);
    }

    /// Runs `change` on the items of the prefixes of `key` with these lengths.
    fn for_items(
        &mut self,
        key: &[u8],
        lengths: std::ops::RangeInclusive<usize>,
        mut change: impl FnMut(&mut Item<P>),
    ) {
        if lengths.is_empty() {
            return;
        }
        let (from, to) = (*lengths.start(), *lengths.end());
        let mut hash = hash::extend(hash::EMPTY, &key[..from]);
        for length in from..=to {
            if let Some(slot) = self.exact(&key[..length], hash).filter(|slot| slot & ITEM != 0) {
                change(&mut self.items[((slot & POINTER) >> 1) as usize]);
            }
            if length < to {
                hash = hash::extend(hash, &key[length..=length]);
            }
        }
    }

    /// Sets the last leaf of the items of the prefixes of `anchor` with these lengths, and the
    /// copies of it in their parents.
    fn set_last(&mut self, anchor: &[u8], lengths: std::ops::RangeInclusive<usize>, last: P) {
        if lengths.is_empty() {
            return;
        }
        let (from, to) = (*lengths.start(), *lengths.end());
        self.for_items(anchor, from.saturating_sub(1)..=to, |item| {
            let length = item.length();
            if length >= from {
                item.last = last;
            }
            if notice!("wormhole.table.parent_unaware", length < to) {
                item.set_child(anchor[length], Child::new(last, false));
            }
        });
    }

    /// Returns the item of this prefix. If there is none yet, creates it from the leaf in its slot.
    fn item_of(&mut self, prefix: &[u8], outer: Option<P>) -> &mut Item<P> {
        let hash = hash::extend(hash::EMPTY, prefix);
        let slot = self.exact(prefix, hash).unwrap_or(self.root);
        let number = if slot & ITEM == 0 {
            let leaf = Self::leaf(slot);
            let mut item = Item::new(prefix.len(), hash, leaf, outer);
            item.set_ends(true);
            let number = self.new_item(item);
            self.set(prefix, hash, number << 1 | ITEM);
            number
        } else {
            (slot & POINTER) >> 1
        };
        &mut self.items[number as usize]
    }

    fn new_item(&mut self, item: Item<P>) -> u64 {
        if let Some(number) = self.vacant_items.pop() {
            self.items[number as usize] = item;
            return u64::from(number);
        }
        if self.items.len() == self.items.capacity() {
            // Grows by a quarter instead of doubling, because each table exists twice.
            self.items.reserve_exact(self.items.len() / 4 + 8);
        }
        self.items.push(item);
        self.items.len() as u64 - 1
    }

    /// Replaces the word in the slot of an existing prefix.
    fn set(&mut self, prefix: &[u8], hash: u32, word: u64) {
        if prefix.is_empty() {
            self.root = word;
        } else if let Some((bucket, position)) = self.locate(prefix, hash) {
            self.buckets[bucket].0[position] = Self::tag(hash) << 48 | word;
        }
    }

    fn add(&mut self, step: &TableStep<P>) {
        let new = step.place;
        let anchor = new.anchor();
        let shared = Shared::new(step);
        let depth = shared.depth();
        let item = self.item_of(&anchor[..depth], step.outer);
        let is_leaf = depth + 1 == anchor.len();
        match anchor.get(depth) {
            Some(byte) => item.add_child(*byte, Child::new(new, is_leaf)),
            None => item.set_ends(true),
        }
        self.set_last(anchor, shared.left_only(), new);
        self.for_items(anchor, shared.right_only(), |item| item.first = new);
        let mut hash = hash::extend(hash::EMPTY, &anchor[..depth]);
        for length in depth + 1..=anchor.len() {
            hash = hash::extend(hash, &anchor[length - 1..length]);
            let word = match anchor.get(length) {
                None => new.word(),
                Some(byte) => {
                    let mut item = Item::new(length, hash, new, Some(step.left));
                    item.add_child(*byte, Child::new(new, length + 1 == anchor.len()));
                    self.new_item(item) << 1 | ITEM
                }
            };
            self.put(hash, word);
        }
        if let Some(right) = step.right {
            self.for_items(right.anchor(), shared.beyond(&right), |item| item.before = Some(new));
        }
        if self.prefixes.len() <= anchor.len() {
            self.prefixes.resize(anchor.len() + 1, 0);
        }
        self.prefixes[depth + 1..=anchor.len()].iter_mut().for_each(|count| *count += 1);
        self.anchors += 1;
    }

    fn drop_anchor(&mut self, step: &TableStep<P>) {
        let (gone, left) = (step.place, step.left);
        let anchor = gone.anchor();
        let shared = Shared::new(step);
        let depth = shared.depth();
        let mut hash = hash::extend(hash::EMPTY, &anchor[..depth]);
        for length in depth + 1..=anchor.len() {
            hash = hash::extend(hash, &anchor[length - 1..length]);
            self.take(&anchor[..length], hash);
        }
        self.set_last(anchor, shared.left_only(), left);
        if let Some(right) = step.right {
            self.for_items(anchor, shared.right_only(), |item| item.first = right);
            self.for_items(right.anchor(), shared.beyond(&right), |item| item.before = Some(left));
        }
        let prefix = &anchor[..depth];
        let item = self.item_of(prefix, step.outer);
        match anchor.get(depth) {
            Some(byte) => item.drop_child(*byte),
            None => item.set_ends(false),
        }
        if !item.has_children() {
            // Only its end is left, so the slot can contain the leaf itself.
            let (hash, leaf) = (item.hash, item.first);
            if let Some(slot) = self.exact(prefix, hash) {
                self.vacant_items.push(((slot & POINTER) >> 1) as u32);
            }
            self.set(prefix, hash, leaf.word());
            if let Some(parent) = depth.checked_sub(1) {
                let child = Child::new(leaf, true);
                self.for_items(prefix, parent..=parent, |item| {
                    item.set_child(prefix[parent], child)
                });
            }
        }
        self.anchors -= 1;
        self.prefixes[depth + 1..=anchor.len()].iter_mut().for_each(|count| *count -= 1);
        while self.prefixes.len() > 1 && self.prefixes.last() == Some(&0) {
            self.prefixes.pop();
        }
    }

    /// Stores a word in an empty slot.
    fn put(&mut self, hash: u32, word: u64) {
        // At most five eighths of the slots are used, so that chains of full buckets are short.
        if (self.used + 1) * 8 > self.buckets.len() * SLOTS * 5 {
            self.resize(self.buckets.len() * 2);
        }
        self.used += 1;
        self.place(hash, Self::tag(hash) << 48 | word);
    }

    fn place(&mut self, hash: u32, slot: u64) {
        let mut at = self.home(hash);
        loop {
            if let Some(vacant) = self.buckets[at].vacant() {
                self.buckets[at].0[vacant] = slot;
                return;
            }
            at = self.after(at);
        }
    }

    fn hash_of(&self, slot: u64) -> u32 {
        self.item(slot)
            .map_or_else(|| hash::extend(hash::EMPTY, Self::leaf(slot).anchor()), |item| item.hash)
    }

    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::default(); buckets]);
        self.shift = 64 - buckets.ilog2();
        for slot in old.iter().flat_map(|bucket| bucket.0).filter(|slot| *slot != 0) {
            self.place(self.hash_of(slot), slot);
        }
        self.renew_hints();
    }

    /// Empties the slot of a prefix, and moves back words that did not fit into their bucket.
    fn take(&mut self, prefix: &[u8], hash: u32) {
        let Some((bucket, position)) = self.locate(prefix, hash) else { return };
        let slot = self.buckets[bucket].0[position];
        if slot & ITEM != 0 {
            self.vacant_items.push(((slot & POINTER) >> 1) as u32);
        }
        let mut hole = (bucket, position);
        let mut full = self.buckets[bucket].vacant().is_none();
        self.buckets[bucket].0[position] = 0;
        self.used -= 1;
        let mask = self.buckets.len() - 1;
        let mut at = bucket;
        while full {
            at = self.after(at);
            full = self.buckets[at].vacant().is_none();
            let way = at.wrapping_sub(hole.0) & mask;
            let displaced = (0..SLOTS).find(|position| {
                let slot = self.buckets[at].0[*position];
                slot != 0 && at.wrapping_sub(self.home(self.hash_of(slot))) & mask >= way
            });
            if let Some(position) = displaced {
                self.buckets[hole.0].0[hole.1] = self.buckets[at].0[position];
                self.buckets[at].0[position] = 0;
                hole = (at, position);
            }
        }
        if self.buckets.len() > Self::LEAST_BUCKETS && self.used * 8 < self.buckets.len() * SLOTS {
            self.resize(self.buckets.len() / 2);
            self.pack();
        }
    }

    /// Releases the memory of vacant items, if there are many.
    fn pack(&mut self) {
        if self.vacant_items.len() * 2 <= self.items.len() {
            return;
        }
        let mut packed = Vec::with_capacity((self.items.len() - self.vacant_items.len()) * 5 / 4);
        let mut renumber = |slot: &mut u64| {
            if *slot & ITEM != 0 {
                let number = (*slot & POINTER) >> 1;
                *slot = *slot & !POINTER | (packed.len() as u64) << 1 | ITEM;
                packed.push(self.items[number as usize].clone());
            }
        };
        renumber(&mut self.root);
        self.buckets.iter_mut().flat_map(|bucket| &mut bucket.0).for_each(renumber);
        self.items = packed;
        self.vacant_items = Vec::new();
    }

    /// Compares the table with the list, which has these leaves.
    ///
    /// # Errors
    /// Returns the first difference.
    pub fn check_invariants(&self, leaves: &[P]) -> Result<(), String> {
        let mut slots = 0;
        let mut items = 0;
        let mut prefixes: Vec<u32> = Vec::new();
        for (at, leaf) in leaves.iter().enumerate() {
            let anchor = leaf.anchor();
            let common = |other: Option<&P>| other.map_or(0, |o| common_prefix(anchor, o.anchor()));
            let left = at.checked_sub(1).map(|left| &leaves[left]);
            let from = if at == 0 { 0 } else { common(left) + 1 };
            let below = common(leaves.get(at + 1));
            // The prefixes that no leaf to the left has. The items among them begin with this leaf.
            prefixes.resize(prefixes.len().max(anchor.len() + 1), 0);
            let mut hash = hash::EMPTY;
            let mut hashed = 0;
            for length in from..=anchor.len() {
                prefixes[length] += 1;
                let prefix = &anchor[..length];
                // Each byte is hashed once, and texts are created only for an error, because
                // anchors may have 65,535 bytes.
                hash = hash::extend(hash, &prefix[hashed..]);
                hashed = length;
                let slot = self.exact(prefix, hash);
                let slot = slot.ok_or_else(|| format!("no prefix {prefix:?}"))?;
                slots += usize::from(length > 0);
                let inner = length < anchor.len() || below == length && at + 1 < leaves.len();
                let Some(item) = self.item(slot) else {
                    if inner || Self::leaf(slot) != *leaf {
                        return Err(format!("the slot of {prefix:?} holds another leaf"));
                    }
                    continue;
                };
                items += 1;
                let subtree = leaves[at..].iter().take_while(|l| l.anchor().starts_with(prefix));
                let mut expected = Item::new(length, hash, *leaf, left.copied());
                let mut children: [Option<Child>; 256] = [None; 256];
                for leaf in subtree {
                    expected.last = *leaf;
                    if let Some(byte) = leaf.anchor().get(length) {
                        let is_leaf = leaf.anchor().len() == length + 1;
                        let child = Child::new(*leaf, is_leaf && !expected.has_child(*byte));
                        children[usize::from(*byte)] = Some(child);
                        if !expected.has_child(*byte) {
                            expected.add_child(*byte, child);
                        }
                    }
                }
                let known = (0..=255).filter(|byte| item.has_child(*byte)).all(|byte| {
                    item.child(byte).is_none_or(|child| children[usize::from(byte)] == Some(child))
                });
                let right = inner
                    && known
                    && item.before == left.copied()
                    && item.first == *leaf
                    && item.last == expected.last
                    && item.children == expected.children
                    && item.length() == length
                    && item.hash == hash
                    && item.ends() == (length == anchor.len());
                if !right {
                    return Err(format!("the item of {prefix:?} is wrong"));
                }
            }
        }
        let counted = self.buckets.iter().flat_map(|b| b.0).filter(|slot| *slot != 0).count();
        if (counted, self.used) != (slots, slots) {
            return Err(format!("{slots} prefixes, {counted} slots, {} counted", self.used));
        }
        if self.items.len() - self.vacant_items.len() != items || self.anchors != leaves.len() {
            return Err(format!("{items} items and {} leaves are miscounted", leaves.len()));
        }
        // Searches do not look for prefixes that are longer than these.
        if self.prefixes != prefixes {
            return Err(format!("prefixes of each length: {prefixes:?}, not {:?}", self.prefixes));
        }
        Ok(())
    }
}

/// The lengths of the prefixes that an anchor shares with its neighbours. No other anchor shares a
/// longer one, so they determine which items a step affects, without examining any other.
struct Shared {
    left: usize,
    /// The length shared with the right neighbour plus one, or 0 if there is no such neighbour.
    right_and_one: usize,
}

impl Shared {
    fn new<P: TableLeaf>(step: &TableStep<P>) -> Self {
        let anchor = step.place.anchor();
        Self {
            left: common_prefix(anchor, step.left.anchor()),
            right_and_one: step.right.map_or(0, |r| common_prefix(anchor, r.anchor()) + 1),
        }
    }

    /// Returns the length of the longest prefix that another anchor has, too.
    fn depth(&self) -> usize {
        (self.left + 1).max(self.right_and_one) - 1
    }

    /// Returns the prefixes that have the left neighbour in their subtree, but not the right one.
    fn left_only(&self) -> std::ops::RangeInclusive<usize> {
        self.right_and_one..=self.left
    }

    /// Returns the prefixes that have the right neighbour in their subtree, but not the left one.
    fn right_only(&self) -> std::ops::RangeInclusive<usize> {
        // If `right_and_one` is 0, this is empty, because it starts at 1.
        self.left + 1..=self.right_and_one.saturating_sub(1)
    }

    /// Returns the prefixes of the right neighbour that have neither in their subtree. Their items
    /// begin with the right neighbour.
    fn beyond<P: TableLeaf>(&self, right: &P) -> std::ops::RangeInclusive<usize> {
        self.right_and_one..=right.anchor().len()
    }
}

impl<P: TableLeaf> Table<P> {
    /// Chooses the depth again, and takes a first sample of each leaf that has a slot.
    fn renew_hints(&mut self) {
        let mut hints = std::mem::take(&mut self.hints);
        hints.choose(&self.prefixes, self.anchors);
        let (depth, slots) = (hints.depth, self.buckets.iter().flat_map(|bucket| &bucket.0));
        let leaves = slots.filter(|slot| **slot != 0 && **slot & ITEM == 0);
        for slot in leaves.filter(|_| depth > 0) {
            let anchor = Self::leaf(*slot);
            let anchor = anchor.anchor();
            if anchor.len() >= depth {
                hints.sample(anchor, anchor.len() - 1);
            }
        }
        self.hints = hints;
    }
}
