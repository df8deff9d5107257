//! The nodes of the search layer.
//!
//! # Contract
//! That of [the layer](super): readers validate, one writer at a time changes a locked node.
//!
//! # Layout
//! A cache line holds lock, length and prefix. Then come two lines of fingerprints, eight of heads,
//! eight of second heads, eight of children. A search among integers reads the fingerprints, 16
//! bits of each separator; only a key whose fingerprint equals a separator's reads heads. A search
//! among byte strings reads heads, among equal heads the second heads, and among equal ones the
//! separators.

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

/// Children of a node at most. Eight cache lines of heads: more would not fit the prefetchers'
/// reach.
pub const FANOUT: usize = 64;
const _: () = assert!(FANOUT <= CHILDREN, "a bit for each child");
/// Lines of heads, and of children.
const LINES: usize = FANOUT / LANES;
/// Bytes of a prefix that stand in the node itself: the rest of its first cache line.
const INLINE: usize = 32;
/// The fingerprint of an unused slot; no separator has it.
const UNUSED: u16 = u16::MAX;
/// Fingerprints in a word.
const FINGERPRINTS: usize = 4;

#[repr(C, align(64))]
pub(super) struct Node<K: Key + ?Sized> {
    pub(super) lock: VersionLock,
    /// Children in use.
    len: AtomicUsize,
    /// Byte strings: bytes that all separators share. Integers: bits that a fingerprint drops.
    prefix: AtomicUsize,
    /// Levels below; 0: the children are leaves.
    pub(super) height: usize,
    /// Byte strings: the first [`INLINE`] bytes of the prefix. Integers: the first separator.
    start: [AtomicU64; INLINE / 8],
    /// Integers: what each separator is above the first, without its low bits.
    fingerprints: [Line; 2],
    heads: [Line; LINES],
    /// Byte strings: the eight bytes behind each head.
    seconds: [Line; LINES],
    children: [Line; LINES],
    /// Byte strings: the separators themselves.
    separators: Box<[AtomicPtr<u8>]>,
    /// The entries of the children, from the first count on.
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

    /// Bytes of the node.
    pub(super) fn size(&self) -> usize {
        let separators = if K::HEAD_IS_KEY { 0 } else { FANOUT * size_of::<usize>() };
        let counts = if self.counts.get().is_some() { size_of::<Counts>() } else { 0 };
        size_of::<Self>() + separators + counts
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed).min(FANOUT)
    }

    pub(super) fn head(&self, at: usize) -> u64 {
        self.heads[at / LANES].get(at % LANES)
    }

    pub(super) fn child(&self, at: usize) -> usize {
        let at = at.min(FANOUT - 1);
        self.children[at / LANES].0[at % LANES].load(Ordering::Acquire) as usize
    }

    pub(super) fn set_child(&self, at: usize, child: usize) {
        // Release: a reader that follows the address sees what it leads to.
        self.children[at / LANES].0[at % LANES].store(child as u64, Ordering::Release);
    }

    /// Separator `at`, alive as long as the caller's guard; `None` while a writer moves it.
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

    /// How many separators are at most `key`, or below it if `strict`: the child that covers it.
    /// `None` if what was read is of no single moment.
    #[inline]
    pub(super) fn route(&self, key: &K, strict: bool, simd: InstructionSet) -> Option<usize> {
        let (from, to) = self.narrow(key, simd)?;
        if from == to { Some(from) } else { self.decide(key, strict, (from, to), simd) }
    }

    /// The first step of [`Node::route`], which reads fingerprints, or heads: between which two
    /// numbers the answer lies.
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

    /// The second step of [`Node::route`]: the separators of the span are equal in what the first
    /// step compared.
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
        // Equal again: the separators themselves decide.
        while low < high {
            let middle = (low + high) / 2;
            // SAFETY: the caller's guard keeps separators from being freed.
            let separator = unsafe { self.separator(middle)?.key() };
            let below = if strict { separator < key } else { separator <= key };
            if below { low = middle + 1 } else { high = middle }
        }
        Some(low)
    }

    /// Asks for what [`Node::narrow`] reads.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch(self);
        if K::HEAD_IS_KEY {
            self.fingerprints.iter().for_each(|line| prefetch(line));
        } else {
            self.heads.iter().for_each(|line| prefetch(line));
        }
    }

    /// Asks for what [`Node::decide`] reads of a span, if there is any, and for its first child.
    #[inline]
    pub(super) fn prefetch_span(&self, (from, to): (usize, usize)) {
        if from < to {
            let lines = if K::HEAD_IS_KEY { &self.heads } else { &self.seconds };
            prefetch(&lines[from / LANES]);
            prefetch(&lines[(to - 1) / LANES]);
        }
        prefetch(&self.children[from / LANES]);
    }

    /// Asks for all children.
    #[inline]
    pub(super) fn prefetch_children(&self) {
        self.children.iter().for_each(|line| prefetch(line));
    }

    /// Computes the fingerprints anew. The caller holds the lock, or nobody else knows the node.
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

    /// The order of a key's first bytes against the node's prefix.
    fn compare_prefix(&self, key: &[u8], prefix: usize) -> Option<Order> {
        if prefix == 0 {
            return Some(Order::Equal);
        }
        let inline = prefix.min(INLINE);
        // Eight bytes at a time. Zeroes follow the end of the key and that of the prefix.
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

    /// Overwrites everything. The caller holds the lock, or nobody else knows the node.
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

    /// Puts `boundary` and the child above it behind child `at`.
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

    /// Whether a separator starts with the node's prefix.
    fn fits(&self, boundary: &SeparatorEntry<K>) -> bool {
        let prefix = self.prefix.load(Ordering::Relaxed);
        boundary.separator.is_none_or(|separator| {
            // SAFETY: separators of the writer's own, under the lock.
            let (new, first) = unsafe { (separator.key::<'_>(), self.separator(0)) };
            // SAFETY: as above.
            let first = first.map(|first| bytes_of(unsafe { first.key::<'_>() }));
            first.is_some_and(|first| common_prefix(bytes_of(new), first) >= prefix)
        })
    }

    /// Puts `boundary` in the place of separator `at`, which it returns.
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
            // SAFETY: the writer's own.
            let bytes = bytes_of(unsafe { separator.key::<'_>() });
            (head_at(bytes, prefix), head_at(bytes, prefix + 8))
        });
        self.heads[at / LANES].set(at % LANES, head);
        self.seconds[at / LANES].set(at % LANES, second);
        self.set_separator(at, boundary.separator);
    }

    /// Takes child `at` and the separator next to it out: the one below, or above for the first
    /// child.
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
