//! The table of clients that wait for elements of lists and sorted sets.
//!
//! # Contract
//! A client enters the table while it excludes all other commands and after it has found no
//! element. So a write of a key either precedes its search or finds it in the table. The command
//! that has written a key for which clients wait serves them before another command runs. The
//! thread that removes a client from the table answers it, so each wait has one answer. A waiting
//! client takes only memory: no thread, and no timer unless it has a time limit.
//!
//! # Order
//! The clients that wait for a key are served in the order in which they began to wait, and keys in the order in
//! which they were written.
//!
//! # Cost
//! While no client waits, a write costs one additional relaxed load. Otherwise a counter for the
//! checksum of its key shows whether the table must be locked. Entering, leaving and serving cost
//! O(log n) for each key.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use ordna::Direction;
use ordna::checksum::crc32c;
use ordna::sync::{Lock, notice};
use tokio::sync::oneshot;

use crate::keyspace::list::End;
use crate::keyspace::value_kind::ValueKind;
use crate::state::clients::Client;
use crate::wire::reply::Replies;
use crate::wire::request::OwnedRequest;

/// Memory of an awaited key in addition to its bytes: entries in the tables of keys and of clients.
pub const KEY_BYTES: usize = 400;
/// Number of counters of awaited keys, selected by checksum. With a thousand awaited keys, most
/// writes of other keys do not lock the table.
const COUNTERS: usize = 1 << 12;

/// The elements that a client takes from the first of its keys that has some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The value at an end of a list; with a count, up to this number, in the form of `LMPOP`.
    Values { end: End, count: Option<usize> },
    /// The value at an end of a list, which is moved to an end of another list.
    Move { from: End, to: End, destination: Vec<u8> },
    /// The first member of a sorted set in a direction; with a count, up to this number, in the form of `ZMPOP`.
    Members { direction: Direction, count: Option<usize> },
}

impl Wanted {
    /// Returns the type of values that have such elements.
    pub const fn kind(&self) -> ValueKind {
        match self {
            Self::Values { .. } | Self::Move { .. } => ValueKind::List,
            Self::Members { .. } => ValueKind::ZSet,
        }
    }
}

/// The answer to a client that has waited.
#[derive(Debug)]
pub struct Answer {
    /// The encoded reply.
    pub reply: Vec<u8>,
    /// Whether the keyspace was changed for the client.
    pub wrote: bool,
}

impl Answer {
    /// Returns the answer of a wait that ended without an element.
    pub fn nothing(resp3: bool) -> Self {
        let mut out = Replies { resp3, ..Replies::default() };
        out.null_array();
        Self { reply: out.bytes, wrote: false }
    }

    pub fn error(error: impl std::fmt::Display) -> Self {
        let mut out = Replies::default();
        out.error(error);
        Self { reply: out.bytes, wrote: false }
    }
}

/// A client in the table.
#[derive(Debug)]
pub struct Waiter {
    pub client: Arc<Client>,
    /// The waiting command.
    pub request: OwnedRequest,
    pub wanted: Wanted,
    pub resp3: bool,
    keys: Vec<Arc<[u8]>>,
    has_deadline: bool,
    /// The position among all clients that ever waited.
    number: u64,
    answer: oneshot::Sender<Answer>,
}

impl Waiter {
    /// Sends the client its answer. The client may have disconnected.
    pub fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer);
    }
}

/// The clients that wait for one key, by number, for lists and for sorted sets, with their ids.
#[derive(Debug, Default)]
struct Queue {
    lists: BTreeMap<u64, u64>,
    sorted_sets: BTreeMap<u64, u64>,
    /// Whether the key is in [`Table::ready`].
    is_ready: bool,
}

