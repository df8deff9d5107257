//! How leaves split, shift entries to the right, merge, and lose ranges.
//!
//! # Contract
//! A change of two leaves holds both locks, taken from left to right, until the search layer knows
//! it. Readers that arrive meanwhile wait, or validate in vain. Every change keeps the undo records
//! with the leaf that covers their keys.
//!
//! # Policy
//! A full leaf shifts entries to its right neighbour if a quarter of that is free. Else the two
//! become three: leaves stay fuller than by splits alone, and few changes move much. The last leaf
//! stays full when a key above all others arrives. A leaf that falls below a quarter merges with a
//! neighbour if both fit into three quarters and their undo records are not too many.

use std::borrow::Borrow;
use std::ops::Bound;

use crate::epoch::Epoch;
use ordna_base::index::{is_above, is_below};
use ordna_base::key::common_prefix;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{check, fault, point};
use ordna_base::{Key, Value};

use super::leaf::{Entry, Leaf, LeafCopy, Probe, is_inline};
use super::{Held, Outcome, State, Tree, Turn};

/// Unlinked leaves that wait for the collector at most, roughly: 16 KiB a thread.
const FLUSH: usize = 16;

/// Undo records of a merged leaf at most, for each slot: reads at snapshots pass them all.
const UNDO: usize = 4;

/// Leaves that a range removal drops under one lock of the leaf on their left at most: some 50 µs.
const AT_ONCE: usize = 64;

/// A part of what the removal of a range took.
pub enum Gone<'a, K: Key + ?Sized> {
    Entry(&'a K, Outcome),
    /// All entries of a leaf, without deadlines, and their bytes of the memory limit.
    Leaf {
        entries: usize,
        bytes: usize,
    },
}

