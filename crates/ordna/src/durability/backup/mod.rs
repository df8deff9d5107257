//! Backups: written by several workers, read back in parallel.

mod live;
mod os;
pub mod restore;
mod snapshot;
pub mod write;
