//! Snapshots that clients hold by number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::state::Snapshot;

/// Snapshots at once, of all clients together.
pub const MOST: usize = 1024;

#[derive(Debug, Default)]
pub struct Snapshots(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last: u64,
    held: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    snapshot: Snapshot,
    /// When it ends by itself, and the task that sees to it.
    lease: Option<(Instant, AbortHandle)>,
}

/// A snapshot as it is listed.
pub struct Listed {
    pub id: u64,
    pub age: Duration,
    /// What is left of its lease.
    pub lease: Option<Duration>,
}

impl Snapshots {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a snapshot and returns its number; `None` if there are [`MOST`] already.
    pub fn keep(self: &Arc<Self>, snapshot: Snapshot, lease: Option<Duration>) -> Option<u64> {
        let mut table = self.table();
        if table.held.len() >= MOST {
            return None;
        }
        table.last += 1;
        let id = table.last;
        let lease = lease.and_then(|lease| {
            // Beyond what a clock can count it does not end.
            let until = Instant::now().checked_add(lease)?;
            let snapshots = Arc::downgrade(self);
            let task = tokio::spawn(async move {
                tokio::time::sleep_until(until.into()).await;
                if let Some(snapshots) = snapshots.upgrade() {
                    snapshots.end(id);
                }
            });
            Some((until, task.abort_handle()))
        });
        table.held.insert(id, Held { snapshot, lease });
        Some(id)
    }

    pub fn get(&self, id: u64) -> Option<Snapshot> {
        self.table().held.get(&id).map(|held| held.snapshot.clone())
    }

    /// Ends a snapshot; returns whether it was there.
    pub fn end(&self, id: u64) -> bool {
        // Outside the lock: ending a snapshot may collect.
        let held = self.table().held.remove(&id);
        if let Some((_, task)) = held.as_ref().and_then(|held| held.lease.as_ref()) {
            task.abort();
        }
        held.is_some()
    }

    pub fn list(&self) -> Vec<Listed> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let list = |(id, held): (&u64, &Held)| Listed {
            id: *id,
            age: held.snapshot.taken().elapsed(),
            lease: held.lease.as_ref().map(|(until, _)| left(*until)),
        };
        self.table().held.iter().map(list).collect()
    }
}
