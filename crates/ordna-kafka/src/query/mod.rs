//! Queries over all nodes of a group.
//!
//! # Contract
//! All methods of [`GroupQueries`] may be called by any thread. They block until the query's
//! timeout at most. A node works on [`QueryLimits::queries`] queries at once; a query holds at most
//! [`QueryLimits::bytes`] bytes of rows.
//!
//! # Protocol
//! A query takes one slice of each partition, from its owner or from a copy, and merges them
//! (`gather`, `merge`). A slice is complete at the position that it names, so the result is
//! complete at the vector of these positions, however the partitions move meanwhile. A node that
//! lost a partition and does not know yet answers with an old position: `at_plus` and
//! `request_plus` refuse it, `any` tells its age and can refuse it by [`GroupQuery::max_age`].
//!
//! The limit goes to the owners; each of many is asked for its share first, and all are asked again
//! if that was too little. An owner sends one answer of bounded size; it keeps nothing for the
//! query, and sends more only if it is asked again. If rows are so long that an
//! answer is full before the limit, the page ends early, with a cursor.
//!
//! Source: the Nitro paper (VLDB 2016), §8.

mod commands;
mod cursor;
mod gather;
mod group_queries;
mod merge;
mod owner;
mod peer;
mod rows;
mod wire;

pub use self::cursor::Cursor;
pub use self::gather::{Gather, MissingPartition, Question, QuestionError};
pub use self::group_queries::{
    GroupQueries, GroupQuery, GroupResult, QueryCounters, QueryError, QueryLimits,
};
pub use self::merge::{Merged, merge};
pub use self::peer::{Link, LinkTls};
pub use self::rows::{Rows, Run, Scan, Selection};
pub use self::wire::{Answer, Garbled, Part, Refusal, Request};
