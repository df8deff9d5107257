//! SCAN cursors: numbers, each of which names the last returned key of a scan.
//!
//! Clients send cursors back as unsigned numbers, so a cursor cannot contain a key. A cursor names
//! a position between keys and not a slot of a table: inserts and deletes leave it valid, and it
//! may be used more than once.
//!
//! All cursors of a scan read the snapshot that was taken when the scan began, until its lease ends.
//! Each call renews the lease. After its end, the scan continues from the same key in the present
//! state. A flush ends all scans: their next call returns nothing and the cursor 0,
//! or an error if it asks for the scan's own state.
//!
//! The table keeps the last [`RECENT`] cursors of each scan, so that a long scan does not evict
//! those of others. In total it keeps [`KEPT`] cursors with [`KEPT_BYTES`] bytes of keys. When
//! there are more cursors, those of scans whose lease has ended are evicted: of the client with the
//! most such scans, the oldest first. When there are more bytes, cursors of any scan are evicted:
//! of the client with the most bytes, the oldest scan first. So a client that begins many scans, or
//! scans with long keys, ends its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordna::sync::Lock;

use crate::keyspace::lease::Lease;
use crate::keyspace::snapshot::KeyspaceSnapshot;

/// Maximum number of cursors of all clients together.
const KEPT: usize = 16_384;
/// Maximum number of bytes of their keys.
const KEPT_BYTES: usize = 16 << 20;
/// Number of cursors kept of one scan.
const RECENT: usize = 16;
/// Maximum number of scans with a lease. One more ends the lease that would end first.
const LEASES: usize = 1024;
// So leased scans alone never exceed `KEPT`.
const _: () = assert!(LEASES * RECENT <= KEPT);
/// Upper bound of a lease, so that `Instant + lease` cannot overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The cursors of all clients.
#[derive(Debug)]
pub struct ScanCursors {
    table: Lock<CursorTable>,
    lease: Duration,
}

#[derive(Debug, Default)]
struct CursorTable {
    /// The number before the first cursor of this run of the server. `last` is the latest cursor.
    base: u64,
    last: u64,
    positions: BTreeMap<u64, Position>,
    /// Total size in bytes of the cursors' keys.
    bytes: usize,
    scans: BTreeMap<u64, Scan>,
    leases: BTreeMap<u64, LeasedSnapshot>,
    idle: IdleScans,
    clients: ClientScans,
    /// Number of leases that have ended because of their time or because of [`LEASES`].
    ended: u64,
    /// The latest cursor before the last flush.
    flushed: u64,
}

#[derive(Debug)]
struct Scan {
    /// The client that began the scan. Other connections may continue it, because clients have
    /// several.
    client: u64,
    /// The kept cursors, oldest first. There is at least one.
    cursors: VecDeque<u64>,
}

/// The scans without a lease.
#[derive(Debug, Default)]
struct IdleScans {
    /// The idle scans of each client. No set is empty.
    of_client: BTreeMap<u64, BTreeSet<u64>>,
    /// The number of each client's idle scans, with the client.
    counts: BTreeSet<(usize, u64)>,
}

impl IdleScans {
    /// Calls `change` with the scans of a client. O(log n).
    fn change(&mut self, client: u64, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let scans = self.of_client.entry(client).or_default();
        self.counts.remove(&(scans.len(), client));
        change(scans);
        if scans.is_empty() {
            self.of_client.remove(&client);
        } else {
            self.counts.insert((scans.len(), client));
        }
    }

    /// Returns the oldest idle scan of the client that has the most.
    fn first_to_end(&self) -> Option<u64> {
        let (_, client) = self.counts.last()?;
        self.of_client.get(client)?.first().copied()
    }
}

/// All scans, with a lease or without.
#[derive(Debug, Default)]
struct ClientScans {
    /// For each client, the total size in bytes of its cursors' keys, and its scans. No set is
    /// empty.
    of_client: BTreeMap<u64, (usize, BTreeSet<u64>)>,
    /// The bytes of each client, its oldest scan, and the client.
    by_bytes: BTreeSet<(usize, Reverse<u64>, u64)>,
}

impl ClientScans {
    /// Calls `change` with the bytes and the scans of a client. O(log n).
    fn change(&mut self, client: u64, change: impl FnOnce(&mut usize, &mut BTreeSet<u64>)) {
        let (bytes, scans) = self.of_client.entry(client).or_default();
        if let Some(oldest) = scans.first() {
            self.by_bytes.remove(&(*bytes, Reverse(*oldest), client));
        }
        change(bytes, scans);
        if let Some(oldest) = scans.first() {
            self.by_bytes.insert((*bytes, Reverse(*oldest), client));
        } else {
            self.of_client.remove(&client);
        }
    }
}

