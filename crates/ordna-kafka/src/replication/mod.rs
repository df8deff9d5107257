//! Replicates the log of one keyspace through one partition.
//!
//! The primary's log passes its groups of records to an [`Outbox`], whose thread commits them as
//! messages. An [`Applier`] repeats the messages on the store of a follower. Both are independent
//! of Kafka, because the transport between them is a trait. `docs/design/replication.md` describes
//! the design.
//!
//! | module | contents | needs the feature `kafka` |
//! |---|---|---|
//! | `message` | the encoding of a message | no |
//! | `outbox` | groups that wait for their commit | no |
//! | `assembler` | complete groups from messages in order; a place in the partition | no |
//! | `applier` | messages repeated on a store | no |
//! | `noted_run` | the last run that a directory's primary has begun | yes |
//! | `history` | the end of a partition | yes |
//! | `topic` | the creation of the topic | yes |
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
