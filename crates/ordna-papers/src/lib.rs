//! Published concurrent ordered indexes, corrected, behind the contract
//! [`OrderedIndex`](ordna_base::OrderedIndex).
//!
//! | module | index | synchronization | source |
//! |---|---|---|---|
//! | [`locked`] | [`Locked`] | one reader-writer lock over a B-tree: oracle and baseline | |
//! | [`art`] | [`ArtNone`], [`ArtCoupling`], [`ArtOlc`], [`ArtRowex`] | none, lock coupling, optimistic lock coupling, ROWEX | The ART of Practical Synchronization |
//! | [`hydralist`] | [`HydraList`] | optimistic slotted list under a search layer that is updated later | HydraList |
//! | [`skiplist`] | [`SkipList`] | lock-free linked lists in levels | Nitro, §2 |
//! | [`nitro`] | [`nitro::Store`] | versions in the skip list, snapshots | Nitro, §3, §4 |
//! | [`pi`] | [`Pi`] | owners by key range for writers, versions for readers; batches | PI |
//! | [`wormhole`] | [`Wormhole`], [`WormholeFaithful`], [`WormholeUnsafe`] | leaf list under a hashed trie: leaf versions, two tables | Wormhole, §2, §3 |
//!
//! [`search_layer`] is the contract of the search layers of HydraList. [`barrier`] is the access
//! barrier of Nitro (§6), for comparison with [`ordna_base::reclaim`].

pub mod art;
pub mod barrier;
pub mod hydralist;
pub mod locked;
pub mod nitro;
pub mod pi;
pub mod search_layer;
pub mod skiplist;
pub mod wormhole;

pub use art::{ArtCoupling, ArtNone, ArtOlc, ArtRowex};
pub use hydralist::HydraList;
pub use locked::Locked;
pub use pi::Pi;
pub use skiplist::SkipList;
pub use wormhole::{Wormhole, WormholeFaithful, WormholeUnsafe};
