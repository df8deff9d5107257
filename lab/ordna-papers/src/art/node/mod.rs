//! The four kinds of nodes and their methods.
//!
//! # Contract
//! Everything that changes in a node is atomic. The caller of a method that changes a node holds
//! the node's lock. Methods that read may run at any time; their callers validate what they have
//! read if the protocol is one in which readers notice changes ([`Protocol::READERS_NOTICE`]).
//! Under such protocols, Node4 and Node16 are sorted and have no gaps. Under the others:
//!
//! - the key byte of a slot is written before the slot is first filled, and never changes;
//! - so a reader that finds a slot filled sees its byte, if it loads the slot first.
//!
//! # Invariants
//! 1. All keys below a node share their first `level` bytes, and the byte at `level` selects the
//!    slot. A key that ends there is in the terminal slot, so keys need no terminator.
//! 2. A node other than the root has at least two entries, including the terminal one. A node that
//!    leaves the tree is not changed any more.
//!
//! # Layout
//! A header of 32 bytes (24 without a lock), whose last four bytes are the key bytes of a Node4.
//! Then the key bytes of a Node16 or the index of a Node48, and then the slots. The sizes are 64,
//! 176, 672 and 2,080 bytes.
//!
//! Source: "The Adaptive Radix Tree" (Leis et al., ICDE 2013), as summarized in "The ART of
//! Practical Synchronization", §2 and §4.2.

mod collect;
mod layout;
mod methods;

pub use self::collect::{CHUNK, Chunk};
pub use self::layout::{Position, TERMINAL, position};
pub use self::methods::Dispose;
pub use super::word::{Kind, NodeRef};
