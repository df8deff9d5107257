//! A leaf: up to `LEAF` entries, which are found by the hash of the key or scanned in the order of
//! the keys.
//!
//! # Layout
//! One allocation, aligned to a cache line:
//!
//! | part | bytes (`LEAF` = 128) | contents |
//! |---|---|---|
//! | header | 64 | lock, links, number of the last split, fill, heads of the range |
//! | tags | 312 | 16 bits of the hash of each entry's key, or 0 if vacant |
//! | order | 128 | positions of the entries by key, then of those inserted since the last sort |
//! | entries, on a cache line | 2,496, or 1,248 | `u64` key and value, or the address of a record |
//! | anchor | its length | never changes |
//!
//! Anchors of keys that are not longer than a head are stored between tags and order, where there
//! is room, so that their leaves have the same size. With `u64` values this is an odd number of
//! cache lines, 47, so that the first lines of leaves are not all in the same few sets of a cache.
//! Leaves are from slabs ([`Pools`]) unless their anchor is long.
//!
//! Entries are in the order of their tags, with gaps: four positions are a *group*, a tag
//! determines the group to search, and an insert that finds it full uses the next one. So an insert
//! moves nothing, and the place of an entry is known without reading the leaf: header, tags and
//! entry are prefetched at once. (The paper keeps the array dense and predicts the position from
//! the fill, §3.2.)
//!
//! The order is maintained lazily. An insert appends. A scan or a split sorts the appended part and
//! merges it (`incSort`), under the leaf's lock, or into a copy if the lock is held by another
//! thread.
//!
//! # Contract
//! Everything that changes is atomic. The holder of the leaf's lock writes with relaxed stores,
//! which the lock orders. Readers hold a ticket of the [`Mode`](super::mode::Mode). What they have
//! read counts if the ticket is valid afterwards. In particular, they follow an address only after
//! that: the record, or the leaf, was then in place after the reader's guard was taken, and the
//! guard keeps it alive.

mod entries;
mod layout;
mod order;

pub use self::layout::{Leaf, Pools, Stale, Words};
pub use self::order::Order;
