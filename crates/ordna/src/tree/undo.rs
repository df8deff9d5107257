//! Undo records: what live snapshots still need of entries that have changed.
//!
//! # Contract
//! An undo record says: up to the term before `dead`, the key had the state `old` (a value, or
//! absent). Records of a leaf form a list in order of death, youngest first. [`Log::push`],
//! [`Log::prune`], [`Log::divide`] and [`Log::merge`] need the leaf's lock. [`Log::lookup`] needs a
//! guard and the leaf's version, and a live snapshot; its result is to be validated.
//!
//! # Memory
//! Records stand in chunks that one thread's stripe fills in the order of terms. A chunk is retired
//! whole once no snapshot older than its last death lives, without a visit to its leaves: their
//! links then dangle. A link carries the death of its target, and is followed only while a snapshot
//! below that death lives or may live, or, by writers, above the *horizon*, the largest death
//! retired.
//!
//! # Invariants
//! 1. Deaths do not rise along a list. The leaf's `dead` is the death of its first record.
//!    A reader follows a link only if the leaf still has the version that it reads at.
//! 2. *Pin first.* A thread pins before it reads the youngest snapshot or the horizon, so a chunk
//!    that is retired later outlives what the thread does with them.
//! 3. A record is *needed* while a snapshot in [p, dead) lives, p being the death of the key's next
//!    older record, or 0. [`Log::prune`] judges deaths up to `settled` + 1 only: a snapshot to come has
//!    a term above `settled`, and so needs no older record.
//! 4. A chunk owns the records of byte strings in `old`; a prune takes them out with a swap, unless
//!    the chunk is gone. Either the prune or the end of the chunk gives back what a record took.
//!
//! # Orders of stores
//! A writer stores the undo record, then the leaf's `dead`, then the slot. A reader loads the slot,
//! then `dead`, then the list. If the slot's word is new, the reader sees the record; if it is old,
//! it equals what the record says. So an overwrite in place needs no new version.
//!
//! Source: the versions of Nitro (§3), turned round: the entry holds the latest state.

#![expect(unsafe_code, reason = "records are followed by address")]

use std::ptr::{self, NonNull};

use super::chunks::{CHUNK, Gone, Stripe, Undo, stripe_of};
use super::leaf::{ADDRESS, Entry, FOREVER, Leaf, Probe, is_inline};
use ordna_base::reclaim::Guard;
use ordna_base::record::Record;
use ordna_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use ordna_base::sync::{Version, VersionLock, check, fault, point, stripe_of_this_thread};
use ordna_base::{Key, Value};

/// Threads that push at once without waiting for each other.
const STRIPES: usize = 32;
/// Pushes onto a leaf between two prunes, at least; fewer with tiny leaves.
const PRUNE_AFTER: u64 = 16;
/// The countdown's place above the address.
const COUNTDOWN: u32 = 48;

/// The state of a key before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The key was absent.
    Absent,
    /// The key's word and deadline.
    Present { word: u64, deadline: u64 },
}

/// What a list says about a key at a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Nothing: the slot is the answer.
    Slot,
    /// The key had this state.
    Old(State),
    /// What was read is of no single moment.
    Torn,
}

/// The live snapshots, oldest first, and the settled term of the same moment.
pub struct LiveTerms {
    /// The terms of the live snapshots.
    pub terms: Vec<u64>,
    /// The settled term.
    pub settled: u64,
}

impl LiveTerms {
    /// Whether a snapshot in [from, to) lives.
    fn has_within(&self, from: u64, to: u64) -> bool {
        let at = self.terms.partition_point(|term| *term < from);
        self.terms.get(at).is_some_and(|term| *term < to)
    }
}

/// A reader's hold on a leaf: the version that it reads at, or `None` under the lock.
#[derive(Clone, Copy)]
pub struct Reading<'a>(pub Option<(&'a VersionLock, Version)>);

impl Reading<'_> {
    /// Whether the leaf is as it was when the reading began. Asked before a link is followed: a
    /// link and a death of two moments may lead to a chunk that is gone.
    fn holds(self) -> bool {
        self.0.is_none_or(|(lock, version)| {
            check!("undo.walk.follows_torn_links", lock.validate(version))
        })
    }
}

/// A record in a list, as prunes and splits handle it.
#[derive(Clone, Copy)]
struct Linked(NonNull<Undo>);

/// All undo records of a tree.
pub struct Log<K: Key + ?Sized, V: Value + ?Sized> {
    stripes: Box<[Stripe<K, V>]>,
    /// Chunks whose deaths are all at most this may be gone.
    horizon: AtomicU64,
    /// Chunks in stripes.
    chunks: AtomicUsize,
    /// Pushes onto a leaf between two prunes, at least.
    prune_after: u64,
}

