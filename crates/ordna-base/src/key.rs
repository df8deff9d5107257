//! The two kinds of keys: native `u64`, and byte strings of any content, 0 to 65,535 bytes.
//!
//! Both order like their big-endian bytes. No content is reserved: the empty key, keys with zero
//! bytes, keys that are prefixes of others, `0` and `u64::MAX` are ordinary keys.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::hash::Hash;

use crate::Error;
use crate::data::AsData;
use crate::encoding::Encoding;
use crate::sequence::{FlatBytes, Sequence};

pub use crate::error::MAX_KEY_LEN as MAX_LEN;

/// A kind of key: `u64` or `[u8]`. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kind of key",
    label = "keys of a `Store` are `u64` or `[u8]`",
    note = "for keys of other types use `ordna::Map<K, V>`"
)]
pub trait Key:
    sealed::Sealed
    + Encoding
    + Ord
    + Hash
    + Debug
    + Send
    + Sync
    + AsData<Self>
    + 'static
    + ToOwned<
        Owned: Borrow<Self>
                   + AsData<Self>
                   + Ord
                   + Hash
                   + Clone
                   + Debug
                   + Default
                   + Send
                   + Sync
                   + 'static,
    >
{
    /// Whether [`Key::head`] alone decides every comparison.
    const HEAD_IS_KEY: bool;

    /// A growable sequence of keys in one buffer.
    type Sequence: Sequence<Self>;

    /// The fixed-size part of every stored copy of the key: the key itself, or its length.
    #[doc(hidden)]
    type Cell: Copy + Send + Sync + 'static;

    /// The bytes by which a radix tree branches.
    #[doc(hidden)]
    type Radix<'a>: AsRef<[u8]> + Copy;

    /// Returns the first eight bytes, big-endian, padded with zeroes: `a < b` implies `a.head() <=
    /// b.head()`.
    fn head(&self) -> u64;

    /// Returns the key with this head, if the head is the whole key.
    #[doc(hidden)]
    fn from_head(head: &u64) -> Option<&Self>;

    /// Returns the first `len` bytes of a byte string, or a whole integer.
    #[doc(hidden)]
    fn prefix(&self, len: usize) -> Self::Owned;

    /// Returns an error if the key is longer than [`MAX_LEN`].
    ///
    /// # Errors
    /// [`Error::KeyTooLong`].
    fn check(&self) -> Result<(), Error>;

    #[doc(hidden)]
    fn radix(&self) -> Self::Radix<'_>;

    /// Returns the fixed-size part. The key must have passed [`Key::check`].
    #[doc(hidden)]
    fn cell(&self) -> Self::Cell;

    /// Returns the bytes to store after the cell.
    #[doc(hidden)]
    fn tail(&self) -> &[u8];

    #[doc(hidden)]
    fn tail_len(cell: Self::Cell) -> usize;

    /// Returns the stored key, given its cell and tail.
    ///
    /// # Safety
    /// `cell` and the [`Key::tail_len`] bytes at `tail` were stored from one key and do not change
    /// during `'a`.
    #[doc(hidden)]
    #[expect(unsafe_code, reason = "declares the raw view that record layouts implement")]
    unsafe fn view<'a>(cell: *const Self::Cell, tail: *const u8) -> &'a Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u64 {}
    impl Sealed for [u8] {}
}

impl Key for u64 {
    const HEAD_IS_KEY: bool = true;
    type Sequence = Vec<u64>;
    type Cell = u64;
    type Radix<'a> = [u8; 8];

    #[inline]
    fn head(&self) -> u64 {
        *self
    }
    #[inline]
    fn from_head(head: &u64) -> Option<&Self> {
        Some(head)
    }
    #[inline]
    fn prefix(&self, _: usize) -> u64 {
        *self
    }
    #[inline]
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
    #[inline]
    fn radix(&self) -> [u8; 8] {
        self.to_be_bytes()
    }
    #[inline]
    fn cell(&self) -> u64 {
        *self
    }
    #[inline]
    fn tail(&self) -> &[u8] {
        &[]
    }
    #[inline]
    fn tail_len(_: u64) -> usize {
        0
    }
    #[inline]
    #[expect(unsafe_code, reason = "raw view, see the trait")]
    unsafe fn view<'a>(cell: *const u64, _: *const u8) -> &'a u64 {
        // SAFETY: the caller promises that the cell is a stored key, unchanged for 'a.
        unsafe { &*cell }
    }
}

