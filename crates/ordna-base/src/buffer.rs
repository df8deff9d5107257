//! Shared buffers: bytes with room behind them, which several records hold at different lengths.
//!
//! # Contract
//! Bytes below `used` were written once and never change. An extension claims the room behind the
//! length of the record that it starts from, writes there, and is published with a new record. A
//! record reads its own length only, so older records, their snapshots and readers see nothing of
//! it.
//!
//! # Protocol
//! A claim is a compare-exchange of `used`, from the record's length to the new one. It fails if
//! another extension of that record came first; the caller then copies. `owners` counts the records
//! that hold a share. A record that an extension replaced hands its share on to the new one, if
//! nothing keeps the old record; what reads it still is older than the end of the new record, which
//! is retired after it.
//!
//! # Progress
//! Claims and shares are one atomic operation each.

#![expect(unsafe_code, reason = "lays out bytes with spare room behind them")]

use std::alloc::{self, Layout};
use std::ptr::{self, NonNull};

use crate::check;
use crate::sync::atomic::{AtomicUsize, Ordering};

#[repr(C)]
struct BufferHeader {
    owners: AtomicUsize,
    /// Bytes written or claimed.
    used: AtomicUsize,
    /// Bytes of room in all.
    capacity: usize,
}

/// A handle of a buffer, an address. Its owners decide when it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer(NonNull<BufferHeader>);

impl Buffer {
    fn layout(capacity: usize) -> Layout {
        let size = size_of::<BufferHeader>() + capacity;
        Layout::from_size_align(size, align_of::<BufferHeader>())
            .expect("checked lengths stay far below isize")
    }

    /// Bytes that a buffer takes of the allocator.
    pub fn size_of(capacity: usize) -> usize {
        size_of::<BufferHeader>() + capacity
    }

    /// A buffer with the pieces in it, one after the other, and one owner. There must be room.
    pub fn new(pieces: &[&[u8]], capacity: usize) -> Self {
        let used = pieces.iter().map(|piece| piece.len()).sum();
        assert!(used <= capacity, "{used} bytes in {capacity}");
        let layout = Self::layout(capacity);
        // SAFETY: the layout has the size of a header at least, so it is not zero.
        let Some(memory) = NonNull::new(unsafe { alloc::alloc(layout) }) else {
            alloc::handle_alloc_error(layout)
        };
        let header: NonNull<BufferHeader> = memory.cast();
        let (owners, used) = (AtomicUsize::new(1), AtomicUsize::new(used));
        // SAFETY: new memory, aligned for the header.
        unsafe { header.write(BufferHeader { owners, used, capacity }) };
        let buffer = Self(header);
        let mut at = 0;
        for piece in pieces {
            // SAFETY: within the capacity, as was checked; no other thread knows the memory.
            unsafe { buffer.write(at, piece) };
            at += piece.len();
        }
        buffer
    }

    /// The address, for a record.
    pub fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// # Safety
    /// The address comes from [`Buffer::address`] of a buffer that is not freed during the use of
    /// the handle.
    #[inline]
    pub unsafe fn at(address: usize) -> Self {
        // SAFETY: an address of a buffer is not null.
        Self(unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(address)) })
    }

    fn header(&self) -> &BufferHeader {
        // SAFETY: handles are followed while the buffer lives, see `at`.
        unsafe { self.0.as_ref() }
    }

    /// Where the bytes begin.
    #[inline]
    pub fn start(self) -> *const u8 {
        self.0.as_ptr().wrapping_add(1).cast()
    }

    /// Bytes that the buffer takes of the allocator.
    pub fn size(self) -> usize {
        Self::size_of(self.header().capacity)
    }

    /// # Safety
    /// The bytes from `at` on are the caller's alone, and lie within the capacity.
    unsafe fn write(self, at: usize, bytes: &[u8]) {
        let start = self.0.as_ptr().wrapping_add(1).cast::<u8>();
        // SAFETY: handed on from the caller.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(at), bytes.len()) }
    }

    /// Claims the bytes from `len` to `end` for an extension of a record of that length. `None`:
    /// there is no room, or they are claimed already.
    pub fn claim(self, len: usize, end: usize) -> Option<Claim> {
        let header = self.header();
        if end < len || end > header.capacity {
            return None;
        }
        // Relaxed: the leaf's lock orders the claims of a key; the new record publishes the bytes.
        let claim = header.used.compare_exchange(len, end, Ordering::Relaxed, Ordering::Relaxed);
        check!("buffer.claim", claim.is_ok()).then_some(Claim { buffer: self, len, end })
    }

    /// Adds an owner.
    pub fn share(self) {
        // Relaxed: the caller's own share keeps the buffer meanwhile.
        self.header().owners.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends an owner's share; the last one frees the buffer.
    ///
    /// # Safety
    /// The share is the caller's, and no reader of its record is left.
    pub unsafe fn release(self) {
        // Release, and acquire by the last one: what owners read comes before the end.
        if self.header().owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            let layout = Self::layout(self.header().capacity);
            // SAFETY: allocated by `new` with this layout; no other owner is left.
            unsafe { alloc::dealloc(self.0.as_ptr().cast(), layout) }
        }
    }
}

/// Claimed bytes of a buffer, to be filled or given back.
#[derive(Debug)]
pub struct Claim {
    buffer: Buffer,
    len: usize,
    end: usize,
}

impl Claim {
    /// Writes zeros and then the bytes, up to the claim's end.
    pub fn fill(self, bytes: &[u8]) -> Buffer {
        let zeros = (self.end - self.len).saturating_sub(bytes.len());
        let start = self.buffer.0.as_ptr().wrapping_add(1).cast::<u8>();
        // SAFETY: within the capacity, and claimed by this claim alone: no record shows these
        // bytes.
        unsafe {
            ptr::write_bytes(start.add(self.len), 0, zeros);
            self.buffer.write(self.len + zeros, &bytes[..self.end - self.len - zeros]);
        }
        self.buffer
    }

    /// Gives the bytes back: nothing was written.
    pub fn give_back(self) {
        self.buffer.header().used.store(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(buffer: Buffer, len: usize) -> Vec<u8> {
        // SAFETY: the test's own buffer.
        unsafe { std::slice::from_raw_parts(buffer.start(), len) }.to_vec()
    }

    #[test]
    fn room_is_claimed_once_and_only_from_the_end() {
        let buffer = Buffer::new(&[b"ab", b"c"], 10);
        assert!(buffer.claim(2, 4).is_none(), "those bytes are written");
        assert!(buffer.claim(3, 11).is_none(), "there is no such room");
        buffer.claim(3, 9).unwrap().give_back();
        assert_eq!(buffer.claim(3, 7).unwrap().fill(b"de"), buffer);
        assert!(buffer.claim(3, 5).is_none(), "another extension came first");
        assert_eq!(bytes(buffer, 7), b"abc\0\0de");
        buffer.share();
        // SAFETY: two shares.
        unsafe {
            buffer.release();
            assert_eq!(bytes(buffer, 3), b"abc");
            buffer.release();
        }
    }
}
