//! Tests of index nodes with a real broker: `cargo xtask kafka test`.

mod bad_input;
#[path = "../kills/client.rs"]
mod client;
mod common;
mod hang;
mod moving;
mod operation;
mod partitions;
mod queries;
mod records;
mod served;
mod truncation;
