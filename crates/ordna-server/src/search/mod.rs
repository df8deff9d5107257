//! The search commands of RediSearch: queries, plans, order of results, aggregations.

pub mod aggregate;
pub mod order;
pub mod parse;
pub mod plan;
pub mod results;
