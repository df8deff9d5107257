//! Leaves: slots in buckets of one cache line each, a lock, fences, and the list of undo records.
//!
//! # Contract
//! A [`Leaf`] is a handle: the address of a leaf. Its header and lines are atomics, and a thread
//! that dereferences a handle holds a guard of the tree's collector. [`LeafMut`] has the methods
//! that change a leaf whose lock is held or that no other thread knows. Readers take a version
//! first and validate it at the end; everything that they read in between is then of one moment.
//! Two kinds of changes need no new version, see [`LeafMut::set_word`].
//!
//! # Layout
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 64 | lock, next leaf, slots in use, undo list and its largest end epoch, high fence, low fence, deadlines |
//! | 64 | 64 | the order of the slots, and the version it is of |
//! | 128 | 64 each | integers: for each bucket a line of keys and a line of words; byte strings: a line of words |
//! | 576 | 64 | byte strings: fingerprints of the keys in the order of the slots |
//!
//! A *word* is the value if key and value are integers, and otherwise the address of a record. With
//! byte-string keys, its upper 16 bits are a tag from the key's hash, which also determines the
//! bucket. So a reader that knows key and leaf first waits for the header and one bucket, which it
//! fetches together, and then for the record if there is one.
//!
//! # Invariants
//! 1. Bit *i* of `used` says whether slot *i* is in use (bits 0 to 55). A key is in the first
//!    bucket of its probe order, beginning with the bucket of its hash, that had a free slot. Every
//!    bucket that was passed has its overflow bit set (bits 56 to 62). A removal leaves these bits
//!    set; an insert that finds several stale ones recomputes them. Bit 63: the memory comes from a
//!    pool.
//! 2. The keys of a leaf are in [low fence, low fence of the next leaf). `high_fence` is the head
//!    of that high fence, or `u64::MAX` for the last leaf.
//! 3. The low fence never rises: keys move to the right, or together with their whole leaf.
//! 4. The order is valid if its number matches the leaf's version.
//! 5. The lowest bit of `next` says that the search layer has counted the leaf, see `counted`.
//!
//! Source: slotted leaves of HydraList §4.2; Wormhole §2.3, whose tags give direct positions.

#![expect(unsafe_code, reason = "lays out leaves")]

mod counted;
mod locked;
mod ordered;
#[cfg(test)]
mod tests;

pub use locked::{LeafMut, LockedLeaf};

use std::alloc::{Layout, dealloc};
use std::marker::PhantomData;
use std::num::NonZero;
use std::ops::Bound;
use std::ptr::{self, NonNull};

use super::search::LeafAddress;
use crate::epoch::AtomicEpoch;
use ordna_base::index::{is_above, is_below};
use ordna_base::key::head_at;
use ordna_base::order;
use ordna_base::reclaim::Retire;
use ordna_base::record::Record;
use ordna_base::simd::{InstructionSet, LANES, Line, prefetch};
use ordna_base::slabs::Pool;
use ordna_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use ordna_base::sync::{VersionLock, check, point};
use ordna_base::{Key, Value};

/// Number of buckets of a leaf. With seven, header, order and bits fill a size of 1 KiB without
/// waste.
pub const BUCKETS: usize = 7;
/// Slots of a leaf.
pub const SLOTS: usize = BUCKETS * LANES;
const SLOT_BITS: u64 = (1 << SLOTS) - 1;
const OVERFLOW_BITS: u64 = ((1 << BUCKETS) - 1) << SLOTS;
const POOLED: u64 = 1 << 63;
/// The bit of [`LeafHeader::next`] that says that the leaf is counted. It is free because leaves
/// are aligned.
const COUNTED: u64 = 1;
/// The bits of a word that hold a record's address. Linux and macOS give programs 47 or 48 bits.
pub const ADDRESS: u64 = (1 << 48) - 1;
/// Maximum number of bytes of a record that are prefetched, in addition to the last line of its
/// key.
const MOST_AHEAD: usize = 256;
/// Assumed length of an unknown key: such a key ends in the second cache line of its record.
pub const USUAL_KEY: usize = 64;
/// Deadline of an entry that does not expire.
pub const FOREVER: u64 = u64::MAX;

