//! The sorted order of a leaf's slots, computed by the first scan of a version and used by later
//! ones.
//!
//! # Contract
//! Scans publish an order without the leaf's lock. Its number is the version that it was computed
//! from, plus one. So a reader of that version either finds the right order or finds none.
//! Concurrent scans of one version write the same order.
//!
//! # Fingerprints
//! An order of byte strings comes with a *fingerprint* of each key: eight bits, beginning with the
//! first bit in which the leaf's keys differ. The fingerprint of a bound shows where the bound
//! probably lies, so a scan fetches only the records from there on. The scan compares the bound
//! with the records around that position, because the fingerprint of a key with another prefix
//! means nothing.

use std::ops::Bound;

use ordna_base::key::common_prefix;
use ordna_base::simd::{InstructionSet, LANES};
use ordna_base::sync::atomic::{AtomicU64, Ordering, fence};
use ordna_base::sync::point;
use ordna_base::{Key, Value, order};

use super::{BUCKETS, FOREVER, Leaf, LeafCopy, SLOTS};

/// Index of the line of fingerprints in a leaf of byte strings.
const FINGERPRINTS: usize = BUCKETS;
/// One byte for each position.
type Positions = [u8; order::MOST];

/// The result of [`Leaf::copy_ordered`].
#[derive(Debug, Clone, Copy, Default)]
pub struct OrderedCopy {
    /// Whether the leaf has entries after the last one copied.
    pub more: bool,
    /// Positions between which the lower bound probably lies.
    pub guess: (usize, usize),
}

impl<K: Key + ?Sized, V: Value + ?Sized> Leaf<K, V> {
    /// Copies at most `most` entries in the order of their keys, if that order is published for
    /// `version`. Of integers it copies only those within the lower bound. To be validated.
    #[inline]
    pub fn copy_ordered(
        self,
        version: u64,
        (lower, most): (Bound<&K>, usize),
        simd: InstructionSet,
        copy: &mut LeafCopy<K, V>,
    ) -> Option<OrderedCopy> {
        let used = self.used();
        let count = used.count_ones() as usize;
        let guess = || if K::HEAD_IS_KEY { (0, 0) } else { self.guess(lower, count) };
        let (slots, guess) = self.published_order(version + 1, guess)?;
        let begin = if K::HEAD_IS_KEY { self.below(lower, used, simd) } else { 0 };
        let end = count.min(begin.saturating_add(most));
        // Every position of a published order is below `SLOTS`.
        let slots = slots[begin..end].iter().map(|slot| usize::from(*slot));
        let LeafCopy { keys, words, deadlines, .. } = copy;
        for ((slot, key), word) in slots.clone().zip(keys).zip(words) {
            if K::HEAD_IS_KEY {
                *key = self.keys(slot / LANES).get(slot % LANES);
            }
            *word = self.word(slot);
        }
        *deadlines = self.has_deadlines().then(|| {
            let mut line = Box::new([FOREVER; SLOTS]);
            slots.zip(&mut *line).for_each(|(slot, to)| *to = self.deadline(slot));
            line
        });
        point("tree.leaf.entries_copied");
        (copy.count, copy.next, copy.high_fence) = (end - begin, self.next(), self.high_fence());
        Some(OrderedCopy { more: end < count, guess })
    }

    /// Returns how many integers are outside of the lower bound.
    #[inline]
    fn below(self, lower: Bound<&K>, used: u64, simd: InstructionSet) -> usize {
        let (key, bounded) = match lower {
            Bound::Unbounded => return 0,
            Bound::Included(key) => (key.head().wrapping_sub(1), key.head() > 0),
            Bound::Excluded(key) => (key.head(), true),
        };
        let mut below = 0;
        for bucket in 0..if bounded { BUCKETS } else { 0 } {
            below |= u64::from(simd.at_most(self.keys(bucket), key)) << (bucket * LANES);
        }
        (below & used).count_ones() as usize
    }

    /// Returns the positions of the published order between which the bound probably lies, by the
    /// fingerprints. It may be elsewhere, for example because another order has been published
    /// since.
    pub fn guess(self, lower: Bound<&K>, count: usize) -> (usize, usize) {
        let (Bound::Included(key) | Bound::Excluded(key)) = lower else { return (0, 0) };
        let line = self.line(FINGERPRINTS);
        let fingerprints = load(&line.0[..BUCKETS]);
        let fingerprint = fingerprint(key.tail(), line.get(BUCKETS) as usize);
        let fingerprints = &fingerprints[..count];
        let below = fingerprints.iter().filter(|other| **other < fingerprint).count();
        (below, below + fingerprints.iter().filter(|other| **other == fingerprint).count())
    }

