//! Ordered scans over the latest state or a snapshot's.
//!
//! # Contract
//! A scan reads whole leaves, each at one moment, and calls its visitor between the reads, outside
//! of them. It returns in order and once every key that is present throughout, and nothing outside
//! its bounds. It resumes behind the last key that it has returned, wherever that key's leaf went.
//! A scan leaves its reading section every [`SECTION`] leaves.
//!
//! Upwards it follows the list. Downwards it asks the search layer for the leaf just below the
//! anchor that it read together with the leaf.

mod count;

use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::ops::{Bound, ControlFlow, Range};

use crate::epoch::Epoch;
use ordna_base::index::{Direction, is_above, is_below};
use ordna_base::reclaim::{Collector, Guard};
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{Obsolete, check, fault, notice, point};
use ordna_base::{Key, Value};

use super::leaf::{Entry, FOREVER, Leaf, LeafCopy, USUAL_KEY, is_inline};
use super::search::LeafAddress;
use super::undo::{Reading, State};
use super::{RETRIES, Tree};

/// Leaves that a scan reads in one reading section: some 500 entries.
pub const SECTION: usize = 12;

/// Scans that want more entries than this fetch the next leaf ahead: they mostly reach it.
const AHEAD: usize = 24;

/// Records that are fetched ahead of the one that the visitor sees.
const RECORDS_AHEAD: usize = 12;

