//! Undo records: what live snapshots still need of entries that have changed.
//!
//! # Contract
//! An undo record says: up to the epoch before `end`, the key had the state `old` (a value, or
//! absent). Records of a leaf form a list in order of end epoch, youngest first. [`UndoLog::push`],
//! [`UndoLog::prune`], [`UndoLog::divide`] and [`UndoLog::merge`] need the leaf's lock.
//! [`UndoLog::lookup`] needs a guard and the leaf's version, and a live snapshot; its result is to
//! be validated.
//!
//! # Range versions
//! A record may be a *range version*, of a range of keys, see `range_versions`. [`Linked::kind`]
//! tells.
//!
//! # Memory
//! Records stand in chunks that one thread's stripe fills in the order of epochs. A chunk is
//! retired whole once no snapshot older than its last end epoch lives, without a visit to its
//! leaves: their links then dangle. A link carries the end epoch of its target, and is followed
//! only while a snapshot below that end epoch lives or may live, or, by writers, above the
//! *horizon*, the largest end epoch retired.
//!
//! # Invariants
//! 1. End epochs do not rise along a list. The leaf's `newest_end` is the end epoch of its first record.
//!    A reader follows a link only if the leaf still has the version that it reads at.
//! 2. *Pin first.* A thread pins before it reads the youngest snapshot or the horizon, so a chunk
//!    that is retired later outlives what the thread does with them.
//! 3. A record is *needed* while a snapshot in [p, end) lives, p being the end epoch of the key's
//!    next older record, or 0. [`UndoLog::prune`] judges end epochs up to `quiesced` + 1 only: a
//!    snapshot to come has an epoch above `quiesced`, and so needs no older record.
//! 4. A chunk owns the records of byte strings in `old`; a prune takes them out with a swap, unless
//!    the chunk is gone. Either the prune or the end of the chunk gives back what a record took.
//!
//! # Orders of stores
//! A writer stores the undo record, then the leaf's `newest_end`, then the slot. A reader loads
//! the slot, then `newest_end`, then the list. If the slot's word is new, the reader sees the record; if it is old,
//! it equals what the record says. So an overwrite in place needs no new version.
//!
//! Source: the versions of Nitro (§3), turned round: the entry holds the latest state.

#![expect(unsafe_code, reason = "records are followed by address")]

pub mod chunks;
pub mod range_versions;
pub mod states;

use std::ptr::{self, NonNull};

use super::leaf::{ADDRESS, FOREVER, Leaf, LeafEntry, LeafMut, Probe, is_inline};
use crate::epoch::{AtomicEpoch, Epoch};
use crate::tree::undo::chunks::{CHUNK, ChunkStripe, RetiredChunks, UndoRecord, stripe_of};
pub use crate::tree::undo::states::OldState;
use crate::tree::undo::states::RangeVersion;
use ordna_base::reclaim::Guard;
use ordna_base::record::Record;
use ordna_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ordna_base::sync::{
    Version, VersionLock, check, fault, notice, order, point, stripe_of_this_thread,
};
use ordna_base::{Key, Value};

/// Threads that push at once without waiting for each other.
const STRIPES: usize = 32;
/// Pushes onto a leaf between two prunes, at least; fewer with tiny leaves.
const PRUNE_AFTER: u64 = 16;
/// The countdown's place above the address.
const COUNTDOWN: u32 = 48;

/// Records of a leaf above the youngest snapshot before a range version takes their place; fewer
/// with tiny leaves. A reader at that snapshot follows at most this number of links. A range
/// version takes the memory of up to 20 records.
const RANGE_AFTER: usize = 4;
/// The bit of a link to a range version.
pub(super) const RANGE: u64 = 1;
/// The bit of a link to a range version of all keys of the leaf.
pub(super) const WHOLE: u64 = 2;

/// What a list says about a key at a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Nothing: the slot is the answer.
    Slot,
    /// The key had this state.
    Old(OldState),
    /// What was read is of no single moment.
    Torn,
}

/// The live snapshots, oldest first, and the quiesced epoch of the same moment.
pub struct LiveEpochs {
    /// The epochs of the live snapshots.
    pub epochs: Vec<Epoch>,
    /// The latest quiesced epoch.
    pub quiesced: Epoch,
}