impl Key for [u8] {
    const HEAD_IS_KEY: bool = false;
    type Sequence = FlatBytes;
    type Cell = u16;
    type Radix<'a> = &'a [u8];

    #[inline]
    fn head(&self) -> u64 {
        if let Some(first) = self.first_chunk::<8>() {
            return u64::from_be_bytes(*first);
        }
        let mut padded = [0; 8];
        padded[..self.len()].copy_from_slice(self);
        u64::from_be_bytes(padded)
    }
    #[inline]
    fn from_head(_: &u64) -> Option<&Self> {
        None
    }
    #[inline]
    fn prefix(&self, len: usize) -> Vec<u8> {
        self[..len.min(self.len())].to_vec()
    }
    #[inline]
    fn check(&self) -> Result<(), Error> {
        if self.len() > MAX_LEN {
            return Err(Error::KeyTooLong { len: self.len() });
        }
        Ok(())
    }
    #[inline]
    fn radix(&self) -> &[u8] {
        self
    }
    #[inline]
    fn cell(&self) -> u16 {
        debug_assert!(self.len() <= MAX_LEN);
        self.len() as u16
    }
    #[inline]
    fn tail(&self) -> &[u8] {
        self
    }
    #[inline]
    fn tail_len(cell: u16) -> usize {
        usize::from(cell)
    }
    #[inline]
    #[expect(unsafe_code, reason = "raw view, see the trait")]
    unsafe fn view<'a>(cell: *const u16, tail: *const u8) -> &'a [u8] {
        // SAFETY: the caller promises a stored cell and that number of bytes at `tail`.
        unsafe { std::slice::from_raw_parts(tail, usize::from(*cell)) }
    }
}

/// Returns the smallest key above every key that starts with `prefix`, or `None` if there is none
/// because the prefix is empty or all `0xFF`.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Returns the number of bytes that two strings share at their beginning.
#[doc(hidden)]
#[inline]
pub fn common_prefix(one: &[u8], other: &[u8]) -> usize {
    let eights = one.chunks_exact(8).zip(other.chunks_exact(8));
    let equal = 8 * eights.take_while(|(one, other)| one == other).count();
    let rest = one[equal..].iter().zip(&other[equal..]);
    equal + rest.take_while(|(one, other)| one == other).count()
}

/// Returns the head of the bytes from `at` on.
#[doc(hidden)]
#[inline]
pub fn head_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).unwrap_or_default().head()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_keeps_the_order() {
        let keys: [&[u8]; 6] = [b"", b"\0", b"a", b"a\0", b"abcdefgh", b"abcdefghi"];
        for pair in keys.windows(2) {
            assert!(pair[0].head() <= pair[1].head());
        }
        assert_eq!(b"ab".as_slice().head(), 0x6162_0000_0000_0000);
    }

    #[test]
    fn prefix_end_is_the_next_sibling() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }

    #[test]
    fn prefixes_in_common_and_heads_behind_them() {
        let one = b"abcdefghijklmnopqrst";
        for at in 0..one.len() {
            let mut other = *one;
            other[at] = b'!';
            assert_eq!(common_prefix(one, &other), at);
            assert_eq!(common_prefix(one, &one[..at]), at);
            assert_eq!(common_prefix(&one[..at], one), at);
        }
        assert_eq!(common_prefix(one, one), one.len());
        assert_eq!(head_at(b"abc", 1), 0x6263_0000_0000_0000);
        assert_eq!((head_at(b"abc", 3), head_at(b"abc", 4)), (0, 0));
        assert_eq!(head_at(b"abcdefghi", 1), u64::from_be_bytes(*b"bcdefghi"));
    }

    #[test]
    fn a_long_key_is_refused_with_its_length() {
        assert_eq!(vec![0; 65_535].as_slice().check(), Ok(()));
        assert_eq!(vec![0; 65_536].as_slice().check(), Err(Error::KeyTooLong { len: 65_536 }));
    }
}
