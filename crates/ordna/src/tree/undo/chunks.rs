//! The memory of undo records: chunks, which the threads of a stripe fill in order.
//!
//! # Contract
//! The lock of a stripe orders all changes of its chunks. [`ChunkStripe::has_room`] is called
//! without the lock, and its result may be outdated. Threads of different stripes write to no
//! common cache line. A chunk that was removed from its stripe is *gone*: its records no longer
//! count, and a guard keeps its memory alive.
//!
//! # Invariants
//! 1. `last` of a chunk is at least each end epoch in it. Chunks are removed from the front. A
//!    chunk may have a smaller `last` than the one before it if it holds range versions that a
//!    split divided; it is removed together with that one.
//! 2. A record may be followed by words, which take the room of further records. They never change.
//! 3. `linked` of a stripe is the sum over its chunks, and so is `owned`. `emptied` is the number
//!    of chunks that hold records, none of which is linked.

#![expect(unsafe_code, reason = "lays out chunks")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::epoch::{AtomicEpoch, Epoch};
use crate::tree::leaf::{Leaf, SLOTS, is_inline};
use ordna_base::reclaim::{Guard, Retire};
use ordna_base::simd::prefetch;
use ordna_base::sync::Lock;
use ordna_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use ordna_base::{Key, Value};

/// Size and alignment of a chunk in bytes, so that a record's address determines its chunk. A chunk
/// holds about 340 records.
pub const CHUNK: usize = 16 << 10;

/// One undo record.
pub struct UndoRecord {
    /// The key if it is an integer, and otherwise its hash.
    pub key: AtomicU64,
    /// The old word. With byte strings it names the record that holds the key, even if the key was
    /// absent.
    pub old: AtomicU64,
    pub deadline: AtomicU64,
    /// Twice the end epoch, plus one if the key was present.
    pub end: AtomicU64,
    pub next: AtomicU64,
    /// The end epoch of the next record; 0 if there is none.
    pub next_end: AtomicEpoch,
}

/// The first part of a chunk.
#[repr(C, align(64))]
struct ChunkStart {
    /// The number of the stripe. It never changes and is read without the stripe's lock, so no
    /// reference may cover both this field and the header.
    stripe: usize,
    header: ChunkHeader,
}

/// The part of a chunk that is used under the lock of its stripe.
struct ChunkHeader {
    /// Number of records written.
    len: usize,
    /// Number of records that are still in a list.
    linked: usize,
    /// The largest end epoch.
    last: Epoch,
    /// Total size in bytes of the records that the chunk owns.
    owned: usize,
    /// The next of the chunks that are retired together.
    next: Option<NonNull<ChunkStart>>,
    /// Whether the chunk was removed from its stripe, so that its records no longer count.
    gone: bool,
}

/// The memory of a stripe's undo records, which is filled in order.
struct Chunk<K: Key + ?Sized, V: Value + ?Sized> {
    memory: NonNull<ChunkStart>,
    kinds: PhantomData<(*const K, *const V)>,
}

// SAFETY: chunks are plain memory of Send types, and the stripe's lock orders their use.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for Chunk<K, V> {}

struct Chunks<K: Key + ?Sized, V: Value + ?Sized> {
    /// The chunks, oldest first; the last one is being filled.
    chunks: VecDeque<Chunk<K, V>>,
    linked: usize,
    owned: usize,
    emptied: usize,
}

/// The chunks of some threads, on separate cache lines.
#[repr(align(128))]
pub struct ChunkStripe<K: Key + ?Sized, V: Value + ?Sized> {
    chunks: Lock<Chunks<K, V>>,
    has_room: AtomicBool,
}

/// The memory that a stripe's lists use or used.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChunkUsage {
    pub chunks: usize,
    /// Number of records in lists.
    pub records: usize,
    /// Total size in bytes of the records that chunks own.
    pub owned: usize,
}

impl ChunkUsage {
    /// Returns the size of chunks and of what they own.
    pub fn bytes(self) -> usize {
        self.chunks * CHUNK + self.owned
    }
}

