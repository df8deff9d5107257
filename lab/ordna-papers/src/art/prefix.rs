//! The compressed path above a node's branching byte, stored in one atomic word.
//!
//! The low 16 bits hold the length. The first [`STORED`] bytes of the path are stored above it, the
//! first byte in the highest position. The paper stores 4 bytes next to a 4-byte length (§4.2, note
//! 3); here 16 bits are enough for any length.

use ordna_base::sync::atomic::{AtomicU64, Ordering};
use ordna_base::sync::{check, fault};

/// Number of bytes of a prefix that are stored. The rest is read from a record below the node.
pub const STORED: usize = 6;

/// Length and first bytes of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix(u64);

impl Prefix {
    /// Creates a prefix of `bytes`, which must be fewer than 65,536.
    pub fn new(bytes: &[u8]) -> Self {
        debug_assert!(bytes.len() <= usize::from(u16::MAX));
        let mut word = [0; 8];
        let stored = bytes.len().min(STORED);
        word[..stored].copy_from_slice(&bytes[..stored]);
        Self(u64::from_be_bytes(word) | bytes.len() as u64)
    }

    /// Returns the length of the whole prefix.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no container")]
    pub fn len(self) -> usize {
        usize::from(self.0 as u16)
    }

    /// Returns the stored bytes and their number: all, or the first [`STORED`].
    #[inline]
    pub fn stored(self) -> ([u8; 8], usize) {
        (self.0.to_be_bytes(), self.len().min(STORED))
    }

    /// Returns whether all bytes are stored.
    #[inline]
    pub fn is_whole(self) -> bool {
        self.len() <= STORED
    }

    /// Returns whether the prefix covers the bytes from `depth` to `level`. A reader may arrive at
    /// a node whose prefix is being cut or joined. The prefix then begins at another depth, and the
    /// result is `false`.
    #[inline]
    pub fn fits(self, depth: usize, level: usize) -> bool {
        check!("art_prefix.fits", depth + self.len() == level)
    }

    /// Returns a whole prefix without its first `count` bytes.
    pub fn without_first(self, count: usize) -> Self {
        debug_assert!(self.is_whole());
        let (bytes, len) = self.stored();
        Self::new(&bytes[count.min(len)..len])
    }

    /// Returns `self`, `byte` and `below` joined: the prefix of a node that replaces its parent.
    pub fn joined(self, byte: u8, below: Self) -> Self {
        let mut bytes = [0; 2 * STORED + 1];
        let (above, len) = self.stored();
        bytes[..len].copy_from_slice(&above[..len]);
        let mut end = len;
        if self.is_whole() {
            bytes[end] = byte;
            end += 1;
            let (below, len) = below.stored();
            bytes[end..end + len].copy_from_slice(&below[..len]);
            end += len;
        }
        let mut word = [0; 8];
        let stored = end.min(STORED);
        word[..stored].copy_from_slice(&bytes[..stored]);
        Self(u64::from_be_bytes(word) | (self.len() + 1 + below.len()) as u64)
    }
}

/// A prefix that changes with a single store.
#[derive(Debug)]
pub struct AtomicPrefix(AtomicU64);

impl AtomicPrefix {
    /// Creates an atomic prefix with the value `prefix`.
    pub fn new(prefix: Prefix) -> Self {
        Self(AtomicU64::new(prefix.0))
    }

    /// Loads the current prefix. Relaxed is enough: the word is complete in itself, and the caller
    /// either checks its length against levels, which never change, or validates the node.
    #[inline]
    pub fn load(&self) -> Prefix {
        Prefix(self.0.load(Ordering::Relaxed))
    }

    /// Sets the prefix. The caller holds the node's lock.
    pub fn store(&self, prefix: Prefix) {
        if fault!("art_prefix.one_store") {
            let old = self.0.load(Ordering::Relaxed);
            self.0.store(old & !0xFFFF | prefix.0 & 0xFFFF, Ordering::Relaxed);
        }
        self.0.store(prefix.0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn bytes(prefix: Prefix) -> Vec<u8> {
        let (bytes, len) = prefix.stored();
        bytes[..len].to_vec()
    }

    #[test]
    fn prefixes_are_cut_and_joined() {
        let prefix = Prefix::new(b"abcde");
        assert_eq!(bytes(prefix.without_first(2)), b"cde");
        assert_eq!(bytes(prefix.without_first(5)), b"");
        let joined = prefix.joined(b'x', Prefix::new(b"yz"));
        assert_eq!((bytes(joined), joined.len()), (b"abcdex".to_vec(), 8));
        assert!(!joined.is_whole());
        let long = Prefix::new(&[b'l'; 65_000]);
        assert_eq!((bytes(long), long.len()), (b"llllll".to_vec(), 65_000));
        let below = Prefix::new(b"").joined(0, Prefix::new(b"q"));
        assert_eq!((bytes(below), below.len(), below.is_whole()), (b"\0q".to_vec(), 2, true));
        assert_eq!(long.joined(1, below).len(), 65_003);
    }
}
