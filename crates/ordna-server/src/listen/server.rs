//! The server: binds its addresses, accepts connections, takes samples of its state, and stops.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::commands::{set_settings, table};
use crate::execution::{backups, eviction};
use crate::listen::connection;
use crate::listen::http;
use crate::state::ServerState;
use crate::state::acl::{Acl, AclError};
use crate::state::config::Config;
use crate::state::tls::{Tls, TlsError, TlsFiles};
use crate::statistics::command_stats::{BUCKETS, CommandCounts};
use crate::statistics::event_logs::unix_millis;
use crate::statistics::samples::Sample;
use crate::wire::error::CommandError;
use crate::wire::stream::Stream;

/// Number of connections that may wait to be accepted. The system may allow fewer.
const BACKLOG: u32 = 1024;
/// Time that connections have, when the server stops, to finish what they have read.
const DRAIN: Duration = Duration::from_secs(5);
/// Time limit of a client's TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time that the server's own tasks have, when it stops, to finish their present step, which takes
/// some milliseconds.
const TASKS: Duration = Duration::from_secs(5);
/// Number of file descriptors for other purposes than clients: listeners, the runtime, files.
const OTHER_FILES: u64 = 64;

/// The reason why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An address could not be bound.
    #[error("cannot listen on {address}. Is another server there? Choose another port")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// Other machines could reach the server, and a user could log in without a password.
    #[error(
        "{address} can be reached from other machines, and user '{user}' needs no password. Set one with --password or in the ACL file, listen on 127.0.0.1, or allow this with --insecure"
    )]
    Open {
        /// The requested address.
        address: SocketAddr,
        /// The user without a password.
        user: String,
    },
    /// A setting in the configuration file.
    #[error("settings: {0}")]
    Setting(String),
    /// No address was given.
    #[error("no address to listen on is given")]
    NoAddress,
    /// Certificates or keys are not valid.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The file of users is not valid.
    #[error("ACL file: {0}")]
    Users(String),
    /// The data directory could not be read.
    #[error("cannot load the data directory: {0}")]
    Data(#[from] ordna::durability::BackupError),
    /// The keyspace cannot be replicated.
    #[error("replication: {0}")]
    Replication(String),
    /// The server has stopped, but its log could not be closed: the latest writes may be lost.
    #[error("the log could not be closed properly: {0}")]
    Log(String),
}

/// A bound server that does not answer requests yet.
pub struct Server {
    listeners: Vec<TcpListener>,
    encrypted: Vec<TcpListener>,
    metrics: Option<TcpListener>,
    console: Option<TcpListener>,
    state: Arc<ServerState>,
    address: SocketAddr,
    ready: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Connections of a server that has just stopped may still use the port.
        socket.set_reuseaddr(true)?;
        if address.is_ipv6() {
            SockRef::from(&socket).set_only_v6(true)?;
        }
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|source| ServeError::Bind { address, source })
}

fn local(listener: &TcpListener) -> Option<SocketAddr> {
    listener.local_addr().ok()
}

/// Removes expired hashes from the indexes, and evicts keys beyond the memory limit.
async fn expire(state: Arc<ServerState>) {
    const EVERY: Duration = Duration::from_millis(20);
    loop {
        tokio::time::sleep(EVERY).await;
        if state.indexes.are_active() {
            tokio::task::block_in_place(|| state.indexes.expire(&state.keys()));
        }
        if state.settings.evicts() && !state.is_loading() && !state.refuses_writes() {
            state.access.set_minute((state.started.elapsed().as_secs() / 60) as u32);
            // The limit may have been lowered, and entries of indexes need room.
            tokio::task::block_in_place(|| eviction::evict(&state, &state.keys(), 0));
        }
    }
}

