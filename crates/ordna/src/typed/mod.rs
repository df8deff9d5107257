//! Typed maps over a store of byte strings.
//!
//! Keys are encoded as [tuples](crate::tuple), so that their bytes order as the keys do; values are
//! encoded as [`Stored`] describes. A call costs as much as the untyped one, plus the encoding.
//!
//! ```
//! use ordna::Map;
//!
//! let towns: Map<(String, String), u64> = Map::new();
//! towns.insert(("SE", "Uppsala"), 177_074)?;
//! towns.insert(("SE", "Lund"), 94_393)?;
//! towns.insert(("NO", "Oslo"), 709_037)?;
//! assert_eq!(towns.get(("SE", "Lund")), Some(94_393));
//!
//! let before = towns.snapshot();
//! towns.remove(("SE", "Lund"))?;
//! let swedish: Vec<_> = towns.prefix(("SE",)).map(|((_, name), _)| name).collect();
//! assert_eq!(swedish, ["Uppsala"]);
//! assert_eq!(before.prefix(("SE",)).count(), 2);
//! # Ok::<(), ordna::Error>(())
//! ```
//!
//! # Several maps in one store
//! [`Table::named`] assigns a number to each map of a store, with which the map's keys begin. A
//! [`Batch`] writes to several maps, a [transaction](crate::Transaction) reads and writes them, and
//! [`Map::at`] reads them at one snapshot.
//!
//! | entry of the store | key | value |
//! |---|---|---|
//! | last number given | `00` | 4 bytes, little-endian |
//! | a map's number | `00 01`, the name | 4 bytes, little-endian |
//! | a map's entry | the number in the tuple encoding, the key | the value |
//!
//! # For users of other maps
//! | `BTreeMap`, `SkipMap`, papaya, redb | [`Map`] | why it differs |
//! |---|---|---|
//! | `get(&k) -> Option<&V>`, guards, entries | `get(k) -> Option<V>`; [`get_with`](Map::get_with) borrows | a reference would keep removed memory from being freed |
//! | `map[&k]` | `get(k)` | `Index` returns a reference |
//! | `insert(k, v) -> Option<V>` | `Result<Option<V>, Error>`; [`put`](Map::put) does not read the old value | writes can fail: memory limit, log, limits of lengths |
//! | `entry(k).or_insert(v) -> &mut V` | a copy of the value; [`and_modify`](Entry::and_modify) changes it | threads share the map |
//! | `get_mut`, `iter_mut`, `values_mut` | [`modify`](Map::modify), [`update`](Map::update), [`entry`](Map::entry) | threads share the map |
//! | `contains_key`, `first_key_value`, `last_key_value`, `pop_first`, `pop_last`, `len`, `is_empty`, `clear`, `retain` | the same; `SkipMap`'s `front`, `back` are [`first`](Map::first), [`last`](Map::last) | |
//! | `range(a..b)`, `range::<str, _>("a".."b")` | `range(a..b)`, `range("a".."b")`, `range(..)` | |
//! | `iter`, `keys`, `values`, `rev()`, `for (k, v) in &map` | the same, by value | see `get` |
//! | `lower_bound`, `upper_bound` (cursors) | [`lower_bound`](Map::lower_bound), [`upper_bound`](Map::upper_bound) | |
//! | `split_off`, `append`, `extract_if` | [`remove_range`](Map::remove_range), [`try_extend`](Map::try_extend), `retain` | |
//! | `collect()`, `extend`, `From<[_; N]>`, `Default`, `Debug` | the same | |
//! | `clone()` copies | `clone()` is a handle of the same map; [`snapshot`](Map::snapshot) is the copy | threads share the map |
//! | papaya's `compute`, `update_or_insert` | [`modify`](Map::modify), [`entry`](Map::entry) | |
//! | redb's tables, transactions | [`Table`], [`transaction`](crate::Store::transaction) | |

mod batch;
mod cursor;
mod entry;
mod iter;
mod map;
mod mode;
mod range;
mod reads;
mod scratch;
mod snapshot;
mod stored;
mod transaction;
mod writes;

pub use batch::Batch;
pub use cursor::Cursor;
pub use entry::Entry;
pub use iter::{Holds, Iter, Keys, MapSource, Values};
pub use map::{Map, Table};
pub use mode::{Mode, Own, Shared};
pub use range::{MapRange, PrefixRange};
pub use snapshot::MapSnapshot;
#[cfg(feature = "serde")]
pub use stored::{Serde, SerdeOwned};
pub use stored::{StoreAs, Stored, ValueError};
pub use transaction::MapTransaction;
