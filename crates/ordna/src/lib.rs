//! An ordered, in-memory key-value store for many cores, embedded in your program.
//!
//! A [`Map`] has keys and values of any type. It is built on a [`Store`], whose keys and values are
//! `u64` or byte strings. Threads share both by reference. Point operations are linearizable, scans
//! go in both directions, and batches and transactions are atomic. A [`Snapshot`] is the state of
//! the store at one moment; taking one costs the same for any number of entries. A store or map
//! that is [opened](Store::open) in a directory survives a crash.
//!
//! ```
//! use ordna::{Map, Store};
//!
//! // Keys and values of your types.
//! let towns: Map<String, u64> = Map::new();
//! towns.insert("Uppsala", 177_074)?;
//! let before = towns.snapshot();
//! towns.insert("Lund", 94_393)?;
//! assert_eq!(towns.get("Lund"), Some(94_393));
//! assert_eq!(towns.first(), Some(("Lund".to_owned(), 94_393)));
//! assert_eq!(before.get("Lund"), None);
//!
//! // Bytes and integers: the fastest form.
//! let visits: Store<u64, u64> = Store::new();
//! visits.put(1, 10)?;
//! assert_eq!(visits.range(..5).count(), 1);
//! # Ok::<(), ordna::Error>(())
//! ```
//!
//! | type | what it is |
//! |---|---|
//! | [`Map`], [`Table`] | a map of typed keys and values; a map in a store that holds others, too |
//! | [`Store`] | an ordered store of integers or byte strings |
//! | [`Snapshot`], [`typed::MapSnapshot`] | a state that does not change |
//! | [`Options`], [`OpenOptions`], [`SyncPolicy`] | memory limit, expiry clock, collectors; directory, log |
//! | [`Error`] | why an operation failed |
//!
//! | module | what it holds |
//! |---|---|
//! | [`typed`] | the types behind [`Map`], and a table for users of other maps |
//! | [`durability`] | the write-ahead log, backups and recovery |
//! | [`store`] | the store: snapshots, collection, expiry, batches, memory limit |
//! | [`index`] | [`OrderedIndex`], the contract for code that is generic over indexes |
//! | [`key`], [`value`], [`entries`] | the kinds of keys and values, their limits, buffers of them |
//! | [`mod@tuple`] | typed keys as byte strings in the order of their values |
//!
//! The folder `examples` has complete programs: a cache, a leaderboard, an event log, a report that
//! runs concurrently with a writer, and a memtable for LSM engines.
//!
//! | feature | adds |
//! |---|---|
//! | `derive` | `derive(TupleKey)`: structs as keys; with `serde`, `derive(Stored)`: structs and enums as values |
//! | `serde` | [`typed::Serde`](typed): values of any type that implements serde's traits |
//! | `bigint`, `time`, `uuid` | keys of these crates' types |
//! | `zstd` | backups compressed with Zstandard, a C library |

#![cfg_attr(loom, allow(missing_docs, reason = "models see parts that have no users"))]

pub mod durability;
mod entry;
mod epoch;
mod files;
pub mod store;
mod tree;
pub mod typed;
mod wal;

pub use durability::{BackupError, BackupOptions, OpenOptions, SyncPolicy};
#[doc(hidden)]
pub use ordna_base::checksum;
#[doc(inline)]
pub use ordna_base::{
    AsData, Cause, Change, Direction, Entries, Error, InvariantReport, Key, KeyRange, MemoryUsage,
    OrderedIndex, Value, ValueError, Violation, WrongKey, entries, index, key, tuple, value,
};
#[doc(hidden)]
pub use ordna_base::{reclaim, sync};
/// Derives a type of values for a struct or enum that implements serde's traits. Needs the feature
/// `serde`, too.
///
/// ```
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, ordna::Stored, Debug, PartialEq)]
/// struct Point {
///     x: f64,
///     y: f64,
/// }
///
/// let points: ordna::Map<u64, Point> = ordna::Map::new();
/// points.insert(1, Point { x: 0.5, y: 1.5 })?;
/// assert_eq!(points.get(1), Some(Point { x: 0.5, y: 1.5 }));
/// # Ok::<(), ordna::Error>(())
/// ```
#[cfg(all(feature = "derive", feature = "serde"))]
pub use ordna_derive::Stored;
/// Derives a tuple key for a struct, which is ordered by its fields, the first one first.
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
/// places.insert(Place { country: "SE".into(), population: 94_393 }, "Lund")?;
/// places.insert(Place { country: "SE".into(), population: 177_074 }, "Uppsala")?;
/// let (largest, name) = places.prefix(("SE",)).next().unwrap();
/// assert_eq!((largest.population, name.as_str()), (177_074, "Uppsala"));
/// # Ok::<(), ordna::Error>(())
/// ```
#[cfg(feature = "derive")]
pub use ordna_derive::TupleKey;
#[doc(inline)]
pub use store::{
    Clock, Collectors, Found, HeldTime, Lifted, LiveSnapshot, MemoryBudget, Options, Put, Snapshot,
    Statistics, Store, SuspendedTransaction, Transaction, TransactionOptions, ValueRef, Write,
};
#[cfg(loom)]
#[doc(hidden)]
pub use tree::models;
#[doc(inline)]
pub use typed::{Batch, Map, Table};

/// Compiles and runs the examples of README.md and the how-to pages as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/how-to/backup-and-restore.md")]
    struct BackupAndRestore;
    #[doc = include_str!("../../../docs/how-to/cache.md")]
    struct Cache;
    #[doc = include_str!("../../../docs/how-to/from-crossbeam-skiplist.md")]
    struct FromCrossbeamSkiplist;
    #[doc = include_str!("../../../docs/how-to/leaderboard.md")]
    struct Leaderboard;
    #[doc = include_str!("../../../docs/how-to/secondary-index.md")]
    struct SecondaryIndex;
    #[doc = include_str!("../../../docs/how-to/snapshot-analytics.md")]
    struct SnapshotAnalytics;
    #[doc = include_str!("../../../docs/how-to/time-series.md")]
    struct TimeSeries;
}
