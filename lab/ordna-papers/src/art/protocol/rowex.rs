//! Read-optimized write exclusion.
//!
//! # Contract
//! Readers look at neither locks nor versions, so they never wait or restart. Therefore each single
//! store of a writer must leave a tree that a reader can pass through:
//!
//! 1. A slot of a Node4, Node16 or Node48 is filled for one byte and never used for another. A
//!    removal empties it, and the same byte may fill it again. A node without unused slots is
//!    replaced by a copy.
//! 2. A node that leaves the tree is not changed any more, because readers may be inside, and is
//!    marked obsolete for writers.
//! 3. When a prefix is split or merged, node and prefix cannot change in one store. A reader relies
//!    on the *level* of a node, which never changes. It uses the stored prefix only if its length
//!    fits the levels of the node and of the one from which the reader came. Otherwise it compares
//!    with a record below the node.
//!
//! Writers descend as with optimistic lock coupling, and lock the one or two nodes that they
//! change.
//!
//! # Why a lookup is linearizable
//! At the moment at which a lookup read the link to a node, the key was below that node or absent.
//! As long as the key is present, it stays below that node, because a node that is replaced is no
//! longer changed and has the key. So if a lookup finds nothing, the key was absent at some moment
//! of the lookup. A record that a lookup finds was in the tree at some moment of the lookup.
//!
//! Source: "The ART of Practical Synchronization" (Leis et al., DaMoN 2016), §4.

use super::olc::Optimistic;
use super::{Concurrent, Free, Protocol};
use ordna_base::sync::VersionLock;

/// The protocol of read-optimized write exclusion.
#[derive(Debug)]
pub struct Rowex;

impl Protocol for Rowex {
    type Lock = VersionLock;
    type Read = Free;
    type Write = Optimistic;
    const READERS_NOTICE: bool = false;
}

// SAFETY: versions exclude other writers; the contract above covers readers.
#[expect(unsafe_code, reason = "see the trait")]
unsafe impl Concurrent for Rowex {
    const NAME: &'static str = "art-rowex";
}
