//! The connections: for `CLIENT`, `INFO` and the limits of their number and of their memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Memory of a client that it takes however little it sends, in bytes: its entries in the tables.
const BASE: usize = 2 << 10;
/// A client's memory is told again when it has changed by this many bytes: the shared sum is
/// touched rarely, and is wrong by less than 16 KiB for each client.
const GRAIN: usize = 16 << 10;

/// A connection, as other connections see it.
#[derive(Debug)]
pub struct Client {
    pub id: u64,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    pub since: Instant,
    pub told: Mutex<Told>,
    /// Bytes of requests that wait for their end, of replies, and of queued commands.
    pub input: AtomicUsize,
    pub output: AtomicUsize,
    pub queued: AtomicUsize,
    /// The client's share of the memory of all clients.
    held: AtomicUsize,
    /// Milliseconds from `since` to the last request.
    pub last_seen: AtomicU64,
    /// The number of the last command.
    pub last_command: AtomicUsize,
    /// The memory limit of clients passes this one by.
    pub no_evict: AtomicBool,
    pub is_monitor: AtomicBool,
    ended: AtomicBool,
    ending: Notify,
}

/// The rarely changing part of a client's line in `CLIENT LIST`.
#[derive(Debug, Default, Clone)]
pub struct Told {
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    pub user: String,
    pub resp3: bool,
    /// Queued commands since `MULTI`; -1 outside of a transaction.
    pub queued: i64,
    pub watched: usize,
}

impl Client {
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the connection close as soon as its task looks: at the next read, write or stretch.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.ending.notify_waiters();
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Resolves once [`end`](Self::end) was called.
    pub async fn ended(&self) {
        // Before the look: it is told of an end that comes between the look and the wait.
        let ending = self.ending.notified();
        if !self.is_ended() {
            ending.await;
        }
    }

    pub fn idle(&self) -> Duration {
        let last = Duration::from_millis(self.last_seen.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(last)
    }

    /// Bytes that count against `maxmemory-clients`.
    pub fn memory(&self) -> usize {
        let parts = [&self.input, &self.output, &self.queued];
        BASE + parts.iter().map(|part| part.load(Ordering::Relaxed)).sum::<usize>()
    }
}

/// The connections of the server.
#[derive(Debug, Default)]
pub struct Clients {
    map: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Memory of all clients.
    memory: AtomicUsize,
    /// Clients that the limit of their memory has closed.
    pub evicted: AtomicU64,
    /// Clients closed for a request, or a reply, beyond its limit.
    pub closed_for_input: AtomicU64,
    pub closed_for_output: AtomicU64,
    last_id: AtomicU64,
    pub refused: AtomicU64,
}

impl Clients {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a connection, unless there are `limit` already.
    pub fn enter(&self, peer: SocketAddr, local: SocketAddr, limit: usize) -> Option<Arc<Client>> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut clients = self.map();
        if clients.len() >= limit {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let client = Arc::new(Client {
            id,
            peer,
            local,
            since: Instant::now(),
            told: Mutex::new(Told { queued: -1, ..Told::default() }),
            input: AtomicUsize::new(0),
            output: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            last_seen: AtomicU64::new(0),
            last_command: AtomicUsize::new(usize::MAX),
            no_evict: AtomicBool::new(false),
            is_monitor: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            ending: Notify::new(),
        });
        clients.insert(id, client.clone());
        Some(client)
    }

    pub fn leave(&self, client: &Client) {
        self.map().remove(&client.id);
        let held = client.held.swap(0, Ordering::Relaxed);
        self.memory.fetch_sub(held, Ordering::Relaxed);
    }

    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// Connections accepted so far, refused ones included.
    pub fn accepted(&self) -> u64 {
        self.last_id.load(Ordering::Relaxed)
    }

    pub fn all(&self) -> Vec<Arc<Client>> {
        self.map().values().cloned().collect()
    }

    /// Memory of all clients, in bytes.
    pub fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed)
    }

    /// Adds the bytes that a client holds now to those of all; with a limit (0: none) closes those
    /// that hold most until the rest is below it.
    #[inline]
    pub fn account(&self, client: &Client, limit: usize) {
        let (now, before) = (client.memory(), client.held.load(Ordering::Relaxed));
        if now.abs_diff(before) >= GRAIN {
            self.account_anew(client, now, before, limit);
        }
    }

    #[cold]
    fn account_anew(&self, client: &Client, now: usize, before: usize, limit: usize) {
        client.held.store(now, Ordering::Relaxed);
        self.memory.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        if limit > 0 && self.memory() > limit {
            self.evict(limit);
        }
    }

    fn evict(&self, limit: usize) {
        let map = self.map();
        // Clients that were told to end hold their memory a little longer, and one that has left is
        // in the shared sum for a moment: neither is a reason to close others.
        let held = |client: &Arc<Client>| client.held.load(Ordering::Relaxed);
        let mut clients: Vec<_> = map.values().filter(|client| !client.is_ended()).collect();
        let mut memory: usize = clients.iter().copied().map(held).sum();
        clients.retain(|client| !client.no_evict.load(Ordering::Relaxed));
        clients.sort_by_key(|client| held(client));
        while memory > limit
            && let Some(largest) = clients.pop()
        {
            let held = held(largest);
            tracing::warn!(
                client = largest.id, peer = %largest.peer, bytes = held, limit,
                "closed: the memory of all clients exceeds maxmemory-clients"
            );
            self.evicted.fetch_add(1, Ordering::Relaxed);
            largest.end();
            memory -= memory.min(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(clients: &Clients, bytes: usize) -> Arc<Client> {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let client = clients.enter(address, address, 10).unwrap();
        client.input.store(bytes, Ordering::Relaxed);
        client
    }

    #[test]
    fn the_largest_client_is_closed_first_and_leaves_nothing() {
        let clients = Clients::default();
        let all = [1 << 20, 3 << 20, 2 << 20].map(|bytes| enter(&clients, bytes));
        for client in &all {
            clients.account(client, 5 << 20);
        }
        let ended = all.each_ref().map(|client| client.is_ended());
        assert_eq!(ended, [false, true, false]);
        // The closed one no longer counts, though it has not left.
        clients.account(&enter(&clients, 1 << 20), 5 << 20);
        assert!(!all[2].is_ended());
        all[0].no_evict.store(true, Ordering::Relaxed);
        clients.account(&enter(&clients, 100 << 10), 1);
        assert_eq!((all[0].is_ended(), all[2].is_ended()), (false, true));
        // One that has left is in the sum for a moment more.
        clients.memory.fetch_add(10 << 20, Ordering::Relaxed);
        let last = enter(&clients, 1 << 20);
        clients.account(&last, 5 << 20);
        assert!(!last.is_ended());
        clients.memory.fetch_sub(10 << 20, Ordering::Relaxed);
        clients.all().iter().for_each(|client| clients.leave(client));
        assert_eq!(clients.memory(), 0);
    }
}
