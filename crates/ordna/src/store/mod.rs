//! The store: the latest state, snapshots in O(1), batches, transactions, expiry and a memory
//! limit.
//!
//! ```
//! use ordna::Store;
//!
//! let store: Store<[u8], u64> = Store::new();
//! store.insert("Lund", 94_393)?;
//! let then = store.snapshot();
//! store.insert("Lund", 95_000)?;
//! store.insert("Uppsala", 177_074)?;
//! assert_eq!(store.get("Lund"), Some(95_000));
//! assert_eq!(then.get("Lund"), Some(94_393));
//! assert_eq!(then.len(), 1);
//! # Ok::<(), ordna::Error>(())
//! ```
//!
//! # Consistency
//! Writes of single keys and reads of the latest state are linearizable: a [`Store`] is an
//! [`OrderedIndex`](crate::OrderedIndex), with live scans. A [`Snapshot`] is a *cut*: it holds
//! every write that ended before it was taken and none that began afterwards. It holds a batch
//! completely or not at all. If it holds a write, it holds all writes before that one. It never
//! changes. A write that was in progress when the snapshot was taken may be in it, even if it ends
//! a moment later.
//!
//! # How it works
//! The tree holds the latest state. The epoch is a number that each snapshot increments. Before a
//! write changes something that a live snapshot sees, it pushes an undo record onto the leaf. Undo
//! records are freed in bulk when no older snapshot is alive.
//!
//! | module | what it holds |
//! |---|---|
//! | `handle`, `options` | the type [`Store`] and its options |
//! | `operations` | reads, writes and iterators by their usual names |
//! | `index` | the store as an [`OrderedIndex`](crate::OrderedIndex) |
//! | `reads` | deadlines, counts and positions |
//! | `below` | the number of items below a key |
//! | `writes`, `batch`, `splice` | writes and their records for the log; batches; writes within a value |
//! | `transaction`, `commit` | transactions; their validation and application as one step |
//! | `bulk` | building a store from sorted items, in parallel |
//! | `reentry` | detection of closures that use their own store |
//! | `snapshot` | reads of a stable state |
//! | `statistics`, `long_scans` | statistics, and the scans in progress |
//! | `engine` | tree, epochs, budget and clock, which a store and its snapshots share |
//! | `epochs` | the registration of writers, the snapshot point, the live snapshots |
//! | `collection`, `collection_state` | freeing undo records, removing expired keys, compaction |
//! | `collectors` | the threads that collect, for one store or several |
//! | `budget` | the memory limit |
//! | `expiry` | the clock, and the deadlines of keys |
//! | `owned` | a store that is written by owners, which hold pointers to its entries |
//!
//! Sources: the Nitro paper (VLDB 2016), §3 to §5; `docs/design/store.md`.

mod batch;
mod below;
#[doc(hidden)]
pub mod budget;
mod bulk;
mod collection;
mod collection_state;
mod collectors;
mod commit;
mod engine;
#[doc(hidden)]
pub mod epochs;
#[doc(hidden)]
pub mod expiry;
mod handle;
mod index;
#[doc(hidden)]
pub mod long_scans;
mod operations;
mod options;
mod owned;
mod reads;
mod reentry;
mod snapshot;
mod splice;
mod statistics;
mod transaction;
mod writes;

pub use crate::entry::{Found, Put};
pub use crate::tree::ValueRef;
pub use batch::Write;
pub use budget::{Lifted, MemoryBudget};
pub(crate) use bulk::SortedPart;
pub use collectors::Collectors;
pub use expiry::Clock;
pub use expiry::HeldTime;
pub use handle::Store;
pub(crate) use handle::{Attached, Current};
pub use options::Options;
pub use owned::{EntryHash, OwnedStore, Owner, Wanted};
pub use snapshot::Snapshot;
pub use statistics::{LiveSnapshot, Statistics};
pub use transaction::{SuspendedTransaction, Transaction, TransactionOptions};
