//! How an index node works.

use std::path::PathBuf;
use std::time::Duration;

use ordna_secondary::IndexDefinition;

/// How an index node works.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Addresses of brokers: `HOST:PORT`, with commas between.
    pub brokers: String,
    /// The consumer group of the nodes.
    pub group: String,
    /// The topic. Its records have document ids as keys and JSON objects as values.
    pub topic: String,
    /// The indexes, the same on each node of the group.
    pub indexes: Vec<IndexDefinition>,
    /// Where other nodes reach this one: `HOST:PORT`.
    pub address: String,
    /// The directory of backups, which all nodes of the group share.
    pub backups: Option<PathBuf>,
    /// Time between two backups of a partition.
    pub backup_every: Option<Duration>,
    /// Whether a partition that is revoked is backed up first.
    pub backup_on_revoke: bool,
    /// Backups of each partition that are kept, at least one (default 3). After a loss at the brokers the
    /// newest one from before it is restored.
    pub backup_keep: usize,
    /// Warm copies of each partition beside its owner.
    pub standby: usize,
    /// For how long a node may be silent before the group takes its partitions away.
    pub session_timeout: Duration,
    /// How long the start waits for a broker.
    pub start_timeout: Duration,
    /// More settings of librdkafka, such as those of SASL: name and value.
    pub settings: Vec<(String, String)>,
}

impl NodeOptions {
    /// No indexes, no backups, no warm copies; a session timeout of 10 s.
    pub fn new(
        brokers: impl Into<String>,
        group: impl Into<String>,
        topic: impl Into<String>,
        address: impl Into<String>,
    ) -> Self {
        Self {
            brokers: brokers.into(),
            group: group.into(),
            topic: topic.into(),
            indexes: Vec::new(),
            address: address.into(),
            backups: None,
            backup_every: None,
            backup_on_revoke: false,
            backup_keep: 3,
            standby: 0,
            session_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(10),
            settings: Vec::new(),
        }
    }
}
