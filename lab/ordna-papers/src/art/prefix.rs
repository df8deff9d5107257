//! The compressed path above a node's branching byte, in one atomic word.
//!
//! The length takes the low 16 bits; the first [`STORED`] bytes stand above, first byte on top. The
//! paper keeps 4 bytes beside a 4-byte length (§4.2, note 3); 16 bits hold any length here.

use ordna_base::sync::atomic::{AtomicU64, Ordering};
use ordna_base::sync::{check, fault};

/// How many bytes of a prefix are stored. The rest is read from a record below the node.
pub const STORED: usize = 6;

/// Length and first bytes of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix(u64);

impl Prefix {
    /// Of these bytes, fewer than 65,536.
    pub fn new(bytes: &[u8]) -> Self {
        debug_assert!(bytes.len() <= usize::from(u16::MAX));
        let mut word = [0; 8];
        let stored = bytes.len().min(STORED);
        word[..stored].copy_from_slice(&bytes[..stored]);
        Self(u64::from_be_bytes(word) | bytes.len() as u64)
    }

    /// Length of the whole prefix.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no container")]
    pub fn len(self) -> usize {
        usize::from(self.0 as u16)
    }

    /// The stored bytes: all, or the first [`STORED`].
    #[inline]
    pub fn stored(self) -> ([u8; 8], usize) {
        (self.0.to_be_bytes(), self.len().min(STORED))
    }

    /// Whether all bytes are stored.
    #[inline]
    pub fn is_whole(self) -> bool {
        self.len() <= STORED
    }

    /// Whether these are the bytes from `depth` to `level`. A reader may come to a node whose
    /// prefix is being cut or joined: then they are those from another depth on.
    #[inline]
    pub fn fits(self, depth: usize, level: usize) -> bool {
        check!("art_prefix.fits", depth + self.len() == level)
    }

    /// A whole prefix without its first `count` bytes.
    pub fn without_first(self, count: usize) -> Self {
        debug_assert!(self.is_whole());
        let (bytes, len) = self.stored();
        Self::new(&bytes[count.min(len)..len])
    }

    /// `self`, then `byte`, then `below`: the prefix of a node that takes its parent's place.
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

/// A prefix that changes in one store.
#[derive(Debug)]
pub struct AtomicPrefix(AtomicU64);

impl AtomicPrefix {
    /// Holds `prefix`.
    pub fn new(prefix: Prefix) -> Self {
        Self(AtomicU64::new(prefix.0))
    }

    /// The prefix of this moment. Relaxed: the word is whole by itself, and its user checks its
    /// length against levels, which never change, or validates the node.
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
