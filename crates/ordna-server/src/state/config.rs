//! Configuration of a server.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ordna::durability::{Compression, Disk, Storage, SyncPolicy};

use crate::state::extension::Extension;
use crate::state::replication::Replication;

/// Reserved disk space in bytes that is given up when the disk is full. The log uses one half,
/// which is more than clients can have written that is not in the log yet; the following backup
/// uses the other half.
const RESERVE: u64 = 32 << 20;

/// Configuration of a server: addresses, limits, data directory.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses of the Redis protocol without TLS; may be empty if TLS is configured.
    pub bind: Vec<SocketAddr>,
    /// The Redis protocol over TLS, or `None` if it is not served.
    pub tls: Option<TlsConfig>,
    /// Password of the default user.
    pub password: Option<String>,
    /// File of users, one in each line, in the format of `ACL LIST`. It must exist.
    pub acl_file: Option<PathBuf>,
    /// Whether users without a password are allowed although other machines can reach the server.
    pub insecure: bool,
    /// Maximum number of connections. Further ones get Redis' error.
    pub max_clients: usize,
    /// Maximum size in bytes of a reply that is built in memory, such as that of `MGET`. Scans send
    /// their replies in parts and have no limit.
    pub max_reply: usize,
    /// Maximum size in bytes of keys, values, their index, and undo records that snapshots need. At
    /// the limit, writes fail. `None` and 0 mean no limit.
    pub max_memory: Option<usize>,
    /// Maximum size in bytes of the requests and replies of all clients. At the limit, the server
    /// closes the clients that use most. `None` means a quarter of `max_memory` but at least 64
    /// MiB, or 1 GiB if `max_memory` is not set; 0 means no limit.
    pub max_clients_memory: Option<usize>,
    /// Time after which the server closes a client that accepts no byte of its reply.
    pub stall: Duration,
    /// Time after which the server closes a connection that has not authenticated, if the default
    /// user needs a password. The default of 30 s is enough for typing a password.
    pub login_time: Duration,
    /// Time for which the snapshot of a `SCAN` is kept for its next call.
    pub scan_lease: Duration,
    /// Number of threads that free undo records and remove expired keys. Best is the number of
    /// threads that write. They sleep while there is nothing to do.
    pub collectors: NonZeroUsize,
    /// Address of `/metrics`, `/healthz` and `/readyz` over HTTP.
    pub metrics: Option<SocketAddr>,
    /// Address of the console over HTTP, with the same three pages.
    pub console: Option<SocketAddr>,
    /// Data directory. With `None`, nothing survives a restart.
    pub data: Option<DataConfig>,
    /// Settings by the names of `CONFIG SET`, with their values. They are applied after all others.
    pub settings: Vec<(String, String)>,
    /// The configuration file that `CONFIG REWRITE` changes.
    pub file: Option<PathBuf>,
    /// Changes the level of the server's own log, for `CONFIG SET loglevel`.
    pub log_level: Option<LogLevelSwitch>,
    /// Whether eviction policies are allowed although there is a data directory, from which they
    /// delete keys.
    pub evict_stored: bool,
    /// Copies of the keyspace on other machines; `None`: there are none.
    pub replication: Option<Arc<dyn Replication>>,
    /// Implementation of `ORDNA.INDEX`, if its indexes are not those of the keyspace.
    pub extension: Option<Arc<dyn Extension>>,
}

/// The level of the program's log.
#[derive(Clone)]
pub struct LogLevelSwitch {
    /// The level at the start.
    pub level: tracing::Level,
    /// Changes the level. Returns the error text if that fails.
    pub switch: Arc<dyn Fn(tracing::Level) -> Result<(), String> + Send + Sync>,
}

impl fmt::Debug for LogLevelSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLevelSwitch").field("level", &self.level).finish_non_exhaustive()
    }
}

/// Configuration of the data directory: log and backups.
#[derive(Debug, Clone)]
pub struct DataConfig {
    /// The directory; created if it does not exist.
    pub dir: PathBuf,
    /// When the log is synced to the device.
    pub log: SyncPolicy,
    /// Time between two backups.
    pub backup_every: Option<Duration>,
    /// Size of the log in bytes at which a backup starts, after which a new log begins; 0 means no
    /// limit.
    pub backup_log: usize,
    /// Number of backups to keep.
    pub keep: usize,
    /// Compression of backups.
    pub compression: Compression,
    /// Whether to truncate a log that is damaged in its middle, instead of refusing to start.
    pub repair: bool,
    /// Reserved disk space in bytes that is given up when the disk is full, see
    /// [`OpenOptions::reserve`](ordna::durability::OpenOptions::reserve).
    #[doc(hidden)]
    pub reserve: u64,
    /// The storage of log and backups; tests replace it.
    #[doc(hidden)]
    pub storage: Arc<dyn Storage>,
}

impl DataConfig {
    /// Returns the default configuration for a directory: the log is synced every second; an
    /// uncompressed backup starts when the log has 1 GiB; one backup is kept.
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            log: SyncPolicy::EverySecond,
            backup_every: None,
            backup_log: 1 << 30,
            keep: 1,
            compression: Compression::None,
            repair: false,
            reserve: RESERVE,
            storage: Arc::new(Disk),
        }
    }
}

/// Configuration of the Redis protocol over TLS.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// Addresses and ports.
    pub bind: Vec<SocketAddr>,
    /// Certificate chain of the server, PEM.
    pub certificate: PathBuf,
    /// Private key of the server, PEM.
    pub key: PathBuf,
    /// Certificate authorities of clients, PEM. If set, clients without a certificate are refused.
    pub client_authorities: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind: vec![SocketAddr::from(([127, 0, 0, 1], 6380))],
            tls: None,
            password: None,
            acl_file: None,
            insecure: false,
            max_clients: 10_000,
            max_reply: 512 << 20,
            max_memory: None,
            max_clients_memory: None,
            stall: Duration::from_secs(60),
            login_time: Duration::from_secs(30),
            scan_lease: Duration::from_secs(60),
            collectors: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            metrics: None,
            console: None,
            data: None,
            settings: Vec::new(),
            file: None,
            log_level: None,
            evict_stored: false,
            replication: None,
            extension: None,
        }
    }
}

impl Config {
    /// Returns the first address, of any protocol, that other machines can reach.
    pub(crate) fn exposed(&self) -> Option<SocketAddr> {
        let tls = self.tls.iter().flat_map(|tls| &tls.bind);
        let all = self.bind.iter().chain(tls).chain(&self.metrics).chain(&self.console);
        all.copied().find(|address| !address.ip().is_loopback())
    }

    /// Returns the storage for files.
    pub(crate) fn storage(&self) -> &dyn Storage {
        self.data.as_ref().map_or(&Disk, |data| &*data.storage)
    }

    /// Returns the effective limit of clients' memory; 0 means no limit.
    pub fn max_clients_memory(&self) -> usize {
        let unset = || match self.max_memory {
            Some(limit) if limit > 0 => (limit / 4).max(64 << 20),
            _ => 1 << 30,
        };
        self.max_clients_memory.unwrap_or_else(unset)
    }
}
