//! Transactions.

#![expect(unsafe_code, reason = "exported to C")]
#![expect(clippy::missing_safety_doc, reason = "as in the module of the store")]

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use ordna::Transaction;

use crate::scan::{OrdnaRange, OrdnaVisit, RangeScan};
use crate::status::{
    Failure, LastError, OrdnaSlice, OrdnaStatus, Process, copy_value, guarded, null_handle,
};
use crate::store::{OrdnaStore, on as on_store};

/// Reads of one moment and writes that a commit applies as one step. One thread at a time may use
/// it.
pub struct OrdnaTransaction {
    /// `None` after the commit. The store outlives it, by the caller's promise.
    transaction: RefCell<Option<Transaction<'static, [u8], [u8]>>>,
    last: LastError,
    process: Process,
}

/// Runs a call on the transaction of a handle.
///
/// # Safety
/// `handle` is null or live, no other thread uses it, and its store is live.
pub(crate) unsafe fn on(
    handle: *const OrdnaTransaction,
    call: impl FnOnce(&Transaction<'static, [u8], [u8]>) -> Result<OrdnaStatus, Failure>,
) -> c_int {
    // SAFETY: the caller guarantees that the handle is null or live.
    let Some(handle) = (unsafe { handle.as_ref() }) else { return null_handle() };
    guarded(&handle.last, || {
        handle.process.check()?;
        match &*handle.transaction.borrow() {
            Some(transaction) => call(transaction),
            None => Err(Failure::invalid("the transaction has ended")),
        }
    })
}

/// Begins a transaction and writes it to `*out`. The transaction reads the state of this moment and
/// its own writes. Free it with `ordna_transaction_free`, before the store. O(log s) with s live
/// snapshots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_begin(
    store: *const OrdnaStore,
    out: *mut *mut OrdnaTransaction,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        // Ensures that `*out` is written even after an error or a panic.
        if !out.is_null() {
            out.write(std::ptr::null_mut());
        }
        on_store(store, |store| {
            if out.is_null() {
                return Err(Failure::invalid("the place for the transaction is null"));
            }
            // The reference remains valid, as the caller frees the store after its transactions.
            let store: &'static _ = &*std::ptr::from_ref(store);
            let handle = OrdnaTransaction {
                transaction: RefCell::new(Some(store.begin())),
                last: LastError::default(),
                process: Process::this(),
            };
            out.write(Box::into_raw(Box::new(handle)));
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Frees a transaction, and discards its writes if it was not committed. Does nothing if
/// `transaction` is null or was created by the process that forked this one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_transaction_free(transaction: *mut OrdnaTransaction) {
    if !transaction.is_null() {
        // SAFETY: this library created the handle, which is not used any more.
        let transaction = unsafe { Box::from_raw(transaction) };
        if transaction.process.is_forked() {
            std::mem::forget(transaction);
            return;
        }
        let _ = guarded(&LastError::default(), move || {
            drop(transaction);
            Ok(OrdnaStatus::Ok)
        });
    }
}

/// Copies the text of the transaction's last error, as `ordna_error` does for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_transaction_error(
    transaction: *const OrdnaTransaction,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live, and that the buffer is valid.
    unsafe { transaction.as_ref() }
        .map_or(0, |handle| unsafe { handle.last.copy(buffer, capacity) })
}

/// Copies the value of a key, as `ordna_get` does for a store. The commit checks that the key has
/// not changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_transaction_get(
    transaction: *const OrdnaTransaction,
    key: OrdnaSlice,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(transaction, |transaction| {
            let give = |value: &[u8]| copy_value(value, buffer, capacity, length);
            Ok(transaction.get_with(key.bytes()?, give).unwrap_or(OrdnaStatus::NotFound))
        })
    }
}

/// Calls `visit` with the entries of a range, as `ordna_scan` does for a store. The commit checks
/// that what was read of the range has not changed; the scan reads some entries ahead of `visit`.
/// `visit` may use the transaction, but must not commit or free it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_transaction_scan(
    transaction: *const OrdnaTransaction,
    range: *const OrdnaRange,
    visit: OrdnaVisit,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(transaction, |transaction| RangeScan::of(range)?.run(transaction, visit, context)) }
}

/// Sets the value of a key when the transaction commits. Key and value are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_transaction_put(
    transaction: *const OrdnaTransaction,
    key: OrdnaSlice,
    value: OrdnaSlice,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(transaction, |transaction| {
            transaction.put(key.bytes()?, value.bytes()?)?;
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Sets the value of a key when the transaction commits. The entry expires `milliseconds` from now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_transaction_put_for(
    transaction: *const OrdnaTransaction,
    key: OrdnaSlice,
    value: OrdnaSlice,
    milliseconds: u64,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(transaction, |transaction| {
            let life = Duration::from_millis(milliseconds);
            transaction.put_for(key.bytes()?, value.bytes()?, life)?;
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Removes a key when the transaction commits. Returns `ORDNA_STATUS_NOT_FOUND` if it is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_transaction_remove(
    transaction: *const OrdnaTransaction,
    key: OrdnaSlice,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(transaction, |transaction| {
            let removed = transaction.remove(key.bytes()?)?;
            Ok(if removed.is_some() { OrdnaStatus::Ok } else { OrdnaStatus::NotFound })
        })
    }
}

/// Applies the writes of the transaction as one step, provided that nothing that it has read was
/// changed by others: values, absent keys, and the entries of ranges. Otherwise returns
/// `ORDNA_STATUS_CONFLICT` and changes nothing; the caller may begin another transaction. In both
/// cases the transaction has ended and must still be freed.
///
/// A commit later than a minute after the transaction began returns `ORDNA_STATUS_INVALID`. Other
/// errors are those of `ordna_write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_transaction_commit(transaction: *const OrdnaTransaction) -> c_int {
    // SAFETY: the caller guarantees that the handle is null or live.
    let handle = unsafe { transaction.as_ref() };
    let Some(handle) = handle else { return null_handle() };
    guarded(&handle.last, || {
        handle.process.check()?;
        let Ok(mut transaction) = handle.transaction.try_borrow_mut() else {
            return Err(Failure::invalid("a scan of the transaction is in progress"));
        };
        let ended = || Failure::invalid("the transaction has ended");
        transaction.take().ok_or_else(ended)?.commit()?;
        Ok(OrdnaStatus::Ok)
    })
}
