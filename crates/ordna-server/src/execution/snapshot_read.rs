//! A command that is to be executed again, on a snapshot. See [`large_reads`](super::large_reads).

use std::sync::Arc;

use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::state::command_spec::CommandSpec;
use crate::wire::request::OwnedRequest;

/// A command to be executed on a snapshot.
pub struct SnapshotRead {
    pub spec: CommandSpec,
    pub request: OwnedRequest,
    /// `None`: it is taken when the command is executed.
    pub snapshot: Option<Arc<KeyspaceSnapshot>>,
}
