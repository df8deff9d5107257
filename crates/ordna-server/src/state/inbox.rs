//! The subscriptions of a client, and the messages that wait for it.
//!
//! # Contract
//! A message is encoded once, and its subscribers share the bytes. Adding a message costs O(1),
//! takes no memory except a pointer, and never waits for the client.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ordna::sync::Lock;
use tokio::sync::Notify;

use crate::state::settings::BufferLimit;
use crate::wire::reply::Replies;

/// Maximum number of channels, patterns or shard channels of one client. A gateway with one channel
/// for each of its users stays below it. The memory of the names has its own limit.
pub const MOST_CHANNELS: usize = 1 << 20;
/// Maximum number of patterns of one client, because a published message is compared with all of
/// them.
pub const MOST_PATTERNS: usize = 1024;
/// Maximum total size in bytes of the patterns of one client. A published message is compared with
/// each of them, and a compiled pattern takes up to fifty times as much memory.
pub const MOST_PATTERN_BYTES: usize = 64 << 10;
/// Memory of a compiled pattern for each of its bytes.
const COMPILED: usize = 50;
/// Maximum length in bytes of the name of a channel: that of a key, plus what precedes a key in the
/// channels of events. A name is compared with the patterns of all clients.
pub const LONGEST_CHANNEL: usize = ordna::key::MAX_LEN + 64;
/// Memory of a subscription in addition to the bytes of its name: entries in two tables.
const SUBSCRIPTION_BYTES: usize = 200;

/// The kind of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Channel,
    Pattern,
    /// A channel of `SPUBLISH`.
    Shard,
}

impl Kind {
    /// Returns the words for subscribing, for unsubscribing, and for a message.
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
    /// Total size in bytes of all waiting messages.
    waiting: Arc<AtomicUsize>,
}