impl Queue {
    fn of(&mut self, kind: ValueKind) -> &mut BTreeMap<u64, u64> {
        match kind {
            ValueKind::ZSet => &mut self.sorted_sets,
            _ => &mut self.lists,
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    /// The waiting clients by id.
    waiters: HashMap<u64, Waiter>,
    queues: HashMap<Arc<[u8]>, Queue>,
    /// Awaited keys that have been written, in the order of the writes.
    ready: VecDeque<Arc<[u8]>>,
    last_number: u64,
    with_deadline: usize,
}

/// The clients that wait.
#[derive(Debug)]
pub struct BlockedClients {
    table: Lock<Table>,
    count: AtomicUsize,
    has_ready: AtomicBool,
    /// For each counter, the number of queues whose keys have its checksum.
    counters: Box<[AtomicU32]>,
}

impl Default for BlockedClients {
    fn default() -> Self {
        Self {
            table: Lock::default(),
            count: AtomicUsize::new(0),
            has_ready: AtomicBool::new(false),
            counters: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

impl BlockedClients {
    /// Returns the number of clients that wait.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns whether any client waits. One relaxed load.
    #[inline]
    pub fn are_any(&self) -> bool {
        self.len() > 0
    }

    /// Returns the number of clients that wait and have a time limit.
    pub fn with_deadline(&self) -> usize {
        self.table.lock().with_deadline
    }

    /// Returns the number of keys for which clients wait.
    pub fn keys(&self) -> usize {
        self.table.lock().queues.len()
    }

    fn counter(&self, key: &[u8]) -> &AtomicU32 {
        &self.counters[crc32c(key) as usize % COUNTERS]
    }

    /// Returns whether clients wait for a key. Exact for a command that holds the keyspace.
    #[inline]
    pub fn awaits(&self, key: &[u8]) -> bool {
        self.are_any()
            && self.counter(key).load(Ordering::Relaxed) > 0
            && self.table.lock().queues.contains_key(key)
    }

    /// Records that a key was written and has a value of this type, if clients wait for it.
    pub fn signal(&self, key: &[u8], kind: ValueKind) {
        let mut table = self.table.lock();
        let Table { queues, ready, .. } = &mut *table;
        let shared = queues.get_key_value(key).map(|(shared, _)| Arc::clone(shared));
        if let Some(shared) = shared
            && let Some(queue) = queues.get_mut(key)
            && !queue.of(kind).is_empty()
            && !std::mem::replace(&mut queue.is_ready, true)
        {
            ready.push_back(shared);
            self.has_ready.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether awaited keys were written since they were last served. One relaxed load.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.has_ready.load(Ordering::Relaxed)
    }

    /// Removes and returns the awaited key that was written first.
    pub fn next_ready(&self) -> Option<Arc<[u8]>> {
        let mut table = self.table.lock();
        let key = table.ready.pop_front();
        match key.as_ref().map(|key| table.queues.get_mut(key)) {
            Some(Some(queue)) => queue.is_ready = false,
            Some(None) => {}
            None => self.has_ready.store(false, Ordering::Relaxed),
        }
        key
    }

    /// Adds a client, which waits for these keys. The caller excludes all other commands and has found no
    /// element.
    pub fn enter(
        self: &Arc<Self>,
        client: &Arc<Client>,
        request: OwnedRequest,
        keys: &[&[u8]],
        wanted: Wanted,
        deadline: Option<Instant>,
        resp3: bool,
    ) -> Waiting {
        let (answer, receiver) = oneshot::channel();
        let mut table = self.table.lock();
        table.last_number += 1;
        let number = table.last_number;
        let keys = keys.iter().map(|key| {
            let known = table.queues.get_key_value(*key).map(|(known, _)| Arc::clone(known));
            known.unwrap_or_else(|| Arc::from(*key))
        });
        let waiter = Waiter {
            client: Arc::clone(client),
            request,
            wanted,
            resp3,
            keys: keys.collect(),
            has_deadline: deadline.is_some(),
            number,
            answer,
        };
        self.insert(&mut table, waiter);
        let (clients, client) = (Arc::clone(self), client.id);
        Waiting { clients, client, deadline, resp3, answer: receiver }
    }

    fn insert(&self, table: &mut Table, waiter: Waiter) {
        let (id, kind) = (waiter.client.id, waiter.wanted.kind());
        for key in &waiter.keys {
            let queue = table.queues.entry(Arc::clone(key)).or_insert_with(|| {
                self.counter(key).fetch_add(1, Ordering::Relaxed);
                Queue::default()
            });
            queue.of(kind).insert(waiter.number, id);
        }
        let bytes = waiter.keys.iter().map(|key| key.len() + KEY_BYTES).sum::<usize>();
        waiter.client.blocked.store(bytes + waiter.request.size(), Ordering::Relaxed);
        table.with_deadline += usize::from(waiter.has_deadline);
        table.waiters.insert(id, waiter);
        self.count.store(table.waiters.len(), Ordering::Relaxed);
    }

    fn remove(&self, table: &mut Table, id: u64) -> Option<Waiter> {
        let waiter = table.waiters.remove(&id)?;
        let kind = waiter.wanted.kind();
        for key in &waiter.keys {
            // A key that the client named twice has already been removed.
            let Some(queue) = table.queues.get_mut(key) else { continue };
            queue.of(kind).remove(&waiter.number);
            if queue.lists.is_empty() && queue.sorted_sets.is_empty() {
                table.queues.remove(key);
                self.counter(key).fetch_sub(1, Ordering::Relaxed);
            }
        }
        waiter.client.blocked.store(0, Ordering::Relaxed);
        table.with_deadline -= usize::from(waiter.has_deadline);
        self.count.store(table.waiters.len(), Ordering::Relaxed);
        Some(waiter)
    }

    /// Removes and returns the client that has waited longest for a key with a value of this type
    /// and is not about to end its wait. The caller excludes all other commands.
    pub fn take_first(&self, key: &[u8], kind: ValueKind) -> Option<Waiter> {
        let mut table = self.table.lock();
        let Table { queues, waiters, .. } = &mut *table;
        let queue = queues.get_mut(key)?.of(kind);
        let is_there = |id: &&u64| {
            waiters.get(id).is_some_and(|waiter| {
                !notice!("blocked.first.passes_over_ended", waiter.client.is_ended())
            })
        };
        let first = queue.values().find(is_there).copied()?;
        self.remove(&mut table, first)
    }

    /// Adds a client again, at its former position, that was removed but not answered.
    pub fn put_back(&self, waiter: Waiter) {
        let mut table = self.table.lock();
        // A client that ends its wait first closes its side and then leaves.
        if !notice!("blocked.put_back.is_closed", waiter.answer.is_closed()) {
            self.insert(&mut table, waiter);
        }
    }

    /// Removes a client.
    pub fn leave(&self, client: u64) -> Option<Waiter> {
        let mut table = self.table.lock();
        self.remove(&mut table, client)
    }

    /// Removes the clients for which `refusal` returns an error, and answers them with that error.
    pub fn refuse<E: std::fmt::Display>(&self, refusal: impl Fn(&Waiter) -> Option<E>) {
        let mut table = self.table.lock();
        let refused: Vec<(u64, E)> =
            table.waiters.iter().filter_map(|(id, waiter)| Some((*id, refusal(waiter)?))).collect();
        for (id, error) in refused {
            if let Some(waiter) = self.remove(&mut table, id) {
                waiter.answer(Answer::error(error));
            }
        }
    }
}

/// The wait of a client. It ends when this is dropped.
#[derive(Debug)]
pub struct Waiting {
    clients: Arc<BlockedClients>,
    client: u64,
    /// The time when the client gives up.
    pub deadline: Option<Instant>,
    pub resp3: bool,
    /// Receives the answer.
    pub answer: oneshot::Receiver<Answer>,
}

impl Waiting {
    /// Removes the client from the table. Returns `false` if another thread has removed it, which
    /// will answer it or put it back.
    pub fn give_up(&self) -> bool {
        self.clients.leave(self.client).is_some()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // This order is important, see `put_back`.
        self.answer.close();
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::state::clients::Clients;

    fn client(clients: &Clients) -> Arc<Client> {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        clients.enter(address, address, -1, 100).unwrap()
    }

    fn enter(
        blocked: &Arc<BlockedClients>,
        client: &Arc<Client>,
        keys: &[&[u8]],
        kind: ValueKind,
    ) -> Waiting {
        let wanted = match kind {
            ValueKind::ZSet => Wanted::Members { direction: Direction::Ascending, count: None },
            _ => Wanted::Values { end: End::Front, count: None },
        };
        blocked.enter(client, OwnedRequest::of(keys), keys, wanted, None, false)
    }

    fn is_empty(blocked: &BlockedClients) -> bool {
        let table = blocked.table.lock();
        table.waiters.is_empty()
            && table.queues.is_empty()
            && table.ready.is_empty()
            && table.with_deadline == 0
            && blocked.count.load(Ordering::Relaxed) == 0
            && blocked.counters.iter().all(|counter| counter.load(Ordering::Relaxed) == 0)
    }

    #[test]
    fn the_first_of_a_type_is_served_first_and_all_leave() {
        let (clients, blocked) = (Clients::default(), Arc::new(BlockedClients::default()));
        let all: Vec<_> = (0..4).map(|_| client(&clients)).collect();
        let kinds = [ValueKind::ZSet, ValueKind::List, ValueKind::List, ValueKind::List];
        // A key that is named twice counts once.
        let waits: Vec<_> = all
            .iter()
            .zip(kinds)
            .map(|(client, kind)| enter(&blocked, client, &[b"a", b"b", b"a"], kind))
            .collect();
        assert!(blocked.awaits(b"a") && blocked.awaits(b"b") && !blocked.awaits(b"c"));
        assert_eq!((blocked.len(), blocked.keys()), (4, 2));
        assert!(all[1].blocked.load(Ordering::Relaxed) > 3 * KEY_BYTES);
        // A client that is about to end its wait is skipped, and still waits.
        all[1].end();
        let first = blocked.take_first(b"a", ValueKind::List).unwrap();
        assert_eq!(first.client.id, all[2].id);
        assert_eq!(all[2].blocked.load(Ordering::Relaxed), 0);
        // A client that was put back has its former position.
        blocked.put_back(first);
        assert_eq!(blocked.take_first(b"b", ValueKind::List).unwrap().client.id, all[2].id);
        assert_eq!(blocked.take_first(b"b", ValueKind::List).unwrap().client.id, all[3].id);
        assert!(blocked.take_first(b"b", ValueKind::List).is_none());
        assert_eq!(blocked.take_first(b"b", ValueKind::ZSet).unwrap().client.id, all[0].id);
        assert_eq!(blocked.len(), 1);
        drop(waits);
        assert!(is_empty(&blocked));
    }

    #[test]
    fn a_client_that_has_left_is_not_put_back() {
        let (clients, blocked) = (Clients::default(), Arc::new(BlockedClients::default()));
        let client = client(&clients);
        let waiting = enter(&blocked, &client, &[b"a"], ValueKind::List);
        let waiter = blocked.take_first(b"a", ValueKind::List).unwrap();
        assert!(!waiting.give_up());
        drop(waiting);
        blocked.put_back(waiter);
        assert!(is_empty(&blocked));
    }

    #[test]
    fn keys_are_ready_in_the_order_of_their_writes_and_once() {
        let (clients, blocked) = (Clients::default(), Arc::new(BlockedClients::default()));
        let client = client(&clients);
        let waiting = enter(&blocked, &client, &[b"a", b"b"], ValueKind::List);
        blocked.signal(b"a", ValueKind::ZSet);
        assert!(!blocked.has_ready());
        for key in [&b"b"[..], b"x", b"a", b"b"] {
            blocked.signal(key, ValueKind::List);
        }
        assert!(blocked.has_ready());
        let ready: Vec<_> = std::iter::from_fn(|| blocked.next_ready()).collect();
        assert_eq!(ready, [Arc::from(&b"b"[..]), Arc::from(&b"a"[..])]);
        assert!(!blocked.has_ready());
        blocked.signal(b"a", ValueKind::List);
        drop(waiting);
        // No client waits for the key any more.
        assert_eq!(blocked.next_ready().as_deref(), Some(&b"a"[..]));
        assert_eq!(blocked.next_ready(), None);
        assert!(is_empty(&blocked));
    }

    #[test]
    fn refused_clients_are_answered_with_the_error() {
        let (clients, blocked) = (Clients::default(), Arc::new(BlockedClients::default()));
        let (one, other) = (client(&clients), client(&clients));
        let mut waits = [&one, &other].map(|it| enter(&blocked, it, &[b"a"], ValueKind::List));
        blocked.refuse(|waiter| (waiter.client.id == one.id).then_some("ERR no"));
        assert_eq!(waits[0].answer.try_recv().unwrap().reply, b"-ERR no\r\n");
        assert!(waits[1].answer.try_recv().is_err());
        assert_eq!(blocked.len(), 1);
        drop(waits);
        assert!(is_empty(&blocked));
    }
}
