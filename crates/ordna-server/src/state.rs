//! What all connections share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use ordna::sync::StripedCounter;
use ordna::{Direction, OrderedIndex, SkipList};

use crate::Config;
use crate::clients::Clients;
use crate::cursors::Cursors;

/// The keys and values.
pub(crate) type Keyspace = SkipList<[u8], [u8]>;

/// The server's state, shared by its connections.
#[derive(Debug)]
pub(crate) struct State {
    /// Commands take this lock as readers, however they change the keyspace: it synchronizes itself.
    /// Those that must change several keys as one step take it as the one writer.
    keyspace: RwLock<Keyspace>,
    password: Mutex<Option<String>>,
    pub config: Config,
    pub address: SocketAddr,
    pub clients: Clients,
    pub cursors: Cursors,
    pub started: Instant,
    pub commands: StripedCounter,
    pub connections: AtomicU64,
    pub refused: AtomicU64,
}

impl State {
    pub(crate) fn new(config: Config, address: SocketAddr) -> Self {
        let password = config.password.clone().filter(|password| !password.is_empty());
        Self {
            keyspace: RwLock::new(Keyspace::new()),
            password: Mutex::new(password),
            config,
            address,
            clients: Clients::default(),
            cursors: Cursors::default(),
            started: Instant::now(),
            commands: StripedCounter::new(),
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    // A panic under the lock leaves the keyspace whole: it is changed by single steps of the index.
    pub(crate) fn keys(&self) -> RwLockReadGuard<'_, Keyspace> {
        self.keyspace.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keyspace, with nobody else inside.
    pub(crate) fn keys_alone(&self) -> RwLockWriteGuard<'_, Keyspace> {
        self.keyspace.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn password(&self) -> Option<String> {
        self.password.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_password(&self, password: &str) {
        let password = Some(password.to_owned()).filter(|password| !password.is_empty());
        *self.password.lock().unwrap_or_else(PoisonError::into_inner) = password;
    }

    pub(crate) fn next_client_id(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The first entry in a direction, for FIRST and LAST.
    pub(crate) fn end(&self, direction: Direction) -> Option<(Vec<u8>, Vec<u8>)> {
        let keys = self.keys();
        match direction {
            Direction::Ascending => keys.first(),
            Direction::Descending => keys.last(),
        }
    }
}
