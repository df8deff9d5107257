//! The two kinds of values: one 64-bit word, and byte strings up to 512 MiB.

use std::borrow::Borrow;
use std::fmt::Debug;

use crate::Error;
use crate::buffer::Buffer;
use crate::data::AsData;
use crate::encoding::Encoding;
use crate::sequence::{FlatBytes, Sequence};
use crate::sync::atomic::{AtomicU64, Ordering};

pub use crate::error::MAX_VALUE_LEN as MAX_LEN;

/// A kind of value: `u64` or `[u8]`. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kind of value",
    label = "values of a `Store` are `u64` or `[u8]`",
    note = "for values of other types use `ordna::Map<K, V>`"
)]
pub trait Value:
    sealed::Sealed
    + Encoding
    + Eq
    + Debug
    + Send
    + Sync
    + AsData<Self>
    + 'static
    + ToOwned<Owned: Borrow<Self> + AsData<Self> + Eq + Clone + Debug + Send + Sync + 'static>
{
    /// Whether a stored value is one word that is overwritten in place. Otherwise a new value needs
    /// a new record.
    const IN_PLACE: bool;

    /// A growable sequence of values in one buffer.
    type Sequence: Sequence<Self>;

    /// The fixed-size part of every stored copy of the value: the word, or the length.
    #[doc(hidden)]
    type Cell: Send + Sync + 'static;

    /// Returns the value as a word, if values of this kind are words.
    #[doc(hidden)]
    fn to_word(&self) -> Option<u64> {
        None
    }

    /// Returns the value of this word, if values of this kind are words.
    #[doc(hidden)]
    fn from_word(word: &u64) -> Option<&Self> {
        let _ = word;
        None
    }

    /// Returns some value, for records that only need a key.
    #[doc(hidden)]
    fn placeholder() -> &'static Self;

    /// Returns an error if the value is longer than [`MAX_LEN`].
    ///
    /// # Errors
    /// [`Error::ValueTooLong`].
    fn check(&self) -> Result<(), Error>;

    /// Returns the fixed-size part. The value must have passed [`Value::check`].
    #[doc(hidden)]
    fn cell(&self) -> Self::Cell;

    /// Returns the bytes to store after the cell.
    #[doc(hidden)]
    fn tail(&self) -> &[u8];

    #[doc(hidden)]
    fn tail_len(cell: &Self::Cell) -> usize;

    /// Overwrites the stored word. Returns `false` if this kind is not [`Value::IN_PLACE`].
    ///
    /// The store has release ordering. The caller holds the index's lock on the entry.
    #[doc(hidden)]
    fn overwrite(&self, cell: &Self::Cell) -> bool;

    /// Calls `f` with the stored value. A word is loaded once, with acquire ordering.
    ///
    /// # Safety
    /// The [`Value::tail_len`] bytes at `tail` were stored with `cell` and do not change during the
    /// call.
    #[doc(hidden)]
    #[expect(unsafe_code, reason = "declares the raw view that record layouts implement")]
    unsafe fn with<R>(cell: &Self::Cell, tail: *const u8, f: impl FnOnce(&Self) -> R) -> R;

    /// Returns the buffer outside of the record that the stored value shares, if any.
    ///
    /// # Safety
    /// The contract is that of [`with`](Self::with).
    #[doc(hidden)]
    #[expect(unsafe_code, reason = "declares the raw view that record layouts implement")]
    #[inline]
    unsafe fn buffer(_: &Self::Cell, _: *const u8) -> Option<Buffer> {
        None
    }
}

/// A bit of the length of a byte string that is stored in a [`Buffer`], whose address replaces the
/// bytes. Lengths are below it.
pub(crate) const SHARED: u32 = 1 << 31;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for [u8] {}
}

impl Value for u64 {
    const IN_PLACE: bool = true;
    type Sequence = Vec<u64>;
    type Cell = AtomicU64;

    #[inline]
    fn to_word(&self) -> Option<u64> {
        Some(*self)
    }
    #[inline]
    fn from_word(word: &u64) -> Option<&Self> {
        Some(word)
    }
    #[inline]
    fn placeholder() -> &'static Self {
        &0
    }

    #[inline]
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
    #[inline]
    fn cell(&self) -> AtomicU64 {
        AtomicU64::new(*self)
    }
    #[inline]
    fn tail(&self) -> &[u8] {
        &[]
    }
    #[inline]
    fn tail_len(_: &AtomicU64) -> usize {
        0
    }
    #[inline]
    fn overwrite(&self, cell: &AtomicU64) -> bool {
        // Pairs with the acquire load in `with`: a reader of the word sees its writer's earlier
        // stores.
        cell.store(*self, Ordering::Release);
        true
    }
    #[inline]
    #[expect(unsafe_code, reason = "raw view, see the trait")]
    unsafe fn with<R>(cell: &AtomicU64, _: *const u8, f: impl FnOnce(&u64) -> R) -> R {
        // Pairs with the release store in `overwrite`.
        f(&cell.load(Ordering::Acquire))
    }
}

impl Value for [u8] {
    const IN_PLACE: bool = false;
    type Sequence = FlatBytes;
    type Cell = u32;

    #[inline]
    fn placeholder() -> &'static Self {
        &[]
    }

    #[inline]
    fn check(&self) -> Result<(), Error> {
        if self.len() > MAX_LEN {
            return Err(Error::ValueTooLong { len: self.len() });
        }
        Ok(())
    }
    #[inline]
    fn cell(&self) -> u32 {
        debug_assert!(self.len() <= MAX_LEN);
        self.len() as u32
    }
    #[inline]
    fn tail(&self) -> &[u8] {
        self
    }
    #[inline]
    fn tail_len(cell: &u32) -> usize {
        if *cell & SHARED == 0 { *cell as usize } else { size_of::<usize>() }
    }
    #[inline]
    fn overwrite(&self, _: &u32) -> bool {
        false
    }
    #[inline]
    #[expect(unsafe_code, reason = "raw view, see the trait")]
    unsafe fn with<R>(cell: &u32, tail: *const u8, f: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: the caller promises the stored bytes behind `tail`, or the buffer's address;
        // unchanged for the call.
        unsafe {
            let start = Self::buffer(cell, tail).map_or(tail, Buffer::start);
            f(std::slice::from_raw_parts(start, (*cell & !SHARED) as usize))
        }
    }
    #[inline]
    #[expect(unsafe_code, reason = "raw view, see the trait")]
    unsafe fn buffer(cell: &u32, tail: *const u8) -> Option<Buffer> {
        // SAFETY: a cell with this bit has the address of a buffer behind it, perhaps unaligned;
        // the record's share keeps the buffer.
        (*cell & SHARED != 0).then(|| unsafe { Buffer::at(tail.cast::<usize>().read_unaligned()) })
    }
}
