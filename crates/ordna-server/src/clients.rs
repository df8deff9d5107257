//! Who is connected, for CLIENT LIST, INFO and the limit.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What others may ask about a connection.
#[derive(Debug)]
pub struct Client {
    pub id: u64,
    pub peer: SocketAddr,
    pub since: Instant,
    pub told: Mutex<Told>,
}

/// What the client has told of itself.
#[derive(Debug, Default, Clone)]
pub struct Told {
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    pub resp3: bool,
}

impl Client {
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub struct Clients(Mutex<BTreeMap<u64, Arc<Client>>>);

impl Clients {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a connection, unless there are `limit` already.
    pub fn enter(&self, id: u64, peer: SocketAddr, limit: usize) -> Option<Arc<Client>> {
        let mut clients = self.map();
        if clients.len() >= limit {
            return None;
        }
        let client =
            Arc::new(Client { id, peer, since: Instant::now(), told: Mutex::new(Told::default()) });
        clients.insert(id, client.clone());
        Some(client)
    }

    pub fn leave(&self, id: u64) {
        self.map().remove(&id);
    }

    pub fn len(&self) -> usize {
        self.map().len()
    }

    pub fn all(&self) -> Vec<Arc<Client>> {
        self.map().values().cloned().collect()
    }
}
