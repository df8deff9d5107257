//! One keyspace's log, replicated through one partition.
//!
//! The primary's log passes its groups of records to an [`Outbox`], whose thread commits them as
//! messages; an [`Applier`] repeats the messages on the store of a follower. Both are independent
//! of Kafka: the transport between them is a trait. The design is `docs/design/replication.md`.
//!
//! | module | holds | needs the feature `kafka` |
//! |---|---|---|
//! | `message` | a message as bytes | no |
//! | `outbox` | groups that wait for their commit | no |
//! | `assembler` | messages in their order, as whole groups; a place in the partition | no |
//! | `applier` | messages repeated on a store | no |
//! | `noted_run` | the run that a directory's primary began last | yes |
//! | `history` | the end of a partition | yes |
//! | `topic` | its creation | yes |
//! | `kafka_replication` | the replication of a server | yes |
//! | `producer` | the transactional producer, which fences former ones | yes |
//! | `follower` | the committed messages of a partition | yes |

mod applier;
mod assembler;
#[cfg(feature = "kafka")]
mod follower;
#[cfg(feature = "kafka")]
mod history;
#[cfg(feature = "kafka")]
mod kafka_replication;
mod message;
#[cfg(feature = "kafka")]
mod noted_run;
mod outbox;
#[cfg(feature = "kafka")]
mod producer;
#[cfg(feature = "kafka")]
mod topic;

pub use applier::Applier;
pub use assembler::{ApplyError, Assembled, Assembler, Place};
#[cfg(feature = "kafka")]
pub use follower::{FollowError, Follower, Step};
#[cfg(feature = "kafka")]
pub use kafka_replication::{KafkaReplication, LogTopic};
pub use message::{MessageError, Run};
pub use outbox::{Limits, Outbox, Transport, TransportError};
#[cfg(feature = "kafka")]
pub use producer::Producer;
