//! The store.

#![expect(unsafe_code, reason = "exported to C")]
// The header states what every exported function requires for safety: handles are live or null,
// slices are readable, and outputs are writable.
#![expect(clippy::missing_safety_doc, reason = "stated once above")]

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use ordna::{BackupOptions, Change, Error, OpenOptions, Options, Store, SyncPolicy};

use crate::batch::OrdnaBatch;
use crate::scan::{OrdnaRange, OrdnaVisit, RangeScan};
use crate::snapshot::{OrdnaSnapshot, count_range};
use crate::status::{
    Failure, LastError, OrdnaSlice, OrdnaStatus, Process, copy_last, copy_value, guarded, making,
    null_handle, path_of,
};

/// When writes to the log of a store become durable.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrdnaSync {
    /// Before the write returns. One fsync serves all threads that wait.
    Always = 0,
    /// Once a second. A crash of the machine may lose the writes of the last second.
    EverySecond = 1,
    /// When the operating system writes the log to the disk.
    Never = 2,
}

/// An ordered key-value store of byte strings.
pub struct OrdnaStore {
    store: Store<[u8], [u8]>,
    last: LastError,
    process: Process,
}

impl OrdnaStore {
    fn new(store: Store<[u8], [u8]>) -> Self {
        Self { store, last: LastError::default(), process: Process::this() }
    }
}

/// Runs a call on the store of a handle.
///
/// # Safety
/// `handle` is null or live.
#[inline]
pub(crate) unsafe fn on(
    handle: *const OrdnaStore,
    call: impl FnOnce(&Store<[u8], [u8]>) -> Result<OrdnaStatus, Failure>,
) -> c_int {
    // SAFETY: the caller guarantees that the handle is null or live.
    match unsafe { handle.as_ref() } {
        Some(handle) => guarded(&handle.last, || {
            handle.process.check()?;
            call(&handle.store)
        }),
        None => null_handle(),
    }
}

fn options(memory_limit: u64) -> Options {
    match usize::try_from(memory_limit) {
        Ok(bytes) if bytes > 0 => Options::new().memory_limit(bytes),
        _ => Options::new(),
    }
}

/// Creates an empty store in memory and writes it to `*out`. `memory_limit` is in bytes; 0 means no
/// limit. Free the store with `ordna_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_new(memory_limit: u64, out: *mut *mut OrdnaStore) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        making(out, std::ptr::null_mut(), 0, || {
            Ok(OrdnaStore::new(Store::with_options(options(memory_limit))))
        })
    }
}

/// Opens the store in the directory `path`, which is created if it does not exist, and writes it to
/// `*out`. Reads the newest backup and the log after it; from then on every write is logged. `sync`
/// is an `OrdnaSync`; `memory_limit` is in bytes, and 0 means no limit. Free the store with
/// `ordna_free`. O(n).
///
/// If the call fails, `*out` is null, the directory is unchanged, and the text of the error is
/// written to `error`, a buffer of `capacity` bytes, which may be null. Errors: `ORDNA_STATUS_IO`,
/// `ORDNA_STATUS_DAMAGED`, and `ORDNA_STATUS_IN_USE` if the directory is open already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_open(
    path: *const c_char,
    sync: c_int,
    memory_limit: u64,
    out: *mut *mut OrdnaStore,
    error: *mut c_char,
    capacity: usize,
) -> c_int {
    let open = || {
        let sync = match sync {
            0 => SyncPolicy::Always,
            1 => SyncPolicy::EverySecond,
            2 => SyncPolicy::Never,
            _ => return Err(Failure::invalid("sync is 0, 1 or 2")),
        };
        let options = OpenOptions::new().store(options(memory_limit)).sync(sync);
        // SAFETY: the caller guarantees what the called function requires.
        let path = unsafe { path_of(path) }?;
        Ok(OrdnaStore::new(Store::open(path, options)?))
    };
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { making(out, error, capacity, open) }
}

