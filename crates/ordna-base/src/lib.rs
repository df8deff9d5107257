//! The foundation of every Ordna index.
//!
//! | module | what it holds |
//! |---|---|
//! | [`index`] | the contract [`OrderedIndex`] and [`index::Range`], the iterator over any index |
//! | [`key`], [`value`] | the kinds of keys and values, and their limits |
//! | `locked_btree` | [`Locked`]: the contract over a locked B-tree, to which every index is compared |
//! | [`arena`] | memory for records in large pages |
//! | [`buffer`] | shared buffers of values that grow at their end |
//! | [`checksum`] | CRCs of the file formats |
//! | `data` | keys, values and ranges in the forms that callers have |
//! | [`encoding`] | the encoding of keys and values in files |
//! | [`entries`] | a flat buffer for the results of scans |
//! | [`order`](mod@order) | sorting the keys of a leaf |
//! | [`record`] | key and value in one allocation |
//! | [`reclaim`] | safe memory reclamation: when removed memory may be freed |
//! | [`slabs`] | fixed-size nodes in large pages |
//! | [`simd`] | comparisons of words and bytes, one cache line at a time, with the widest instructions of the machine |
//! | [`sync`] | version lock, back-off, striped counter; test stops; the seam to the model checkers |
//! | [`mod@tuple`] | typed values as byte strings in the order of the values |

pub mod arena;
mod bounds;
pub mod buffer;
pub mod checksum;
mod data;
pub mod encoding;
pub mod entries;
mod error;
pub mod index;
pub mod key;
mod locked_btree;
pub mod order;
pub mod reclaim;
pub mod record;
mod sequence;
pub mod simd;
pub mod slabs;
pub mod sync;
pub mod tuple;
pub mod value;

pub use data::{AsData, KeyRange};
pub use entries::Entries;
pub use error::{Cause, Error, ValueError, Violation, WrongKey};
pub use index::{Change, Direction, InvariantReport, MemoryUsage, OrderedIndex};
pub use key::Key;
pub use locked_btree::Locked;
pub use value::Value;
