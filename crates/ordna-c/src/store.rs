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

/// When a store's log is made durable.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrdnaSync {
    /// Before a write returns.
    Always = 0,
    /// Once a second.
    EverySecond = 1,
    /// When the system likes.
    Never = 2,
}

/// An ordered store of byte strings.
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

/// Makes an empty store in memory. `memory_limit` is in bytes; 0: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_new(memory_limit: u64, out: *mut *mut OrdnaStore) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        making(out, std::ptr::null_mut(), 0, || {
            Ok(OrdnaStore::new(Store::with_options(options(memory_limit))))
        })
    }
}

/// Opens the store of a directory, which is made if it is not there. `sync` is an `OrdnaSync`. If
/// it fails, `*out` is null and `error` (of `capacity` bytes, or null) gets the text.
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

/// Makes a store in memory of what a backup holds. Errors as in `ordna_open`.
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

/// Frees a store; null is ignored. Its snapshots stay, and can be read and freed later. The directory of
/// an opened store is free for others when the call returns. In a child of the process that made the
/// store nothing is freed.
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

/// Copies the text of this thread's last error, with a final zero, into `buffer` of `capacity` bytes.
/// Returns the length of the whole text. The text is empty if the last call of this thread that failed
/// was one on another handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_error(
    store: *const OrdnaStore,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live, and that the buffer is valid.
    unsafe { store.as_ref() }.map_or(0, |store| unsafe { store.last.copy(buffer, capacity) })
}

/// The same for this thread's last error on any handle, of any kind, or on none: a call on a null handle,
/// or one that makes a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_last_error(buffer: *mut c_char, capacity: usize) -> usize {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { copy_last(buffer, capacity) }
}

/// Number of entries; exact while nobody writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_len(store: *const OrdnaStore) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live.
    let store = unsafe { store.as_ref() }.filter(|store| !store.process.is_forked());
    store.map_or(0, |store| store.store.len())
}

/// Sets the value of a key. After `ORDNA_STATUS_IO` the store may hold the value in memory: a log that
/// failed at this write, or before it is durable, does not take it back. The other statuses of errors
/// mean that nothing was changed; the same holds for every call that writes.
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

/// Sets the value of a key, which expires `milliseconds` from now. Every other call that sets a value
/// makes an entry that does not expire, but for `ordna_compare_and_set` and `ordna_modify`, which keep the
/// deadline.
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

/// Makes a key expire `milliseconds` from now; `UINT64_MAX`: never. `NOT_FOUND` if it is absent.
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

/// Writes the milliseconds until a key expires to `*milliseconds`; `UINT64_MAX`: never. `NOT_FOUND` if
/// it is absent.
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

/// Copies the value of a key into `buffer` of `capacity` bytes and writes its length to `*length`
/// (which may be null). If it does not fit: `TOO_SMALL`, and nothing is copied. An absent key:
/// `NOT_FOUND`.
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

/// Removes a key; `NOT_FOUND` if it was absent, as a key is that is too long.
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

/// Sets a key to `desired` if its value is `expected`, as one step. A null pointer stands for an
/// absent key: it is expected to be absent, or is removed. `MISMATCH` if the value is another one.
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

/// Calls `visit` with the entries of a range (null: all), in order, until it returns another number
/// than 0; then `STOPPED`. Entries that others write meanwhile may be given or not.
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

/// The same for the keys that begin with `prefix`; at most `limit` entries, 0: all.
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

/// Removes all keys of a range (null: all; direction and limit do not count) and writes their
/// number to `*removed` (which may be null).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_remove_range(
    store: *const OrdnaStore,
    range: *const OrdnaRange,
    removed: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(store, |store| remove_within(store, &RangeScan::of(range)?, removed)) }
}

/// Removes all keys that begin with `prefix`, as `ordna_remove_range`.
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

/// Applies the writes of a batch in their order and empties it. Every snapshot holds all of them or
/// none. If it fails, the batch stays as it is, and nothing is applied, but for `ORDNA_STATUS_IO` as in
/// `ordna_put`.
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

/// Takes a snapshot: the state of this moment, which does not change. O(1), whatever the number of
/// entries. Free it with `ordna_snapshot_free`, before or after the store.
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

/// Writes the number of keys of a range (null: all; direction and limit do not count) to `*count`,
/// exact. The rank of a key is the number of keys below it. O(log n), and O(1) for each leaf within.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_count(
    store: *const OrdnaStore,
    range: *const OrdnaRange,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(store, |store| count_range(&store.snapshot(), &RangeScan::of(range)?, count)) }
}

/// The same for the keys that begin with `prefix`.
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

/// Makes all writes so far durable, whatever the store's `OrdnaSync`. At once in a store in memory.
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

/// Backs up the state of this moment into the directory `path`, which must not exist; null: into
/// the directory of an opened store, whose log begins anew.
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

/// Bytes that the store holds. O(n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_memory(store: *const OrdnaStore) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live.
    let store = unsafe { store.as_ref() }.filter(|store| !store.process.is_forked());
    store.map_or(0, |store| store.store.memory_usage().total())
}
