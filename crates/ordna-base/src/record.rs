//! [`Record`]: a key and its value in one allocation.
//!
//! # Contract
//! Trees whose entries are not inline hold pointers to records. A record is written once, before it
//! is published, and freed once, when no reader can hold it any longer ([`crate::reclaim`]). The
//! only part that changes in between is a word value ([`Value::IN_PLACE`]): an atomic, which only a
//! thread that holds the index's lock on the entry overwrites. A byte-string value is replaced
//! together with its record.
//!
//! # Layout
//!
//! | offset | `u64` value | byte-string value |
//! |---|---|---|
//! | 0 | value: 8 bytes | length of the value: 4 bytes |
//! | next, aligned | key: 8 bytes, or length of the key: 2 bytes | the same |
//! | next, no padding | bytes of a byte-string key, then bytes of a byte-string value | the same |
//!
//! A byte string that grew at its end is stored in a [`Buffer`]: the top bit of its length is set,
//! and the buffer's address replaces its bytes (8 bytes, not aligned).
//!
//! So a `u64` to `u64` record has 16 bytes, and a 37-byte key with a word value 47.

#![expect(unsafe_code, reason = "the one place that lays out records of variable length")]

use std::alloc::{self, Layout};
use std::marker::PhantomData;
use std::mem::{align_of, offset_of, size_of};
use std::ptr::{self, NonNull};

use crate::arena::{self, Arena};
use crate::buffer::Buffer;
use crate::reclaim::{Guard, Retire};
use crate::value::{MAX_LEN, SHARED};
use crate::{Key, Value};

#[repr(C)]
struct RecordHeader<K: Key + ?Sized, V: Value + ?Sized> {
    value: V::Cell,
    key: K::Cell,
}

/// A pointer to a record, which can be copied freely. The index decides when to free the record.
pub struct Record<K: Key + ?Sized, V: Value + ?Sized> {
    header: NonNull<u8>,
    kinds: PhantomData<(*const K, *const V)>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Clone for Record<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Copy for Record<K, V> {}

/// Compares addresses, not entries.
impl<K: Key + ?Sized, V: Value + ?Sized> PartialEq for Record<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

// SAFETY: a record is plain bytes and atomics, and both kinds are Send + Sync.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Send for Record<K, V> {}
// SAFETY: as above.
unsafe impl<K: Key + ?Sized, V: Value + ?Sized> Sync for Record<K, V> {}

impl<K: Key + ?Sized, V: Value + ?Sized> Record<K, V> {
    /// Alignment of every record: at least the low bit of an address is free for a tag.
    pub const ALIGN: usize = align_of::<RecordHeader<K, V>>();

    const TAIL: usize = offset_of!(RecordHeader<K, V>, key) + size_of::<K::Cell>();

    /// Returns the size of a record in bytes up to the end of its key, whose tail has `tail` bytes.
    #[inline]
    pub fn size_with_key(tail: usize) -> usize {
        Self::TAIL + tail
    }

    /// Returns the size of a record in bytes. `tails` is the total length of the key's and the
    /// value's tails.
    #[inline]
    pub fn size_with_tails(tails: usize) -> usize {
        Self::layout(tails).size()
    }

    fn layout(tail: usize) -> Layout {
        let size = (Self::TAIL + tail).max(size_of::<RecordHeader<K, V>>());
        Layout::from_size_align(size, Self::ALIGN).expect("checked lengths stay far below isize")
    }

    /// Creates a record with copies of `key` and `value`, which have been validated by `check`.
    pub fn new(key: &K, value: &V) -> Self {
        Self::new_in(None, key, value)
    }

    /// Works like [`Record::new`], but allocates a small record in the arena.
    pub fn new_in(arena: Option<&Arena>, key: &K, value: &V) -> Self {
        Self::of(arena, key, value.cell(), value.tail())
    }