/// Creates a store in memory from a backup and writes it to `*out`. The backup in the directory
/// `path` is only read. Returns `ORDNA_STATUS_MEMORY_LIMIT` if it exceeds the limit; other errors
/// and their text are as in `ordna_open`. O(n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_restore(
    path: *const c_char,
    memory_limit: u64,
    out: *mut *mut OrdnaStore,
    error: *mut c_char,
    capacity: usize,
) -> c_int {
    let restore = || {
        let options = OpenOptions::new().store(options(memory_limit));
        // SAFETY: the caller guarantees what the called function requires.
        let path = unsafe { path_of(path) }?;
        Ok(OrdnaStore::new(Store::restore(path, options)?))
    };
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { making(out, error, capacity, restore) }
}

/// Frees a store. Does nothing if `store` is null. Snapshots and cursors of the store remain valid
/// and are freed separately; transactions must be freed first. When the call returns, the directory
/// of an opened store can be opened again. In a process that was forked from the one that created
/// the store, the call frees nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_free(store: *mut OrdnaStore) {
    if !store.is_null() {
        // SAFETY: this library created the handle, which is not used any more.
        let store = unsafe { Box::from_raw(store) };
        if store.process.is_forked() {
            // Dropping the store would wait for threads that do not exist in this process.
            std::mem::forget(store);
            return;
        }
        let _ = guarded(&LastError::default(), move || {
            drop(store);
            Ok(OrdnaStatus::Ok)
        });
    }
}

/// Copies the text of this thread's last error into `buffer`, as much as fits into `capacity` bytes
/// including a final zero byte. Returns the length of the whole text without the zero byte. The
/// text is empty if the last call of this thread that failed was a call on another handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_error(
    store: *const OrdnaStore,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live, and that the buffer is valid.
    unsafe { store.as_ref() }.map_or(0, |store| unsafe { store.last.copy(buffer, capacity) })
}

/// Copies the text of this thread's last error as `ordna_error` does, whatever handle the call was
/// on. This includes calls without a handle: calls on a null pointer, and calls that create a
/// handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_last_error(buffer: *mut c_char, capacity: usize) -> usize {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { copy_last(buffer, capacity) }
}

/// Returns the number of entries. O(1), and exact while no other thread writes. Expired entries
/// count until they are removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_len(store: *const OrdnaStore) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live.
    let store = unsafe { store.as_ref() }.filter(|store| !store.process.is_forked());
    store.map_or(0, |store| store.store.len())
}

/// Sets the value of a key. Key and value are copied. The entry does not expire. O(log n).
///
/// Errors, here and in all other calls that write: `ORDNA_STATUS_TOO_LONG`,
/// `ORDNA_STATUS_MEMORY_LIMIT`, and `ORDNA_STATUS_IO` if the log cannot record the write. After
/// `ORDNA_STATUS_IO` the write may be visible in memory, and may be lost in a crash. After any
/// other error nothing was changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_put(
    store: *const OrdnaStore,
    key: OrdnaSlice,
    value: OrdnaSlice,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            let (key, value) = (key.bytes()?, value.bytes()?);
            store.put(key, value)?;
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Sets the value of a key, which expires `milliseconds` from now. Works like `ordna_put`
/// otherwise.
///
/// A later write of the key removes the deadline, except that `ordna_compare_and_set` and
/// `ordna_modify` keep it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_put_for(
    store: *const OrdnaStore,
    key: OrdnaSlice,
    value: OrdnaSlice,
    milliseconds: u64,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            store.insert_for(key.bytes()?, value.bytes()?, Duration::from_millis(milliseconds))?;
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Makes a key expire `milliseconds` from now, or never if `milliseconds` is `UINT64_MAX`. Returns
/// `ORDNA_STATUS_NOT_FOUND` if the key is absent. O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_expire(
    store: *const OrdnaStore,
    key: OrdnaSlice,
    milliseconds: u64,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            let life = (milliseconds != u64::MAX).then(|| Duration::from_millis(milliseconds));
            let expires_at = life.map(|life| store.deadline_after(life));
            match store.set_expiry(key.bytes()?, expires_at) {
                Ok(true) => Ok(OrdnaStatus::Ok),
                Ok(false) | Err(Error::KeyTooLong { .. }) => Ok(OrdnaStatus::NotFound),
                Err(error) => Err(error.into()),
            }
        })
    }
}

