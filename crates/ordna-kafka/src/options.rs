//! Options of an index node.

use std::path::PathBuf;
use std::time::Duration;

use ordna_secondary::IndexDefinition;

/// Options of an index node.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Addresses of brokers, `HOST:PORT`, separated by commas.
    pub brokers: String,
    /// The consumer group of the nodes.
    pub group: String,
    /// The topic. Its records have document ids as keys and JSON objects as values.
    pub topic: String,
    /// The indexes. They must be the same on each node of the group.
    pub indexes: Vec<IndexDefinition>,
    /// The address of this node for other nodes, `HOST:PORT`.
    pub address: String,
    /// The directory of the backups, which all nodes of the group share.
    pub backups: Option<PathBuf>,
    /// Time between two backups of a partition.
    pub backup_every: Option<Duration>,
    /// Whether to back up a partition before it is released to another node.
    pub backup_on_revoke: bool,
    /// Number of backups to keep of each partition, at least 1 (default 3). If the brokers lose
    /// records, the newest backup from before the loss is restored.
    pub backup_keep: usize,
    /// Limit of the memory of all indexes, in bytes. At the limit the node stops reading records. It
    /// continues when the memory is a sixteenth below the limit. The limit may be exceeded by the
    /// records that are read within 0.3 s, by those that wait in queues, and by partitions that are
    /// restored. The default is `None`: no limit.
    pub memory_limit: Option<usize>,
    /// Number of warm copies of each partition, in addition to its owner.
    pub standby: usize,
    /// Time without a sign of life after which the group assigns a node's partitions to others.
    pub session_timeout: Duration,
    /// Maximum time that the start waits for a broker.
    pub start_timeout: Duration,
    /// Further settings of librdkafka, such as those of SASL: names and values.
    pub settings: Vec<(String, String)>,
}

impl NodeOptions {
    /// Creates options with no indexes, no backups, no warm copies, and a session timeout of 10 s.
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
            memory_limit: None,
            standby: 0,
            session_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(10),
            settings: Vec::new(),
        }
    }
}
