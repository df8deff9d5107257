//! The nodes of the search layer.
//!
//! # Contract
//! The contract is that of [the layer](super): readers validate, and one writer at a time changes a
//! locked node.
//!
//! # Layout
//! One cache line holds lock, length and prefix. Two lines of fingerprints follow, then eight lines
//! each of heads, seconds and children. A search among integers reads the fingerprints, 16 bits of
//! each separator; it reads heads only for a key whose fingerprint equals that of a separator. A
//! search among byte strings reads heads, then the seconds of equal heads, and then the separators
//! whose seconds are equal, too.

use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;

use super::contents::{Contents, Separator, SeparatorEntry, bytes_of};
use super::counts::{CHILDREN, Counts};
use ordna_base::Key;
use ordna_base::key::{common_prefix, head_at};
use ordna_base::reclaim::Retire;
use ordna_base::record::Record;
use ordna_base::simd::{InstructionSet, LANES, Line, prefetch};
use ordna_base::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use ordna_base::sync::{Obsolete, Version, VersionLock, check};

/// Maximum number of children of a node. Its heads fill eight cache lines; hardware prefetchers
/// would not fetch more.
pub const FANOUT: usize = 64;
const _: () = assert!(FANOUT <= CHILDREN, "a bit for each child");
/// Number of cache lines of heads, and of children.
const LINES: usize = FANOUT / LANES;
/// Number of bytes of a prefix that are stored in the node itself: the rest of its first cache
/// line.
const INLINE: usize = 32;
/// Fingerprint of an unused slot. No separator has it.
const UNUSED: u16 = u16::MAX;
/// Number of fingerprints in a word.
const FINGERPRINTS: usize = 4;

#[repr(C, align(64))]
pub(super) struct Node<K: Key + ?Sized> {
    pub(super) lock: VersionLock,
    /// Number of children.
    len: AtomicUsize,
    /// Byte strings: number of bytes that all separators share. Integers: number of bits that a
    /// fingerprint drops.
    prefix: AtomicUsize,
    /// Number of levels below; with 0, the children are leaves.
    pub(super) height: usize,
    /// Byte strings: the first [`INLINE`] bytes of the prefix. Integers: the first separator.
    start: [AtomicU64; INLINE / 8],
    /// Integers: the difference between each separator and the first one, without its low bits.
    fingerprints: [Line; 2],
    heads: [Line; LINES],
    /// Byte strings: the eight bytes after each head.
    seconds: [Line; LINES],
    children: [Line; LINES],
    /// Byte strings: the separators themselves.
    separators: Box<[AtomicPtr<u8>]>,
    /// The counts of the children, created by the first count.
    pub(super) counts: OnceLock<Box<Counts>>,
    kind: PhantomData<K>,
}

impl<K: Key + ?Sized> Node<K> {
    pub(super) fn boxed(height: usize, contents: &Contents<K>) -> *mut Self {
        let count = if K::HEAD_IS_KEY { 0 } else { FANOUT };
        let node = Self {
            lock: VersionLock::new(),
            len: AtomicUsize::new(0),
            prefix: AtomicUsize::new(0),
            height,
            start: Default::default(),
            fingerprints: std::array::from_fn(|_| Line::filled(u64::MAX)),
            heads: std::array::from_fn(|_| Line::filled(u64::MAX)),
            seconds: std::array::from_fn(|_| Line::filled(u64::MAX)),
            children: std::array::from_fn(|_| Line::filled(0)),
            separators: (0..count).map(|_| AtomicPtr::default()).collect(),
            counts: OnceLock::new(),
            kind: PhantomData,
        };
        node.fill(contents);
        Box::into_raw(Box::new(node))
    }

