//! The layout of a leaf: its allocation, its parts and their addresses.

#![expect(
    unsafe_code,
    reason = "a leaf is one allocation of parts whose size depends on the kinds"
)]

use std::alloc::{self, Layout};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::wormhole::hash;
use crate::wormhole::mode::Mode;
use crate::wormhole::section::Section;
use crate::wormhole::table::TableLeaf;
use ordna_base::reclaim::Retire;
use ordna_base::record::Record;
use ordna_base::simd::prefetch;
use ordna_base::slabs::Pool;
use ordna_base::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use ordna_base::{Key, Value};

const LINE: usize = 64;
/// Number of entries in a group, which is the number of tags in a word.
pub(super) const LANES: usize = 4;
pub(super) const LOW: u64 = 0x0001_0001_0001_0001;
pub(super) const HIGH: u64 = 0x8000_8000_8000_8000;

/// The error for words that have changed while they were read; the reader restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale;

#[repr(C, align(64))]
pub(super) struct Header<S: Mode> {
    lock: S::Lock,
    next: AtomicPtr<Header<S>>,
    prev: AtomicPtr<Header<S>>,
    /// Number of the last step that reduced this leaf's range or created the leaf.
    split: AtomicU64,
    /// Number of entries and, from bit 16 on, how many of them are sorted in the order.
    fill: AtomicU32,
    anchor_length: u16,
    /// Whether the memory is from a [`Pool`].
    is_pooled: bool,
    /// The first eight bytes of the anchor and of the next leaf's anchor, as [`Key::head`] returns
    /// them. `u64::MAX` if there is no next leaf.
    pub(super) anchor_head: u64,
    pub(super) upper_head: AtomicU64,
}

/// Memory for leaves, by their size.
pub struct Pools {
    /// Size in bytes of the smallest leaf, in whole cache lines.
    least: usize,
    /// Pools for leaves with this many more cache lines.
    pools: [Pool; 4],
}

impl Pools {
    fn new(least: Layout) -> Self {
        let least = least.pad_to_align();
        let more = |lines| Layout::from_size_align(least.size() + lines * LINE, least.align());
        let pools = std::array::from_fn(|lines| Pool::new(more(lines).unwrap_or(least)));
        Self { least: least.size(), pools }
    }

    /// Returns the pool for leaves of this layout, or `None` if they are too large.
    fn of(&self, layout: Layout) -> Option<&Pool> {
        self.pools.get((layout.pad_to_align().size() - self.least) / LINE)
    }

    /// Returns the number of bytes of slabs that contain no leaf.
    pub fn spare(&self) -> usize {
        self.pools.iter().map(Pool::spare).sum()
    }
}

/// The words of an entry: key and value, or the address of the record and an unused word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Words(pub u64, pub u64);

