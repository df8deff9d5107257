//! Images: undo records of all keys of a range.
//!
//! # Contract
//! Keys that an image lists had these values up to the epoch before its death, the others of its
//! range were absent. Only integers have images. [`UndoLog::push_image`] and [`UndoLog::divide_image`] need
//! the leaf's lock; [`UndoLog::whole_at`] needs what [`UndoLog::at_snapshot`] needs.
//!
//! # Protocol
//! Let *t* be a writer's epoch and *y* the youngest snapshot that does not see it. A leaf that would
//! get more than [`UndoLog::image_after`] records with a death above *y* gets an image of all its keys
//! at *y*, with the death *t*, in their place. No snapshot lives, or will live, from *y* + 1 to
//! *t* - 1, so the image serves every snapshot that those records served. Until *y* ends the
//! leaf needs no further record.
//!
//! # Invariants
//! 1. The range of an image lies within its leaf: a split divides it.
//! 2. The bit [`WHOLE`] of a link says that the image covers the leaf's whole range. Every change of
//!    the range clears the bit in all links of the leaf.
//! 3. No entry of an image has a deadline.
//!
//! # Orders of stores
//! The image comes where the leaf's next record would have come: stored before the leaf's `dead`
//! and the slot. Records that it replaces keep their links, and readers that stand in them their
//! chunks, by their guards.