    /// Creates a record of a key, and of a value in its stored form.
    fn of(arena: Option<&Arena>, key: &K, cell: V::Cell, value_tail: &[u8]) -> Self {
        let key_tail = key.tail();
        let header = Self::allocate(arena, Self::layout(key_tail.len() + value_tail.len()));
        // SAFETY: memory of the layout. The header is written completely, and the two tails fit
        // after it by construction of the layout.
        unsafe {
            let start = header.as_ptr();
            ptr::write(start.cast::<V::Cell>(), cell);
            ptr::write(
                start.add(offset_of!(RecordHeader<K, V>, key)).cast::<K::Cell>(),
                key.cell(),
            );
            let tail = start.add(Self::TAIL);
            ptr::copy_nonoverlapping(key_tail.as_ptr(), tail, key_tail.len());
            ptr::copy_nonoverlapping(
                value_tail.as_ptr(),
                tail.add(key_tail.len()),
                value_tail.len(),
            );
            Self { header, kinds: PhantomData }
        }
    }

    #[inline]
    fn allocate(arena: Option<&Arena>, layout: Layout) -> NonNull<u8> {
        arena.and_then(|arena| arena.allocate(layout.size())).unwrap_or_else(|| {
            // SAFETY: the layout has the size of a header at least, so it is not zero.
            NonNull::new(unsafe { alloc::alloc(layout) })
                .unwrap_or_else(|| alloc::handle_alloc_error(layout))
        })
    }

    /// Returns whether the record is in a sparse slab of an arena.
    ///
    /// # Safety
    /// The record is not freed during the call.
    #[inline]
    pub unsafe fn is_in_sparse_slab(self) -> bool {
        // SAFETY: the caller keeps the record alive.
        unsafe { Arena::is_in_sparse_slab(self.header) }
    }

    /// Copies the record to other memory. The copy takes over the record's share of a buffer, so
    /// the record must be retired [without it](Record::retire_without_share).
    ///
    /// # Safety
    /// The record is not freed during the call, and the caller holds the lock on its entry.
    pub unsafe fn moved(self, arena: Option<&Arena>) -> Self {
        // SAFETY: the caller keeps the record alive, and nothing overwrites it concurrently.
        unsafe {
            let layout = self.stored_layout();
            let header = Self::allocate(arena, layout);
            header.copy_from_nonoverlapping(self.header, layout.size());
            Self { header, kinds: PhantomData }
        }
    }

    /// Returns the address, for a tagged slot.
    #[inline]
    pub fn as_ptr(self) -> *mut u8 {
        self.header.as_ptr()
    }

    /// Returns the record at an address from [`Record::as_ptr`], or `None` for null.
    ///
    /// # Safety
    /// `header` is null or the address of a record of these types.
    #[inline]
    pub unsafe fn from_ptr(header: *mut u8) -> Option<Self> {
        NonNull::new(header).map(|header| Self { header, kinds: PhantomData })
    }

    /// Prefetches the first cache line of the record.
    #[inline]
    pub fn prefetch(self) {
        crate::simd::prefetch(self.header.as_ptr().cast_const());
    }

    #[inline]
    fn key_cell(self) -> *const K::Cell {
        self.header.as_ptr().wrapping_add(offset_of!(RecordHeader<K, V>, key)).cast()
    }

    #[inline]
    fn tail(self) -> *const u8 {
        self.header.as_ptr().wrapping_add(Self::TAIL)
    }

    /// Returns the key.
    ///
    /// # Safety
    /// The record is not freed during `'a`.
    #[inline]
    pub unsafe fn key<'a>(self) -> &'a K {
        // SAFETY: cell and tail were written by `new` and never change; the caller keeps the record
        // alive.
        unsafe { K::view(self.key_cell(), self.tail()) }
    }