/// Removes the elements of removed large collections, and expired fields, a limited number at a
/// time.
async fn remove_collections(state: Arc<ServerState>) {
    const EVERY: Duration = Duration::from_millis(20);
    loop {
        tokio::time::sleep(EVERY).await;
        let is_idle = state.is_loading() || state.are_writes_paused() || state.refuses_writes();
        if is_idle || !state.keys().collections().has_large() {
            continue;
        }
        // Fails if the log has failed. The lists are kept and read again later.
        let stretch = || {
            let keys = state.keys();
            let report = |key: &[u8], expired| state.report_expired_fields(&keys, key, expired);
            let more = keys.remove_expired(report)?;
            Ok::<_, CommandError>(keys.remove_elements()? > 0 || more)
        };
        while tokio::task::block_in_place(stretch).unwrap_or(false) {
            tokio::task::yield_now().await;
        }
    }
}

/// Raises the limit of open files to what the clients need, or lowers the number of clients.
fn fit_files(config: &mut Config) {
    let pages = config.metrics.iter().chain(&config.console).count();
    let others = OTHER_FILES + (pages * http::MOST_CONNECTIONS) as u64;
    let wanted = config.max_clients as u64 + others;
    match rlimit::increase_nofile_limit(wanted) {
        Ok(limit) if limit < wanted => {
            let clients = limit.saturating_sub(others).max(1);
            tracing::warn!(
                open_files = limit,
                max_clients = clients,
                wanted = config.max_clients,
                "fewer clients than configured: the limit of open files is too low (ulimit -n)"
            );
            config.max_clients = clients as usize;
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the limit of open files is unknown"),
    }
}

/// Reloads the files of a running server: certificates and users. Does not keep the server alive.
#[derive(Debug, Clone)]
pub struct Reloader(Weak<ServerState>);

/// The reason why a file was not reloaded. The former contents stay in use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// Certificates or keys are not valid.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// The file of users is not valid.
    #[error("ACL file: {0}")]
    Users(String),
}

impl Reloader {
    /// Reloads the certificates and keys if the server listens with TLS, and the users if it has a
    /// file of users. Each is replaced as a whole or not at all, and an error of one does not
    /// prevent the other. Connections keep the certificates of their handshake; those of removed
    /// users are closed. Blocks while it reads and until the commands in progress have ended, so
    /// that none continues with rights that its user has lost. Does nothing after the server has
    /// ended.
    ///
    /// # Errors
    /// The files that were not replaced, with the reasons.
    pub fn reload(&self) -> Result<(), Vec<ReloadError>> {
        let mut errors = Vec::new();
        let Some(state) = self.0.upgrade() else { return Ok(()) };
        if let Some(tls) = &state.tls {
            match tls.reload() {
                Ok(()) => tracing::info!("the certificates were read again"),
                Err(error) => errors.push(error.into()),
            }
        }
        if state.acl.file.is_some() {
            match state.acl.reload(state.catalog) {
                Ok(()) => {
                    // Immediately, even while a script runs that does not end.
                    state.end_clients_without_rights(None);
                    // Commands in progress have checked the former rights, and may wait for elements after
                    // this. What locks the keyspace from now on checks the present ones.
                    let alone = state.keys_exclusive();
                    state.end_clients_without_rights(None);
                    drop(alone);
                    tracing::info!("the users were read again");
                }
                Err(error) => errors.push(ReloadError::Users(error.to_string())),
            }
        }
        for error in &errors {
            tracing::error!(%error, "a file was not read again; what was read before stays in use");
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

impl Server {
    /// Returns a handle that reloads the files of this server, for a handler of `SIGHUP`.
    pub fn reloader(&self) -> Reloader {
        Reloader(Arc::downgrade(&self.state))
    }

    /// Binds all addresses.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind(mut config: Config) -> Result<Self, ServeError> {
        let encrypted = config.tls.as_ref().map_or(&[][..], |tls| tls.bind.as_slice()).to_vec();
        let acl = users(&config)?;
        fit_files(&mut config);
        let tls = config.tls.clone().map(TlsFiles::read).transpose()?.map(Tls::new);
        let listeners = config.bind.iter().copied().map(bind).collect::<Result<Vec<_>, _>>()?;
        let encrypted = encrypted.into_iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let metrics = config.metrics.map(bind).transpose()?;
        let console = config.console.map(bind).transpose()?;
        let first = listeners.first().or(encrypted.first()).and_then(local);
        let address = first.ok_or(ServeError::NoAddress)?;
        let mut state = ServerState::new(config, address, &table().catalog, acl);
        state.tls = tls;
        let state = state.share();
        let settings = state.config.settings.iter();
        let settings: Vec<_> =
            settings.map(|(name, it)| (name.as_bytes(), it.as_bytes())).collect();
        set_settings(&state, &state.keys(), &settings)
            .map_err(|error| ServeError::Setting(error.to_string().replacen("ERR ", "", 1)))?;
        let ready = Box::new(|| {});
        Ok(Self { listeners, encrypted, metrics, console, state, address, ready })
    }

    /// Sets a function that is called once, when the server has loaded its directory and executes
    /// commands.
    pub fn on_ready(self, tell: impl FnOnce() + Send + 'static) -> Self {
        Self { ready: Box::new(tell), ..self }
    }

    /// Returns the first address. If port 0 was requested, it has the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address for TLS.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.encrypted.first().and_then(local)
    }

    /// Returns the address of the metrics.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(local)
    }

