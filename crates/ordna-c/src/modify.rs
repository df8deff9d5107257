//! Writes that depend on the value that they replace.
//!
//! The callback runs outside of the store and gets a copy of the value. Its decision is applied if
//! the value is still the same; otherwise the callback is called again. So it may use the store and
//! may be slow, whereas a callback under the lock of a leaf could deadlock.

#![expect(unsafe_code, reason = "exported to C")]
#![expect(clippy::missing_safety_doc, reason = "as in the module of the store")]

use std::ffi::{c_int, c_void};
use std::thread;

use ordna::Store;

use crate::status::{Failure, OrdnaSlice, OrdnaStatus};
use crate::store::{OrdnaStore, on};

/// Decisions for one write. Each that fails means that another write of the same key was done, so more
/// than a few are rare unless the callback is slow.
const ATTEMPTS: usize = 100;

/// What the callback of `ordna_modify` decided.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrdnaChange {
    /// Leave the entry as it is.
    Keep = 0,
    /// Set the value of the key to `*next`.
    Put = 1,
    /// Remove the key.
    Remove = 2,
}

/// Callback that decides how to change an entry and returns an `OrdnaChange`, or a negative number
/// to cancel the call. `value` is the current value, or null if the key is absent; it is valid
/// during the call only. To return `ORDNA_CHANGE_PUT`, the callback sets `*next` to bytes of its
/// own. They must stay valid and unchanged until the callback is called again or `ordna_modify`
/// returns. The callback must return normally: no exception and no `longjmp` may leave it.
pub type OrdnaDecide = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        value: *const OrdnaSlice,
        next: *mut OrdnaSlice,
    ) -> c_int,
>;

/// Reads the value of a key, calls `decide` with it, and applies the returned change, as one step:
/// no other write of the key comes in between. If another thread writes the key while `decide`
/// runs, `decide` is called again with the new value, so it should have no other effect. A new
/// value keeps the deadline of the former one. O(log n) for each attempt.
///
/// Returns `ORDNA_STATUS_STOPPED` if `decide` returned a negative number, and
/// `ORDNA_STATUS_CONFLICT` if the key was written by others during each of 100 calls of `decide`.
/// In both cases nothing was changed. Other errors are those of `ordna_put`. `decide` may use the
/// store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_modify(
    store: *const OrdnaStore,
    key: OrdnaSlice,
    decide: OrdnaDecide,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(store, |store| modify(store, key.bytes()?, decide, context)) }
}

/// # Safety
/// `decide` is a function as [`OrdnaDecide`] says, and `context` is what it expects.
unsafe fn modify(
    store: &Store<[u8], [u8]>,
    key: &[u8],
    decide: OrdnaDecide,
    context: *mut c_void,
) -> Result<OrdnaStatus, Failure> {
    let decide = decide.ok_or_else(|| Failure::invalid("the callback is null"))?;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::yield_now();
        }
        let value = store.get(key);
        let old = value.as_deref();
        let shown = old.map(OrdnaSlice::new);
        let shown = shown.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut next = OrdnaSlice::new(&[]);
        // SAFETY: the caller guarantees that the function can be called with a value and a place
        // for its result.
        let new = match unsafe { decide(context, shown, &raw mut next) } {
            0 => return Ok(OrdnaStatus::Ok),
            // SAFETY: the caller guarantees that the bytes are readable until the next call.
            1 => Some(unsafe { next.bytes() }?),
            // This includes keys that are too long to be present.
            2 if old.is_none() => return Ok(OrdnaStatus::Ok),
            2 => None,
            ..0 => return Ok(OrdnaStatus::Stopped),
            _ => return Err(Failure::invalid("the callback returned no change: 0, 1 or 2")),
        };
        if store.compare_exchange(key, old, new)?.is_ok() {
            return Ok(OrdnaStatus::Ok);
        }
    }
    let text = format!("the value was changed by others during each of {ATTEMPTS} decisions");
    Err(Failure::new(OrdnaStatus::Conflict, &text))
}
