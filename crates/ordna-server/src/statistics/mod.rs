//! Statistics of the server: calls, latencies, samples over time, scans in progress.

pub mod command_stats;
pub mod error_stats;
pub mod event_logs;
pub mod long_scans;
pub mod process;
pub mod samples;