    /// Returns the address of the console.
    pub fn console_address(&self) -> Option<SocketAddr> {
        self.console.as_ref().and_then(local)
    }

    /// Serves clients until `stop` resolves or a client sends `SHUTDOWN`, and then lets every
    /// connection finish the commands that it has read.
    ///
    /// # Errors
    /// The data directory could not be read.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self { listeners, encrypted, metrics, console, state, ready, .. } = self;
        let mut tasks: Vec<JoinHandle<()>> = Vec::new();
        for listener in listeners {
            tasks.push(tokio::spawn(accept(state.clone(), listener, false)));
        }
        for listener in encrypted {
            tasks.push(tokio::spawn(accept(state.clone(), listener, true)));
        }
        let pages = [(metrics, false), (console, true)];
        for (listener, console) in pages {
            if let Some(listener) = listener {
                tasks.push(tokio::spawn(http::serve(state.clone(), listener, console)));
            }
        }
        tasks.push(tokio::spawn(tick(state.clone())));
        tasks.push(tokio::spawn(expire(state.clone())));
        tasks.push(tokio::spawn(remove_collections(state.clone())));
        let (failed, mut failure) = oneshot::channel();
        if let Some(persistence) = state.data_directory.clone() {
            let shared = state.clone();
            tokio::task::spawn_blocking(move || {
                let loaded = backups::load(&shared, &persistence).map_err(ServeError::Data);
                let begun = || shared.replicate().map_err(ServeError::Replication);
                match loaded.and_then(|()| begun()) {
                    Ok(()) => {
                        persistence.loaded();
                        ready();
                    }
                    // The server may have stopped in the meantime.
                    Err(error) => drop(failed.send(error)),
                }
            });
            tasks.push(tokio::spawn(backups::back_up_regularly(state.clone())));
        } else if state.config.replication.is_some() {
            let shared = state.clone();
            tokio::task::spawn_blocking(move || match shared.replicate() {
                Ok(()) => ready(),
                Err(error) => drop(failed.send(ServeError::Replication(error))),
            });
        } else {
            ready();
        }
        let mut done = Ok(());
        tokio::select! {
            Ok(error) = &mut failure => done = Err(error),
            () = stop => {}
            () = state.shutdown.notified() => {}
        }
        state.stopping.store(true, Ordering::Relaxed);
        tasks.iter().for_each(JoinHandle::abort);
        tracing::info!(clients = state.clients.len(), "stopping: connections drain");
        state.unpause();
        // Ends a script that has not written; one that has written may still end by itself.
        let _ = state.scripts.kill();
        let drained = async {
            // A client that was just accepted is notified in the next iteration.
            while state.clients.len() > 0 {
                state.clients.all().iter().for_each(|client| client.end());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            tracing::warn!(clients = state.clients.len(), "closed connections that did not drain");
            state.scripts.cut();
        }
        wait_for_tasks(tasks, TASKS).await;
        if let Some(replication) = &state.config.replication {
            tokio::task::block_in_place(|| replication.stop());
        }
        if let Err(error) = state.keys().store().close_log() {
            tracing::error!(%error, "the log could not be closed properly");
            done = done.and(Err(ServeError::Log(error.to_string())));
        }
        done
    }
}

