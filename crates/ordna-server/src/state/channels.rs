//! Channels: who is subscribed to what, and the messages that wait for their subscribers.
//!
//! # Contract
//! A message goes to every client that is subscribed when it is published, and to none that subscribes
//! later. All subscribers receive all messages in one order, that of their publication. A message is
//! encoded once, and its bytes are shared by its subscribers. Publishing never waits for a subscriber:
//! one whose messages exceed its limit is closed.
//!
//! # Locks
//! The lock of the table is held while a message is handed out, which gives the order. The lock of an
//! inbox is taken below it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ordna::sync::Lock;
use tokio::sync::Notify;

use crate::keyspace::glob::{Pattern, literal_prefix};
use crate::state::clients::{Client, Clients};
use crate::state::settings::BufferLimit;
use crate::wire::reply::Replies;

/// Channels, patterns or shard channels to which one client may be subscribed. A gateway that subscribes
/// to one channel for each of its users stays below; the memory of the names has a limit of its own.
pub const MOST_CHANNELS: usize = 1 << 20;
/// Patterns to which one client may be subscribed: a published message is compared with all of them.
pub const MOST_PATTERNS: usize = 1024;
/// Memory of a subscription beside the bytes of its name: entries of two tables.
const SUBSCRIPTION_BYTES: usize = 200;

/// What a subscription names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Channel,
    Pattern,
    /// A channel of `SPUBLISH`.
    Shard,
}

impl Kind {
    /// Names of subscribing, of unsubscribing, and of a message.
    pub const fn words(self) -> [&'static str; 3] {
        match self {
            Self::Channel => ["subscribe", "unsubscribe", "message"],
            Self::Pattern => ["psubscribe", "punsubscribe", "pmessage"],
            Self::Shard => ["ssubscribe", "sunsubscribe", "smessage"],
        }
    }

    const fn most(self) -> usize {
        if matches!(self, Self::Pattern) { MOST_PATTERNS } else { MOST_CHANNELS }
    }
}

/// A published message, encoded as an array of RESP2.
#[derive(Debug)]
pub struct Message {
    pub bytes: Vec<u8>,
    /// Bytes of all messages that wait.
    waiting: Arc<AtomicUsize>,
}

impl Message {
    fn new(parts: &[&[u8]], waiting: &Arc<AtomicUsize>) -> Arc<Self> {
        let mut out = Replies::default();
        out.array(parts.len());
        parts.iter().for_each(|part| out.bulk(part));
        waiting.fetch_add(out.bytes.len(), Ordering::Relaxed);
        Arc::new(Self { bytes: out.bytes, waiting: Arc::clone(waiting) })
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Arc<Message>>,
    /// Since when the messages have exceeded the soft limit.
    exceeds_since: Option<Instant>,
}

/// The subscriptions of a client, and the messages that wait for it.
#[derive(Debug, Default)]
pub struct Inbox {
    queue: Lock<Queue>,
    /// Bytes of the messages in `queue`.
    waiting: AtomicUsize,
    arrived: Notify,
    names: Lock<[BTreeSet<Arc<[u8]>>; 3]>,
    counts: [AtomicUsize; 3],
    /// Memory of the subscriptions, in bytes.
    held: AtomicUsize,
}

impl Inbox {
    /// Number of subscriptions of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }

    /// Whether the client has any subscription.
    pub fn is_subscribed(&self) -> bool {
        self.counts.iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Memory of the subscriptions, in bytes.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes of the messages that wait. Other clients may share them.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Number of messages that wait.
    pub fn len(&self) -> usize {
        self.queue.lock().messages.len()
    }

    /// The names of all subscriptions of a kind.
    pub fn names(&self, kind: Kind) -> Vec<Arc<[u8]>> {
        self.names.lock()[kind as usize].iter().cloned().collect()
    }

    /// Takes the first message.
    pub fn pop(&self) -> Option<Arc<Message>> {
        if self.waiting() == 0 {
            return None;
        }
        /// Messages for which an empty queue keeps its memory.
        const KEPT: usize = 1024;
        let mut queue = self.queue.lock();
        let message = queue.messages.pop_front()?;
        self.waiting.store(self.waiting() - message.bytes.len(), Ordering::Relaxed);
        if queue.messages.is_empty() {
            queue.exceeds_since = None;
            queue.messages.shrink_to(KEPT);
        }
        Some(message)
    }

    /// Resolves once messages wait.
    pub async fn arrived(&self) {
        while self.waiting() == 0 {
            self.arrived.notified().await;
        }
    }

    /// Adds a message. Returns `false` if the messages and replies of the client exceed its limit.
    fn push(&self, message: &Arc<Message>, unread: usize, limit: BufferLimit) -> bool {
        let mut queue = self.queue.lock();
        queue.messages.push_back(Arc::clone(message));
        let waiting = self.waiting() + message.bytes.len();
        self.waiting.store(waiting, Ordering::Relaxed);
        if queue.messages.len() == 1 {
            self.arrived.notify_one();
        }
        let all = waiting + unread;
        if limit.soft > 0 && all > limit.soft {
            let since = *queue.exceeds_since.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_secs(limit.soft_seconds) {
                return false;
            }
        } else {
            queue.exceeds_since = None;
        }
        limit.hard == 0 || all <= limit.hard
    }

    /// Drops all messages, of a client that is closed.
    pub fn clear(&self) {
        let mut queue = self.queue.lock();
        let messages = std::mem::take(&mut queue.messages);
        self.waiting.store(0, Ordering::Relaxed);
        drop(queue);
        drop(messages);
    }
}

/// The subscribers of a channel or pattern, by the numbers of the clients.
type Subscribers = BTreeMap<u64, Arc<Client>>;

#[derive(Debug)]
struct PatternEntry {
    pattern: Pattern,
    subscribers: Subscribers,
}

/// Patterns with one prefix, by their text.
type Patterns = BTreeMap<Arc<[u8]>, PatternEntry>;

#[derive(Debug, Default)]
struct Table {
    channels: HashMap<Arc<[u8]>, Subscribers>,
    shards: HashMap<Arc<[u8]>, Subscribers>,
    /// Patterns by the bytes before their first special one: only those with a prefix of the channel are
    /// compared with it.
    patterns: HashMap<Box<[u8]>, Patterns>,
    /// Number of prefixes of each length.
    lengths: BTreeMap<usize, usize>,
}

impl Table {
    fn exact(&mut self, kind: Kind) -> &mut HashMap<Arc<[u8]>, Subscribers> {
        if kind == Kind::Shard { &mut self.shards } else { &mut self.channels }
    }

    /// Adds a subscriber. Returns the name as the table holds it, and whether the name is new.
    fn add(&mut self, kind: Kind, name: &[u8], client: &Arc<Client>) -> (Arc<[u8]>, bool) {
        let client = (client.id, Arc::clone(client));
        if kind != Kind::Pattern {
            let channels = self.exact(kind);
            let name = match channels.get_key_value(name) {
                Some((name, _)) => Arc::clone(name),
                None => Arc::from(name),
            };
            let subscribers = channels.entry(Arc::clone(&name)).or_default();
            subscribers.insert(client.0, client.1);
            return (name, subscribers.len() == 1);
        }
        let prefix = literal_prefix(name);
        if !self.patterns.contains_key(prefix) {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        let patterns = self.patterns.entry(prefix.into()).or_default();
        let entry = patterns.entry(Arc::from(name));
        let name = Arc::clone(entry.key());
        let entry = entry.or_insert_with(|| PatternEntry {
            pattern: Pattern::new(&name),
            subscribers: Subscribers::new(),
        });
        entry.subscribers.insert(client.0, client.1);
        (name, entry.subscribers.len() == 1)
    }

    /// Removes a subscriber. Returns whether it was the last one.
    fn remove(&mut self, kind: Kind, name: &[u8], client: u64) -> bool {
        if kind != Kind::Pattern {
            let channels = self.exact(kind);
            let Some(subscribers) = channels.get_mut(name) else { return false };
            subscribers.remove(&client);
            let is_last = subscribers.is_empty();
            if is_last {
                channels.remove(name);
            }
            return is_last;
        }
        let prefix = literal_prefix(name);
        let Some(patterns) = self.patterns.get_mut(prefix) else { return false };
        let Some(entry) = patterns.get_mut(name) else { return false };
        entry.subscribers.remove(&client);
        if !entry.subscribers.is_empty() {
            return false;
        }
        patterns.remove(name);
        if patterns.is_empty() {
            self.patterns.remove(prefix);
            if let Some(count) = self.lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&prefix.len());
                }
            }
        }
        true
    }

    /// The patterns that match a channel.
    fn matching(&self, channel: &[u8]) -> impl Iterator<Item = (&Arc<[u8]>, &Subscribers)> {
        let lengths = self.lengths.range(..=channel.len());
        let of_prefix = lengths.filter_map(|(length, _)| self.patterns.get(&channel[..*length]));
        of_prefix
            .flatten()
            .filter(|(_, entry)| entry.pattern.matches(channel))
            .map(|(name, entry)| (name, &entry.subscribers))
    }
}

/// Why a client cannot subscribe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ERR a client may be subscribed to {most} {what}")]
pub struct TooMany {
    most: usize,
    what: &'static str,
}

/// The channels of the server.
#[derive(Debug, Default)]
pub struct Channels {
    table: Lock<Table>,
    /// Number of channels, patterns and shard channels with a subscriber.
    counts: [AtomicUsize; 3],
}