/// One deadline for each slot; [`FOREVER`] if the entry does not expire.
pub type DeadlineLine = [AtomicU64; SLOTS];

/// The fixed part of a leaf, in the order of the layout above.
#[repr(C, align(128))]
pub struct LeafHeader {
    pub lock: VersionLock,
    /// Address of the next leaf, and the bit [`COUNTED`].
    next: AtomicU64,
    used: AtomicU64,
    /// Address of the youngest undo record. Its upper bits hold a countdown to the next prune.
    pub undo: AtomicU64,
    /// The largest end epoch among the undo records.
    pub newest_end: AtomicEpoch,
    high_fence: AtomicU64,
    /// Integers: the low fence; byte strings: the address of its record, or 0 for the first leaf.
    low_fence: AtomicU64,
    deadlines: AtomicPtr<DeadlineLine>,
    order: [AtomicU64; BUCKETS + 1],
}

/// A handle of a leaf: its address.
pub struct Leaf<K: Key + ?Sized, V: Value + ?Sized> {
    header: NonNull<LeafHeader>,
    kinds: PhantomData<(*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Clone for Leaf<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: Key + ?Sized, V: Value + ?Sized> Copy for Leaf<K, V> {}

impl<K: Key + ?Sized, V: Value + ?Sized> PartialEq for Leaf<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

/// A key, prepared for searches in leaves.
pub struct Probe<'a, K: Key + ?Sized> {
    pub key: &'a K,
    pub head: u64,
    pub hash: u64,
    bucket: usize,
}

/// An entry in the form in which a slot holds it.
#[derive(Debug, Clone, Copy)]
pub struct LeafEntry {
    /// The key if it is an integer.
    pub key: u64,
    /// The value, or the tagged address of the record.
    pub word: u64,
    pub deadline: u64,
}

/// Returns whether key and value are integers, which are stored in the slots themselves.
#[inline]
pub const fn is_inline<K: Key + ?Sized, V: Value + ?Sized>() -> bool {
    K::HEAD_IS_KEY && V::IN_PLACE
}

/// Hashes a key. The hash is not keyed: a client that makes keys collide only makes the probes of
/// one leaf longer, at most 56 slots.
#[inline]
fn hash_of<K: Key + ?Sized>(key: &K) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    if K::HEAD_IS_KEY {
        return key.head().wrapping_mul(ODD);
    }
    let bytes = key.tail();
    let mut hash = (bytes.len() as u64).wrapping_mul(ODD);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        hash = (hash ^ chunk.head()).wrapping_mul(ODD);
        hash ^= hash >> 29;
    }
    hash = (hash ^ chunks.remainder().head()).wrapping_mul(ODD);
    (hash ^ (hash >> 32)).wrapping_mul(ODD)
}

/// Returns the bucket of a hash. It uses the bits that are a byte string's tag, so that a word
/// determines its bucket.
#[inline]
fn bucket_of(hash: u64) -> usize {
    (((hash >> 48) * BUCKETS as u64) >> 16) as usize
}

impl<'a, K: Key + ?Sized> Probe<'a, K> {
    #[inline]
    pub fn new(key: &'a K) -> Self {
        let head = key.head();
        let hash = hash_of(key);
        Self { key, head, hash, bucket: bucket_of(hash) }
    }

    /// Returns the upper bits of the key's words.
    #[inline]
    fn tag(&self) -> u64 {
        if K::HEAD_IS_KEY { 0 } else { self.hash & !ADDRESS }
    }
}

/// A copy of the contents of a leaf at one moment.
pub struct LeafCopy<K: Key + ?Sized, V: Value + ?Sized> {
    pub keys: [u64; SLOTS],
    pub words: [u64; SLOTS],
    pub count: usize,
    pub deadlines: Option<Box<[u64; SLOTS]>>,
    pub next: Option<Leaf<K, V>>,
    pub high_fence: u64,
}