/// The result of looking up a cursor.
pub enum Recalled {
    /// Its position, and the snapshot unless the lease has ended.
    Position(Position, Option<KeyspaceSnapshot>),
    /// The keyspace was flushed after the cursor was created, so the scan is at its end.
    Flushed,
    /// The cursor was evicted or never existed.
    Unknown,
}

/// The position at which a scan continues.
#[derive(Debug, Clone)]
pub struct Position {
    /// The scan continues after this key.
    pub key: Vec<u8>,
    /// The scan, identified by its first cursor.
    scan: u64,
}

#[derive(Debug)]
struct LeasedSnapshot {
    snapshot: KeyspaceSnapshot,
    lease: Lease,
}

impl CursorTable {
    /// Evicts the oldest cursor of a scan. Returns the lease if that was the last cursor. The caller drops the
    /// snapshot after it has released the lock, since that may collect garbage.
    fn evict_oldest(&mut self, scan: u64) -> Option<LeasedSnapshot> {
        let Scan { client, cursors } = self.scans.get_mut(&scan)?;
        let client = *client;
        let position = cursors.pop_front().and_then(|cursor| self.positions.remove(&cursor));
        let (freed, is_over) = (position.map_or(0, |it| it.key.len()), cursors.is_empty());
        self.bytes -= freed;
        self.clients.change(client, |bytes, scans| {
            *bytes -= freed;
            if is_over {
                scans.remove(&scan);
            }
        });
        if !is_over {
            return None;
        }
        self.idle.change(client, |idle| _ = idle.remove(&scan));
        self.scans.remove(&scan);
        let ended = self.leases.remove(&scan);
        self.ended += u64::from(ended.is_some());
        ended
    }

    /// Returns the scan whose oldest cursor is evicted if the keys take too many bytes. The only
    /// cursor of `latest` is kept.
    fn longest(&self, latest: u64) -> Option<u64> {
        let may_end = |scan: &&u64| {
            **scan != latest || self.scans.get(scan).is_some_and(|it| it.cursors.len() > 1)
        };
        let mut clients = self.clients.by_bytes.iter().rev();
        clients.find_map(|(.., client)| {
            self.clients.of_client.get(client)?.1.iter().find(may_end).copied()
        })
    }

    /// Ends the lease that would end first. The caller drops the snapshot after releasing the lock,
    /// as above.
    fn end_first_lease(&mut self) -> Option<LeasedSnapshot> {
        let first = self.leases.iter().min_by_key(|(_, leased)| leased.lease.until());
        let ended = first.map(|(scan, _)| *scan).and_then(|first| self.end(first));
        self.ended += u64::from(ended.is_some());
        ended
    }

    /// Ends a lease. The caller drops the snapshot after releasing the lock, as above.
    fn end(&mut self, scan: u64) -> Option<LeasedSnapshot> {
        let leased = self.leases.remove(&scan)?;
        if let Some(Scan { client, .. }) = self.scans.get(&scan) {
            self.idle.change(*client, |idle| _ = idle.insert(scan));
        }
        Some(leased)
    }
}

/// Returns the number from which a run of the server counts its cursors. It is random in the bits
/// above the lowest 32, so that a cursor of a former run names no position of another client's scan.
/// All cursors stay below 2^53: some clients read them as floats.
fn first_number() -> u64 {
    let mut bytes = [0; 8];
    // Without random numbers cursors count from 0.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes) >> 44 << 32
}

impl ScanCursors {
    pub fn new(lease: Duration) -> Self {
        let base = first_number();
        let table = CursorTable { base, last: base, flushed: base, ..CursorTable::default() };
        Self { table: Lock::new(table), lease: lease.min(LONGEST) }
    }

