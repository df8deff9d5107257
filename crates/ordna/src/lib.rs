//! Ordered in-memory indexes for many cores, behind one contract.
//!
//! Every index implements [`OrderedIndex`]: point operations that are linearizable, ordered walks
//! in both directions, batches, and an audit of its own structure. An index is generic over the
//! kind of its keys and values: native `u64`, or byte strings of any content.
//!
//! ```
//! use ordna::{OrderedIndex, SkipList};
//!
//! let towns: SkipList<[u8], u64> = SkipList::new();
//! towns.insert(b"Uppsala", &177_074)?;
//! towns.insert(b"Lund", &94_393)?;
//! assert_eq!(towns.get(b"Lund"), Some(94_393));
//! assert_eq!(towns.first().unwrap().0, b"Lund");
//! # Ok::<(), ordna::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`index`] | the contract [`OrderedIndex`] and the indexes themselves |
//! | [`key`], [`value`] | the kinds of keys and values, and their limits |
//! | [`entries`] | a flat buffer for the results of scans |
//! | [`mvcc`] | the store with versions: snapshots, collection, expiry, batches |
//! | [`reclaim`] | when removed memory may be freed |
//! | [`simd`] | words and bytes compared a cache line at a time, with the widest instructions of the machine |
//! | [`sync`] | version lock, back-off, striped counter, timestamps; the seam to the model checkers |
//! | [`topology`] | NUMA nodes, as the system reports them or as declared |

pub mod entries;
mod error;
pub mod index;
pub mod key;
pub mod mvcc;
pub mod reclaim;
pub mod record;
pub mod simd;
pub mod sync;
pub mod topology;
pub mod value;

pub use entries::Entries;
pub use error::{Error, Violation};
pub use index::art::{ArtCoupling, ArtNone, ArtOlc, ArtRowex};
pub use index::hydralist::HydraList;
pub use index::locked::Locked;
pub use index::pi::Pi;
pub use index::skiplist::SkipList;
pub use index::wormhole::{Wormhole, WormholeFaithful, WormholeUnsafe};
pub use index::{Audit, Change, Direction, MemoryUsage, OrderedIndex};
pub use key::Key;
pub use value::Value;
