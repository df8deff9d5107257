//! Tests of operation, durability and limits.

mod backup_transfer;
#[cfg(target_os = "linux")]
mod collectors;
mod durable_files;
mod monitoring;
pub mod operation;
pub mod persistence;
mod reload;
mod settings;
mod users;
