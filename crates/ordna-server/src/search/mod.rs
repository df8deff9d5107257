//! The search of RediSearch: schemas, queries, plans, aggregations.

pub mod aggregate;
pub mod order;
pub mod parse;
pub mod plan;
pub mod results;
