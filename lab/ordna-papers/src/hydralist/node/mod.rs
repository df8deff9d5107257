//! A data node: its layout, and the operations on a single one.
//!
//! # Contract
//! All fields that change are atomics. The lock of the node covers all writes, except to `prev`,
//! which is written under the lock of the predecessor, and to `order`, which belongs to the thread
//! that has set [`BUSY`]. Readers hold a guard of the list's collector. They take a [`Token`] of
//! the node, read, and use what they have read if the token is still valid.
//!
//! # Layout (64 slots)
//!
//! | bytes | field |
//! |---|---|
//! | 0 | the slots, 16 bytes each |
//! | 1024 | the slots' numbers in the order of their keys |
//! | 1088 | a fingerprint for each slot |
//! | 1152 | lock, bitmap of the slots in use, next, previous, head of the anchor, head of the upper bound, version of the sorted order, time of the last split or merge |
//! | 1216 | the number of references, the origin of the memory, the anchor |
//!
//! The search layer uses the same anchor, so a jump that compares it has loaded this end of the
//! node. For an integer, the head is the anchor. A byte string is stored after its length: up to 52
//! bytes are in the 1280 of the node, and the rest of a longer one follows.
//!
//! The head of the upper bound (the next node's anchor) is stored so that a lookup need not access
//! the next node. For byte strings it is sufficient unless the heads are equal.
//!
//! # The sorted order
//! The first scan after a write computes the sorted order (see `order`) and stores it with the
//! version for which it is valid. After a split, the entries of both halves are in slots in sorted
//! order. `BUSY` prevents two scans from writing it concurrently. A scan may read it while another
//! one replaces it, which happens only for a later version. The reader's own token then becomes
//! invalid, because the bytes are stored with release ordering after the later version was read.
//!
//! # Following records
//! A reader follows a record's address before it validates, so the address must be valid whatever
//! has happened since it took its token. It loads the bitmap with acquire ordering, after it has
//! taken its guard. It follows only words of slots that were in use in that bitmap, or that a
//! sorted order names; all of them were in use during the guard. From then on, such a slot contains
//! the record that was in use, or a later one: both are freed after the guard. (The record in an
//! unused slot may have been freed long ago.) The token shows whether it is the right record.
//!
//! # References
//! A node is referred to by the list, by search layers, by log entries, and by the forward pointers
//! of dead nodes. Each of them counts as one reference. The thread that drops the last one retires
//! the node.
//!
//! Source: HydraList §4.1, figure 4.

#![expect(unsafe_code, reason = "nodes are reached by pointers, and hold records")]

mod run;

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cmp::Ordering as Order;
use std::mem::offset_of;
use std::ptr::NonNull;

pub use self::run::{CHUNK, Run};
use super::entry::{NodeEntry, Slot, fingerprint};
pub use ordna_base::order::MOST;
use ordna_base::reclaim::{Guard, Retire};
use ordna_base::simd::{Bytes, InstructionSet};
use ordna_base::slabs::Pool;
use ordna_base::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use ordna_base::sync::{Obsolete, Version, VersionLock, fault, notice, point};
use ordna_base::{Key, Value};

/// Bit that is set while the sorted order is being written.
const BUSY: u64 = 1;
/// Marks the end of an order.
const NO_SLOT: u8 = u8::MAX;

/// No sorted order has been computed yet. Versions have neither bit.
const NO_ORDER: u64 = 2;

/// The way in which a node is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeSearch {
    /// Entries are in sorted order, and are searched by bisection.
    Sorted,
    /// Entries are in any slots, and are searched by fingerprint.
    Fingerprints(Compare),
}

/// The way in which the fingerprints of a node are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Several at a time.
    Vectors(InstructionSet),
    /// Byte by byte, as in the paper before its SIMD step (§6.3.1).
    Bytes,
}

