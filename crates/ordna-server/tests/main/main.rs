//! The server's tests over the wire: one binary, a module for each subject.

mod against_redis;
#[cfg(target_os = "linux")]
mod appends;
#[cfg(target_os = "linux")]
mod collectors;
mod commands;
mod common;
mod hashes_against_redis;
mod histories;
mod hostile;
mod indexes;
mod info;
mod operation;
mod persistence;
mod promises;
#[cfg(target_os = "linux")]
mod scan_memory;
mod scans;

// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
