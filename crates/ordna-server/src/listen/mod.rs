//! Listeners: client connections, and the console and metrics over HTTP.

pub mod connection;
mod http;
mod metrics;
pub mod server;
mod waits;
