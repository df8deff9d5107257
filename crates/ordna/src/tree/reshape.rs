//! Changes of the structure: splits, shifts of entries to the right, merges, removals of ranges.
//!
//! # Contract
//! A change of two leaves holds both locks, taken from left to right, until the search layer is
//! updated. Concurrent readers wait or fail to validate. Every change keeps the undo records with
//! the leaf that covers their keys.
//!
//! # Policy
//! A full leaf shifts entries to its right neighbour if a quarter of that leaf is free. Otherwise
//! the two become three. So leaves are fuller than with splits alone, and only few changes move
//! many entries. The last leaf stays full when a key above all others arrives. A leaf that is less
//! than a quarter full merges with a neighbour if both fit into three quarters of a leaf and do not
//! have too many undo records.

use std::borrow::Borrow;
use std::ops::Bound;

use crate::epoch::Epoch;
use ordna_base::index::{is_above, is_below};
use ordna_base::key::common_prefix;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{check, fault, point};
use ordna_base::{Key, Value};

use super::leaf::{Leaf, LeafCopy, LeafEntry, LeafMut, LockedLeaf, Probe, is_inline};
use super::{OldState, Tree, WriteOutcome, WriteScope};

/// Maximum number of unlinked leaves that wait for the collector, per thread: about 16 KiB.
const FLUSH: usize = 16;

/// Maximum number of undo records for each slot of a merged leaf, because reads at snapshots pass
/// all of them.
const UNDO: usize = 4;

/// Maximum number of leaves that a range removal drops while it holds the lock of the leaf on their
/// left: about 50 µs.
const AT_ONCE: usize = 64;

/// A part of the entries that the removal of a range has removed.
pub enum RemovedEntries<'a, K: Key + ?Sized> {
    Entry(&'a K, WriteOutcome),
    /// All entries of a leaf, none with a deadline, and their bytes of the memory limit.
    Leaf {
        entries: usize,
        bytes: usize,
    },
}

