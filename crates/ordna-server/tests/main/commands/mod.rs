//! Tests of commands, by group, and comparisons with Redis.

mod acl_against_redis;
pub mod against_redis;
#[cfg(target_os = "linux")]
mod appends;
mod blocking;
mod blocking_against_redis;
mod channels;
pub mod collections;
mod events;
mod eviction;
mod eviction_random;
mod expiry;
mod field_expiry;
mod hashes_against_redis;
mod memory_limit;
mod ordered;
mod scan;
mod script_time;
mod scripts;
mod scripts_busy;
mod scripts_waiting;
mod snapshots;
mod sort;
mod strings;
mod transactions;