use super::chunks::{Undo, stripe_of};
use super::states::{OldImage, State};
use super::{IMAGE, Linked, Reading, Scan, UndoLog, WHOLE};
use crate::epoch::{AtomicEpoch, Epoch};
use crate::tree::leaf::{ADDRESS, FOREVER, Leaf, SLOTS, is_inline};
use ordna_base::simd::prefetch;
use ordna_base::sync::atomic::{AtomicU64, Ordering};
use ordna_base::sync::{check, fault, notice, point};
use ordna_base::{Key, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> UndoLog<K, V> {
    /// Calls `found` with the image that is the leaf's state at the snapshot, if the oldest record
    /// above the snapshot is one.
    pub fn whole_at(
        &self,
        leaf: Leaf<K, V>,
        snapshot: Epoch,
        reading: Reading<'_>,
        found: impl FnOnce(OldImage<'_>),
    ) -> bool {
        if !is_inline::<K, V>() {
            return false;
        }
        let (mut rest, mut oldest) = (Scan::of(leaf), None);
        while rest.dead > snapshot {
            if !reading.holds() {
                return false;
            }
            let Some(record) = rest.next_above(snapshot) else { break };
            oldest = Some(record);
        }
        let is_whole = |record: &Linked| check!("undo.image.whole", record.kind & WHOLE != 0);
        let image = oldest.as_ref().filter(|record| is_whole(record)).and_then(Linked::image);
        image.map(found).is_some()
    }

    /// Asks for what a scan at the snapshot reads of the leaf.
    pub fn prefetch(&self, leaf: Leaf<K, V>, snapshot: Epoch) {
        let rest = Scan::of(leaf);
        let Some(first) = Linked::at(rest.next).filter(|_| rest.dead > snapshot) else {
            return leaf.prefetch_whole();
        };
        let is_whole = first.kind & WHOLE != 0;
        if !is_whole {
            leaf.prefetch_whole();
        }
        let bytes = if is_whole { size_of::<Undo>() + 2 * SLOTS * size_of::<u64>() } else { 1 };
        for at in (0..bytes).step_by(64) {
            prefetch(first.at.as_ptr().cast::<u8>().wrapping_add(at));
        }
    }

    /// Puts an image of the leaf at `seen_by` in the place of its records above that, if they are
    /// many. Returns the bytes that this took.
    pub(super) fn push_image(
        &self,
        leaf: Leaf<K, V>,
        dead: Epoch,
        seen_by: Epoch,
    ) -> Option<usize> {
        let has_deadlines = notice!("undo.image.deadlines", leaf.has_deadlines());
        if leaf.header().dead.load(Ordering::Relaxed) <= seen_by || has_deadlines {
            return None;
        }
        let mut after = Scan::of(leaf);
        let mut records = 0;
        while let Some(record) = after.next_above(seen_by) {
            // One of a part of the leaf: since a split or a merge, the rest gets records.
            if record.image().is_some() {
                return None;
            }
            records += 1;
        }
        if records < self.image_after {
            return None;
        }
        let mut above = Scan::of(leaf);
        let above: Vec<Linked> = std::iter::from_fn(|| above.next_above(seen_by)).collect();
        let slots = leaf.image();
        let pairs = slots.keys.iter().copied().zip(slots.words.iter().copied());
        let mut pairs: Vec<(u64, u64)> = pairs.take(slots.count).collect();
        pairs.sort_unstable();
        // The oldest record of a key comes last, and decides.
        for record in above.iter().filter(|_| !fault!("undo.image.folds")) {
            let key = record.get().key.load(Ordering::Relaxed);
            let at = pairs.binary_search_by_key(&key, |(key, _)| *key);
            match (record.state(), at) {
                (State::Present { deadline, .. }, _)
                    if notice!("undo.image.old_deadline", deadline != FOREVER) =>
                {
                    return None;
                }
                (State::Present { word, .. }, Ok(at)) => pairs[at].1 = word,
                (State::Present { word, .. }, Err(at)) => pairs.insert(at, (key, word)),
                (State::Absent, Ok(at)) => _ = pairs.remove(at),
                (State::Absent, Err(_)) => {}
            }
        }
        if notice!("undo.image.fits", pairs.len() > SLOTS) {
            return None;
        }
        if after.dead <= self.horizon() || fault!("undo.image.older") {
            after = Scan::end();
        }
        let (keys, words): (Vec<u64>, Vec<u64>) = pairs.into_iter().unzip();
        let upper = leaf.next().map_or(u64::MAX, |_| leaf.high() - 1);
        let image = OldImage { lower: leaf.anchor_word(), upper, keys: &keys, words: &words };
        let (image, taken) = self.store_image(&image, dead, &after);
        let head = leaf.header().undo.load(Ordering::Relaxed);
        point("undo.image.stored");
        self.link(leaf, head, Linked { kind: IMAGE | WHOLE, ..image }, dead);
        point("undo.image.linked");
        self.drop_replaced(&above);
        Some(taken)
    }

    /// Stores an image in front of a list. Returns it, and the bytes that this took.
    fn store_image(&self, image: &OldImage<'_>, dead: Epoch, after: &Scan) -> (Linked, usize) {
        let record = Undo {
            key: AtomicU64::new(image.lower),
            old: AtomicU64::new(image.upper),
            deadline: AtomicU64::new(image.keys.len() as u64),
            dead: AtomicU64::new(dead.get() << 1 | 1),
            next: AtomicU64::new(after.next & ADDRESS),
            next_dead: AtomicEpoch::new(after.dead),
        };
        let (at, taken) = self.store(record, dead, 0, [image.keys, image.words]);
        (Linked { at, kind: IMAGE }, taken)
    }

    /// The parts of an image below a fence and from it on.
    pub(super) fn divide_image(
        &self,
        record: Linked,
        image: &OldImage<'_>,
        fence: u64,
    ) -> (Option<Linked>, Option<Linked>) {
        if image.upper < fence {
            return (Some(record.cut()), None);
        }
        if image.lower >= fence || fault!("undo.image.divides") {
            return (None, Some(record.cut()));
        }
        let at = image.keys.partition_point(|key| *key < fence);
        let (keys, words) = (image.keys.split_at(at), image.words.split_at(at));
        let half = |half: OldImage<'_>| {
            let (half, taken) = self.store_image(&half, record.dead(), &Scan::end());
            if !fault!("undo.image.pays") {
                self.unpaid.fetch_add(taken, Ordering::Relaxed);
            }
            Some(half)
        };
        let low = OldImage { upper: fence - 1, keys: keys.0, words: words.0, ..*image };
        let high = OldImage { lower: fence, keys: keys.1, words: words.1, ..*image };
        (half(low), half(high))
    }

    /// Counts records that images have replaced.
    pub(super) fn drop_replaced(&self, records: &[Linked]) {
        for record in records.iter().filter(|_| !fault!("undo.image.replaces")) {
            self.stripes[stripe_of(record.at)].unlink(record.at, || 0);
        }
    }
}
