//! `ordna serve`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Parser;
use ordna::durability::Compression;
use ordna_server::{
    Config, DataConfig, Extension, LogLevelSwitch, LogSync, Replication, Server, TlsConfig,
    parse_bytes,
};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;
use tracing_subscriber::reload;

/// Options of `ordna serve`. The configuration file may set each of them under the same name; a
/// flag overrides the file.
#[derive(Debug, Default, Parser, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServeOptions {
    /// Configuration file (TOML), with the names of these flags as keys; a flag overrides the file
    #[arg(long)]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Address or host name to listen on; may be repeated [default: 127.0.0.1]. If other machines
    /// can reach the address, all users need passwords
    #[arg(long)]
    bind: Vec<String>,
    /// Port to listen on; 0 lets the system choose one [default: 6380]
    #[arg(long)]
    port: Option<u16>,
    /// Password of the default user, which clients send with AUTH
    #[arg(long, env = "ORDNA_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// File of users, in the format of ACL SAVE; it must exist
    #[arg(long)]
    acl_file: Option<PathBuf>,
    /// Allow users without a password even if other machines can reach the server
    #[arg(long)]
    insecure: bool,
    /// Port to listen on with TLS, in addition to --port
    #[arg(long)]
    tls_port: Option<u16>,
    /// Listen with TLS only: do not listen on --port
    #[arg(long)]
    tls_only: bool,
    /// Certificate chain for TLS (PEM)
    #[arg(long)]
    tls_cert: Option<PathBuf>,
    /// Private key for TLS (PEM)
    #[arg(long)]
    tls_key: Option<PathBuf>,
    /// Certificate authorities of clients (PEM); clients without a certificate of one of them are
    /// rejected
    #[arg(long)]
    tls_client_ca: Option<PathBuf>,
    /// Maximum number of connections [default: 10000]
    #[arg(long)]
    max_clients: Option<usize>,
    /// Maximum memory of keys, values and their index, such as 512mb or 4gb; at the limit, writes
    /// are rejected, and an index node reads no further records [default: 0, no limit]
    #[arg(long)]
    max_memory: Option<String>,
    /// Maximum memory of the requests and replies of all clients; at the limit, the connections
    /// that use most are closed; 0 means no limit [default: a quarter of --max-memory if it is set,
    /// otherwise 1gb]
    #[arg(long)]
    max_memory_clients: Option<String>,
    /// Allow a maxmemory-policy other than noeviction for a server with a data directory: keys that
    /// are evicted from memory are also deleted from the directory
    #[arg(long)]
    evict_stored: bool,
    /// Number of worker threads [default: number of cores]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Number of threads that remove expired keys and free memory that no snapshot needs [default:
    /// number of worker threads]
    #[arg(long)]
    collectors: Option<NonZeroUsize>,
    /// Serve /metrics, /healthz and /readyz over HTTP: PORT on 127.0.0.1, or ADDRESS:PORT
    #[arg(long)]
    metrics: Option<String>,
    /// Serve the console over HTTP: PORT on 127.0.0.1, or ADDRESS:PORT
    #[arg(long)]
    console: Option<String>,
    /// Data directory for the log and the backups; without one, all data is lost when the server
    /// stops
    #[arg(long)]
    dir: Option<PathBuf>,
    /// When the log is synced to the device: always (before the reply to a write), everysec or no
    /// [default: everysec]
    #[arg(long)]
    log: Option<String>,
    /// Time between two backups (30s, 15m, 6h) [default: none]
    #[arg(long)]
    backup_every: Option<String>,
    /// Size of the log at which the server makes a backup and starts a new log; 0 means no limit
    /// [default: 1gb]
    #[arg(long)]
    backup_log_size: Option<String>,
    /// Number of backups to keep [default: 1]
    #[arg(long)]
    backup_keep: Option<NonZeroUsize>,
    /// Compression of backups: none, lz4 or, in a build with the cargo feature zstd, zstd [default:
    /// none]
    #[arg(long)]
    backup_compression: Option<String>,
    /// If the log is damaged before its end, drop the records after the damage and start; without
    /// this option, the start fails
    #[arg(long)]
    log_repair: bool,
    /// Replicate all keys by writing the log to this topic of Kafka, kafka://HOST:PORT,…/TOPIC.
    /// Requires --dir
    #[arg(long, value_name = "TOPIC", conflicts_with = "follow")]
    replicate: Option<String>,
    /// Follow the server that replicates its keys to this topic of Kafka, kafka://HOST:PORT,…/TOPIC.
    /// With --dir, a restart continues where it stopped, and REPLICAOF NO ONE makes the server the
    /// primary
    #[arg(long, value_name = "TOPIC")]
    follow: Option<String>,
    /// Setting of librdkafka for --replicate and --follow; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    replication_setting: Vec<String>,
    /// A setting of CONFIG SET, as NAME=VALUE; may be repeated. In the configuration file, these
    /// settings are in the table [settings], which CONFIG REWRITE changes
    #[arg(long, value_name = "NAME=VALUE")]
    #[serde(skip)]
    set: Vec<String>,
    #[arg(skip)]
    settings: BTreeMap<String, SettingValue>,
}

