//! Memory of undo records: chunks that stripes of threads fill in order.
//!
//! # Contract
//! A stripe's lock orders all changes of its chunks. [`ChunkStripe::has_room`] asks without the
//! lock; its answer is of some moment. Threads of different stripes write to no common cache line.
//! A chunk that left its stripe is *gone*: its records count no more, and a guard keeps its memory.
//!
//! # Invariants
//! 1. `last` of a chunk is at least each end epoch in it. Chunks go from the front; one with a
//!    smaller `last` behind another, of range versions that a split divided, goes with that.
//! 2. A record may have words behind it, in the room of further records. They never change.
//! 3. `linked` of a stripe is the sum of its chunks', and so is `owned`. `emptied` counts the
//!    chunks that hold records of which none is linked.

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

/// Bytes of a chunk, and its alignment: an address leads to its chunk. Some 340 records.
pub const CHUNK: usize = 16 << 10;

/// One undo record.
pub struct UndoRecord {
    /// The key if it is an integer, else its hash.
    pub key: AtomicU64,
    /// The old word. Byte strings: the record, which holds the key, also for "absent".
    pub old: AtomicU64,
    pub deadline: AtomicU64,
    /// The end epoch, times two, plus one if the key was present.
    pub end: AtomicU64,
    pub next: AtomicU64,
    /// The end epoch of the next record; 0 if there is none.
    pub next_end: AtomicEpoch,
}

/// The beginning of a chunk.
#[repr(C, align(64))]
struct ChunkStart {
    /// The number of the stripe. Never changes, and is read without the stripe's lock: so no
    /// reference covers both this and the header.
    stripe: usize,
    header: ChunkHeader,
}

/// Used under the lock of the chunk's stripe.
struct ChunkHeader {
    /// Records written.
    len: usize,
    /// Records still in a list.
    linked: usize,
    /// The largest end epoch.
    last: Epoch,
    /// Bytes of records that the chunk owns.
    owned: usize,
    /// The next one of the chunks that are retired together.
    next: Option<NonNull<ChunkStart>>,
    /// Whether the chunk was taken out of its stripe: its records count no more.
    gone: bool,
}

/// Memory of a stripe's records, filled in order.
struct Chunk<K: Key + ?Sized, V: Value + ?Sized> {
    memory: NonNull<ChunkStart>,
    kinds: PhantomData<(*const K, *const V)>,
}

// SAFETY: chunks are plain memory of Send kinds; the stripe's lock orders their use.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for Chunk<K, V> {}

struct Chunks<K: Key + ?Sized, V: Value + ?Sized> {
    /// Oldest first; the last one is being filled.
    chunks: VecDeque<Chunk<K, V>>,
    linked: usize,
    owned: usize,
    emptied: usize,
}

/// The chunks of some threads, on cache lines of their own.
#[repr(align(128))]
pub struct ChunkStripe<K: Key + ?Sized, V: Value + ?Sized> {
    chunks: Lock<Chunks<K, V>>,
    has_room: AtomicBool,
}

/// What a stripe's lists hold, or what they held.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChunkUsage {
    pub chunks: usize,
    /// Records in lists.
    pub records: usize,
    /// Bytes of records that chunks own.
    pub owned: usize,
}

impl ChunkUsage {
    /// Bytes of chunks and of what they own.
    pub fn bytes(self) -> usize {
        self.chunks * CHUNK + self.owned
    }
}

/// Chunks that left their stripes, linked.
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
    /// The room of the largest record.
    const LARGEST: usize = Self::room_of(if is_inline::<K, V>() { 2 * SLOTS } else { 0 });

    /// The size of a record and of the `words` behind it, in records.
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

    /// The header of a chunk whose stripe's lock is held, or that left its stripe.
    fn header(&self) -> &ChunkHeader {
        // SAFETY: the header changes under the stripe's lock only, and no more once the chunk is
        // gone.
        unsafe { &(*self.memory.as_ptr()).header }
    }

    /// The header, for changes.
    fn header_mut(&mut self) -> &mut ChunkHeader {
        // SAFETY: the stripe's lock is held, and no other reference to the header lives.
        unsafe { &mut (*self.memory.as_ptr()).header }
    }

    fn record(&self, at: usize) -> NonNull<UndoRecord> {
        // SAFETY: in bounds: `at` is below `ROOM`.
        unsafe { self.memory.add(1).cast::<UndoRecord>().add(at) }
    }

    /// Gives the memory back, with the records that it owns.
    ///
    /// # Safety
    /// No other thread can reach the chunk.
    unsafe fn free(self) {
        for at in 0..self.header().len {
            if is_inline::<K, V>() {
                break;
            }
            // SAFETY: written records; exclusively the caller's, as is what they own.
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
                // A link that is followed into it leads to no memory.
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

    /// Whether the next record needs no new chunk.
    pub fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
    }

    /// Writes a record, which counts as linked, and words behind it. Returns its address, and
    /// whether it began a chunk.
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
        // SAFETY: memory that no record was written to; the stripe's lock is held.
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
        // Fetched by the time of the next push, whose unlock waits for its stores.
        let next = chunk.record(len.min(Chunk::<K, V>::ROOM - 1)).as_ptr();
        prefetch(next);
        prefetch(next.wrapping_add(1));
        (at, begins)
    }

    pub fn usage(&self) -> ChunkUsage {
        let stripe = self.chunks.lock();
        ChunkUsage { chunks: stripe.chunks.len(), records: stripe.linked, owned: stripe.owned }
    }

    /// Takes out the chunks without a record that may be needed: their end epochs are all at most
    /// `horizon`, or no list leads to one of their records. Returns what they held.
    pub fn take_retired(&self, horizon: Epoch, gone: &mut RetiredChunks<K, V>) -> ChunkUsage {
        let mut usage = ChunkUsage::default();
        let mut guard = self.chunks.lock();
        let stripe = &mut *guard;
        let mut leaving = VecDeque::new();
        while stripe.chunks.front().is_some_and(|chunk| chunk.header().last <= horizon) {
            leaving.extend(stripe.chunks.pop_front());
        }
        // Prunes may have emptied later ones; the last one is being filled. They wait until they are
        // an eighth of all: pushes, with a leaf locked, wait for this pass over all chunks.
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

    /// Counts a record that left its list, unless its chunk is gone. `take_out` takes what the
    /// record owns, and tells its bytes. Returns them. The caller's guard keeps the chunk.
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
            // SAFETY: nobody else uses the stripe.
            unsafe { chunk.free() };
        }
    }
}

/// The chunk of a record.
fn start_of(record: NonNull<UndoRecord>) -> NonNull<ChunkStart> {
    let start = record.as_ptr().addr() & !(CHUNK - 1);
    NonNull::new(ptr::with_exposed_provenance_mut(start)).expect("no chunk stands at address 0")
}

/// The number of the stripe of a record's chunk. The caller's guard keeps the chunk.
pub fn stripe_of(record: NonNull<UndoRecord>) -> usize {
    // SAFETY: a chunk that the caller's guard keeps; its stripe's number never changes.
    unsafe { (*start_of(record).as_ptr()).stripe }
}

impl<K: Key + ?Sized, V: Value + ?Sized> RetiredChunks<K, V> {
    pub fn new() -> Self {
        Self { first: None, kinds: PhantomData }
    }

    /// Retires the chunks, all at once: a batch of the collector's would keep megabytes waiting.
    ///
    /// # Safety
    /// No link to them is followed by a thread that pins from now on.
    pub unsafe fn retire(self, guard: &Guard<'_>) {
        if let Some(first) = self.first {
            // SAFETY: the caller's promise, handed on.
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
