//! Published concurrent ordered indexes, corrected, behind the contract
//! [`OrderedIndex`](ordna_base::OrderedIndex).
//!
//! | module | index | synchronization | source |
//! |---|---|---|---|
//! | [`art`] | [`ArtNone`], [`ArtCoupling`], [`ArtOlc`], [`ArtRowex`], [`ArtHtm`] | none, lock coupling, optimistic lock coupling, ROWEX, hardware transactions | The ART of Practical Synchronization |
//! | [`hydralist`] | [`HydraList`] | optimistic slotted list under a search layer that is updated later | HydraList |
//! | [`skiplist`] | [`SkipList`] | lock-free linked lists in levels | Nitro, §2 |
//! | [`nitro`] | [`Nitro`] | versions in the skip list, snapshots; access barrier | Nitro, §3, §4, §6 |
//! | [`pi`] | [`Pi`] | owners by key range for writers, versions for readers; batches | PI |
//! | [`wormhole`] | [`Wormhole`], [`WormholeFaithful`], [`WormholeUnsafe`] | leaf list under a hashed trie: leaf versions, two tables | Wormhole, §2, §3 |
//!
//! [`search_layer`] is the contract of the search layers of HydraList; [`topology`] has the NUMA
//! nodes for which HydraList and PI keep replicas and owners.

/// `Default` and `Debug` of an index.
macro_rules! shell {
    ($name:literal [$($generics:tt)*] $index:ty) => {
        impl<$($generics)*> Default for $index {
            fn default() -> Self {
                Self::new()
            }
        }

        impl<$($generics)*> std::fmt::Debug for $index {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let len = ordna_base::OrderedIndex::approximate_len(self);
                f.debug_struct($name).field("approximate_len", &len).finish_non_exhaustive()
            }
        }
    };
}
use shell;

pub mod art;
pub mod hydralist;
pub mod nitro;
pub mod pi;
pub mod search_layer;
pub mod skiplist;
mod timestamp;
pub mod topology;
mod unshared;
pub mod wormhole;

pub use art::{ArtCoupling, ArtHtm, ArtNone, ArtOlc, ArtRowex};
pub use hydralist::HydraList;
pub use nitro::Nitro;
pub use pi::Pi;
pub use skiplist::SkipList;
pub use unshared::Unshared;
pub use wormhole::{Wormhole, WormholeFaithful, WormholeUnsafe};