    /// Returns the size of the node in bytes.
    pub(super) fn size(&self) -> usize {
        let separators = if K::HEAD_IS_KEY { 0 } else { FANOUT * size_of::<usize>() };
        let counts = if self.counts.get().is_some() { size_of::<Counts>() } else { 0 };
        size_of::<Self>() + separators + counts
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed).min(FANOUT)
    }

    #[inline]
    pub(super) fn head(&self, at: usize) -> u64 {
        self.heads[at / LANES].get(at % LANES)
    }

    #[inline]
    pub(super) fn child(&self, at: usize) -> usize {
        let at = at.min(FANOUT - 1);
        self.children[at / LANES].0[at % LANES].load(Ordering::Acquire) as usize
    }

    pub(super) fn set_child(&self, at: usize, child: usize) {
        // Release: a reader that follows the address sees the child completely.
        self.children[at / LANES].0[at % LANES].store(child as u64, Ordering::Release);
    }

    /// Returns separator `at`, which the caller's guard keeps alive, or `None` while a writer moves
    /// it.
    pub(super) fn separator(&self, at: usize) -> Option<Separator<K>> {
        let address = self.separators.get(at)?.load(Ordering::Acquire);
        // SAFETY: written by `fill` and `set_separator`: null or a record.
        unsafe { Separator::from_ptr(address) }
    }

    fn set_separator(&self, at: usize, separator: Option<Separator<K>>) {
        if let Some(slot) = self.separators.get(at) {
            let address = separator.map_or(ptr::null_mut(), Record::as_ptr);
            slot.store(address, Ordering::Release);
        }
    }

    /// Returns how many separators are at most `key`, or below it if `strict`: the position of the
    /// child that covers it. Returns `None` if the reads were not of one moment.
    #[inline]
    pub(super) fn route(&self, key: &K, strict: bool, simd: InstructionSet) -> Option<usize> {
        let (from, to) = self.narrow(key, simd)?;
        if from == to { Some(from) } else { self.decide(key, strict, (from, to), simd) }
    }

    /// Does the first step of [`Node::route`], which reads fingerprints or heads. Returns the two
    /// numbers between which the result lies.
    #[inline]
    pub(super) fn narrow(&self, key: &K, simd: InstructionSet) -> Option<(usize, usize)> {
        let separators = self.len().checked_sub(1)?;
        let (from, to) = if K::HEAD_IS_KEY {
            let Some(above) = key.head().checked_sub(self.start[0].load(Ordering::Relaxed)) else {
                return Some((0, 0));
            };
            let shift = self.prefix.load(Ordering::Relaxed) as u32 % u64::BITS;
            match u16::try_from(above >> shift) {
                Ok(fingerprint) if fingerprint < UNUSED => {
                    simd.span(&self.fingerprints, fingerprint)
                }
                _ => (separators, separators),
            }
        } else {
            let bytes = bytes_of(key);
            let prefix = self.prefix.load(Ordering::Relaxed);
            match self.compare_prefix(bytes, prefix)? {
                Order::Less => return Some((0, 0)),
                Order::Greater => return Some((separators, separators)),
                Order::Equal => {}
            }
            let head = head_at(bytes, prefix);
            (self.below(head, simd), self.at_most(head, simd))
        };
        let to = to.min(separators);
        Some((from.min(to), to))
    }

    /// Does the second step of [`Node::route`], among separators that were equal in the first step.
    pub(super) fn decide(
        &self,
        key: &K,
        strict: bool,
        (from, to): (usize, usize),
        simd: InstructionSet,
    ) -> Option<usize> {
        if K::HEAD_IS_KEY {
            let head = key.head();
            let rank = if strict { self.below(head, simd) } else { self.at_most(head, simd) };
            return Some(rank.clamp(from, to));
        }
        let second = head_at(bytes_of(key), self.prefix.load(Ordering::Relaxed) + 8);
        let (mut low, mut high) = (from, from);
        for line in from / LANES..=(to - 1) / LANES {
            let start = line * LANES;
            let within =
                (0xFF << from.saturating_sub(start)) & (0xFF >> (start + LANES).saturating_sub(to));
            let seconds = &self.seconds[line];
            low += (simd.below(seconds, second) & within).count_ones() as usize;
            high += (simd.at_most(seconds, second) & within).count_ones() as usize;
        }
        // The seconds are equal, too: the separators themselves decide.
        while low < high {
            let middle = (low + high) / 2;
            // SAFETY: the caller's guard keeps separators alive.
            let separator = unsafe { self.separator(middle)?.key() };
            let below = if strict { separator < key } else { separator <= key };
            if below { low = middle + 1 } else { high = middle }
        }
        Some(low)
    }

    /// Prefetches what [`Node::narrow`] reads.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch(self);
        if K::HEAD_IS_KEY {
            self.fingerprints.iter().for_each(|line| prefetch(line));
        } else {
            self.heads.iter().for_each(|line| prefetch(line));
        }
    }

    /// Prefetches what [`Node::decide`] reads of a span, unless it is empty, and the span's first
    /// child.
    #[inline]
    pub(super) fn prefetch_span(&self, (from, to): (usize, usize)) {
        if from < to {
            let lines = if K::HEAD_IS_KEY { &self.heads } else { &self.seconds };
            prefetch(&lines[from / LANES]);
            prefetch(&lines[(to - 1) / LANES]);
        }
        prefetch(&self.children[from / LANES]);
    }

    /// Prefetches all children.
    #[inline]
    pub(super) fn prefetch_children(&self) {
        self.children.iter().for_each(|line| prefetch(line));
    }

    /// Recomputes the fingerprints. The caller holds the lock, or no other thread knows the node.
    fn set_fingerprints(&self) {
        debug_assert!(
            (2..self.len()).all(|at| self.head(at - 2) <= self.head(at - 1)),
            "separators ascend"
        );
        if !K::HEAD_IS_KEY {
            return;
        }
        let separators = self.len() - 1;
        let first = self.head(0);
        let span = self.head(separators.saturating_sub(1)).wrapping_sub(first);
        let mut shift = (u64::BITS - span.leading_zeros()).saturating_sub(u16::BITS);
        if span >> shift >= u64::from(UNUSED) {
            shift += 1;
        }
        self.start[0].store(first, Ordering::Relaxed);
        self.prefix.store(shift as usize, Ordering::Relaxed);
        for at in 0..FANOUT / FINGERPRINTS {
            let word = (0..FINGERPRINTS).rev().fold(0, |word, lane| {
                let at = at * FINGERPRINTS + lane;
                let fingerprint =
                    if at < separators { (self.head(at) - first) >> shift } else { UNUSED.into() };
                word << u16::BITS | fingerprint
            });
            self.fingerprints[at / LANES].set(at % LANES, word);
        }
    }

    #[inline]
    fn at_most(&self, head: u64, simd: InstructionSet) -> usize {
        simd.rank(&self.heads, head)
    }

    #[inline]
    fn below(&self, head: u64, simd: InstructionSet) -> usize {
        head.checked_sub(1).map_or(0, |before| self.at_most(before, simd))
    }

    /// Compares a key's first bytes with the node's prefix.
    fn compare_prefix(&self, key: &[u8], prefix: usize) -> Option<Order> {
        if prefix == 0 {
            return Some(Order::Equal);
        }
        let inline = prefix.min(INLINE);
        // Compares eight bytes at a time. Zeroes follow the end of the key and that of the prefix.
        let mut order = Order::Equal;
        for (number, word) in self.start.iter().enumerate() {
            let Some(rest) = inline.checked_sub(number * 8).filter(|rest| *rest > 0) else { break };
            let within = u64::MAX << (64 - 8 * rest.min(8));
            let own = word.load(Ordering::Relaxed) & within;
            order = (head_at(key, number * 8) & within).cmp(&own);
            if order != Order::Equal {
                break;
            }
        }
        if order == Order::Equal && key.len() < inline {
            order = Order::Less;
        }
        if order != Order::Equal || prefix <= INLINE {
            return Some(order);
        }
        // SAFETY: as in `route`.
        let first = bytes_of(unsafe { self.separator(0)?.key::<'_>() });
        let (rest, own) = (key.get(INLINE..)?, first.get(INLINE..prefix)?);
        Some(rest[..rest.len().min(own.len())].cmp(own))
    }

    pub(super) fn contents(&self) -> Contents<K> {
        let len = self.len();
        Contents {
            heads: (0..len - 1).map(|at| self.head(at)).collect(),
            separators: (0..len - 1).map(|at| self.separator(at)).collect(),
            children: (0..len).map(|at| self.child(at)).collect(),
            counts: self.child_counts(),
        }
    }

    /// Overwrites all contents. The caller holds the lock, or no other thread knows the node.
    pub(super) fn fill(&self, contents: &Contents<K>) {
        let len = contents.children.len();
        debug_assert!(len <= FANOUT && contents.heads.len() + 1 == len);
        let (prefix, heads, seconds) = contents.normalized();
        self.prefix.store(prefix, Ordering::Relaxed);
        if let Some(Some(first)) = contents.separators.first() {
            // SAFETY: the node's own separator, under the writers' lock.
            let bytes = bytes_of(unsafe { first.key::<'_>() });
            for (at, word) in self.start.iter().enumerate() {
                word.store(head_at(&bytes[..prefix], at * 8), Ordering::Relaxed);
            }
        }
        for at in 0..FANOUT {
            let head = heads.get(at).copied().unwrap_or(u64::MAX);
            self.heads[at / LANES].set(at % LANES, head);
            let second = seconds.get(at).copied().unwrap_or(u64::MAX);
            self.seconds[at / LANES].set(at % LANES, second);
            self.set_separator(at, contents.separators.get(at).copied().flatten());
            self.set_child(at, contents.children.get(at).copied().unwrap_or(0));
        }
        self.set_child_counts(&contents.counts);
        self.len.store(len, Ordering::Relaxed);
        self.set_fingerprints();
    }

    /// Inserts `boundary` and the child above it after child `at`.
    pub(super) fn put(&self, at: usize, boundary: &SeparatorEntry<K>, child: usize) {
        let len = self.len();
        if !self.fits(boundary) {
            let mut contents = self.contents();
            contents.put(at, boundary, child);
            return self.fill(&contents);
        }
        for to in (at + 1..len).rev() {
            self.heads[to / LANES].set(to % LANES, self.head(to - 1));
            let second = self.seconds[(to - 1) / LANES].get((to - 1) % LANES);
            self.seconds[to / LANES].set(to % LANES, second);
            self.set_separator(to, self.separator(to - 1));
            self.set_child(to + 1, self.child(to));
        }
        self.set_head(at, boundary);
        self.set_child(at + 1, child);
        self.put_child_count(at + 1);
        self.len.store(len + 1, Ordering::Relaxed);
        self.set_fingerprints();
    }

    /// Returns whether a separator starts with the node's prefix.
    fn fits(&self, boundary: &SeparatorEntry<K>) -> bool {
        let prefix = self.prefix.load(Ordering::Relaxed);
        boundary.separator.is_none_or(|separator| {
            // SAFETY: the separators belong to the writer, which holds the lock.
            let (new, first) = unsafe { (separator.key::<'_>(), self.separator(0)) };
            // SAFETY: as above.
            let first = first.map(|first| bytes_of(unsafe { first.key::<'_>() }));
            first.is_some_and(|first| common_prefix(bytes_of(new), first) >= prefix)
        })
    }

    /// Replaces separator `at` by `boundary`, and returns the former separator.
    pub(super) fn replace(&self, at: usize, boundary: &SeparatorEntry<K>) -> Option<Separator<K>> {
        let old = self.separator(at);
        if self.fits(boundary) {
            self.set_head(at, boundary);
            self.set_fingerprints();
        } else {
            let mut contents = self.contents();
            contents.heads[at] = boundary.head;
            contents.separators[at] = boundary.separator;
            self.fill(&contents);
        }
        old
    }

    /// Sets separator `at`, which starts with the node's prefix.
    fn set_head(&self, at: usize, boundary: &SeparatorEntry<K>) {
        let prefix = self.prefix.load(Ordering::Relaxed);
        let (head, second) = boundary.separator.map_or((boundary.head, u64::MAX), |separator| {
            // SAFETY: the separator belongs to the writer.
            let bytes = bytes_of(unsafe { separator.key::<'_>() });
            (head_at(bytes, prefix), head_at(bytes, prefix + 8))
        });
        self.heads[at / LANES].set(at % LANES, head);
        self.seconds[at / LANES].set(at % LANES, second);
        self.set_separator(at, boundary.separator);
    }

    /// Removes child `at` and the separator next to it: the one below or, for the first child, the
    /// one above.
    pub(super) fn take(&self, at: usize) -> SeparatorEntry<K> {
        let mut contents = self.contents();
        let boundary = contents.take(at);
        self.fill(&contents);
        boundary
    }

    /// # Errors
    /// The node has changed since `version`.
    #[inline]
    pub(super) fn checked(&self, version: Version) -> Result<(), Obsolete> {
        let valid = check!("search.node.validate", self.lock.validate(version));
        if valid { Ok(()) } else { Err(Obsolete) }
    }
}

impl<K: Key + ?Sized> Retire for Node<K> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: boxed by `boxed`, exclusively the caller's.
        drop(unsafe { Box::from_raw(memory) });
    }
}
