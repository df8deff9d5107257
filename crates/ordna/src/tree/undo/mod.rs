//! Undo records: the former states of changed entries that live snapshots still need.
//!
//! # Contract
//! An undo record says that the key had the state `old` (a value, or absent) up to the epoch before
//! `end`. The records of a leaf form a list in order of end epoch, youngest first.
//! [`UndoLog::push`], [`UndoLog::prune`], [`UndoLog::divide`] and [`UndoLog::merge`] need the
//! leaf's lock. [`UndoLog::lookup`] needs a guard, the leaf's version, and a live snapshot; its
//! result must be validated.
//!
//! # Range versions
//! A record may be a *range version*, which covers a range of keys, see `range_versions`.
//! [`Linked::kind`] says which kind a record is.
//!
//! # Memory
//! Records are stored in chunks that one thread's stripe fills in the order of epochs. A chunk is
//! retired as a whole when no live snapshot is older than its last end epoch, without a visit to
//! its leaves, whose links then dangle. So a link carries the end epoch of its target. Readers
//! follow it only while a snapshot below that end epoch is alive or may be created. Writers follow
//! it only if that end epoch is above the *horizon*, the largest end epoch retired.
//!
//! # Invariants
//! 1. End epochs do not increase along a list. The leaf's `newest_end` is the end epoch of its
//!    first record. A reader follows a link only if the leaf still has the version at which it
//!    reads.
//! 2. *Pin first.* A thread pins before it reads the youngest snapshot or the horizon, so a chunk
//!    that is retired later outlives the thread's use of them.
//! 3. A record is *needed* while a snapshot in [p, end) is alive, where p is the end epoch of the
//!    key's next older record, or 0. [`UndoLog::prune`] only considers end epochs up to `quiesced`
//!    + 1: a future snapshot has an epoch above `quiesced` and so needs no older record.
//! 4. A chunk owns the records of byte strings in `old`. A prune takes them out with a swap, unless
//!    the chunk is gone. So either the prune or the end of the chunk frees a record.
//!
//! # Orders of stores
//! A writer stores the undo record, then the leaf's `newest_end`, then the slot. A reader loads the
//! slot, then `newest_end`, then the list. If the slot's word is new, the reader sees the record;
//! if the word is old, it equals the state in the record. So an overwrite in place needs no new
//! version.
//!
//! Source: the versions of Nitro (§3), reversed: here the entry holds the latest state.

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

/// Number of threads that can push concurrently without waiting for each other.
const STRIPES: usize = 32;
/// Minimum number of pushes onto a leaf between two prunes; less with tiny leaves.
const PRUNE_AFTER: u64 = 16;
/// Position of the countdown in the word, above the address.
const COUNTDOWN: u32 = 48;

/// Number of records above the youngest snapshot at which a range version replaces those of a leaf;
/// less with tiny leaves. A reader at that snapshot follows at most this number of links. A range
/// version takes the memory of up to 20 records.
const RANGE_AFTER: usize = 4;
/// The bit of a link that leads to a range version.
pub(super) const RANGE: u64 = 1;
/// The bit of a link that leads to a range version of all keys of the leaf.
pub(super) const WHOLE: u64 = 2;

/// The state of a key at a snapshot, according to the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The list has no record of the key, so the slot is current.
    Slot,
    /// The key had this state.
    Old(OldState),
    /// The reads were not of one moment.
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
    /// Returns whether a snapshot in [from, to) is alive.
    fn has_within(&self, from: Epoch, to: Epoch) -> bool {
        let at = self.epochs.partition_point(|epoch| *epoch < from);
        self.epochs.get(at).is_some_and(|epoch| *epoch < to)
    }
}

/// The version at which a reader reads a leaf, or `None` if it holds the lock.
#[derive(Clone, Copy)]
pub struct LeafReading<'a>(pub Option<(&'a VersionLock, Version)>);

impl LeafReading<'_> {
    /// Returns whether the leaf is unchanged since the reading began. To be called before a link is
    /// followed: a link and an end epoch of two different moments may lead to a record that the
    /// snapshot does not keep.
    pub(super) fn holds(self) -> bool {
        self.0.is_none_or(|(lock, version)| {
            check!("undo.scan.follows_torn_links", lock.validate(version))
        })
    }
}

