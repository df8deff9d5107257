//! Channels: their subscribers, and the messages that wait for them.
//!
//! # Contract
//! A message is sent to every client that is subscribed when it is published, and to no later
//! subscriber. All subscribers receive all messages in one order, that of their publication.
//! Publishing never waits for a subscriber: a subscriber whose messages exceed its limit is closed.
//!
//! # Locks
//! The lock of the table is held while a message is distributed, which determines the order. The
//! lock of an inbox's messages is taken while the table is locked; the lock of its subscriptions is
//! taken before the table.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ordna::sync::Lock;

use crate::keyspace::glob::{Pattern, literal_prefix};
use crate::state::clients::{Client, Clients};
use crate::state::inbox::{Kind, Message, TooMany};
use crate::state::settings::BufferLimit;

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
    /// Patterns by the bytes before their first special byte. A channel is compared only with the
    /// patterns whose prefix it has.
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

    /// Returns the patterns that match a channel.
    fn matching(&self, channel: &[u8]) -> impl Iterator<Item = (&Arc<[u8]>, &Subscribers)> {
        let lengths = self.lengths.range(..=channel.len());
        let of_prefix = lengths.filter_map(|(length, _)| self.patterns.get(&channel[..*length]));
        of_prefix
            .flatten()
            .filter(|(_, entry)| entry.pattern.matches(channel))
            .map(|(name, entry)| (name, &entry.subscribers))
    }
}

/// The channels of the server.
#[derive(Debug, Default)]
pub struct Channels {
    table: Lock<Table>,
    /// Number of channels, patterns and shard channels with a subscriber.
    counts: [AtomicUsize; 3],
}

impl Channels {
    /// Returns the number of channels, patterns or shard channels that have a subscriber.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }

    /// Subscribes a client. O(log n).
    ///
    /// # Errors
    /// The client already has the maximum number of subscriptions.
    pub fn subscribe(&self, kind: Kind, name: &[u8], client: &Arc<Client>) -> Result<(), TooMany> {
        client.inbox.add(kind, name, || {
            let (name, is_new) = self.table.lock().add(kind, name, client);
            self.counts[kind as usize].fetch_add(usize::from(is_new), Ordering::Relaxed);
            name
        })
    }

    /// Ends a subscription, if there is one. O(log n).
    pub fn unsubscribe(&self, kind: Kind, name: &[u8], client: &Client) {
        client.inbox.remove(kind, name, || {
            let is_last = self.table.lock().remove(kind, name, client.id);
            self.counts[kind as usize].fetch_sub(usize::from(is_last), Ordering::Relaxed);
        });
    }

    /// Ends all subscriptions of a client and drops its waiting messages.
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

    /// Publishes a message at some moment during the call. Returns the number of its receivers.
    /// O(subscribers + patterns that may match).
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

    /// Closes the clients whose messages exceed the limit, even if nothing is published.
    /// O(clients).
    pub fn close_slow(&self, clients: &Clients, limit: BufferLimit) {
        if clients.messages.load(Ordering::Relaxed) == 0 {
            return;
        }
        let all = clients.all();
        // As in `publish`, so that no client is closed and counted twice.
        let _table = self.table.lock();
        for client in all.iter().filter(|client| client.inbox.waiting() > 0 && !client.is_ended()) {
            if client.inbox.exceeds(client.output.load(Ordering::Relaxed), limit) {
                close(client, clients);
            }
        }
    }

    /// Returns the number of subscribers of a channel or shard channel, without those of patterns.
    pub fn subscribers(&self, is_shard: bool, name: &[u8]) -> usize {
        let mut table = self.table.lock();
        let all = table.exact(if is_shard { Kind::Shard } else { Kind::Channel });
        all.get(name).map_or(0, BTreeMap::len)
    }

    /// Returns the channels or shard channels that have a subscriber.
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
