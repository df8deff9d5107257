//! Connected clients: their state for `CLIENT` and `INFO`, and the limits of their number and
//! memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use ordna::sync::Lock;
use tokio::sync::Notify;

use crate::state::inbox::Inbox;

/// Memory in bytes that each client takes for its entries in the tables.
const BASE: usize = 2 << 10;
/// Change of a client's memory, in bytes, from which on the shared sum is updated. So the sum is
/// rarely written, and its error is less than 16 KiB per client.
const GRAIN: usize = 16 << 10;

/// A connection, as other connections see it.
#[derive(Debug)]
pub struct Client {
    pub id: u64,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// The descriptor of the connection, or -1 if the system has none.
    pub descriptor: i32,
    pub since: Instant,
    info: Lock<ClientInfo>,
    /// Bytes received and not yet executed, at the time of the last receipt or execution.
    pub unread: AtomicUsize,
    /// Memory of incomplete requests, of replies, and of queued commands and watched keys, in bytes.
    pub input: AtomicUsize,
    pub output: AtomicUsize,
    pub queued: AtomicUsize,
    /// Memory in bytes of a waiting command and its keys, or 0 if the client does not wait.
    pub blocked: AtomicUsize,
    /// The client's share of the memory of all clients.
    held: AtomicUsize,
    /// Milliseconds from `since` to the last request.
    last_seen: AtomicU64,
    /// The number of the last command.
    pub last_command: AtomicUsize,
    /// Whether a command of the client waits before it begins: for the end of a pause or script, or
    /// for its keys.
    pub is_held_up: AtomicBool,
    /// Whether the client is exempt from being closed for the memory limit of clients.
    pub no_evict: AtomicBool,
    pub is_monitor: AtomicBool,
    /// The subscriptions of the client, and its waiting messages.
    pub inbox: Inbox,
    ended: AtomicBool,
    ending: Notify,
}

/// The rarely changing part of a client's line in `CLIENT LIST`.
#[derive(Debug, Default, Clone)]
pub struct ClientInfo {
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    pub user: String,
    pub resp3: bool,
    /// Number of queued commands since `MULTI`, or -1 outside of a transaction.
    pub queued: i64,
    pub watched: usize,
}

impl Client {
    pub fn info(&self) -> MutexGuard<'_, ClientInfo> {
        self.info.lock()
    }

    /// Requests the end of the connection. Its task checks this at each read, write and step of a
    /// scan.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.ending.notify_waiters();
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Resolves when [`end`](Self::end) was called.
    pub async fn ended(&self) {
        // Registered before the check, so that an end between the check and the wait is not missed.
        let ending = self.ending.notified();
        if !self.is_ended() {
            ending.await;
        }
    }

    /// Records that the client is active.
    pub fn see(&self, now: Instant) {
        let since = now.saturating_duration_since(self.since).as_millis() as u64;
        self.last_seen.store(since, Ordering::Relaxed);
    }

    pub fn idle(&self) -> Duration {
        let last = Duration::from_millis(self.last_seen.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(last)
    }

    /// Returns the bytes that count against `maxmemory-clients`, without waiting messages, which
    /// several clients may share.
    pub fn memory(&self) -> usize {
        let parts = [&self.input, &self.output, &self.queued, &self.blocked];
        let held = parts.iter().map(|part| part.load(Ordering::Relaxed)).sum::<usize>();
        BASE + held + self.inbox.held()
    }
}

/// The connections of the server.
#[derive(Debug, Default)]
pub struct Clients {
    map: Lock<BTreeMap<u64, Arc<Client>>>,
    /// Memory of all clients, without messages.
    memory: AtomicUsize,
    /// Total size in bytes of published messages that wait for a subscriber, each counted once.
    pub messages: Arc<AtomicUsize>,
    /// Number of clients that were closed for the memory limit.
    pub evicted: AtomicU64,
    /// Number of clients that were closed for a request or reply above its limit.
    pub closed_for_input: AtomicU64,
    pub closed_for_output: AtomicU64,
    last_id: AtomicU64,
    pub refused: AtomicU64,
}

