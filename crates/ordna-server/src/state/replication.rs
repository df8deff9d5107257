//! The interface that a crate implements to replicate the keyspace.

use std::fmt::Debug;
use std::time::Duration;

pub use crate::keyspace::replicated::ReplicatedKeyspace;

/// The role of a server in its replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationRole {
    /// The server accepts writes.
    Primary,
    /// The server applies what a primary has written.
    Follower,
    /// The server was the primary until another server took over.
    Fenced,
}

/// The state of the replication.
#[derive(Debug, Clone)]
pub struct ReplicationStatus {
    /// Role of this server.
    pub role: ReplicationRole,
    /// Name of the replicated log.
    pub log: String,
    /// Number of the run of the current primary, or of the last one if there is none.
    pub term: u64,
    /// Position in the log of this run up to which a primary's writes are acknowledged, or up to
    /// which a follower has applied them.
    pub position: u64,
    /// Number of bytes that are written but not acknowledged.
    pub waiting: u64,
    /// Age of the state, if this server is a follower.
    pub lag: Option<Duration>,
    /// The reason why the replication has ended, if it has.
    pub failure: Option<String>,
    /// What a primary waits for, if its writes have not been acknowledged for seconds.
    pub delay: Option<String>,
}

/// Whether the state of a server includes an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It does.
    Reached,
    /// It may later.
    Pending,
    /// It never will: the run of the offset has ended, at this position, before the offset.
    Lost(u64),
    /// The run of the offset ended before this server started, so it is unknown.
    Unknown,
}

/// Keeps copies of a keyspace on other machines.
///
/// # Contract
/// All methods may be called by any thread. [`status`](Self::status) and
/// [`progress`](Self::progress) must return without waiting; the other methods may block.
pub trait Replication: Send + Sync + Debug {
    /// Returns whether the server starts as a follower, which refuses writes of clients.
    fn follows(&self) -> bool;

    /// Starts the replication. The server calls this after it has loaded the keyspace and before
    /// anything is written.
    ///
    /// # Errors
    /// Returns the reason why the server cannot start.
    fn start(&self, keyspace: ReplicatedKeyspace) -> Result<(), String>;

    /// Returns the state of the replication.
    fn status(&self) -> ReplicationStatus;

    /// Makes a follower the primary. The previous primary can no longer write.
    ///
    /// # Errors
    /// Returns the reason why the server remains a follower.
    fn promote(&self) -> Result<(), String>;

    /// Returns whether the state includes everything up to `position` in the log of the run `term`.
    fn progress(&self, term: u64, position: u64) -> Progress;

    /// Ends the replication. First waits until what was written is acknowledged. The server calls
    /// this before it closes the log of the keyspace.
    fn stop(&self);
}