/// Writes the time until a key expires to `*milliseconds`, or `UINT64_MAX` if it does not expire.
/// Returns `ORDNA_STATUS_NOT_FOUND` if the key is absent. O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_expires_in(
    store: *const OrdnaStore,
    key: OrdnaSlice,
    milliseconds: *mut u64,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            if milliseconds.is_null() {
                return Err(Failure::invalid("the place for the milliseconds is null"));
            }
            let Some(left) = store.expires_in(key.bytes()?) else {
                return Ok(OrdnaStatus::NotFound);
            };
            let millis = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            milliseconds.write(left.map_or(u64::MAX, millis));
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Copies the value of a key into `buffer`, which has `capacity` bytes, and writes the length of
/// the value to `*length`, which may be null. If the value does not fit, returns
/// `ORDNA_STATUS_TOO_SMALL` and copies nothing; a `capacity` of 0 thus asks for the length. Returns
/// `ORDNA_STATUS_NOT_FOUND` if the key is absent. O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_get(
    store: *const OrdnaStore,
    key: OrdnaSlice,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            let found =
                store.get_with(key.bytes()?, |value| copy_value(value, buffer, capacity, length));
            Ok(found.unwrap_or(OrdnaStatus::NotFound))
        })
    }
}

/// Removes a key. Returns `ORDNA_STATUS_NOT_FOUND` if it was absent; a key that is too long is
/// always absent. O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_remove(store: *const OrdnaStore, key: OrdnaSlice) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            // `modify` avoids copying the value.
            let mut present = false;
            let removed = store.modify::<&[u8], _>(key.bytes()?, |value| {
                present = value.is_some();
                Change::Remove
            });
            if !matches!(removed, Err(Error::KeyTooLong { .. })) {
                removed?;
            }
            Ok(if present { OrdnaStatus::Ok } else { OrdnaStatus::NotFound })
        })
    }
}

/// Sets a key to `desired` if its value is `expected`, as one step. A null pointer means an absent
/// key: `expected` = null requires that the key is absent, `desired` = null removes it. A new value
/// keeps the deadline of the former one. Returns `ORDNA_STATUS_MISMATCH` if the key does not have
/// the expected value. O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_compare_and_set(
    store: *const OrdnaStore,
    key: OrdnaSlice,
    expected: *const OrdnaSlice,
    desired: *const OrdnaSlice,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            let expected = expected.as_ref().map(|slice| slice.bytes()).transpose()?;
            let desired = desired.as_ref().map(|slice| slice.bytes()).transpose()?;
            let key = key.bytes()?;
            // A key that is too long is absent, and removing it changes nothing.
            let matches = if desired.is_none() && key.len() > ordna::key::MAX_LEN {
                expected.is_none()
            } else {
                store.compare_exchange(key, expected, desired)?.is_ok()
            };
            Ok(if matches { OrdnaStatus::Ok } else { OrdnaStatus::Mismatch })
        })
    }
}

/// Calls `visit` with the entries of `range` in order; a null pointer means all entries. Returns
/// `ORDNA_STATUS_STOPPED` if `visit` returned a number other than 0. O(log n), then amortized O(1)
/// for each entry.
///
/// Entries that other threads insert or remove during the scan may or may not be visited. Use
/// `ordna_snapshot_scan` for the entries of one moment. `visit` may use the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_scan(
    store: *const OrdnaStore,
    range: *const OrdnaRange,
    visit: OrdnaVisit,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(store, |store| RangeScan::of(range)?.run(store, visit, context)) }
}

/// Calls `visit` with the entries whose keys begin with `prefix`, as `ordna_scan` does for a range,
/// in descending order if `reverse` is true. Visits at most `limit` entries; 0 means no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_prefix(
    store: *const OrdnaStore,
    prefix: OrdnaSlice,
    reverse: bool,
    limit: usize,
    visit: OrdnaVisit,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            RangeScan::prefix(prefix.bytes()?, reverse, limit).run(store, visit, context)
        })
    }
}

/// Removes all keys of `range`, or all keys of the store if it is null. The direction and the limit
/// of the range are ignored. Writes the number of removed keys to `*removed`, which may be null.
/// Every snapshot holds all of the keys or none of them. Keys that other threads insert during the
/// call may stay. O(log n) for each key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_remove_range(
    store: *const OrdnaStore,
    range: *const OrdnaRange,
    removed: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(store, |store| remove_within(store, &RangeScan::of(range)?, removed)) }
}

