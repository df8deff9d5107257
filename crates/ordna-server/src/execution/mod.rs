//! Execution: from a request to its command, the context that a command runs in, and work that
//! outlasts it.

pub mod command;
pub mod dispatch;
pub mod durable;
pub mod long_scan;