impl Compare {
    /// Returns a bitmap in which bit i shows whether fingerprint i equals `print`.
    #[inline]
    fn equal(self, prints: &Bytes, print: u8) -> u64 {
        match self {
            Self::Vectors(simd) => simd.equal(prints, print),
            Self::Bytes => bytewise(prints, print),
        }
    }

    /// Returns the instructions that compute a sorted order.
    fn instructions(self) -> InstructionSet {
        match self {
            Self::Vectors(simd) => simd,
            Self::Bytes => InstructionSet::SCALAR,
        }
    }
}

/// Compares each byte separately.
fn bytewise(prints: &Bytes, print: u8) -> u64 {
    let mut found = 0;
    for at in 0..Bytes::LEN {
        if prints.get(at) == print {
            found |= 1 << at;
        }
    }
    found
}

/// The error for words that have changed while they were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed;

/// The right to read a node.
#[derive(Debug, Clone, Copy)]
pub enum Token<'a> {
    /// Valid as long as the version is the same.
    Version(&'a VersionLock, Version),
    /// Valid as long as the caller holds the lock.
    Lock,
}

impl Token<'_> {
    /// Returns whether everything that was read under the token is from one moment.
    #[inline]
    pub fn holds(self) -> bool {
        match self {
            Self::Version(lock, version) => lock.validate(version),
            Self::Lock => true,
        }
    }
}

/// An entry with the number of its slot.
type SlotEntry<K, V> = (usize, NodeEntry<K, V>);

/// Entries with their slots, and their number.
type Gathered<K, V> = ([(NodeEntry<K, V>, u8); MOST], usize);

/// A node of the data list. The anchor is at the end of its allocation.
#[repr(C, align(64))]
pub struct Node<K: Key + ?Sized, V: Value + ?Sized, const N: usize> {
    slots: [Slot; N],
    order: Bytes,
    fingerprints: Bytes,
    pub lock: VersionLock,
    live: AtomicU64,
    pub next: AtomicPtr<Self>,
    /// The predecessor or, for a dead node, the node that has taken over its range.
    pub prev: AtomicPtr<Self>,
    anchor_head: u64,
    upper_head: AtomicU64,
    order_version: AtomicU64,
    pub stamp: AtomicU64,
    references: AtomicUsize,
    /// Whether its memory is from a [`Pool`].
    is_pooled: bool,
    kinds: std::marker::PhantomData<Box<V>>,
    /// The fixed part of the anchor. Its tail follows, in the rest of the struct and beyond.
    anchor: K::Cell,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Node<u64, u64, 64>>() == 1280);
#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Node<[u8], u64, 64>>() == 1280);

impl<K: Key + ?Sized, V: Value + ?Sized, const N: usize> Node<K, V, N> {
    /// Two neighbours with fewer entries than this together are merged.
    pub const MERGED: usize = N / 2;

    const ALL: u64 = if N == MOST { u64::MAX } else { (1 << N) - 1 };

    /// Offset of the anchor in the node.
    const ANCHOR: usize =
        if K::HEAD_IS_KEY { offset_of!(Self, anchor_head) } else { offset_of!(Self, anchor) };

    fn layout(tail: usize) -> Layout {
        let size = (offset_of!(Self, anchor) + size_of::<K::Cell>() + tail).max(size_of::<Self>());
        Layout::from_size_align(size, align_of::<Self>())
            .expect("checked lengths stay far below isize")
    }

    /// Creates a pool for the memory of nodes.
    pub fn pool() -> Pool {
        Pool::new(Layout::new::<Self>())
    }

