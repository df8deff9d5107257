//! A command that is to be executed again, on a snapshot. See [`large_reads`](super::large_reads)
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
    /// The snapshot; `None` if it is taken when the command is executed.
    pub snapshot: Option<Arc<KeyspaceSnapshot>>,
    /// What the write depends on. `Some` if the command writes and its snapshot was taken.
    pub premise: Option<Premise>,
    /// Whether the command is executed on the present state instead, as there was no room to
    /// prepare it.
    pub is_in_place: bool,
}

/// How a command is executed.
#[derive(Debug)]
pub enum Execution {
    /// For the first time, by the task of its client. It may ask for a snapshot.
    First,
    /// On a snapshot. What it writes is committed if the premise holds.
    Prepared(Premise),
    /// On the present state, however long it takes.
    InPlace,
}

/// What a write that was prepared on a snapshot depends on: its keys are as they were.
#[derive(Debug)]
pub struct Premise {
    /// The keys of the command, and whether each was present.
    watched: Vec<(Watch, bool)>,
}

impl Premise {
    /// Takes a snapshot for a command that writes. The caller excludes other commands, or the
    /// command has one key, which holds a large collection.
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
        // First the watch: a write is then in the snapshot, or noticed, or both.
        let watched: Vec<Watch> = named.iter().map(|key| watches.watch(key)).collect();
        let snapshot = KeyspaceSnapshot::of(keys);
        let was_present = |watch: &Watch| snapshot.get_with(watch.key(), |_| ()).is_some();
        let watched = watched.into_iter().map(|watch| (was_present(&watch), watch));
        let watched = watched.map(|(was_present, watch)| (watch, was_present)).collect();
        (Self { watched }, Arc::new(snapshot))
    }

    /// Whether the keys are as they were. The caller excludes other commands.
    pub fn holds(&self, keys: &Keyspace) -> bool {
        // An expiry writes no key.
        let is_same = |(watch, was_present): &(Watch, bool)| {
            !watch.was_written() && keys.contains(watch.key()) == *was_present
        };
        self.watched.iter().all(is_same)
    }
}
