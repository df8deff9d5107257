//! Reads and writes of single keys, and helpers that the other operations of a tree share with
//! them.
//!
//! # Contract
//! The contract is that of [the tree](super). A write is decided, prepared and applied under the
//! lock of one leaf.

use std::borrow::Borrow;

use crate::epoch::Epoch;
use ordna_base::arena::Arena;
use ordna_base::reclaim::Guard;
use ordna_base::record::Record;
use ordna_base::simd::InstructionSet;
use ordna_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use ordna_base::sync::{Obsolete, check, fault, notice, point};
use ordna_base::{Change, Error, Key, Value};

use super::leaf::{
    FOREVER, Leaf, LeafEntry, LeafHeader, LeafMut, LockedLeaf, Probe, SLOTS, is_inline,
};
use super::search::{LeafAddress, SearchLayer};
use super::undo::{LeafReading, LiveEpochs, Lookup, OldState, UndoLog};
use super::{LARGE, RETRIES, Sizes, Tree, TreeMemory, WriteCost, WriteOutcome, WriteScope};

/// A conditional write of one key: its decision, and what its caller does before and after the
/// change.
///
/// All methods except [`WriteStep::done`] run under the lock of the key's leaf.
pub trait WriteStep<V: Value + ?Sized> {
    /// The value that the write puts.
    type New: Borrow<V>;

    /// Decides the change, given value and deadline of the current entry. May run several times.
    fn decide(&mut self, old: Option<(&V, u64)>) -> Change<(Self::New, u64)>;

    /// Prepares to put an entry, immediately before the change.
    ///
    /// # Errors
    /// An error makes the write fail; nothing is changed.
    fn prepare(&mut self, cost: WriteCost) -> Result<(), Error>;

    /// Returns the live snapshots, for a prune; `None` forbids prunes.
    fn live(&self) -> Option<LiveEpochs>;

    /// Accounts for a change that was made. Runs after the leaf is unlocked.
    fn done(&mut self, outcome: &WriteOutcome);
}

/// The entry that [`Tree::write`] changes.
struct SlotWrite<'a, K: Key + ?Sized> {
    probe: &'a Probe<'a, K>,
    /// The slot and the current entry.
    old: Option<(usize, LeafEntry)>,
    /// Whether a live snapshot needs the current state.
    undo: bool,
}

/// The result of a search in one leaf.
enum Seek<K: Key + ?Sized, V: Value + ?Sized> {
    Found { word: u64, deadline: u64 },
    Absent,
    Right(Leaf<K, V>),
}

impl<K: Key + ?Sized, V: Value + ?Sized> Tree<K, V> {
    /// Creates the memory for a new tree. Records may move unless `records_stay`.
    pub fn memory(records_stay: bool) -> TreeMemory {
        let stay = notice!("tree.arena.records_stay", records_stay);
        let arena = (!is_inline::<K, V>() && !stay).then(Arena::new);
        TreeMemory { pool: Leaf::<K, V>::pool(), arena }
    }

    /// Creates an empty tree. If the memory has an arena, small records are stored there and may
    /// move.
    pub fn new(sizes: Sizes, TreeMemory { pool, arena }: TreeMemory) -> Self {
        let first = Leaf::create(None, &pool).leaf();
        Self {
            search: SearchLayer::new(first.address(), sizes.fanout),
            log: UndoLog::new(sizes.slots),
            first,
            pool,
            arena,
            slots: sizes.slots.clamp(2, SLOTS),
            simd: InstructionSet::widest(),
            leaves: AtomicUsize::new(1),
            sparse: AtomicBool::new(false),
            compacting: AtomicBool::new(false),
        }
    }

