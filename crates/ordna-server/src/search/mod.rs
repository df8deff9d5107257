//! What clients of RediSearch ask for: schemas, queries, plans, aggregations.

pub mod aggregate;
pub mod order;
pub mod parse;
pub mod plan;
pub mod results;
pub mod schema;
