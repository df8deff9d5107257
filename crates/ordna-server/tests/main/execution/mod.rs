//! What holds for every command: atomicity, promises, long scans.

pub mod crashes;
mod fairness;
mod histories;
#[cfg(target_os = "linux")]
mod limits;
mod multiplied;
mod promises;
#[cfg(target_os = "linux")]
mod scan_memory;
mod scans;
