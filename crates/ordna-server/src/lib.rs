//! `ordna serve`: a server for an ordered keyspace with the Redis protocol (RESP2 and RESP3).
//!
//! There is one task per connection. Pipelined commands that arrive together are executed in order
//! and answered with one write. The server stops reading from a client that does not read its
//! replies, and eventually closes it. Scans over many keys run in several steps, between which
//! other connections are served.
//!
//! # Atomicity
//! Every command on one key is atomic. So are, as a whole, `MSET`, `MSETNX`, `EXEC`, `FLUSHDB`, `FLUSHALL`, `RENAME`, `COPY`, and
//! `DEL`, `UNLINK`, `EXISTS`, `TOUCH`, `MGET` and `BITOP` of several keys.
//! `ORDNA.FIRST` and similar commands read one state. Scans (`KEYS`, `ORDNA.RANGE`, `ORDNA.PREFIX`,
//! `ORDNA.COUNT`, and a whole `SCAN` as long as its lease lasts) read a snapshot: the state of one
//! moment, however long they take, in which every command is complete or absent. `ORDNA.DELRANGE`
//! reads no snapshot: it removes every key that exists throughout.
//!
//! # Path of a request
//! `listen::connection` reads bytes, `wire::request` splits them into arguments,
//! `execution::dispatch` finds the command and checks whether the client may call it, and a function
//! in `commands` executes it on the `keyspace` and writes to `wire::reply`.

mod commands;
mod execution;
mod indexes;
mod keyspace;
mod listen;
#[cfg(feature = "scripts")]
mod scripts;
mod search;
mod state;
mod statistics;
#[doc(hidden)]
pub mod wire;

pub use commands::{parse_definition, parse_query};
pub use indexes::verify as verify_indexes;
pub use listen::server::{ReloadError, Reloader, ServeError, Server};
pub use ordna::durability::SyncPolicy as LogSync;
pub use state::config::{Config, DataConfig, LogLevelSwitch, TlsConfig};
pub use state::extension::{Answer, Extension};
pub use state::replication::{
    Progress, ReplicatedKeyspace, Replication, ReplicationRole, ReplicationStatus,
};
pub use state::settings::parse_bytes;
pub use state::tls::TlsError;