impl Channels {
    /// Number of channels, patterns or shard channels that have a subscriber.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }

    /// Subscribes a client. O(log n).
    ///
    /// # Errors
    /// The client has as many subscriptions as it may have.
    pub fn subscribe(&self, kind: Kind, name: &[u8], client: &Arc<Client>) -> Result<(), TooMany> {
        let mut names = client.inbox.names.lock();
        let names = &mut names[kind as usize];
        if names.contains(name) {
            return Ok(());
        }
        if names.len() >= kind.most() {
            let what = if kind == Kind::Pattern { "patterns" } else { "channels" };
            return Err(TooMany { most: kind.most(), what });
        }
        let mut table = self.table.lock();
        let (name, is_new) = table.add(kind, name, client);
        self.counts[kind as usize].fetch_add(usize::from(is_new), Ordering::Relaxed);
        drop(table);
        client.inbox.held.fetch_add(name.len() + SUBSCRIPTION_BYTES, Ordering::Relaxed);
        names.insert(name);
        client.inbox.counts[kind as usize].store(names.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Ends a subscription, if there is one. O(log n).
    pub fn unsubscribe(&self, kind: Kind, name: &[u8], client: &Client) {
        let mut names = client.inbox.names.lock();
        let names = &mut names[kind as usize];
        if names.remove(name) {
            let is_last = self.table.lock().remove(kind, name, client.id);
            self.counts[kind as usize].fetch_sub(usize::from(is_last), Ordering::Relaxed);
            client.inbox.held.fetch_sub(name.len() + SUBSCRIPTION_BYTES, Ordering::Relaxed);
            client.inbox.counts[kind as usize].store(names.len(), Ordering::Relaxed);
        }
    }

    /// Ends all subscriptions of a client, and drops the messages that wait for it.
    pub fn leave(&self, client: &Client) {
        if client.inbox.is_subscribed() {
            for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
                for name in client.inbox.names(kind) {
                    self.unsubscribe(kind, &name, client);
                }
            }
        }
        client.inbox.clear();
    }

    /// Publishes a message. Returns the number of its receivers. O(subscribers + patterns that may match).
    /// The moment at which it is published lies within the call.
    pub fn publish(
        &self,
        is_shard: bool,
        channel: &[u8],
        payload: &[u8],
        clients: &Clients,
        limit: BufferLimit,
    ) -> usize {
        let kind = if is_shard { Kind::Shard } else { Kind::Channel };
        if self.count(kind) == 0 && (is_shard || self.count(Kind::Pattern) == 0) {
            return 0;
        }
        let mut receivers = 0;
        let mut hand_out = |parts: &[&[u8]], subscribers: &Subscribers| {
            let message = Message::new(parts, &clients.messages);
            for client in subscribers.values().filter(|client| !client.is_ended()) {
                receivers += 1;
                let unread = client.output.load(Ordering::Relaxed);
                if !client.inbox.push(&message, unread, limit) {
                    close(client, clients);
                }
            }
        };
        let mut table = self.table.lock();
        if let Some(subscribers) = table.exact(kind).get(channel) {
            hand_out(&[kind.words()[2].as_bytes(), channel, payload], subscribers);
        }
        if !is_shard {
            let word = Kind::Pattern.words()[2].as_bytes();
            for (pattern, subscribers) in table.matching(channel) {
                hand_out(&[word, pattern, channel, payload], subscribers);
            }
        }
        receivers
    }

    /// Number of subscribers of channels or shard channels, without those of patterns.
    pub fn subscribers<'a>(
        &self,
        is_shard: bool,
        channels: impl Iterator<Item = &'a [u8]>,
    ) -> Vec<(&'a [u8], usize)> {
        let mut table = self.table.lock();
        let all = table.exact(if is_shard { Kind::Shard } else { Kind::Channel });
        channels.map(|name| (name, all.get(name).map_or(0, BTreeMap::len))).collect()
    }

    /// The channels or shard channels that have a subscriber.
    pub fn names(&self, is_shard: bool) -> Vec<Arc<[u8]>> {
        let mut table = self.table.lock();
        let kind = if is_shard { Kind::Shard } else { Kind::Channel };
        table.exact(kind).keys().cloned().collect()
    }
}

/// Closes a client that does not read its messages.
#[cold]
fn close(client: &Client, clients: &Clients) {
    tracing::warn!(
        client = client.id, peer = %client.peer, bytes = client.inbox.waiting(),
        "closed: the messages for the client exceed client-output-buffer-limit of pubsub"
    );
    clients.closed_for_output.fetch_add(1, Ordering::Relaxed);
    client.end();
    client.inbox.clear();
}
