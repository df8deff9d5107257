//! Range versions: undo records of all keys of a range.
//!
//! # Contract
//! The keys that a range version lists had these values up to the epoch before its end epoch; all
//! other keys of its range were absent. Only integers have range versions.
//! [`UndoLog::push_range_version`] and [`UndoLog::divide_range_version`] need the leaf's lock.
//! [`UndoLog::whole_at`] has the requirements of [`UndoLog::at_snapshot`].
//!
//! # Protocol
//! Let *t* be a writer's epoch and *y* the youngest snapshot that does not see it. If a leaf would
//! get more than [`UndoLog::range_after`] records with an end epoch above *y*, a range version of
//! all its keys at *y*, with the end epoch *t*, replaces them. No snapshot from *y* + 1 to *t* - 1
//! exists or can be created, so the range version serves every snapshot that those records served.
//! Until *y* ends, the leaf needs no further record.
//!
//! # Invariants
//! 1. The range of a range version is within its leaf: a split divides it.
//! 2. The bit [`WHOLE`] of a link says that the range version covers the leaf's whole range. Every
//!    change of the range clears the bit in all links of the leaf.
//! 3. No entry of a range version has a deadline.
//!
//! # Orders of stores
//! A range version is stored where the leaf's next record would have been: before the leaf's
//! `newest_end` and the slot. The records that it replaces keep their links, and the guards of
//! readers that are at these records keep their chunks alive.

