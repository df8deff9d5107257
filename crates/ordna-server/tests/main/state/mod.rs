//! Operation, durability and limits.

#[cfg(target_os = "linux")]
mod collectors;
mod operation;
mod persistence;
mod users;
