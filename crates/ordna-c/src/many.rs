//! Reads of many keys at once.

#![expect(unsafe_code, reason = "exported to C")]
#![expect(clippy::missing_safety_doc, reason = "as in the module of the store")]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ordna::index::READ_AHEAD_BYTES;

use crate::snapshot::{OrdnaSnapshot, on as on_snapshot};
use crate::status::{Failure, OrdnaSlice, OrdnaStatus};
use crate::store::{OrdnaStore, on as on_store};
use crate::transaction::{OrdnaTransaction, on as on_transaction};

/// Number of keys that are read before the callback gets their values.
const GROUP: usize = 256;

/// Callback that receives the value of the key at index `position` of the array, or a null pointer
/// if the key is absent. The value is valid during the call only. A result other than 0 ends the
/// reads. The callback must return normally: no exception and no `longjmp` may leave it.
pub type OrdnaVisitValue = Option<
    unsafe extern "C" fn(context: *mut c_void, position: usize, value: *const OrdnaSlice) -> c_int,
>;

/// Reads the keys in groups and calls `visit` between them, so the callback runs outside of the store.
///
/// # Safety
/// `keys` points to `count` readable slices, `visit` is a function as [`OrdnaVisitValue`] says, and
/// `context` is what it expects.
unsafe fn run(
    keys: *const OrdnaSlice,
    count: usize,
    visit: OrdnaVisitValue,
    context: *mut c_void,
    read: impl Fn(&[&[u8]], &mut dyn FnMut(usize, Option<&[u8]>)),
) -> Result<OrdnaStatus, Failure> {
    let visit = visit.ok_or_else(|| Failure::invalid("the callback is null"))?;
    if count == 0 {
        return Ok(OrdnaStatus::Ok);
    }
    if keys.is_null() {
        return Err(Failure::invalid("the array of keys is null"));
    }
    // More keys would not fit into memory.
    if count > isize::MAX as usize / size_of::<OrdnaSlice>() {
        return Err(Failure::invalid("the number of keys is larger than memory"));
    }
    // SAFETY: the caller guarantees that the keys are readable, and they are not null.
    let keys = unsafe { std::slice::from_raw_parts(keys, count) };
    // All keys are checked before the first call.
    for key in keys {
        // SAFETY: the caller guarantees what the called function requires.
        unsafe { key.bytes() }?;
    }
    let (mut group, mut bytes) = (Vec::<&[u8]>::with_capacity(GROUP.min(count)), Vec::new());
    let mut values = Vec::<Option<Range<usize>>>::with_capacity(GROUP.min(count));
    let (mut done, mut wanted) = (0, GROUP);
    while done < count {
        group.clear();
        bytes.clear();
        values.clear();
        for key in keys[done..].iter().take(wanted) {
            // SAFETY: the caller guarantees what the called function requires.
            group.push(unsafe { key.bytes() }?);
        }
        let mut is_full = false;
        read(&group, &mut |_, value| {
            // The first value beyond the bound and those after it are read again in the next group.
            let length = bytes.len() + value.map_or(0, <[u8]>::len);
            is_full |= !values.is_empty() && length > READ_AHEAD_BYTES;
            if is_full {
                return;
            }
            values.push(value.map(|value| {
                let start = bytes.len();
                bytes.extend_from_slice(value);
                start..bytes.len()
            }));
        });
        // After large values, smaller groups avoid that many values are read twice.
        wanted = if is_full { values.len() } else { (wanted * 2).min(GROUP) };
        for value in &values {
            let value = value.clone().map(|place| OrdnaSlice::new(&bytes[place]));
            let value = value.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: the caller guarantees that the function can be called. The slice is valid.
            if unsafe { visit(context, done, value) } != 0 {
                return Ok(OrdnaStatus::Stopped);
            }
            done += 1;
        }
    }
    Ok(OrdnaStatus::Ok)
}

/// Reads `count` keys and calls `visit` with the value of each, in the order of `keys`. Returns
/// `ORDNA_STATUS_STOPPED` if `visit` returned a number other than 0. The library fetches several
/// keys from memory at the same time, so one call is faster than `count` calls of `ordna_get`.
/// O(log n) for each key.
///
/// The keys are not read as one step: a write of another thread may be visible in one value and not
/// in another. `ordna_snapshot_get_many` reads all of them at the same moment. `visit` may use the
/// store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_get_many(
    store: *const OrdnaStore,
    keys: *const OrdnaSlice,
    count: usize,
    visit: OrdnaVisitValue,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on_store(store, |store| {
            run(keys, count, visit, context, |keys, each| store.get_many_with(keys, each))
        })
    }
}

/// Reads many keys of a snapshot, as `ordna_get_many` does for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_get_many(
    snapshot: *const OrdnaSnapshot,
    keys: *const OrdnaSlice,
    count: usize,
    visit: OrdnaVisitValue,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on_snapshot(snapshot, |snapshot| {
            run(keys, count, visit, context, |keys, each| snapshot.get_many_with(keys, each))
        })
    }
}

/// Reads many keys in a transaction, as `ordna_get_many` does for a store, but one after the other.
/// `visit` may use the transaction, but must not commit or free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_transaction_get_many(
    transaction: *const OrdnaTransaction,
    keys: *const OrdnaSlice,
    count: usize,
    visit: OrdnaVisitValue,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on_transaction(transaction, |transaction| {
            run(keys, count, visit, context, |keys, each| transaction.get_many_with(keys, each))
        })
    }
}
