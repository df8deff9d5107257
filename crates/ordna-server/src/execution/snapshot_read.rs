//! A command that is to be executed again, on a snapshot. See [`large_reads`](super::large_reads) and
//! [`prepared_writes`](super::prepared_writes).

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
    /// `None`: it is taken when the command is executed.
    pub snapshot: Option<Arc<KeyspaceSnapshot>>,
    /// Of a command that writes, and comes with its snapshot.
    pub premise: Option<Premise>,
    /// Whether the command is executed on the present state after all: on a snapshot there was no room for it.
    pub is_in_place: bool,
}

/// How a command is executed.
#[derive(Debug)]
pub enum Execution {
    /// Where its client is served. It may ask for a snapshot.
    First,
    /// On a snapshot; what it writes is committed if this holds.
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
    /// Takes a snapshot for a command that writes. The caller excludes other commands, or those of the command's
    /// keys are writes of large collections.
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
        // Watched first: what is written before the snapshot is in it, what is written later is noticed.
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
