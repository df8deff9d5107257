//! Operation, durability and limits.

#[cfg(target_os = "linux")]
mod collectors;
mod monitoring;
mod operation;
mod persistence;
mod settings;
mod users;