    /// Creates an empty node that no other thread knows yet. It is freed by [`Node::free`].
    pub fn new(anchor: &K, references: usize, pool: &Pool) -> *mut Self {
        const { assert!(N >= 2 && N <= MOST, "a node has 2 to 64 slots") };
        let tail = anchor.tail();
        let layout = Self::layout(tail.len());
        let pooled = if layout.size() == size_of::<Self>() { pool.allocate() } else { None };
        let node = Self {
            slots: std::array::from_fn(|_| Slot::default()),
            order: Bytes::default(),
            fingerprints: Bytes::default(),
            lock: VersionLock::new(),
            live: AtomicU64::new(0),
            next: AtomicPtr::default(),
            prev: AtomicPtr::default(),
            anchor_head: anchor.head(),
            upper_head: AtomicU64::new(0),
            order_version: AtomicU64::new(NO_ORDER),
            stamp: AtomicU64::new(0),
            references: AtomicUsize::new(references),
            is_pooled: pooled.is_some(),
            kinds: std::marker::PhantomData,
            anchor: anchor.cell(),
        };
        // SAFETY: the layout is at least as large as a node. The tail fits after the cell by its
        // construction. It is written last, because writing the node may overwrite its padding.
        unsafe {
            let memory = pooled.map_or_else(|| alloc(layout), NonNull::as_ptr);
            if memory.is_null() {
                handle_alloc_error(layout);
            }
            memory.cast::<Self>().write(node);
            let start = offset_of!(Self, anchor) + size_of::<K::Cell>();
            memory.add(start).copy_from_nonoverlapping(tail.as_ptr(), tail.len());
            // The addresses of anchors lead back to the whole allocation.
            let _ = memory.expose_provenance();
            memory.cast()
        }
    }

    /// Frees a node, but not the records of its entries.
    ///
    /// # Safety
    /// The node was created by [`Node::new`], and no thread uses it now or later.
    pub unsafe fn free(node: *mut Self) {
        // SAFETY: allocated by `new` with the same layout.
        unsafe {
            let layout = Self::layout((*node).anchor().tail().len());
            let is_pooled = (*node).is_pooled;
            node.drop_in_place();
            match NonNull::new(node.cast()) {
                Some(memory) if is_pooled => Pool::free(memory),
                _ => dealloc(node.cast(), layout),
            }
        }
    }

    /// Returns the address of the anchor: a [`Key::cell`], followed by its tail.
    pub fn place(&self) -> usize {
        std::ptr::from_ref(self).addr() + Self::ANCHOR
    }

    /// Returns the address of the node with this [`Node::place`].
    #[inline]
    pub fn at_place(place: usize) -> usize {
        place - Self::ANCHOR
    }

    /// Returns the smallest key that the node may contain.
    #[inline]
    pub fn anchor(&self) -> &K {
        let place = std::ptr::with_exposed_provenance::<u8>(self.place());
        // SAFETY: `new` wrote cell and tail there, and exposed the provenance. They never change.
        unsafe { K::view(place.cast(), place.add(size_of::<K::Cell>())) }
    }

    /// Returns the number of bytes of the anchor that are outside the node.
    pub fn anchor_bytes(&self) -> usize {
        Self::layout(self.anchor().tail().len()).size() - size_of::<Self>()
    }

    #[inline]
    pub fn is_dead(&self) -> bool {
        self.lock.is_obsolete()
    }

    pub fn len(&self) -> usize {
        self.live.load(Ordering::Relaxed).count_ones() as usize
    }

    pub fn is_full(&self) -> bool {
        self.live.load(Ordering::Relaxed) == Self::ALL
    }

