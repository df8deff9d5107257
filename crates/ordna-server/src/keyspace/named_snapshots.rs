//! Snapshots that clients hold by number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordna::sync::Lock;

use crate::keyspace::Freeing;
use crate::keyspace::lease::Lease;
use crate::keyspace::snapshot::KeyspaceSnapshot;

/// Maximum number of snapshots of all clients together.
pub const MOST: usize = 1024;

/// The snapshots that clients have taken and not ended.
#[derive(Debug, Default)]
pub struct NamedSnapshots(Lock<SnapshotTable>);

#[derive(Debug, Default)]
struct SnapshotTable {
    /// Number of the latest snapshot.
    last: u64,
    held: BTreeMap<u64, NamedSnapshot>,
}

#[derive(Debug)]
struct NamedSnapshot {
    snapshot: KeyspaceSnapshot,
    /// `None` if the snapshot is kept until a client ends it.
    lease: Option<Lease>,
    /// The client whose disconnection ends the snapshot.
    owner: Option<u64>,
}

/// A snapshot in the list of all.
pub struct SnapshotInfo {
    pub id: u64,
    pub age: Duration,
    /// Time until its lease ends.
    pub lease: Option<Duration>,
    /// The client whose disconnection ends the snapshot.
    pub owner: Option<u64>,
    pub epoch: u64,
}

impl NamedSnapshots {
    /// Adds a snapshot and returns its number; `None` if there are [`MOST`] already.
    pub fn keep(
        self: &Arc<Self>,
        snapshot: KeyspaceSnapshot,
        lease: Option<Duration>,
        owner: Option<u64>,
    ) -> Option<u64> {
        let mut table = self.0.lock();
        if table.held.len() >= MOST {
            return None;
        }
        table.last += 1;
        let id = table.last;
        let lease = lease.and_then(|lease| {
            // A lease beyond the range of the clock never ends.
            let until = Instant::now().checked_add(lease)?;
            let snapshots = Arc::downgrade(self);
            Some(Lease::new(until, move || {
                // The task does not wait until the keyspace is freed.
                drop(snapshots.upgrade()?.end(id));
                None
            }))
        });
        table.held.insert(id, NamedSnapshot { snapshot, lease, owner });
        Some(id)
    }

    pub fn get(&self, id: u64) -> Option<KeyspaceSnapshot> {
        self.0.lock().held.get(&id).map(|held| held.snapshot.clone())
    }

    /// Ends a snapshot. Returns `None` if there is no snapshot with this number. If it was the last
    /// holder of a flushed keyspace, the result resolves when the keyspace is freed.
    pub fn end(&self, id: u64) -> Option<Option<Freeing>> {
        let held = self.0.lock().held.remove(&id)?;
        Some(held.snapshot.release())
    }

    /// Ends the snapshots of a client that has disconnected.
    pub fn end_of(&self, client: u64) {
        let table = self.0.lock();
        let of_client =
            |(id, held): (&u64, &NamedSnapshot)| (held.owner == Some(client)).then_some(*id);
        let ids: Vec<u64> = table.held.iter().filter_map(of_client).collect();
        drop(table);
        for id in ids {
            // The connection does not wait until the keyspace is freed.
            drop(self.end(id));
        }
    }

    pub fn list(&self) -> Vec<SnapshotInfo> {
        let list = |(id, held): (&u64, &NamedSnapshot)| SnapshotInfo {
            id: *id,
            age: held.snapshot.taken().elapsed(),
            lease: held.lease.as_ref().map(Lease::left),
            owner: held.owner,
            epoch: held.snapshot.epoch(),
        };
        self.0.lock().held.iter().map(list).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};

    use ordna::Options;

    use super::*;
    use crate::keyspace::Keyspace;

    /// Reports the thread on which it is dropped.
    struct Freed(Sender<ThreadId>);

    impl Drop for Freed {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn what_a_snapshot_kept_is_not_freed_by_a_thread_that_serves() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (tell, told) = channel();
            let freed = Freed(tell);
            let clock = move || {
                let _kept = &freed;
                0
            };
            let store = Keyspace::with_options(Options::new().clock(clock));
            let snapshots = Arc::new(NamedSnapshots::default());
            let id = snapshots.keep(KeyspaceSnapshot::of(&store), None, None).unwrap();
            drop(store);
            assert!(told.try_recv().is_err(), "the snapshot keeps it");
            snapshots.end(id).unwrap().unwrap().await.unwrap();
            assert_ne!(told.try_recv().unwrap(), thread::current().id());
            assert!(snapshots.end(id).is_none());
        });
    }

    /// The last holder may be a scan, a scan's lease or the count for INFO.
    #[test]
    fn the_last_holder_of_a_keyspace_does_not_free_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (tell, told) = channel();
        runtime.block_on(async {
            let freed = Freed(tell);
            let clock = move || {
                let _kept = &freed;
                0
            };
            let store = Keyspace::with_options(Options::new().clock(clock));
            let snapshot = KeyspaceSnapshot::of(&store);
            let clone = snapshot.clone();
            drop((store, snapshot));
            assert!(told.try_recv().is_err(), "the snapshot keeps it");
            drop(clone);
        });
        assert_ne!(told.recv().unwrap(), thread::current().id());
    }
}
