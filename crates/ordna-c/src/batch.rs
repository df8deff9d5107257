//! Batches of writes.

#![expect(unsafe_code, reason = "exported to C")]
#![expect(clippy::missing_safety_doc, reason = "as in the module of the store")]

use std::ffi::{c_char, c_int};
use std::ops::Range;

use ordna::{Error, Store, Write};

use crate::status::{Failure, LastError, OrdnaSlice, OrdnaStatus, guarded, making, null_handle};

/// A list of writes that `ordna_write` applies together. One thread at a time may use it.
#[derive(Default)]
pub struct OrdnaBatch {
    /// Keys and values, one after the other.
    bytes: Vec<u8>,
    writes: Vec<(Range<usize>, Option<Range<usize>>)>,
    last: LastError,
}

impl OrdnaBatch {
    fn push(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// Applies all writes and empties the batch.
    pub(crate) fn apply(&mut self, store: &Store<[u8], [u8]>) -> Result<(), Error> {
        let writes = self.writes.iter().map(|(key, value)| {
            let key = &self.bytes[key.clone()];
            match value {
                Some(value) => Write::put(key, &self.bytes[value.clone()]),
                None => Write::Remove(key),
            }
        });
        store.write_batch(&writes.collect::<Vec<_>>())?;
        self.bytes.clear();
        self.writes.clear();
        Ok(())
    }
}

/// Runs a call on a batch.
///
/// # Safety
/// `batch` is null or live, and no other thread uses it.
unsafe fn on(
    batch: *mut OrdnaBatch,
    call: impl FnOnce(&mut OrdnaBatch) -> Result<(), Failure>,
) -> c_int {
    // SAFETY: the caller guarantees that the handle is null, or live and not shared.
    let Some(batch) = (unsafe { batch.as_mut() }) else { return null_handle() };
    let last = batch.last;
    guarded(&last, || call(batch).map(|()| OrdnaStatus::Ok))
}

/// Copies the text of the batch's last error, as `ordna_error` does for a store. The text describes
/// the last call that failed to add a write; errors of `ordna_write` belong to the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_batch_error(
    batch: *const OrdnaBatch,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: the caller guarantees that the batch is null or live.
    let Some(batch) = (unsafe { batch.as_ref() }) else { return 0 };
    // SAFETY: the caller promises room for `capacity` bytes at `buffer`, as to `ordna_error`.
    unsafe { batch.last.copy(buffer, capacity) }
}

/// Creates an empty batch and writes it to `*out`. Free it with `ordna_batch_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_batch_new(out: *mut *mut OrdnaBatch) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { making(out, std::ptr::null_mut(), 0, || Ok(OrdnaBatch::default())) }
}

/// Frees a batch without applying its writes. Does nothing if `batch` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_batch_free(batch: *mut OrdnaBatch) {
    if !batch.is_null() {
        // SAFETY: this library created the handle, which is not used any more.
        drop(unsafe { Box::from_raw(batch) });
    }
}

/// Returns the number of writes in the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_batch_len(batch: *const OrdnaBatch) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live.
    unsafe { batch.as_ref() }.map_or(0, |batch| batch.writes.len())
}

/// Appends a write that sets the value of a key. Key and value are copied. If one of them is too
/// long, `ordna_write` fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_batch_put(
    batch: *mut OrdnaBatch,
    key: OrdnaSlice,
    value: OrdnaSlice,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(batch, |batch| {
            let (key, value) = (key.bytes()?, value.bytes()?);
            let write = (batch.push(key), Some(batch.push(value)));
            batch.writes.push(write);
            Ok(())
        })
    }
}

/// Appends a write that removes a key, or does nothing if the key is absent by then. The key is
/// copied. A key that is too long is never present and is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_batch_remove(batch: *mut OrdnaBatch, key: OrdnaSlice) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(batch, |batch| {
            let key = key.bytes()?;
            if key.len() <= ordna::key::MAX_LEN {
                let write = (batch.push(key), None);
                batch.writes.push(write);
            }
            Ok(())
        })
    }
}