impl Clients {
    /// Adds a connection, unless there are `limit` connections already.
    pub fn enter(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
        descriptor: i32,
        limit: usize,
    ) -> Option<Arc<Client>> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut clients = self.map.lock();
        if clients.len() >= limit {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let client = Arc::new(Client {
            id,
            peer,
            local,
            descriptor,
            since: Instant::now(),
            info: Lock::new(ClientInfo {
                queued: -1,
                // Valid until the session begins, so that a change of users does not attribute the
                // client to a former user.
                user: "default".to_owned(),
                ..ClientInfo::default()
            }),
            unread: AtomicUsize::new(0),
            input: AtomicUsize::new(0),
            output: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            blocked: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            last_seen: AtomicU64::new(0),
            is_held_up: AtomicBool::new(false),
            last_command: AtomicUsize::new(usize::MAX),
            no_evict: AtomicBool::new(false),
            is_monitor: AtomicBool::new(false),
            inbox: Inbox::default(),
            ended: AtomicBool::new(false),
            ending: Notify::new(),
        });
        clients.insert(id, client.clone());
        Some(client)
    }

    pub fn leave(&self, client: &Client) {
        self.map.lock().remove(&client.id);
        let held = client.held.swap(0, Ordering::Relaxed);
        self.memory.fetch_sub(held, Ordering::Relaxed);
    }

    pub fn len(&self) -> usize {
        self.map.lock().len()
    }

    /// Returns the number of connections so far, including refused ones.
    pub fn accepted(&self) -> u64 {
        self.last_id.load(Ordering::Relaxed)
    }

    pub fn all(&self) -> Vec<Arc<Client>> {
        self.map.lock().values().cloned().collect()
    }

    /// Returns the memory of all clients, in bytes.
    pub fn memory(&self) -> usize {
        self.memory.load(Ordering::Relaxed) + self.messages.load(Ordering::Relaxed)
    }

    /// Updates the bytes that a client holds in the sum of all clients. If there is a limit (not
    /// 0), closes the clients that hold most until the others are below it.
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
        self.check(limit);
    }

    /// If there is a limit (not 0), closes the clients that hold most until the others are below
    /// it.
    #[inline]
    pub fn check(&self, limit: usize) {
        if limit > 0 && self.memory() > limit {
            self.evict(limit);
        }
    }

    fn evict(&self, limit: usize) {
        let map = self.map.lock();
        // Clients that were told to end hold their memory a little longer, and a client that has
        // left stays in the sum for a moment. Neither is a reason to close other clients.
        let held =
            |client: &Arc<Client>| client.held.load(Ordering::Relaxed) + client.inbox.waiting();
        let mut clients: Vec<_> = map.values().filter(|client| !client.is_ended()).collect();
        let own = clients.iter().map(|client| client.held.load(Ordering::Relaxed));
        let mut memory = own.sum::<usize>() + self.messages.load(Ordering::Relaxed);
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
            largest.inbox.clear();
            memory -= memory.min(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(clients: &Clients, bytes: usize) -> Arc<Client> {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let client = clients.enter(address, address, -1, 10).unwrap();
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
        // The closed client no longer counts, although it has not left yet.
        clients.account(&enter(&clients, 1 << 20), 5 << 20);
        assert!(!all[2].is_ended());
        all[0].no_evict.store(true, Ordering::Relaxed);
        clients.account(&enter(&clients, 100 << 10), 1);
        assert_eq!((all[0].is_ended(), all[2].is_ended()), (false, true));
        // A client that has left stays in the sum for a moment.
        clients.memory.fetch_add(10 << 20, Ordering::Relaxed);
        let last = enter(&clients, 1 << 20);
        clients.account(&last, 5 << 20);
        assert!(!last.is_ended());
        clients.memory.fetch_sub(10 << 20, Ordering::Relaxed);
        clients.all().iter().for_each(|client| clients.leave(client));
        assert_eq!(clients.memory(), 0);
    }
}
