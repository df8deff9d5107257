//! Questions to the brokers about the topic and the group: partitions, offsets, owners.
//!
//! # Contract
//! Any thread may call any method. Each method asks the brokers and blocks until they answer, but
//! no longer than the given timeout.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordna::sync::Lock;
use ordna_secondary::Position;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::epoch_history::EpochMark;
use crate::leader_epoch;
use crate::node::OwnerTable;
use crate::owner_table::{DescribedMember, owners};
use crate::topic_id;

/// The reason why the brokers gave no answer, or no usable one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// No broker answered in time.
    #[error("the brokers at {brokers} do not answer: {reason}")]
    Away {
        /// The addresses asked.
        brokers: String,
        /// librdkafka's error.
        reason: String,
    },
    /// The topic does not exist.
    #[error("there is no topic {topic:?} at {brokers}")]
    NoTopic {
        /// The topic.
        topic: String,
        /// The addresses asked.
        brokers: String,
    },
    /// librdkafka rejects the settings.
    #[error("a Kafka setting cannot be used: {0}")]
    Setting(String),
}

/// The first and the end position of a partition. The records between them can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Records before this position no longer exist.
    pub start: Position,
    /// Records before this position can be read, except those of unfinished transactions.
    pub end: Position,
    /// The epoch of the partition's leader; -1 if the brokers know no epochs.
    pub epoch: i32,
}

impl Ends {
    /// Returns whether a reader at this position can continue.
    pub fn hold(&self, at: Position) -> bool {
        at.identity == self.end.identity && (self.start.seq..=self.end.seq).contains(&at.seq)
    }
}

/// A client that asks for metadata only. It reads no records.
pub struct Broker {
    brokers: String,
    topic: String,
    /// Number of partitions of the topic at the last count.
    partitions: AtomicU32,
    client: BaseConsumer,
    settings: ClientConfig,
    /// The topic's id, folded to 64 bits, as the brokers last returned it.
    topic_id: AtomicU64,
    owners: Lock<OwnerTable>,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let partitions = self.partitions();
        f.debug_struct("Broker").field("topic", &self.topic).field("of", &partitions).finish()
    }
}

/// Returns the settings of every client of librdkafka. Settings in `extra` override the others.
pub fn settings(brokers: &str, extra: &[(String, String)]) -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", brokers)
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("topic.metadata.refresh.interval.ms", "2000")
        .set("reconnect.backoff.max.ms", "1000")
        .set("log_level", "3");
    for (name, value) in extra {
        settings.set(name, value);
    }
    settings
}

impl Broker {
    /// Connects to the brokers of an existing topic.
    ///
    /// # Errors
    /// No broker answers in time, the topic does not exist, or a setting is invalid.
    pub fn connect(
        brokers: &str,
        topic: &str,
        extra: &[(String, String)],
        timeout: Duration,
    ) -> Result<Self, BrokerError> {
        let settings = settings(brokers, extra);
        let refused = |error: KafkaError| BrokerError::Setting(error.to_string());
        let client: BaseConsumer = settings.create().map_err(refused)?;
        let broker = Self {
            brokers: brokers.to_owned(),
            topic: topic.to_owned(),
            partitions: AtomicU32::new(0),
            client,
            settings,
            topic_id: AtomicU64::new(0),
            owners: Lock::default(),
        };
        let began = Instant::now();
        broker.count(timeout)?;
        broker.check_topic(timeout.saturating_sub(began.elapsed()))?;
        Ok(broker)
    }

    fn away(&self, reason: impl ToString) -> BrokerError {
        BrokerError::Away { brokers: self.brokers.clone(), reason: reason.to_string() }
    }

    fn no_topic(&self) -> BrokerError {
        BrokerError::NoTopic { topic: self.topic.clone(), brokers: self.brokers.clone() }
    }

    /// Returns the topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the number of partitions of the topic at the last count.
    pub fn partitions(&self) -> u32 {
        // Relaxed: no other data depends on the number.
        self.partitions.load(Ordering::Relaxed)
    }

