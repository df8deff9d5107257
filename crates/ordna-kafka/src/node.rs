//! The contract between a node's own partitions and queries over all nodes.
//!
//! # Contract
//! All methods of [`LocalNode`] may be called by any thread and block until their deadline at most.
//! Partitions come and go between two calls; a call on a partition that the node does not hold
//! fails with [`NodeError::NotHeld`]; it never shows an empty view.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use ordna_secondary::{Error, IndexDefinition, Position, View};

/// The state of a partition that a query asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedState {
    /// The newest snapshot point of the holder.
    Any,
    /// A snapshot point that holds everything up to this position.
    AtPlus(Position),
    /// A snapshot point that holds everything that the partition had when the call began.
    /// [`LocalNode::newest`] gives the positions for `AtPlus` on several partitions with one
    /// question to the brokers.
    RequestPlus,
}

/// A partition at one position.
#[derive(Debug, Clone)]
pub struct PartitionView {
    /// All indexes of the partition. Its vector has one position: that of the partition. Its keys
    /// are in the order of the index across partitions and nodes.
    pub view: View,
    /// Time since the partition was last known to be at its end: how old the view may be.
    pub age: Duration,
}

impl PartitionView {
    /// The view holds exactly the changes up to here.
    pub fn position(&self) -> Position {
        self.view.vector().positions().first().copied().unwrap_or_default()
    }
}

/// Why a node holds a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The group assigned the partition to the node.
    Owner,
    /// The node keeps a warm copy.
    Standby,
}

/// A partition that a node holds.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldPartition {
    /// The partition.
    pub partition: u32,
    /// Why.
    pub role: Role,
    /// The position of its newest snapshot point; identity 0 while it is restored.
    pub position: Position,
    /// Whether it answers queries: it is restored, and was at the partition's end once.
    pub ready: bool,
    /// Records behind the partition's end; `None`: the broker did not tell.
    pub lag: Option<u64>,
}

/// A member of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where other nodes reach it: `HOST:PORT`, from the member's metadata.
    pub address: String,
    /// The partitions that the group assigned to it.
    pub partitions: Vec<u32>,
}

/// The owner table: the group's members and their partitions.
///
/// It may be behind the truth while the group rebalances: partitions may be missing, or be with a
/// member that has left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerTable {
    /// Partitions of the topic.
    pub partitions: u32,
    /// The members, sorted by address.
    pub members: Vec<Member>,
    /// Grows with each table that differs from the one before, in this process.
    pub version: u64,
}

impl OwnerTable {
    /// The member that a partition was assigned to.
    pub fn owner(&self, partition: u32) -> Option<&Member> {
        self.members.iter().find(|member| member.partitions.contains(&partition))
    }
}

/// Why a node does not answer for a partition.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The node does not hold the partition.
    #[error("partition {partition} is not on this node")]
    NotHeld {
        /// The partition.
        partition: u32,
    },
    /// The partition is being restored or has not reached its end yet.
    #[error("partition {partition} is being restored: {done} of {of} records")]
    Restoring {
        /// The partition.
        partition: u32,
        /// Records that were read.
        done: u64,
        /// Records to read.
        of: u64,
    },
    /// The index refused the query, or the state asked for did not come in time.
    #[error(transparent)]
    Index(#[from] Error),
    /// A backup could not be written.
    #[error("backup {path}: {reason}")]
    Backup {
        /// Its directory.
        path: String,
        /// What went wrong.
        reason: String,
    },
    /// The brokers cannot be asked.
    #[error("Kafka: {0}")]
    Broker(String),
}

/// A node's own partitions, and its knowledge of the group.
pub trait LocalNode: Send + Sync + Debug {
    /// Where other nodes reach this one: `HOST:PORT`, as in [`Member::address`].
    fn address(&self) -> &str;

    /// The definitions of all indexes, the same on each node of a group.
    fn indexes(&self) -> &[IndexDefinition];

    /// The owner table that was read last; see [`refresh`](Self::refresh). O(members).
    fn owners(&self) -> OwnerTable;

    /// Asks the group for the owner table at once. The table is read again anyway every second.
    ///
    /// # Errors
    /// [`NodeError::Broker`].
    fn refresh(&self, until: Instant) -> Result<OwnerTable, NodeError>;

    /// The partitions that this node holds, as owner or standby, in order.
    fn held(&self) -> Vec<HeldPartition>;

    /// The positions that all partitions have now, in order: what `request_plus` waits for. Asks
    /// the brokers once for all of them.
    ///
    /// # Errors
    /// [`NodeError::Broker`].
    fn newest(&self, until: Instant) -> Result<Vec<Position>, NodeError>;

    /// A partition in the state asked for. Waits until `until` for it.
    ///
    /// # Errors
    /// [`NodeError`]: the partition is not here, or cannot show that state in time.
    fn view(
        &self,
        partition: u32,
        asked: RequestedState,
        until: Instant,
    ) -> Result<PartitionView, NodeError>;
}
