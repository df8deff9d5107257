//! Ordered scans over the latest state or over a snapshot.
//!
//! # Contract
//! A scan reads whole leaves, each at one moment, and calls its visitor between these reads. It
//! returns every key that is present throughout, in order and once, and nothing outside its bounds.
//! It resumes after the last key that it has returned, wherever that key's leaf has moved. A scan
//! leaves its reading section every [`SECTION`] leaves.
//!
//! An ascending scan follows the list. A descending scan asks the search layer for the leaf just
//! below the low fence that it read together with the leaf.

mod count;

use std::borrow::Borrow;
use std::cell::Cell;
use std::cmp::Ordering as Order;
use std::ops::{Bound, ControlFlow, Range};

use crate::epoch::Epoch;
use ordna_base::index::{Direction, is_above, is_below};
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{Obsolete, check, fault, notice, point};
use ordna_base::{Key, Value};

use super::leaf::{FOREVER, Leaf, LeafCopy, LeafEntry, USUAL_KEY, is_inline};
use super::search::LeafAddress;
use super::undo::{LeafReading, OldState};
use super::{RETRIES, Tree};

/// Number of leaves that a scan reads in one reading section: about 500 entries.
pub const SECTION: usize = 12;

/// Number of requested entries above which a scan prefetches the next leaf, which it probably
/// reaches.
const AHEAD: usize = 24;

/// Number of records that are prefetched ahead of the one that the visitor sees.
const RECORDS_AHEAD: usize = 12;

