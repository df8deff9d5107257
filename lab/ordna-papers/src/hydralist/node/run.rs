//! The part of a scan in one node: entries are copied a few at a time, and memory is prefetched.
//!
//! The contract is that of [`super`]: copied entries count if the reader's token is still valid
//! afterwards.

use std::ops::Bound;

use super::{Changed, MOST, NO_SLOT, Node, NodeSearch, Token};
use crate::hydralist::entry::{NodeEntry, fingerprint};
use ordna_base::index::Direction;
use ordna_base::sync::atomic::Ordering;
use ordna_base::{Key, Value};

/// Number of entries that a scan copies before it passes them on.
pub const CHUNK: usize = 16;

/// A scan through one node: the remaining slots, and the entries that were copied last.
pub struct Run<K: Key + ?Sized, V: Value + ?Sized> {
    /// Slots in the direction of the scan.
    slots: [u8; MOST],
    /// The slots from `next` to `end` have not been copied yet.
    next: usize,
    end: usize,
    entries: [NodeEntry<K, V>; CHUNK],
    len: usize,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Run<K, V> {
    pub fn new() -> Self {
        Self { slots: [0; MOST], next: 0, end: 0, entries: [NodeEntry::EMPTY; CHUNK], len: 0 }
    }

    pub fn entries(&self) -> &[NodeEntry<K, V>] {
        &self.entries[..self.len]
    }

    /// Returns the number of entries of the node that have not been copied yet.
    pub fn left(&self) -> usize {
        self.end - self.next
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, const N: usize> Node<K, V, N> {
    /// Begins to copy the entries from `from` on in the given direction. The contents of the run
    /// are valid if the token is valid afterwards. As long as it is, [`Node::copy_on`] continues.
    pub fn copy(
        &self,
        from: Bound<&K>,
        direction: Direction,
        want: usize,
        leaf: NodeSearch,
        token: Token<'_>,
        run: &mut Run<K, V>,
    ) -> Result<(), Changed> {
        let (order, count) = self.sorted_slots(leaf, token);
        if let Bound::Included(key) | Bound::Excluded(key) = from {
            self.prefetch_from(key, &order[..count], direction, leaf);
        }
        let slot_at = |at: usize| usize::from(order[at]);
        // Returns the number of entries below the bound, or also at it if `with` is set.
        let below = |key: &K, with: bool| {
            let head = key.head();
            // A bound is often an existing key. Then the fingerprint finds its record with a single
            // comparison.
            if let NodeSearch::Fingerprints(_) = leaf
                && let Some((slot, _)) = self.find(key, head, leaf)
                && let Some(at) = order[..count].iter().position(|at| usize::from(*at) == slot)
            {
                return Some(at + usize::from(with));
            }
            self.bisect(count, slot_at, |entry| {
                // SAFETY: `bisect` passes entries from slots that were in use.
                let order = unsafe { entry.compare(head, key) };
                order.is_lt() || with && order.is_eq()
            })
        };
        (run.slots, run.next, run.end) = match direction {
            Direction::Ascending => {
                let start = match from {
                    Bound::Unbounded => 0,
                    Bound::Included(key) => below(key, false).ok_or(Changed)?,
                    Bound::Excluded(key) => below(key, true).ok_or(Changed)?,
                };
                (order, start, count)
            }
            Direction::Descending => {
                let end = match from {
                    Bound::Unbounded => count,
                    Bound::Included(key) => below(key, true).ok_or(Changed)?,
                    Bound::Excluded(key) => below(key, false).ok_or(Changed)?,
                };
                let mut slots = order;
                slots.reverse();
                (slots, MOST - end, MOST)
            }
        };
        self.copy_on(want, run)
    }

    /// Copies the next entries of a run, up to `want`.
    pub fn copy_on(&self, want: usize, run: &mut Run<K, V>) -> Result<(), Changed> {
        let slots = &run.slots[run.next..run.end];
        run.len = slots.len().min(CHUNK).min(want);
        for (place, slot) in run.entries.iter_mut().zip(slots) {
            *place = self.slots.get(usize::from(*slot)).ok_or(Changed)?.load();
        }
        run.next += run.len;
        Ok(())
    }

    /// Prefetches the records with which a scan through the node probably begins, without reading
    /// them.
    #[inline]
    pub fn prefetch_first(&self, direction: Direction) {
        if NodeEntry::<K, V>::INLINE {
            return;
        }
        let order = self.order.load();
        let ask = |slot: &u8| {
            if let Some(slot) = self.slots.get(usize::from(*slot)) {
                slot.load::<K, V>().prefetch();
            }
        };
        match direction {
            Direction::Ascending => order.iter().take(CHUNK).for_each(ask),
            Direction::Descending => {
                let slots = order.iter().rev().filter(|slot| **slot != NO_SLOT);
                slots.take(CHUNK).for_each(ask);
            }
        }
    }

    /// Prefetches the records after a bound that is probably an existing key, together with the
    /// record of the bound itself, which is compared soon.
    #[inline]
    fn prefetch_from(&self, key: &K, order: &[u8], direction: Direction, leaf: NodeSearch) {
        if NodeEntry::<K, V>::INLINE {
            return;
        }
        let NodeSearch::Fingerprints(simd) = leaf else { return };
        let live = self.live.load(Ordering::Relaxed);
        let candidates = live & simd.equal(&self.fingerprints, fingerprint(key, key.head()));
        let is_candidate = |slot: &u8| candidates >> slot.min(&63) & 1 == 1;
        let Some(at) = order.iter().position(is_candidate) else { return };
        let slots = match direction {
            Direction::Ascending => &order[at..order.len().min(at + CHUNK)],
            Direction::Descending => &order[at.saturating_sub(CHUNK)..=at],
        };
        for slot in slots {
            if let Some(slot) = self.slots.get(usize::from(*slot)) {
                slot.load::<K, V>().prefetch();
            }
        }
    }

    /// Prefetches the records of the entries that are copied next.
    #[inline]
    pub fn prefetch_records(&self, run: &Run<K, V>) {
        if !NodeEntry::<K, V>::INLINE {
            for slot in run.slots[run.next..run.end].iter().take(CHUNK) {
                if let Some(slot) = self.slots.get(usize::from(*slot)) {
                    slot.load::<K, V>().prefetch();
                }
            }
        }
    }
}
