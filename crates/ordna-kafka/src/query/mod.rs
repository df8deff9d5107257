//! Queries over all nodes of a group.
//!
//! # Contract
//! Any thread can call the methods of [`GroupQueries`]. They block until the query's timeout at
//! most. A node runs at most [`QueryLimits::queries`] queries at the same time, and a query holds
//! at most [`QueryLimits::bytes`] bytes of rows.
//!
//! # Protocol
//! A query obtains the rows of each partition from its owner or from a node with a copy, and merges
//! them (`gather`, `merge`). The rows of a partition are complete at the position that comes with
//! them. So the result is complete at the vector of these positions, even if partitions move in the
//! meantime. A node that has lost a partition and does not know it yet answers with an old
//! position. `at_plus` and `request_plus` refuse such an answer; `any` reports its age and can
//! refuse it with [`GroupQuery::max_age`].
//!
//! The limit is sent to the owners. If there are many owners, each is first asked for its share of
//! the rows only; if this was too little, all are asked again. An owner sends one answer of bounded
//! size and keeps no state for the query. If rows are so long that an answer is full before the
//! limit is reached, the page ends early, with a cursor.
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