    /// Calls `f` with the value. A word is loaded once, with acquire ordering.
    ///
    /// # Safety
    /// The record is not freed during the call.
    #[inline]
    pub unsafe fn with_value<R>(self, f: impl FnOnce(&V) -> R) -> R {
        // SAFETY: the caller keeps the record alive; the value's bytes follow the key's and never
        // change.
        unsafe {
            let key_len = K::tail_len(*self.key_cell());
            let cell = &*self.header.as_ptr().cast::<V::Cell>();
            V::with(cell, self.tail().wrapping_add(key_len), f)
        }
    }

    /// Returns the buffer that the value shares, if any.
    ///
    /// # Safety
    /// The record is not freed while the handle is used.
    #[inline]
    pub unsafe fn buffer(self) -> Option<Buffer> {
        // SAFETY: the caller keeps the record alive; both cells were written by `of`.
        unsafe {
            let key_len = K::tail_len(*self.key_cell());
            let cell = &*self.header.as_ptr().cast::<V::Cell>();
            V::buffer(cell, self.tail().wrapping_add(key_len))
        }
    }

    /// Overwrites a word value. Returns `false` for values that need a new record.
    ///
    /// # Safety
    /// The record is not freed during the call, and the caller holds the lock on its entry.
    #[inline]
    pub unsafe fn overwrite(self, value: &V) -> bool {
        // SAFETY: the caller keeps the record alive; if overwriting does anything, the cell is an
        // atomic.
        value.overwrite(unsafe { &*self.header.as_ptr().cast::<V::Cell>() })
    }

    /// Returns the number of allocated bytes, including those of a buffer, however many records
    /// share it.
    ///
    /// # Safety
    /// The record is not freed during the call.
    pub unsafe fn size(self) -> usize {
        // SAFETY: the caller keeps the record alive.
        unsafe { self.stored_layout().size() + self.buffer().map_or(0, Buffer::size) }
    }

    /// # Safety
    /// The record is not freed during the call.
    unsafe fn stored_layout(self) -> Layout {
        // SAFETY: the caller keeps the record alive; both cells were written by `new`.
        unsafe {
            let value = &*self.header.as_ptr().cast::<V::Cell>();
            Self::layout(K::tail_len(*self.key_cell()) + V::tail_len(value))
        }
    }

    /// Frees the record, and ends its share of a buffer.
    ///
    /// # Safety
    /// No other thread can reach the record, and no thread uses it afterwards.
    pub unsafe fn free(self) {
        // SAFETY: exclusively the caller's.
        unsafe {
            let buffer = self.buffer();
            self.free_alone();
            if let Some(buffer) = buffer {
                buffer.release();
            }
        }
    }

    /// Frees the record without its share of a buffer.
    ///
    /// # Safety
    /// The contract is that of [`free`](Self::free).
    unsafe fn free_alone(self) {
        // SAFETY: exclusively the caller's; allocated by `allocate` with this same layout. Cells
        // are plain data and atomics, which need no drop.
        unsafe {
            let layout = self.stored_layout();
            if layout.size() <= arena::MOST && Arena::owns(self.header.as_ptr()) {
                Arena::free(self.header, layout.size());
            } else {
                alloc::dealloc(self.header.as_ptr(), layout);
            }
        }
    }

    /// Retires the record.
    ///
    /// # Safety
    /// The contract is that of [`Guard::retire`].
    pub unsafe fn retire(self, guard: &Guard<'_>) {
        let memory = self.header.as_ptr().cast::<RetiredRecord<K, V>>();
        // SAFETY: the caller upholds the contract.
        unsafe {
            let size = self.size();
            if size < LARGE {
                guard.retire_sized(memory, size);
            } else {
                guard.retire_at_once(memory);
            }
        }
    }

