//! The interface for a crate that replicates the keyspace.

use std::fmt::Debug;
use std::time::Duration;

pub use crate::keyspace::replicated::ReplicatedKeyspace;

/// What a server is in its replication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationRole {
    /// It writes.
    Primary,
    /// It applies what a primary has written.
    Follower,
    /// It was a primary, and another server has taken over.
    Fenced,
}

/// The state of the replication.
#[derive(Debug, Clone)]
pub struct ReplicationStatus {
    /// What this server is.
    pub role: ReplicationRole,
    /// Name of the replicated log.
    pub log: String,
    /// Number of the present or the last primary's run.
    pub term: u64,
    /// Position in the run's log: acknowledged, or applied.
    pub position: u64,
    /// Bytes that are written and not acknowledged.
    pub waiting: u64,
    /// Of a follower: the age of its state.
    pub lag: Option<Duration>,
    /// Why the replication has ended.
    pub failure: Option<String>,
}

/// Copies of a keyspace on other machines.
///
/// # Contract
/// All methods may be called by any thread. [`status`](Self::status) returns at once, the others
/// may block.
pub trait Replication: Send + Sync + Debug {
    /// Whether the server starts as a follower, which refuses writes.
    fn follows(&self) -> bool;

    /// Begins, once the keyspace is loaded and before it is written.
    ///
    /// # Errors
    /// Why the server cannot start.
    fn start(&self, keyspace: ReplicatedKeyspace) -> Result<(), String>;

    /// Returns the state.
    fn status(&self) -> ReplicationStatus;

    /// Makes a follower the primary; a former one cannot write any more.
    ///
    /// # Errors
    /// Why it remains a follower.
    fn promote(&self) -> Result<(), String>;

    /// Waits until the state is at least that of a term and a position; or until the time is over.
    /// Returns whether it is.
    fn wait(&self, term: u64, position: u64, time: Duration) -> bool;

    /// Ends, before the log of the keyspace is closed. What was written is acknowledged first.
    fn stop(&self);
}
