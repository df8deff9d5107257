//! Tests of connections.

mod connections;
mod hostile;
