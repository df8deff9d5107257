//! A snapshot that keeps its keyspace alive.

use std::ops::Deref;

use crate::keyspace::{Freeing, Keyspace};

/// A snapshot of the keys and values. Holds a handle of the keyspace, which may be flushed.
#[derive(Debug, Clone)]
pub struct KeyspaceSnapshot {
    // Dropped before the keyspace that it reads.
    snapshot: ordna::Snapshot<[u8], [u8]>,
    keyspace: Keyspace,
}

impl KeyspaceSnapshot {
    pub fn of(keyspace: &Keyspace) -> Self {
        Self { snapshot: keyspace.snapshot(), keyspace: keyspace.clone() }
    }

    /// Drops the snapshot. If it was the last holder of a flushed keyspace, the result resolves once
    /// the keyspace is freed.
    pub fn release(self) -> Option<Freeing> {
        let Self { snapshot, keyspace } = self;
        drop(snapshot);
        keyspace.release()
    }
}

impl Deref for KeyspaceSnapshot {
    type Target = ordna::Snapshot<[u8], [u8]>;

    fn deref(&self) -> &Self::Target {
        &self.snapshot
    }
}
