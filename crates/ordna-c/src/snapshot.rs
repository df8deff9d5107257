//! Snapshots.

#![expect(unsafe_code, reason = "exported to C")]
#![expect(clippy::missing_safety_doc, reason = "as in the module of the store")]

use std::ffi::{c_char, c_int, c_void};

use ordna::Snapshot;

use crate::scan::{OrdnaRange, OrdnaVisit, RangeScan};
use crate::status::{
    Failure, LastError, OrdnaSlice, OrdnaStatus, Process, copy_value, guarded, null_handle,
};

/// A state of a store at one moment. Later writes do not change it.
pub struct OrdnaSnapshot {
    snapshot: Snapshot<[u8], [u8]>,
    last: LastError,
    process: Process,
}

impl OrdnaSnapshot {
    pub(crate) fn new(snapshot: Snapshot<[u8], [u8]>) -> Self {
        Self { snapshot, last: LastError::default(), process: Process::this() }
    }
}

/// Runs a call on the snapshot of a handle.
///
/// # Safety
/// `handle` is null or live.
pub(crate) unsafe fn on(
    handle: *const OrdnaSnapshot,
    call: impl FnOnce(&Snapshot<[u8], [u8]>) -> Result<OrdnaStatus, Failure>,
) -> c_int {
    // SAFETY: the caller guarantees that the handle is null or live.
    match unsafe { handle.as_ref() } {
        Some(handle) => guarded(&handle.last, || {
            handle.process.check()?;
            call(&handle.snapshot)
        }),
        None => null_handle(),
    }
}

/// Frees a snapshot. Does nothing if `snapshot` is null or was created by the process that forked
/// this one. A live snapshot keeps the old states of keys that are written after it was taken, so
/// free it soon.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_free(snapshot: *mut OrdnaSnapshot) {
    if !snapshot.is_null() {
        // SAFETY: this library created the handle, which is not used any more.
        let snapshot = unsafe { Box::from_raw(snapshot) };
        if snapshot.process.is_forked() {
            std::mem::forget(snapshot);
            return;
        }
        let _ = guarded(&LastError::default(), move || {
            drop(snapshot);
            Ok(OrdnaStatus::Ok)
        });
    }
}

/// Copies the text of the snapshot's last error, as `ordna_error` does for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_error(
    snapshot: *const OrdnaSnapshot,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live, and that the buffer is valid.
    unsafe { snapshot.as_ref() }.map_or(0, |handle| unsafe { handle.last.copy(buffer, capacity) })
}

/// Returns the exact number of entries. O(1) if no entry of the store ever had a deadline;
/// otherwise the first call counts the entries, O(n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_len(snapshot: *const OrdnaSnapshot) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live.
    let snapshot = unsafe { snapshot.as_ref() }.filter(|handle| !handle.process.is_forked());
    snapshot.map_or(0, |handle| handle.snapshot.len())
}

/// Copies the value that a key has in the snapshot, as `ordna_get` does for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_get(
    snapshot: *const OrdnaSnapshot,
    key: OrdnaSlice,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(snapshot, |snapshot| {
            let give = |value: &[u8]| copy_value(value, buffer, capacity, length);
            Ok(snapshot.get_with(key.bytes()?, give).unwrap_or(OrdnaStatus::NotFound))
        })
    }
}

/// Calls `visit` with the entries of a range in the snapshot, as `ordna_scan` does for a store. All
/// entries are of the same moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_scan(
    snapshot: *const OrdnaSnapshot,
    range: *const OrdnaRange,
    visit: OrdnaVisit,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(snapshot, |snapshot| RangeScan::of(range)?.run(snapshot, visit, context)) }
}

/// Calls `visit` with the entries whose keys begin with `prefix`, as `ordna_prefix` does for a
/// store. All entries are of the same moment.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_prefix(
    snapshot: *const OrdnaSnapshot,
    prefix: OrdnaSlice,
    reverse: bool,
    limit: usize,
    visit: OrdnaVisit,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(snapshot, |snapshot| {
            RangeScan::prefix(prefix.bytes()?, reverse, limit).run(snapshot, visit, context)
        })
    }
}

/// Counts the keys of a range in the snapshot, as `ordna_count` does for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_count(
    snapshot: *const OrdnaSnapshot,
    range: *const OrdnaRange,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(snapshot, |snapshot| count_range(snapshot, &RangeScan::of(range)?, count)) }
}

/// Counts the keys that begin with `prefix` in the snapshot, as `ordna_count` does for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_count_prefix(
    snapshot: *const OrdnaSnapshot,
    prefix: OrdnaSlice,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(snapshot, |snapshot| {
            count_range(snapshot, &RangeScan::prefix(prefix.bytes()?, false, 0), count)
        })
    }
}

/// Writes the number of keys of a range to `count`.
///
/// # Safety
/// `count` is null or writable.
pub(crate) unsafe fn count_range(
    snapshot: &Snapshot<[u8], [u8]>,
    scan: &RangeScan,
    count: *mut usize,
) -> Result<OrdnaStatus, Failure> {
    if count.is_null() {
        return Err(Failure::invalid("the place for the count is null"));
    }
    let (lower, upper) = scan.bounds();
    // SAFETY: the caller guarantees that the pointer is writable.
    unsafe { count.write(snapshot.count(lower, upper)) };
    Ok(OrdnaStatus::Ok)
}