/// The entries of one leaf, in order, in the latest state or at a snapshot.
pub(super) struct ScanBatch<K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) copy: LeafCopy<K, V>,
    pub(super) order: [u8; ordna_base::order::MOST],
    /// The entries at a snapshot, if they differ from the copy.
    pub(super) at_snapshot: Option<Vec<LeafEntry>>,
    /// Whether the entries are those of the latest state.
    pub(super) is_latest: bool,
    /// Whether the copy holds the entries in order and none has a deadline.
    plain: bool,
    /// Length of the scan's bound in bytes; other keys are assumed to be about as long.
    key_len: usize,
    /// Positions between which the scan's lower bound probably lies.
    guess: (usize, usize),
    /// The low fence, for descending scans.
    low_fence: Option<K::Owned>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> ScanBatch<K, V> {
    pub(super) fn empty() -> Self {
        let order = [0; ordna_base::order::MOST];
        Self {
            copy: LeafCopy::empty(),
            order,
            at_snapshot: None,
            is_latest: true,
            plain: false,
            key_len: USUAL_KEY,
            guess: (0, 0),
            low_fence: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.at_snapshot.as_ref().map_or(self.copy.count, Vec::len)
    }

    pub(super) fn entry(&self, at: usize) -> LeafEntry {
        match &self.at_snapshot {
            Some(entries) => entries[at],
            None => self.copy.entry(usize::from(self.order[at])),
        }
    }

    /// Calls `show` with the entries at these positions until it breaks. The caller needs at most
    /// `wanted` entries. Their records are prefetched, so that the cache misses overlap with the
    /// work of `show`.
    #[inline]
    fn try_for_each(
        &self,
        range: Range<usize>,
        wanted: usize,
        mut show: impl FnMut(LeafEntry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if is_inline::<K, V>() && self.plain {
            let (keys, words) = (&self.copy.keys[range.clone()], &self.copy.words[range]);
            let entry = |(key, word): (&u64, &u64)| (*key, *word);
            let mut entries = keys.iter().zip(words).map(entry);
            return entries
                .try_for_each(|(key, word)| show(LeafEntry { key, word, deadline: FOREVER }));
        }
        let end = range.end.min(range.start.saturating_add(wanted)).min(self.copy.count);
        range.into_iter().try_for_each(|at| {
            if let Some(ahead) = self.order[..end].get(at + RECORDS_AHEAD) {
                self.copy.prefetch_records(std::iter::once(*ahead), self.key_len);
            }
            show(self.entry(at))
        })
    }

    /// Returns how many entries are outside of the lower bound.
    fn begin(&self, lower: Bound<&K>) -> usize {
        self.partition_near(self.guess, |key| !is_below(key, lower))
    }

    /// Works like [`ScanBatch::partition`], if the result is probably between these positions.
    fn partition_near(&self, guess: (usize, usize), reached: impl Fn(&K) -> bool) -> usize {
        let reached_at = |at| Leaf::<K, V>::with_key(&self.entry(at), &reached);
        // Entries elsewhere are not read if the guess is right.
        let (low, high) = (guess.0.min(self.len()), guess.1.min(self.len()));
        let right = (high == self.len() || reached_at(high)) && (low == 0 || !reached_at(low - 1));
        let right = check!("tree.scan.checks_guess", right);
        self.partition_of(if right { low..high } else { 0..self.len() }, reached)
    }

    /// Returns how many entries precede the first one for which `reached` holds.
    pub(super) fn partition(&self, reached: impl Fn(&K) -> bool) -> usize {
        self.partition_of(0..self.len(), reached)
    }

    /// Works like [`ScanBatch::partition`], if the result is within these positions.
    fn partition_of(&self, at: Range<usize>, reached: impl Fn(&K) -> bool) -> usize {
        let (mut low, mut high) = (at.start, at.end);
        while low < high {
            let middle = (low + high) / 2;
            let reached = Leaf::<K, V>::with_key(&self.entry(middle), &reached);
            if reached { high = middle } else { low = middle + 1 }
        }
        low
    }
}

/// The part of a leaf that a scan needs.
pub(super) struct LeafRequest<'a, K: ?Sized> {
    pub(super) ascending: bool,
    /// Number of entries needed; a read may copy more.
    pub(super) wanted: usize,
    /// Whether only the first entry within the bounds, in the direction of the scan, is needed. A
    /// read may leave out the others.
    pub(super) only_one: bool,
    /// Whether the scan has read the previous leaf in the same section.
    pub(super) goes_on: bool,
    /// Where the scan begins, unless it continues. Integers with a known order are read from there
    /// on.
    pub(super) lower: Bound<&'a K>,
    /// The upper bound of a descending scan.
    pub(super) upper: Bound<&'a K>,
}

fn compare<K: Key + ?Sized, V: Value + ?Sized>(one: &LeafEntry, other: &LeafEntry) -> Order {
    if K::HEAD_IS_KEY {
        return one.key.cmp(&other.key);
    }
    Leaf::<K, V>::with_key(one, |one: &K| Leaf::<K, V>::with_key(other, |other| one.cmp(other)))
}

/// The bounds and the direction of a scan.
pub struct ScanRequest<'a, K: Key + ?Sized> {
    pub lower: Bound<&'a K>,
    pub upper: Bound<&'a K>,
    pub direction: Direction,
    /// Maximum number of entries that the caller needs; no further ones are prefetched.
    pub limit: usize,
    /// The address that [`Tree::locate_scans`] has returned for the lower bound of an ascending
    /// scan, under a guard that the caller holds.
    pub from: Option<LeafAddress>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Calls `visit` with key, value and deadline of the entries within the bounds, in order, until
    /// it breaks. `section` is called each time the scan enters another reading section. O(log n),
    /// and amortized O(1) for each entry.
    pub fn visit(
        &self,
        snapshot: Option<Epoch>,
        span: &ScanRequest<'_, K>,
        collector: &Collector,
        mut section: impl FnMut(),
        mut visit: impl FnMut(&K, &V, u64) -> ControlFlow<()>,
    ) {
        let owned = |bound: Bound<&K>| bound.map(ToOwned::to_owned);
        let (mut lower, mut upper) = (owned(span.lower), owned(span.upper));
        let ascending = span.direction == Direction::Ascending;
        let mut left = span.limit;
        let mut from = span.from;
        let mut batch = ScanBatch::empty();
        loop {
            let guard = collector.pin();
            section();
            let mut goes_on = false;
            let mut leaf = if let Some(address) = from.take() {
                Self::leaf_at(address)
            } else if ascending {
                self.leaf_of_lower(lower.as_ref().map(Borrow::borrow), &guard)
            } else {
                self.leaf_of_upper(upper.as_ref().map(Borrow::borrow), &guard)
            };
            // The last entry of an ascending scan in this section; the guard keeps its record
            // alive.
            let mut behind: Option<LeafEntry> = None;
            for _ in 0..SECTION {
                let first = lower.as_ref().map(Borrow::borrow);
                let read = Self::with_lower(behind.as_ref(), first, |lower| {
                    let wanted = if left == 0 { usize::MAX } else { left };
                    let upper = upper.as_ref().map(Borrow::borrow);
                    let only_one = left == 1;
                    let part = LeafRequest { ascending, wanted, only_one, goes_on, lower, upper };
                    let more = self.read(leaf, snapshot, &part, &mut batch)?;
                    Ok::<_, Obsolete>((more, if ascending { batch.begin(lower) } else { 0 }))
                });
                let Ok((more, mut begin)) = read else { break };
                goes_on = true;
                point("tree.scan.read");
                let last_key = upper.as_ref().map(Borrow::borrow);
                if !ascending {
                    if !Self::reaches(&batch, last_key) {
                        // The keys below the bound moved to the right before the leaf was read.
                        let Some(next) = batch.copy.next else { break };
                        leaf = next;
                        continue;
                    }
                    begin = batch.partition(|key| !is_below(key, first));
                }
                let end = Self::end(leaf, &batch, last_key);
                let (mut last, wanted) = (None, left);
                let mut show = |entry: LeafEntry| {
                    left = left.saturating_sub(1);
                    last = Some(entry);
                    Leaf::<K, V>::with_key(&entry, |key| {
                        Leaf::<K, V>::with_value(entry.word, |value| {
                            visit(key, value, entry.deadline)
                        })
                    })
                };
                let range = begin..end.max(begin);
                let shown = if ascending {
                    batch.try_for_each(range, wanted, show)
                } else {
                    range.rev().try_for_each(|at| show(batch.entry(at)))
                };
                if shown.is_break() {
                    return;
                }
                if let Some(last) = last.filter(|_| notice!("tree.scan.resumes_behind", true)) {
                    if ascending {
                        behind = Some(last);
                    } else {
                        upper = Bound::Excluded(Leaf::<K, V>::with_key(&last, ToOwned::to_owned));
                    }
                }
                let done = if ascending { end < batch.len() } else { begin > 0 };
                if done {
                    return;
                }
                if more {
                    // Reads the rest of the leaf: after the last entry, or before it in a
                    // descending scan.
                    goes_on = false;
                    continue;
                }
                let next = if ascending {
                    batch.copy.next
                } else if leaf == self.first {
                    None
                } else {
                    Self::lower_fence(leaf, &batch).map(|low_fence| {
                        // Nothing is left in this leaf: continue below it.
                        upper = Bound::Excluded(low_fence.clone());
                        Self::leaf_at(self.search.find(low_fence.borrow(), true, &guard))
                    })
                };
                let Some(next) = next else { return };
                leaf = next;
            }
            if let Some(last) = behind {
                lower = Bound::Excluded(Leaf::<K, V>::with_key(&last, ToOwned::to_owned));
            }
            if ascending {
                // Leaves without entries are passed, too. A low fence that has become lower than
                // the last key leads to keys that were returned already.
                let low_fence = leaf.with_low_fence(|low_fence| low_fence.map(ToOwned::to_owned));
                if let Some(low_fence) = low_fence
                    && !is_below(low_fence.borrow(), lower.as_ref().map(Borrow::borrow))
                {
                    lower = Bound::Included(low_fence);
                }
            }
        }
    }

    /// Calls `f` with the lower bound of the rest of an ascending scan: after the last entry of its
    /// section, or otherwise as given.
    fn with_lower<R>(
        behind: Option<&LeafEntry>,
        lower: Bound<&K>,
        f: impl FnOnce(Bound<&K>) -> R,
    ) -> R {
        match behind {
            Some(last) => Leaf::<K, V>::with_key(last, |last| f(Bound::Excluded(last))),
            None => f(lower),
        }
    }

    /// Returns how many entries of a batch are not above the upper bound. In a leaf within the
    /// bound only the last key is read.
    fn end(leaf: Leaf<K, V>, batch: &ScanBatch<K, V>, upper: Bound<&K>) -> usize {
        let is_above = |key: &K| is_above(key, upper);
        match batch.len().checked_sub(1).map(|last| batch.entry(last)) {
            _ if upper == Bound::Unbounded => batch.len(),
            Some(last) if Leaf::<K, V>::with_key(&last, is_above) => {
                let guess =
                    if K::HEAD_IS_KEY { (0, 0) } else { leaf.guess(upper, batch.copy.count) };
                batch.partition_near(guess, is_above)
            }
            _ => batch.len(),
        }
    }

    pub(super) fn leaf_of_lower(&self, lower: Bound<&K>, guard: &Guard<'_>) -> Leaf<K, V> {
        match lower {
            Bound::Unbounded => self.first,
            Bound::Included(key) | Bound::Excluded(key) => {
                let leaf = Self::leaf_at(self.search.find(key, false, guard));
                leaf.prefetch_whole();
                leaf
            }
        }
    }

    fn leaf_of_upper(&self, upper: Bound<&K>, guard: &Guard<'_>) -> Leaf<K, V> {
        match upper {
            Bound::Included(key) => Self::leaf_at(self.search.find(key, false, guard)),
            Bound::Excluded(key) => Self::leaf_at(self.search.find(key, true, guard)),
            Bound::Unbounded => {
                // The leaf with the largest low fence, and leaves that may follow it.
                let mut leaf = Self::leaf_at(self.search.last(guard));
                while let Some(next) = leaf.next() {
                    leaf = next;
                }
                leaf
            }
        }
    }

    /// Returns the low fence that the leaf had when it was read. It may have become lower than
    /// entries that were on its left at that time.
    fn lower_fence(leaf: Leaf<K, V>, batch: &ScanBatch<K, V>) -> Option<K::Owned> {
        if fault!("tree.scan.low_fence_outside") {
            return leaf.with_low_fence(|low_fence| low_fence.map(ToOwned::to_owned));
        }
        batch.low_fence.clone()
    }

    /// Returns whether the leaf's high fence is at or above the bound of a descending scan.
    fn reaches(batch: &ScanBatch<K, V>, upper: Bound<&K>) -> bool {
        let (Some(next), Bound::Included(key) | Bound::Excluded(key)) = (batch.copy.next, upper)
        else {
            return batch.copy.next.is_none();
        };
        if key.head() != batch.copy.high_fence {
            return key.head() < batch.copy.high_fence;
        }
        // Low fences only become lower: if it is now below the bound, follow the list to the right
        // again.
        next.with_low_fence(|fence| {
            fence.is_some_and(|fence| match upper {
                Bound::Included(key) => key < fence,
                _ => key <= fence,
            })
        })
    }

    /// Returns whether a scan for one entry searches the leaf instead of sorting it. Most scans
    /// search: if writes change the leaf between scans, its order would be used only once. The
    /// other scans sort, so that a leaf that no longer changes soon has an order for all scans.
    fn selects() -> bool {
        /// One of this many scans of a thread sorts.
        const SORTS: u32 = 8;
        thread_local! {
            static SCANS: Cell<u32> = const { Cell::new(0) };
        }
        SCANS.set(SCANS.get().wrapping_add(1));
        !SCANS.get().is_multiple_of(SORTS)
    }

    /// Reads a leaf at one moment. Returns whether it left out entries after those that it read, in
    /// the direction of the scan.
    pub(super) fn read(
        &self,
        leaf: Leaf<K, V>,
        snapshot: Option<Epoch>,
        part: &LeafRequest<'_, K>,
        batch: &mut ScanBatch<K, V>,
    ) -> Result<bool, Obsolete> {
        let lock = &leaf.header().lock;
        let LeafRequest { ascending, wanted, only_one, goes_on, lower, upper } = *part;
        for round in 0.. {
            // A reader whose validation fails too often reads under the lock.
            let held = if round < RETRIES { None } else { Some(lock.lock()?) };
            let version = if held.is_none() { Some(lock.read()?) } else { None };
            if ascending
                && wanted > AHEAD
                && let Some(next) = leaf.next()
            {
                // Its cache misses overlap with those of this leaf.
                match snapshot {
                    None => next.prefetch_whole(),
                    Some(snapshot) => {
                        self.log.prefetch(next, snapshot);
                        if let Some(after) = next.next() {
                            after.prefetch_header();
                        }
                    }
                }
            }
            let reading = LeafReading(version.map(|version| (lock, version)));
            point("tree.scan.begun");
            let ordered = version.filter(|_| ascending && snapshot.is_none()).and_then(|version| {
                // A scan that continues usually begins with the first entry.
                let lower = if goes_on { Bound::Unbounded } else { lower };
                let most = if K::HEAD_IS_KEY || goes_on { wanted } else { usize::MAX };
                let number = version.number();
                leaf.copy_ordered(number, (lower, most), self.simd, &mut batch.copy)
            });
            let at_range_version = snapshot.is_some_and(|snapshot| {
                self.log.whole_at(leaf, snapshot, reading, |old| old.copy_to(&mut batch.copy))
            });
            point("tree.scan.range_version_sought");
            let mut used = 0;
            if at_range_version {
                (batch.copy.next, batch.copy.high_fence) = (leaf.next(), leaf.high_fence());
            } else if ordered.is_none() {
                used = leaf.copy_to(&mut batch.copy);
            }
            batch.low_fence = (!ascending)
                .then(|| leaf.with_low_fence(|low_fence| low_fence.map(ToOwned::to_owned)))
                .flatten();
            let mut old = Vec::new();
            let mut whole = true;
            if let Some(snapshot) = snapshot
                && !at_range_version
                && leaf.header().newest_end.load(Ordering::Acquire) > snapshot
            {
                let slots = &batch.copy.keys[..batch.copy.count];
                whole = self.log.append_above(leaf, snapshot, reading, slots, &mut old);
            }
            point("tree.scan.before_validate");
            let valid = match version {
                Some(version) => check!("tree.scan.validate", lock.validate(version)),
                None => true,
            };
            if let Some(held) = held {
                held.unlock_unchanged();
            }
            if !valid || !whole {
                continue;
            }
            if let Some(version) = version
                && only_one
                && snapshot.is_none()
                && ordered.is_none()
                && !K::HEAD_IS_KEY
                && Self::selects()
                && !leaf.has_order(version.number())
                && batch.copy.keep_outer(ascending, if ascending { lower } else { upper })
            {
                batch.order = ordna_base::order::identity();
                (batch.guess, batch.at_snapshot) = ((0, 0), None);
                (batch.is_latest, batch.plain) = (true, false);
                return Ok(true);
            }
            batch.order = match version {
                _ if at_range_version || ordered.is_some() => ordna_base::order::identity(),
                Some(version) => leaf.order(&batch.copy, used, version.number(), self.simd),
                None => batch.copy.sorted(self.simd),
            };
            batch.guess = ordered.map_or((0, 0), |ordered| ordered.guess);
            if wanted > 1 {
                // Without a known order, the search may read any record.
                let (low, high) = batch.guess;
                let known = ordered.is_some() || goes_on && ascending;
                let end = high.saturating_add(wanted.min(RECORDS_AHEAD));
                let end = batch.copy.count.min(if known { end } else { usize::MAX });
                let order = batch.order.get(low.saturating_sub(1)..end).unwrap_or_default();
                if let Bound::Included(key) | Bound::Excluded(key) = lower {
                    batch.key_len = key.tail().len();
                }
                batch.copy.prefetch_records(order.iter().copied(), batch.key_len);
            }
            batch.at_snapshot = None;
            batch.is_latest =
                old.is_empty() && check!("transaction.validate.range_versions", !at_range_version);
            let is_ordered = at_range_version || ordered.is_some();
            batch.plain = is_ordered && old.is_empty() && batch.copy.deadlines.is_none();
            if !old.is_empty() {
                batch.at_snapshot = Some(Self::merge(batch, old));
            }
            return Ok(ordered.is_some_and(|ordered| ordered.more));
        }
        unreachable!("rounds do not end")
    }

    /// Returns the entries at a snapshot: for each key with undo records the oldest record decides,
    /// and otherwise the slot.
    fn merge(batch: &ScanBatch<K, V>, mut old: Vec<(LeafEntry, OldState)>) -> Vec<LeafEntry> {
        // The records are sorted youngest first, and the sort is stable, so the last one of a key
        // is the oldest.
        old.sort_by(|(one, _), (other, _)| compare::<K, V>(one, other));
        let mut merged = Vec::with_capacity(batch.copy.count + old.len());
        let mut slots = (0..batch.copy.count).map(|at| batch.entry(at)).peekable();
        let mut old = old.into_iter().peekable();
        while let Some((key, mut state)) = old.next() {
            while let Some((_, older)) =
                old.next_if(|(next, _)| compare::<K, V>(next, &key) == Order::Equal)
            {
                state = older;
            }
            while let Some(slot) = slots.next_if(|slot| compare::<K, V>(slot, &key) == Order::Less)
            {
                merged.push(slot);
            }
            slots.next_if(|slot| compare::<K, V>(slot, &key) == Order::Equal);
            if let OldState::Present { word, deadline } = state {
                merged.push(LeafEntry { key: key.key, word, deadline });
            }
        }
        merged.extend(slots);
        merged
    }
}
