//! SCAN cursors: numbers that stand for the last key returned, in a snapshot.
//!
//! Clients send cursors back as unsigned numbers, so a key cannot stand in one. A cursor names a
//! position between keys and not a slot of a table: inserts and deletes leave it valid, and it may
//! be used more than once.
//!
//! All cursors of one scan read the snapshot that was taken when it began, as long as its lease
//! lasts; each call renews it. Afterwards they go on from the same key in the present state. A
//! flush ends all scans: their cursors lead to the end.
//!
//! Of each scan the last [`RECENT`] cursors are remembered, so that a long scan does not push out
//! those of others, and [`KEPT`] of all scans together. Beyond, scans without a lease forget
//! theirs, those that began first before others: no scan under way loses its place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::keyspace::snapshot::KeyspaceSnapshot;

/// Cursors remembered at once, of all clients together.
const KEPT: usize = 16_384;
/// Cursors remembered of one scan.
const RECENT: usize = 16;
/// Scans with a snapshot at once; beyond, the one that ends first loses it.
const LEASES: usize = 1024;
// So scans with a lease alone are never too many.
const _: () = assert!(LEASES * RECENT <= KEPT);
/// No lease is longer: an instant can be told of its end.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

#[derive(Debug)]
pub struct ScanCursors {
    table: Mutex<CursorTable>,
    lease: Duration,
}

#[derive(Debug, Default)]
struct CursorTable {
    last: u64,
    positions: BTreeMap<u64, Position>,
    /// The cursors of each scan that are remembered, oldest first. None is empty.
    scans: BTreeMap<u64, VecDeque<u64>>,
    leases: BTreeMap<u64, Lease>,
    /// The scans without a lease.
    idle: BTreeSet<u64>,
    ended: u64,
    /// Cursors up to this one are from before the last flush.
    flushed: u64,
}

/// The state behind a cursor.
pub enum Recalled {
    /// A position, and the snapshot if its lease lasts.
    Position(Position, Option<KeyspaceSnapshot>),
    /// The keyspace was flushed meanwhile: the scan is at its end.
    Flushed,
    /// The cursor is forgotten, or was never given.
    Unknown,
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
    snapshot: KeyspaceSnapshot,
    until: Instant,
    /// Sees to its end.
    task: AbortHandle,
}

impl CursorTable {
    /// Forgets the oldest cursor of a scan.
    fn forget_one(&mut self, scan: u64) {
        let Some(cursors) = self.scans.get_mut(&scan) else { return };
        if let Some(cursor) = cursors.pop_front() {
            self.positions.remove(&cursor);
        }
        if cursors.is_empty() {
            self.scans.remove(&scan);
            self.idle.remove(&scan);
        }
    }

    /// Ends a lease. The caller drops the snapshot that it held outside the lock: that may collect.
    fn end(&mut self, scan: u64) -> Option<Lease> {
        let lease = self.leases.remove(&scan)?;
        lease.task.abort();
        self.idle.insert(scan);
        Some(lease)
    }
}

impl ScanCursors {
    pub fn new(lease: Duration) -> Self {
        Self { table: Mutex::default(), lease: lease.min(LONGEST) }
    }

    fn table(&self) -> MutexGuard<'_, CursorTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cursor behind this key, of the scan that `from` belongs to (`None`: of a new one), which
    /// reads this snapshot. Never 0.
    pub fn remember(
        self: &Arc<Self>,
        key: Vec<u8>,
        from: Option<&Position>,
        snapshot: KeyspaceSnapshot,
    ) -> u64 {
        let until = Instant::now() + self.lease;
        let mut guard = self.table();
        let table = &mut *guard;
        table.last += 1;
        let cursor = table.last;
        let scan = from.map_or(cursor, |from| from.scan);
        table.positions.insert(cursor, Position { key, scan });
        let cursors = table.scans.entry(scan).or_default();
        cursors.push_back(cursor);
        if cursors.len() > RECENT {
            table.forget_one(scan);
        }
        let (mut former, mut ended) = (None, None);
        if let Some(lease) = table.leases.get_mut(&scan) {
            former = Some(std::mem::replace(&mut lease.snapshot, snapshot));
            lease.until = until;
        } else {
            let task = tokio::spawn(end_in_time(Arc::downgrade(self), scan, until)).abort_handle();
            table.leases.insert(scan, Lease { snapshot, until, task });
            table.idle.remove(&scan);
            if table.leases.len() > LEASES {
                let first = table.leases.iter().min_by_key(|(_, lease)| lease.until);
                ended = first.map(|(scan, _)| *scan).and_then(|first| table.end(first));
                table.ended += 1;
            }
        }
        while table.positions.len() > KEPT
            && let Some(first) = table.idle.first().copied()
        {
            table.forget_one(first);
        }
        // Snapshots end outside the lock: that may collect.
        drop(guard);
        drop((former, ended));
        cursor
    }

