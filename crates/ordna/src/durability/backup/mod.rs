//! Backups: written by several workers, read back in parallel.

pub mod copy_before_write;
mod live;
pub mod manifest;
mod os;
pub mod restore;
mod snapshot;
pub mod write;
