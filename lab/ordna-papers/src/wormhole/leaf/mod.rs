//! A leaf: up to `LEAF` entries, found by the hash of the key or scanned in the order of the keys.
//!
//! # Layout
//! One allocation, aligned to a cache line:
//!
//! | part | bytes (`LEAF` = 128) | holds |
//! |---|---|---|
//! | header | 64 | lock, links, number of the last split, fill, heads of the range |
//! | tags | 312 | 16 bits of the hash of each entry's key; 0: vacant |
//! | order | 128 | positions of the entries by key, then of those inserted since the last sort |
//! | entries, on a line | 2,496, or 1,248 | `u64` key and value; or the address of a record |
//! | anchor | its length | never changes |
//!
//! Anchors of keys that are no longer than a head stand between tags and order, where there is
//! room: their leaves are all of one size. With `u64` values that is an odd number of lines, 47, so
//! that their first lines are not all on the same few sets of a cache. Leaves are from slabs
//! ([`Pools`]) unless their anchor is long.
//!
//! Entries stand in the order of their tags, with gaps: four positions are a *group*, a tag gives
//! the group to search, and an insert that finds it full takes the next. So an insert moves
//! nothing, and the place of an entry is known without a look at the leaf: header, tags and entry
//! are fetched at once. (The paper keeps the array dense and predicts the position from the fill,
//! §3.2.)
//!
//! The order is kept lazily. An insert appends; a scan or a split sorts the appended part and
//! merges it (`incSort`), under the leaf's lock, or into a copy if the lock is taken.
//!
//! # Contract
//! All that changes is atomic. The holder of the leaf's lock writes, with relaxed stores: the lock
//! orders them. Readers hold a ticket of the [`Mode`](super::mode::Mode); what they have read counts once the ticket
//! was found valid afterwards. In particular they follow an address only after that: then the
//! record, or the leaf, was in place after the reader's guard was taken, and the guard keeps it.

mod entries;
mod layout;
mod order;

pub use self::layout::{Leaf, Pools, Stale, Words};
pub use self::order::Order;
