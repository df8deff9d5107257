//! An ordered, in-memory key-value store for many cores, to embed.
//!
//! [`Store`] implements the contract [`OrderedIndex`]: point operations that are linearizable,
//! ordered scans in both directions, batches, and an audit of its own structure. It is generic over
//! the kind of its keys and values: native `u64`, or byte strings of any content. A [`Snapshot`] is
//! the state of one moment, at no cost for its size.
//!
//! ```
//! use ordna::{OrderedIndex, Store};
//!
//! let towns: Store<[u8], u64> = Store::new();
//! towns.insert(b"Uppsala", &177_074)?;
//! let before = towns.snapshot();
//! towns.insert(b"Lund", &94_393)?;
//! assert_eq!(towns.get(b"Lund"), Some(94_393));
//! assert_eq!(towns.first().unwrap().0, b"Lund");
//! assert_eq!(before.get(b"Lund"), None);
//! # Ok::<(), ordna::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`durability`] | the write-ahead log, backups and recovery |
//! | [`store`] | the store: snapshots, collection, expiry, batches, memory limit |
//! | [`typed`] | [`Map`]: typed keys and values over a store |
//! | [`index`] | the contract [`OrderedIndex`] |
//! | [`key`], [`value`] | the kinds of keys and values, and their limits |
//! | [`entries`] | a flat buffer for the results of scans |
//! | [`mod@tuple`] | typed keys as byte strings in the order of their values |
//! | [`reclaim`] | the reading section that [`OrderedIndex::pin`] enters |

#![cfg_attr(loom, allow(missing_docs, reason = "models see parts that have no users"))]

pub mod durability;
mod entry;
mod epoch;
mod files;
pub mod store;
mod tree;
pub mod typed;
mod wal;

#[doc(hidden)]
pub use ordna_base::checksum;
pub use ordna_base::{
    Change, Direction, Entries, Error, InvariantReport, Key, MemoryUsage, OrderedIndex, Value,
    Violation, entries, index, key, reclaim, sync, tuple, value,
};
/// Derives tuple keys: a struct whose fields are ordered one after the other.
///
/// ```
/// use ordna::{Map, TupleKey};
///
/// #[derive(TupleKey, Debug, PartialEq)]
/// struct Place {
///     country: String,
///     #[ordna(descending)]
///     population: u64,
/// }
///
/// let places: Map<Place, String> = Map::new();
/// places.insert(&Place { country: "SE".into(), population: 94_393 }, "Lund")?;
/// places.insert(&Place { country: "SE".into(), population: 177_074 }, "Uppsala")?;
/// let (largest, name) = places.prefix(&("SE",)).next().unwrap()?;
/// assert_eq!((largest.population, name.as_str()), (177_074, "Uppsala"));
/// # Ok::<(), ordna::typed::MapError>(())
/// ```
#[cfg(feature = "derive")]
pub use ordna_derive::TupleKey;
pub use store::{
    Clock, Collectors, Found, Lifted, LiveSnapshot, MemoryBudget, Options, Put, Snapshot,
    Statistics, Store, Write,
};
#[cfg(loom)]
#[doc(hidden)]
pub use tree::models;
pub use typed::Map;

/// Compiles and runs the examples of README.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