    pub fn recall(&self, cursor: u64) -> Recalled {
        let table = self.table();
        if cursor <= table.flushed {
            return Recalled::Flushed;
        }
        let Some(position) = table.positions.get(&cursor).cloned() else {
            return Recalled::Unknown;
        };
        let snapshot = table.leases.get(&position.scan).map(|lease| lease.snapshot.clone());
        Recalled::Position(position, snapshot)
    }

    /// The scan has come to its end.
    pub fn finish(&self, from: Option<&Position>) {
        let ended = from.and_then(|from| self.table().end(from.scan));
        drop(ended);
    }

    /// Ends all scans: the keyspace is flushed.
    pub fn end_all(&self) {
        let mut table = self.table();
        let scans: Vec<u64> = table.leases.keys().copied().collect();
        let ended: Vec<_> = scans.into_iter().filter_map(|scan| table.end(scan)).collect();
        table.flushed = table.last;
        table.positions.clear();
        table.scans.clear();
        table.idle.clear();
        drop(table);
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
        let ended = table.end(scan);
        drop(table);
        drop(ended);
        None
    }
}

/// Waits for the end of a lease, however often it is renewed.
async fn end_in_time(cursors: std::sync::Weak<ScanCursors>, scan: u64, mut until: Instant) {
    loop {
        tokio::time::sleep_until(until.into()).await;
        match cursors.upgrade().and_then(|cursors| cursors.end_or_wait(scan)) {
            Some(renewed) => until = renewed,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::Keyspace;

    fn in_runtime(body: impl FnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(async { body() });
    }

    fn position(cursors: &ScanCursors, cursor: u64) -> (Position, Option<KeyspaceSnapshot>) {
        match cursors.recall(cursor) {
            Recalled::Position(position, snapshot) => (position, snapshot),
            Recalled::Flushed | Recalled::Unknown => panic!("cursor {cursor} is gone"),
        }
    }

    #[test]
    fn a_long_scan_does_not_push_out_the_cursors_of_others() {
        in_runtime(|| {
            let store = Keyspace::with_options(ordna::Options::new());
            let cursors = Arc::new(ScanCursors::new(Duration::from_secs(60)));
            let slow = cursors.remember(b"slow".to_vec(), None, KeyspaceSnapshot::of(&store));
            let mut from = None;
            for n in 0..2 * KEPT {
                let key = format!("{n}").into_bytes();
                let cursor = cursors.remember(key, from.as_ref(), KeyspaceSnapshot::of(&store));
                from = Some(position(&cursors, cursor).0);
            }
            // Nor do many short ones.
            for _ in 0..2 * KEPT {
                let cursor = cursors.remember(Vec::new(), None, KeyspaceSnapshot::of(&store));
                let from = Some(position(&cursors, cursor).0);
                cursors.finish(from.as_ref());
            }
            let (position, snapshot) = position(&cursors, slow);
            assert_eq!((position.key.as_slice(), snapshot.is_some()), (&b"slow"[..], true));
            let table = cursors.table();
            assert_eq!(table.positions.len(), KEPT);
            assert_eq!(table.scans.values().map(VecDeque::len).sum::<usize>(), KEPT);
            assert_eq!(table.scans.len(), table.leases.len() + table.idle.len());
        });
    }

    #[test]
    fn a_cursor_may_be_used_again_and_the_oldest_of_a_scan_are_forgotten() {
        in_runtime(|| {
            let store = Keyspace::with_options(ordna::Options::new());
            // No overflow of the clock either.
            let cursors = Arc::new(ScanCursors::new(Duration::MAX));
            let first = cursors.remember(b"a".to_vec(), None, KeyspaceSnapshot::of(&store));
            let (from, _) = position(&cursors, first);
            let until = |cursors: &ScanCursors| cursors.table().leases[&from.scan].until;
            let begun = until(&cursors);
            for _ in 1..RECENT {
                cursors.remember(b"b".to_vec(), Some(&from), KeyspaceSnapshot::of(&store));
            }
            assert!(until(&cursors) > begun, "each call renews the lease");
            position(&cursors, first);
            cursors.remember(b"b".to_vec(), Some(&from), KeyspaceSnapshot::of(&store));
            assert!(matches!(cursors.recall(first), Recalled::Unknown));
            assert_eq!(cursors.table().positions.len(), RECENT);
        });
    }

    #[test]
    fn scans_that_have_ended_leave_no_tasks() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let store = Keyspace::with_options(ordna::Options::new());
            let cursors = Arc::new(ScanCursors::new(Duration::from_secs(3600)));
            for _ in 0..100 {
                let cursor = cursors.remember(b"a".to_vec(), None, KeyspaceSnapshot::of(&store));
                let (from, _) = position(&cursors, cursor);
                cursors.finish(Some(&from));
            }
            let metrics = tokio::runtime::Handle::current().metrics();
            let all_gone = async {
                while metrics.num_alive_tasks() > 0 {
                    tokio::task::yield_now().await;
                }
            };
            let patience = Duration::from_secs(20);
            assert!(tokio::time::timeout(patience, all_gone).await.is_ok(), "tasks stay");
        });
    }
}
