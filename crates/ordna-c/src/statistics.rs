//! Statistics of a store.

#![expect(unsafe_code, reason = "exported to C")]
#![expect(clippy::missing_safety_doc, reason = "as in the module of the store")]

use std::ffi::c_int;
use std::time::Duration;

use ordna::Statistics;

use crate::status::{Failure, OrdnaStatus};
use crate::store::{OrdnaStore, on};

/// Figures of a store. Exact while no other thread uses it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct OrdnaStatistics {
    /// Number of keys. Expired ones count until they are removed.
    pub keys: u64,
    /// Number of keys that were removed because their deadline had passed.
    pub expired: u64,
    /// Number of entries with a deadline, and of states of such entries that snapshots see.
    pub expiring: u64,
    /// Number of old states of keys, which live snapshots see or which are about to be freed.
    pub old_states: u64,
    /// Bytes of the entries and their old states: what the memory limit bounds.
    pub bytes: u64,
    /// The memory limit in bytes; 0: none.
    pub memory_limit: u64,
    /// Number of live snapshots. A cursor and a transaction hold one each.
    pub snapshots: u64,
    /// Age of the oldest live snapshot in milliseconds; 0: there is none.
    pub oldest_snapshot: u64,
    /// Number of scans in progress.
    pub scans: u64,
}

impl From<Statistics> for OrdnaStatistics {
    fn from(of: Statistics) -> Self {
        let millis = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Self {
            keys: of.items as u64,
            expired: of.expired,
            expiring: of.expiring.0 as u64,
            old_states: of.dead as u64,
            bytes: of.bytes as u64,
            memory_limit: of.memory_limit.unwrap_or(0) as u64,
            snapshots: of.snapshots.len() as u64,
            oldest_snapshot: of.snapshots.first().map_or(0, |oldest| millis(oldest.age)),
            scans: of.scans as u64,
        }
    }
}

/// Writes the statistics of the store to `*statistics`. Unlike `ordna_memory` it passes no entries: O(1)
/// for each live snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_statistics_of(
    store: *const OrdnaStore,
    statistics: *mut OrdnaStatistics,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            if statistics.is_null() {
                return Err(Failure::invalid("the place for the statistics is null"));
            }
            statistics.write(store.statistics().into());
            Ok(OrdnaStatus::Ok)
        })
    }
}
