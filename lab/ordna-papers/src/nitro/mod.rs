//! Nitro: versions in a skip list, snapshots in O(1), and collection of dead versions.
//!
//! ```
//! use ordna_papers::{Nitro, OrderedIndex};
//!
//! let index: Nitro<[u8], u64> = Nitro::new();
//! index.insert(b"Lund", &94_393)?;
//! let then = index.snapshot();
//! index.insert(b"Lund", &95_000)?;
//! index.insert(b"Uppsala", &177_074)?;
//! assert_eq!(index.get(b"Lund"), Some(95_000));
//! assert_eq!(then.get(b"Lund"), Some(94_393));
//! assert_eq!(then.len(), 1);
//! # Ok::<(), ordna_papers::Error>(())
//! ```
//!
//! # Consistency
//! Writes and reads of the latest state are linearizable: [`Nitro`] is an
//! [`OrderedIndex`](ordna_base::OrderedIndex), with live scans. A [`Snapshot`] is a *cut*: it
//! contains every write that ended before it was taken and no write that began after. If it
//! contains a write, it contains all writes before that one. It never changes.
//!
//! # How it works
//! An item is an immutable version in a single skip list, ordered by key and epoch of birth. A
//! write ends one version and inserts another. Each snapshot increments the epoch. A version that
//! no snapshot sees is unlinked, and freed when no reader can use it any more.
//!
//! | module | contents |
//! |---|---|
//! | `version` | the layout of a version |
//! | `engine` | the invariants of versions; searches and scans |
//! | `write` | how a key is changed |
//! | `garbage`, `collect` | dead versions, and their collection |
//! | [`barrier`] | the access barrier (§6), for comparison: the index runs on the collector of `ordna-base` |
//!
//! The epochs are those of the store ([`ordna::store::epochs`]). Backup and recovery (§5) are in
//! [`ordna::durability`].
//!
//! Source: the Nitro paper (VLDB 2016), §3, §4, §6. The modules state what differs from it.

pub mod barrier;
mod collect;
mod engine;
mod garbage;
mod index;
mod options;
mod snapshot;
mod version;
mod write;

pub use garbage::Order;
pub use index::{Nitro, NitroStatistics};
pub use options::NitroOptions;
pub use snapshot::Snapshot;

ordna_base::impl_versioned!(Nitro<K, V>, Snapshot<K, V>);
