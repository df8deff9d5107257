//! Reads and changes of the collections of a keyspace, small and large.

pub mod build;
pub mod collection;
#[cfg(all(test, debug_assertions))]
mod concurrent_tests;
pub mod growth;
pub mod hash;
mod list_ends;
#[cfg(test)]
mod list_tests;
pub mod removal;
pub mod rewrite;
pub mod scored;
pub mod single;
pub mod staging;

#[cfg(test)]
mod expiry_tests;