    /// Adds a cursor after `key`. It belongs to the scan of `from` or, if that is `None`, to a new
    /// scan of this client, which reads `snapshot`. Renews the lease. The cursor is never 0.
    pub fn remember(
        self: &Arc<Self>,
        client: u64,
        key: Vec<u8>,
        from: Option<&Position>,
        snapshot: KeyspaceSnapshot,
    ) -> u64 {
        let until = Instant::now() + self.lease;
        let mut guard = self.table.lock();
        let table = &mut *guard;
        table.last += 1;
        let cursor = table.last;
        let scan = from.map_or(cursor, |from| from.scan);
        let len = key.len();
        table.bytes += len;
        table.positions.insert(cursor, Position { key, scan });
        let known = table.scans.entry(scan);
        let known = known.or_insert_with(|| Scan { client, cursors: VecDeque::new() });
        let client = known.client;
        known.cursors.push_back(cursor);
        let has_too_many = known.cursors.len() > RECENT;
        table.clients.change(client, |bytes, scans| {
            *bytes += len;
            scans.insert(scan);
        });
        let (mut former, mut ended) = (None, Vec::new());
        if has_too_many {
            ended.extend(table.evict_oldest(scan));
        }
        if let Some(leased) = table.leases.get_mut(&scan) {
            former = Some(std::mem::replace(&mut leased.snapshot, snapshot));
            leased.lease.renew(until);
        } else {
            let cursors = Arc::downgrade(self);
            let lease = Lease::new(until, move || cursors.upgrade()?.end_unless_renewed(scan));
            table.leases.insert(scan, LeasedSnapshot { snapshot, lease });
            table.idle.change(client, |idle| _ = idle.remove(&scan));
            if table.leases.len() > LEASES {
                ended.extend(table.end_first_lease());
            }
        }
        while table.bytes > KEPT_BYTES {
            let Some(longest) = table.longest(scan) else { break };
            ended.extend(table.evict_oldest(longest));
        }
        // Scans with a lease have fewer cursors.
        while table.positions.len() > KEPT {
            let Some(first) = table.idle.first_to_end() else { break };
            ended.extend(table.evict_oldest(first));
        }
        // The lock is released first, because dropping a snapshot may collect garbage.
        drop(guard);
        drop((former, ended));
        cursor
    }

    /// Looks a cursor up.
    pub fn recall(&self, cursor: u64) -> Recalled {
        let table = self.table.lock();
        if (table.base + 1..=table.flushed).contains(&cursor) {
            return Recalled::Flushed;
        }
        let Some(position) = table.positions.get(&cursor).cloned() else {
            return Recalled::Unknown;
        };
        let snapshot = table.leases.get(&position.scan).map(|leased| leased.snapshot.clone());
        Recalled::Position(position, snapshot)
    }

    /// Ends the lease of a scan that has returned its last key.
    pub fn finish(&self, from: Option<&Position>) {
        let ended = from.and_then(|from| self.table.lock().end(from.scan));
        drop(ended);
    }

    /// Ends all leases. The scans continue after the same keys in the present state.
    pub fn end_leases(&self) {
        let mut table = self.table.lock();
        let scans: Vec<u64> = table.leases.keys().copied().collect();
        let ended: Vec<_> = scans.into_iter().filter_map(|scan| table.end(scan)).collect();
        table.ended += ended.len() as u64;
        drop(table);
        drop(ended);
    }

    /// Ends all scans, because the keyspace is flushed.
    pub fn end_all(&self) {
        let mut table = self.table.lock();
        let scans: Vec<u64> = table.leases.keys().copied().collect();
        let ended: Vec<_> = scans.into_iter().filter_map(|scan| table.end(scan)).collect();
        table.flushed = table.last;
        table.positions.clear();
        table.bytes = 0;
        table.scans.clear();
        table.idle = IdleScans::default();
        table.clients = ClientScans::default();
        drop(table);
        drop(ended);
    }

    /// Returns the number of scans with a lease, and of leases that have ended.
    pub fn leases(&self) -> (usize, u64) {
        let table = self.table.lock();
        (table.leases.len(), table.ended)
    }

