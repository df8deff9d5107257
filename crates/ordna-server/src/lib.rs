//! `ordna serve`: an ordered keyspace behind the Redis protocol (RESP2 and RESP3).
//!
//! One task per connection; a batch of pipelined commands is executed as it was read and answered
//! with one write. A client that does not read its replies is not read from. Walks over many keys
//! run in stretches and let other connections in between.
//!
//! # What is atomic
//! Every command on one key. `MSET`, `MSETNX`, `EXEC`, `FLUSHDB` and `FLUSHALL` as a whole, for
//! readers too. Walks (`KEYS`, `ORDNA.RANGE`, `ORDNA.PREFIX`, `ORDNA.COUNT`, and a whole `SCAN` as
//! long as its lease lasts) read a snapshot: the state of one moment, however long they take.
//! `ORDNA.DELRANGE` is live: it removes every key that is there throughout.

mod clients;
mod commands;
mod connection;
mod cursors;
mod glob;
mod reply;
#[doc(hidden)]
pub mod request;
mod snapshots;
mod state;
mod walk;
mod watches;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use state::State;

/// How to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address and port.
    pub bind: SocketAddr,
    /// What clients must say to `AUTH`; required on an address that others can reach.
    pub password: Option<String>,
    /// Connections at once; more are refused as Redis refuses them.
    pub max_clients: usize,
    /// Largest reply that a walk or `MGET` may build, in bytes.
    pub max_reply: usize,
    /// Bytes that keys and values may take, with what it takes to order them and with what
    /// snapshots keep; beyond, writes are refused.
    pub max_memory: Option<usize>,
    /// How long the state that a SCAN reads is kept for its next call.
    pub scan_lease: Duration,
    /// Threads that remove what no snapshot sees any more, and what has expired; best as many as there
    /// are that write. They sleep while there is nothing to do.
    pub collectors: NonZeroUsize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind: SocketAddr::from(([127, 0, 0, 1], 6380)),
            password: None,
            max_clients: 10_000,
            max_reply: 512 << 20,
            max_memory: None,
            scan_lease: Duration::from_secs(60),
            collectors: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address could not be bound.
    #[error(
        "cannot listen on {address}: {source}. Is another server there? Choose another port with --port"
    )]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Others could reach the server, and nothing would keep them out.
    #[error(
        "{address} can be reached from other machines, and no password is set. Set one with --password, or listen on 127.0.0.1"
    )]
    Open {
        /// The address asked for.
        address: SocketAddr,
    },
}

/// A bound server that does not yet answer.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    state: Arc<State>,
    address: SocketAddr,
}

/// How long connections may take to finish what they have read when the server stops.
const DRAIN: Duration = Duration::from_secs(5);

impl Server {
    /// Binds the address.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind(config: Config) -> Result<Self, ServeError> {
        let address = config.bind;
        let no_password = config.password.as_deref().is_none_or(str::is_empty);
        if !address.ip().is_loopback() && no_password {
            return Err(ServeError::Open { address });
        }
        let failed = |source| ServeError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, state: Arc::new(State::new(config, address)), address })
    }

    /// Where it listens: with port 0 asked for, the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` resolves, then lets every connection finish the commands it has read.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(false);
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut stop => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let state = self.state.clone();
                    tokio::spawn(connection::serve(state, stream, peer, stopped.clone()));
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others must close first.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(stopped);
        tracing::info!(clients = self.state.clients.len(), "stopping: connections drain");
        // Refused only if no connection is left to hear it.
        let _ = stopping.send(true);
        if tokio::time::timeout(DRAIN, stopping.closed()).await.is_err() {
            tracing::warn!(
                clients = self.state.clients.len(),
                "closed connections that did not drain"
            );
        }
    }
}