/// The entries of one leaf, in order, as of a view.
pub(super) struct Stretch<K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) image: LeafCopy<K, V>,
    pub(super) order: [u8; ordna_base::order::MOST],
    /// The entries at a snapshot, where they differ from the image.
    pub(super) at_snapshot: Option<Vec<Entry>>,
    /// Whether the image holds the entries in order, none with a deadline.
    plain: bool,
    /// Bytes of the scan's bound: other keys are about as long.
    key_len: usize,
    /// Where the scan's lower bound lies, most probably.
    guess: (usize, usize),
    /// The anchor, for scans downwards.
    anchor: Option<K::Owned>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Stretch<K, V> {
    pub(super) fn empty() -> Self {
        let order = [0; ordna_base::order::MOST];
        Self {
            image: LeafCopy::empty(),
            order,
            at_snapshot: None,
            plain: false,
            key_len: USUAL_KEY,
            guess: (0, 0),
            anchor: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.at_snapshot.as_ref().map_or(self.image.count, Vec::len)
    }

    pub(super) fn entry(&self, at: usize) -> Entry {
        match &self.at_snapshot {
            Some(entries) => entries[at],
            None => self.image.entry(usize::from(self.order[at])),
        }
    }

    /// Calls `show` with the entries at these positions until it breaks. The caller wants at most
    /// `wanted`: their records are fetched ahead, so their misses overlap with what `show` does.
    #[inline]
    fn try_for_each(
        &self,
        range: Range<usize>,
        wanted: usize,
        mut show: impl FnMut(Entry) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if is_inline::<K, V>() && self.plain {
            let (keys, words) = (&self.image.keys[range.clone()], &self.image.words[range]);
            let entry = |(key, word): (&u64, &u64)| (*key, *word);
            let mut entries = keys.iter().zip(words).map(entry);
            return entries
                .try_for_each(|(key, word)| show(Entry { key, word, deadline: FOREVER }));
        }
        let end = range.end.min(range.start.saturating_add(wanted)).min(self.image.count);
        range.into_iter().try_for_each(|at| {
            if let Some(ahead) = self.order[..end].get(at + RECORDS_AHEAD) {
                self.image.prefetch_records(std::iter::once(*ahead), self.key_len);
            }
            show(self.entry(at))
        })
    }

    /// How many entries are outside of the lower bound.
    fn begin(&self, lower: Bound<&K>) -> usize {
        let is_within = |key: &K| !is_below(key, lower);
        let is_within_at = |at| Leaf::<K, V>::with_key(&self.entry(at), is_within);
        // Entries elsewhere are not read if the guess is right.
        let (low, high) = (self.guess.0.min(self.len()), self.guess.1.min(self.len()));
        let right =
            (high == self.len() || is_within_at(high)) && (low == 0 || !is_within_at(low - 1));
        let right = check!("tree.scan.checks_guess", right);
        self.partition_of(if right { low..high } else { 0..self.len() }, is_within)
    }

    /// How many entries come before the first for which `reached` holds.
    pub(super) fn partition(&self, reached: impl Fn(&K) -> bool) -> usize {
        self.partition_of(0..self.len(), reached)
    }

    /// [`Stretch::partition`] if the result lies within these positions.
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

/// What a scan wants of a leaf.
pub(super) struct Part<'a, K: ?Sized> {
    pub(super) ascending: bool,
    /// Entries wanted; a read may copy more.
    pub(super) wanted: usize,
    /// The scan has read the leaf before this one in the same section.
    pub(super) goes_on: bool,
    /// Where the scan begins, unless it goes on. Integers of a known order are read from there on.
    pub(super) lower: Bound<&'a K>,
}

fn compare<K: Key + ?Sized, V: Value + ?Sized>(one: &Entry, other: &Entry) -> Order {
    if K::HEAD_IS_KEY {
        return one.key.cmp(&other.key);
    }
    Leaf::<K, V>::with_key(one, |one: &K| Leaf::<K, V>::with_key(other, |other| one.cmp(other)))
}

/// Where a scan stands, and how far it may go.
pub struct Span<'a, K: Key + ?Sized> {
    pub lower: Bound<&'a K>,
    pub upper: Bound<&'a K>,
    pub direction: Direction,
    /// Entries that the caller wants at most: what is beyond is not fetched ahead.
    pub limit: usize,
    /// The place that [`Tree::approach_scans`] told of the lower bound of a scan upwards, under a
    /// guard that the caller holds.
    pub from: Option<LeafAddress>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Calls `visit` with key, value and deadline of the entries of the span, in order, until it
    /// breaks. `section` is told each time the scan enters another reading section. O(log n), and
    /// O(1) amortized for each entry.
    pub fn visit(
        &self,
        snapshot: Option<Epoch>,
        span: &Span<'_, K>,
        collector: &Collector,
        mut section: impl FnMut(),
        mut visit: impl FnMut(&K, &V, u64) -> ControlFlow<()>,
    ) {
        let owned = |bound: Bound<&K>| bound.map(ToOwned::to_owned);
        let (mut lower, mut upper) = (owned(span.lower), owned(span.upper));
        let ascending = span.direction == Direction::Ascending;
        let mut left = span.limit;
        let mut from = span.from;
        let mut stretch = Stretch::empty();
        loop {
            let guard = collector.pin();
            section();
            let mut goes_on = false;
            let mut leaf = if let Some(place) = from.take() {
                Self::leaf_at(place)
            } else if ascending {
                self.leaf_of_lower(lower.as_ref().map(Borrow::borrow), &guard)
            } else {
                self.leaf_of_upper(upper.as_ref().map(Borrow::borrow), &guard)
            };
            // The last entry of an ascending scan in this section; the guard keeps its record.
            let mut behind: Option<Entry> = None;
            for _ in 0..SECTION {
                let first = lower.as_ref().map(Borrow::borrow);
                let read = Self::with_lower(behind.as_ref(), first, |lower| {
                    let wanted = if left == 0 { usize::MAX } else { left };
                    let part = Part { ascending, wanted, goes_on, lower };
                    let more = self.read(leaf, snapshot, &part, &mut stretch)?;
                    Ok::<_, Obsolete>((more, if ascending { stretch.begin(lower) } else { 0 }))
                });
                let Ok((more, mut begin)) = read else { break };
                goes_on = true;
                point("tree.scan.read");
                let last_key = upper.as_ref().map(Borrow::borrow);
                if !ascending {
                    if !Self::reaches(&stretch, last_key) {
                        // Keys below the bound went to the right before the leaf was read.
                        let Some(next) = stretch.image.next else { break };
                        leaf = next;
                        continue;
                    }
                    begin = stretch.partition(|key| !is_below(key, first));
                }
                let end = match last_key {
                    Bound::Unbounded => stretch.len(),
                    _ => stretch.partition(|key| is_above(key, last_key)),
                };
                let (mut last, wanted) = (None, left);
                let mut show = |entry: Entry| {
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
                    stretch.try_for_each(range, wanted, show)
                } else {
                    range.rev().try_for_each(|at| show(stretch.entry(at)))
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
                let done = if ascending { end < stretch.len() } else { begin > 0 };
                if done {
                    return;
                }
                if more {
                    // The rest of the leaf: read from behind the last entry on.
                    goes_on = false;
                    continue;
                }
                let next = if ascending {
                    stretch.image.next
                } else if leaf == self.first {
                    None
                } else {
                    Self::lower_fence(leaf, &stretch).map(|anchor| {
                        // Nothing of this leaf is left: go on below it.
                        upper = Bound::Excluded(anchor.clone());
                        Self::leaf_at(self.search.find(anchor.borrow(), true, &guard))
                    })
                };
                let Some(next) = next else { return };
                leaf = next;
            }
            if let Some(last) = behind {
                lower = Bound::Excluded(Leaf::<K, V>::with_key(&last, ToOwned::to_owned));
            }
            if ascending {
                // Leaves without entries are passed too. An anchor that has sunk below the last
                // key leads to keys that were returned already.
                let anchor = leaf.with_anchor(|anchor| anchor.map(ToOwned::to_owned));
                if let Some(anchor) = anchor
                    && !is_below(anchor.borrow(), lower.as_ref().map(Borrow::borrow))
                {
                    lower = Bound::Included(anchor);
                }
            }
        }
    }

    /// Calls `f` with the lower bound of the rest of a scan upwards: behind the last entry of its
    /// section, else as given.
    fn with_lower<R>(
        behind: Option<&Entry>,
        lower: Bound<&K>,
        f: impl FnOnce(Bound<&K>) -> R,
    ) -> R {
        match behind {
            Some(last) => Leaf::<K, V>::with_key(last, |last| f(Bound::Excluded(last))),
            None => f(lower),
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
                // The largest anchor, and what may follow it.
                let mut leaf = Self::leaf_at(self.search.last(guard));
                while let Some(next) = leaf.next() {
                    leaf = next;
                }
                leaf
            }
        }
    }

    /// The anchor that the leaf had when it was read: it may have sunk since, below entries that
    /// were on the left then.
    fn lower_fence(leaf: Leaf<K, V>, stretch: &Stretch<K, V>) -> Option<K::Owned> {
        if fault!("tree.scan.anchor_outside") {
            return leaf.with_anchor(|anchor| anchor.map(ToOwned::to_owned));
        }
        stretch.anchor.clone()
    }

    /// Whether the leaf's upper fence is at or above the bound of a scan downwards.
    fn reaches(stretch: &Stretch<K, V>, upper: Bound<&K>) -> bool {
        let (Some(next), Bound::Included(key) | Bound::Excluded(key)) = (stretch.image.next, upper)
        else {
            return stretch.image.next.is_none();
        };
        if key.head() != stretch.image.high {
            return key.head() < stretch.image.high;
        }
        // Anchors only sink: a fence that has sunk below the bound leads to the right once more.
        next.with_anchor(|fence| {
            fence.is_some_and(|fence| match upper {
                Bound::Included(key) => key < fence,
                _ => key <= fence,
            })
        })
    }

    /// Reads a leaf at one moment. Returns whether it left out entries at the end.
    pub(super) fn read(
        &self,
        leaf: Leaf<K, V>,
        snapshot: Option<Epoch>,
        part: &Part<'_, K>,
        stretch: &mut Stretch<K, V>,
    ) -> Result<bool, Obsolete> {
        let lock = &leaf.header().lock;
        let Part { ascending, wanted, goes_on, lower } = *part;
        for round in 0.. {
            // A reader that loses too often reads under the lock.
            let held = if round < RETRIES { None } else { Some(lock.lock()?) };
            let version = if held.is_none() { Some(lock.read()?) } else { None };
            if ascending
                && wanted > AHEAD
                && let Some(next) = leaf.next()
            {
                // Its misses overlap with those of this leaf.
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
            let reading = Reading(version.map(|version| (lock, version)));
            point("tree.scan.begun");
            let ordered = version.filter(|_| ascending && snapshot.is_none()).and_then(|version| {
                // A scan that goes on mostly begins with the first entry.
                let lower = if goes_on { Bound::Unbounded } else { lower };
                let most = if K::HEAD_IS_KEY || goes_on { wanted } else { usize::MAX };
                let number = version.number();
                leaf.copy_ordered(number, (lower, most), self.simd, &mut stretch.image)
            });
            let at_image = snapshot.is_some_and(|snapshot| {
                self.log.whole_at(leaf, snapshot, reading, |old| old.copy_to(&mut stretch.image))
            });
            point("tree.scan.image_sought");
            let mut used = 0;
            if at_image {
                (stretch.image.next, stretch.image.high) = (leaf.next(), leaf.high());
            } else if ordered.is_none() {
                used = leaf.copy_to(&mut stretch.image);
            }
            stretch.anchor = (!ascending)
                .then(|| leaf.with_anchor(|anchor| anchor.map(ToOwned::to_owned)))
                .flatten();
            let mut old = Vec::new();
            let mut whole = true;
            if let Some(snapshot) = snapshot
                && !at_image
                && leaf.header().dead.load(Ordering::Acquire) > snapshot
            {
                let slots = &stretch.image.keys[..stretch.image.count];
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
            stretch.order = match version {
                _ if at_image || ordered.is_some() => ordna_base::order::identity(),
                Some(version) => leaf.order(&stretch.image, used, version.number(), self.simd),
                None => stretch.image.sorted(self.simd),
            };
            stretch.guess = ordered.map_or((0, 0), |ordered| ordered.guess);
            if wanted > 1 {
                // Without a known order the search may touch any record.
                let (low, high) = stretch.guess;
                let known = ordered.is_some() || goes_on && ascending;
                let end = high.saturating_add(wanted.min(RECORDS_AHEAD));
                let end = stretch.image.count.min(if known { end } else { usize::MAX });
                let order = stretch.order.get(low.saturating_sub(1)..end).unwrap_or_default();
                if let Bound::Included(key) | Bound::Excluded(key) = lower {
                    stretch.key_len = key.tail().len();
                }
                stretch.image.prefetch_records(order.iter().copied(), stretch.key_len);
            }
            stretch.at_snapshot = None;
            let is_ordered = at_image || ordered.is_some();
            stretch.plain = is_ordered && old.is_empty() && stretch.image.deadlines.is_none();
            if !old.is_empty() {
                stretch.at_snapshot = Some(Self::merge(stretch, old));
            }
            return Ok(ordered.is_some_and(|ordered| ordered.more));
        }
        unreachable!("rounds do not end")
    }

    /// The entries at a snapshot: of each key with records the oldest one decides, else the slot.
    fn merge(stretch: &Stretch<K, V>, mut old: Vec<(Entry, State)>) -> Vec<Entry> {
        // Youngest first; the sort is stable, so the last of a key is its oldest.
        old.sort_by(|(one, _), (other, _)| compare::<K, V>(one, other));
        let mut merged = Vec::with_capacity(stretch.image.count + old.len());
        let mut slots = (0..stretch.image.count).map(|at| stretch.entry(at)).peekable();
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
            if let State::Present { word, deadline } = state {
                merged.push(Entry { key: key.key, word, deadline });
            }
        }
        merged.extend(slots);
        merged
    }
}
