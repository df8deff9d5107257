//! The committed messages of a partition.

use std::time::Duration;

use ordna::{Key, Value};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::applier::{Applier, ApplyError};
use crate::broker::settings;

/// Why a follower cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The brokers refuse, or no longer have the offset.
    #[error("offset {offset} of {topic} cannot be read: {reason}")]
    Read {
        /// The topic.
        topic: String,
        /// The next offset.
        offset: u64,
        /// librdkafka's error.
        reason: String,
    },
    /// A message cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// A reader of a partition from the place of a state on.
pub struct Follower {
    consumer: BaseConsumer,
    topic: String,
}

impl Follower {
    /// Begins to read partition 0 of the topic at an offset.
    ///
    /// # Errors
    /// A setting is wrong.
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
        // Nobody joins the group; librdkafka wants a name.
        settings
            .set("group.id", "ordna-replication")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("check.crcs", "true");
        for (name, value) in extra {
            settings.set(name, value);
        }
        let consumer: BaseConsumer = settings.create().map_err(failed)?;
        let mut places = TopicPartitionList::new();
        let at = Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX));
        places.add_partition_offset(topic, 0, at).map_err(failed)?;
        consumer.assign(&places).map_err(failed)?;
        Ok(Self { consumer, topic: topic.to_owned() })
    }

    /// Applies the next message; returns whether the end of the partition was reached instead, or
    /// the time had passed (`None`).
    ///
    /// # Errors
    /// [`FollowError`]. The brokers being away is none.
    pub fn step<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        applier: &mut Applier<K, V>,
        timeout: Duration,
    ) -> Result<Option<bool>, FollowError> {
        match self.consumer.poll(timeout) {
            None => Ok(None),
            Some(Ok(message)) => {
                let offset = u64::try_from(message.offset()).unwrap_or_default();
                applier.apply(offset, message.payload().unwrap_or_default())?;
                Ok(Some(false))
            }
            Some(Err(KafkaError::PartitionEOF(_))) => Ok(Some(true)),
            Some(Err(error)) if is_passing(&error) => Ok(None),
            Some(Err(error)) => Err(FollowError::Read {
                topic: self.topic.clone(),
                offset: applier.place().offset,
                reason: error.to_string(),
            }),
        }
    }
}

/// Whether librdkafka goes on by itself after an error.
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