/// A linked list of chunks that were removed from their stripes.
pub struct RetiredChunks<K: Key + ?Sized, V: Value + ?Sized> {
    first: Option<NonNull<ChunkStart>>,
    kinds: PhantomData<(*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Chunk<K, V> {
    const LAYOUT: Layout = match Layout::from_size_align(CHUNK, CHUNK) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    };
    const ROOM: usize = (CHUNK - size_of::<ChunkStart>()) / size_of::<UndoRecord>();
    /// The room that the largest record takes.
    const LARGEST: usize = Self::room_of(if is_inline::<K, V>() { 2 * SLOTS } else { 0 });

    /// Returns the room of a record with `words` words, in units of one record.
    const fn room_of(words: usize) -> usize {
        1 + (words * size_of::<u64>()).div_ceil(size_of::<UndoRecord>())
    }

    fn new(stripe: usize) -> Self {
        // SAFETY: the layout is not empty.
        let Some(memory) = NonNull::new(unsafe { alloc(Self::LAYOUT) }) else {
            handle_alloc_error(Self::LAYOUT)
        };
        let _ = memory.as_ptr().expose_provenance();
        let header =
            ChunkHeader { len: 0, linked: 0, last: Epoch::ZERO, owned: 0, next: None, gone: false };
        // SAFETY: new memory, large enough.
        unsafe { memory.cast::<ChunkStart>().write(ChunkStart { stripe, header }) };
        Self { memory: memory.cast(), kinds: PhantomData }
    }

    /// Returns the header. The stripe's lock is held, or the chunk was removed from its stripe.
    fn header(&self) -> &ChunkHeader {
        // SAFETY: the header changes under the stripe's lock only, and not after the chunk is gone.
        unsafe { &(*self.memory.as_ptr()).header }
    }

    /// Returns the header for changes.
    fn header_mut(&mut self) -> &mut ChunkHeader {
        // SAFETY: the stripe's lock is held, and there is no other reference to the header.
        unsafe { &mut (*self.memory.as_ptr()).header }
    }

    fn record(&self, at: usize) -> NonNull<UndoRecord> {
        // SAFETY: in bounds: `at` is below `ROOM`.
        unsafe { self.memory.add(1).cast::<UndoRecord>().add(at) }
    }

    /// Frees the memory and the records that the chunk owns.
    ///
    /// # Safety
    /// No other thread can reach the chunk.
    unsafe fn free(self) {
        for at in 0..self.header().len {
            if is_inline::<K, V>() {
                break;
            }
            // SAFETY: the records were written; they and what they own are exclusively the
            // caller's.
            unsafe {
                let old = self.record(at).as_ref().old.load(Ordering::Relaxed);
                if let Some(record) = Leaf::<K, V>::record(old) {
                    record.free();
                }
            }
        }
        // SAFETY: allocated by `new`, exclusively the caller's.
        unsafe {
            if cfg!(debug_assertions) {
                // Makes a link that is wrongly followed into the chunk lead to an invalid address.
                self.memory.as_ptr().cast::<u8>().write_bytes(0xFF, CHUNK);
            }
            dealloc(self.memory.as_ptr().cast(), Self::LAYOUT);
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> ChunkStripe<K, V> {
    pub fn new() -> Self {
        let chunks = Chunks { chunks: VecDeque::new(), linked: 0, owned: 0, emptied: 0 };
        Self { chunks: Lock::new(chunks), has_room: AtomicBool::new(false) }
    }

    /// Returns whether the next record fits into the last chunk.
    pub fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
    }

    /// Writes a record, which counts as linked, followed by words. Returns its address, and whether
    /// it began a new chunk.
    pub fn push(
        &self,
        number: usize,
        record: UndoRecord,
        end: Epoch,
        owned: usize,
        words: [&[u64]; 2],
    ) -> (NonNull<UndoRecord>, bool) {
        let room = Chunk::<K, V>::room_of(words[0].len() + words[1].len());
        let mut stripe = self.chunks.lock();
        let is_full = |chunk: &Chunk<K, V>| chunk.header().len + room > Chunk::<K, V>::ROOM;
        let begins = stripe.chunks.back().is_none_or(is_full);
        if begins {
            stripe.chunks.push_back(Chunk::new(number));
        }
        let stripe = &mut *stripe;
        let chunk = stripe.chunks.back_mut().expect("just pushed");
        let at = chunk.record(chunk.header().len);
        // SAFETY: memory without a record; the stripe's lock is held.
        unsafe {
            at.write(record);
            let mut to = at.add(1).cast::<u64>();
            for words in words {
                to.copy_from_nonoverlapping(NonNull::from_ref(words).cast(), words.len());
                to = to.add(words.len());
            }
        }
        let header = chunk.header_mut();
        stripe.emptied -= usize::from(header.linked == 0 && header.len > 0);
        header.len += room;
        header.linked += 1;
        header.last = header.last.max(end);
        header.owned += owned;
        stripe.linked += 1;
        stripe.owned += owned;
        let len = header.len;
        let has_room = len + Chunk::<K, V>::LARGEST <= Chunk::<K, V>::ROOM;
        if begins || !has_room {
            self.has_room.store(has_room, Ordering::Relaxed);
        }
        // Prefetched for the next push, whose unlock would wait for its stores.
        let next = chunk.record(len.min(Chunk::<K, V>::ROOM - 1)).as_ptr();
        prefetch(next);
        prefetch(next.wrapping_add(1));
        (at, begins)
    }

    pub fn usage(&self) -> ChunkUsage {
        let stripe = self.chunks.lock();
        ChunkUsage { chunks: stripe.chunks.len(), records: stripe.linked, owned: stripe.owned }
    }

    /// Removes the chunks whose records cannot be needed any longer: all their end epochs are at
    /// most `horizon`, or none of their records is in a list. Returns what they held.
    pub fn take_retired(&self, horizon: Epoch, gone: &mut RetiredChunks<K, V>) -> ChunkUsage {
        let mut usage = ChunkUsage::default();
        let mut guard = self.chunks.lock();
        let stripe = &mut *guard;
        let mut leaving = VecDeque::new();
        while stripe.chunks.front().is_some_and(|chunk| chunk.header().last <= horizon) {
            leaving.extend(stripe.chunks.pop_front());
        }
        // Prunes may also have emptied later chunks, except the last one, which is being filled.
        // These are removed only when they are an eighth of all, because pushes with a locked leaf
        // wait for this pass over all chunks.
        if stripe.emptied > stripe.chunks.len() / 8 {
            let last = stripe.chunks.back().map(|chunk| chunk.memory);
            let is_kept =
                |chunk: &Chunk<K, V>| chunk.header().linked > 0 || last == Some(chunk.memory);
            let (kept, emptied): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(&mut stripe.chunks).into_iter().partition(is_kept);
            stripe.chunks = kept;
            leaving.extend(emptied);
        }
        for mut chunk in leaving {
            let header = chunk.header_mut();
            header.gone = true;
            header.next = gone.first;
            usage.chunks += 1;
            usage.records += header.linked;
            usage.owned += header.owned;
            stripe.emptied -= usize::from(header.linked == 0);
            gone.first = Some(chunk.memory);
        }
        if stripe.chunks.is_empty() {
            self.has_room.store(false, Ordering::Relaxed);
        }
        stripe.linked -= usage.records;
        stripe.owned -= usage.owned;
        usage
    }

    /// Stops counting a record that left its list, unless its chunk is gone. `take_out` takes what
    /// the record owns and returns its size, which is returned. The caller's guard keeps the chunk
    /// alive.
    pub fn unlink(&self, record: NonNull<UndoRecord>, take_out: impl FnOnce() -> usize) -> usize {
        let mut stripe = self.chunks.lock();
        let mut chunk = Chunk::<K, V> { memory: start_of(record), kinds: PhantomData };
        let header = chunk.header_mut();
        if header.gone {
            return 0;
        }
        let owned = take_out();
        debug_assert!(header.linked > 0, "a record leaves its list once");
        header.linked -= 1;
        header.owned -= owned;
        stripe.emptied += usize::from(header.linked == 0);
        stripe.linked -= 1;
        stripe.owned -= owned;
        owned
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for ChunkStripe<K, V> {
    fn drop(&mut self) {
        for chunk in std::mem::take(&mut self.chunks.lock().chunks) {
            // SAFETY: no other thread uses the stripe.
            unsafe { chunk.free() };
        }
    }
}

/// Returns the chunk of a record.
fn start_of(record: NonNull<UndoRecord>) -> NonNull<ChunkStart> {
    let start = record.as_ptr().addr() & !(CHUNK - 1);
    NonNull::new(ptr::with_exposed_provenance_mut(start)).expect("no chunk stands at address 0")
}

/// Returns the stripe number of a record's chunk. The caller's guard keeps the chunk alive.
pub fn stripe_of(record: NonNull<UndoRecord>) -> usize {
    // SAFETY: the caller's guard keeps the chunk alive; its stripe number never changes.
    unsafe { (*start_of(record).as_ptr()).stripe }
}

impl<K: Key + ?Sized, V: Value + ?Sized> RetiredChunks<K, V> {
    pub fn new() -> Self {
        Self { first: None, kinds: PhantomData }
    }

    /// Retires the chunks all at once: a batch of the collector would keep megabytes waiting.
    ///
    /// # Safety
    /// No thread that pins from now on follows a link to the chunks.
    pub unsafe fn retire(self, guard: &Guard<'_>) {
        if let Some(first) = self.first {
            // SAFETY: the caller upholds the contract.
            unsafe { guard.retire_at_once(first.as_ptr().cast::<Self>()) };
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Retire for RetiredChunks<K, V> {
    unsafe fn free(memory: *mut Self) {
        let mut first = NonNull::new(memory.cast::<ChunkStart>());
        while let Some(memory) = first {
            let chunk = Chunk::<K, V> { memory, kinds: PhantomData };
            first = chunk.header().next;
            // SAFETY: exclusively the caller's.
            unsafe { chunk.free() };
        }
    }
}