/// A record in a list, in the form in which prunes and splits handle it.
#[derive(Clone, Copy)]
pub(super) struct Linked {
    pub at: NonNull<UndoRecord>,
    /// The bits [`RANGE`] and [`WHOLE`].
    pub kind: u64,
}

/// The undo records of a tree.
pub struct UndoLog<K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) stripes: Box<[ChunkStripe<K, V>]>,
    /// Chunks whose end epochs are all at most this may have been retired.
    horizon: AtomicEpoch,
    /// Number of chunks in stripes.
    chunks: AtomicUsize,
    /// Size in bytes of chunks that splits began. The next push takes it from the memory limit.
    pub(super) unpaid: AtomicUsize,
    pub(super) range_after: usize,
    /// Minimum number of pushes onto a leaf between two prunes.
    prune_after: u64,
}

impl Linked {
    pub fn get(&self) -> &UndoRecord {
        // SAFETY: the caller may follow the record, see the module's invariants.
        unsafe { self.at.as_ref() }
    }

    pub fn at(link: u64) -> Option<Self> {
        let kind = link & (RANGE | WHOLE);
        let address = ptr::with_exposed_provenance_mut((link & ADDRESS & !kind) as usize);
        NonNull::new(address).map(|at| Self { at, kind })
    }

    /// Returns the link to the record.
    fn address(self) -> u64 {
        self.at.as_ptr().expose_provenance() as u64 | self.kind
    }

    /// Returns the record for the list of a leaf with another range: it no longer covers the whole
    /// leaf.
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
        // SAFETY: a range version is followed by `count` keys and `count` words, which never
        // change.
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

    /// Returns whether the record is of this key, or `None` if its record was taken out.
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

    /// Calls `f` with the key. The leaf's lock is held, or a snapshot keeps the record alive.
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
    /// Creates an empty log for leaves with `slots` slots.
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

    /// Returns the bytes that this thread's next push takes in addition to the kept state: those of
    /// a chunk, if the push begins one.
    pub fn next_push(&self) -> usize {
        let stripe = &self.stripes[stripe_of_this_thread() % STRIPES];
        let begins = if stripe.has_room() { 0 } else { CHUNK };
        begins + self.unpaid.load(Ordering::Relaxed)
    }

    pub fn horizon(&self) -> Epoch {
        self.horizon.load(Ordering::Acquire)
    }

    /// Returns the number of records in lists, and the bytes of chunks and of what they own.
    pub fn size(&self) -> (usize, usize) {
        self.stripes.iter().map(ChunkStripe::usage).fold((0, 0), |(records, bytes), usage| {
            (records + usage.records, bytes + usage.bytes())
        })
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.load(Ordering::Acquire) == 0
    }

    /// Returns whether the key has a record with an end epoch above `youngest`. If so, no snapshot
    /// needs another record.
    pub fn covers(&self, leaf: Leaf<K, V>, probe: &Probe<'_, K>, youngest: Epoch) -> bool {
        let mut rest = UndoScan::of(leaf);
        while let Some(record) = rest.next_above(youngest) {
            if record.is_of::<K, V>(probe) == Some(true) {
                return true;
            }
        }
        false
    }

    /// Returns the state of the key at a live snapshot according to the leaf's list. The caller has
    /// read the slot before, and validates both reads.
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
    /// and of the keys among `slots` that a range version says are absent. Returns `false` if the
    /// list was torn.
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
    /// byte strings, the list then owns the record of the state. `seen_by` is the youngest snapshot
    /// that does not see the change. Returns the number of bytes that this took.
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
            // No thread follows older links any longer, so a new list begins.
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

    /// Stores a record followed by words. Returns its address and the number of bytes that this
    /// took.
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

