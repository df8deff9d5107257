//! Connections.

mod connections;
mod hostile;
