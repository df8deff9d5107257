//! How a server is to run.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ordna::durability::{Compression, SyncPolicy};

use crate::state::extension::Extension;

/// How to listen, and within which limits.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses and ports of the Redis protocol in the clear; may be empty if TLS is configured.
    pub bind: Vec<SocketAddr>,
    /// The Redis protocol over TLS.
    pub tls: Option<TlsConfig>,
    /// The password of the default user; required on an address that other machines reach.
    pub password: Option<String>,
    /// Users, a line each as `ACL LIST` shows them.
    pub acl_file: Option<PathBuf>,
    /// Connections at once; more are refused as Redis refuses them.
    pub max_clients: usize,
    /// Bytes of one reply that is built in memory, such as that of `MGET`. Scans send their replies
    /// in pieces and have no limit.
    pub max_reply: usize,
    /// Bytes of keys, values, their index, and undo records that snapshots need; the server refuses
    /// writes beyond. `None` and 0: no limit.
    pub max_memory: Option<usize>,
    /// Bytes of all clients' requests and replies together; beyond, the server closes the clients
    /// that hold most. `None`: a quarter of `max_memory` (64 MiB at least), 1 GiB without that; 0:
    /// no limit.
    pub max_clients_memory: Option<usize>,
    /// For how long a client may accept no byte of a reply before the server closes it.
    pub stall: Duration,
    /// How long the state that a SCAN reads is kept for its next call.
    pub scan_lease: Duration,
    /// Threads that remove what no snapshot sees any more, and what has expired; best as many as
    /// there are threads that write. They sleep while there is nothing to do.
    pub collectors: NonZeroUsize,
    /// Where `/metrics`, `/healthz` and `/readyz` are served over HTTP.
    pub metrics: Option<SocketAddr>,
    /// Where the console is served over HTTP, with the same three pages.
    pub console: Option<SocketAddr>,
    /// Where the keys and values survive a restart; without, they do not.
    pub data: Option<DataConfig>,
    /// The indexes behind `ORDNA.INDEX`, if they are not those of the keyspace.
    pub extension: Option<Arc<dyn Extension>>,
}

/// The directory in which the keys and values survive a restart.
#[derive(Debug, Clone)]
pub struct DataConfig {
    /// The directory; it is created if it is not there.
    pub dir: PathBuf,
    /// When the log is made durable.
    pub log: SyncPolicy,
    /// Time between two backups.
    pub backup_every: Option<Duration>,
    /// Bytes of the log at which a backup begins a new one; 0: never for that reason.
    pub backup_log: usize,
    /// Backups that are kept.
    pub keep: usize,
    /// How backups are compressed.
    pub compression: Compression,
    /// Cuts the log at a damaged place in its middle, instead of refusing to start.
    pub repair: bool,
}

impl DataConfig {
    /// A log that is synced every second; a backup once the log has 1 GiB, uncompressed; one is
    /// kept.
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            log: SyncPolicy::EverySecond,
            backup_every: None,
            backup_log: 1 << 30,
            keep: 1,
            compression: Compression::None,
            repair: false,
        }
    }
}

/// The Redis protocol over TLS.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// Addresses and ports.
    pub bind: Vec<SocketAddr>,
    /// Certificate chain of the server, PEM.
    pub certificate: PathBuf,
    /// Private key of the server, PEM.
    pub key: PathBuf,
    /// Authorities of client certificates, PEM; with them a client without a certificate is
    /// refused.
    pub client_authorities: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind: vec![SocketAddr::from(([127, 0, 0, 1], 6380))],
            tls: None,
            password: None,
            acl_file: None,
            max_clients: 10_000,
            max_reply: 512 << 20,
            max_memory: None,
            max_clients_memory: None,
            stall: Duration::from_secs(60),
            scan_lease: Duration::from_secs(60),
            collectors: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            metrics: None,
            console: None,
            data: None,
            extension: None,
        }
    }
}

impl Config {
    /// The limit of clients' memory as it is in force; 0: none.
    pub fn max_clients_memory(&self) -> usize {
        let unset = || match self.max_memory {
            Some(limit) if limit > 0 => (limit / 4).max(64 << 20),
            _ => 1 << 30,
        };
        self.max_clients_memory.unwrap_or_else(unset)
    }
}
