//! Reads the committed messages of a partition.

use std::time::{Duration, Instant};

use ordna::{Key, Value};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::applier::Applier;
use super::assembler::ApplyError;
use crate::broker::settings;

/// Maximum duration of a wait for a message before it is checked whether to give up.
const STEP: Duration = Duration::from_millis(200);
/// Time between two requests for the ends of a partition.
const AGAIN: Duration = Duration::from_millis(50);

/// The reason why a follower cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The brokers refused, or no longer have the offset.
    #[error("offset {offset} of {topic} cannot be read: {reason}")]
    Read {
        /// The topic.
        topic: String,
        /// The next offset.
        offset: u64,
        /// Error of librdkafka.
        reason: String,
    },
    /// The end was not reached in time.
    #[error("the end of {topic} was not reached within {timeout:?}, but offset {offset}")]
    Timeout {
        /// The topic.
        topic: String,
        /// The next offset.
        offset: u64,
        /// Time that has passed.
        timeout: Duration,
    },
    /// A message cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// The result of a [step](Follower::step).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A message was applied.
    Applied,
    /// The end of the committed messages was reached, for the first time since the last message.
    End,
    /// Nothing arrived in time.
    Nothing,
}

/// Reads a partition, from the place of a state on.
pub struct Follower {
    consumer: BaseConsumer,
    topic: String,
}

impl Follower {
    /// Starts to read partition 0 of the topic at an offset.
    ///
    /// # Errors
    /// Returns an error if a setting is wrong.
    pub fn start(
        brokers: &str,
        topic: &str,
        offset: u64,
        extra: &[(String, String)],
    ) -> Result<Self, FollowError> {
        let failed = |error: KafkaError| FollowError::Read {
            topic: topic.to_owned(),
            offset,
            reason: error.to_string(),
        };
        let mut settings = settings(brokers, &[]);
        // Nothing joins the group, but librdkafka requires a name.
        settings
            .set("group.id", "ordna-replication")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("check.crcs", "true");
        for (name, value) in extra {
            settings.set(name, value);
        }
        let consumer: BaseConsumer = settings.create().map_err(failed)?;
        let follower = Self { consumer, topic: topic.to_owned() };
        follower.read_from(offset).map_err(failed)?;
        Ok(follower)
    }

