//! Statistics of a store.

#![expect(unsafe_code, reason = "exported to C")]
#![expect(clippy::missing_safety_doc, reason = "as in the module of the store")]

use std::ffi::c_int;
use std::time::Duration;

use ordna::Statistics;

use crate::status::{Failure, OrdnaStatus};
use crate::store::{OrdnaStore, on};

/// Statistics of a store. They are exact while no other thread uses it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct OrdnaStatistics {
    /// Number of keys. Expired keys count until they are removed.
    pub keys: u64,
    /// Number of keys that were removed because their deadline had passed.
    pub expired: u64,
    /// Number of values that have a deadline, including old values that snapshots can see.
    pub expiring: u64,
    /// Number of old states of keys that live snapshots can see or that wait to be freed.
    pub old_states: u64,
    /// Size in bytes of the entries and their old states. The memory limit applies to it.
    pub bytes: u64,
    /// Memory limit in bytes; 0 means no limit.
    pub memory_limit: u64,
    /// Number of live snapshots. Each cursor and each transaction holds one.
    pub snapshots: u64,
    /// Age of the oldest live snapshot in milliseconds; 0 if there is none.
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

/// Writes the statistics of the store to `*statistics`. O(s) with s live snapshots and long scans;
/// unlike `ordna_memory`, it does not visit the entries.
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
