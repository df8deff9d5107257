//! `ordna serve`: an ordered keyspace behind the Redis protocol (RESP2 and RESP3).
//!
//! One task per connection; a batch of pipelined commands is executed as it was read and answered
//! with one write. A client that does not read its replies is not read from, and is closed after a
//! while. Scans over many keys run in stretches and let other connections in between.
//!
//! # Atomicity
//! Every command on one key. `MSET`, `MSETNX`, `EXEC`, `FLUSHDB`, `FLUSHALL`, `RENAME`, `COPY`, and
//! `DEL`, `UNLINK`, `EXISTS`, `TOUCH`, `MGET` and `BITOP` of several keys, as a whole.
//! `ORDNA.FIRST` and its kin read one state. Scans (`KEYS`, `ORDNA.RANGE`, `ORDNA.PREFIX`,
//! `ORDNA.COUNT`, and a whole `SCAN` as long as its lease lasts) read a snapshot: the state of one
//! moment, however long they take, with no command half done in it. `ORDNA.DELRANGE` is live: it
//! removes every key that is there throughout.
//!
//! # The way of a request
//! `connection` reads bytes, `request` cuts them into arguments, `dispatch` finds the command and
//! asks whether the client may call it, and a function in `commands` executes it on the
//! `keyspace` and writes to `reply`.

mod commands;
mod execution;
mod indexes;
mod keyspace;
mod listen;
mod search;
mod state;
mod statistics;
#[doc(hidden)]
pub mod wire;

pub use commands::{parse_definition, parse_query};
pub use listen::server::{ServeError, Server};
pub use ordna::durability::SyncPolicy as LogSync;
pub use state::config::{Config, DataConfig, TlsConfig};
pub use state::extension::{Answer, Extension};
pub use state::settings::parse_bytes;