/// A value in the table `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum SettingValue {
    Number(i64),
    YesOrNo(bool),
    Text(String),
}

impl SettingValue {
    fn into_text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::YesOrNo(yes) => if yes { "yes" } else { "no" }.to_owned(),
            Self::Text(text) => text,
        }
    }
}

/// A function that returns whether a flag was given, and the name of the equivalent setting.
type SameSetting = (fn(&ServeOptions) -> bool, &'static str);

const SAME: [SameSetting; 9] = [
    (|flags| flags.max_clients.is_some(), "maxclients"),
    (|flags| flags.max_memory.is_some(), "maxmemory"),
    (|flags| flags.max_memory_clients.is_some(), "maxmemory-clients"),
    (|flags| flags.log.is_some(), "appendfsync"),
    (|flags| flags.backup_every.is_some(), "save"),
    (|flags| flags.password.is_some(), PASSWORD),
    (|flags| flags.tls_cert.is_some(), CERTIFICATE),
    (|flags| flags.tls_key.is_some(), KEY),
    (|flags| flags.tls_client_ca.is_some(), CLIENT_CA),
];

// Names of settings that the server needs before it starts to listen.
/// The setting for the password of the default user.
const PASSWORD: &str = "requirepass";
const CERTIFICATE: &str = "tls-cert-file";
const KEY: &str = "tls-key-file";
const CLIENT_CA: &str = "tls-ca-cert-file";

impl ServeOptions {
    /// Adds the options of the configuration file to those given as flags.
    pub fn with_file(self) -> anyhow::Result<Self> {
        let Some(path) = &self.config else { return Ok(self) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let file: Self = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        let mut settings: BTreeMap<_, _> = file.settings.into_iter().collect();
        settings.retain(|name, _| {
            let same =
                |(is_given, same): &SameSetting| name.eq_ignore_ascii_case(same) && is_given(&self);
            !SAME.iter().any(same)
        });
        let password = settings.remove(PASSWORD).map(SettingValue::into_text);
        let password = password.or(file.password).filter(|password| !password.is_empty());
        let mut tls_file = |name: &str, flag: Option<PathBuf>| {
            let path = settings.remove(name).map(|path| PathBuf::from(path.into_text()));
            path.or(flag).filter(|path| !path.as_os_str().is_empty())
        };
        let (tls_cert, tls_key) =
            (tls_file(CERTIFICATE, file.tls_cert), tls_file(KEY, file.tls_key));
        let tls_client_ca = tls_file(CLIENT_CA, file.tls_client_ca);
        Ok(Self {
            config: self.config,
            bind: if self.bind.is_empty() { file.bind } else { self.bind },
            port: self.port.or(file.port),
            password: self.password.or(password),
            acl_file: self.acl_file.or(file.acl_file),
            insecure: self.insecure || file.insecure,
            tls_port: self.tls_port.or(file.tls_port),
            tls_only: self.tls_only || file.tls_only,
            tls_cert: self.tls_cert.or(tls_cert),
            tls_key: self.tls_key.or(tls_key),
            tls_client_ca: self.tls_client_ca.or(tls_client_ca),
            max_clients: self.max_clients.or(file.max_clients),
            max_memory: self.max_memory.or(file.max_memory),
            max_memory_clients: self.max_memory_clients.or(file.max_memory_clients),
            evict_stored: self.evict_stored || file.evict_stored,
            threads: self.threads.or(file.threads),
            collectors: self.collectors.or(file.collectors),
            metrics: self.metrics.or(file.metrics),
            console: self.console.or(file.console),
            dir: self.dir.or(file.dir),
            log: self.log.or(file.log),
            backup_every: self.backup_every.or(file.backup_every),
            backup_log_size: self.backup_log_size.or(file.backup_log_size),
            backup_keep: self.backup_keep.or(file.backup_keep),
            backup_compression: self.backup_compression.or(file.backup_compression),
            log_repair: self.log_repair || file.log_repair,
            replicate: self.replicate.or(file.replicate),
            follow: self.follow.or(file.follow),
            replication_setting: if self.replication_setting.is_empty() {
                file.replication_setting
            } else {
                self.replication_setting
            },
            set: self.set,
            settings,
        })
    }

    /// Returns the first address that the server listens on; `encrypted` selects the TLS port.
    #[cfg(feature = "kafka")]
    pub fn address(&self, encrypted: bool) -> anyhow::Result<SocketAddr> {
        let port =
            self.tls_port.filter(|_| self.tls_only || encrypted).or(self.port).unwrap_or(6380);
        self.addresses(port)?.first().copied().context("no address to listen on")
    }

    /// Returns how a node connects to other nodes with the same configuration: the password and, if
    /// certificate authorities are given, TLS.
    #[cfg(feature = "kafka")]
    pub fn link(
        &self,
        authorities: Option<PathBuf>,
        name: Option<String>,
    ) -> anyhow::Result<ordna_kafka::query::Link> {
        if self.tls_only && authorities.is_none() {
            bail!("nodes that listen with TLS only speak TLS with each other: --link-ca");
        }
        // If this node asks its clients for a certificate, the other nodes do so too.
        let identity = self.tls_client_ca.as_ref().and(self.tls_cert.clone());
        let identity = identity.zip(self.tls_key.clone());
        let tls = authorities.map(|authorities| ordna_kafka::query::LinkTls {
            authorities,
            identity,
            name,
        });
        Ok(ordna_kafka::query::Link { user: None, password: self.password.clone(), tls })
    }

    /// Returns all addresses to listen on with this port.
    fn addresses(&self, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
        if self.bind.is_empty() {
            return Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]);
        }
        let mut all: Vec<SocketAddr> = Vec::new();
        for host in &self.bind {
            let found = (host.as_str(), port).to_socket_addrs();
            let found = found.with_context(|| format!("cannot find the address of {host:?}"))?;
            for address in found {
                if !all.contains(&address) {
                    all.push(address);
                }
            }
        }
        // IPv4 addresses come first, because a host name may resolve to IPv6 addresses on a machine
        // without IPv6.
        all.sort_by_key(SocketAddr::is_ipv6);
        let usable = |address: &SocketAddr| {
            address.is_ipv4() || std::net::UdpSocket::bind((address.ip(), 0)).is_ok()
        };
        if all.iter().any(SocketAddr::is_ipv4) {
            all.retain(usable);
        }
        Ok(all)
    }

    fn tls(&self) -> anyhow::Result<Option<TlsConfig>> {
        let Some(port) = self.tls_port else {
            if self.tls_only || self.tls_cert.is_some() || self.tls_key.is_some() {
                bail!("TLS needs a port: --tls-port");
            }
            return Ok(None);
        };
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            bail!("--tls-port needs a certificate and its key: --tls-cert and --tls-key");
        };
        Ok(Some(TlsConfig {
            bind: self.addresses(port)?,
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: self.tls_client_ca.clone(),
        }))
    }

    /// Returns whether the keyspace is to have copies.
    #[cfg(feature = "kafka")]
    pub fn is_replicated(&self) -> bool {
        self.replicate.is_some() || self.follow.is_some()
    }

    /// Returns the copies of the keyspace on other machines.
    #[cfg(feature = "kafka")]
    fn replication(&self) -> anyhow::Result<Option<Arc<dyn Replication>>> {
        use ordna_kafka::replication::{KafkaReplication, LogTopic};
        let (text, follows) = match (&self.replicate, &self.follow) {
            (Some(_), Some(_)) => bail!("--replicate and --follow exclude each other"),
            (Some(topic), None) => (topic, false),
            (None, Some(topic)) => (topic, true),
            (None, None) => return Ok(None),
        };
        if !follows && self.dir.is_none() {
            bail!("--replicate needs a data directory: --dir");
        }
        let mut topic = LogTopic::parse(text).map_err(|why| anyhow!(why))?;
        for text in &self.replication_setting {
            let pair = text.split_once('=');
            let pair = pair.with_context(|| format!("--replication-setting {text:?}: no ="))?;
            topic.settings.push((pair.0.to_owned(), pair.1.to_owned()));
        }
        Ok(Some(match follows {
            true => Arc::new(KafkaReplication::follower(topic)),
            false => Arc::new(KafkaReplication::primary(topic)),
        }))
    }

    /// Returns no copies, because librdkafka is not built.
    #[cfg(not(feature = "kafka"))]
    fn replication(&self) -> anyhow::Result<Option<Arc<dyn Replication>>> {
        if self.replicate.is_some() || self.follow.is_some() {
            bail!(
                "--replicate and --follow: this build has no Kafka; build `ordna` with \
                 `--features kafka`"
            );
        }
        Ok(None)
    }

    fn data(&self) -> anyhow::Result<Option<DataConfig>> {
        let Some(dir) = &self.dir else {
            let backups = self.backup_every.is_some()
                || self.backup_log_size.is_some()
                || self.backup_keep.is_some()
                || self.backup_compression.is_some();
            if self.log.is_some() || backups || self.log_repair {
                bail!("--log, --backup-… and --log-repair need a directory: --dir");
            }
            return Ok(None);
        };
        let log = match self.log.as_deref() {
            None | Some("everysec") => LogSync::EverySecond,
            Some("always") => LogSync::Always,
            Some("no") => LogSync::Never,
            Some(other) => bail!("--log: {other:?} is none of always, everysec, no"),
        };
        let every = self.backup_every.as_deref().map(duration).transpose()?;
        let compression = match self.backup_compression.as_deref() {
            None | Some("none") => Compression::None,
            Some("lz4") => Compression::Lz4,
            Some("zstd") if cfg!(feature = "zstd") => Compression::Zstd,
            Some("zstd") => bail!(
                "--backup-compression: this build has no zstd; use lz4, or build `ordna` with \
                 `--features zstd`"
            ),
            Some(other) => bail!("--backup-compression: {other:?} is none of none, lz4, zstd"),
        };
        let mut data = DataConfig { log, backup_every: every, ..DataConfig::new(dir.clone()) };
        if let Some(size) = &self.backup_log_size {
            data.backup_log =
                parse_bytes(size).map_err(|error| anyhow!("--backup-log-size: {error}"))?;
        }
        let keep = self.backup_keep.map_or(data.keep, NonZeroUsize::get);
        Ok(Some(DataConfig { keep, compression, repair: self.log_repair, ..data }))
    }

    /// Returns the settings of the file, followed by those of `--set`.
    fn settings(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut all = self.settings.clone();
        for pair in &self.set {
            let (name, value) = pair
                .split_once('=')
                .with_context(|| format!("--set: {pair:?} is not NAME=VALUE"))?;
            all.insert(name.to_ascii_lowercase(), SettingValue::Text(value.to_owned()));
        }
        Ok(all.into_iter().map(|(name, value)| (name, value.into_text())).collect())
    }

    /// Returns the memory limit.
    pub fn max_memory(&self) -> anyhow::Result<Option<usize>> {
        size("--max-memory", self.max_memory.as_deref())
    }

    fn to_config(&self) -> anyhow::Result<Config> {
        let default = Config::default();
        Ok(Config {
            bind: if self.tls_only { vec![] } else { self.addresses(self.port.unwrap_or(6380))? },
            tls: self.tls()?,
            password: self.password.clone(),
            acl_file: self.acl_file.clone(),
            insecure: self.insecure,
            max_clients: self.max_clients.unwrap_or(default.max_clients),
            max_memory: self.max_memory()?,
            max_clients_memory: size("--max-memory-clients", self.max_memory_clients.as_deref())?,
            collectors: self.collectors.or(self.threads).unwrap_or(default.collectors),
            metrics: self.metrics.as_deref().map(page_address).transpose()?,
            console: self.console.as_deref().map(page_address).transpose()?,
            data: self.data()?,
            replication: self.replication()?,
            evict_stored: self.evict_stored,
            settings: self.settings()?,
            file: self.config.clone(),
            ..default
        })
    }
}