    /// Ends the scan's lease, or returns its new end if it was renewed.
    fn end_unless_renewed(&self, scan: u64) -> Option<Instant> {
        let mut table = self.table.lock();
        let until = table.leases.get(&scan)?.lease.until();
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
            let slow = cursors.remember(1, b"slow".to_vec(), None, KeyspaceSnapshot::of(&store));
            let mut from = None;
            for n in 0..2 * KEPT {
                let key = format!("{n}").into_bytes();
                let cursor = cursors.remember(1, key, from.as_ref(), KeyspaceSnapshot::of(&store));
                from = Some(position(&cursors, cursor).0);
            }
            // Neither do many short scans.
            for _ in 0..2 * KEPT {
                let cursor = cursors.remember(1, Vec::new(), None, KeyspaceSnapshot::of(&store));
                let from = Some(position(&cursors, cursor).0);
                cursors.finish(from.as_ref());
            }
            let (position, snapshot) = position(&cursors, slow);
            assert_eq!((position.key.as_slice(), snapshot.is_some()), (&b"slow"[..], true));
            let table = cursors.table.lock();
            assert_eq!(table.positions.len(), KEPT);
            assert_eq!(table.scans.values().map(|scan| scan.cursors.len()).sum::<usize>(), KEPT);
            let idle = table.idle.of_client.values().map(BTreeSet::len).sum::<usize>();
            assert_eq!(table.scans.len(), table.leases.len() + idle);
        });
    }

    #[test]
    fn a_client_that_begins_many_scans_ends_its_own() {
        in_runtime(|| {
            let store = Keyspace::with_options(ordna::Options::new());
            let cursors = Arc::new(ScanCursors::new(Duration::from_secs(60)));
            let begin = |client| {
                cursors.remember(client, b"k".to_vec(), None, KeyspaceSnapshot::of(&store))
            };
            let patient = begin(1);
            let first = begin(2);
            for _ in 0..KEPT + LEASES {
                begin(2);
            }
            let (_, snapshot) = position(&cursors, patient);
            assert!(snapshot.is_none(), "its lease was ended by those of the other client");
            assert!(matches!(cursors.recall(first), Recalled::Unknown));
            // Many clients with one scan each do not end that scan before those of the client with
            // many.
            let third = begin(2);
            (0..2 * LEASES as u64).for_each(|client| _ = begin(100 + client));
            position(&cursors, patient);
            position(&cursors, third);
            let table = cursors.table.lock();
            assert_eq!(table.positions.len(), KEPT);
            assert_eq!(table.idle.counts.len(), table.idle.of_client.len());
        });
    }

    /// Neither idle scans nor scans with a lease keep more than the limit of long keys.
    #[test]
    fn the_keys_of_all_cursors_are_bounded() {
        in_runtime(|| {
            let store = Keyspace::with_options(ordna::Options::new());
            let cursors = Arc::new(ScanCursors::new(Duration::from_secs(60)));
            let key = vec![b'k'; 65_000];
            let mut last = 0;
            for client in 0..2 * LEASES as u64 {
                last = cursors.remember(client, key.clone(), None, KeyspaceSnapshot::of(&store));
                assert!(cursors.table.lock().bytes <= KEPT_BYTES);
            }
            assert_eq!(position(&cursors, last).0.key, key);
            let table = cursors.table.lock();
            let kept: usize = table.positions.values().map(|position| position.key.len()).sum();
            assert_eq!(table.bytes, kept);
            assert!(kept > KEPT_BYTES / 2);
            drop(table);
            cursors.end_all();
            assert_eq!(cursors.table.lock().bytes, 0);
        });
    }

    #[test]
    fn a_client_whose_keys_are_long_ends_its_own_scans() {
        in_runtime(|| {
            let store = Keyspace::with_options(ordna::Options::new());
            let cursors = Arc::new(ScanCursors::new(Duration::from_secs(60)));
            let begin =
                |client, key| cursors.remember(client, key, None, KeyspaceSnapshot::of(&store));
            let patient = begin(1, b"k".to_vec());
            let first = begin(2, vec![b'k'; 65_000]);
            let mut last = first;
            for _ in 0..LEASES - 2 {
                last = begin(2, vec![b'k'; 65_000]);
            }
            assert!(position(&cursors, patient).1.is_some(), "nor does its lease end");
            assert!(matches!(cursors.recall(first), Recalled::Unknown));
            assert!(position(&cursors, last).1.is_some());
            let table = cursors.table.lock();
            let bytes: usize = table.clients.of_client.values().map(|(bytes, _)| bytes).sum();
            assert_eq!((table.clients.by_bytes.len(), bytes), (2, table.bytes));
            assert_eq!(table.scans.len(), table.leases.len(), "no lease without a cursor");
        });
    }

    #[test]
    fn a_cursor_may_be_used_again_and_the_oldest_of_a_scan_are_forgotten() {
        in_runtime(|| {
            let store = Keyspace::with_options(ordna::Options::new());
            // The longest lease does not overflow the clock.
            let cursors = Arc::new(ScanCursors::new(Duration::MAX));
            let first = cursors.remember(1, b"a".to_vec(), None, KeyspaceSnapshot::of(&store));
            let (from, _) = position(&cursors, first);
            let until =
                |cursors: &ScanCursors| cursors.table.lock().leases[&from.scan].lease.until();
            let begun = until(&cursors);
            for _ in 1..RECENT {
                cursors.remember(1, b"b".to_vec(), Some(&from), KeyspaceSnapshot::of(&store));
            }
            assert!(until(&cursors) > begun, "each call renews the lease");
            position(&cursors, first);
            cursors.remember(1, b"b".to_vec(), Some(&from), KeyspaceSnapshot::of(&store));
            assert!(matches!(cursors.recall(first), Recalled::Unknown));
            assert_eq!(cursors.table.lock().positions.len(), RECENT);
        });
    }

    #[test]
    fn scans_that_have_ended_leave_no_tasks() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let store = Keyspace::with_options(ordna::Options::new());
            let cursors = Arc::new(ScanCursors::new(Duration::from_secs(3600)));
            for _ in 0..100 {
                let cursor = cursors.remember(1, b"a".to_vec(), None, KeyspaceSnapshot::of(&store));
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
