//! Published concurrent ordered indexes, with corrections, that implement [`OrderedIndex`].
//!
//! | module | index | synchronization | source |
//! |---|---|---|---|
//! | [`art`] | [`ArtNone`], [`ArtCoupling`], [`ArtOlc`], [`ArtRowex`], [`ArtHtm`] | none, lock coupling, optimistic lock coupling, ROWEX, hardware transactions | The ART of Practical Synchronization |
//! | [`hydralist`] | [`HydraList`] | optimistic slotted list, with a search layer that is updated later | HydraList |
//! | [`skiplist`] | [`SkipList`] | lock-free linked lists in levels | Nitro, §2 |
//! | [`nitro`] | [`Nitro`] | versions in the skip list, snapshots; access barrier | Nitro, §3, §4, §6 |
//! | [`pi`] | [`Pi`] | owners by key range for writers, versions for readers; batches | PI |
//! | [`wormhole`] | [`Wormhole`], [`WormholeFaithful`], [`WormholeUnsafe`] | leaf list under a hashed trie: leaf versions, two tables | Wormhole, §2, §3 |
//!
//! The following table has the cost of an empty index: bytes by [`OrderedIndex::memory_usage`] with
//! `u64` keys and values, and background threads.
//!
//! | index | bytes | threads |
//! |---|---|---|
//! | [`ArtOlc`] and the others | 2.1 kB: the root has room for 256 children | none |
//! | [`HydraList`] | 11.6 kB: a log for each of 64 groups of threads, a search layer, a data node | one; with several NUMA nodes one for each and one that combines |
//! | [`SkipList`] | 0.2 kB | none |
//! | [`Nitro`] | none | [`NitroOptions::collectors`](nitro::NitroOptions::collectors), from the first dead version on |
//! | [`Pi`] | 0.7 kB | [`PiOptions::workers`](pi::PiOptions::workers), and one from the first rebuild on |
//! | [`Wormhole`] | 3.3 kB: a leaf and two tables | none |
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

pub use ordna_base::index::{Bounds, ReadSnapshot, Versioned};
pub use ordna_base::{
    Change, Direction, Entries, Error, InvariantReport, Key, KeyRange, MemoryUsage, OrderedIndex,
    Value, Violation,
};

pub use art::{ArtCoupling, ArtHtm, ArtNone, ArtOlc, ArtRowex};
pub use hydralist::HydraList;
pub use nitro::Nitro;
pub use pi::Pi;
pub use skiplist::SkipList;
pub use unshared::Unshared;
pub use wormhole::{Wormhole, WormholeFaithful, WormholeUnsafe};
