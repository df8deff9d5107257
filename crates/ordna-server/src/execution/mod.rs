//! Execution of commands: dispatch, the context of a command, and work that continues after it.

pub mod acknowledgement;
pub mod atomic;
pub mod backups;
pub mod blocking;
mod collections;
pub mod command;
pub mod dispatch;
pub mod eviction;
pub mod guesses;
pub mod index_access;
pub mod key_run;
pub mod large_reads;
pub mod long_scan;
pub mod monitor;
mod notifications;
mod out_of_memory;
pub mod prepared_edits;
pub mod prepared_writes;
#[cfg(feature = "scripts")]
pub mod script_host;
pub mod snapshot_read;
