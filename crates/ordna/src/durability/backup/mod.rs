//! Backups: written by several workers, read back in parallel.

pub mod delta;
pub mod manifest;
mod os;
pub mod restore;
pub mod write;