    fn read_from(&self, offset: u64) -> Result<(), KafkaError> {
        let mut places = TopicPartitionList::new();
        let at = Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX));
        places.add_partition_offset(&self.topic, 0, at)?;
        self.consumer.unassign()?;
        self.consumer.assign(&places)
    }

    /// Applies everything that was committed at the time of the call. It is used for a promotion
    /// after its [`Producer`](super::Producer) was opened: from then on, nothing of a former
    /// primary is committed.
    ///
    /// # Errors
    /// Returns a [`FollowError`] if this fails. After [`FollowError::Timeout`] it may be called
    /// again.
    pub fn catch_up<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        applier: &mut Applier<K, V>,
        timeout: Duration,
    ) -> Result<(), FollowError> {
        self.catch_up_with(applier.place().offset, timeout, |offset, message| {
            applier.apply(offset, message)
        })
    }

    /// Calls `apply` with every message from an offset on that was committed at the time of the
    /// call.
    ///
    /// # Errors
    /// Returns a [`FollowError`] if this fails.
    pub fn catch_up_with(
        &self,
        offset: u64,
        timeout: Duration,
        apply: impl FnMut(u64, &[u8]) -> Result<(), ApplyError>,
    ) -> Result<(), FollowError> {
        let until = Instant::now() + timeout;
        self.catch_up_until(offset, || Instant::now() > until, apply)
    }

    /// Works like [`catch_up_with`](Self::catch_up_with), but ends with an error when `gives_up`
    /// returns true.
    ///
    /// # Errors
    /// Returns a [`FollowError`] if this fails.
    pub fn catch_up_until(
        &self,
        offset: u64,
        gives_up: impl Fn() -> bool,
        mut apply: impl FnMut(u64, &[u8]) -> Result<(), ApplyError>,
    ) -> Result<(), FollowError> {
        let began = Instant::now();
        // The end is reported once for each place, so a new reader is needed to get it again.
        self.read_from(offset).map_err(|error| self.failed(offset, &error))?;
        let mut next = offset;
        loop {
            let step = self.step_with(next, STEP, |offset, message| {
                next = offset + 1;
                apply(offset, message)
            })?;
            if step == Step::End {
                return Ok(());
            }
            if gives_up() {
                let (topic, timeout) = (self.topic.clone(), began.elapsed());
                return Err(FollowError::Timeout { topic, offset: next, timeout });
            }
        }
    }

    /// Returns the first offset that can be read, and the next one to be written. A topic that has
    /// just been created may be unknown to a broker, so the request is repeated until it is known.
    ///
    /// # Errors
    /// Returns an error if the brokers do not answer in time.
    pub fn ends(&self, timeout: Duration) -> Result<(u64, u64), FollowError> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let error = match self.consumer.fetch_watermarks(&self.topic, 0, left) {
                Ok((low, high)) => {
                    let offset = |it: i64| u64::try_from(it).unwrap_or_default();
                    return Ok((offset(low), offset(high)));
                }
                Err(error) => error,
            };
            if !(is_passing(&error) || is_unknown(&error)) || left <= AGAIN {
                return Err(self.failed(0, &error));
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn failed(&self, offset: u64, error: &KafkaError) -> FollowError {
        FollowError::Read { topic: self.topic.clone(), offset, reason: error.to_string() }
    }

    /// Applies the next message, if one arrives in time.
    ///
    /// # Errors
    /// Returns a [`FollowError`] if this fails. Unavailable brokers are not an error.
    pub fn step<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        applier: &mut Applier<K, V>,
        timeout: Duration,
    ) -> Result<Step, FollowError> {
        let next = applier.place().offset;
        self.step_with(next, timeout, |offset, message| applier.apply(offset, message))
    }

    /// Calls `apply` with the next message, if one arrives in time. `next` is its offset, for
    /// errors.
    ///
    /// # Errors
    /// Returns a [`FollowError`] if this fails. Unavailable brokers are not an error.
    pub fn step_with(
        &self,
        next: u64,
        timeout: Duration,
        apply: impl FnOnce(u64, &[u8]) -> Result<(), ApplyError>,
    ) -> Result<Step, FollowError> {
        match self.consumer.poll(timeout) {
            None => Ok(Step::Nothing),
            Some(Ok(message)) => {
                let offset = u64::try_from(message.offset()).unwrap_or_default();
                apply(offset, message.payload().unwrap_or_default())?;
                Ok(Step::Applied)
            }
            Some(Err(KafkaError::PartitionEOF(_))) => Ok(Step::End),
            Some(Err(error)) if is_passing(&error) => Ok(Step::Nothing),
            Some(Err(error)) => Err(self.failed(next, &error)),
        }
    }
}

/// Returns whether a broker does not know the topic, or the client does not know its partition.
fn is_unknown(error: &KafkaError) -> bool {
    use rdkafka::error::RDKafkaErrorCode as Code;
    let unknown = [Code::UnknownPartition, Code::UnknownTopic, Code::UnknownTopicOrPartition];
    error.rdkafka_error_code().is_some_and(|code| unknown.contains(&code))
}

/// Returns whether librdkafka continues by itself after an error.
fn is_passing(error: &KafkaError) -> bool {
    use rdkafka::error::RDKafkaErrorCode as Code;
    let passing = [
        Code::AllBrokersDown,
        Code::BrokerTransportFailure,
        Code::OperationTimedOut,
        Code::RequestTimedOut,
        Code::Resolve,
        Code::NotLeaderForPartition,
        Code::LeaderNotAvailable,
    ];
    error.rdkafka_error_code().is_some_and(|code| passing.contains(&code))
}
