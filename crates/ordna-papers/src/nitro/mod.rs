//! A store with versions: snapshots in O(1), stable scans, and collection that keeps up.
//!
//! ```
//! use ordna::OrderedIndex;
//! use ordna::Store;
//!
//! let store: Store<[u8], u64> = Store::new();
//! store.insert(b"Lund", &94_393)?;
//! let then = store.snapshot();
//! store.insert(b"Lund", &95_000)?;
//! store.insert(b"Uppsala", &177_074)?;
//! assert_eq!(store.get(b"Lund"), Some(95_000));
//! assert_eq!(then.get(b"Lund"), Some(94_393));
//! assert_eq!(then.len(), 1);
//! # Ok::<(), ordna::Error>(())
//! ```
//!
//! # Consistency
//! Writes of single keys and reads of the latest state are linearizable: a [`Store`] is an
//! [`OrderedIndex`](ordna_base::OrderedIndex), with its live walks. A [`Snapshot`] is a *cut*: it holds
//! every write that ended before it was taken and none that began after, all of a batch or nothing
//! of it, and if it holds a write it holds all that came before that one. It never changes. A write
//! that was under way when the snapshot was taken may be in it and yet be done a moment after.
//!
//! # How it works
//! Items are immutable versions in one ordered structure, by key and term of birth; a write ends
//! one and inserts another. The term is a number that each snapshot increments. What no snapshot
//! sees is unlinked, and freed when no reader can hold it any more.
//!
//! | module | holds |
//! |---|---|
//! | `terms` | the announcement of writers, the cut, the live snapshots |
//! | `raw` | the layout of a version |
//! | `structure` | what the engine needs of an ordered structure; the skip list gives it |
//! | `engine` | the invariants of versions; searches and walks |
//! | `write` | how a key is changed |
//! | `build` | a store from sorted items, in parallel |
//! | `collect` | what becomes of dead versions, and who collects |
//! | `budget` | the memory limit |
//! | `ttl` | the clock, and when keys expire |
//! | `walks` | walks under way, for the statistics |
//!
//! Source: the Nitro paper (VLDB 2016), §3, §4, §6.4. Where it departs from it, the modules say so.

mod batch;
mod build;
mod collect;
mod engine;
mod graves;
mod handle;
mod index;
mod options;
mod owner;
mod payment;
mod raw;
mod snapshot;
mod structure;
mod write;

pub use batch::Write;
pub use engine::Removed;
pub use handle::{LiveSnapshot, Statistics, Store};
pub use options::{Options, Order};
pub use snapshot::{Handle, Snapshot};
pub use write::{Found, Put};