/// Parses the size that an option has, if it is given.
fn size(flag: &str, text: Option<&str>) -> anyhow::Result<Option<usize>> {
    let parsed = text.map(parse_bytes).transpose();
    parsed.map_err(|why| anyhow::anyhow!("{flag}: {why}"))
}

/// Parses a time such as `30s`, `15m` or `6h`. A number without a unit is seconds.
pub fn duration(text: &str) -> anyhow::Result<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        other => bail!("{text:?} has the unit {other:?}; the units are s, m and h"),
    };
    let is_no_time = || format!("{text:?} is not a time such as 30s, 15m or 6h");
    let number: u64 = digits.parse().with_context(is_no_time)?;
    let seconds = number.checked_mul(unit).filter(|seconds| *seconds > 0);
    seconds.map(Duration::from_secs).with_context(is_no_time)
}

/// Parses `PORT`, on 127.0.0.1, or `ADDRESS:PORT`.
fn page_address(text: &str) -> anyhow::Result<SocketAddr> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port)),
        Err(_) => text.parse().with_context(|| format!("{text:?} is not PORT or ADDRESS:PORT")),
    }
}

/// Starts to log events to standard error, and returns a handle that changes the level. `ORDNA_LOG`
/// sets the level for all targets, or by target as in `info,ordna_server=debug`.
///
/// # Errors
/// `ORDNA_LOG` cannot be parsed.
pub fn start_log() -> anyhow::Result<LogLevelSwitch> {
    let levels = std::env::var("ORDNA_LOG").unwrap_or_else(|_| "info".to_owned());
    // `Targets` would accept an empty directive, or a target without a level, and log nothing for
    // it.
    let directives = levels.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    let levels = directives.collect::<Vec<_>>().join(",");
    if levels.split(',').any(|directive| directive.is_empty() || directive.ends_with('=')) {
        bail!(
            "ORDNA_LOG: {levels:?} lacks a level; write one such as debug, or info,ordna_server=debug"
        );
    }
    let levels: Targets = levels.parse().map_err(|error| {
        anyhow!(
            "ORDNA_LOG: {levels:?} is not a level such as debug or info,ordna_server=debug: {error}"
        )
    })?;
    let events = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let level = levels.default_level().and_then(|level| level.into_level());
    let (filter, handle) = reload::Layer::new(levels);
    tracing_subscriber::registry().with(events.with_filter(filter)).init();
    let switch = move |level: Level| {
        let levels = Targets::new().with_default(level);
        handle.reload(levels).map_err(|error| error.to_string())
    };
    Ok(LogLevelSwitch { level: level.unwrap_or(Level::INFO), switch: Arc::new(switch) })
}