/// Waits for aborted tasks. Each finishes its present step, which may write to the store.
async fn wait_for_tasks(tasks: Vec<JoinHandle<()>>, longest: Duration) {
    let all = async {
        for task in tasks {
            // The error is the abort, or a panic that was reported.
            let _ = task.await;
        }
    };
    if tokio::time::timeout(longest, all).await.is_err() {
        tracing::warn!("a task of the server did not end; the log ends before it");
    }
}

/// Returns the users at the start: those of the ACL file, and the default user.
fn users(config: &Config) -> Result<Acl, ServeError> {
    let catalog = &table().catalog;
    let acl = Acl::new(config, catalog);
    let mut checked = acl.check_passwords();
    if let Some(file) = &config.acl_file {
        let failed = |why: String| ServeError::Users(format!("{}: {why}", file.display()));
        let content = std::fs::read(file).map_err(|error| match error.kind() {
            ErrorKind::NotFound => failed(format!(
                "{error}. An empty file is one with the default user only; ACL SAVE writes it"
            )),
            _ => failed(error.to_string()),
        })?;
        checked = acl.load(&content, catalog);
        if let Err(why) = &checked
            && !matches!(why, AclError::NoPassword { .. })
        {
            return Err(failed(why.to_string()));
        }
    }
    match (checked, config.exposed()) {
        (Err(AclError::NoPassword { name: user }), Some(address)) => {
            Err(ServeError::Open { address, user })
        }
        _ => Ok(acl),
    }
}

#[cfg(unix)]
fn descriptor(stream: &TcpStream) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(stream)
}

#[cfg(not(unix))]
fn descriptor(_: &TcpStream) -> i32 {
    -1
}

/// Accepts connections of one listener.
async fn accept(state: Arc<ServerState>, listener: TcpListener, encrypted: bool) {
    let Some(local) = local(&listener) else { return };
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let most = state.settings.max_clients.size();
                let Some(client) = state.clients.enter(peer, local, descriptor(&stream), most)
                else {
                    refuse(&stream);
                    continue;
                };
                let state = state.clone();
                tokio::spawn(async move {
                    match prepare(&state, stream, encrypted).await {
                        Ok(stream) => connection::serve(state, table(), stream, client).await,
                        Err(error) => {
                            tracing::debug!(%peer, %error, "connection refused");
                            state.clients.leave(&client);
                        }
                    }
                });
            }
            Err(error) => {
                // Probably there are no file descriptors left, and others must be closed first.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Tells a client that there are too many connections.
fn refuse(stream: &TcpStream) {
    // The client may already be gone. A new socket accepts these few bytes without waiting.
    let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
}

/// Sets the options of a socket and performs the TLS handshake.
async fn prepare(
    state: &ServerState,
    stream: TcpStream,
    encrypted: bool,
) -> std::io::Result<Stream> {
    stream.set_nodelay(true)?;
    let seconds = state.settings.keepalive.get();
    if let Some(seconds) = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0) {
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(seconds))
            .with_interval(Duration::from_secs((seconds / 3).max(1)))
            .with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    }
    match &state.tls {
        Some(tls) if encrypted => {
            let handshake = tls.acceptor().accept(stream);
            let stream = tokio::time::timeout(HANDSHAKE, handshake).await??;
            Ok(Stream::Tls(Box::new(stream)))
        }
        _ => Ok(Stream::Clear(stream)),
    }
}

