//! Operation, durability and limits.

mod backup_transfer;
#[cfg(target_os = "linux")]
mod collectors;
mod monitoring;
mod operation;
pub mod persistence;
mod settings;
mod users;