    pub(super) fn is_large(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) * self.slots >= LARGE
    }

    /// Returns the arena if new records should be allocated there.
    #[inline]
    pub(super) fn arena_if_large(&self) -> Option<&Arena> {
        self.arena.as_ref().filter(|_| self.is_large())
    }

    /// Returns the undo log.
    pub fn log(&self) -> &UndoLog<K, V> {
        &self.log
    }

    /// Returns the bytes of an entry that count against the memory limit: its record, its share of
    /// a leaf and its deadline.
    pub fn cost(key: &K, value: &V, deadline: u64) -> usize {
        if is_inline::<K, V>() {
            return Leaf::<K, V>::SHARE + Self::cost_of_deadline(deadline);
        }
        Self::cost_of_len(key, value.tail().len(), deadline)
    }

    /// Returns the number of bytes that the deadline of an entry takes.
    fn cost_of_deadline(deadline: u64) -> usize {
        if deadline == FOREVER { 0 } else { size_of::<u64>() }
    }

    /// Returns the cost of an entry whose value takes `value` bytes, in its record or in a buffer.
    pub(super) fn cost_of_len(key: &K, value: usize, deadline: u64) -> usize {
        let record = Record::<K, V>::size_with_tails(key.tail().len() + value);
        Leaf::<K, V>::SHARE + record + Self::cost_of_deadline(deadline)
    }

    /// Returns the cost of an entry in a leaf.
    pub(super) fn cost_of(word: u64, deadline: u64) -> usize {
        let record = if is_inline::<K, V>() {
            0
        } else {
            #[expect(unsafe_code, reason = "the record of a locked entry")]
            // SAFETY: the entry's record; its leaf is locked.
            Leaf::<K, V>::record(word).map_or(0, |record| unsafe { record.size() })
        };
        Leaf::<K, V>::SHARE + record + Self::cost_of_deadline(deadline)
    }

    #[inline]
    pub(super) fn leaf_at(address: LeafAddress) -> Leaf<K, V> {
        #[expect(unsafe_code, reason = "addresses are leaves")]
        // SAFETY: the search layer leads to leaves that its callers' guards keep alive.
        unsafe {
            Leaf::at(address)
        }
    }

    /// Returns the header, which lives as long as the guard.
    #[inline]
    pub(super) fn header<'g>(leaf: &Leaf<K, V>, _: &'g Guard<'_>) -> &'g LeafHeader {
        let header: *const LeafHeader = leaf.header();
        #[expect(unsafe_code, reason = "a longer borrow")]
        // SAFETY: the guard outlives the borrow and keeps the leaf's memory alive.
        unsafe {
            &*header
        }
    }

    /// Locks the leaf, which the guard keeps alive.
    ///
    /// # Errors
    /// The leaf is unlinked.
    #[inline]
    pub(super) fn lock_leaf<'g>(
        leaf: Leaf<K, V>,
        guard: &'g Guard<'_>,
    ) -> Result<LockedLeaf<'g, K, V>, Obsolete> {
        Ok(LockedLeaf::new(leaf, Self::header(&leaf, guard).lock.lock()?))
    }

    /// Locks the right neighbour of a locked leaf.
    pub(super) fn lock_right<'g>(right: Leaf<K, V>, guard: &'g Guard<'_>) -> LockedLeaf<'g, K, V> {
        let Ok(locked) = Self::lock_leaf(right, guard) else {
            unreachable!("a leaf is unlinked under the lock of the leaf on its left")
        };
        locked
    }

    /// Runs `read` on a leaf until everything that it read was of one moment. If `read` returns
    /// `None`, it is called again.
    ///
    /// # Errors
    /// The leaf is unlinked.
    #[inline]
    pub(super) fn consistent<R>(
        &self,
        leaf: &Leaf<K, V>,
        mut read: impl FnMut(LeafReading<'_>) -> Option<R>,
    ) -> Result<R, Obsolete> {
        let lock = &leaf.header().lock;
        for _ in 0..RETRIES {
            let version = lock.read()?;
            let done = read(LeafReading(Some((lock, version))));
            point("tree.read.before_validate");
            let valid = check!("tree.read.validate", lock.validate(version));
            if let (true, Some(done)) = (valid, done) {
                return Ok(done);
            }
        }
        loop {
            let held = lock.lock()?;
            let done = read(LeafReading(None));
            held.unlock_unchanged();
            if let Some(done) = done {
                return Ok(done);
            }
        }
    }

    /// Searches one leaf for the key, at a snapshot or in the latest state. Returns `None` if the
    /// read was torn.
    #[inline]
    fn seek(
        &self,
        leaf: Leaf<K, V>,
        probe: &Probe<'_, K>,
        snapshot: Option<Epoch>,
        reading: LeafReading<'_>,
    ) -> Option<Seek<K, V>> {
        point("tree.seek.begun");
        let found = leaf.find(probe, self.simd);
        point("tree.seek.found");
        let mut found = found.map(|slot| {
            let word = leaf.word(slot);
            point("tree.seek.word_read");
            (word, leaf.deadline(slot))
        });
        point("tree.seek.slot_read");
        if let Some(snapshot) = snapshot {
            match self.log.at_snapshot(leaf, probe, snapshot, reading) {
                Lookup::Slot => {}
                Lookup::Old(OldState::Present { word, deadline }) => found = Some((word, deadline)),
                Lookup::Old(OldState::Absent) => return Some(Seek::Absent),
                Lookup::Torn => return None,
            }
        }
        Some(match found {
            Some((word, deadline)) => Seek::Found { word, deadline },
            None if leaf.covers(probe) => Seek::Absent,
            None => leaf.next().map_or(Seek::Absent, Seek::Right),
        })
    }

    /// Returns word and deadline of the key, at a snapshot or in the latest state.
    #[inline]
    fn find(
        &self,
        probe: &Probe<'_, K>,
        snapshot: Option<Epoch>,
        guard: &Guard<'_>,
    ) -> Option<(u64, u64)> {
        let leaf = Self::leaf_at(self.search.find(probe.key, false, guard));
        leaf.prefetch(probe);
        self.find_from(leaf, probe, snapshot, guard)
    }

    /// Works like [`Tree::find`], but begins at a leaf that the search layer has returned.
    #[inline]
    pub(super) fn find_from(
        &self,
        mut leaf: Leaf<K, V>,
        probe: &Probe<'_, K>,
        snapshot: Option<Epoch>,
        guard: &Guard<'_>,
    ) -> Option<(u64, u64)> {
        loop {
            match self.consistent(&leaf, |reading| self.seek(leaf, probe, snapshot, reading)) {
                Ok(Seek::Found { word, deadline }) => return Some((word, deadline)),
                Ok(Seek::Absent) => return None,
                Ok(Seek::Right(next)) => leaf = next,
                Err(Obsolete) => leaf = Self::leaf_at(self.search.find(probe.key, false, guard)),
            }
        }
    }

    /// Calls `read` with value and deadline of the key. O(log n).
    #[inline]
    pub fn get<R>(
        &self,
        probe: &Probe<'_, K>,
        snapshot: Option<Epoch>,
        guard: &Guard<'_>,
        read: impl FnOnce(&V, u64) -> R,
    ) -> Option<R> {
        let (word, deadline) = self.find(probe, snapshot, guard)?;
        Some(Leaf::<K, V>::with_value(word, |value| read(value, deadline)))
    }

    /// Calls `read` with the entry number `place`, modulo the number of entries, of the leaf that
    /// covers the key. The entries are in no particular order. Returns `None` if the leaf is empty.
    /// O(log n).
    pub fn near<R>(
        &self,
        key: &K,
        place: usize,
        guard: &Guard<'_>,
        read: impl FnOnce(&K, &V, u64) -> R,
    ) -> Option<R> {
        let entry = loop {
            let leaf = Self::leaf_at(self.search.find(key, false, guard));
            let chosen = self.consistent(&leaf, |_| {
                let slot = leaf.slots().nth(place % leaf.count().max(1));
                Some(slot.map(|slot| leaf.entry(slot)))
            });
            if let Ok(chosen) = chosen {
                break chosen?;
            }
        };
        Some(Leaf::<K, V>::with_key(&entry, |key| {
            Leaf::<K, V>::with_value(entry.word, |value| read(key, value, entry.deadline))
        }))
    }

    /// Returns the leaf that covers the key, locked. If `from` is given, the search begins there;
    /// the search layer has returned it under the same guard.
    #[inline]
    pub(super) fn lock<'g>(
        &self,
        probe: &Probe<'_, K>,
        mut from: Option<LeafAddress>,
        guard: &'g Guard<'_>,
    ) -> LockedLeaf<'g, K, V> {
        let look = |address| {
            let leaf = Self::leaf_at(address);
            // Reading the version waits for the header; the buckets arrive in the meantime.
            leaf.prefetch(probe);
            leaf.prefetch_next_bucket(probe);
            leaf.header().lock.try_read().ok().flatten()
        };
        'search: loop {
            // `locate_many` has prefetched what the write needs.
            let prefetched = from.is_some();
            let (address, covered) = match from.take() {
                Some(address) => (address, None),
                None if K::HEAD_IS_KEY => (self.search.find(probe.key, false, guard), None),
                // With byte strings, the high fence is a record of the next leaf: two more cache
                // misses.
                None => self.search.find_fenced(probe.key, look, guard),
            };
            let mut leaf = Self::leaf_at(address);
            if !prefetched {
                leaf.prefetch(probe);
                leaf.prefetch_next_bucket(probe);
            }
            point("tree.lock.searched");
            if let Some(version) = covered {
                let lock = &Self::header(&leaf, guard).lock;
                let unchanged = if fault!("tree.lock.upgrades") {
                    lock.lock().ok()
                } else {
                    lock.try_upgrade(version)
                };
                if let Some(lock) = unchanged {
                    debug_assert!(leaf.covers(probe), "a leaf keeps its fence with its version");
                    return LockedLeaf::new(leaf, lock);
                }
            }
            loop {
                let Ok(locked) = Self::lock_leaf(leaf, guard) else { continue 'search };
                debug_assert!(
                    leaf.with_low_fence(
                        |low_fence| low_fence.is_none_or(|low_fence| low_fence <= probe.key)
                    ),
                    "a search ends at or before the key's leaf, and scans go to the right"
                );
                if leaf.covers(probe) {
                    return locked;
                }
                let next = leaf.next();
                locked.unlock_unchanged();
                leaf = next.expect("the last leaf covers every key above its low fence");
            }
        }
    }

    /// Returns whether a live snapshot still needs the current state of the key.
    #[inline]
    pub(super) fn needs_undo(
        &self,
        leaf: Leaf<K, V>,
        probe: &Probe<'_, K>,
        scope: &WriteScope<'_>,
    ) -> bool {
        let youngest = scope.seen_by();
        if check!("tree.write.pushes", youngest == Epoch::ZERO) {
            return false;
        }
        let largest = leaf.header().newest_end.load(Ordering::Relaxed);
        largest <= youngest || !self.log.covers(leaf, probe, youngest)
    }

    /// Changes the entry of the key as `step` decides, atomically. Returns the word of the new
    /// entry, or 0 if there is none. `from` is the address that [`Tree::locate_many`] returned for
    /// the key under the guard of `scope`. O(log n).
    ///
    /// # Errors
    /// Returns the errors of [`WriteStep::prepare`], and [`Error::ValueTooLong`]. Nothing is
    /// changed.
    pub fn apply<S: WriteStep<V>>(
        &self,
        probe: &Probe<'_, K>,
        mut from: Option<LeafAddress>,
        scope: &WriteScope<'_>,
        step: &mut S,
    ) -> Result<u64, Error> {
        loop {
            let locked = self.lock(probe, from.take(), scope.guard);
            let leaf = locked.leaf();
            let slot = leaf.find(probe, self.simd);
            let old = slot.map(|slot| leaf.entry(slot));
            let change = match &old {
                None => step.decide(None),
                Some(old) => {
                    let decide = |value: &V| step.decide(Some((value, old.deadline)));
                    Leaf::<K, V>::with_value(old.word, decide)
                }
            };
            let (put, slot) = match (change, slot) {
                (Change::Keep, _) | (Change::Remove, None) => {
                    locked.unlock_unchanged();
                    return Ok(0);
                }
                (Change::Put(_), None) if leaf.count() >= self.slots => {
                    self.make_room(locked, probe, scope.guard);
                    continue;
                }
                (Change::Put(put), slot) => (Some(put), slot),
                (Change::Remove, slot) => (None, slot),
            };
            let shrinks = old.map_or(0, |old| Self::cost_of(old.word, old.deadline));
            let undo = self.needs_undo(leaf, probe, scope);
            // Borrowed once, because a caller's `Borrow` may return something else the next time.
            let put: Option<(&V, u64)> =
                put.as_ref().map(|(value, deadline)| (value.borrow(), *deadline));
            if let Some((value, deadline)) = &put {
                let grows = Self::cost(probe.key, value, *deadline);
                let kept = if is_inline::<K, V>() { 0 } else { shrinks };
                let undo = if undo { self.log.next_push() + kept } else { 0 };
                let cost = WriteCost { grows, shrinks, undo, deadline: *deadline, room: false };
                if let Err(refused) = value.check().and_then(|()| step.prepare(cost)) {
                    locked.unlock_unchanged();
                    return Err(refused);
                }
            }
            let mut outcome = WriteOutcome {
                before: old.map(|old| old.deadline),
                after: put.map(|(_, deadline)| deadline),
                shrinks,
                ..WriteOutcome::default()
            };
            let entry = SlotWrite { probe, old: slot.zip(old), undo };
            let in_place = self.write(&locked, &entry, put, scope, &mut outcome);
            let live = || step.live();
            self.prune_and_unlock(locked, in_place, live, scope.guard, &mut outcome);
            let sparse = outcome.after.is_none() && leaf.count() <= self.slots / 4;
            if sparse {
                self.merge_around(leaf, scope.guard);
            }
            // Passed by reference: a copy would wait for the stores above.
            step.done(&outcome);
            return Ok(outcome.word);
        }
    }

    /// Unlocks a leaf after a write, and prunes its undo records first if that is due.
    #[inline]
    pub(super) fn prune_and_unlock(
        &self,
        leaf: LockedLeaf<'_, K, V>,
        in_place: bool,
        live: impl Fn() -> Option<LiveEpochs>,
        guard: &Guard<'_>,
        outcome: &mut WriteOutcome,
    ) {
        if self.log.is_prune_due(leaf.leaf())
            && let Some(live) = live()
        {
            let present = |key: &K| leaf.find(&Probe::new(key), self.simd).is_some();
            outcome.undo.1 = self.log.prune(&leaf, &live, &present, guard);
            drop(leaf);
        } else if in_place {
            leaf.unlock_unchanged();
        } else {
            drop(leaf);
        }
    }

    /// Reports to the search layer that the number of entries of a locked leaf is about to change,
    /// or that it gets its first deadline. The leaf covers `key`.
    #[inline]
    pub(super) fn report(&self, leaf: &LeafMut<'_, K, V>, key: &K, guard: &Guard<'_>) {
        #[cold]
        fn report<K: Key + ?Sized, V: Value + ?Sized>(
            tree: &Tree<K, V>,
            leaf: &LeafMut<'_, K, V>,
            key: &K,
            guard: &Guard<'_>,
        ) {
            leaf.forget_count();
            point("tree.report.forgotten");
            tree.search.report(key, leaf.leaf().address(), guard);
        }
        // loom treats `SeqCst` as `AcqRel`, so under loom a fence follows the lock.
        if cfg!(any(loom, shuttle)) {
            fence(Ordering::SeqCst);
        }
        if notice!("tree.count.reports", leaf.is_counted()) {
            report(self, leaf, key, guard);
        }
    }

    /// Stores a new state under the leaf's lock, after its undo record. Returns whether readers
    /// need no new version.
    #[inline]
    fn write(
        &self,
        leaf: &LeafMut<'_, K, V>,
        entry: &SlotWrite<'_, K>,
        put: Option<(&V, u64)>,
        scope: &WriteScope<'_>,
        outcome: &mut WriteOutcome,
    ) -> bool {
        let SlotWrite { probe, old, undo } = *entry;
        let pushes_late = fault!("tree.write.slot_first");
        let push = |outcome: &mut WriteOutcome| {
            point("tree.write.before_push");
            let state = old.map_or(OldState::Absent, |(_, old)| OldState::Present {
                word: old.word,
                deadline: old.deadline,
            });
            outcome.undo.0 += self.log.push(leaf, probe, state, scope.epoch, scope.seen_by());
            point("tree.write.pushed");
        };
        let Some((value, deadline)) = put else {
            let Some((slot, old)) = old else { return true };
            self.report(leaf, probe.key, scope.guard);
            if undo {
                push(outcome);
            }
            leaf.clear(slot);
            if !undo {
                Self::retire(old.word, scope.guard);
            }
            // Readers of the emptied slot need the new version.
            return fault!("tree.remove.new_version");
        };
        // A word in a record is overwritten in place unless the record becomes part of the undo
        // list.
        if let (Some((_, old)), false) = (old, undo)
            && !is_inline::<K, V>()
            && V::IN_PLACE
            && old.deadline == deadline
        {
            #[expect(unsafe_code, reason = "the record of a locked entry")]
            // SAFETY: the leaf's lock is held.
            let done =
                Leaf::<K, V>::record(old.word).is_some_and(|at| unsafe { at.overwrite(value) });
            debug_assert!(done, "words are overwritten");
            return true;
        }
        if undo && !pushes_late {
            push(outcome);
        }
        let word = match value.to_word() {
            Some(word) if K::HEAD_IS_KEY => word,
            _ => Leaf::word_of(probe, Record::new_in(self.arena_if_large(), probe.key, value)),
        };
        outcome.word = word;
        match old {
            None => {
                self.report(leaf, probe.key, scope.guard);
                let entry = LeafEntry { key: probe.head, word, deadline };
                let done = leaf.put(probe, entry);
                debug_assert!(done, "the leaf has room");
            }
            Some((slot, old)) => {
                let timed = leaf.has_deadlines() || deadline != FOREVER;
                if notice!("tree.count.reports_deadlines", timed) {
                    self.report(leaf, probe.key, scope.guard);
                }
                leaf.set_word(slot, word);
                leaf.set_deadline(slot, deadline);
                if !undo {
                    Self::retire(old.word, scope.guard);
                }
                if undo && pushes_late {
                    push(outcome);
                }
                return !timed;
            }
        }
        false
    }

    /// Returns the record of an entry, or `None` if key and value are stored in the slot.
    pub fn record(word: u64) -> Option<Record<K, V>> {
        if is_inline::<K, V>() { None } else { Leaf::<K, V>::record(word) }
    }

    /// Returns the words of all entries, by leaf, in the order of keys. To be called while no
    /// thread writes.
    pub fn words(&self) -> Vec<Vec<u64>> {
        let leaves = std::iter::successors(Some(self.first), |leaf| leaf.next());
        let words = leaves.map(|leaf| {
            let copy = leaf.copy();
            copy.words[..copy.count].to_vec()
        });
        words.collect()
    }

    /// Retires the record of a word that no snapshot needs.
    pub(super) fn retire(word: u64, guard: &Guard<'_>) {
        if is_inline::<K, V>() {
            return;
        }
        if let Some(record) = Leaf::<K, V>::record(word) {
            #[expect(unsafe_code, reason = "the record left its slot")]
            // SAFETY: unlinked under the leaf's lock, by this thread only.
            unsafe {
                record.retire(guard)
            };
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Tree<K, V> {
    fn drop(&mut self) {
        // From now on, slabs are freed as they become empty.
        self.arena = None;
        let mut next = Some(self.first);
        while let Some(leaf) = next {
            next = leaf.next();
            if !is_inline::<K, V>() {
                let copy = leaf.copy();
                for word in &copy.words[..copy.count] {
                    #[expect(unsafe_code, reason = "the tree is gone")]
                    // SAFETY: no other thread uses the tree.
                    let _ = Leaf::<K, V>::record(*word).map(|record| unsafe { record.free() });
                }
            }
            #[expect(unsafe_code, reason = "the tree is gone")]
            // SAFETY: as above.
            unsafe {
                leaf.free()
            };
        }
    }
}
