//! What the server counts: calls, latencies, samples over time, scans in progress.

pub mod logs;
pub mod long_scans;
pub mod process;
pub mod samples;
pub mod stats;