    /// Retires a record whose share of a buffer another record has taken over.
    ///
    /// # Safety
    /// The contract is that of [`Guard::retire`].
    pub unsafe fn retire_without_share(self, guard: &Guard<'_>) {
        // SAFETY: the caller upholds the contract.
        unsafe { guard.retire(self.header.as_ptr().cast::<ReplacedRecord<K, V>>()) }
    }
}

impl<K: Key + ?Sized> Record<K, [u8]> {
    /// Creates a record of the first `len` bytes of a buffer. It takes over a share of the caller.
    pub fn of_buffer(arena: Option<&Arena>, key: &K, buffer: Buffer, len: usize) -> Self {
        debug_assert!(len <= MAX_LEN);
        Self::of(arena, key, len as u32 | SHARED, &buffer.address().to_ne_bytes())
    }
}

/// The memory of a record that has passed on its share of a buffer.
struct ReplacedRecord<K: Key + ?Sized, V: Value + ?Sized>(PhantomData<(*const K, *const V)>);

impl<K: Key + ?Sized, V: Value + ?Sized> Retire for ReplacedRecord<K, V> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: `retire_without_share` made the pointer from a record that is now exclusively
        // ours.
        unsafe {
            if let Some(record) = Record::<K, V>::from_ptr(memory.cast()) {
                record.free_alone();
            }
        }
    }
}

/// Size in bytes from which on records are passed to the collector immediately, because one of them
/// outweighs a whole batch.
pub const LARGE: usize = 64 << 10;

/// The memory of a retired record; never read as this type.
struct RetiredRecord<K: Key + ?Sized, V: Value + ?Sized>(PhantomData<(*const K, *const V)>);

impl<K: Key + ?Sized, V: Value + ?Sized> Retire for RetiredRecord<K, V> {
    unsafe fn free(memory: *mut Self) {
        // SAFETY: `Record::retire` made the pointer from a record that is now exclusively ours.
        unsafe {
            if let Some(record) = Record::<K, V>::from_ptr(memory.cast()) {
                record.free();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<K: Key + ?Sized, V: Value + ?Sized>(key: &K, value: &V, size: usize) {
        let record = Record::new(key, value);
        // SAFETY: the record is this test's own until it is freed.
        unsafe {
            assert_eq!(record.key(), key);
            record.with_value(|stored| assert_eq!(stored, value));
            assert_eq!(record.size(), size);
            record.free();
        }
    }

    #[test]
    fn records_hold_what_they_were_given_in_the_bytes_the_table_says() {
        round_trip::<u64, u64>(&u64::MAX, &0, 16);
        round_trip::<[u8], u64>(&[7; 37], &9, 47);
        round_trip::<[u8], u64>(&[], &9, 16);
        round_trip::<[u8], [u8]>(&[0; 65_535], b"value", 6 + 65_535 + 5);
        round_trip::<[u8], [u8]>(b"", b"", 8);
        round_trip::<u64, [u8]>(&5, b"value", 21);
    }

    #[test]
    fn records_share_a_buffer_and_the_last_one_frees_it() {
        let buffer = Buffer::new(&[b"one"], 100);
        let one = Record::<[u8], [u8]>::of_buffer(None, b"key", buffer, 3);
        let extended = buffer.claim(3, 7).unwrap().fill(b"+two");
        extended.share();
        let two = Record::<[u8], [u8]>::of_buffer(None, b"key", extended, 7);
        // SAFETY: the records are this test's own until they are freed.
        unsafe {
            assert_eq!((one.key(), one.buffer()), (b"key".as_slice(), Some(buffer)));
            assert_eq!(one.size(), 6 + 3 + 8 + Buffer::size_of(100));
            one.with_value(|value| assert_eq!(value, b"one"));
            one.free();
            two.with_value(|value| assert_eq!(value, b"one+two"));
            two.free();
        }
    }

    #[test]
    fn a_word_is_overwritten_in_place() {
        let record = Record::<[u8], u64>::new(b"key", &1);
        // SAFETY: the record is this test's own until it is freed.
        unsafe {
            assert!(record.overwrite(&2));
            assert_eq!(record.with_value(|value| *value), 2);
            record.free();
        }
    }
}