impl LiveEpochs {
    /// Whether a snapshot in [from, to) lives.
    fn has_within(&self, from: Epoch, to: Epoch) -> bool {
        let at = self.epochs.partition_point(|epoch| *epoch < from);
        self.epochs.get(at).is_some_and(|epoch| *epoch < to)
    }
}

/// A reader's hold on a leaf: the version that it reads at, or `None` under the lock.
#[derive(Clone, Copy)]
pub struct LeafReading<'a>(pub Option<(&'a VersionLock, Version)>);

impl LeafReading<'_> {
    /// Whether the leaf is as it was when the reading began. To be asked before a link is followed:
    /// a link and an end epoch of two moments may lead to a record that the snapshot does not keep.
    pub(super) fn holds(self) -> bool {
        self.0.is_none_or(|(lock, version)| {
            check!("undo.scan.follows_torn_links", lock.validate(version))
        })
    }
}

/// A record in a list, as prunes and splits handle it.
#[derive(Clone, Copy)]
pub(super) struct Linked {
    pub at: NonNull<UndoRecord>,
    /// The bits [`RANGE`] and [`WHOLE`].
    pub kind: u64,
}

/// All undo records of a tree.
pub struct UndoLog<K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) stripes: Box<[ChunkStripe<K, V>]>,
    /// Chunks whose end epochs are all at most this may be gone.
    horizon: AtomicEpoch,
    /// Chunks in stripes.
    chunks: AtomicUsize,
    /// Bytes of chunks that splits began; the next push takes them of the memory limit.
    pub(super) unpaid: AtomicUsize,
    pub(super) range_after: usize,
    /// Pushes onto a leaf between two prunes, at least.
    prune_after: u64,
}

impl Linked {
    pub fn get(&self) -> &UndoRecord {
        // SAFETY: a record that the caller may follow, see the module's invariants.
        unsafe { self.at.as_ref() }
    }

    pub fn at(link: u64) -> Option<Self> {
        let kind = link & (RANGE | WHOLE);
        let address = ptr::with_exposed_provenance_mut((link & ADDRESS & !kind) as usize);
        NonNull::new(address).map(|at| Self { at, kind })
    }

    /// The link to the record.
    fn address(self) -> u64 {
        self.at.as_ptr().expose_provenance() as u64 | self.kind
    }

    /// The record in the list of a leaf that covers other keys.
    pub fn without_whole(self) -> Self {
        if fault!("undo.range_version.cut") {
            return self;
        }
        Self { kind: self.kind & RANGE, ..self }
    }

