//! SCAN cursors: numbers that stand for the last key returned, in a snapshot.
//!
//! Clients send cursors back as unsigned numbers, so a key cannot stand in one. A cursor names a
//! position between keys and not a slot of a table: inserts and deletes leave it valid, and it may
//! be used more than once. The oldest are forgotten beyond [`KEPT`].
//!
//! All cursors of one scan read the snapshot that was taken when it began, as long as its lease
//! lasts; each call renews it. Afterwards they go on from the same key in the present state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::state::Snapshot;

/// Cursors remembered at once, of all clients together.
pub const KEPT: usize = 16_384;
/// Scans with a snapshot at once; beyond, the one that ends first loses it.
const LEASES: usize = 1024;

#[derive(Debug)]
pub struct Cursors {
    table: Mutex<Table>,
    lease: Duration,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    positions: BTreeMap<u64, Position>,
    leases: BTreeMap<u64, Lease>,
    ended: u64,
}

/// Where a scan goes on.
#[derive(Debug, Clone)]
pub struct Position {
    /// Behind this key.
    pub key: Vec<u8>,
    /// The scan that it belongs to: its first cursor.
    scan: u64,
}

#[derive(Debug)]
struct Lease {
    snapshot: Snapshot,
    until: Instant,
}

impl Cursors {
    pub fn new(lease: Duration) -> Self {
        Self { table: Mutex::default(), lease }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cursor behind this key, of the scan that `from` belongs to (`None`: of a new one), which
    /// reads this snapshot. Never 0.
    pub fn remember(
        self: &Arc<Self>,
        key: Vec<u8>,
        from: Option<&Position>,
        snapshot: Snapshot,
    ) -> u64 {
        let mut ended = Vec::new();
        let mut table = self.table();
        table.last += 1;
        let cursor = table.last;
        let scan = from.map_or(cursor, |from| from.scan);
        table.positions.insert(cursor, Position { key, scan });
        if table.positions.len() > KEPT {
            table.positions.pop_first();
        }
        let until = Instant::now() + self.lease;
        let watched = table.leases.contains_key(&scan);
        ended.extend(table.leases.insert(scan, Lease { snapshot, until }));
        if table.leases.len() > LEASES {
            let first = table.leases.iter().min_by_key(|(_, lease)| lease.until);
            if let Some(first) = first.map(|(scan, _)| *scan) {
                ended.extend(table.leases.remove(&first));
                table.ended += 1;
            }
        }
        // Snapshots end outside the lock: that may collect.
        drop(table);
        if !watched {
            tokio::spawn(end_in_time(Arc::downgrade(self), scan, until));
        }
        cursor
    }

    /// Where to go on, and in which snapshot if its lease lasts; `None` if the cursor is forgotten
    /// or was never given.
    pub fn recall(&self, cursor: u64) -> Option<(Position, Option<Snapshot>)> {
        let table = self.table();
        let position = table.positions.get(&cursor)?.clone();
        let snapshot = table.leases.get(&position.scan).map(|lease| lease.snapshot.clone());
        Some((position, snapshot))
    }

    /// The scan has come to its end.
    pub fn finish(&self, from: Option<&Position>) {
        let ended = from.and_then(|from| self.table().leases.remove(&from.scan));
        drop(ended);
    }

    /// Ends all snapshots of scans.
    pub fn end_leases(&self) {
        let ended = std::mem::take(&mut self.table().leases);
        drop(ended);
    }

    /// Scans with a snapshot, and how many leases have run out.
    pub fn leases(&self) -> (usize, u64) {
        let table = self.table();
        (table.leases.len(), table.ended)
    }

    /// Ends the scan's snapshot if its lease has run out; if it was renewed, until when.
    fn end_or_wait(&self, scan: u64) -> Option<Instant> {
        let mut table = self.table();
        let until = table.leases.get(&scan)?.until;
        if until > Instant::now() {
            return Some(until);
        }
        table.ended += 1;
        let ended = table.leases.remove(&scan);
        drop(table);
        drop(ended);
        None
    }
}

/// Waits for the end of a lease, however often it is renewed.
async fn end_in_time(cursors: std::sync::Weak<Cursors>, scan: u64, mut until: Instant) {
    loop {
        tokio::time::sleep_until(until.into()).await;
        match cursors.upgrade().and_then(|cursors| cursors.end_or_wait(scan)) {
            Some(renewed) => until = renewed,
            None => return,
        }
    }
}
