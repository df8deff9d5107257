//! The topic of a replicated keyspace.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;

use crate::broker::settings;

/// Creates the topic if it does not exist: with one partition, without limits of time and size, and
/// with the cluster's default number of replicas.
///
/// # Errors
/// Returns an error if the brokers do not answer in time, or refuse.
pub fn create_topic(
    brokers: &str,
    topic: &str,
    extra: &[(String, String)],
    timeout: Duration,
) -> Result<(), String> {
    let failed =
        |why: &dyn std::fmt::Display| format!("the topic {topic} cannot be created: {why}");
    let mut settings = settings(brokers, extra);
    for name in ["isolation.level", "enable.auto.commit", "enable.auto.offset.store"] {
        settings.remove(name);
    }
    let admin: AdminClient<DefaultClientContext> =
        settings.create().map_err(|error| failed(&error))?;
    // -1 selects the default of the cluster.
    let new = NewTopic::new(topic, 1, TopicReplication::Fixed(-1))
        .set("cleanup.policy", "delete")
        .set("retention.ms", "-1")
        .set("retention.bytes", "-1")
        .set("unclean.leader.election.enable", "false");
    let options =
        AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
    let made = runtime.block_on(admin.create_topics([&new], &options));
    match made.map_err(|error| failed(&error))?.first() {
        Some(Ok(_)) => {
            tracing::info!(topic, "replication: created the topic");
            Ok(())
        }
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) | None => Ok(()),
        Some(Err((_, error))) => Err(failed(error)),
    }
}