/// Takes a sample once a second, and closes clients that are idle or do not read their messages.
async fn tick(state: Arc<ServerState>) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let totals = || {
        let mut all = CommandCounts::default();
        for spec in state.catalog.with_subcommands() {
            let counts = state.stats.of(spec.id);
            all.calls += counts.calls;
            for at in 0..BUCKETS {
                all.buckets[at] += counts.buckets[at];
            }
        }
        (all, state.stats.input_bytes(), state.stats.output_bytes())
    };
    let mut before = totals();
    loop {
        seconds.tick().await;
        let now = totals();
        // After CONFIG RESETSTAT the totals are lower than before.
        let calls = now.0.calls.saturating_sub(before.0.calls);
        let mut counts = CommandCounts { calls, ..CommandCounts::default() };
        for at in 0..BUCKETS {
            counts.buckets[at] = now.0.buckets[at].saturating_sub(before.0.buckets[at]);
        }
        let quiet = counts.calls == 0;
        let memory = state.statistics().bytes;
        state.peak_memory.fetch_max(memory, Ordering::Relaxed);
        state.samples.push(Sample {
            at: unix_millis() / 1000,
            commands: counts.calls,
            input_bytes: now.1.saturating_sub(before.1),
            output_bytes: now.2.saturating_sub(before.2),
            median: if quiet { 0 } else { counts.percentile(0.5) },
            high: if quiet { 0 } else { counts.percentile(0.99) },
            memory,
            clients: state.clients.len(),
        });
        before = now;
        let limit = state.settings.buffer_limits.lock().0[2];
        state.channels.close_slow(&state.clients, limit);
        let timeout = state.settings.timeout.size();
        if timeout > 0 {
            let idle = Duration::from_secs(timeout as u64);
            let all = state.clients.all();
            let late = all.iter().filter(|client| {
                client.idle() > idle
                    && !client.is_monitor.load(Ordering::Relaxed)
                    && !client.inbox.is_subscribed()
                    && client.blocked.load(Ordering::Relaxed) == 0
                    && !client.is_held_up.load(Ordering::Relaxed)
            });
            late.for_each(|client| client.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A command in progress has checked the former rights. Nothing is done by them after the reload.
    #[test]
    fn a_reload_of_users_waits_for_commands_in_progress() {
        let file = std::env::temp_dir().join(format!("ordna-users-{}", std::process::id()));
        std::fs::write(&file, "user default on nopass ~* &* +@all\n").unwrap();
        let bind = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let config = Config { bind, acl_file: Some(file.clone()), ..Config::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(Server::bind(config)).unwrap();
        std::fs::write(&file, "user default on nopass ~* &* +@read\n").unwrap();
        let (reloader, ended) = (server.reloader(), std::sync::atomic::AtomicBool::new(false));
        let command = server.state.keys();
        std::thread::scope(|scope| {
            let reload = scope.spawn(|| {
                reloader.reload().unwrap();
                ended.store(true, Ordering::SeqCst);
            });
            let may_write = || {
                let user = server.state.acl.user("default").unwrap();
                let request = crate::wire::request::OwnedRequest::of(&[b"SET", b"a", b"1"]);
                server.state.refusal(&user, request.arguments()).is_none()
            };
            while may_write() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(200));
            assert!(!ended.load(Ordering::SeqCst), "the command has not ended");
            drop(command);
            reload.join().unwrap();
        });
        std::fs::remove_file(&file).unwrap();
    }

    /// A task that is aborted continues to the end of its step.
    #[test]
    fn no_task_runs_after_the_server_has_waited_for_it() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(3).enable_all().build().unwrap();
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        runtime.block_on(async {
            let task = |time: Duration| {
                let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
                tokio::spawn(async move {
                    tokio::task::block_in_place(|| {
                        begun.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(time);
                        ended.fetch_add(1, Ordering::SeqCst);
                    });
                    tokio::time::sleep(Duration::from_secs(1000)).await;
                })
            };
            let short = Duration::from_millis(300);
            let tasks = vec![task(short), task(Duration::ZERO), task(short)];
            while begun.load(Ordering::SeqCst) < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tasks.iter().for_each(JoinHandle::abort);
            wait_for_tasks(tasks, Duration::from_secs(60)).await;
            assert_eq!(ended.load(Ordering::SeqCst), 3);
            // One that does not end holds nobody up.
            let long = vec![task(Duration::from_secs(2))];
            while begun.load(Ordering::SeqCst) < 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            long[0].abort();
            wait_for_tasks(long, Duration::from_millis(10)).await;
            assert_eq!(ended.load(Ordering::SeqCst), 3);
        });
    }
}
