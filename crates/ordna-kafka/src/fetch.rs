//! The reader of a node: one consumer and one thread, which feed all its partitions.
//!
//! # Contract
//! The consumer's partitions are assigned explicitly; it joins no group. Only the reader's thread
//! uses the consumer and the fetch states; other threads send it orders. After [`Fetcher::remove`]
//! returns, the thread no longer feeds the partition.
//!
//! # Invariants
//! The next offset of a partition is the position of its feed: every record below it was fed, kept
//! aside as poison, or dropped by Kafka (compaction, aborted transactions, transaction markers).
//! librdkafka has `auto.offset.reset=error`, so it never skips records on its own. A partition
//! whose position can no longer be read is lost, and the node opens it again from the beginning.
//!
//! The leader epoch of each record is recorded before the record is fed (`epoch_history`). A state
//! with records of a new epoch is in doubt until the node has compared it with the brokers'
//! history.
//!
//! A consumer assigns a partition only once. librdkafka may still deliver records of an assignment
//! that was taken back; if the reader mistook them for those of a later assignment, it would skip
//! records. So after a partition is given up, the reader gets another consumer (`renew`).
//!
//! # Back-pressure
//! A feed waits while the queue of its service is full. The thread then reads nothing, and
//! librdkafka stops fetching at its limit of bytes. So it does while the node has paused the reader,
//! because the indexes have reached its memory limit.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ordna::sync::Lock;
use ordna_secondary::{Feed, Mutation, Position};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::broker::Broker;
use crate::epoch_history::EpochHistory;
use crate::leader_epoch;
use crate::poison_records::PoisonRecords;
use crate::record;

/// Duration of a poll without records, and so the longest delay of an order.
const POLL: Duration = Duration::from_millis(20);
/// Number of events that are polled before the thread looks for orders again.
const PIECE: usize = 1024;
/// Kilobytes that librdkafka fetches ahead.
const AHEAD: &str = "32768";
/// Time limit of the brokers' answer to which records can be read.
const PATIENCE: Duration = Duration::from_secs(5);

/// Number of ends of a partition that are remembered. When there are more, every second one is
/// dropped: ages of old positions become less precise, but never too small. One end is added each
/// half second.
const MARKS: usize = 1024;

/// The ends of a partition that the brokers reported, with the times when they were asked.
///
/// # Invariants
/// All ends have the same identity; positions and times ascend. A state that has reached a position
/// of the list contains everything that was written before the position's time. Only this bounds
/// its age. Events of librdkafka do not, because their response may have been sent earlier, and the
/// thread may have waited.
#[derive(Debug, Default)]
struct EndMarks(VecDeque<(Position, Instant)>);

impl EndMarks {
    /// Records the end that the brokers reported when they were asked at `when`.
    fn push(&mut self, end: Position, when: Instant) {
        if self.0.back().is_some_and(|(_, last)| *last > when) {
            return;
        }
        // Ends that are not below the new one are superseded: they are later in time at the same
        // position, or belong to another history.
        while self.0.back().is_some_and(|(at, _)| at.identity != end.identity || at.seq >= end.seq)
        {
            self.0.pop_back();
        }
        if self.0.len() >= MARKS {
            let mut stays = false;
            self.0.retain(|_| {
                stays = !stays;
                stays
            });
        }
        self.0.push_back((end, when));
    }

    /// Returns the latest time such that a state at position `at` contains everything written
    /// before it.
    fn complete_until(&self, at: Position) -> Option<Instant> {
        let mut newest_first = self.0.iter().rev();
        let passed = newest_first.find(|(end, _)| end.identity == at.identity && end.seq <= at.seq);
        passed.map(|(_, when)| *when)
    }
}

/// The state of a partition that is being read.
#[derive(Debug)]
pub struct FetchState {
    /// The feed that receives its changes.
    pub feed: Feed,
    /// Number of poison records of the partition.
    pub poison: AtomicU64,
    /// Whether the partition has passed an end since it was opened.
    pub ready: AtomicBool,
    /// Whether its position can no longer be read, so that it must be opened again.
    pub lost: AtomicBool,
    /// The leader epochs of its records.
    pub epochs: Lock<EpochHistory>,
    /// The epoch of the newest record, so that `epochs` is locked only when it changes.
    epoch: AtomicI32,
    ends: Lock<EndMarks>,
}

impl FetchState {
    /// Creates a fetch state that has not passed any end.
    pub fn new(feed: Feed, epochs: EpochHistory) -> Self {
        let (poison, ready, lost, ends) = Default::default();
        let epoch = AtomicI32::new(i32::MIN);
        Self { feed, poison, ready, lost, epochs: Lock::new(epochs), epoch, ends }
    }

    /// Records the epoch of the record that is fed next. Only the reader's thread calls this.
    fn note_epoch(&self, epoch: i32) {
        if self.epoch.swap(epoch, Ordering::Relaxed) != epoch {
            self.epochs.lock().read(epoch, self.next());
        }
    }