/// Returns the shortest low fence above `below` and not above `above`.
pub fn separator<K: Key + ?Sized>(below: &K, above: &K) -> K::Owned {
    if K::HEAD_IS_KEY {
        return above.to_owned();
    }
    let len = common_prefix(below.tail(), above.tail()) + 1;
    above.prefix(len)
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Makes room in a full leaf for a key that it covers.
    pub(super) fn make_room(
        &self,
        held: LockedLeaf<'_, K, V>,
        probe: &Probe<'_, K>,
        guard: &Guard<'_>,
    ) {
        let left = held.leaf();
        let Some(right) = left.next() else {
            let copy = left.copy();
            let entries = self.in_order(left, &copy, Self::prefix(left, &copy));
            let last = entries.last().expect("a full leaf has entries");
            let low_fence = Leaf::<K, V>::with_key(last, |last| {
                (last < probe.key).then(|| separator(last, probe.key))
            });
            match low_fence {
                Some(low_fence) => self.append(&held, low_fence.borrow()),
                None => self.split(&held, &entries),
            }
            return drop(held);
        };
        right.prefetch_whole();
        let copy = left.copy();
        let right_held = Self::lock_right(right, guard);
        let all = copy.count + right.count();
        let prefix = Self::prefix(left, &copy);
        if right.count() + (self.slots / 4).max(1) <= self.slots && all / 2 < copy.count {
            let entries = self.in_order(left, &copy, prefix);
            self.shift(&held, &right_held, &entries, copy.count - all / 2, guard);
        } else {
            // The cache misses of both leaves' records overlap.
            let right_copy = right.copy();
            let right_prefix = Self::prefix(right, &right_copy);
            let mut entries = self.in_order(left, &copy, prefix);
            entries.extend(self.in_order(right, &right_copy, right_prefix));
            self.split_two(&held, &right_held, &entries, guard);
        }
        drop(right_held);
        drop(held);
    }

    /// Returns the number of bytes that all keys of a locked leaf share, because its fences share
    /// them. Prefetches the part of its records that sorting probably needs.
    fn prefix(leaf: Leaf<K, V>, copy: &LeafCopy<K, V>) -> usize {
        if K::HEAD_IS_KEY {
            return 0;
        }
        let shared = leaf.with_low_fence(|low_fence| {
            let next = leaf.next();
            next.zip(low_fence).map_or(0, |(next, low_fence)| {
                let fence = |fence: Option<&K>| {
                    fence.map_or(0, |fence| common_prefix(low_fence.tail(), fence.tail()))
                };
                next.with_low_fence(fence)
            })
        });
        copy.prefetch_records(0..copy.count as u8, shared + size_of::<u64>());
        shared
    }

    /// Returns the entries of a locked leaf in order. Their keys share a prefix.
    fn in_order(&self, leaf: Leaf<K, V>, copy: &LeafCopy<K, V>, prefix: usize) -> Vec<LeafEntry> {
        debug_assert_eq!(leaf.count(), copy.count, "the leaf is locked");
        let order = copy.sorted_behind(prefix, self.simd);
        let entries: Vec<LeafEntry> =
            order[..copy.count].iter().map(|at| copy.entry(usize::from(*at))).collect();
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

    /// Appends a new last leaf for keys from `low_fence` on. The left leaf stays full.
    fn append(&self, left: &LeafMut<'_, K, V>, low_fence: &K) {
        let right = Leaf::create(Some(low_fence), &self.pool);
        // A descending scan may follow the link to the new leaf, which is not locked. So the leaf
        // gets its undo records before the link is stored.
        let links_first = fault!("tree.append.divides_first");
        if !links_first {
            self.log.divide(left, &right, low_fence);
        }
        self.link(left, &right, low_fence);
        if links_first {
            self.log.divide(left, &right, low_fence);
        }
        self.search.insert(low_fence, right.address());
    }

    /// Clears the counted bits of locked leaves. The search layer changes next: their fences change
    /// there, which marks them as stale.
    fn forget_counts(leaves: &[&LeafMut<'_, K, V>]) {
        if !fault!("tree.count.forgets") {
            leaves.iter().for_each(|leaf| leaf.forget_count());
        }
    }

    /// Links a new leaf after a locked one.
    fn link(&self, left: &LeafMut<'_, K, V>, right: &LeafMut<'_, K, V>, low_fence: &K) {
        self.leaves.fetch_add(1, Ordering::Relaxed);
        Self::forget_counts(&[left]);
        debug_assert!(
            low_fence.head() <= left.high_fence(),
            "a low fence lies within the leaf that is split"
        );
        right.set_next(left.next());
        right.set_high_fence(left.high_fence());
        left.set_next(Some(right.leaf()));
        left.set_high_fence(low_fence.head());
        point("tree.split.linked");
    }

    /// Moves the upper half of a full leaf to a new one.
    fn split(&self, left: &LeafMut<'_, K, V>, entries: &[LeafEntry]) {
        let (low, high) = entries.split_at(entries.len() / 2);
        let low_fence = Self::between(low, high);
        let low_fence: &K = low_fence.borrow();
        let right = Leaf::create(Some(low_fence), &self.pool);
        right.fill(high.iter().copied());
        self.log.divide(left, &right, low_fence);
        self.link(left, &right, low_fence);
        left.fill(low.iter().copied());
        self.search.insert(low_fence, right.address());
    }

    /// Distributes the entries of two neighbours over three leaves. Entries move to the right only.
    fn split_two(
        &self,
        left: &LeafMut<'_, K, V>,
        right: &LeafMut<'_, K, V>,
        entries: &[LeafEntry],
        guard: &Guard<'_>,
    ) {
        let (low, rest) = entries.split_at(entries.len() / 3);
        let (middle, high) = rest.split_at(rest.len() / 2);
        let (low_end, middle_end) = (Self::between(low, middle), Self::between(middle, high));
        let (low_end, middle_end): (&K, &K) = (low_end.borrow(), middle_end.borrow());
        let last = Leaf::create(Some(middle_end), &self.pool);
        last.fill(high.iter().copied());
        // The new leaf may take records of the left one.
        self.log.divide(left, right, low_end);
        self.log.divide(right, &last, middle_end);
        self.link(right, &last, middle_end);
        right.fill(middle.iter().copied());
        // The new low fence may be equal to the right leaf's former one or below it, so that fence
        // is removed first.
        let lowers_first = !fault!("tree.split_two.lowers_first");
        if lowers_first {
            self.lower(left, right, low_end, guard);
        }
        self.search.insert(middle_end, last.address());
        if !lowers_first {
            self.lower(left, right, low_end, guard);
        }
        left.fill(low.iter().copied());
    }

    /// Lowers the low fence of the right one of two locked leaves, in the search layer, too.
    fn lower(
        &self,
        left: &LeafMut<'_, K, V>,
        right: &LeafMut<'_, K, V>,
        low_fence: &K,
        guard: &Guard<'_>,
    ) {
        Self::forget_counts(&[left, right]);
        point("tree.shift.before_lower");
        right.with_low_fence(|old| {
            let old = old.expect("only the first leaf lacks a low fence");
            debug_assert!(low_fence <= old, "a low fence never rises");
            self.search.lower(old, low_fence, guard);
        });
        let old = right.replace_low_fence(low_fence);
        left.set_high_fence(low_fence.head());
        Self::retire_fence(old, guard);
    }

    /// Moves the `count` largest entries to the right neighbour.
    fn shift(
        &self,
        left: &LeafMut<'_, K, V>,
        right: &LeafMut<'_, K, V>,
        entries: &[LeafEntry],
        count: usize,
        guard: &Guard<'_>,
    ) {
        let (low, high) = entries.split_at(entries.len() - count);
        let low_fence = Self::between(low, high);
        let low_fence: &K = low_fence.borrow();
        for entry in high {
            let done = right.put_entry(*entry);
            debug_assert!(done, "the neighbour has room");
        }
        self.log.divide(left, right, low_fence);
        self.lower(left, right, low_fence, guard);
        left.fill(low.iter().copied());
    }

    fn retire_fence(low_fence: Option<ordna_base::record::Record<K, u64>>, guard: &Guard<'_>) {
        if let Some(low_fence) = low_fence {
            #[expect(unsafe_code, reason = "the low fence left its leaf")]
            // SAFETY: removed from the leaf under its lock.
            unsafe {
                low_fence.retire(guard)
            };
        }
    }

    /// Returns a low fence between two sorted runs.
    fn between(low: &[LeafEntry], high: &[LeafEntry]) -> K::Owned {
        let (below, above) = (low.last().expect("not empty"), high.first().expect("not empty"));
        Leaf::<K, V>::with_key(below, |below| {
            Leaf::<K, V>::with_key(above, |above| {
                debug_assert!(below < above, "entries of a leaf ascend");
                separator(below, above)
            })
        })
    }

    /// Merges a sparse leaf with its right neighbour, or otherwise with its left one, if they fit.
    pub(super) fn merge_around(&self, leaf: Leaf<K, V>, guard: &Guard<'_>) {
        if self.absorb_next(leaf, guard) || leaf == self.first {
            return;
        }
        let address = leaf.with_low_fence(|low_fence| {
            low_fence.map(|low_fence| self.search.find(low_fence, true, guard))
        });
        if let Some(address) = address {
            let left = Self::leaf_at(address);
            if left != leaf {
                self.absorb_next(left, guard);
            }
        }
    }

    /// Moves the entries of the right neighbour into this leaf and unlinks the neighbour, if both
    /// fit into three quarters of a leaf. Returns whether it did.
    pub(super) fn absorb_next(&self, left: Leaf<K, V>, guard: &Guard<'_>) -> bool {
        let Ok(left_held) = Self::lock_leaf(left, guard) else { return false };
        let Some(right) = left.next() else {
            left_held.unlock_unchanged();
            return false;
        };
        let right_held = Self::lock_right(right, guard);
        let (own, other) = (left.count(), right.count());
        let full = own + other > self.slots * 3 / 4 && own > 0 && other > 0;
        if full || self.log.are_beyond([left, right], UNDO * self.slots) {
            right_held.unlock_unchanged();
            left_held.unlock_unchanged();
            return false;
        }
        let copy = right.copy();
        for at in 0..copy.count {
            let done = left_held.put_entry(copy.entry(at));
            debug_assert!(done, "the leaf has room");
        }
        self.unlink(&left_held, &right_held, guard);
        if fault!("tree.merge.obsolete") {
            drop(right_held);
        } else {
            right_held.unlock_obsolete();
        }
        drop(left_held);
        self.retire_leaf(right, guard);
        true
    }

    /// Removes the entries within the bounds, one leaf at a time, and calls `each` with what was
    /// removed. Leaves that become empty are unlinked. A leaf within the bounds is dropped as a
    /// whole if no snapshot needs it. O(log n), and amortized O(1) for each entry or, with
    /// integers, for each leaf.
    pub fn remove_range(
        &self,
        lower: Bound<&K>,
        upper: Bound<&K>,
        scope: &WriteScope<'_>,
        mut each: impl FnMut(RemovedEntries<'_, K>),
    ) {
        let empty = K::Owned::default();
        let mut from: K::Owned = match lower {
            Bound::Included(key) | Bound::Excluded(key) => key.to_owned(),
            Bound::Unbounded => empty,
        };
        loop {
            let locked = self.lock(&Probe::new(from.borrow()), None, scope.guard);
            let leaf = locked.leaf();
            let within = |key: &K| !is_below(key, lower) && !is_above(key, upper);
            self.remove_entries(&locked, within, scope, &mut each);
            if check!("tree.range.drops", scope.seen_by() == Epoch::ZERO) {
                let mut left = AT_ONCE;
                while left > 0 && self.drop_next(&locked, upper, scope, &mut each) {
                    left -= 1;
                }
            }
            let next =
                leaf.next().and_then(|next| next.with_low_fence(|at| at.map(ToOwned::to_owned)));
            drop(locked);
            point("tree.range.leaf_done");
            if leaf.count() <= self.slots / 4 {
                self.merge_around(leaf, scope.guard);
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
        leaf: &LeafMut<'_, K, V>,
        within: impl Fn(&K) -> bool,
        scope: &WriteScope<'_>,
        each: &mut impl FnMut(RemovedEntries<'_, K>),
    ) {
        let copy = leaf.copy();
        for at in 0..copy.count {
            let entry = copy.entry(at);
            Leaf::<K, V>::with_key(&entry, |key| {
                let probe = Probe::new(key);
                let Some(slot) = leaf.find(&probe, self.simd).filter(|_| within(key)) else {
                    return;
                };
                self.report(leaf, key, scope.guard);
                let shrinks = Self::cost_of(entry.word, entry.deadline);
                let undo = self.needs_undo(leaf.leaf(), &probe, scope);
                let mut taken = 0;
                if undo {
                    let state = OldState::Present { word: entry.word, deadline: entry.deadline };
                    taken = self.log.push(leaf, &probe, state, scope.epoch, scope.seen_by());
                }
                leaf.clear(slot);
                if !undo {
                    Self::retire(entry.word, scope.guard);
                }
                let before = Some(entry.deadline);
                let undo = (taken, 0);
                each(RemovedEntries::Entry(
                    key,
                    WriteOutcome { before, after: None, shrinks, undo, word: 0 },
                ));
            });
        }
    }

    /// Unlinks the leaf after a locked one if all of it is below the bound and no snapshot needs
    /// its entries. Returns whether it did.
    fn drop_next(
        &self,
        left: &LeafMut<'_, K, V>,
        upper: Bound<&K>,
        scope: &WriteScope<'_>,
        each: &mut impl FnMut(RemovedEntries<'_, K>),
    ) -> bool {
        let Some(right) = left.next() else { return false };
        let right_held = Self::lock_right(right, scope.guard);
        let below = match (right.next(), upper) {
            (_, Bound::Unbounded) => true,
            (None, _) => false,
            (Some(next), Bound::Included(key) | Bound::Excluded(key)) => {
                next.with_low_fence(|fence| fence.is_some_and(|fence| fence <= key))
            }
        };
        if !below || self.log.are_beyond([left.leaf(), right], UNDO * self.slots) {
            right_held.unlock_unchanged();
            return false;
        }
        if is_inline::<K, V>() && !right.has_deadlines() {
            let entries = right.count();
            each(RemovedEntries::Leaf { entries, bytes: entries * Leaf::<K, V>::SHARE });
        } else {
            self.remove_entries(&right_held, |_| true, scope, each);
        }
        self.unlink(left, &right_held, scope.guard);
        right_held.unlock_obsolete();
        self.retire_leaf(right, scope.guard);
        true
    }

    /// Removes a leaf, whose entries were removed or moved to the leaf on its left, from the list
    /// and the search layer. Both leaves are locked.
    fn unlink(&self, left: &LeafMut<'_, K, V>, right: &LeafMut<'_, K, V>, guard: &Guard<'_>) {
        self.log.merge(left, right);
        Self::forget_counts(&[left]);
        debug_assert!(left.high_fence() <= right.high_fence(), "neighbours ascend");
        left.set_high_fence(right.high_fence());
        left.set_next(right.next());
        point("tree.merge.before_remove");
        right.with_low_fence(|low_fence| {
            self.search.remove(low_fence.expect("only the first leaf lacks a low fence"), guard);
        });
    }

    /// Counts and retires an unlinked leaf.
    fn retire_leaf(&self, leaf: Leaf<K, V>, guard: &Guard<'_>) {
        let leaves = self.leaves.fetch_sub(1, Ordering::Relaxed);
        self.forget_leaf();
        #[expect(unsafe_code, reason = "the leaf is unlinked")]
        // SAFETY: neither the list nor the search layer leads to the leaf any longer.
        unsafe {
            guard.retire(leaf.as_retired())
        };
        if leaves.is_multiple_of(FLUSH) {
            guard.flush();
        }
    }
}
