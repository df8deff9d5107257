//! Cursors, and entries next to a key or at a position.

#![expect(unsafe_code, reason = "exported to C")]
#![expect(clippy::missing_safety_doc, reason = "as in the module of the store")]

use std::ffi::{c_char, c_int};
use std::ops::Bound;

use ordna::index::Source;
use ordna::{Direction, Entries, Snapshot};

use crate::scan::CHUNKS;
use crate::snapshot::{OrdnaSnapshot, on as on_snapshot};
use crate::status::{Failure, LastError, OrdnaSlice, OrdnaStatus, Process, guarded, null_handle};
use crate::store::{OrdnaStore, on as on_store};

/// A position between two entries of a snapshot, which moves in both directions. One thread at a
/// time may use it.
pub struct OrdnaCursor {
    snapshot: Snapshot<[u8], [u8]>,
    place: Place,
    /// Entries read ahead in a direction, and how many of them were passed.
    ahead: Entries<[u8], [u8]>,
    passed: usize,
    direction: Direction,
    chunk: usize,
    last: LastError,
    process: Process,
}

/// The place of a cursor.
enum Place {
    Start,
    End,
    Before(Vec<u8>),
    After(Vec<u8>),
}

impl OrdnaCursor {
    fn new(snapshot: Snapshot<[u8], [u8]>) -> Self {
        Self {
            snapshot,
            place: Place::Start,
            ahead: Entries::new(),
            passed: 0,
            direction: Direction::Ascending,
            chunk: CHUNKS.0,
            last: LastError::default(),
            process: Process::this(),
        }
    }

    fn go(&mut self, place: Place) {
        self.place = place;
        self.ahead.clear();
        (self.passed, self.chunk) = (0, CHUNKS.0);
    }

    /// Passes the next entry in a direction.
    fn step(&mut self, direction: Direction) -> Option<(&[u8], &[u8])> {
        let is_up = direction == Direction::Ascending;
        if direction != self.direction || self.passed == self.ahead.len() {
            let (lower, upper) = match (&self.place, is_up) {
                (Place::End, true) | (Place::Start, false) => return None,
                (Place::Start, true) | (Place::End, false) => (Bound::Unbounded, Bound::Unbounded),
                (Place::Before(key), true) => (Bound::Included(key.as_slice()), Bound::Unbounded),
                (Place::After(key), true) => (Bound::Excluded(key.as_slice()), Bound::Unbounded),
                (Place::Before(key), false) => (Bound::Unbounded, Bound::Excluded(key.as_slice())),
                (Place::After(key), false) => (Bound::Unbounded, Bound::Included(key.as_slice())),
            };
            if direction != self.direction {
                self.chunk = CHUNKS.0;
            }
            self.ahead.clear();
            self.snapshot.read_ahead(lower, upper, direction, self.chunk, &mut self.ahead);
            (self.passed, self.direction) = (0, direction);
            self.chunk = (self.chunk * 2).min(CHUNKS.1);
        }
        if self.passed == self.ahead.len() {
            self.place = if is_up { Place::End } else { Place::Start };
            return None;
        }
        let (key, value) = self.ahead.get(self.passed)?;
        self.passed += 1;
        let owned = key.to_vec();
        self.place = if is_up { Place::After(owned) } else { Place::Before(owned) };
        Some((key, value))
    }
}

/// Runs a call on the cursor of a handle.
///
/// # Safety
/// `handle` is null or live, and no other thread uses it.
unsafe fn on(
    handle: *mut OrdnaCursor,
    call: impl FnOnce(&mut OrdnaCursor) -> Result<OrdnaStatus, Failure>,
) -> c_int {
    // SAFETY: the caller guarantees that the handle is null, or live and not shared.
    let Some(cursor) = (unsafe { handle.as_mut() }) else { return null_handle() };
    let last = cursor.last;
    guarded(&last, || {
        cursor.process.check()?;
        call(cursor)
    })
}

/// Writes a new cursor to `out`.
///
/// # Safety
/// `out` is null or writable.
unsafe fn open(
    out: *mut *mut OrdnaCursor,
    snapshot: Snapshot<[u8], [u8]>,
) -> Result<OrdnaStatus, Failure> {
    if out.is_null() {
        return Err(Failure::invalid("the place for the cursor is null"));
    }
    // SAFETY: the caller guarantees that the pointer is writable.
    unsafe { out.write(Box::into_raw(Box::new(OrdnaCursor::new(snapshot)))) };
    Ok(OrdnaStatus::Ok)
}

/// Creates a cursor over the current state of the store, positioned before the first entry. The
/// cursor keeps a snapshot: later writes do not affect what it reads. Free it with
/// `ordna_cursor_free`, before or after the store. O(log s) with s live snapshots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_cursor_open(
    store: *const OrdnaStore,
    out: *mut *mut OrdnaCursor,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        // Ensures that `*out` is written even after an error or a panic.
        if !out.is_null() {
            out.write(std::ptr::null_mut());
        }
        on_store(store, |store| open(out, store.snapshot()))
    }
}

