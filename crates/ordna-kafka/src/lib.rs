//! Index nodes over the partitions of a Kafka topic.
//!
//! A topic's partitions are buckets, its offsets sequence numbers. Nodes join a consumer group,
//! which divides the partitions among them; each node indexes its partitions. Any node answers a
//! query of all of them.
//!
//! Soundness does not rest on the group. A slice of a partition is complete at the position that it
//! names, whichever node answers: an owner, a standby, or a node that lost the partition and does
//! not know yet. A query takes one slice of each partition.
//!
//! | module | holds | needs the feature `kafka` |
//! |---|---|---|
//! | `node` | the contract between a node's own partitions and queries over all nodes | no |
//! | `source` | the stream of a partition: identity, truncation, poison records | yes |
//! | `group` | membership: assignment, revocation, the owner table | yes |
//! | `query` | queries over nodes: requests to owners, the merge of their slices | no |
//!
//! Sources: the Nitro paper (VLDB 2016), §8 and §9; `docs/scale-out.md`.

mod node;
pub mod query;

pub use node::{Asked, Held, Local, Member, NodeError, Owners, Role, Shown};