/// Removes all keys that begin with `prefix`, as `ordna_remove_range` does for a range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_remove_prefix(
    store: *const OrdnaStore,
    prefix: OrdnaSlice,
    removed: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            remove_within(store, &RangeScan::prefix(prefix.bytes()?, false, 0), removed)
        })
    }
}

/// Removes the keys of a range and writes their number to `removed`.
///
/// # Safety
/// `removed` is null or writable.
unsafe fn remove_within(
    store: &Store<[u8], [u8]>,
    scan: &RangeScan,
    removed: *mut usize,
) -> Result<OrdnaStatus, Failure> {
    let count = store.remove_range(scan.bounds())?;
    if !removed.is_null() {
        // SAFETY: the caller guarantees that the pointer is writable.
        unsafe { removed.write(count) };
    }
    Ok(OrdnaStatus::Ok)
}

/// Applies the writes of a batch in order and empties the batch. Every snapshot, and the store
/// after a crash, holds all of them or none; readers of the latest state may see some of them
/// before others. O(log n) for each write.
///
/// If the call fails, the batch is unchanged. Errors are those of `ordna_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_write(store: *const OrdnaStore, batch: *mut OrdnaBatch) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            let batch = batch.as_mut().ok_or_else(|| Failure::invalid("the batch is null"))?;
            batch.apply(store)?;
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Takes a snapshot, the state of the store at this moment, and writes it to `*out`. Free it with
/// `ordna_snapshot_free`, before or after the store. O(log s) with s live snapshots, whatever the
/// number of entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_take(
    store: *const OrdnaStore,
    out: *mut *mut OrdnaSnapshot,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        // Ensures that `*out` is written even after an error or a panic.
        if !out.is_null() {
            out.write(std::ptr::null_mut());
        }
        on(store, |store| {
            if out.is_null() {
                return Err(Failure::invalid("the place for the snapshot is null"));
            }
            out.write(Box::into_raw(Box::new(OrdnaSnapshot::new(store.snapshot()))));
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Writes the exact number of keys in `range` to `*count`; a null pointer means all keys. The
/// direction and the limit of the range are ignored. The rank of a key is the number of keys below
/// it. O(log n + l) with l leaves within the range; a leaf has some 40 entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_count(
    store: *const OrdnaStore,
    range: *const OrdnaRange,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(store, |store| count_range(&store.snapshot(), &RangeScan::of(range)?, count)) }
}

/// Counts the keys that begin with `prefix`, as `ordna_count` does for a range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_count_prefix(
    store: *const OrdnaStore,
    prefix: OrdnaSlice,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            let scan = RangeScan::prefix(prefix.bytes()?, false, 0);
            count_range(&store.snapshot(), &scan, count)
        })
    }
}

/// Makes all earlier writes durable, whatever the `OrdnaSync` of the store. Does nothing for a
/// store without a directory. Returns `ORDNA_STATUS_IO` if the log cannot record writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_sync(store: *const OrdnaStore) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            store.sync_log()?;
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Backs up the state of this moment into the directory `path`, which must not exist. If `path` is
/// null, backs up into the directory of an opened store; the log then starts again. Other threads
/// may write during the call. O(n).
///
/// Errors: `ORDNA_STATUS_IO`, `ORDNA_STATUS_EXISTS`, `ORDNA_STATUS_IN_USE` if another backup is in
/// progress, and `ORDNA_STATUS_INVALID` if `path` is null and the store has no directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_backup(store: *const OrdnaStore, path: *const c_char) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(store, |store| {
            if path.is_null() {
                store.backup(&BackupOptions::new())?;
            } else {
                store.backup_to(path_of(path)?, &BackupOptions::new())?;
            }
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Returns the memory that the store uses, in bytes. Visits all entries: O(n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_memory(store: *const OrdnaStore) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live.
    let store = unsafe { store.as_ref() }.filter(|store| !store.process.is_forked());
    store.map_or(0, |store| store.store.memory_usage().total())
}
