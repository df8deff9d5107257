//! The foundation of every Ordna index.
//!
//! | module | holds |
//! |---|---|
//! | [`index`] | the contract [`OrderedIndex`] and [`index::Range`], the iterator over any index |
//! | [`key`], [`value`] | the kinds of keys and values, and their limits |
//! | [`arena`] | memory for records in large pages |
//! | [`entries`] | a flat buffer for the results of scans |
//! | [`order`](mod@order) | the order of a leaf's keys |
//! | [`record`] | key and value in one allocation |
//! | [`reclaim`] | when removed memory may be freed |
//! | [`slabs`] | fixed-size nodes in large pages |
//! | [`simd`] | words and bytes compared a cache line at a time, with the widest instructions of the machine |
//! | [`sync`] | version lock, back-off, striped counter, timestamps; test stops; the seam to the model checkers |
//! | [`topology`] | NUMA nodes, as the system reports them or as declared |
//! | [`mod@tuple`] | typed values as byte strings in the order of the values |

pub mod arena;
mod bounds;
pub mod buffer;
pub mod entries;
mod error;
pub mod index;
pub mod key;
pub mod order;
pub mod reclaim;
pub mod record;
mod sequence;
pub mod simd;
pub mod slabs;
pub mod sync;
pub mod topology;
pub mod tuple;
pub mod value;

pub use entries::Entries;
pub use error::{Error, Violation};
pub use index::{Audit, Change, Direction, MemoryUsage, OrderedIndex};
pub use key::Key;
pub use value::Value;