    /// Records the end of the partition; the brokers were asked for it at `when`.
    pub fn note_end(&self, end: Position, when: Instant) {
        let at = self.feed.position(0).unwrap_or_default();
        let mut ends = self.ends.lock();
        ends.push(end, when);
        // A partition with traffic is never exactly at its end, so it is ready when it has passed
        // one.
        if ends.complete_until(at).is_some() {
            self.ready.store(true, Ordering::Release);
        }
    }

    /// Returns an upper bound of the age of a state: everything that was written earlier is in it.
    /// Returns [`Duration::MAX`] if the state has not passed any known end.
    pub fn age_of(&self, state: Position) -> Duration {
        self.ends.lock().complete_until(state).map_or(Duration::MAX, |when| when.elapsed())
    }

    /// Returns the offset that is read next.
    pub fn next(&self) -> u64 {
        self.feed.position(0).unwrap_or_default().seq
    }
}

enum FetchCommand {
    Add(u32, Arc<FetchState>, mpsc::Sender<()>),
    Remove(u32, mpsc::Sender<()>),
}

/// The reader of a node.
#[derive(Debug)]
pub struct Fetcher {
    orders: mpsc::Sender<FetchCommand>,
    stopped: Arc<AtomicBool>,
    /// Whether no further records are read.
    paused: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fetcher {
    /// Starts the thread, which has no partitions yet.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn start(
        broker: Arc<Broker>,
        mut settings: ClientConfig,
        poisons: Arc<PoisonRecords>,
    ) -> Result<Self, KafkaError> {
        settings
            // librdkafka requires a group id of every consumer, although this one joins no group.
            .set("group.id", "ordna-reader")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("queued.max.messages.kbytes", AHEAD)
            .set("fetch.wait.max.ms", "100");
        let consumer: BaseConsumer = settings.create()?;
        let is_stale = false;
        let (orders, receiver) = mpsc::channel();
        let stopped = Arc::new(AtomicBool::new(false));
        let paused = Arc::new(AtomicBool::new(false));
        let reader = Reader {
            broker,
            settings,
            consumer,
            is_stale,
            poisons,
            orders: receiver,
            fetches: HashMap::new(),
            stopped: Arc::clone(&stopped),
            paused: Arc::clone(&paused),
            to_check: false,
        };
        let named = thread::Builder::new().name("kafka-reader".to_owned());
        let thread = named.spawn(move || reader.run());
        let thread = thread.map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        Ok(Self { orders, stopped, paused, thread: Some(thread) })
    }

    /// Begins to read a partition at its feed's position.
    pub fn add(&self, partition: u32, fetch: &Arc<FetchState>) {
        self.order(|done| FetchCommand::Add(partition, Arc::clone(fetch), done));
    }

    /// Stops reading a partition.
    pub fn remove(&self, partition: u32) {
        self.order(|done| FetchCommand::Remove(partition, done));
    }

    fn order(&self, order: impl FnOnce(mpsc::Sender<()>) -> FetchCommand) {
        let (done, wait) = mpsc::channel();
        // Sending fails when the thread has ended, and then it reads nothing. A thread that was
        // told to stop may still be waiting for brokers that are gone.
        if self.orders.send(order(done)).is_ok() {
            while !self.stopped.load(Ordering::Relaxed)
                && wait.recv_timeout(POLL) == Err(mpsc::RecvTimeoutError::Timeout)
            {}
        }
    }

    /// Pauses the reader, or lets it continue. A paused reader reads no records, but partitions can
    /// be added and removed. Returns whether its state has changed.
    pub fn pause(&self, paused: bool) -> bool {
        self.paused.swap(paused, Ordering::Relaxed) != paused
    }

    /// Returns whether the reader is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Tells the thread to stop, without waiting for it.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether the thread has ended without being told to.
    pub fn has_died(&self) -> bool {
        let is_stopped = self.stopped.load(Ordering::Relaxed);
        !is_stopped && self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            join_soon(thread);
        }
    }
}

/// Time for which a stopping node waits for a thread that may be asking brokers. They may take
/// longer or be gone. The thread ends after its question and uses nothing else.
const JOIN: Duration = Duration::from_secs(1);

/// Joins a thread that was told to stop, but waits at most [`JOIN`].
pub(crate) fn join_soon(thread: JoinHandle<()>) {
    let until = Instant::now() + JOIN;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    // A thread that panicked has ended, too.
    let _ = thread.join();
}

