//! Shared buffers: bytes followed by spare room, which several records use with different lengths.
//!
//! # Contract
//! Bytes below `used` were written once and never change. An extension claims the room after the
//! length of its record, writes there, and is published with a new record. A record only reads its
//! own length, so older records, their snapshots and readers do not see the extension.
//!
//! # Protocol
//! A claim is a compare-exchange of `used` from the record's length to the new one. It fails if
//! another extension of that record came first; the caller then copies. `owners` counts the records
//! that hold a share. If nothing keeps a record that an extension has replaced, that record passes
//! its share on to the new one. Readers that still use it began before the end of the new record,
//! which is retired after it.
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
    /// Number of bytes written or claimed.
    used: AtomicUsize,
    /// Total number of bytes.
    capacity: usize,
}

/// A handle of a buffer: its address. The owners of the buffer determine when it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer(NonNull<BufferHeader>);

impl Buffer {
    fn layout(capacity: usize) -> Layout {
        let size = size_of::<BufferHeader>() + capacity;
        Layout::from_size_align(size, align_of::<BufferHeader>())
            .expect("checked lengths stay far below isize")
    }

    /// Returns the number of allocated bytes for a buffer.
    pub fn size_of(capacity: usize) -> usize {
        size_of::<BufferHeader>() + capacity
    }

    /// Creates a buffer with the pieces, one after the other, and one owner. The capacity must be
    /// sufficient.
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

    /// Returns the address, for a record.
    pub fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// # Safety
    /// The address was returned by [`Buffer::address`] of a buffer that is not freed while the
    /// handle is used.
    #[inline]
    pub unsafe fn at(address: usize) -> Self {
        // SAFETY: an address of a buffer is not null.
        Self(unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(address)) })
    }

    fn header(&self) -> &BufferHeader {
        // SAFETY: handles are dereferenced only while the buffer is alive, see `at`.
        unsafe { self.0.as_ref() }
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn start(self) -> *const u8 {
        self.0.as_ptr().wrapping_add(1).cast()
    }

    /// Returns the number of allocated bytes.
    pub fn size(self) -> usize {
        Self::size_of(self.header().capacity)
    }

    /// # Safety
    /// The bytes from `at` on belong to the caller alone and are within the capacity.
    unsafe fn write(self, at: usize, bytes: &[u8]) {
        let start = self.0.as_ptr().wrapping_add(1).cast::<u8>();
        // SAFETY: the caller upholds the contract.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(at), bytes.len()) }
    }

    /// Claims the bytes from `len` to `end` for an extension of a record of length `len`. Returns
    /// `None` if there is no room or they are already claimed.
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
        // Relaxed: the caller's own share keeps the buffer alive.
        self.header().owners.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends an owner's share. The last one frees the buffer.
    ///
    /// # Safety
    /// The share belongs to the caller, and there is no reader of its record.
    pub unsafe fn release(self) {
        // Release, and acquire by the last one: what owners read comes before the end.
        if self.header().owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            let layout = Self::layout(self.header().capacity);
            // SAFETY: allocated by `new` with this layout; no other owner is left.
            unsafe { alloc::dealloc(self.0.as_ptr().cast(), layout) }
        }
    }
}

/// Claimed bytes of a buffer, which must be filled or given back.
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

    /// Gives the bytes back, because nothing was written.
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
