//! The reader: one consumer and one thread, which feed all partitions of a node.
//!
//! # Contract
//! The consumer's partitions are assigned by hand; it joins no group. Only the thread touches the
//! consumer and the fetch states; others send it orders. After [`Fetcher::remove`] returns, the
//! thread feeds the partition no more.
//!
//! # Invariants
//! A partition's next offset is its feed's position: every record below it was fed, kept aside as
//! poison, or dropped by Kafka (compaction, aborted transactions, markers of transactions).
//! librdkafka has `auto.offset.reset=error`: it never skips records on its own. A partition whose
//! position cannot be read any more is told anew, from its first record (`rebuild`).
//!
//! A consumer assigns a partition once. librdkafka may still deliver records of an assignment that
//! was taken back; a reader that took them for those of the next one would leave records out. A
//! partition that is given up or told anew therefore gets the reader another consumer (`renew`).
//!
//! # Back-pressure
//! A feed waits while its service's queue is full. The thread then reads nothing, and librdkafka
//! stops fetching at its limit of bytes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ordna_secondary::{Feed, Mutation};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::broker::Broker;
use crate::poison_records::PoisonRecords;
use crate::record;

/// Time of a poll without records; orders wait so long at most.
const POLL: Duration = Duration::from_millis(20);
/// Events that are polled between two looks at the orders.
const PIECE: usize = 1024;
/// Kilobytes that librdkafka fetches ahead.
const AHEAD: &str = "32768";
/// How long the brokers may take to tell what can be read.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of a partition that is read.
#[derive(Debug)]
pub struct FetchState {
    /// Where its changes go.
    pub feed: Feed,
    /// Poison records of the partition.
    pub poison: AtomicU64,
    /// Times that it was told anew.
    pub rebuilds: AtomicU64,
    /// It was at its end since it was opened, or told anew.
    pub ready: AtomicBool,
    /// Milliseconds since [`FetchState::opened`] when it was last known to be at its end.
    caught_up: AtomicU64,
    opened: Instant,
}

impl FetchState {
    /// A fetch state that was not at its end yet.
    pub fn new(feed: Feed) -> Self {
        let (poison, rebuilds, ready) = Default::default();
        let (caught_up, opened) = (AtomicU64::new(0), Instant::now());
        Self { feed, poison, rebuilds, ready, caught_up, opened }
    }

