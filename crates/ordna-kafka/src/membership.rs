//! Membership in the consumer group. The group only divides the partitions; no records are read
//! through it.
//!
//! # Contract
//! A consumer subscribes to the topic, with all its partitions paused. A thread of its own polls
//! it, so the node answers rebalances immediately, whatever its reader is doing. The rules are
//! those of Kafka's groups: cooperative rebalancing, session timeout, generations.
//!
//! # Protocol
//! On a revocation, the callback releases the partitions before the group is told, so the next
//! owner finds their backup. If the session has timed out, the group has already assigned them to
//! others, and the callback runs when the node is connected again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};

use crate::owner_table::CLIENT;

/// Maximum duration of a poll.
const POLL: Duration = Duration::from_millis(100);
/// Interval at which positions are committed. Only Kafka's own tools use them.
const COMMIT: Duration = Duration::from_secs(5);

/// Receives the assignments and revocations of the group.
pub trait AssignmentListener: Send + Sync {
    /// The group assigned these partitions to the node. Must return at once.
    fn acquire(&self, partitions: &[u32]);

    /// The group is about to revoke these partitions or, if `lost` is true, has already done so.
    /// Blocks until they are released.
    fn release(&self, partitions: &[u32], lost: bool);

    /// Returns the next offset of each partition that the node owns.
    fn positions(&self) -> Vec<(u32, u64)>;
}

/// Counters of the membership.
#[derive(Debug, Default)]
pub struct RebalanceCounts {
    /// Number of assignments and revocations.
    pub rebalances: AtomicU64,
    /// Number of revocations that arrived after the session had ended.
    pub lost: AtomicU64,
}

/// A membership in the group.
#[derive(Debug)]
pub struct Membership {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct MembershipContext {
    node: Weak<dyn AssignmentListener>,
    counts: Arc<RebalanceCounts>,
}

impl ClientContext for MembershipContext {}

fn numbers(list: &TopicPartitionList) -> Vec<u32> {
    let all = list.elements().into_iter();
    all.filter_map(|element| u32::try_from(element.partition()).ok()).collect()
}

impl ConsumerContext for MembershipContext {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            let lost = consumer.assignment_lost();
            self.counts.rebalances.fetch_add(1, Ordering::Relaxed);
            self.counts.lost.fetch_add(u64::from(lost), Ordering::Relaxed);
            if let Some(node) = self.node.upgrade() {
                node.release(&numbers(list), lost);
            }
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            if let Err(error) = consumer.pause(list) {
                tracing::warn!(%error, "the membership fetches records that it does not need");
            }
            self.counts.rebalances.fetch_add(1, Ordering::Relaxed);
            if let Some(node) = self.node.upgrade() {
                node.acquire(&numbers(list));
            }
        }
    }
}

impl Membership {
    /// Joins the group.
    ///
    /// # Errors
    /// A setting is invalid.
    pub fn join(
        mut settings: ClientConfig,
        (group, topic, address): (&str, &str, &str),
        session_timeout: Duration,
        node: Weak<dyn AssignmentListener>,
        counts: Arc<RebalanceCounts>,
    ) -> Result<Self, KafkaError> {
        let millis = session_timeout.as_millis().max(1);
        settings
            .set("group.id", group)
            .set("client.id", format!("{CLIENT}{address}"))
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", millis.to_string())
            .set("heartbeat.interval.ms", (millis / 4).max(1).to_string())
            .set("max.poll.interval.ms", millis.max(300_000).to_string())
            // The setting has no effect, as nothing is read.
            .set("auto.offset.reset", "latest");
        let context = MembershipContext { node: node.clone(), counts };
        let consumer: BaseConsumer<MembershipContext> = settings.create_with_context(context)?;
        consumer.subscribe(&[topic])?;
        let stopped = Arc::new(AtomicBool::new(false));
        let (stop, topic) = (Arc::clone(&stopped), topic.to_owned());
        let run = move || {
            let mut last = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                if let Some(Err(error)) = consumer.poll(POLL) {
                    tracing::debug!(%error, "the membership continues");
                }
                if last.elapsed() >= COMMIT {
                    last = Instant::now();
                    commit(&consumer, &topic, &node);
                }
            }
            commit(&consumer, &topic, &node);
            // Dropping the consumer leaves the group, and the callback releases the partitions.
        };
        let thread = thread::Builder::new().name("kafka-membership".to_owned()).spawn(run);
        let thread = thread.map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        Ok(Self { stopped, thread: Some(thread) })
    }

    /// Leaves the group, and waits until the partitions are released.
    pub fn leave(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Commits the positions, for tools that display the lag of a group.
fn commit(
    consumer: &BaseConsumer<MembershipContext>,
    topic: &str,
    node: &Weak<dyn AssignmentListener>,
) {
    let Some(node) = node.upgrade() else { return };
    let mut list = TopicPartitionList::new();
    for (partition, next) in node.positions() {
        let next = Offset::Offset(i64::try_from(next).unwrap_or(i64::MAX));
        // The call fails only for invalid offsets.
        let _ = list.add_partition_offset(topic, partition as i32, next);
    }
    if list.count() > 0
        && let Err(error) = consumer.commit(&list, CommitMode::Async)
    {
        tracing::debug!(%error, "positions not committed");
    }
}