    /// Returns the positions in order of a copy that was read at `version` from the slots `used`.
    /// If no order is published, sorts the copy and publishes its order.
    pub fn order(
        self,
        copy: &LeafCopy<K, V>,
        used: u64,
        version: u64,
        simd: InstructionSet,
    ) -> Positions {
        if let Some((slots, ())) = self.published_order(version + 1, || ()) {
            // The position of a slot is the number of used slots before it.
            return slots.map(|slot| (used & ((1 << slot) - 1)).count_ones() as u8);
        }
        let positions = copy.sorted(simd);
        let mut slots = [0; order::MOST];
        let mut rest = used;
        for slot in slots.iter_mut().take(copy.count) {
            *slot = rest.trailing_zeros() as u8;
            rest &= rest.wrapping_sub(1);
        }
        let ordered = positions.map(|position| slots[usize::from(position) % order::MOST]);
        // No version has the order's number 0.
        self.publish_order(&ordered, version + 1, || {
            if !K::HEAD_IS_KEY {
                self.publish_fingerprints(copy, &positions[..copy.count]);
            }
        });
        positions
    }

    /// Returns whether an order is published for `version`.
    pub fn has_order(self, version: u64) -> bool {
        self.header().order[BUCKETS].load(Ordering::Relaxed) == version + 1
    }

    /// Returns the slots in the order of their keys and the result of `read` on the fingerprints,
    /// if the order with this number is published.
    fn published_order<R>(self, number: u64, read: impl FnOnce() -> R) -> Option<(Positions, R)> {
        let words = &self.header().order;
        if words[BUCKETS].load(Ordering::Acquire) == number {
            let done = (load(&words[..BUCKETS]), read());
            fence(Ordering::Acquire);
            if words[BUCKETS].load(Ordering::Relaxed) == number {
                return Some(done);
            }
        }
        None
    }

    /// Publishes the order of the version `number` − 1, and what `store` stores. Concurrent threads
    /// of one version write the same order. A thread that is too late for its version finds another
    /// number, or is overtaken.
    fn publish_order(self, positions: &Positions, number: u64, store: impl FnOnce()) {
        const BUSY: u64 = u64::MAX;
        let words = &self.header().order;
        let seen = words[BUCKETS].load(Ordering::Relaxed);
        // Versions increase, so an order of a later version is kept.
        if seen == BUSY || seen >= number {
            return;
        }
        let taken =
            words[BUCKETS].compare_exchange(seen, BUSY, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            return;
        }
        // Release: pairs with the fence in `published_order`, so that a reader that sees a new
        // position also sees `BUSY` or a later number.
        fence(Ordering::Release);
        write(&words[..BUCKETS], positions);
        store();
        words[BUCKETS].store(number, Ordering::Release);
    }

    /// Stores the fingerprints of a copy's keys, in this order.
    fn publish_fingerprints(self, copy: &LeafCopy<K, V>, positions: &[u8]) {
        let key = |position: u8| {
            let record = Self::record(copy.words[usize::from(position)]);
            // SAFETY: a copy that was validated under the caller's guard.
            record.map_or(&[][..], |record| unsafe { record.key::<'_>() }.tail())
        };
        let (Some(first), Some(last)) = (positions.first(), positions.last()) else { return };
        let (first, last) = (key(*first), key(*last));
        let shared = common_prefix(first, last);
        let byte = |key: &[u8]| key.get(shared).copied().unwrap_or(0);
        let bit = 8 * shared + (byte(first) ^ byte(last)).leading_zeros() as usize;
        let mut fingerprints = [0; order::MOST];
        for (to, position) in fingerprints.iter_mut().zip(positions) {
            *to = fingerprint(key(*position), bit);
        }
        let line = self.line(FINGERPRINTS);
        write(&line.0[..BUCKETS], &fingerprints);
        line.set(BUCKETS, bit as u64);
    }
}

/// Returns eight bits of a byte string, beginning with `bit`. After its end there are zeroes.
fn fingerprint(key: &[u8], bit: usize) -> u8 {
    let byte = |at: usize| u16::from(key.get(at).copied().unwrap_or(0));
    let (at, shift) = (bit / 8, bit % 8);
    ((byte(at) << 8 | byte(at + 1)) >> (8 - shift)) as u8
}

/// Returns the bytes in these words; the remaining bytes are 0.
fn load(words: &[AtomicU64]) -> Positions {
    let mut positions = [0; order::MOST];
    for (eight, word) in positions.as_chunks_mut().0.iter_mut().zip(words) {
        *eight = word.load(Ordering::Relaxed).to_le_bytes();
    }
    positions
}

/// Stores bytes in words.
fn write(words: &[AtomicU64], positions: &Positions) {
    for (eight, word) in positions.as_chunks().0.iter().zip(words) {
        word.store(u64::from_le_bytes(*eight), Ordering::Relaxed);
    }
}