    /// Notes that the partition was at its end at this moment.
    pub fn at_end(&self, when: Instant) {
        let since = when.saturating_duration_since(self.opened).as_millis();
        self.caught_up.fetch_max(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.ready.store(true, Ordering::Release);
    }

    /// Time since the partition was last known to be at its end.
    pub fn age(&self) -> Duration {
        let at = Duration::from_millis(self.caught_up.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(at)
    }

    /// The offset that is read next.
    pub fn next(&self) -> u64 {
        self.feed.position(0).unwrap_or_default().seq
    }
}

enum FetchCommand {
    Add(u32, Arc<FetchState>, mpsc::Sender<()>),
    Remove(u32, mpsc::Sender<()>),
    Rebuild(u32),
}

/// The reader of a node.
#[derive(Debug)]
pub struct Fetcher {
    orders: mpsc::Sender<FetchCommand>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fetcher {
    /// Starts the thread, which reads nothing yet.
    ///
    /// # Errors
    /// The settings are wrong.
    pub fn start(
        broker: Arc<Broker>,
        mut settings: ClientConfig,
        poisons: Arc<PoisonRecords>,
    ) -> Result<Self, KafkaError> {
        settings
            // librdkafka wants one for consumers of every kind. Nothing joins it.
            .set("group.id", "ordna-reader")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("queued.max.messages.kbytes", AHEAD)
            .set("fetch.wait.max.ms", "100");
        let consumer: BaseConsumer = settings.create()?;
        let is_stale = false;
        let (orders, receiver) = mpsc::channel();
        let stopped = Arc::new(AtomicBool::new(false));
        let reader = Reader {
            broker,
            settings,
            consumer,
            is_stale,
            poisons,
            orders: receiver,
            fetches: HashMap::new(),
            stopped: Arc::clone(&stopped),
            to_check: false,
        };
        let named = thread::Builder::new().name("kafka-reader".to_owned());
        let thread = named.spawn(move || reader.run());
        let thread = thread.map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        Ok(Self { orders, stopped, thread: Some(thread) })
    }

    /// Reads a partition from its feed's position on.
    pub fn add(&self, partition: u32, fetch: &Arc<FetchState>) {
        self.order(|done| FetchCommand::Add(partition, Arc::clone(fetch), done));
    }

    /// Reads a partition no more.
    pub fn remove(&self, partition: u32) {
        self.order(|done| FetchCommand::Remove(partition, done));
    }

    fn order(&self, order: impl FnOnce(mpsc::Sender<()>) -> FetchCommand) {
        let (done, wait) = mpsc::channel();
        // It fails when the thread has ended, which reads nothing.
        if self.orders.send(order(done)).is_ok() {
            let _ = wait.recv();
        }
    }

    /// Has a partition told anew, from its first record.
    pub fn rebuild(&self, partition: u32) {
        let _ = self.orders.send(FetchCommand::Rebuild(partition));
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// The thread's own state.
struct Reader {
    broker: Arc<Broker>,
    settings: ClientConfig,
    consumer: BaseConsumer,
    /// The consumer reads partitions that were given up or begin anew: another one is needed.
    is_stale: bool,
    poisons: Arc<PoisonRecords>,
    orders: mpsc::Receiver<FetchCommand>,
    fetches: HashMap<u32, Arc<FetchState>>,
    stopped: Arc<AtomicBool>,
    /// librdkafka gave up a partition and does not say which.
    to_check: bool,
}

impl Reader {
    fn run(mut self) {
        while !self.stopped.load(Ordering::Relaxed) {
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order);
            }
            if self.to_check {
                self.check();
            }
            if self.is_stale {
                // Nothing is read from the former consumer.
                self.renew();
                continue;
            }
            let mut wait = POLL;
            // Orders and the stop are looked at between two pieces. Each event that was polled is
            // dealt with: the consumer does not tell it again.
            for _ in 0..PIECE {
                match self.consumer.poll(wait) {
                    None => break,
                    Some(Ok(message)) => self.record(&message),
                    Some(Err(KafkaError::PartitionEOF(partition))) => self.end(partition),
                    Some(Err(error)) => {
                        use RDKafkaErrorCode::{AutoOffsetReset, OffsetOutOfRange};
                        let lost = matches!(
                            error.rdkafka_error_code(),
                            Some(AutoOffsetReset | OffsetOutOfRange)
                        );
                        if lost {
                            self.to_check = true;
                            break;
                        }
                        tracing::debug!(%error, "the reader goes on");
                    }
                }
                wait = Duration::ZERO;
            }
        }
    }

    fn record(&self, message: &rdkafka::message::BorrowedMessage<'_>) {
        let (Ok(partition), Ok(offset)) =
            (u32::try_from(message.partition()), u64::try_from(message.offset()))
        else {
            return;
        };
        let Some(fetch) = self.fetches.get(&partition) else { return };
        let key = message.key();
        match record::document(key, message.payload()) {
            Ok(document) => {
                let id = key.unwrap_or_default().into();
                let change = Mutation { partition: 0, seq: offset + 1, id, document };
                // A service that has stopped is removed by an order.
                let _ = fetch.feed.push(change);
            }
            Err(reason) => {
                self.poisons.add(partition, offset, key.unwrap_or_default(), reason);
                fetch.poison.fetch_add(1, Ordering::Relaxed);
                fetch.feed.advance(0, offset + 1);
            }
        }
    }

    /// A partition is at its end: the position is behind markers of transactions, too.
    fn end(&self, partition: i32) {
        let when = Instant::now();
        let Some(fetch) = u32::try_from(partition).ok().and_then(|at| self.fetches.get(&at)) else {
            return;
        };
        let position = self.consumer.position().ok();
        let found = position.as_ref();
        let found = found.and_then(|all| all.find_partition(self.broker.topic(), partition));
        if let Some(Offset::Offset(offset)) = found.map(|found| found.offset()) {
            fetch.feed.advance(0, u64::try_from(offset).unwrap_or(0));
        } else if let Ok(ends) = self.broker.ends(PATIENCE)
            && let Some(ends) = ends.get(partition as usize)
            && ends.start == ends.end
        {
            // All records were deleted: nothing was read, and nothing is left to read.
            fetch.feed.advance(0, ends.end.seq);
        }
        fetch.at_end(when);
    }

    fn obey(&mut self, order: FetchCommand) {
        match order {
            FetchCommand::Add(partition, fetch, done) => {
                let list = self.list([(partition, &fetch)]);
                self.fetches.insert(partition, fetch);
                if !self.is_stale
                    && let Err(error) = self.consumer.incremental_assign(&list)
                {
                    tracing::error!(partition, %error, "the partition cannot be read");
                    self.is_stale = true;
                }
                let _ = done.send(());
            }
            FetchCommand::Remove(partition, done) => {
                self.is_stale |= self.fetches.remove(&partition).is_some();
                let _ = done.send(());
            }
            FetchCommand::Rebuild(partition) => self.rebuild(partition),
        }
    }

    /// Where the reader goes on.
    fn list<'a>(
        &self,
        fetches: impl IntoIterator<Item = (u32, &'a Arc<FetchState>)>,
    ) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for (partition, fetch) in fetches {
            let next = i64::try_from(fetch.next()).unwrap_or(i64::MAX);
            // Nothing was read: the first record that Kafka still has, whatever its offset.
            let from = if next == 0 { Offset::Beginning } else { Offset::Offset(next) };
            // It refuses offsets that are none; these are some.
            let _ = list.add_partition_offset(self.broker.topic(), partition as i32, from);
        }
        list
    }

    /// Goes on with another consumer, from the fetch states' positions. A failure is tried again.
    fn renew(&mut self) {
        let made: Result<BaseConsumer, KafkaError> = self.settings.create();
        let list = self.list(self.fetches.iter().map(|(partition, fetch)| (*partition, fetch)));
        let assigned = |consumer: BaseConsumer| -> Result<BaseConsumer, KafkaError> {
            if list.count() > 0 {
                consumer.incremental_assign(&list)?;
            }
            Ok(consumer)
        };
        match made.and_then(assigned) {
            Ok(consumer) => {
                self.consumer = consumer;
                self.is_stale = false;
            }
            Err(error) => {
                tracing::error!(%error, "the partitions cannot be read");
                thread::sleep(POLL);
            }
        }
    }

    /// Drops what is known of a partition, and tells it from its first record.
    fn rebuild(&mut self, partition: u32) {
        let Some(fetch) = self.fetches.get(&partition) else { return };
        tracing::warn!(partition, "the partition is told anew, from its first record");
        fetch.ready.store(false, Ordering::Release);
        fetch.rebuilds.fetch_add(1, Ordering::Relaxed);
        fetch.feed.reset(0, self.broker.identity(partition));
        self.is_stale = true;
    }

    /// Finds the partitions whose positions cannot be read, and has them told anew. If none is
    /// found, librdkafka has noticed a truncation that later records hide: all are.
    fn check(&mut self) {
        let Ok(ends) = self.broker.ends(PATIENCE) else { return };
        self.to_check = false;
        let is_lost = |(partition, fetch): &(&u32, &Arc<FetchState>)| {
            let ends = ends.get(**partition as usize);
            let at = fetch.feed.position(0).unwrap_or_default();
            ends.is_none_or(|ends| !ends.hold(at))
        };
        let mut lost: Vec<u32> = self.fetches.iter().filter(is_lost).map(|(at, _)| *at).collect();
        if lost.is_empty() {
            lost = self.fetches.keys().copied().collect();
        }
        lost.into_iter().for_each(|partition| self.rebuild(partition));
    }
}