/// Runs `ordna serve`.
pub fn start(options: ServeOptions, greet: bool) -> anyhow::Result<ExitCode> {
    let log_level = start_log()?;
    run(options.with_file()?, greet, None, log_level)
}

/// Serves until SIGTERM, SIGINT or the command SHUTDOWN. SIGHUP reloads certificates and users.
pub fn run(
    options: ServeOptions,
    greet: bool,
    extension: Option<Arc<dyn Extension>>,
    log_level: LogLevelSwitch,
) -> anyhow::Result<ExitCode> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = options.threads {
        builder.worker_threads(threads.get());
    }
    let runtime = builder.enable_all().on_thread_park(crate::allocator::collect).build()?;
    runtime.spawn(crate::allocator::collect_while_idle());
    let config = Config { extension, log_level: Some(log_level), ..options.to_config()? };
    runtime.block_on(async {
        // The handlers are installed before the socket is opened, so that no signal arrives before
        // them.
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        let mut hup = signal(SignalKind::hangup())?;
        let server = Server::bind(config).await?;
        let address = server.address();
        tracing::info!(%address, "listening");
        if let Some(address) = server.console_address() {
            tracing::info!("console at http://{address}/");
        }
        if let Some(address) = server.metrics_address() {
            tracing::info!("metrics at http://{address}/metrics");
        }
        if greet {
            say_what_next(address);
        }
        let reloader = server.reloader();
        tokio::spawn(async move {
            while hup.recv().await.is_some() {
                let reloader = reloader.clone();
                // `reload` logs its errors.
                let _ = tokio::task::spawn_blocking(move || reloader.reload()).await;
            }
        });
        server
            .on_ready(move || {
                tracing::info!(%address, "ready");
                // This fails if systemd does not run the server, which is not an error.
                let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
            })
            .run(async {
                tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
                let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Stopping]);
            })
            .await?;
        tracing::info!("stopped");
        anyhow::Ok(())
    })?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(ExitCode::SUCCESS)
}