/// The shortest anchor above `below` and not above `above`.
pub fn separator<K: Key + ?Sized>(below: &K, above: &K) -> K::Owned {
    if K::HEAD_IS_KEY {
        return above.to_owned();
    }
    let len = common_prefix(below.tail(), above.tail()) + 1;
    above.prefix(len)
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Makes room in a full leaf for a key that it covers.
    pub(super) fn make_room(&self, held: Held<'_, K, V>, probe: &Probe<'_, K>, guard: &Guard<'_>) {
        let Held { leaf: left, lock } = held;
        let Some(right) = left.next() else {
            let image = left.image();
            let entries = self.in_order(left, &image, Self::prefix(left, &image));
            let last = entries.last().expect("a full leaf has entries");
            let anchor = Leaf::<K, V>::with_key(last, |last| {
                (last < probe.key).then(|| separator(last, probe.key))
            });
            match anchor {
                Some(anchor) => self.append(left, anchor.borrow()),
                None => self.split(left, &entries),
            }
            return drop(lock);
        };
        right.prefetch_whole();
        let image = left.image();
        let Ok(right_lock) = Self::header(&right, guard).lock.lock() else {
            unreachable!("a leaf is unlinked under the lock of the leaf on its left")
        };
        let all = image.count + right.count();
        let prefix = Self::prefix(left, &image);
        if right.count() + (self.slots / 4).max(1) <= self.slots && all / 2 < image.count {
            let entries = self.in_order(left, &image, prefix);
            self.shift(left, right, &entries, image.count - all / 2, guard);
        } else {
            // The misses of both leaves' records overlap.
            let right_image = right.image();
            let right_prefix = Self::prefix(right, &right_image);
            let mut entries = self.in_order(left, &image, prefix);
            entries.extend(self.in_order(right, &right_image, right_prefix));
            self.split_two(left, right, &entries, guard);
        }
        drop(right_lock);
        drop(lock);
    }

    /// Bytes that all keys of a locked leaf share: those that its anchor and its fence share. Asks
    /// for its records as far as their order most probably needs.
    fn prefix(leaf: Leaf<K, V>, image: &LeafCopy<K, V>) -> usize {
        if K::HEAD_IS_KEY {
            return 0;
        }
        let shared = leaf.with_anchor(|anchor| {
            let next = leaf.next();
            next.zip(anchor).map_or(0, |(next, anchor)| {
                let fence = |fence: Option<&K>| {
                    fence.map_or(0, |fence| common_prefix(anchor.tail(), fence.tail()))
                };
                next.with_anchor(fence)
            })
        });
        image.prefetch_records(0..image.count as u8, shared + size_of::<u64>());
        shared
    }

    /// The entries of a locked leaf in order, whose keys share a prefix.
    fn in_order(&self, leaf: Leaf<K, V>, image: &LeafCopy<K, V>, prefix: usize) -> Vec<Entry> {
        debug_assert_eq!(leaf.count(), image.count, "the leaf is locked");
        let order = image.sorted_behind(prefix, self.simd);
        let entries: Vec<Entry> =
            order[..image.count].iter().map(|at| image.entry(usize::from(*at))).collect();
        debug_assert!(
            entries.is_sorted_by(|one, other| {
                Leaf::<K, V>::with_key(one, |one| {
                    Leaf::<K, V>::with_key(other, |other| one < other)
                })
            }),
            "the keys of a leaf share its prefix"
        );
        entries
    }

    /// A new last leaf for keys from `anchor` on; the left one stays full.
    fn append(&self, left: Leaf<K, V>, anchor: &K) {
        let right = Leaf::new(Some(anchor), &self.pool);
        self.link(left, right, anchor);
        self.log.divide(left, right, anchor);
        self.search.insert(anchor, right.place());
    }

    /// Puts a new leaf behind a locked one.
    fn link(&self, left: Leaf<K, V>, right: Leaf<K, V>, anchor: &K) {
        self.leaves.fetch_add(1, Ordering::Relaxed);
        debug_assert!(anchor.head() <= left.high(), "an anchor lies within the leaf that is split");
        right.set_next(left.next());
        right.set_high(left.high());
        left.set_next(Some(right));
        left.set_high(anchor.head());
        point("tree.split.linked");
    }

    /// Moves the upper half of a full leaf to a new one.
    fn split(&self, left: Leaf<K, V>, entries: &[Entry]) {
        let (low, high) = entries.split_at(entries.len() / 2);
        let anchor = Self::between(low, high);
        let anchor: &K = anchor.borrow();
        let right = Leaf::new(Some(anchor), &self.pool);
        right.fill(high.iter().copied());
        self.log.divide(left, right, anchor);
        self.link(left, right, anchor);
        left.fill(low.iter().copied());
        self.search.insert(anchor, right.place());
    }

    /// Spreads the entries of two neighbours over three leaves: all that move go to the right.
    fn split_two(&self, left: Leaf<K, V>, right: Leaf<K, V>, entries: &[Entry], guard: &Guard<'_>) {
        let (low, rest) = entries.split_at(entries.len() / 3);
        let (middle, high) = rest.split_at(rest.len() / 2);
        let (low_end, middle_end) = (Self::between(low, middle), Self::between(middle, high));
        let (low_end, middle_end): (&K, &K) = (low_end.borrow(), middle_end.borrow());
        let last = Leaf::new(Some(middle_end), &self.pool);
        last.fill(high.iter().copied());
        // The new leaf may take records of the left one.
        self.log.divide(left, right, low_end);
        self.log.divide(right, last, middle_end);
        self.link(right, last, middle_end);
        right.fill(middle.iter().copied());
        // The new anchor may be the right leaf's former one, or lie below it: that goes first.
        let lowers_first = !fault!("tree.split_two.lowers_first");
        if lowers_first {
            self.lower(left, right, low_end, guard);
        }
        self.search.insert(middle_end, last.place());
        if !lowers_first {
            self.lower(left, right, low_end, guard);
        }
        left.fill(low.iter().copied());
    }

    /// Lowers the anchor of the right one of two locked leaves, in the search layer too.
    fn lower(&self, left: Leaf<K, V>, right: Leaf<K, V>, anchor: &K, guard: &Guard<'_>) {
        point("tree.shift.before_lower");
        right.with_anchor(|old| {
            let old = old.expect("only the first leaf lacks an anchor");
            debug_assert!(anchor <= old, "an anchor never rises");
            self.search.lower(old, anchor, guard);
        });
        let old = right.replace_anchor(anchor);
        left.set_high(anchor.head());
        Self::retire_anchor(old, guard);
    }

    /// Moves the `count` largest entries to the right neighbour.
    fn shift(
        &self,
        left: Leaf<K, V>,
        right: Leaf<K, V>,
        entries: &[Entry],
        count: usize,
        guard: &Guard<'_>,
    ) {
        let (low, high) = entries.split_at(entries.len() - count);
        let anchor = Self::between(low, high);
        let anchor: &K = anchor.borrow();
        for entry in high {
            let done = right.put_entry(*entry);
            debug_assert!(done, "the neighbour has room");
        }
        self.log.divide(left, right, anchor);
        self.lower(left, right, anchor, guard);
        left.fill(low.iter().copied());
    }

    fn retire_anchor(anchor: Option<ordna_base::record::Record<K, u64>>, guard: &Guard<'_>) {
        if let Some(anchor) = anchor {
            #[expect(unsafe_code, reason = "the anchor left its leaf")]
            // SAFETY: taken out under the leaf's lock.
            unsafe {
                anchor.retire(guard)
            };
        }
    }

    /// An anchor between two sorted runs.
    fn between(low: &[Entry], high: &[Entry]) -> K::Owned {
        let (below, above) = (low.last().expect("not empty"), high.first().expect("not empty"));
        Leaf::<K, V>::with_key(below, |below| {
            Leaf::<K, V>::with_key(above, |above| {
                debug_assert!(below < above, "entries of a leaf ascend");
                separator(below, above)
            })
        })
    }

    /// Merges a sparse leaf with its right neighbour, or else with its left one, if they fit.
    pub(super) fn merge_around(&self, leaf: Leaf<K, V>, guard: &Guard<'_>) {
        if self.absorb_next(leaf, guard) || leaf == self.first {
            return;
        }
        let place =
            leaf.with_anchor(|anchor| anchor.map(|anchor| self.search.find(anchor, true, guard)));
        if let Some(place) = place {
            let left = Self::leaf_at(place);
            if left != leaf {
                self.absorb_next(left, guard);
            }
        }
    }

    /// Moves the entries of the right neighbour here and unlinks it, if both fit into three
    /// quarters of a leaf.
    pub(super) fn absorb_next(&self, left: Leaf<K, V>, guard: &Guard<'_>) -> bool {
        let Ok(lock) = Self::header(&left, guard).lock.lock() else { return false };
        let Some(right) = left.next() else {
            lock.unlock_unchanged();
            return false;
        };
        let Ok(right_lock) = Self::header(&right, guard).lock.lock() else {
            unreachable!("a leaf is unlinked under the lock of the leaf on its left")
        };
        let (own, other) = (left.count(), right.count());
        let full = own + other > self.slots * 3 / 4 && own > 0 && other > 0;
        if full || self.log.are_beyond([left, right], UNDO * self.slots) {
            right_lock.unlock_unchanged();
            lock.unlock_unchanged();
            return false;
        }
        let image = right.image();
        for at in 0..image.count {
            let done = left.put_entry(image.entry(at));
            debug_assert!(done, "the leaf has room");
        }
        self.unlink(left, right, guard);
        if fault!("tree.merge.obsolete") {
            drop(right_lock);
        } else {
            right_lock.unlock_obsolete();
        }
        drop(lock);
        self.retire_leaf(right, guard);
        true
    }

    /// Removes the entries within the bounds, a leaf at a time, and calls `each` with what went.
    /// Leaves that become empty go. A leaf within the bounds goes as a whole if no snapshot needs
    /// it. O(log n) and O(1) amortized for each entry; with integers, for each leaf.
    pub fn remove_range(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        turn: &Turn<'_>,
        mut each: impl FnMut(Gone<'_, K>),
    ) {
        let empty = K::Owned::default();
        let mut from: K::Owned = match lower {
            Bound::Included(key) | Bound::Excluded(key) => key.to_owned(),
            Bound::Unbounded => empty,
        };
        loop {
            let Held { leaf, lock } = self.lock(&Probe::new(from.borrow()), None, turn.guard);
            let within = |key: &K| !is_below(key, lower) && !is_above(key, upper);
            self.remove_entries(leaf, within, turn, &mut each);
            if check!("tree.range.drops", turn.seen_by() == Epoch::ZERO) {
                let mut left = AT_ONCE;
                while left > 0 && self.drop_next(leaf, upper, turn, &mut each) {
                    left -= 1;
                }
            }
            let next =
                leaf.next().and_then(|next| next.with_anchor(|at| at.map(ToOwned::to_owned)));
            drop(lock);
            point("tree.range.leaf_done");
            if leaf.count() <= self.slots / 4 {
                self.merge_around(leaf, turn.guard);
            }
            match next {
                Some(next) if !is_above(next.borrow(), upper) => from = next,
                _ => return,
            }
        }
    }

    /// Removes the entries of a locked leaf whose keys are `within`.
    fn remove_entries(
        &self,
        leaf: Leaf<K, V>,
        within: impl Fn(&K) -> bool,
        turn: &Turn<'_>,
        each: &mut impl FnMut(Gone<'_, K>),
    ) {
        let image = leaf.image();
        for at in 0..image.count {
            let entry = image.entry(at);
            Leaf::<K, V>::with_key(&entry, |key| {
                let probe = Probe::new(key);
                let Some(slot) = leaf.find(&probe, self.simd).filter(|_| within(key)) else {
                    return;
                };
                let shrinks = Self::cost_of(entry.word, entry.deadline);
                let undo = self.needs_undo(leaf, &probe, turn);
                let mut taken = 0;
                if undo {
                    let state = State::Present { word: entry.word, deadline: entry.deadline };
                    taken = self.log.push(leaf, &probe, state, turn.epoch, turn.seen_by());
                }
                leaf.clear(slot);
                if !undo {
                    Self::retire(entry.word, turn.guard);
                }
                let before = Some(entry.deadline);
                let undo = (taken, 0);
                each(Gone::Entry(
                    key,
                    Outcome { before, after: None, changed: true, shrinks, undo, word: 0 },
                ));
            });
        }
    }

    /// Unlinks the leaf behind a locked one if it lies below the bound as a whole; no snapshot
    /// needs its entries. Returns whether it did.
    fn drop_next(
        &self,
        left: Leaf<K, V>,
        upper: Bound<&K>,
        turn: &Turn<'_>,
        each: &mut impl FnMut(Gone<'_, K>),
    ) -> bool {
        let Some(right) = left.next() else { return false };
        let Ok(lock) = Self::header(&right, turn.guard).lock.lock() else {
            unreachable!("a leaf is unlinked under the lock of the leaf on its left")
        };
        let below = match (right.next(), upper) {
            (_, Bound::Unbounded) => true,
            (None, _) => false,
            (Some(next), Bound::Included(key) | Bound::Excluded(key)) => {
                next.with_anchor(|fence| fence.is_some_and(|fence| fence <= key))
            }
        };
        if !below || self.log.are_beyond([left, right], UNDO * self.slots) {
            lock.unlock_unchanged();
            return false;
        }
        if is_inline::<K, V>() && !right.has_deadlines() {
            let entries = right.count();
            each(Gone::Leaf { entries, bytes: entries * Leaf::<K, V>::SHARE });
        } else {
            self.remove_entries(right, |_| true, turn, each);
        }
        self.unlink(left, right, turn.guard);
        lock.unlock_obsolete();
        self.retire_leaf(right, turn.guard);
        true
    }

    /// Takes a leaf out of the list and the search layer, whose entries went or are on its left
    /// now. Both are locked.
    fn unlink(&self, left: Leaf<K, V>, right: Leaf<K, V>, guard: &Guard<'_>) {
        self.log.merge(left, right);
        debug_assert!(left.high() <= right.high(), "neighbours ascend");
        left.set_high(right.high());
        left.set_next(right.next());
        point("tree.merge.before_remove");
        right.with_anchor(|anchor| {
            self.search.remove(anchor.expect("only the first leaf lacks an anchor"), guard);
        });
    }

    /// Counts and retires an unlinked leaf.
    fn retire_leaf(&self, leaf: Leaf<K, V>, guard: &Guard<'_>) {
        let leaves = self.leaves.fetch_sub(1, Ordering::Relaxed);
        self.forget_leaf();
        #[expect(unsafe_code, reason = "the leaf is unlinked")]
        // SAFETY: neither the list nor the search layer leads to it any more.
        unsafe {
            guard.retire(leaf.as_retired())
        };
        if leaves.is_multiple_of(FLUSH) {
            guard.flush();
        }
    }
}