    pub fn range_version(&self) -> Option<RangeVersion<'_>> {
        if self.kind & RANGE == 0 {
            return None;
        }
        let undo = self.get();
        let (lower, upper) = (undo.key.load(Ordering::Relaxed), undo.old.load(Ordering::Relaxed));
        let count = undo.deadline.load(Ordering::Relaxed) as usize;
        // SAFETY: `count` keys and `count` words stand behind a range version and never change.
        let (keys, words) = unsafe {
            let keys = self.at.add(1).cast::<u64>();
            let words = NonNull::slice_from_raw_parts(keys.add(count), count);
            (NonNull::slice_from_raw_parts(keys, count).as_ref(), words.as_ref())
        };
        Some(RangeVersion { lower, upper, keys, words })
    }

    pub fn end(self) -> Epoch {
        Epoch::new(self.get().end.load(Ordering::Acquire) >> 1)
    }

    pub fn state(self) -> OldState {
        if self.get().end.load(Ordering::Acquire) & 1 == 0 {
            return OldState::Absent;
        }
        let word = self.get().old.load(Ordering::Acquire);
        OldState::Present { word, deadline: self.get().deadline.load(Ordering::Relaxed) }
    }

    /// Whether the record is of this key; `None` if its record was taken out.
    fn is_of<K: Key + ?Sized, V: Value + ?Sized>(self, probe: &Probe<'_, K>) -> Option<bool> {
        if let Some(range) = self.range_version() {
            return Some(range.contains(probe.head));
        }
        let key = self.get().key.load(Ordering::Relaxed);
        if K::HEAD_IS_KEY {
            return Some(key == probe.head);
        }
        if key != probe.hash {
            return Some(false);
        }
        let record = Leaf::<K, V>::record(self.get().old.load(Ordering::Acquire))?;
        // SAFETY: under the caller's guard.
        Some(unsafe { record.key::<'_>() } == probe.key)
    }

    /// Calls `f` with the key. The leaf's lock is held, or a snapshot keeps the record.
    fn with_key<K: Key + ?Sized, V: Value + ?Sized, R>(self, f: impl FnOnce(&K) -> R) -> Option<R> {
        let key = self.get().key.load(Ordering::Relaxed);
        if let Some(key) = K::from_head(&key) {
            return Some(f(key));
        }
        let record = Leaf::<K, V>::record(self.get().old.load(Ordering::Acquire))?;
        // SAFETY: under the caller's guard.
        Some(f(unsafe { record.key() }))
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> UndoLog<K, V> {
    /// An empty log of leaves with so many slots.
    pub fn new(slots: usize) -> Self {
        Self {
            prune_after: PRUNE_AFTER.min(slots as u64),
            stripes: (0..STRIPES).map(|_| ChunkStripe::new()).collect(),
            horizon: AtomicEpoch::new(Epoch::ZERO),
            chunks: AtomicUsize::new(0),
            unpaid: AtomicUsize::new(0),
            range_after: RANGE_AFTER.min(slots / 2),
        }
    }

    /// Bytes that this thread's next push takes beside what it keeps: those of a chunk if it begins
    /// one.
    pub fn next_push(&self) -> usize {
        let stripe = &self.stripes[stripe_of_this_thread() % STRIPES];
        let begins = if stripe.has_room() { 0 } else { CHUNK };
        begins + self.unpaid.load(Ordering::Relaxed)
    }

    pub fn horizon(&self) -> Epoch {
        self.horizon.load(Ordering::Acquire)
    }

    /// Records in lists, and bytes of chunks and of what they own.
    pub fn size(&self) -> (usize, usize) {
        self.stripes.iter().map(ChunkStripe::usage).fold((0, 0), |(records, bytes), usage| {
            (records + usage.records, bytes + usage.bytes())
        })
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.load(Ordering::Acquire) == 0
    }

    /// Whether the key has a record with an end epoch above `youngest`: then no snapshot needs
    /// another.
    pub fn covers(&self, leaf: Leaf<K, V>, probe: &Probe<'_, K>, youngest: Epoch) -> bool {
        let mut rest = UndoScan::of(leaf);
        while let Some(record) = rest.next_above(youngest) {
            if record.is_of::<K, V>(probe) == Some(true) {
                return true;
            }
        }
        false
    }

    /// What the leaf's list says about the key at a snapshot that lives. The caller has read the
    /// slot before, and validates both.
    #[inline]
    pub fn at_snapshot(
        &self,
        leaf: Leaf<K, V>,
        probe: &Probe<'_, K>,
        snapshot: Epoch,
        reading: LeafReading<'_>,
    ) -> Lookup {
        if leaf.header().newest_end.load(Ordering::Acquire) <= snapshot {
            return Lookup::Slot;
        }
        self.lookup(leaf, probe, snapshot, reading)
    }

    fn lookup(
        &self,
        leaf: Leaf<K, V>,
        probe: &Probe<'_, K>,
        snapshot: Epoch,
        reading: LeafReading<'_>,
    ) -> Lookup {
        let (mut rest, mut found) = (UndoScan::of(leaf), Lookup::Slot);
        while rest.end > snapshot {
            if !reading.holds() {
                return Lookup::Torn;
            }
            let Some(record) = rest.next_above(snapshot) else { break };
            match record.is_of::<K, V>(probe) {
                Some(true) => {
                    let state = record.range_version().map(|range| range.state_of(probe.head));
                    found = Lookup::Old(state.unwrap_or_else(|| record.state()));
                }
                Some(false) => {}
                None => return Lookup::Torn,
            }
        }
        found
    }

    /// Appends key and state of every record with an end epoch above the snapshot, youngest first,
    /// and of the keys among `slots` that are absent in a range version. `false`: the list was
    /// torn.
    pub fn append_above(
        &self,
        leaf: Leaf<K, V>,
        snapshot: Epoch,
        reading: LeafReading<'_>,
        slots: &[u64],
        states: &mut Vec<(LeafEntry, OldState)>,
    ) -> bool {
        let mut rest = UndoScan::of(leaf);
        while rest.end > snapshot {
            if !reading.holds() {
                return false;
            }
            let Some(record) = rest.next_above(snapshot) else { break };
            if let Some(range) = record.range_version() {
                range.append_to(slots, states);
                continue;
            }
            let old = record.get().old.load(Ordering::Acquire);
            if !K::HEAD_IS_KEY && old & ADDRESS == 0 {
                return false;
            }
            let key = record.get().key.load(Ordering::Relaxed);
            states.push((LeafEntry { key, word: old, deadline: FOREVER }, record.state()));
        }
        true
    }

    /// Adds a record to the leaf's list: the key had `state` up to the epoch before `end`. With
    /// byte strings the list owns the record of the state from now on. The youngest snapshot that
    /// does not see the change is `seen_by`. Returns the bytes that this took.
    pub fn push(
        &self,
        leaf: &LeafMut<'_, K, V>,
        probe: &Probe<'_, K>,
        state: OldState,
        end: Epoch,
        seen_by: Epoch,
    ) -> usize {
        let unpaid = match self.unpaid.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.unpaid.swap(0, Ordering::Relaxed),
        };
        if is_inline::<K, V>()
            && let Some(taken) = self.push_range_version(leaf, end, seen_by)
        {
            return taken + unpaid;
        }
        let (old, deadline, present) = match state {
            OldState::Absent if K::HEAD_IS_KEY => (0, FOREVER, 0),
            OldState::Absent => {
                (Leaf::word_of(probe, Record::new(probe.key, V::placeholder())), FOREVER, 0)
            }
            OldState::Present { word, deadline } => (word, deadline, 1),
        };
        let header = leaf.header();
        debug_assert!(
            header.newest_end.load(Ordering::Relaxed) <= end,
            "end epochs ascend within a list"
        );
        let (mut head, mut next_end) =
            (header.undo.load(Ordering::Relaxed), header.newest_end.load(Ordering::Relaxed));
        if next_end <= self.horizon() {
            // No thread follows links from here on: the list begins anew.
            (head, next_end) = (0, Epoch::ZERO);
        }
        let record = UndoRecord {
            key: AtomicU64::new(if K::HEAD_IS_KEY { probe.head } else { probe.hash }),
            old: AtomicU64::new(old),
            deadline: AtomicU64::new(deadline),
            end: AtomicU64::new(end.get() << 1 | present),
            next: AtomicU64::new(head & ADDRESS),
            next_end: AtomicEpoch::new(next_end),
        };
        let owned = Self::owned_bytes(old);
        let (at, taken) = self.store(record, end, owned, [&[], &[]]);
        self.link(leaf, head, Linked { at, kind: 0 }, end);
        taken + unpaid
    }

    /// Stores a record, with words behind it. Returns its address, and the bytes that this took.
    pub(super) fn store(
        &self,
        record: UndoRecord,
        end: Epoch,
        owned: usize,
        words: [&[u64]; 2],
    ) -> (NonNull<UndoRecord>, usize) {
        let number = stripe_of_this_thread() % STRIPES;
        let (at, begins) = self.stripes[number].push(number, record, end, owned, words);
        if begins {
            self.chunks.fetch_add(1, Ordering::Release);
        }
        (at, owned + if begins { CHUNK } else { 0 })
    }

    /// Puts a record in front of the leaf's list, whose first link was `head`.
    pub(super) fn link(&self, leaf: &LeafMut<'_, K, V>, head: u64, record: Linked, end: Epoch) {
        let countdown = (head >> COUNTDOWN).saturating_sub(1);
        let countdown = if head == 0 { self.prune_after } else { countdown };
        // Release: a reader that follows the link sees the record.
        leaf.header().undo.store(record.address() | countdown << COUNTDOWN, order_of_head());
        point("undo.push.before_dead");
        if !fault!("undo.push.dead") {
            // Release: a reader that sees the end epoch sees the record in front of the list.
            leaf.header().newest_end.store(end, order_of_end());
        }
    }

    /// Whether the list has grown enough to be worth a prune.
    pub fn is_prune_due(&self, leaf: Leaf<K, V>) -> bool {
        let head = leaf.header().undo.load(Ordering::Relaxed);
        head != 0 && head >> COUNTDOWN == 0
    }

    /// Unlinks the records that no live snapshot needs. Returns the bytes given back. The caller
    /// ends with a new version of the leaf.
    pub fn prune(
        &self,
        leaf: &LeafMut<'_, K, V>,
        live: &LiveEpochs,
        is_present: &dyn Fn(&K) -> bool,
        guard: &Guard<'_>,
    ) -> usize {
        let all = self.collect(leaf.leaf());
        let key = |at: &usize| all[*at].get().key.load(Ordering::Relaxed);
        let (ranges, mut by_key): (Vec<usize>, Vec<usize>) =
            (0..all.len()).partition(|at| all[*at].range_version().is_some());
        let covers = |range: &usize, (lower, upper): (u64, u64)| {
            all[*range].range_version().is_some_and(|range| {
                check!(
                    "undo.range_version.prune_covers",
                    range.contains(lower) && range.contains(upper)
                )
            })
        };
        // The end epoch of the youngest range version of these keys below a position; 0 if there is
        // none.
        let older_range = |at: usize, keys| {
            let mut older = ranges[ranges.partition_point(|range| *range <= at)..].iter();
            older.find(|range| covers(range, keys)).map_or(Epoch::ZERO, |range| all[*range].end())
        };
        let has_younger_range = |at: usize, keys| {
            let mut younger = ranges[..ranges.partition_point(|range| *range < at)].iter().rev();
            notice!("undo.range_version.prune_absent", younger.any(|range| covers(range, keys)))
        };
        // Stable: the youngest record of a key comes first.
        by_key.sort_by_key(key);
        let mut keeps = vec![false; all.len()];
        for at in ranges.iter().copied() {
            let end = all[at].end();
            let keys = all[at].range_version().map_or((0, 0), |range| (range.lower, range.upper));
            keeps[at] = end > live.quiesced.next() || live.has_within(older_range(at, keys), end);
        }
        for group in by_key.chunk_by(|one, other| key(one) == key(other)) {
            let mut above: Vec<Linked> = Vec::new();
            for (nth, at) in group.iter().enumerate() {
                let record = all[*at];
                let older = |other: &&usize| Self::same_key(all[**other], record);
                let before =
                    group[nth + 1..].iter().find(older).map_or(Epoch::ZERO, |at| all[*at].end());
                let keys = (key(at), key(at));
                let before = before.max(older_range(*at, keys));
                let end = record.end();
                let from = if fault!("undo_order.prune.keeper") { before.next() } else { before };
                let needed = end > live.quiesced.next() || live.has_within(from, end);
                // "Absent" below an absent state that stays says nothing new.
                let redundant = record.state() == OldState::Absent
                    && !has_younger_range(*at, keys)
                    && match above.iter().rev().find(|other| Self::same_key(**other, record)) {
                        Some(younger) => younger.state() == OldState::Absent,
                        None => record.with_key::<K, V, _>(|key| !is_present(key)) == Some(true),
                    };
                keeps[*at] = check!("undo.prune.keeps_all", needed && !redundant);
                if check!("undo.prune.above_stays", keeps[*at]) {
                    above.push(record);
                }
            }
        }
        let mut judged = keeps.into_iter();
        let (kept, dropped): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|_| judged.next() == Some(true));
        // A record leaves its list before its chunk may go.
        self.relink(leaf, &kept);
        point("undo.prune.relinked");
        dropped.into_iter().map(|record| self.unlinked(record, guard)).sum()
    }

    /// Moves the records of keys from `boundary` on to the leaf on the right.
    pub fn divide(&self, left: &LeafMut<'_, K, V>, right: &LeafMut<'_, K, V>, boundary: &K) {
        let stay = |record: &Linked| record.with_key::<K, V, _>(|key| key < boundary) == Some(true);
        let (mut low, mut high, mut divided) = (Vec::new(), Vec::new(), Vec::new());
        for record in self.collect(left.leaf()) {
            let (stays, goes) = match record.range_version() {
                None if stay(&record) => (Some(record), None),
                None => (None, Some(record)),
                Some(range) => self.divide_range_version(record, &range, boundary.head()),
            };
            if stays.is_some() && goes.is_some() {
                divided.push(record);
            }
            low.extend(stays);
            high.extend(goes);
        }
        self.relink(left, &low);
        if !fault!("undo.divide.forgets") {
            high.extend(self.collect(right.leaf()).into_iter().map(Linked::without_whole));
            high.sort_by_key(|record| std::cmp::Reverse(record.end()));
            self.relink(right, &high);
        }
        self.drop_replaced(&divided);
    }

    /// Whether the two leaves together have more than `limit` records; a range version counts as
    /// the number of its keys. O(`limit`).
    pub fn are_beyond(&self, leaves: [Leaf<K, V>; 2], limit: usize) -> bool {
        let horizon = self.horizon();
        let mut left = limit + 1;
        for leaf in leaves {
            let mut rest = UndoScan::of(leaf);
            while left > 0
                && let Some(record) = rest.next_above(horizon)
            {
                let weight = record.range_version().map_or(1, |range| range.keys.len().max(1));
                left = left.saturating_sub(weight);
            }
        }
        left == 0
    }

    /// Moves all records of `from` to `to`, in order of end epoch.
    pub fn merge(&self, to: &LeafMut<'_, K, V>, from: &LeafMut<'_, K, V>) {
        let mut all = self.collect(to.leaf());
        all.extend(self.collect(from.leaf()));
        all.iter_mut().for_each(|record| *record = record.without_whole());
        if !fault!("undo.merge.sorts") {
            all.sort_by_key(|record| std::cmp::Reverse(record.end()));
        }
        self.relink(to, &all);
        self.relink(from, &[]);
    }

    /// Whether the leaf's list is in order of end epoch and all its keys satisfy `belongs`. At
    /// rest.
    pub fn is_sound(&self, leaf: Leaf<K, V>, belongs: impl Fn(&K) -> bool) -> bool {
        let all = self.collect(leaf);
        let first = all.first().map_or(Epoch::ZERO, |first| first.end());
        let largest = leaf.header().newest_end.load(Ordering::Relaxed);
        all.is_sorted_by(|one, other| one.end() >= other.end())
            && (largest <= self.horizon() || largest == first)
            && all.iter().all(|record| record.with_key::<K, V, _>(&belongs) == Some(true))
            && all.iter().filter_map(Linked::range_version).all(|range| {
                range.keys.is_sorted()
                    && K::from_head(&range.upper).is_some_and(&belongs)
                    && range.keys.iter().all(|key| range.contains(*key))
            })
    }

    /// Retires the chunks whose end epochs are all at most `horizon`: no snapshot below it lives or
    /// will live, and no writer is in an epoch up to it. Returns the bytes given back.
    pub fn free(&self, horizon: Epoch, guard: &Guard<'_>) -> usize {
        if self.is_empty() || horizon == Epoch::ZERO {
            return 0;
        }
        // Before the first chunk goes: a writer that reads the horizon later follows no link to it.
        let late = fault!("undo.free.horizon_first");
        if !late {
            self.horizon.raise(horizon, Ordering::AcqRel);
        }
        point("undo.free.before_chunks");
        let (mut freed, mut gone) = (0, RetiredChunks::new());
        for stripe in &self.stripes {
            let usage = stripe.take_retired(horizon, &mut gone);
            freed += usage.bytes();
            if usage.chunks > 0 {
                self.chunks.fetch_sub(usage.chunks, Ordering::Release);
            }
        }
        // SAFETY: no thread follows a link to them from now on (invariant 2), and guards of before
        // keep them.
        unsafe { gone.retire(guard) };
        let unpaid = self.unpaid.swap(0, Ordering::Relaxed);
        self.unpaid.fetch_add(unpaid.saturating_sub(freed), Ordering::Relaxed);
        freed = freed.saturating_sub(unpaid);
        point("undo.free.chunks_gone");
        if late {
            self.horizon.raise(horizon, Ordering::AcqRel);
        }
        freed
    }

    /// The bytes of a state that a push with this word keeps.
    fn owned_bytes(word: u64) -> usize {
        if is_inline::<K, V>() {
            return 0;
        }
        // SAFETY: a record that the caller owns.
        Leaf::<K, V>::record(word).map_or(0, |record| unsafe { record.size() })
    }

    /// The leaf's records that may be followed, youngest first.
    fn collect(&self, leaf: Leaf<K, V>) -> Vec<Linked> {
        let (mut rest, horizon) = (UndoScan::of(leaf), self.horizon());
        point("undo.collect.horizon_read");
        let next = || {
            let end = rest.end;
            let record = rest.next_above(horizon)?;
            debug_assert_eq!(record.end(), end, "a link carries the end epoch of its target");
            Some(record)
        };
        std::iter::from_fn(next).collect()
    }

    fn same_key(one: Linked, other: Linked) -> bool {
        let key = |record: Linked| record.get().key.load(Ordering::Relaxed);
        key(one) == key(other)
            && (K::HEAD_IS_KEY
                || one.with_key::<K, V, _>(|one| {
                    other.with_key::<K, V, _>(|other| one == other) == Some(true)
                }) == Some(true))
    }

    /// Makes these records the leaf's list.
    fn relink(&self, leaf: &LeafMut<'_, K, V>, records: &[Linked]) {
        debug_assert!(
            check!("undo.merge.sorts", records.is_sorted_by(|one, other| one.end() >= other.end())),
            "the youngest record stands first"
        );
        for (at, record) in records.iter().enumerate() {
            let next = records.get(at + 1);
            let (address, end) = next.map_or((0, Epoch::ZERO), |next| (next.address(), next.end()));
            record.get().next.store(address, Ordering::Release);
            record.get().next_end.store(end, Ordering::Release);
        }
        let countdown = (records.len() as u64).clamp(self.prune_after, u64::from(u16::MAX));
        let first = records.first().map_or(0, |first| first.address());
        let end = records.first().map_or(Epoch::ZERO, |first| first.end());
        leaf.header().undo.store(first | countdown << COUNTDOWN, Ordering::Release);
        leaf.header().newest_end.store(end, Ordering::Release);
    }

    /// Gives back what a record that has left its list kept, unless its chunk is gone with it.
    fn unlinked(&self, record: Linked, guard: &Guard<'_>) -> usize {
        self.stripes[stripe_of(record.at)].unlink(record.at, || {
            if is_inline::<K, V>() {
                return 0;
            }
            let old = record.get().old.swap(0, Ordering::AcqRel);
            let owned = Self::owned_bytes(old);
            if let Some(old) = Leaf::<K, V>::record(old) {
                // SAFETY: taken out by this swap only; readers hold guards.
                unsafe { old.retire(guard) };
            }
            owned
        })
    }
}

fn order_of_head() -> Ordering {
    if fault!("undo_order.push.head") { Ordering::Relaxed } else { Ordering::Release }
}

fn order_of_end() -> Ordering {
    if fault!("undo_order.push.newest_end") { Ordering::Relaxed } else { Ordering::Release }
}

/// A reader that follows a list: it follows a link only if its target's end epoch is above a bound.
pub(super) struct UndoScan {
    pub next: u64,
    pub end: Epoch,
}

impl UndoScan {
    /// At the end of a list.
    pub fn empty() -> Self {
        Self { next: 0, end: Epoch::ZERO }
    }

    pub fn of<K: Key + ?Sized, V: Value + ?Sized>(leaf: Leaf<K, V>) -> Self {
        let header = leaf.header();
        if fault!("undo_order.scan.newest_end_first") {
            let next = header.undo.load(Ordering::Acquire);
            return Self { end: header.newest_end.load(Ordering::Acquire), next };
        }
        // The end epoch first: a list that grows meanwhile has its new records in front.
        let end = header.newest_end.load(order!("undo_order.scan.newest_end_acquire", Acquire));
        point("undo.scan.newest_end_read");
        Self { end, next: header.undo.load(Ordering::Acquire) }
    }

    #[inline]
    pub fn next_above(&mut self, bound: Epoch) -> Option<Linked> {
        if self.end <= bound {
            return None;
        }
        let record = Linked::at(self.next)?;
        debug_assert!(record.end() > bound, "a followed record is one that the bound keeps");
        point("undo.scan.follows");
        self.end = record.get().next_end.load(Ordering::Acquire);
        self.next = record.get().next.load(Ordering::Acquire);
        Some(record)
    }
}