fn say_what_next(address: SocketAddr) {
    let port = address.port();
    println!(
        "\nOrdna listens on {address}. It keeps everything in memory; Ctrl-C stops it.\n\n\
         In another terminal:\n  \
         ordna load data/places.tsv.gz --key country,name,id\n  \
         redis-cli -p {port} ORDNA.PREFIX SE:Upp KEYS\n  \
         redis-cli -p {port} ORDNA.RANGE - + REV LIMIT 10 KEYS\n"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_gives_what_the_flags_leave_open() {
        let path = std::env::temp_dir().join(format!("ordna-{}.toml", std::process::id()));
        let text = "port = 7000\nmax-memory = '1kb'\nbind = ['127.0.0.2']\nconsole = '8080'\n";
        std::fs::write(&path, text).unwrap();
        let file = path.to_str().unwrap();
        let options = ServeOptions::parse_from(["serve", "--config", file, "--port", "7001"]);
        let config = options.with_file().unwrap().to_config().unwrap();
        assert_eq!(config.bind, ["127.0.0.2:7001".parse().unwrap()]);
        assert_eq!(config.max_memory, Some(1024));
        assert_eq!(config.console, Some("127.0.0.1:8080".parse().unwrap()));
        std::fs::write(&path, "prot = 7000\n").unwrap();
        let options = ServeOptions::parse_from(["serve", "--config", file]);
        assert!(format!("{:#}", options.with_file().unwrap_err()).contains("prot"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn settings_of_the_file_come_after_its_flags_and_before_the_command_line() {
        let path = std::env::temp_dir().join(format!("ordna-set-{}.toml", std::process::id()));
        let text = "max-memory = '1kb'\npassword = 'old'\n[settings]\nmaxmemory = '2kb'\n\
                    timeout = 7\nrequirepass = 'new'\nappendonly = false\n";
        std::fs::write(&path, text).unwrap();
        let file = path.to_str().unwrap();
        let config = |more: &[&str]| {
            let words = [&["serve", "--config", file], more].concat();
            ServeOptions::parse_from(words).with_file().unwrap().to_config().unwrap()
        };
        let pairs = |config: &Config| {
            let words = config.settings.iter().map(|(name, value)| format!("{name}={value}"));
            words.collect::<Vec<_>>().join(" ")
        };
        let read = config(&[]);
        assert_eq!(pairs(&read), "appendonly=no maxmemory=2kb timeout=7");
        assert_eq!((read.password.as_deref(), read.file), (Some("new"), Some(path.clone())));
        let read = config(&["--max-memory", "3kb", "--set", "Timeout=8", "--password", "given"]);
        assert_eq!(pairs(&read), "appendonly=no timeout=8");
        assert_eq!((read.password.as_deref(), read.max_memory), (Some("given"), Some(3072)));
        assert!(ServeOptions::parse_from(["serve", "--set", "x"]).to_config().is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn names_are_addresses_too() {
        let parsed = |words: &[&str]| ServeOptions::parse_from(words).to_config();
        let config = parsed(&["serve", "--bind", "localhost", "--max-memory", "0"]).unwrap();
        assert!(config.bind.contains(&"127.0.0.1:6380".parse().unwrap()), "{:?}", config.bind);
        assert_eq!(config.max_memory, Some(0));
        assert!(parsed(&["serve", "--tls-port", "1"]).is_err());
        assert!(parsed(&["serve", "--max-memory", "1x"]).is_err());
    }

    #[test]
    fn replication_needs_its_feature_at_start() {
        let topic = "kafka://127.0.0.1:9092/keys";
        let config =
            |words: &[&str]| ServeOptions::parse_from([&["serve"], words].concat()).to_config();
        for words in [&["--dir", "unused", "--replicate", topic][..], &["--follow", topic]] {
            match config(words) {
                Ok(config) => assert!(cfg!(feature = "kafka") && config.replication.is_some()),
                Err(error) if cfg!(feature = "kafka") => panic!("{words:?}: {error}"),
                Err(error) => assert!(error.to_string().contains("--features kafka"), "{error}"),
            }
        }
        assert!(config(&["--replicate", topic]).is_err(), "without a directory");
        assert!(config(&["--dir", "unused", "--follow", "keys"]).is_err(), "no address");
    }

    #[test]
    fn zstd_needs_its_feature_at_start() {
        let words = ["serve", "--dir", "unused", "--backup-compression", "zstd"];
        let config = ServeOptions::parse_from(words).to_config();
        if cfg!(feature = "zstd") {
            assert!(config.is_ok());
        } else {
            assert!(config.unwrap_err().to_string().contains("--features zstd"));
        }
    }
}
