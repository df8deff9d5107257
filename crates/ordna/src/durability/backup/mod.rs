//! Backups, which several workers write and read in parallel.

mod live;
mod os;
pub mod restore;
mod snapshot;
pub mod write;