    /// Returns a token for reading, or `None` if a writer is inside.
    #[inline]
    pub fn try_read(&self) -> Result<Option<Token<'_>>, Obsolete> {
        Ok(self.lock.try_read()?.map(|version| Token::Version(&self.lock, version)))
    }

    /// Compares the key with the start of the range, which never changes.
    #[inline]
    pub fn compare_anchor(&self, head: u64, key: &K) -> Order {
        let order = head.cmp(&self.anchor_head);
        if K::HEAD_IS_KEY || order != Order::Equal { order } else { key.cmp(self.anchor()) }
    }

    /// Compares the key with the end of the range, which is the anchor of `next`.
    #[inline]
    pub fn compare_upper(&self, head: u64, key: &K, next: &Self) -> Order {
        let order = head.cmp(&self.upper_head());
        if K::HEAD_IS_KEY || order != Order::Equal { order } else { key.cmp(next.anchor()) }
    }

    /// Returns the slot and the entry of the key. They may be used if a token that was taken before
    /// is still valid.
    #[inline]
    pub fn find(&self, key: &K, head: u64, leaf: NodeSearch) -> Option<SlotEntry<K, V>> {
        // Acquire: see "Following records".
        let live = self.live.load(Ordering::Acquire);
        let simd = match leaf {
            NodeSearch::Fingerprints(simd) => simd,
            NodeSearch::Sorted => {
                let count = live.count_ones() as usize;
                let at = self.bisect(
                    count,
                    |at| at,
                    |entry| {
                        // SAFETY: `bisect` passes entries from slots that were in use.
                        unsafe { entry.compare(head, key) }.is_lt()
                    },
                )?;
                let slot = self.slots.get(at).filter(|slot| at < count && slot.head() == head)?;
                point("hydralist.find.head_matched");
                let entry = slot.load();
                return Self::is_key(entry, key).then_some((at, entry));
            }
        };
        let mut candidates = live & simd.equal(&self.fingerprints, fingerprint(key, head));
        while candidates != 0 {
            let at = candidates.trailing_zeros() as usize;
            let slot = &self.slots[at];
            if slot.head() == head {
                point("hydralist.find.head_matched");
                let entry = slot.load();
                if Self::is_key(entry, key) {
                    return Some((at, entry));
                }
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// Returns whether an entry with the key's head has the key.
    #[inline]
    fn is_key(entry: NodeEntry<K, V>, key: &K) -> bool {
        // SAFETY: the slot of the entry was in use while the guard was held.
        K::HEAD_IS_KEY || unsafe { entry.with_key(|own| own == key) }
    }

    /// Prefetches the slot that the key is probably in.
    #[inline]
    pub fn prefetch_slot(&self, key: &K, leaf: NodeSearch) -> Option<&Slot> {
        let NodeSearch::Fingerprints(simd) = leaf else { return None };
        let live = self.live.load(Ordering::Relaxed);
        let candidates = live & simd.equal(&self.fingerprints, fingerprint(key, key.head()));
        let slot = self.slots.get(candidates.trailing_zeros() as usize)?;
        ordna_base::simd::prefetch(slot);
        Some(slot)
    }

    /// Prefetches what a lookup reads first.
    #[inline]
    pub fn prefetch(node: *const Self) {
        Self::prefetch_line(node, offset_of!(Self, lock) / 64);
        Self::prefetch_line(node, offset_of!(Self, fingerprints) / 64);
    }

    /// Prefetches one cache line of a node.
    #[inline]
    fn prefetch_line(node: *const Self, line: usize) {
        ordna_base::simd::prefetch(node.wrapping_byte_add(line * 64));
    }

    /// Number of parts of a node for [`Node::prefetch_part`].
    pub const PARTS: usize = (N * 3 / 4).div_ceil(4) + 1;
    /// Number of parts that a scan prefetches with each chunk of entries.
    pub const AT_ONCE: usize = Self::PARTS.div_ceil(2);

    /// Prefetches a part of what a scan reads of a node through which it passes. The parts that are
    /// read first have the lowest numbers. Slots are filled from the first one on, so the last
    /// quarter is not prefetched.
    #[inline]
    pub fn prefetch_part(node: *const Self, part: usize) {
        if part == 0 {
            Self::prefetch_line(node, offset_of!(Self, lock) / 64);
            Self::prefetch_line(node, offset_of!(Self, order) / 64);
        } else {
            Self::prefetch_line(node, offset_of!(Self, slots) / 64 + part - 1);
        }
    }

    /// Prefetches a node through which a scan is going to pass.
    #[inline]
    pub fn prefetch_scan(node: *const Self) {
        (0..Self::PARTS).for_each(|part| Self::prefetch_part(node, part));
    }

    /// Returns the first of `count` positions whose entry is not `before`, or `None` if the slots
    /// have changed in the meantime.
    fn bisect(
        &self,
        count: usize,
        slot_at: impl Fn(usize) -> usize,
        before: impl Fn(NodeEntry<K, V>) -> bool,
    ) -> Option<usize> {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low.midpoint(high);
            let entry = self.slots.get(slot_at(middle))?.load();
            if before(entry) { low = middle + 1 } else { high = middle }
        }
        Some(low)
    }

    /// Returns the slot at `at`. The caller holds the lock, and `at` came from [`Node::find`].
    pub fn slot(&self, at: usize) -> &Slot {
        &self.slots[at]
    }

    /// Adds an entry whose key is not in the node. The caller holds the lock, and there is room.
    pub fn add(&self, entry: NodeEntry<K, V>, leaf: NodeSearch) {
        // SAFETY: a new entry is alive.
        let print = unsafe { entry.with_key(|key| fingerprint(key, entry.head())) };
        self.put(entry, print, leaf);
    }

    /// Works like [`Node::add`], with the fingerprint of the key.
    fn put(&self, entry: NodeEntry<K, V>, print: u8, leaf: NodeSearch) {
        let live = self.live.load(Ordering::Relaxed);
        debug_assert!(live != Self::ALL);
        let at = if leaf == NodeSearch::Sorted {
            let count = live.count_ones() as usize;
            let mut at = count;
            // SAFETY: entries of a locked node are alive, and so is a new one.
            while at > 0 && unsafe { entry.order(self.slots[at - 1].load()) }.is_lt() {
                self.slots[at].store(self.slots[at - 1].load::<K, V>());
                at -= 1;
            }
            self.slots[at].store(entry);
            count
        } else {
            let at = (!live).trailing_zeros() as usize;
            self.fingerprints.set(at, print);
            self.slots[at].store(entry);
            at
        };
        // Release: a reader of the bit sees the slot.
        self.live.store(live | 1 << at, Ordering::Release);
    }

    /// Removes the entry at `at`. The caller holds the lock.
    pub fn take(&self, at: usize, leaf: NodeSearch) {
        let live = self.live.load(Ordering::Relaxed);
        let mut freed = at;
        if leaf == NodeSearch::Sorted {
            freed = live.count_ones() as usize - 1;
            for at in at..freed {
                self.slots[at].store(self.slots[at + 1].load::<K, V>());
            }
        }
        self.live.store(live & !(1 << freed), Ordering::Release);
    }

    /// Returns the entries and their slots in the order of the slots, and their number.
    #[inline]
    fn entries(&self) -> ([NodeEntry<K, V>; MOST], [u8; MOST], usize) {
        let mut live = self.live.load(Ordering::Acquire);
        let count = live.count_ones() as usize;
        let (mut entries, mut slots) = ([NodeEntry::EMPTY; MOST], [NO_SLOT; MOST]);
        for (entry, slot) in entries.iter_mut().zip(&mut slots).take(count) {
            *slot = live.trailing_zeros() as u8;
            live &= live - 1;
            *entry = self.slots[usize::from(*slot)].load();
        }
        (entries, slots, count)
    }

    /// Returns the entries with their slots, in the order of their keys.
    fn gather(&self, leaf: NodeSearch) -> Gathered<K, V> {
        let (entries, slots, count) = self.entries();
        let places = match leaf {
            // SAFETY: the slots were in use under the caller's guard.
            NodeSearch::Fingerprints(compare) => unsafe {
                NodeEntry::sorted(&entries[..count], compare.instructions())
            },
            NodeSearch::Sorted => std::array::from_fn(|at| at as u8),
        };
        let all = places.map(|place| (entries[usize::from(place)], slots[usize::from(place)]));
        (all, count)
    }

    /// Returns the slots in the order of their keys, followed by [`NO_SLOT`].
    fn sorted_slots(&self, leaf: NodeSearch, token: Token<'_>) -> ([u8; MOST], usize) {
        // Acquire: see "Following records".
        let count = self.live.load(Ordering::Acquire).count_ones() as usize;
        let NodeSearch::Fingerprints(simd) = leaf else {
            return (std::array::from_fn(|at| at as u8), count);
        };
        // Acquire: the bytes belong to this version or a later one.
        let kept = self.order_version.load(Ordering::Acquire);
        let version = match token {
            Token::Version(_, version) => Some(version.number()),
            Token::Lock => None,
        };
        if is_of_version(kept, version) {
            let order = self.order.load();
            // A byte of a later order may name a slot that was filled since. With the fence, this
            // thread sees that record or a later one in the slot, and not one that was freed before
            // this guard.
            fence(Ordering::Acquire);
            return (order, count);
        }
        let (entries, slots, count) = self.entries();
        // SAFETY: the slots were in use under the caller's guard.
        let places = unsafe { NodeEntry::sorted(&entries[..count], simd.instructions()) };
        let order = places.map(|place| slots[usize::from(place)]);
        if let Some(version) = version
            && token.holds()
            && (kept == NO_ORDER || kept & BUSY == 0 && kept < version)
            && self
                .order_version
                .compare_exchange(kept, BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            self.order.store(&order);
            self.order_version.store(version, Ordering::Release);
        }
        (order, count)
    }

    /// Moves the upper half of a full node to a new one, which is not in the list yet, and adds the
    /// entry to the half to which it belongs. The caller holds the lock.
    ///
    /// If the entry belongs after the last entry of the last node, nothing is moved: otherwise keys
    /// in ascending order would leave every node half full.
    pub fn split_off(
        &self,
        leaf: NodeSearch,
        references: usize,
        entry: NodeEntry<K, V>,
        pool: &Pool,
    ) -> *mut Self {
        let (all, count) = self.gather(leaf);
        // SAFETY: entries of a locked node are alive, and so is the new one.
        let is_last = unsafe { all[count - 1].0.order(entry) }.is_lt();
        if is_last && self.next.load(Ordering::Relaxed).is_null() {
            // SAFETY: as above.
            let made = unsafe { entry.with_key(|anchor| Self::new(anchor, references, pool)) };
            // SAFETY: the node is new.
            unsafe { &*made }.add(entry, leaf);
            return made;
        }
        let (stay, go) = all[..count].split_at(count / 2);
        // SAFETY: entries of a locked node are alive, and a full node has at least two.
        let made = unsafe { go[0].0.with_key(|anchor| Self::new(anchor, references, pool)) };
        // SAFETY: the node is new.
        let upper = unsafe { &*made };
        let prints = self.fingerprints.load();
        upper.refill(go, &prints);
        self.refill(stay, &prints);
        // SAFETY: as above, and the new entry is alive.
        if unsafe { entry.order(go[0].0) }.is_lt() {
            self.add(entry, leaf);
        } else {
            upper.add(entry, leaf);
        }
        made
    }

    /// Replaces the contents by these entries, in slots in sorted order, so that a scan finds
    /// neighbours together. Each entry comes with the index of its fingerprint in `prints`. The
    /// caller holds the lock.
    fn refill(&self, entries: &[(NodeEntry<K, V>, u8)], prints: &[u8; MOST]) {
        let mut own = [0; MOST];
        for (at, (entry, from)) in entries.iter().enumerate() {
            own[at] = prints[usize::from(*from)];
            self.slots[at].store(*entry);
        }
        self.fingerprints.store(&own);
        // Release: a reader of the bits sees the slots.
        self.live.store((1 << entries.len()) - 1, Ordering::Release);
    }

    /// Sets the end of the node's range. The caller holds the lock, or no other thread knows the
    /// node.
    pub fn set_next(&self, next: *mut Self, upper_head: u64) {
        self.upper_head.store(upper_head, Ordering::Relaxed);
        // Release: a reader of the link sees the node.
        self.next.store(next, Ordering::Release);
    }

    /// Takes over all entries of `other`. The caller holds both locks, and there is room.
    pub fn absorb(&self, other: &Self, leaf: NodeSearch) {
        let (all, count) = other.gather(leaf);
        for (entry, at) in &all[..count] {
            self.put(*entry, other.fingerprints.get(usize::from(*at)), leaf);
        }
        other.live.store(0, Ordering::Release);
    }

    #[inline]
    pub fn anchor_head(&self) -> u64 {
        self.anchor_head
    }

    pub fn upper_head(&self) -> u64 {
        self.upper_head.load(Ordering::Relaxed)
    }

    /// Adds references. The caller has one already.
    pub fn refer(&self, times: usize) {
        self.references.fetch_add(times, Ordering::Relaxed);
    }

    /// Drops references. The thread that drops the last one retires the node, and drops the
    /// reference that its forward pointer was.
    ///
    /// # Safety
    /// The references belong to the caller, which does not use the node through them afterwards.
    pub unsafe fn release(&self, mut times: usize, guard: &Guard<'_>) {
        let mut node = self;
        loop {
            // Release and acquire: earlier accesses of other threads happen before the node is
            // freed.
            let before = node.references.fetch_sub(times, Ordering::AcqRel);
            debug_assert!(before >= times, "a reference was given up twice");
            if notice!("hydralist.retire.count", before != times) {
                return;
            }
            // Only dead nodes reach this point, because a live one has the list's reference.
            let forward = node.prev.load(Ordering::Acquire);
            // SAFETY: without references, no thread can reach the node any more.
            unsafe { guard.retire(std::ptr::from_ref(node).cast_mut()) };
            // SAFETY: the forward pointer was a reference, so the node is alive.
            let Some(next) = (unsafe { forward.as_ref() }) else { return };
            (node, times) = (next, 1);
        }
    }

    /// Returns the number of references, for the audit.
    pub fn references(&self) -> usize {
        self.references.load(Ordering::Relaxed)
    }

    /// Calls `each` with the slots and their entries, in order, while no thread writes.
    pub fn for_each(&self, leaf: NodeSearch, mut each: impl FnMut(usize, NodeEntry<K, V>)) {
        let (all, count) = self.gather(leaf);
        all[..count].iter().for_each(|(entry, at)| each(usize::from(*at), *entry));
    }

    /// Returns the size of the entries' records in bytes, while no thread writes.
    pub fn record_bytes(&self) -> usize {
        let mut live = self.live.load(Ordering::Acquire);
        let mut bytes = 0;
        while live != 0 {
            let entry = self.slots[live.trailing_zeros() as usize].load::<K, V>();
            // SAFETY: entries of a live node are alive.
            bytes += unsafe { entry.size() };
            live &= live - 1;
        }
        bytes
    }

    pub fn fingerprint_at(&self, at: usize) -> u8 {
        self.fingerprints.get(at)
    }

    /// Frees the records of the entries.
    ///
    /// # Safety
    /// No other thread uses the node now or later.
    pub unsafe fn free_entries(&self) {
        let mut live = self.live.load(Ordering::Relaxed);
        while live != 0 {
            // SAFETY: the caller upholds the contract, and each entry is in one slot.
            unsafe { self.slots[live.trailing_zeros() as usize].load::<K, V>().free() };
            live &= live - 1;
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, const N: usize> Retire for Node<K, V, N> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: the caller upholds the contract. The entries of a dead node are in its heir.
        unsafe { Self::free(memory) }
    }
}

/// Returns whether the stored order belongs to the version that the reader holds.
fn is_of_version(kept: u64, version: Option<u64>) -> bool {
    if fault!("hydralist.order.version") {
        return version.is_some() && kept & 3 == 0 || version == Some(kept);
    }
    version == Some(kept)
}