/// The thread's own state.
struct Reader {
    broker: Arc<Broker>,
    settings: ClientConfig,
    consumer: BaseConsumer,
    /// Whether the consumer has partitions that were given up or begin again, so that another is
    /// needed.
    is_stale: bool,
    poisons: Arc<PoisonRecords>,
    orders: mpsc::Receiver<FetchCommand>,
    fetches: HashMap<u32, Arc<FetchState>>,
    stopped: Arc<AtomicBool>,
    paused: Arc<AtomicBool>,
    /// Whether librdkafka has given up a partition without saying which.
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
                // The former consumer is not polled any more.
                self.renew();
                continue;
            }
            if self.paused.load(Ordering::Relaxed) {
                // librdkafka stops fetching at its limit of bytes.
                thread::sleep(POLL);
                continue;
            }
            let mut wait = POLL;
            // Orders and the stop are looked at between two pieces. Each polled event is processed,
            // because the consumer does not deliver it again.
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
                        tracing::debug!(%error, "the reader continues after an error");
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
        fetch.note_epoch(leader_epoch::of_record(message));
        let key = message.key();
        match record::document(key, message.payload()) {
            Ok(document) => {
                let id = key.unwrap_or_default().into();
                let change = Mutation { partition: 0, seq: offset + 1, id, document };
                // If the service has stopped, an order will remove the partition.
                let _ = fetch.feed.push(change);
            }
            Err(reason) => {
                self.poisons.add(partition, offset, key.unwrap_or_default(), reason);
                fetch.poison.fetch_add(1, Ordering::Relaxed);
                fetch.feed.advance(0, offset + 1);
            }
        }
    }

    /// Handles the end of a partition: its position is now after transaction markers, too.
    fn end(&self, partition: i32) {
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
            // All records were deleted, so none was read and none is left.
            fetch.feed.advance(0, ends.end.seq);
        }
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
        }
    }

    /// Lists the positions at which the reader continues.
    fn list<'a>(
        &self,
        fetches: impl IntoIterator<Item = (u32, &'a Arc<FetchState>)>,
    ) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for (partition, fetch) in fetches {
            let next = i64::try_from(fetch.next()).unwrap_or(i64::MAX);
            // Nothing was read yet: begins with the first record that Kafka still has, whatever its
            // offset.
            let from = if next == 0 { Offset::Beginning } else { Offset::Offset(next) };
            // The call fails for invalid offsets only.
            let _ = list.add_partition_offset(self.broker.topic(), partition as i32, from);
            if let Some(mark) = fetch.epochs.lock().mark(fetch.next()) {
                leader_epoch::set(&mut list, self.broker.topic(), partition, mark.epoch);
            }
        }
        list
    }

    /// Continues with a new consumer from the fetch states' positions. A failure is retried.
    fn renew(&mut self) {
        let made: Result<BaseConsumer, KafkaError> = self.settings.create();
        let read = self.fetches.iter().filter(|(_, fetch)| !fetch.lost.load(Ordering::Relaxed));
        let list = self.list(read.map(|(partition, fetch)| (*partition, fetch)));
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

    /// Marks the partitions whose positions can no longer be read as lost. If there are none,
    /// librdkafka has noticed a truncation that later records hide, and the node compares all
    /// partitions.
    fn check(&mut self) {
        let Ok(ends) = self.broker.ends(PATIENCE) else { return };
        (self.to_check, self.is_stale) = (false, true);
        let mut found = false;
        for (partition, fetch) in &self.fetches {
            let at = fetch.feed.position(0).unwrap_or_default();
            if ends.get(*partition as usize).is_none_or(|ends| !ends.hold(at)) {
                found = true;
                fetch.lost.store(true, Ordering::Relaxed);
            }
        }
        if !found {
            self.fetches.values().for_each(|fetch| fetch.epochs.lock().suspect());
            // The next consumer may notice it again before the node has compared the partitions.
            thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> Position {
        Position { identity: 7, seq }
    }

    #[test]
    fn a_state_is_as_old_as_the_newest_end_that_it_has_passed() {
        let began = Instant::now();
        let later = |millis| began + Duration::from_millis(millis);
        let mut ends = EndMarks::default();
        assert_eq!(ends.complete_until(at(100)), None, "no end is known");
        // With traffic, each reported end is beyond what has been read.
        (1..=10).for_each(|n| ends.push(at(n * 100), later(n)));
        assert_eq!(ends.complete_until(at(99)), None);
        assert_eq!(ends.complete_until(at(250)), Some(later(2)));
        assert_eq!(ends.complete_until(at(5000)), Some(later(10)));
        // A quiet partition stays at its end.
        ends.push(at(1000), later(20));
        assert_eq!(ends.complete_until(at(1000)), Some(later(20)));
        assert_eq!(ends.complete_until(at(999)), Some(later(9)));
        // The answer to an earlier question adds nothing.
        ends.push(at(1000), later(15));
        assert_eq!(ends.complete_until(at(1000)), Some(later(20)));
        // A truncated topic, and then another topic.
        ends.push(at(300), later(30));
        assert_eq!(ends.complete_until(at(350)), Some(later(30)));
        assert_eq!(ends.complete_until(at(299)), Some(later(2)));
        ends.push(Position { identity: 8, seq: 5 }, later(40));
        assert_eq!(ends.complete_until(at(5000)), None);
    }

    #[test]
    fn old_ends_become_coarse_and_never_younger() {
        let began = Instant::now();
        let mut ends = EndMarks::default();
        for n in 0..10 * MARKS as u64 {
            ends.push(at(n), began + Duration::from_millis(n));
        }
        assert!(ends.0.len() <= MARKS);
        for n in 0..10 * MARKS as u64 {
            let known = ends.complete_until(at(n)).unwrap() - began;
            assert!(known <= Duration::from_millis(n), "{n}: {known:?}");
        }
        let newest = 10 * MARKS as u64 - 1;
        assert_eq!(ends.complete_until(at(newest)), Some(began + Duration::from_millis(newest)));
    }
}