impl Message {
    pub fn new(parts: &[&[u8]], waiting: &Arc<AtomicUsize>) -> Arc<Self> {
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
    /// The time since when the messages have exceeded the soft limit.
    exceeds_since: Option<Instant>,
}

impl Queue {
    /// Returns whether `bytes` of waiting messages exceed the hard limit, or have exceeded the soft
    /// limit for too long.
    fn exceeds(&mut self, bytes: usize, limit: BufferLimit) -> bool {
        if limit.soft == 0 || bytes <= limit.soft {
            self.exceeds_since = None;
        } else {
            let since = *self.exceeds_since.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_secs(limit.soft_seconds) {
                return true;
            }
        }
        limit.hard > 0 && bytes > limit.hard
    }
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
    /// Bytes of the patterns; changed under the lock of `names`.
    pattern_bytes: AtomicUsize,
}

/// Returns the memory of a subscription, in bytes.
fn memory_of(kind: Kind, name: &[u8]) -> usize {
    let copies = if kind == Kind::Pattern { 1 + COMPILED } else { 1 };
    name.len() * copies + SUBSCRIPTION_BYTES
}

impl Inbox {
    /// Returns the number of subscriptions of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns whether the client has any subscription.
    pub fn is_subscribed(&self) -> bool {
        self.counts.iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Returns the memory of the subscriptions, in bytes.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the messages that wait. Other clients may share them.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the number of messages that wait.
    pub fn len(&self) -> usize {
        self.queue.lock().messages.len()
    }

    /// Returns the names of all subscriptions of a kind.
    pub fn names(&self, kind: Kind) -> Vec<Arc<[u8]>> {
        self.names.lock()[kind as usize].iter().cloned().collect()
    }

    /// Takes the first message.
    pub fn pop(&self) -> Option<Arc<Message>> {
        if self.waiting() == 0 {
            return None;
        }
        /// Number of messages for which an empty queue keeps its memory.
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

    /// Adds a subscription unless there is one with this name. `enter` returns the shared name.
    ///
    /// # Errors
    /// The client already has the maximum number of subscriptions.
    pub fn add(
        &self,
        kind: Kind,
        name: &[u8],
        enter: impl FnOnce() -> Arc<[u8]>,
    ) -> Result<(), TooMany> {
        let mut names = self.names.lock();
        let names = &mut names[kind as usize];
        if names.contains(name) {
            return Ok(());
        }
        if names.len() >= kind.most() {
            let what = if kind == Kind::Pattern { "patterns" } else { "channels" };
            return Err(TooMany { most: kind.most(), what });
        }
        if kind == Kind::Pattern {
            let bytes = self.pattern_bytes.load(Ordering::Relaxed) + name.len();
            if bytes > MOST_PATTERN_BYTES {
                return Err(TooMany { most: MOST_PATTERN_BYTES, what: "bytes of patterns" });
            }
            self.pattern_bytes.store(bytes, Ordering::Relaxed);
        }
        names.insert(enter());
        self.held.fetch_add(memory_of(kind, name), Ordering::Relaxed);
        self.counts[kind as usize].store(names.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Ends a subscription, if there is one, and calls `leave`.
    pub fn remove(&self, kind: Kind, name: &[u8], leave: impl FnOnce()) {
        let mut names = self.names.lock();
        let names = &mut names[kind as usize];
        if names.remove(name) {
            leave();
            self.held.fetch_sub(memory_of(kind, name), Ordering::Relaxed);
            if kind == Kind::Pattern {
                self.pattern_bytes.fetch_sub(name.len(), Ordering::Relaxed);
            }
            self.counts[kind as usize].store(names.len(), Ordering::Relaxed);
        }
    }

    /// Resolves when messages are waiting.
    pub async fn arrived(&self) {
        while self.waiting() == 0 {
            self.arrived.notified().await;
        }
    }

    /// Adds a message. Returns `false` if the messages and replies of the client exceed its limit.
    pub fn push(&self, message: &Arc<Message>, unread: usize, limit: BufferLimit) -> bool {
        let mut queue = self.queue.lock();
        queue.messages.push_back(Arc::clone(message));
        let waiting = self.waiting() + message.bytes.len();
        self.waiting.store(waiting, Ordering::Relaxed);
        if queue.messages.len() == 1 {
            self.arrived.notify_one();
        }
        !queue.exceeds(waiting + unread, limit)
    }

    /// Returns whether the waiting messages and replies exceed the limit of the client.
    pub fn exceeds(&self, unread: usize, limit: BufferLimit) -> bool {
        self.queue.lock().exceeds(self.waiting() + unread, limit)
    }

    /// Drops all messages of a client that is being closed.
    pub fn clear(&self) {
        let mut queue = self.queue.lock();
        let messages = std::mem::take(&mut queue.messages);
        self.waiting.store(0, Ordering::Relaxed);
        drop(queue);
        drop(messages);
    }
}

/// The reason why a client cannot subscribe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ERR a client may be subscribed to {most} {what}")]
pub struct TooMany {
    most: usize,
    what: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_limit_holds_after_its_time_and_a_hard_one_at_once() {
        let limit = BufferLimit { hard: 30, soft: 10, soft_seconds: 5 };
        let mut queue = Queue::default();
        assert!(!queue.exceeds(10, limit) && queue.exceeds_since.is_none());
        assert!(!queue.exceeds(11, limit) && queue.exceeds_since.is_some());
        assert!(!queue.exceeds(30, limit) && queue.exceeds(31, limit));
        queue.exceeds_since = Instant::now().checked_sub(Duration::from_secs(6));
        assert!(queue.exceeds(11, limit));
        // Fewer bytes for a moment: the time starts again.
        assert!(!queue.exceeds(10, limit) && !queue.exceeds(11, limit));
        let unlimited = BufferLimit { hard: 0, soft: 0, soft_seconds: 0 };
        assert!(!queue.exceeds(usize::MAX, unlimited));
    }
}