    /// Links a record at the front of the leaf's list, whose first link was `head`.
    pub(super) fn link(&self, leaf: &LeafMut<'_, K, V>, head: u64, record: Linked, end: Epoch) {
        let countdown = (head >> COUNTDOWN).saturating_sub(1);
        let countdown = if head == 0 { self.prune_after } else { countdown };
        // Release: a reader that follows the link sees the record.
        leaf.header().undo.store(record.address() | countdown << COUNTDOWN, order_of_head());
        point("undo.push.before_dead");
        if !fault!("undo.push.dead") {
            // Release: a reader that sees the end epoch also sees the record at the front of the
            // list.
            leaf.header().newest_end.store(end, order_of_end());
        }
    }

    /// Returns whether the list has grown enough to be pruned.
    pub fn is_prune_due(&self, leaf: Leaf<K, V>) -> bool {
        let head = leaf.header().undo.load(Ordering::Relaxed);
        head != 0 && head >> COUNTDOWN == 0
    }

    /// Unlinks the records that no live snapshot needs. Returns the bytes given back. The caller
    /// must give the leaf a new version.
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
        // Returns the end epoch of the youngest range version of these keys after a position in the
        // list, or 0.
        let older_range = |at: usize, keys| {
            let mut older = ranges[ranges.partition_point(|range| *range <= at)..].iter();
            older.find(|range| covers(range, keys)).map_or(Epoch::ZERO, |range| all[*range].end())
        };
        let has_younger_range = |at: usize, keys| {
            let mut younger = ranges[..ranges.partition_point(|range| *range < at)].iter().rev();
            notice!("undo.range_version.prune_absent", younger.any(|range| covers(range, keys)))
        };
        // The sort is stable, so the youngest record of a key comes first.
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
                // A record "absent" that follows a kept record "absent" adds nothing.
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
        // Records must leave their list before their chunk may be retired.
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

    /// Returns whether the two leaves together have more than `limit` records. A range version
    /// counts as the number of its keys. O(`limit`).
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

    /// Returns whether the leaf's list is in order of end epoch and all its keys satisfy `belongs`.
    /// To be called at rest.
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

    /// Retires the chunks whose end epochs are all at most `horizon`. No snapshot below the horizon
    /// is alive or can be created, and no writer is in an epoch up to it. Returns the bytes given
    /// back.
    pub fn free(&self, horizon: Epoch, guard: &Guard<'_>) -> usize {
        if self.is_empty() || horizon == Epoch::ZERO {
            return 0;
        }
        // Stored before the first chunk is retired: a writer that reads it later follows no link to
        // the chunk.
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
        // SAFETY: no thread follows a link to the chunks from now on (invariant 2), and earlier
        // guards keep them alive.
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

    /// Returns the number of bytes that a push of this word keeps.
    fn owned_bytes(word: u64) -> usize {
        if is_inline::<K, V>() {
            return 0;
        }
        // SAFETY: a record that the caller owns.
        Leaf::<K, V>::record(word).map_or(0, |record| unsafe { record.size() })
    }

    /// Returns the leaf's records that may be followed, youngest first.
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

    /// Replaces the leaf's list by these records.
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

    /// Frees what a record that has left its list kept, unless its chunk is gone.
    fn unlinked(&self, record: Linked, guard: &Guard<'_>) -> usize {
        self.stripes[stripe_of(record.at)].unlink(record.at, || {
            if is_inline::<K, V>() {
                return 0;
            }
            let old = record.get().old.swap(0, Ordering::AcqRel);
            let owned = Self::owned_bytes(old);
            if let Some(old) = Leaf::<K, V>::record(old) {
                // SAFETY: only this swap has taken it out; readers hold guards.
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

/// An iterator of readers over a list. It follows a link only if its target's end epoch is above a
/// bound.
pub(super) struct UndoScan {
    pub next: u64,
    pub end: Epoch,
}

impl UndoScan {
    /// Creates an iterator at the end of a list.
    pub fn empty() -> Self {
        Self { next: 0, end: Epoch::ZERO }
    }

    pub fn of<K: Key + ?Sized, V: Value + ?Sized>(leaf: Leaf<K, V>) -> Self {
        let header = leaf.header();
        if fault!("undo_order.scan.newest_end_first") {
            let next = header.undo.load(Ordering::Acquire);
            return Self { end: header.newest_end.load(Ordering::Acquire), next };
        }
        // The end epoch is read first, because a list that grows concurrently gets new records at
        // its front.
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
