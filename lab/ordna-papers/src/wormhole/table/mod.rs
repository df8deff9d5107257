//! The MetaTrieHT: every prefix of every anchor, in one hash table.
//!
//! # Contents
//! The leaves of the list are in order, each with an *anchor*: a byte string that is not above any
//! of its keys and above every key of the preceding leaf. The anchors form a trie. Each node of the
//! trie is one slot of the table, which is found by the hash of its prefix. The slot contains the
//! leaf itself if the prefix is an anchor and nothing longer starts with it, and otherwise an
//! `Item`. A slot consists of a 16-bit tag and 48 bits for the leaf or item. Eight slots form a
//! cache line.
//!
//! A search finds the longest prefix of the key in the trie by binary search on its length
//! (trusting tags). From that node it finds, in constant time, the leaf whose range contains the
//! key. It does not begin in the middle, but where recent searches of such keys have ended
//! (`hints`). It continues from there by one byte, two, four, …, with at most twice the steps of
//! the binary search. It reads the item of each prefix that it finds: if that has no child for the
//! key's next byte, it is the longest, whatever lengths are left. Items know the last leaves of
//! their first ten children (`item`). So the search usually ends at the item, whether the key
//! continues to a child that is a leaf or belongs before a child that is missing.
//! [`TableHit::agrees`] compares the prefix with an anchor: if a tag was wrong,
//! [`Table::search_by_comparing`] starts again.
//!
//! # Thread safety
//! None: the table is a plain structure, changed by its only owner or read by many threads
//! (`twin`). Changes are passed as [`TableStep`]s, in the order in which the list was changed.
//!
//! # Differences from the paper
//! - *Any byte content.* In the paper, no anchor is a prefix of another, because the smallest token
//!   is appended. A leaf grows without bound if keys of zero bytes do not allow such an anchor.
//!   Here, an anchor that is a prefix of others is the *end* of its item, a child before child 0.
//!   So any two keys can be separated by an anchor, and no leaf exceeds its size.
//! - *An item knows the leaf before its first*, so a search never goes back in the list.
//! - *An item knows the last leaves of its children*, so the sibling's slot and item are usually
//!   not read.
//! - *Items contain no prefix.* All anchors of a subtree start with it, so a comparison with one of
//!   them is sufficient, and a table takes O(1) bytes per prefix instead of its length.
//!
//! Source: the Wormhole paper, §2.3, §2.4, §3.1.

mod change;
mod hints;
mod item;
mod leaf;
mod search;
mod storage;
#[cfg(test)]
mod tests;

pub use self::leaf::TableLeaf;
pub use self::search::TableHit;
pub use self::storage::{Table, TableStep};
