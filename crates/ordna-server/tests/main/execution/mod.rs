//! What holds for every command: atomicity, promises, long scans.

mod histories;
mod promises;
#[cfg(target_os = "linux")]
mod scan_memory;
mod scans;
