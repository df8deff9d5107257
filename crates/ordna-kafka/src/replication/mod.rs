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
//! | `applier` | messages repeated on a store; its place in the partition | no |
//! | `producer` | the transactional producer, which fences former ones | yes |
//! | `follower` | the committed messages of a partition | yes |

mod applier;
#[cfg(feature = "kafka")]
mod follower;
mod message;
mod outbox;
#[cfg(feature = "kafka")]
mod producer;

pub use applier::{Applier, ApplyError, Place};
#[cfg(feature = "kafka")]
pub use follower::{FollowError, Follower, Step};
pub use message::{MessageError, Run};
pub use outbox::{Limits, Outbox, Transport, TransportError};
#[cfg(feature = "kafka")]
pub use producer::Producer;
