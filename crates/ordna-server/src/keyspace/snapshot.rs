//! A snapshot that keeps its keyspace alive.

use std::ops::{Bound, ControlFlow};
use std::time::Instant;

use ordna::index::bounds_cross;
use ordna::{Direction, Put};

use crate::keyspace::stored_key::{self, borrowed, stored, stored_bounds};
use crate::keyspace::user_keys::{Entry, VisitEntries};
use crate::keyspace::{Freeing, Keyspace};

/// A snapshot of the keys and values. Holds a handle of the keyspace, which may be flushed.
#[derive(Debug, Clone)]
pub struct KeyspaceSnapshot {
    // Dropped before the keyspace that it reads.
    snapshot: ordna::Snapshot<[u8], [u8]>,
    keyspace: Keyspace,
    /// The time of the snapshot on the store's clock. Fields that expire later stay in it.
    time: u64,
}

impl KeyspaceSnapshot {
    pub fn of(keyspace: &Keyspace) -> Self {
        let snapshot = keyspace.store.snapshot();
        Self { snapshot, keyspace: keyspace.clone(), time: keyspace.now() }
    }

    /// Drops the snapshot. If it was the last holder of a flushed keyspace, the result resolves
    /// when the keyspace is freed.
    pub fn release(self) -> Option<Freeing> {
        let Self { snapshot, keyspace, .. } = self;
        drop(snapshot);
        keyspace.release()
    }

    /// Returns the snapshot of the store, with keys in their stored form.
    pub fn stored(&self) -> &ordna::Snapshot<[u8], [u8]> {
        &self.snapshot
    }

    /// Returns the time of the snapshot on the store's clock.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns the keyspace in its present state.
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Returns the number of the snapshot.
    pub fn epoch(&self) -> u64 {
        self.snapshot.epoch()
    }

    /// Returns the time when the snapshot was taken.
    pub fn taken(&self) -> Instant {
        self.snapshot.taken()
    }

    /// Calls `read` with the value of a user key in its stored form.
    pub fn get_with<R>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.snapshot.get_with(&stored(key), read)
    }

    /// Returns the deadline of a user key, `Some(None)` if it has none, or `None` if the key is
    /// absent.
    pub fn expires_at(&self, key: &[u8]) -> Option<Option<u64>> {
        self.snapshot.get_entry_with(&stored(key), |found| found.expires_at)
    }

    /// Returns the value of a user key in its stored form, and its deadline.
    pub fn get_entry(&self, key: &[u8]) -> Option<(Vec<u8>, Option<u64>)> {
        let mut found = None;
        let key = Bound::Included(key);
        self.visit_entries(key, key, Direction::Ascending, |_, put| {
            found = Some((put.value.to_vec(), put.expires_at));
            ControlFlow::Break(())
        });
        found
    }

    /// Visits the user keys within the bounds until `visit` breaks.
    pub fn visit(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        self.visit_entries(lower, upper, direction, |key, put| visit(key, put.value));
    }

    /// Works like [`visit`](Self::visit), with the deadlines.
    pub fn visit_entries(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        mut visit: impl FnMut(&[u8], Put<&[u8]>) -> ControlFlow<()>,
    ) {
        let (lower, upper) = stored_bounds(lower, upper);
        let (lower, upper) = (borrowed(&lower), borrowed(&upper));
        if !bounds_cross(lower, upper) {
            let visit: &mut VisitEntries<'_> = &mut |key, put| visit(&stored_key::user(key), put);
            self.snapshot.visit_entries(lower, upper, direction, visit);
        }
    }

    /// Returns the number of user keys. O(log n + l) with l leaves.
    pub fn len(&self) -> usize {
        self.snapshot.count(Bound::Unbounded, Bound::Excluded(stored_key::USER_END))
    }

    /// Returns the number of user keys below `key`.
    pub fn rank(&self, key: &[u8]) -> usize {
        self.snapshot.rank(&stored(key))
    }

    /// Returns the user key at a position, counted from 0, and its value.
    pub fn select(&self, position: usize) -> Option<Entry> {
        let (key, value) = self.snapshot.select(position)?;
        let is_user = key.as_slice() < stored_key::USER_END;
        is_user.then(|| (stored_key::user(&key).into_owned(), value))
    }
}
