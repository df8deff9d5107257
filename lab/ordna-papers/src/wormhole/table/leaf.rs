//! A leaf as the table sees it.

#![expect(unsafe_code, reason = "declares how a word becomes a leaf again")]

/// A leaf that fits into a slot of the table, and has an anchor.
pub trait TableLeaf: Copy + PartialEq {
    /// Itself in a word: even, not 0, below 2^48.
    fn word(self) -> u64;
    /// The place that gave the word.
    ///
    /// # Safety
    /// `word` came from [`TableLeaf::word`], and what it stands for lives.
    unsafe fn from_word(word: u64) -> Self;
    /// The anchor; it never changes.
    fn anchor(&self) -> &[u8];
}
