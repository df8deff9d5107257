//! A command that must be executed again, on a snapshot. See [`large_reads`](super::large_reads)
//! and [`prepared_writes`](super::prepared_writes).

use std::sync::Arc;

use crate::keyspace::Keyspace;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::watches::{Watch, Watches};
use crate::state::command_spec::CommandSpec;
use crate::wire::request::{Arguments, OwnedRequest};

/// A command to be executed on a snapshot.
pub struct SnapshotRead {
    pub spec: CommandSpec,
    pub request: OwnedRequest,
    /// The snapshot, or `None` if it is taken when the command is executed.
    pub snapshot: Option<Arc<KeyspaceSnapshot>>,
    /// The state that the write depends on. `Some` if the command writes and its snapshot was
    /// taken.
    pub premise: Option<Premise>,
    /// Whether the command is executed on the present state, because its preparation would need too
    /// much memory.
    pub is_in_place: bool,
}

/// How a command is executed.
#[derive(Debug)]
pub enum Execution {
    /// The first execution, by the client's own task. It may ask for a snapshot.
    First,
    /// Execution on a snapshot. Its writes are committed if the premise still holds.
    Prepared(Premise),
    /// Execution on the present state, however long it takes.
    InPlace,
}

/// The state that a prepared write depends on: the keys must not have changed since the snapshot.
#[derive(Debug)]
pub struct Premise {
    /// The keys of the command, and whether each was present.
    watched: Vec<(Watch, bool)>,
}

impl Premise {
    /// Takes a snapshot for a command that writes. The caller excludes other commands, unless the
    /// command has a single key that holds a large collection.
    pub fn take(
        watches: &Arc<Watches>,
        keys: &Keyspace,
        spec: &CommandSpec,
        arguments: Arguments<'_>,
    ) -> (Self, Arc<KeyspaceSnapshot>) {
        let mut named: Vec<&[u8]> =
            spec.key_positions(arguments).map(|at| arguments.get(at)).collect();
        named.sort_unstable();
        named.dedup();
        // The keys are watched first, so that each write is in the snapshot, noticed by a watch, or
        // both.
        let watched: Vec<Watch> = named.iter().map(|key| watches.watch(key)).collect();
        let snapshot = KeyspaceSnapshot::of(keys);
        let was_present = |watch: &Watch| snapshot.get_with(watch.key(), |_| ()).is_some();
        let watched = watched.into_iter().map(|watch| (was_present(&watch), watch));
        let watched = watched.map(|(was_present, watch)| (watch, was_present)).collect();
        (Self { watched }, Arc::new(snapshot))
    }

    /// Returns whether the keys are unchanged. The caller excludes other commands.
    pub fn holds(&self, keys: &Keyspace) -> bool {
        // A key that expires is not written, so its presence is compared.
        let is_same = |(watch, was_present): &(Watch, bool)| {
            !watch.was_written() && keys.contains(watch.key()) == *was_present
        };
        self.watched.iter().all(is_same)
    }
}
