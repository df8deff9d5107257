//! Index nodes over the partitions of a Kafka topic.
//!
//! Each partition of a topic is a source with a single partition, and its sequence numbers are
//! offsets. Nodes join a consumer group, which divides the partitions among them, and each node
//! indexes its partitions. Every node can answer queries over all partitions.
//!
//! The correctness of results does not depend on the group. The rows of a partition are complete at
//! the position that comes with them, whichever node returns them: an owner, a standby, or a node
//! that has lost the partition and does not know it yet. A query uses the rows of one node for each
//! partition.
//!
//! | module | holds | needs the feature `kafka` |
//! |---|---|---|
//! | `node` | the contract between a node's own partitions and queries over all nodes | no |
//! | `query` | queries over nodes: requests to owners, the merge of their answers | no |
//! | `owner_table` | the owner table, and who keeps warm copies | yes |
//! | `backups` | the backups of partitions in a shared directory | yes |
//! //! | `record`, `poison_records` | conversion of records to documents; records that cannot be converted | yes |
//! | `replication` | one keyspace's log through one partition; nodes of indexes do not use it | in part |
//! //! | `options` | options of a node | yes |
//! //! | `broker`, `topic_id` | requests to the brokers: ends, topic id, owner table | yes |
//! | `epoch_history`, `leader_epoch` | the history of what was read, and its comparison with the brokers' | yes |
//! | `source`, `fetch` | a partition as a source; the reader that feeds all of them | yes |
//! | `open_partition` | a partition with its service | yes |
//! | `membership`, `index_node` | the group; a node | yes |
//! | `node_extension` | commands and metrics of a node in the Redis protocol | yes |
//!
//! Sources: the Nitro paper (VLDB 2016), §8 and §9; `docs/scale-out.md`.

#[cfg(feature = "kafka")]
mod backups;
#[cfg(feature = "kafka")]
mod broker;
#[cfg(feature = "kafka")]
mod epoch_history;
#[cfg(feature = "kafka")]
mod fetch;
#[cfg(feature = "kafka")]
mod index_node;
#[cfg(feature = "kafka")]
mod leader_epoch;
#[cfg(feature = "kafka")]
mod membership;
mod node;
#[cfg(feature = "kafka")]
mod node_extension;
#[cfg(feature = "kafka")]
mod open_partition;
#[cfg(feature = "kafka")]
mod options;
#[cfg(feature = "kafka")]
mod owner_table;
#[cfg(feature = "kafka")]
mod poison_records;
pub mod query;
#[cfg(feature = "kafka")]
mod record;
pub mod replication;
#[cfg(feature = "kafka")]
mod source;
#[cfg(feature = "kafka")]
mod topic_id;

#[cfg(feature = "kafka")]
pub use broker::{BrokerError, Ends};
#[cfg(feature = "kafka")]
pub use index_node::{IndexNode, PartitionInfo};
pub use node::{
    HeldPartition, LocalNode, Member, NodeError, OwnerTable, PartitionView, RequestedState, Role,
};
#[cfg(feature = "kafka")]
pub use node_extension::NodeExtension;
#[cfg(feature = "kafka")]
pub use options::NodeOptions;
#[cfg(feature = "kafka")]
pub use poison_records::PoisonRecord;
