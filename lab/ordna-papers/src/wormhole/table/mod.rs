//! MetaTrieHT: every prefix of every anchor, in one hash table.
//!
//! # What it holds
//! The leaves of the list stand in order, each with an *anchor*: a byte string not above any of its
//! keys and above every key of the leaf before. The anchors form a trie. Each node of the trie is
//! one slot of the table, found by the hash of its prefix: the leaf itself if the prefix is an
//! anchor and nothing longer starts with it, else an `Item`. A slot is a 16-bit tag and 48 bits
//! that tell which; eight slots are a cache line.
//!
//! A search finds the longest prefix of the key in the trie by binary search on its length
//! (trusting tags). From that node it finds, in constant time, the leaf whose range holds the key.
//! It begins where searches of such keys have ended of late (`hints`), not in the middle. It goes
//! on from there by one byte, two, four…: at most twice the steps of the binary search. It looks at
//! the item of each prefix that it finds: if that has no child for the key's next byte it is the
//! longest, whatever lengths are left. Items know the last leaves of their first ten children
//! (`item`): as a rule the search ends at the item, whether the key goes on to a child that is a
//! leaf or belongs before a child that is missing. [`TableHit::agrees`] compares the prefix with an
//! anchor: if a tag has lied, [`Table::search_by_comparing`] starts over.
//!
//! # Thread safety
//! None of its own: a plain structure, changed by its only owner or read by many (`twin`). Changes
//! come as [`TableStep`]s, in the order in which they were made to the list.
//!
//! # Departures from the paper
//! - *Any byte content.* The paper keeps anchors free of prefixes of each other by appending the
//!   smallest token. It lets a leaf grow without bound where keys of zero bytes leave no such
//!   anchor. Here an anchor that is a prefix of others is the *end* of its item, a child before
//!   child 0. So any two keys can be told apart by an anchor, and no leaf is ever fat.
//! - *An item knows the leaf before its first*, so a search never has to go back along the list.
//! - *And the last leaves of its children*, so the sibling's slot and item are mostly not looked
//!   at.
//! - *Items hold no prefix.* All anchors of a subtree start with it: comparing with one of them is
//!   as good, and a table takes O(1) bytes per prefix and not its length.
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
