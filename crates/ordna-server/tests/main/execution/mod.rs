//! Tests of properties of all commands: atomicity, promises, long scans.

mod crash_steps;
pub mod crashes;
mod fairness;
mod histories;
mod key_runs;
#[cfg(target_os = "linux")]
mod large_reads;
mod large_writes;
#[cfg(target_os = "linux")]
mod limits;
mod multiplied;
mod promises;
#[cfg(target_os = "linux")]
mod scan_memory;
mod scans;
