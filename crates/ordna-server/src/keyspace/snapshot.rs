//! A stable state of the keyspace that keeps the keyspace alive.

use std::ops::Deref;

use crate::keyspace::{Freeing, Keyspace};

/// A stable state of the keys and values.
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

    /// Drops the snapshot. The last holder of a flushed keyspace returns the end of its freeing.
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