/// A live leaf: the caller's guard keeps it alive, or the caller owns the whole index.
pub struct Leaf<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> {
    header: NonNull<Header<S>>,
    kinds: PhantomData<(*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Clone for Leaf<K, V, S, LEAF> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Copy for Leaf<K, V, S, LEAF> {}
impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> PartialEq
    for Leaf<K, V, S, LEAF>
{
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}
impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> std::fmt::Debug
    for Leaf<K, V, S, LEAF>
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Leaf").field(&self.header).finish()
    }
}
// SAFETY: a leaf consists of atomics and of bytes that never change; its records are Send + Sync.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Send
    for Leaf<K, V, S, LEAF>
{
}
// SAFETY: as above.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Sync
    for Leaf<K, V, S, LEAF>
{
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Leaf<K, V, S, LEAF> {
    /// Whether keys and values are stored in the leaf itself.
    pub const INLINE: bool = K::HEAD_IS_KEY && V::IN_PLACE;
    pub(super) const WORDS: usize = if Self::INLINE { 2 } else { 1 };
    pub(super) const GROUPS: usize = if LEAF < 8 { 2 } else { (LEAF * 39).div_ceil(128) };
    pub(super) const SLOTS: usize = Self::GROUPS * LANES;
    pub(super) const TAGS: usize = size_of::<Header<S>>();
    pub(super) const TAGS_END: usize = Self::TAGS + Self::GROUPS * 8;
    pub(super) const ORDER: usize =
        (Self::TAGS_END + if K::HEAD_IS_KEY { 8 } else { 0 }).next_multiple_of(64);
    /// Aligned to a cache line: the four entries of a group fill a line or half of one.
    pub(super) const ENTRIES: usize = (Self::ORDER + LEAF.div_ceil(8) * 8).next_multiple_of(64);
    pub(super) const ENTRIES_END: usize = Self::ENTRIES + Self::SLOTS * Self::WORDS * 8;
    pub(super) const ANCHOR: usize =
        if K::HEAD_IS_KEY { Self::TAGS_END } else { Self::ENTRIES_END };
    pub(super) const FITS: () = assert!(LEAF >= 4 && LEAF < Self::SLOTS && Self::SLOTS <= 256);

    pub(super) fn layout(anchor: usize) -> Layout {
        const { Self::FITS };
        let size = Self::ENTRIES_END.max(Self::ANCHOR + anchor);
        Layout::from_size_align(size, align_of::<Header<S>>())
            .expect("anchors are no longer than keys")
    }

    /// Creates an empty leaf that no other thread knows yet.
    pub fn new(anchor: &[u8], pools: &Pools) -> Self {
        let layout = Self::layout(anchor.len());
        let pooled = pools.of(layout).and_then(Pool::allocate);
        // SAFETY: the size of the layout is not zero, and memory of a pool has room for it. Every
        // part except the header begins with zeroed memory. The header is written completely, and
        // there is room for the anchor.
        let header = unsafe {
            let Some(memory) = pooled.or_else(|| NonNull::new(alloc::alloc(layout))) else {
                alloc::handle_alloc_error(layout)
            };
            memory.write_bytes(0, layout.size());
            let header = memory.cast::<Header<S>>();
            header.write(Header {
                lock: S::Lock::default(),
                next: AtomicPtr::default(),
                prev: AtomicPtr::default(),
                split: AtomicU64::new(0),
                fill: AtomicU32::new(0),
                anchor_length: anchor.len() as u16,
                is_pooled: pooled.is_some(),
                anchor_head: anchor.head(),
                upper_head: AtomicU64::new(u64::MAX),
            });
            let bytes = memory.add(Self::ANCHOR).as_ptr();
            ptr::copy_nonoverlapping(anchor.as_ptr(), bytes, anchor.len());
            header
        };
        let leaf = Self { header, kinds: PhantomData };
        // The table stores 48 bits of an address, which is the size of user-space addresses.
        assert!(leaf.word() >> 48 == 0, "a leaf at {header:?}, beyond 48 bits");
        leaf
    }

    #[inline]
    pub(super) fn header<'a>(self) -> &'a Header<S> {
        // SAFETY: the leaf is alive, as the type guarantees.
        unsafe { self.header.as_ref() }
    }

    #[inline]
    pub(super) fn word_at<'a>(self, part: usize, at: usize) -> &'a AtomicU64 {
        debug_assert!(part + at * 8 + 8 <= Self::ENTRIES_END);
        // SAFETY: the parts are initialized words, and callers stay within them: positions are
        // below SLOTS, groups below GROUPS, order words below LEAF / 8. The leaf is alive.
        unsafe { self.header.byte_add(part + at * 8).cast().as_ref() }
    }

    #[inline]
    pub(super) fn tags<'a>(self, group: usize) -> &'a AtomicU64 {
        self.word_at(Self::TAGS, group)
    }

    /// Returns the anchor, which is not above any key of this leaf and above every key of the
    /// preceding one.
    #[inline]
    pub fn anchor_bytes<'a>(self) -> &'a [u8] {
        let length = usize::from(self.header().anchor_length);
        // SAFETY: written by `new` and never changed; the leaf is alive.
        unsafe {
            std::slice::from_raw_parts(self.header.byte_add(Self::ANCHOR).cast().as_ptr(), length)
        }
    }

    /// Returns whether the heads show that the key is in the leaf's range. If not, it may be in the
    /// range nevertheless.
    #[inline]
    pub fn heads_cover(self, key: &K) -> bool {
        let header = self.header();
        let head = key.head();
        let from = head > header.anchor_head || K::HEAD_IS_KEY && head == header.anchor_head;
        from && head < header.upper_head.load(Ordering::Relaxed)
    }

    /// Returns the leaf's lock.
    #[inline]
    pub fn lock<'a>(self) -> &'a S::Lock {
        &self.header().lock
    }

    pub(super) fn of(header: *mut Header<S>) -> Option<Self> {
        NonNull::new(header).map(|header| Self { header, kinds: PhantomData })
    }

    /// Returns the next leaf. It may be accessed only under the lock, or under a ticket that was
    /// valid after this call.
    #[inline]
    pub fn next(self) -> Option<Self> {
        // Pairs with the release store of `set_next`.
        Self::of(self.header().next.load(Ordering::Acquire))
    }

    /// Returns the preceding leaf, whose lock protects this link. For an obsolete leaf, this is the
    /// one into which it was merged.
    #[inline]
    pub fn prev(self) -> Option<Self> {
        // Pairs with the release store of `set_prev`.
        Self::of(self.header().prev.load(Ordering::Acquire))
    }

    /// Sets the next leaf. Under the lock.
    pub fn set_next(self, next: Option<Self>) {
        let head = next.map_or(u64::MAX, |next| next.header().anchor_head);
        self.header().upper_head.store(head, Ordering::Relaxed);
        let next = next.map_or(ptr::null_mut(), |leaf| leaf.header.as_ptr());
        self.header().next.store(next, Ordering::Release);
    }

    /// Sets the preceding leaf. Under that leaf's lock, as for the links of the new one.
    pub fn set_prev(self, prev: Option<Self>) {
        let prev = prev.map_or(ptr::null_mut(), |leaf| leaf.header.as_ptr());
        self.header().prev.store(prev, Ordering::Release);
    }

    /// Returns the number of the last step that reduced this leaf's range or created the leaf.
    #[inline]
    pub fn last_split(self) -> u64 {
        self.header().split.load(Ordering::Relaxed)
    }

    pub fn set_split(self, step: u64) {
        self.header().split.store(step, Ordering::Relaxed);
    }

    /// Returns the number of entries.
    #[inline]
    pub fn len(self) -> usize {
        self.fill().0
    }

    /// Returns the number of entries, and how many of them are sorted in the order.
    #[inline]
    pub(super) fn fill(self) -> (usize, usize) {
        let fill = self.header().fill.load(Ordering::Relaxed) as usize;
        (fill & 0xFFFF, fill >> 16)
    }

    #[inline]
    pub(super) fn set_fill(self, len: usize, sorted: usize) {
        self.header().fill.store((len | sorted << 16) as u32, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_sorted(self) -> bool {
        let (len, sorted) = self.fill();
        len == sorted
    }

    /// Returns the tag of a key with this hash: 1 to 65,535.
    #[inline]
    pub fn tag(key_hash: u32) -> u16 {
        ((hash::spread(key_hash) >> 48) as u16).max(1)
    }

    #[inline]
    pub(super) fn home(tag: u16) -> usize {
        (usize::from(tag) * Self::GROUPS) >> 16
    }

    #[inline]
    pub(super) fn after(group: usize) -> usize {
        if group + 1 == Self::GROUPS { 0 } else { group + 1 }
    }

    /// Prefetches the cache lines on which a lookup of the tag probably ends.
    #[inline]
    pub fn prefetch(self, tag: u16) {
        let home = Self::home(tag);
        let start = self.header.as_ptr().cast::<u8>();
        prefetch(start);
        prefetch(start.wrapping_add(Self::TAGS + home * 8));
        prefetch(start.wrapping_add(Self::ENTRIES + home * LANES * Self::WORDS * 8));
    }

    /// Prefetches the anchor.
    #[inline]
    pub fn prefetch_anchor(self) {
        prefetch(self.header.as_ptr().cast::<u8>());
        prefetch(self.header.as_ptr().cast::<u8>().wrapping_add(Self::ANCHOR));
    }

    /// Prefetches the cache lines with which a scan begins.
    pub fn prefetch_order(self) {
        let start = self.header.as_ptr().cast::<u8>();
        prefetch(start);
        for line in (0..LEAF).step_by(64) {
            prefetch(start.wrapping_add(Self::ORDER + line));
        }
    }

    /// Number of cache lines that a scan reads.
    pub const LINES: usize = 1 + (Self::ENTRIES_END - Self::ORDER).div_ceil(64);

    /// Prefetches one of these cache lines, which contain header, order and entries.
    #[inline]
    pub fn prefetch_line(self, line: usize) {
        let offset = if line == 0 { 0 } else { Self::ORDER + (line - 1) * 64 };
        prefetch(self.header.as_ptr().cast::<u8>().wrapping_add(offset));
    }

    /// Prefetches the record of an entry, if it has one, up to the end of a key with a tail of
    /// `tail` bytes, but at most four cache lines. A record of the length of one line is usually on
    /// two.
    #[inline]
    pub fn prefetch_words(words: &Words, tail: usize) {
        if !Self::INLINE {
            let start = words.0 as usize;
            let end = start + Record::<K, V>::size_with_key(tail);
            for line in (start & !63..end).step_by(64).take(4) {
                prefetch(ptr::without_provenance::<u8>(line));
            }
        }
    }

    /// Returns the words at a position.
    #[inline]
    pub fn words(self, position: usize) -> Words {
        let at = position * Self::WORDS;
        // Acquire: a reader of the address sees the record; pairs with the release store below.
        let first = self.word_at(Self::ENTRIES, at).load(Ordering::Acquire);
        let second = if Self::INLINE {
            self.word_at(Self::ENTRIES, at + 1).load(Ordering::Acquire)
        } else {
            0
        };
        Words(first, second)
    }

    /// Replaces the words of an entry. Under the lock.
    #[inline]
    pub fn set_words(self, position: usize, words: Words) {
        let at = position * Self::WORDS;
        self.word_at(Self::ENTRIES, at).store(words.0, Ordering::Release);
        if Self::INLINE {
            self.word_at(Self::ENTRIES, at + 1).store(words.1, Ordering::Release);
        }
    }

    /// Returns the words of a new entry.
    pub fn entry(key: &K, value: &V) -> Words {
        if Self::INLINE {
            Words(key.head(), word_of(value))
        } else {
            Words(Record::new(key, value).as_ptr().expose_provenance() as u64, 0)
        }
    }

    /// Calls `read` with the value of an entry that was found within the section.
    #[inline]
    pub fn read<R>(words: Words, _section: &Section<'_>, read: impl FnOnce(&V) -> R) -> R {
        // SAFETY: `LeafList::get` and `LeafList::find` return only words that were validated, and
        // the section is still held.
        unsafe { Self::with_value(words, read) }
    }

    /// Returns the record of an entry, if it has one.
    #[inline]
    pub fn record(words: Words) -> Option<Record<K, V>> {
        let address = ptr::with_exposed_provenance_mut::<u8>(words.0 as usize);
        // SAFETY: entries that are not inline contain null or an address that `entry` exposed.
        if Self::INLINE { None } else { unsafe { Record::from_ptr(address) } }
    }

    /// Creates the pools for the memory of leaves.
    pub fn pools() -> Pools {
        Pools::new(Self::layout(0))
    }

    /// Returns the number of bytes of the leaf itself, in a slab or from the allocator.
    pub fn bytes(self) -> usize {
        let layout = Self::layout(self.anchor_bytes().len());
        if self.header().is_pooled { layout.pad_to_align().size() } else { layout.size() }
    }

    /// Tells the pools that this leaf is no longer used.
    pub fn forget(self, pools: &Pools) {
        pools.of(Self::layout(self.anchor_bytes().len())).into_iter().for_each(Pool::forget);
    }

    /// Returns the address, for [`Guard::retire`](ordna_base::reclaim::Guard::retire).
    pub fn retired(self) -> *mut Retired<K, V, S, LEAF> {
        self.header.as_ptr().cast()
    }

    /// Frees the leaf, but not its records.
    ///
    /// # Safety
    /// No other thread can reach the leaf, and no thread uses it afterwards.
    pub unsafe fn free(self) {
        let layout = Self::layout(self.anchor_bytes().len());
        // SAFETY: the leaf belongs to the caller alone. `new` allocated it, with this layout if it
        // is not from a pool.
        unsafe {
            let is_pooled = self.header().is_pooled;
            self.header.drop_in_place();
            if is_pooled {
                Pool::free(self.header.cast());
            } else {
                alloc::dealloc(self.header.as_ptr().cast(), layout);
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> TableLeaf
    for Leaf<K, V, S, LEAF>
{
    #[inline]
    fn word(self) -> u64 {
        self.header.as_ptr().expose_provenance() as u64
    }
    #[inline]
    unsafe fn from_word(word: u64) -> Self {
        let header = ptr::with_exposed_provenance_mut(word as usize);
        // SAFETY: the caller guarantees that this is the word of a leaf, which is not 0.
        Self { header: unsafe { NonNull::new_unchecked(header) }, kinds: PhantomData }
    }
    #[inline]
    fn anchor(&self) -> &[u8] {
        self.anchor_bytes()
    }
}

/// Represents the memory of a retired leaf.
pub struct Retired<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize>(
    PhantomData<(*const K, *const V, S)>,
);

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> Retire
    for Retired<K, V, S, LEAF>
{
    unsafe fn free(memory: *mut Self) {
        if let Some(leaf) = Leaf::<K, V, S, LEAF>::of(memory.cast()) {
            // SAFETY: a retired leaf belongs to the collector alone when it calls this.
            unsafe { leaf.free() }
        }
    }
}

/// Returns the word of a `u64` value.
fn word_of<V: Value + ?Sized>(value: &V) -> u64 {
    let cell = value.cell();
    // SAFETY: called only for inline entries, whose type of value has an `AtomicU64` as its cell.
    unsafe { (*(&raw const cell).cast::<AtomicU64>()).load(Ordering::Relaxed) }
}