/// Creates a cursor over a snapshot, positioned before the first entry. Free it with
/// `ordna_cursor_free`, before or after the snapshot. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_snapshot_cursor(
    snapshot: *const OrdnaSnapshot,
    out: *mut *mut OrdnaCursor,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        if !out.is_null() {
            out.write(std::ptr::null_mut());
        }
        on_snapshot(snapshot, |snapshot| open(out, snapshot.clone()))
    }
}

/// Frees a cursor. Does nothing if `cursor` is null or was created by the process that forked this
/// one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_cursor_free(cursor: *mut OrdnaCursor) {
    if !cursor.is_null() {
        // SAFETY: this library created the handle, which is not used any more.
        let cursor = unsafe { Box::from_raw(cursor) };
        if cursor.process.is_forked() {
            std::mem::forget(cursor);
            return;
        }
        let _ = guarded(&LastError::default(), move || {
            drop(cursor);
            Ok(OrdnaStatus::Ok)
        });
    }
}

/// Copies the text of the cursor's last error, as `ordna_error` does for a store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_cursor_error(
    cursor: *const OrdnaCursor,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: the caller guarantees that the handle is null or live, and that the buffer is valid.
    unsafe { cursor.as_ref() }.map_or(0, |handle| unsafe { handle.last.copy(buffer, capacity) })
}

/// Moves before the first entry. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_cursor_start(cursor: *mut OrdnaCursor) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(cursor, |cursor| {
            cursor.go(Place::Start);
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Moves after the last entry. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_cursor_end(cursor: *mut OrdnaCursor) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(cursor, |cursor| {
            cursor.go(Place::End);
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Moves directly before `key`, or directly after it if `after` is true. The key need not be
/// present. If `after` is false, the next call of `ordna_cursor_next` returns the first entry whose
/// key is at least `key`. If `after` is true, the next call of `ordna_cursor_prev` returns the last
/// entry whose key is at most `key`. O(1); the next step is O(log n).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_cursor_seek(
    cursor: *mut OrdnaCursor,
    key: OrdnaSlice,
    after: bool,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(cursor, |cursor| {
            let key = key.bytes()?.to_vec();
            cursor.go(if after { Place::After(key) } else { Place::Before(key) });
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Moves before the entry at `position`, counted from 0. Returns `ORDNA_STATUS_NOT_FOUND`, and does
/// not move, if there are not that many entries. Costs as much as `ordna_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_cursor_select(cursor: *mut OrdnaCursor, position: usize) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe {
        on(cursor, |cursor| {
            match cursor.snapshot.select_with(position, |key, _| key.to_vec()) {
                Some(key) => cursor.go(Place::Before(key)),
                None => return Ok(OrdnaStatus::NotFound),
            }
            Ok(OrdnaStatus::Ok)
        })
    }
}

/// Moves past the next entry and writes its key to `*key` and its value to `*value`; both pointers
/// may be null. The slices are valid until the next call on this cursor. Returns
/// `ORDNA_STATUS_NOT_FOUND` at the end. O(log n) after a seek or a change of direction, otherwise
/// amortized O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_cursor_next(
    cursor: *mut OrdnaCursor,
    key: *mut OrdnaSlice,
    value: *mut OrdnaSlice,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(cursor, |cursor| Ok(step(cursor, Direction::Ascending, key, value))) }
}

/// Moves back past the previous entry and returns it as `ordna_cursor_next` does. Returns
/// `ORDNA_STATUS_NOT_FOUND` at the start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ordna_cursor_prev(
    cursor: *mut OrdnaCursor,
    key: *mut OrdnaSlice,
    value: *mut OrdnaSlice,
) -> c_int {
    // SAFETY: the caller guarantees what the called function requires.
    unsafe { on(cursor, |cursor| Ok(step(cursor, Direction::Descending, key, value))) }
}

/// Passes an entry and writes it to the caller's places.
///
/// # Safety
/// `key` and `value` are null or writable.
unsafe fn step(
    cursor: &mut OrdnaCursor,
    direction: Direction,
    key: *mut OrdnaSlice,
    value: *mut OrdnaSlice,
) -> OrdnaStatus {
    let Some(found) = cursor.step(direction) else { return OrdnaStatus::NotFound };
    for (place, bytes) in [(key, found.0), (value, found.1)] {
        if !place.is_null() {
            // SAFETY: the caller guarantees that the pointer is writable.
            unsafe { place.write(OrdnaSlice::new(bytes)) };
        }
    }
    OrdnaStatus::Ok
}