impl Linked {
    fn get(&self) -> &Undo {
        // SAFETY: a record that the caller may follow, see the module's invariants.
        unsafe { self.0.as_ref() }
    }

    fn at(address: u64) -> Option<Self> {
        let address = ptr::with_exposed_provenance_mut((address & ADDRESS) as usize);
        NonNull::new(address).map(Self)
    }

    fn address(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    fn dead(self) -> u64 {
        self.get().dead.load(Ordering::Acquire) >> 1
    }

    fn state(self) -> State {
        if self.get().dead.load(Ordering::Acquire) & 1 == 0 {
            return State::Absent;
        }
        let word = self.get().old.load(Ordering::Acquire);
        State::Present { word, deadline: self.get().deadline.load(Ordering::Relaxed) }
    }

    /// Whether the record is of this key; `None` if its record was taken out.
    fn is_of<K: Key + ?Sized, V: Value + ?Sized>(self, probe: &Probe<'_, K>) -> Option<bool> {
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

impl<K: Key + ?Sized, V: Value + ?Sized> Log<K, V> {
    /// An empty log of leaves with so many slots.
    pub fn new(slots: usize) -> Self {
        Self {
            prune_after: PRUNE_AFTER.min(slots as u64),
            stripes: (0..STRIPES).map(|_| Stripe::new()).collect(),
            horizon: AtomicU64::new(0),
            chunks: AtomicUsize::new(0),
        }
    }

    /// Bytes that this thread's next push takes beside what it keeps: those of a chunk if it begins
    /// one.
    pub fn next_push(&self) -> usize {
        let stripe = &self.stripes[stripe_of_this_thread() % STRIPES];
        if stripe.has_room() { 0 } else { CHUNK }
    }

    pub fn horizon(&self) -> u64 {
        self.horizon.load(Ordering::Acquire)
    }

    /// Records in lists, and bytes of chunks and of what they own.
    pub fn size(&self) -> (usize, usize) {
        self.stripes
            .iter()
            .map(Stripe::held)
            .fold((0, 0), |(records, bytes), held| (records + held.records, bytes + held.bytes()))
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.load(Ordering::Acquire) == 0
    }

    /// Whether the key has a record with a death above `youngest`: then no snapshot needs another.
    pub fn covers(&self, leaf: Leaf<K, V>, probe: &Probe<'_, K>, youngest: u64) -> bool {
        let mut rest = Walk::of(leaf);
        while let Some(record) = rest.next_above(youngest) {
            if record.is_of::<K, V>(probe) == Some(true) {
                return true;
            }
        }
        false
    }

    /// What the leaf's list says about the key at a snapshot that lives. To be called after the
    /// slot was
    /// read, and to be validated.
    #[inline]
    pub fn at_snapshot(
        &self,
        leaf: Leaf<K, V>,
        probe: &Probe<'_, K>,
        snapshot: u64,
        reading: Reading<'_>,
    ) -> Lookup {
        if leaf.header().dead.load(Ordering::Acquire) <= snapshot {
            return Lookup::Slot;
        }
        self.lookup(leaf, probe, snapshot, reading)
    }

    fn lookup(
        &self,
        leaf: Leaf<K, V>,
        probe: &Probe<'_, K>,
        snapshot: u64,
        reading: Reading<'_>,
    ) -> Lookup {
        let (mut rest, mut found) = (Walk::of(leaf), Lookup::Slot);
        while rest.dead > snapshot {
            if !reading.holds() {
                return Lookup::Torn;
            }
            let Some(record) = rest.next_above(snapshot) else { break };
            match record.is_of::<K, V>(probe) {
                Some(true) => found = Lookup::Old(record.state()),
                Some(false) => {}
                None => return Lookup::Torn,
            }
        }
        found
    }

    /// Calls `each` with key and state of every record with a death above the snapshot, youngest
    /// first.
    /// `false` if the list is of no single moment.
    pub fn for_each_above(
        &self,
        leaf: Leaf<K, V>,
        snapshot: u64,
        reading: Reading<'_>,
        mut each: impl FnMut(Entry, State),
    ) -> bool {
        let mut rest = Walk::of(leaf);
        while rest.dead > snapshot {
            if !reading.holds() {
                return false;
            }
            let Some(record) = rest.next_above(snapshot) else { break };
            let old = record.get().old.load(Ordering::Acquire);
            if !K::HEAD_IS_KEY && old & ADDRESS == 0 {
                return false;
            }
            let key = record.get().key.load(Ordering::Relaxed);
            each(Entry { key, word: old, deadline: FOREVER }, record.state());
        }
        true
    }

    /// Adds a record to the leaf's list: the key had `state` up to the term before `dead`. Byte
    /// strings:
    /// the list owns the record of the state from now on. Returns the bytes that this took.
    pub fn push(&self, leaf: Leaf<K, V>, probe: &Probe<'_, K>, state: State, dead: u64) -> usize {
        let (old, deadline, present) = match state {
            State::Absent if K::HEAD_IS_KEY => (0, FOREVER, 0),
            State::Absent => {
                (Leaf::word_of(probe, Record::new(probe.key, V::placeholder())), FOREVER, 0)
            }
            State::Present { word, deadline } => (word, deadline, 1),
        };
        let header = leaf.header();
        debug_assert!(header.dead.load(Ordering::Relaxed) <= dead, "deaths ascend within a list");
        let (mut head, mut next_dead) =
            (header.undo.load(Ordering::Relaxed), header.dead.load(Ordering::Relaxed));
        if next_dead <= self.horizon() {
            // No thread follows links from here on: the list begins anew.
            (head, next_dead) = (0, 0);
        }
        let record = Undo {
            key: AtomicU64::new(if K::HEAD_IS_KEY { probe.head } else { probe.hash }),
            old: AtomicU64::new(old),
            deadline: AtomicU64::new(deadline),
            dead: AtomicU64::new(dead << 1 | present),
            next: AtomicU64::new(head & ADDRESS),
            next_dead: AtomicU64::new(next_dead),
        };
        let owned = Self::owned_bytes(old);
        let number = stripe_of_this_thread() % STRIPES;
        let (at, begins) = self.stripes[number].push(number, record, dead, owned);
        if begins {
            self.chunks.fetch_add(1, Ordering::Release);
        }
        let taken = owned + if begins { CHUNK } else { 0 };
        let address = Linked(at).address();
        let countdown = (head >> COUNTDOWN).saturating_sub(1);
        let countdown = if head == 0 { self.prune_after } else { countdown };
        // Release: a reader that follows the link sees the record.
        header.undo.store(address | countdown << COUNTDOWN, order_of_head());
        point("undo.push.before_dead");
        if !fault!("undo.push.dead") {
            // Release: a reader that sees the death sees the record in front of the list.
            header.dead.store(dead, order_of_death());
        }
        taken
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
        leaf: Leaf<K, V>,
        live: &LiveTerms,
        is_present: &dyn Fn(&K) -> bool,
        guard: &Guard<'_>,
    ) -> usize {
        let all = self.collect(leaf);
        let key = |at: &usize| all[*at].get().key.load(Ordering::Relaxed);
        let mut by_key: Vec<usize> = (0..all.len()).collect();
        // Stable: the youngest record of a key comes first.
        by_key.sort_by_key(key);
        let mut keeps = vec![false; all.len()];
        for group in by_key.chunk_by(|one, other| key(one) == key(other)) {
            let mut above: Vec<Linked> = Vec::new();
            for (nth, at) in group.iter().enumerate() {
                let record = all[*at];
                let older = |other: &&usize| Self::same_key(all[**other], record);
                let before = group[nth + 1..].iter().find(older).map_or(0, |at| all[*at].dead());
                let dead = record.dead();
                let from = if fault!("undo_order.prune.keeper") { before + 1 } else { before };
                let needed = dead > live.settled + 1 || live.has_within(from, dead);
                // "Absent" below an absent state that stays says nothing new.
                let redundant = record.state() == State::Absent
                    && match above.iter().rev().find(|other| Self::same_key(**other, record)) {
                        Some(younger) => younger.state() == State::Absent,
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
    pub fn divide(&self, left: Leaf<K, V>, right: Leaf<K, V>, boundary: &K) {
        let stay = |record: &Linked| record.with_key::<K, V, _>(|key| key < boundary) == Some(true);
        let (low, high): (Vec<_>, Vec<_>) = self.collect(left).into_iter().partition(stay);
        self.relink(left, &low);
        if !fault!("undo.divide.forgets") {
            let mut high = high;
            high.extend(self.collect(right));
            high.sort_by_key(|record| std::cmp::Reverse(record.dead()));
            self.relink(right, &high);
        }
    }

    /// Whether the two leaves have more than so many records together. O(`limit`).
    pub fn are_beyond(&self, leaves: [Leaf<K, V>; 2], limit: usize) -> bool {
        let horizon = self.horizon();
        let mut left = limit + 1;
        for leaf in leaves {
            let mut rest = Walk::of(leaf);
            while left > 0 && rest.next_above(horizon).is_some() {
                left -= 1;
            }
        }
        left == 0
    }

    /// Moves all records of `from` to `to`, in order of death.
    pub fn merge(&self, to: Leaf<K, V>, from: Leaf<K, V>) {
        let mut all = self.collect(to);
        all.extend(self.collect(from));
        if !fault!("undo.merge.sorts") {
            all.sort_by_key(|record| std::cmp::Reverse(record.dead()));
        }
        self.relink(to, &all);
        self.relink(from, &[]);
    }

    /// Whether the leaf's list is in order of death and all its keys satisfy `belongs`. At rest.
    pub fn is_sound(&self, leaf: Leaf<K, V>, belongs: impl Fn(&K) -> bool) -> bool {
        let all = self.collect(leaf);
        let first = all.first().map_or(0, |first| first.dead());
        let largest = leaf.header().dead.load(Ordering::Relaxed);
        all.is_sorted_by(|one, other| one.dead() >= other.dead())
            && (largest <= self.horizon() || largest == first)
            && all.iter().all(|record| record.with_key::<K, V, _>(&belongs) == Some(true))
    }

    /// Retires the chunks whose deaths are all at most `horizon`: no snapshot below it lives, none
    /// will,
    /// and no writer is in a term up to it. Returns the bytes given back.
    pub fn free(&self, horizon: u64, guard: &Guard<'_>) -> usize {
        if self.is_empty() || horizon == 0 {
            return 0;
        }
        // Before the first chunk goes: a writer that reads the horizon later follows no link into
        // it.
        let late = fault!("undo.free.horizon_first");
        if !late {
            self.horizon.fetch_max(horizon, Ordering::AcqRel);
        }
        point("undo.free.before_chunks");
        let (mut freed, mut gone) = (0, Gone::new());
        for stripe in &self.stripes {
            let held = stripe.take_gone(horizon, &mut gone);
            freed += held.bytes();
            if held.chunks > 0 {
                self.chunks.fetch_sub(held.chunks, Ordering::Release);
            }
        }
        // SAFETY: no link to them is followed from now on (invariant 2), and guards of before keep
        // them.
        unsafe { gone.retire(guard) };
        point("undo.free.chunks_gone");
        if late {
            self.horizon.fetch_max(horizon, Ordering::AcqRel);
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
        let (mut rest, horizon) = (Walk::of(leaf), self.horizon());
        point("undo.collect.horizon_read");
        let next = || {
            let dead = rest.dead;
            let record = rest.next_above(horizon)?;
            debug_assert_eq!(record.dead(), dead, "a link carries the death of its target");
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
    fn relink(&self, leaf: Leaf<K, V>, records: &[Linked]) {
        debug_assert!(
            check!(
                "undo.merge.sorts",
                records.is_sorted_by(|one, other| one.dead() >= other.dead())
            ),
            "the youngest record stands first"
        );
        for (at, record) in records.iter().enumerate() {
            let next = records.get(at + 1);
            let (address, dead) = next.map_or((0, 0), |next| (next.address(), next.dead()));
            record.get().next.store(address, Ordering::Release);
            record.get().next_dead.store(dead, Ordering::Release);
        }
        let countdown = (records.len() as u64).clamp(self.prune_after, u64::from(u16::MAX));
        let first = records.first().map_or(0, |first| first.address());
        let dead = records.first().map_or(0, |first| first.dead());
        leaf.header().undo.store(first | countdown << COUNTDOWN, Ordering::Release);
        leaf.header().dead.store(dead, Ordering::Release);
    }

    /// A record left its list: gives back what it kept, unless its chunk is gone with all that it
    /// kept.
    fn unlinked(&self, record: Linked, guard: &Guard<'_>) -> usize {
        self.stripes[stripe_of(record.0)].unlink(record.0, || {
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

fn order_of_death() -> Ordering {
    if fault!("undo_order.push.death") { Ordering::Relaxed } else { Ordering::Release }
}

/// A walk along a list: a link is followed only if its target's death is above a bound.
struct Walk {
    next: u64,
    dead: u64,
}

impl Walk {
    fn of<K: Key + ?Sized, V: Value + ?Sized>(leaf: Leaf<K, V>) -> Self {
        let header = leaf.header();
        if fault!("undo_order.walk.death_first") {
            let next = header.undo.load(Ordering::Acquire);
            return Self { dead: header.dead.load(Ordering::Acquire), next };
        }
        // The death first: a list that grows meanwhile has its new records in front.
        let dead = header.dead.load(Ordering::Acquire);
        Self { dead, next: header.undo.load(Ordering::Acquire) }
    }

    #[inline]
    fn next_above(&mut self, bound: u64) -> Option<Linked> {
        if self.dead <= bound {
            return None;
        }
        let record = Linked::at(self.next)?;
        self.dead = record.get().next_dead.load(Ordering::Acquire);
        self.next = record.get().next.load(Ordering::Acquire);
        Some(record)
    }
}
