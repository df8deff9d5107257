//! The interface of a leaf for the table.

#![expect(unsafe_code, reason = "declares how a word becomes a leaf again")]

/// A leaf that fits into a slot of the table, and has an anchor.
pub trait TableLeaf: Copy + PartialEq {
    /// Returns the leaf as a word, which is even, not 0, and below 2^48.
    fn word(self) -> u64;
    /// Returns the leaf of a word.
    ///
    /// # Safety
    /// `word` came from [`TableLeaf::word`], and the leaf is alive.
    unsafe fn from_word(word: u64) -> Self;
    /// Returns the anchor, which never changes.
    fn anchor(&self) -> &[u8];
}