use super::chunks::{UndoRecord, stripe_of};
use super::states::{OldState, RangeVersion};
use super::{LeafReading, Linked, RANGE, UndoLog, UndoScan, WHOLE};
use crate::epoch::{AtomicEpoch, Epoch};
use crate::tree::leaf::{ADDRESS, FOREVER, Leaf, LeafMut, SLOTS, is_inline};
use ordna_base::simd::prefetch;
use ordna_base::sync::atomic::{AtomicU64, Ordering};
use ordna_base::sync::{check, fault, notice, point};
use ordna_base::{Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> UndoLog<K, V> {
    /// Calls `found` with the range version that is the leaf's state at the snapshot, if the oldest
    /// record above the snapshot is a range version.
    pub fn whole_at(
        &self,
        leaf: Leaf<K, V>,
        snapshot: Epoch,
        reading: LeafReading<'_>,
        found: impl FnOnce(RangeVersion<'_>),
    ) -> bool {
        if !is_inline::<K, V>() {
            return false;
        }
        let (mut rest, mut oldest) = (UndoScan::of(leaf), None);
        while rest.end > snapshot {
            if !reading.holds() {
                return false;
            }
            let Some(record) = rest.next_above(snapshot) else { break };
            oldest = Some(record);
        }
        let is_whole =
            |record: &Linked| check!("undo.range_version.whole", record.kind & WHOLE != 0);
        let range =
            oldest.as_ref().filter(|record| is_whole(record)).and_then(Linked::range_version);
        range.map(found).is_some()
    }

    /// Prefetches what a scan at the snapshot reads of the leaf.
    pub fn prefetch(&self, leaf: Leaf<K, V>, snapshot: Epoch) {
        let rest = UndoScan::of(leaf);
        let Some(first) = Linked::at(rest.next).filter(|_| rest.end > snapshot) else {
            return leaf.prefetch_whole();
        };
        let is_whole = first.kind & WHOLE != 0;
        if !is_whole {
            leaf.prefetch_whole();
        }
        let bytes =
            if is_whole { size_of::<UndoRecord>() + 2 * SLOTS * size_of::<u64>() } else { 1 };
        for at in (0..bytes).step_by(64) {
            prefetch(first.at.as_ptr().cast::<u8>().wrapping_add(at));
        }
    }

    /// Replaces the leaf's records above `seen_by` by a range version of the leaf at `seen_by`, if
    /// there are many. Returns the number of bytes that this took.
    pub(super) fn push_range_version(
        &self,
        leaf: &LeafMut<'_, K, V>,
        end: Epoch,
        seen_by: Epoch,
    ) -> Option<usize> {
        let has_deadlines = notice!("undo.range_version.deadlines", leaf.has_deadlines());
        if leaf.header().newest_end.load(Ordering::Relaxed) <= seen_by || has_deadlines {
            return None;
        }
        let mut after = UndoScan::of(leaf.leaf());
        let mut records = 0;
        while let Some(record) = after.next_above(seen_by) {
            // A range version of a part of the leaf exists after a split or merge; then the rest
            // gets records.
            if record.range_version().is_some() {
                return None;
            }
            records += 1;
        }
        if records < self.range_after {
            return None;
        }
        let mut above = UndoScan::of(leaf.leaf());
        let above: Vec<Linked> = std::iter::from_fn(|| above.next_above(seen_by)).collect();
        let slots = leaf.copy();
        let pairs = slots.keys.iter().copied().zip(slots.words.iter().copied());
        let mut pairs: Vec<(u64, u64)> = pairs.take(slots.count).collect();
        pairs.sort_unstable();
        // The oldest record of a key comes last and decides.
        for record in above.iter().filter(|_| !fault!("undo.range_version.folds")) {
            let key = record.get().key.load(Ordering::Relaxed);
            let at = pairs.binary_search_by_key(&key, |(key, _)| *key);
            match (record.state(), at) {
                (OldState::Present { deadline, .. }, _)
                    if notice!("undo.range_version.old_deadline", deadline != FOREVER) =>
                {
                    return None;
                }
                (OldState::Present { word, .. }, Ok(at)) => pairs[at].1 = word,
                (OldState::Present { word, .. }, Err(at)) => pairs.insert(at, (key, word)),
                (OldState::Absent, Ok(at)) => _ = pairs.remove(at),
                (OldState::Absent, Err(_)) => {}
            }
        }
        if notice!("undo.range_version.fits", pairs.len() > SLOTS) {
            return None;
        }
        if after.end <= self.horizon() || fault!("undo.range_version.older") {
            after = UndoScan::empty();
        }
        let (keys, words): (Vec<u64>, Vec<u64>) = pairs.into_iter().unzip();
        let upper = leaf.next().map_or(u64::MAX, |_| leaf.high_fence() - 1);
        let range =
            RangeVersion { lower: leaf.low_fence_word(), upper, keys: &keys, words: &words };
        let (range, taken) = self.store_range_version(&range, end, &after);
        let head = leaf.header().undo.load(Ordering::Relaxed);
        point("undo.range_version.stored");
        self.link(leaf, head, Linked { kind: RANGE | WHOLE, ..range }, end);
        point("undo.range_version.linked");
        self.drop_replaced(&above);
        Some(taken)
    }

    /// Stores a range version at the front of a list. Returns it and the number of bytes that this
    /// took.
    fn store_range_version(
        &self,
        range: &RangeVersion<'_>,
        end: Epoch,
        after: &UndoScan,
    ) -> (Linked, usize) {
        let record = UndoRecord {
            key: AtomicU64::new(range.lower),
            old: AtomicU64::new(range.upper),
            deadline: AtomicU64::new(range.keys.len() as u64),
            end: AtomicU64::new(end.get() << 1 | 1),
            next: AtomicU64::new(after.next & ADDRESS),
            next_end: AtomicEpoch::new(after.end),
        };
        let (at, taken) = self.store(record, end, 0, [range.keys, range.words]);
        (Linked { at, kind: RANGE }, taken)
    }

    /// Returns the parts of a range version below a fence and from it on.
    pub(super) fn divide_range_version(
        &self,
        record: Linked,
        range: &RangeVersion<'_>,
        fence: u64,
    ) -> (Option<Linked>, Option<Linked>) {
        if range.upper < fence {
            return (Some(record.without_whole()), None);
        }
        if range.lower >= fence || fault!("undo.range_version.divides") {
            return (None, Some(record.without_whole()));
        }
        let at = range.keys.partition_point(|key| *key < fence);
        let (keys, words) = (range.keys.split_at(at), range.words.split_at(at));
        let half = |half: RangeVersion<'_>| {
            let (half, taken) = self.store_range_version(&half, record.end(), &UndoScan::empty());
            if !fault!("undo.range_version.pays") {
                self.unpaid.fetch_add(taken, Ordering::Relaxed);
            }
            Some(half)
        };
        let low = RangeVersion { upper: fence - 1, keys: keys.0, words: words.0, ..*range };
        let high = RangeVersion { lower: fence, keys: keys.1, words: words.1, ..*range };
        (half(low), half(high))
    }

    /// Stops counting records that range versions have replaced.
    pub(super) fn drop_replaced(&self, records: &[Linked]) {
        for record in records.iter().filter(|_| !fault!("undo.range_version.replaces")) {
            self.stripes[stripe_of(record.at)].unlink(record.at, || 0);
        }
    }
}