impl<K: Key + ?Sized, V: Value + ?Sized> LeafCopy<K, V> {
    pub fn empty() -> Self {
        let (keys, words) = ([0; SLOTS], [0; SLOTS]);
        Self { keys, words, count: 0, deadlines: None, next: None, high_fence: u64::MAX }
    }

    pub fn entry(&self, at: usize) -> LeafEntry {
        let deadline = self.deadlines.as_ref().map_or(FOREVER, |deadlines| deadlines[at]);
        LeafEntry { key: self.keys[at], word: self.words[at], deadline }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Leaf<K, V> {
    const LINES: usize = if K::HEAD_IS_KEY { 2 * BUCKETS } else { BUCKETS + 1 };

    /// Share of an entry in its leaf at the usual fill, in bytes.
    pub const SHARE: usize = Self::LAYOUT.size() * 4 / (SLOTS * 3);

    const LAYOUT: Layout = {
        let size = size_of::<LeafHeader>() + Self::LINES * size_of::<Line>();
        match Layout::from_size_align(size.next_multiple_of(128), 128) {
            Ok(layout) => layout,
            Err(_) => panic!("a power of two"),
        }
    };

    /// Creates a pool for leaves.
    pub fn pool() -> Pool {
        Pool::new(Self::LAYOUT)
    }

    /// Returns the size of a leaf in bytes.
    pub const fn size() -> usize {
        Self::LAYOUT.size()
    }

    /// Returns the address, for the search layer.
    #[inline]
    pub fn address(self) -> LeafAddress {
        LeafAddress::new(self.header.expose_provenance())
    }

    /// # Safety
    /// `address` was returned by [`Leaf::address`] of a leaf with these types of keys and values,
    /// which the caller's guard keeps alive.
    #[inline]
    pub unsafe fn at(address: LeafAddress) -> Self {
        let header = NonNull::with_exposed_provenance(address.get());
        Self { header, kinds: PhantomData }
    }

    #[inline]
    pub fn header(&self) -> &LeafHeader {
        // SAFETY: handles are dereferenced under a guard, see the contract.
        unsafe { self.header.as_ref() }
    }

    #[inline]
    fn line(&self, at: usize) -> &Line {
        debug_assert!(at < Self::LINES);
        // SAFETY: in bounds of the layout.
        unsafe { &*self.header.as_ptr().add(1).cast::<Line>().add(at) }
    }

    #[inline]
    fn keys(&self, bucket: usize) -> &Line {
        self.line(2 * bucket)
    }

    #[inline]
    fn words(&self, bucket: usize) -> &Line {
        self.line(if K::HEAD_IS_KEY { 2 * bucket + 1 } else { bucket })
    }

    /// Prefetches the header and the bucket where a search for the key begins.
    #[inline]
    pub fn prefetch(self, probe: &Probe<'_, K>) {
        prefetch(self.header.as_ptr());
        let line = if K::HEAD_IS_KEY { 2 * probe.bucket } else { probe.bucket };
        let start = self.header.as_ptr().wrapping_add(1).cast::<Line>();
        prefetch(start.wrapping_add(line));
        if K::HEAD_IS_KEY {
            prefetch(start.wrapping_add(line + 1));
        }
    }

    /// Prefetches the next bucket. Two fifths of the inserted keys find their own bucket full.
    #[inline]
    pub fn prefetch_next_bucket(self, probe: &Probe<'_, K>) {
        let bucket = if probe.bucket + 1 == BUCKETS { 0 } else { probe.bucket + 1 };
        let line = if K::HEAD_IS_KEY { 2 * bucket } else { bucket };
        let start = self.header.as_ptr().wrapping_add(1).cast::<Line>();
        prefetch(start.wrapping_add(line));
        if K::HEAD_IS_KEY {
            prefetch(start.wrapping_add(line + 1));
        }
    }

    /// Prefetches the next bucket if the key's bucket is full or passes keys on. The header is
    /// prefetched.
    #[inline]
    pub fn prefetch_if_full(self, probe: &Probe<'_, K>) {
        let used = self.header().used.load(Ordering::Relaxed);
        let is_full = used >> (probe.bucket * LANES) & 0xFF == 0xFF;
        if is_full || used >> (SLOTS + probe.bucket) & 1 == 1 {
            self.prefetch_next_bucket(probe);
        }
    }

    /// Prefetches the header.
    #[inline]
    pub fn prefetch_header(self) {
        prefetch(self.header.as_ptr());
    }

    /// Prefetches all lines.
    #[inline]
    pub fn prefetch_whole(self) {
        for line in 0..Self::LAYOUT.size() / 64 {
            prefetch(self.header.as_ptr().cast::<Line>().wrapping_add(line));
        }
    }

    /// Returns the slots in use.
    #[inline]
    pub fn used(self) -> u64 {
        self.header().used.load(Ordering::Acquire) & SLOT_BITS
    }

    #[inline]
    pub fn count(self) -> usize {
        self.used().count_ones() as usize
    }

    #[inline]
    pub fn next(self) -> Option<Self> {
        let next = self.header().next.load(Ordering::Acquire) & !COUNTED;
        // SAFETY: the address of a leaf with these types, dereferenced under the caller's guard.
        NonZero::new(next as usize).map(|next| unsafe { Self::at(LeafAddress::new(next)) })
    }

    #[inline]
    pub fn high_fence(self) -> u64 {
        self.header().high_fence.load(Ordering::Relaxed)
    }

    /// Returns whether this leaf covers the key, given that the key is not below the low fence. To
    /// be validated.
    #[inline]
    pub fn covers(self, probe: &Probe<'_, K>) -> bool {
        let high = self.high_fence();
        if probe.head != high {
            return check!("tree.leaf.covers", probe.head < high);
        }
        // `high_fence` is the head of the next low fence, or the largest head there is.
        let Some(next) = self.next() else { return true };
        !K::HEAD_IS_KEY
            && next.with_low_fence(|low_fence| {
                low_fence.is_some_and(|low_fence| probe.key < low_fence)
            })
    }

    /// Calls `f` with the low fence. It is `None` for the first leaf of byte strings, whose low
    /// fence is the empty key.
    pub fn with_low_fence<R>(self, f: impl FnOnce(Option<&K>) -> R) -> R {
        Self::with_fence_word(self.low_fence_word(), f)
    }

    /// Returns the low fence, or the address of its record. While a guard is held, equal words mean
    /// equal low fences.
    pub fn low_fence_word(self) -> u64 {
        self.header().low_fence.load(Ordering::Acquire)
    }

    /// Calls `f` with a low fence that a leaf had while the caller held its guard.
    pub fn with_fence_word<R>(low_fence: u64, f: impl FnOnce(Option<&K>) -> R) -> R {
        if K::HEAD_IS_KEY {
            return f(K::from_head(&low_fence));
        }
        // SAFETY: null, or a record that is retired and not freed when it is replaced.
        let record = unsafe {
            Record::<K, u64>::from_ptr(ptr::with_exposed_provenance_mut(low_fence as usize))
        };
        // SAFETY: as above, under the caller's guard.
        f(record.map(|record| unsafe { record.key() }))
    }

    /// Returns the record whose address a word holds.
    #[inline]
    pub fn record(word: u64) -> Option<Record<K, V>> {
        let address = ptr::with_exposed_provenance_mut((word & ADDRESS) as usize);
        // SAFETY: words of these types are addresses of such records, or null.
        unsafe { Record::from_ptr(address) }
    }

    /// Returns the word of a record.
    pub fn word_of(probe: &Probe<'_, K>, record: Record<K, V>) -> u64 {
        let address = record.as_ptr().expose_provenance() as u64;
        assert_eq!(address & !ADDRESS, 0, "addresses have 48 bits on the systems supported");
        address | probe.tag()
    }

    /// Returns the word of a record's copy.
    pub fn word_with(word: u64, copy: Record<K, V>) -> u64 {
        let address = copy.as_ptr().expose_provenance() as u64;
        assert_eq!(address & !ADDRESS, 0, "addresses have 48 bits on the systems supported");
        word & !ADDRESS | address
    }

    /// Returns the slots in use, in ascending order.
    pub fn slots(self) -> impl Iterator<Item = usize> {
        let used = self.used();
        (0..SLOTS).filter(move |slot| used >> slot & 1 == 1)
    }

    /// Returns the slot of the key. To be validated by readers.
    #[inline]
    pub fn find(self, probe: &Probe<'_, K>, simd: InstructionSet) -> Option<usize> {
        let used = self.header().used.load(Ordering::Acquire);
        let mut bucket = probe.bucket;
        for _ in 0..BUCKETS {
            let here = (used >> (bucket * LANES)) as u32 & 0xFF;
            let mut matches = here
                & if K::HEAD_IS_KEY {
                    simd.matching(self.keys(bucket), probe.head, u64::MAX)
                } else {
                    simd.matching(self.words(bucket), probe.tag(), !ADDRESS)
                };
            while matches != 0 {
                let lane = matches.trailing_zeros() as usize;
                if K::HEAD_IS_KEY || self.has_key(bucket, lane, probe.key) {
                    return Some(bucket * LANES + lane);
                }
                matches &= matches - 1;
            }
            if used >> (SLOTS + bucket) & 1 == 0 {
                return None;
            }
            bucket = if bucket + 1 == BUCKETS { 0 } else { bucket + 1 };
        }
        None
    }

    /// Returns the slot of an integer in its own bucket. To be validated by readers.
    #[inline]
    pub fn find_in_bucket(self, probe: &Probe<'_, K>, simd: InstructionSet) -> Option<usize> {
        let first = probe.bucket * LANES;
        let used = self.header().used.load(Ordering::Acquire);
        let matches = simd.matching(self.keys(probe.bucket), probe.head, u64::MAX);
        let matches = matches & (used >> first) as u32 & 0xFF;
        (matches != 0).then(|| first + matches.trailing_zeros() as usize)
    }

    /// Returns the word of the first slot of the key's bucket that may hold the key. To be
    /// validated.
    #[inline]
    pub fn candidate(self, probe: &Probe<'_, K>, simd: InstructionSet) -> Option<u64> {
        let words = self.words(probe.bucket);
        let matches = if K::HEAD_IS_KEY {
            simd.matching(self.keys(probe.bucket), probe.head, u64::MAX)
        } else {
            simd.matching(words, probe.tag(), !ADDRESS)
        };
        (matches != 0).then(|| words.get(matches.trailing_zeros() as usize))
    }

    /// Returns the address in a word.
    #[inline]
    pub fn record_address(word: u64) -> *const u8 {
        ptr::with_exposed_provenance((word & ADDRESS) as usize)
    }

    #[inline]
    fn has_key(&self, bucket: usize, lane: usize, key: &K) -> bool {
        let word = self.words(bucket).0[lane].load(Ordering::Acquire);
        // SAFETY: a record that was in a slot under the caller's guard is not freed.
        Self::record(word).is_some_and(|record| unsafe { record.key::<'_>() } == key)
    }

    /// Returns the word of a slot. Acquire: the record to which the word leads is seen completely.
    #[inline]
    pub fn word(self, slot: usize) -> u64 {
        self.words(slot / LANES).0[slot % LANES].load(Ordering::Acquire)
    }

    #[inline]
    pub fn entry(self, slot: usize) -> LeafEntry {
        let key = if K::HEAD_IS_KEY { self.keys(slot / LANES).get(slot % LANES) } else { 0 };
        LeafEntry { key, word: self.word(slot), deadline: self.deadline(slot) }
    }

    /// Returns whether some entry has or had a deadline.
    pub fn has_deadlines(self) -> bool {
        !self.header().deadlines.load(Ordering::Relaxed).is_null()
    }

    #[inline]
    pub fn deadline(self, slot: usize) -> u64 {
        // SAFETY: null, or a line that lives as long as the leaf.
        let deadlines = unsafe { self.header().deadlines.load(Ordering::Acquire).as_ref() };
        deadlines.map_or(FOREVER, |deadlines| deadlines[slot].load(Ordering::Relaxed))
    }

    /// Returns whether the leaf is in a slab that should become empty.
    pub fn is_in_sparse_slab(self) -> bool {
        let pooled = self.header().used.load(Ordering::Relaxed) & POOLED != 0;
        // SAFETY: pooled memory that the caller's guard keeps alive.
        pooled && unsafe { Pool::is_sparse(self.header.cast()) }
    }

    /// Calls `f` with an entry's key.
    #[inline]
    pub fn with_key<R>(entry: &LeafEntry, f: impl FnOnce(&K) -> R) -> R {
        if let Some(key) = K::from_head(&entry.key) {
            return f(key);
        }
        let record = Self::record(entry.word).expect("an entry has a record");
        // SAFETY: the entry's record, under the caller's guard.
        f(unsafe { record.key() })
    }

    /// Calls `f` with an entry's value.
    #[inline]
    pub fn with_value<R>(word: u64, f: impl FnOnce(&V) -> R) -> R {
        if K::HEAD_IS_KEY
            && let Some(value) = V::from_word(&word)
        {
            return f(value);
        }
        let record = Self::record(word).expect("an entry has a record");
        // SAFETY: as above.
        unsafe { record.with_value(f) }
    }

    /// Returns a copy of the entries. To be validated before it is used.
    pub fn copy(self) -> LeafCopy<K, V> {
        let mut copy = LeafCopy::empty();
        let _ = self.copy_to(&mut copy);
        copy
    }

    /// Copies the entries and returns the slots that held them. To be validated before the copy is
    /// used.
    pub fn copy_to(self, copy: &mut LeafCopy<K, V>) -> u64 {
        let LeafCopy { keys, words, deadlines, .. } = copy;
        let used = self.used();
        *deadlines = self.has_deadlines().then(|| Box::new([FOREVER; SLOTS]));
        let mut count = 0;
        for bucket in 0..BUCKETS {
            let mut here = (used >> (bucket * LANES)) as u32 & 0xFF;
            while here != 0 {
                let lane = here.trailing_zeros() as usize;
                here &= here - 1;
                if K::HEAD_IS_KEY {
                    keys[count] = self.keys(bucket).get(lane);
                }
                words[count] = self.words(bucket).0[lane].load(Ordering::Acquire);
                if let Some(deadlines) = deadlines {
                    deadlines[count] = self.deadline(bucket * LANES + lane);
                }
                count += 1;
            }
        }
        point("tree.leaf.entries_copied");
        (copy.count, copy.next, copy.high_fence) = (count, self.next(), self.high_fence());
        used
    }

    /// Returns the size of the low fence and the deadlines in bytes.
    pub fn extra_bytes(self) -> usize {
        let low_fence = if K::HEAD_IS_KEY {
            0
        } else {
            self.with_low_fence(|low_fence| {
                low_fence.map_or(0, |low_fence| {
                    Record::<K, u64>::size_with_tails(low_fence.tail().len())
                })
            })
        };
        low_fence + if self.has_deadlines() { size_of::<DeadlineLine>() } else { 0 }
    }

    /// Frees the memory of the leaf, its low fence and its deadlines, but not its records.
    ///
    /// # Safety
    /// No other thread can reach it.
    pub unsafe fn free(self) {
        // SAFETY: exclusively the caller's.
        unsafe {
            let header = self.header.as_ref();
            let low_fence = header.low_fence.load(Ordering::Relaxed);
            if !K::HEAD_IS_KEY
                && let Some(record) =
                    Record::<K, u64>::from_ptr(ptr::with_exposed_provenance_mut(low_fence as usize))
            {
                record.free();
            }
            let deadlines = header.deadlines.load(Ordering::Relaxed);
            if !deadlines.is_null() {
                drop(Box::from_raw(deadlines));
            }
            if header.used.load(Ordering::Relaxed) & POOLED != 0 {
                Pool::free(self.header.cast());
            } else {
                dealloc(self.header.as_ptr().cast(), Self::LAYOUT);
            }
        }
    }

    /// Returns the memory, for [`ordna_base::reclaim::Guard::retire`].
    pub fn as_retired(self) -> *mut RetiredLeaf<K, V> {
        self.header.as_ptr().cast()
    }
}

/// A retired leaf, in the form in which the collector frees it.
pub struct RetiredLeaf<K: Key + ?Sized, V: Value + ?Sized>(PhantomData<(*const K, *const V)>);

impl<K: Key + ?Sized, V: Value + ?Sized> Retire for RetiredLeaf<K, V> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: the address of a leaf with these types, exclusively the caller's.
        unsafe {
            if let Some(header) = NonNull::new(memory.cast::<LeafHeader>()) {
                Leaf::<K, V> { header, kinds: PhantomData }.free();
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> LeafCopy<K, V> {
    /// Returns the positions of the entries in the order of their keys. Reads records: the caller's
    /// guard keeps every record that was in the leaf.
    pub fn sorted(&self, simd: InstructionSet) -> [u8; order::MOST] {
        if !K::HEAD_IS_KEY {
            self.prefetch_records(0..self.count as u8, USUAL_KEY);
        }
        self.in_order(0, |_| (), simd)
    }

    /// Removes all entries but one: the first that is not below the bound or, if `first` is
    /// `false`, the last that is not above it. If there is no such entry, removes none and returns
    /// `false`. Reads records, as [`sorted`](Self::sorted) does.
    pub fn keep_outer(&mut self, first: bool, bound: Bound<&K>) -> bool {
        self.prefetch_records(0..self.count as u8, USUAL_KEY);
        let mut outer: Option<(usize, LeafEntry)> = None;
        for at in 0..self.count {
            let entry = self.entry(at);
            let is_outer = Leaf::<K, V>::with_key(&entry, |key: &K| {
                let precedes = |(_, other): &(usize, LeafEntry)| {
                    Leaf::<K, V>::with_key(other, |other: &K| (key < other) == first)
                };
                let is_outside = || if first { is_below(key, bound) } else { is_above(key, bound) };
                outer.as_ref().is_none_or(precedes) && !is_outside()
            });
            if is_outer {
                outer = Some((at, entry));
            }
        }
        let Some((at, entry)) = outer else { return false };
        (self.keys[0], self.words[0], self.count) = (entry.key, entry.word, 1);
        if let Some(deadlines) = &mut self.deadlines {
            deadlines[0] = deadlines[at];
        }
        true
    }

    /// Works like [`LeafCopy::sorted`], for keys that share a prefix of `shared` bytes, so that the
    /// bytes after it decide. The caller has prefetched the records up to eight bytes after the
    /// prefix.
    pub fn sorted_behind(&self, shared: usize, simd: InstructionSet) -> [u8; order::MOST] {
        let prefetch = |at| self.prefetch_records(std::iter::once(at), shared + USUAL_KEY);
        self.in_order(shared, prefetch, simd)
    }

    /// Calls `prefetch` with the positions of keys of which more than eight bytes are read.
    fn in_order(
        &self,
        shared: usize,
        prefetch: impl Fn(u8),
        simd: InstructionSet,
    ) -> [u8; order::MOST] {
        if K::HEAD_IS_KEY {
            return order::of_integers(&self.keys[..self.count], simd);
        }
        let key = |at: u8| {
            // A torn copy may hold an empty word; its order is discarded.
            Leaf::<K, V>::record(self.words[usize::from(at)]).map_or(&[][..], |record| {
                // SAFETY: under the caller's guard.
                unsafe { record.key::<'_>() }.tail()
            })
        };
        order::of_strings(self.count, |at| head_at(key(at), shared), prefetch, key, simd)
    }

    /// Prefetches the records at these positions, up to the end of a key of `len` bytes.
    #[inline]
    pub fn prefetch_records(&self, positions: impl Iterator<Item = u8>, len: usize) {
        if is_inline::<K, V>() {
            return;
        }
        let size = Record::<K, V>::size_with_key(len);
        for at in positions {
            let record = Leaf::<K, V>::record_address(self.words[usize::from(at)]);
            for line in (0..size.min(MOST_AHEAD)).step_by(64) {
                prefetch(record.wrapping_add(line));
            }
            prefetch(record.wrapping_add(size - 1));
        }
    }
}
