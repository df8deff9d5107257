//! The interface between a node's own partitions and the queries over all nodes.
//!
//! # Contract
//! Any thread can call the methods of [`LocalNode`]. They block until their deadline at most.
//! Partitions can be opened and closed between two calls. A call for a partition that the node does
//! not hold fails with [`NodeError::NotHeld`]; it never returns an empty view instead.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use ordna_secondary::{Error, IndexDefinition, Position, View};

/// The state of a partition that a query requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedState {
    /// The newest snapshot point of the node.
    Any,
    /// A snapshot point that contains all changes up to this position.
    AtPlus(Position),
    /// A snapshot point that contains all changes that the partition had when the call began. For
    /// several partitions, [`LocalNode::newest`] returns the positions for `AtPlus` with a single
    /// request to the brokers.
    RequestPlus,
}

/// A partition at one position.
#[derive(Debug, Clone)]
pub struct PartitionView {
    /// The view of all indexes of the partition. Its vector has a single position, that of the
    /// partition. Keys of several partitions and nodes compare in the order of the index.
    pub view: View,
    /// Upper bound of the view's age: the time since the partition was last known to be at its end.
    pub age: Duration,
}

impl PartitionView {
    /// Returns the position up to which the view contains changes.
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
    /// The reason why the node holds it.
    pub role: Role,
    /// The position of its newest snapshot point. The identity is 0 while it is being restored.
    pub position: Position,
    /// Whether the node can answer queries: the partition is restored, and has reached its end
    /// once.
    pub ready: bool,
    /// Number of records up to the partition's end; `None` if the broker did not report the end.
    pub lag: Option<u64>,
}

/// A member of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The address for other nodes, `HOST:PORT`, from the member's metadata.
    pub address: String,
    /// The partitions that the group assigned to it.
    pub partitions: Vec<u32>,
}

/// The owner table: the group's members and their partitions.
///
/// The table may be outdated while the group rebalances: partitions may be missing, or belong to a
/// member that has left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerTable {
    /// Number of partitions of the topic.
    pub partitions: u32,
    /// The members, sorted by address.
    pub members: Vec<Member>,
    /// Number of the table in this process; it increases whenever the table changes.
    pub version: u64,
}

impl OwnerTable {
    /// Returns the member that owns a partition.
    pub fn owner(&self, partition: u32) -> Option<&Member> {
        self.members.iter().find(|member| member.partitions.contains(&partition))
    }
}

/// The reason why a node does not answer for a partition.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The node does not hold the partition.
    #[error("partition {partition} is not on this node")]
    NotHeld {
        /// The partition.
        partition: u32,
    },
    /// The partition is being restored, or has not reached its end yet.
    #[error("partition {partition} is being restored: {done} of {of} records")]
    Restoring {
        /// The partition.
        partition: u32,
        /// Number of records read so far.
        done: u64,
        /// Number of records to read.
        of: u64,
    },
    /// The index refused the query, or the requested state was not reached in time.
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
    /// The brokers do not answer.
    #[error("Kafka: {0}")]
    Broker(String),
}

/// A node's own partitions, and what it knows of the group.
pub trait LocalNode: Send + Sync + Debug {
    /// Returns the address for other nodes, `HOST:PORT`, as in [`Member::address`].
    fn address(&self) -> &str;

    /// Returns the definitions of all indexes, which are the same on each node of a group.
    fn indexes(&self) -> &[IndexDefinition];

    /// Returns the owner table as it was last read; see [`refresh`](Self::refresh). O(members).
    fn owners(&self) -> OwnerTable;

    /// Reads the owner table from the group at once. It is also read every second.
    ///
    /// # Errors
    /// [`NodeError::Broker`].
    fn refresh(&self, until: Instant) -> Result<OwnerTable, NodeError>;

    /// Returns the partitions that this node holds as owner or standby, in order.
    fn held(&self) -> Vec<HeldPartition>;

    /// Returns the newest positions of all partitions, in order, which `request_plus` waits for.
    /// Makes one request to the brokers for all of them.
    ///
    /// # Errors
    /// [`NodeError::Broker`].
    fn newest(&self, until: Instant) -> Result<Vec<Position>, NodeError>;

    /// Returns a partition in the requested state, and waits for this state until `until`.
    ///
    /// # Errors
    /// [`NodeError`] if the node does not hold the partition, or the state is not reached in time.
    fn view(
        &self,
        partition: u32,
        asked: RequestedState,
        until: Instant,
    ) -> Result<PartitionView, NodeError>;
}