    /// Returns the identity of a partition's history: a hash of topic id and partition that is
    /// never 0.
    pub fn identity(&self, partition: u32) -> u64 {
        let topic = self.topic_id.load(Ordering::Relaxed);
        // The map from topic ids to identities is one-to-one for each partition, because the
        // multiplier is odd.
        topic.wrapping_add(u64::from(partition)).wrapping_mul(0x9E37_79B9_7F4A_7C15).max(1)
    }

    /// Counts the partitions of the topic.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub fn count(&self, timeout: Duration) -> Result<(), BrokerError> {
        let metadata = self.client.fetch_metadata(Some(&self.topic), timeout);
        let metadata = metadata.map_err(|error| self.away(error))?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == self.topic);
        let found = match topic.map(|topic| topic.partitions().len()) {
            None | Some(0) => return Err(self.no_topic()),
            Some(found) => u32::try_from(found).unwrap_or(u32::MAX),
        };
        let before = self.partitions.swap(found, Ordering::Relaxed);
        if before != 0 && before != found {
            tracing::warn!(
                topic = self.topic,
                before,
                found,
                "the number of partitions has changed: ids that moved may have two entries"
            );
        }
        Ok(())
    }

    /// Returns whether the topic was replaced by another one of the same name. The first call
    /// returns `false`.
    ///
    /// Call this only after another request has succeeded. While no broker is reachable, librdkafka
    /// waits for the controller in a busy loop that takes half a core.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub fn check_topic(&self, timeout: Duration) -> Result<bool, BrokerError> {
        // Drains the client's events, such as errors, which would otherwise accumulate.
        while self.client.poll(Duration::ZERO).is_some() {}
        let id = topic_id::topic_id(self.client.client().native_ptr(), &self.topic, timeout);
        let id = id.map_err(|error| self.away(error))?.ok_or_else(|| self.no_topic())?;
        let folded = (id >> 64) as u64 ^ id as u64;
        let before = self.topic_id.swap(folded, Ordering::Relaxed);
        Ok(before != 0 && before != folded)
    }

    /// Returns an offset of each partition with the epoch of its leader.
    fn offsets(&self, at: Offset, timeout: Duration) -> Result<Vec<(u64, i32)>, BrokerError> {
        let mut asked = TopicPartitionList::new();
        let partitions = self.partitions();
        for partition in 0..partitions {
            let added = asked.add_partition_offset(&self.topic, partition as i32, at);
            added.map_err(|error| self.away(error))?;
        }
        let told = self.client.offsets_for_times(asked, timeout).map_err(|error| self.away(error));
        let mut offsets = vec![(0, -1); partitions as usize];
        let told = told?;
        for (told, epoch) in told.elements().into_iter().zip(leader_epoch::of_list(&told)) {
            told.error().map_err(|error| self.away(error))?;
            let place = usize::try_from(told.partition()).ok();
            let place = place.and_then(|partition| offsets.get_mut(partition));
            match (told.offset(), place) {
                (Offset::Offset(offset), Some(place)) => *place = (offset.max(0) as u64, epoch),
                (other, _) => return Err(self.away(format!("an offset of {other:?}"))),
            }
        }
        Ok(offsets)
    }

    fn position(&self, partition: usize, offset: u64) -> Position {
        Position { identity: self.identity(partition as u32), seq: offset }
    }

    /// Returns the end of each partition: the position after the last record of a finished
    /// transaction.
    ///
    /// # Errors
    /// [`BrokerError::Away`].
    pub fn newest(&self, timeout: Duration) -> Result<Vec<Position>, BrokerError> {
        let ends = self.newest_and_epochs(timeout)?;
        Ok(ends.into_iter().map(|(end, _)| end).collect())
    }

    /// Returns the same positions with the epochs of the partitions' leaders.
    ///
    /// # Errors
    /// [`BrokerError::Away`].
    pub fn newest_and_epochs(
        &self,
        timeout: Duration,
    ) -> Result<Vec<(Position, i32)>, BrokerError> {
        // A lookup by time with this offset returns the end.
        let ends = self.offsets(Offset::End, timeout)?;
        let end = |(at, (end, epoch))| (self.position(at, end), epoch);
        Ok(ends.into_iter().enumerate().map(end).collect())
    }

    /// Returns, by partition, whether the brokers' history still contains these points.
    ///
    /// # Errors
    /// [`BrokerError::Away`] if the brokers do not answer; then nothing is known.
    pub fn compare(
        &self,
        marks: &BTreeMap<u32, EpochMark>,
        timeout: Duration,
    ) -> Result<BTreeMap<u32, bool>, BrokerError> {
        let compared = leader_epoch::compare(&self.settings, &self.topic, marks, timeout);
        compared.map_err(|error| self.away(error))
    }

    /// Returns the range of each partition that can be read.
    ///
    /// # Errors
    /// [`BrokerError::Away`].
    pub fn ends(&self, timeout: Duration) -> Result<Vec<Ends>, BrokerError> {
        let starts = self.offsets(Offset::Beginning, timeout)?;
        let pairs = starts.into_iter().enumerate().zip(self.newest_and_epochs(timeout)?);
        let ends =
            |((at, (start, _)), (end, epoch))| Ends { start: self.position(at, start), end, epoch };
        Ok(pairs.map(ends).collect())
    }

    /// Returns how long the topic keeps deletions, if it is compacted.
    ///
    /// # Errors
    /// [`BrokerError::Away`].
    pub fn tombstones(&self, timeout: Duration) -> Result<Option<Duration>, BrokerError> {
        let admin: AdminClient<DefaultClientContext> =
            self.settings.create().map_err(|error: KafkaError| self.away(error))?;
        let options = AdminOptions::new().request_timeout(Some(timeout));
        let topic = [ResourceSpecifier::Topic(&self.topic)];
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|error| self.away(error))?;
        let told = runtime.block_on(admin.describe_configs(&topic, &options));
        let told = told.map_err(|error| self.away(error))?;
        let Some(Ok(config)) = told.into_iter().next() else {
            return Err(self.away("the reply lacks the topic's configuration"));
        };
        let value = |name: &str| config.get(name).and_then(|entry| entry.value.as_deref());
        let is_compacted = value("cleanup.policy").is_some_and(|policy| policy.contains("compact"));
        let millis = value("delete.retention.ms").and_then(|millis| millis.parse().ok());
        Ok(is_compacted.then(|| Duration::from_millis(millis.unwrap_or(86_400_000))))
    }

    /// Returns the owner table as it was last read, with the current number of partitions.
    /// Partitions that were added later have no owner in it.
    pub fn known_owners(&self) -> OwnerTable {
        let known = self.owners.lock().clone();
        let partitions = if known.partitions == 0 { 0 } else { self.partitions() };
        OwnerTable { partitions, ..known }
    }

    /// Reads the owner table from the group's coordinator. While the group rebalances, the previous
    /// table stays valid.
    ///
    /// # Errors
    /// [`BrokerError::Away`].
    pub fn owners(&self, group: &str, timeout: Duration) -> Result<OwnerTable, BrokerError> {
        let list = self.client.fetch_group_list(Some(group), timeout);
        let list = list.map_err(|error| self.away(error))?;
        let found = list.groups().iter().find(|found| found.name() == group);
        let mut known = self.owners.lock();
        let partitions = self.partitions();
        let table = match found.map(|found| (found.state(), found.members())) {
            Some(("Stable", members)) => {
                let members: Vec<DescribedMember<'_>> = members
                    .iter()
                    .map(|member| DescribedMember {
                        client_id: member.client_id(),
                        assignment: member.assignment().unwrap_or_default(),
                    })
                    .collect();
                owners(&self.topic, partitions, &members)
            }
            None | Some(("Empty" | "Dead", _)) => owners(&self.topic, partitions, &[]),
            Some(_) if known.partitions == 0 => return Ok(known.clone()),
            // The members stay; added partitions have no owner yet.
            Some(_) => OwnerTable { partitions, ..known.clone() },
        };
        if (known.partitions, &known.members) != (table.partitions, &table.members) {
            *known = OwnerTable { version: known.version + 1, ..table };
        }
        Ok(known.clone())
    }
}
