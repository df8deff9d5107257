//! Read-Optimized Write EXclusion.
//!
//! # Contract
//! Readers look at no lock and no version: they neither wait nor restart. So each single store of a
//! writer must leave a tree that a reader can go through:
//!
//! 1. A slot of a Node4, Node16 or Node48 is filled for one byte and never given to another; a
//!    removal empties it, and the same byte may fill it again. A node without fresh slots is
//!    replaced by a copy.
//! 2. A node that leaves the tree is left as it is, for readers that are inside, and marked
//!    obsolete for writers.
//! 3. Node and prefix cannot change in one store when a prefix is split or merged. A reader goes by
//!    the node's *level*, which never changes. It takes the stored prefix only where its length
//!    fits the levels of the node and of the one it came from; otherwise a record below the node
//!    tells.
//!
//! Writers go down as under Optimistic Lock Coupling and lock the one or two nodes they change.
//!
//! # Why a lookup is linearizable
//! At the moment at which it read the link to a node, the key was below that node, or absent. As
//! long as the key stays, it stays below (a node that is replaced meanwhile is frozen, and has the
//! key). So a lookup that finds nothing overlaps a moment without the key. A record that a lookup
//! finds was in the tree at some moment of the lookup.
//!
//! Source: "The ART of Practical Synchronization" (Leis et al., DaMoN 2016), §4.

use super::olc::Optimistic;
use super::{Concurrent, Free, Protocol};
use ordna_base::sync::VersionLock;

/// Read-Optimized Write EXclusion.
#[derive(Debug)]
pub struct Rowex;

impl Protocol for Rowex {
    type Lock = VersionLock;
    type Read = Free;
    type Write = Optimistic;
    const READERS_NOTICE: bool = false;
}

// SAFETY: versions exclude writers from each other; the contract above is for readers.
#[expect(unsafe_code, reason = "see the trait")]
unsafe impl Concurrent for Rowex {
    const NAME: &'static str = "art-rowex";
}
