//! Statuses, slices, and the functions that catch panics.

#![expect(unsafe_code, reason = "reads and writes through the caller's pointers")]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

use ordna::Error;
use ordna::durability::BackupError;
use ordna::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Result of a call: zero for success, a positive number for an expected outcome, a negative number
/// for an error.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrdnaStatus {
    /// The call succeeded.
    Ok = 0,
    /// The key is absent, or there is no such entry.
    NotFound = 1,
    /// The value is longer than the caller's buffer.
    TooSmall = 2,
    /// The callback ended the call early.
    Stopped = 3,
    /// The key does not have the expected value. Nothing was changed.
    Mismatch = 4,
    /// An argument is invalid: a null pointer, a number out of range, or a handle in a wrong state.
    Invalid = -1,
    /// The key or the value is too long.
    TooLong = -2,
    /// The write would exceed the store's memory limit.
    MemoryLimit = -3,
    /// An operation on a file failed, or the store's log cannot record writes.
    Io = -4,
    /// A file is damaged, is not a file of this library, or has a later format version.
    Damaged = -5,
    /// Another store or process uses the directory, or another backup is in progress.
    InUse = -6,
    /// The target directory of a backup already exists.
    Exists = -7,
    /// The handle was created by the process that forked this one.
    Forked = -8,
    /// Other writes changed what a transaction or a callback had read. Nothing was changed.
    Conflict = -9,
    /// The library has a bug and caught its own panic. The store remains usable.
    Panic = -100,
}

/// A sequence of bytes, borrowed from the caller or from the library. `data` may be null if `len`
/// is 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct OrdnaSlice {
    /// Pointer to the first byte.
    pub data: *const u8,
    /// Number of bytes.
    pub len: usize,
}

impl OrdnaSlice {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }

    /// # Safety
    /// The slice is readable for `'a`, or empty.
    pub(crate) unsafe fn bytes<'a>(self) -> Result<&'a [u8], Failure> {
        if self.len == 0 {
            return Ok(&[]);
        }
        if self.data.is_null() {
            return Err(Failure::invalid("a slice with a length has no data"));
        }
        if self.len > isize::MAX as usize {
            return Err(Failure::new(OrdnaStatus::TooLong, "a slice is longer than memory"));
        }
        // SAFETY: the caller guarantees that the bytes are readable, and they are not null.
        Ok(unsafe { std::slice::from_raw_parts(self.data, self.len) })
    }
}

/// A status with its text.
#[derive(Debug)]
pub(crate) struct Failure {
    pub status: OrdnaStatus,
    pub text: String,
}

impl Failure {
    pub fn new(status: OrdnaStatus, text: &str) -> Self {
        Self { status, text: text.to_owned() }
    }

    pub fn invalid(text: &str) -> Self {
        Self::new(OrdnaStatus::Invalid, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::KeyTooLong { .. } | Error::ValueTooLong { .. } => OrdnaStatus::TooLong,
            Error::MemoryLimit { .. } => OrdnaStatus::MemoryLimit,
            Error::LogFailed { .. } => OrdnaStatus::Io,
            Error::Conflict { .. } => OrdnaStatus::Conflict,
            _ => OrdnaStatus::Invalid,
        };
        Self { status, text: error.to_string() }
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        let text = error.to_string();
        let status = match error {
            BackupError::Io { .. } | BackupError::Missing { .. } => OrdnaStatus::Io,
            BackupError::InUse { .. } | BackupError::Busy => OrdnaStatus::InUse,
            BackupError::Exists { .. } | BackupError::Foreign { .. } => OrdnaStatus::Exists,
            BackupError::Store(error) => return error.into(),
            BackupError::NoDirectory | BackupError::Cancelled | BackupError::Replaced => {
                OrdnaStatus::Invalid
            }
            _ => OrdnaStatus::Damaged,
        };
        Self { status, text }
    }
}

/// Number of forks that led to this process. It changes in the child of a fork only, before that has a
/// second thread, so that a relaxed load finds the value.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process of a handle, told apart from those that it forks: a child has neither the threads of
/// its parent nor the locks that they held in a usable state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    /// Returns this process.
    pub fn this() -> Self {
        #[cfg(unix)]
        {
            extern "C" fn note_fork() {
                FORKS.fetch_add(1, Ordering::Relaxed);
            }
            static NOTED: Once = Once::new();
            // SAFETY: the handler is a function of this library, and the system removes it when it
            // unloads the library. It performs one atomic operation. If there is no memory for it,
            // the call fails, and forks are not detected.
            NOTED.call_once(|| unsafe {
                libc::pthread_atfork(None, None, Some(note_fork));
            });
        }
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether a fork lies between the handle's process and this one.
    #[inline]
    pub fn is_forked(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }

    /// Refuses a call in another process.
    #[inline]
    pub fn check(self) -> Result<(), Failure> {
        if self.is_forked() { Err(forked()) } else { Ok(()) }
    }
}

#[cold]
fn forked() -> Failure {
    let text =
        "the handle belongs to the process that forked this one: open the store after the fork";
    Failure::new(OrdnaStatus::Forked, text)
}

thread_local! {
    /// The last error of this thread: the number of its handle, and its text.
    static LAST: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
}

/// The identity of a handle in the errors of threads: each thread keeps the text of its last error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastError {
    handle: u64,
}

impl Default for LastError {
    fn default() -> Self {
        static HANDLES: AtomicU64 = AtomicU64::new(1);
        Self { handle: HANDLES.fetch_add(1, Ordering::Relaxed) }
    }
}

/// Keeps the text of an error: of the handle of this number, or 0 for a call without a handle.
fn set_last(handle: u64, text: String) {
    // Fails if the thread is ending, which then does not need the text.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (handle, text));
}

impl LastError {
    fn set(&self, text: String) {
        set_last(self.handle, text);
    }

    /// Copies the text with a final zero; returns its length without that. The text is empty unless
    /// the last error of this thread was one of this handle.
    ///
    /// # Safety
    /// As [`copy_text`].
    pub unsafe fn copy(&self, buffer: *mut c_char, capacity: usize) -> usize {
        let copied = LAST.try_with(|last| {
            let last = last.borrow();
            let text = if last.0 == self.handle { last.1.as_str() } else { "" };
            // SAFETY: the caller guarantees what the called function requires.
            unsafe { copy_text(text, buffer, capacity) }
        });
        // SAFETY: the same guarantee of the caller.
        copied.unwrap_or_else(|_| unsafe { copy_text("", buffer, capacity) })
    }
}

/// Copies as much of a text as fits, with a final zero; returns the length of all of it.
///
/// # Safety
/// `buffer` is null or has room for `capacity` bytes.
pub(crate) unsafe fn copy_text(text: &str, buffer: *mut c_char, capacity: usize) -> usize {
    if let Some(room) = capacity.checked_sub(1).filter(|_| !buffer.is_null()) {
        let length = text.floor_char_boundary(room);
        // SAFETY: the caller guarantees that there is room for `length + 1` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, length);
            buffer.add(length).write(0);
        }
    }
    text.len()
}

/// Copies a value into the caller's buffer.
///
/// # Safety
/// `buffer` is null or has room for `capacity` bytes; `length` is null or writable.
pub(crate) unsafe fn copy_value(
    value: &[u8],
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> OrdnaStatus {
    // SAFETY: the caller guarantees room for `capacity` bytes, and no more are written.
    unsafe {
        if !length.is_null() {
            length.write(value.len());
        }
        let fits = value.len() <= capacity;
        if fits && !buffer.is_null() {
            std::ptr::copy_nonoverlapping(value.as_ptr(), buffer, value.len());
        }
        if fits || value.is_empty() { OrdnaStatus::Ok } else { OrdnaStatus::TooSmall }
    }
}

/// Copies the text of this thread's last error, whatever its handle, as [`copy_text`].
///
/// # Safety
/// As [`copy_text`].
pub(crate) unsafe fn copy_last(buffer: *mut c_char, capacity: usize) -> usize {
    // SAFETY: the caller guarantees what the called function requires.
    let copied = LAST.try_with(|last| unsafe { copy_text(&last.borrow().1, buffer, capacity) });
    // SAFETY: the same guarantee of the caller.
    copied.unwrap_or_else(|_| unsafe { copy_text("", buffer, capacity) })
}

/// Refuses a call on a null pointer in place of a handle.
#[cold]
pub(crate) fn null_handle() -> c_int {
    set_last(0, "the handle is null".to_owned());
    OrdnaStatus::Invalid as c_int
}

/// Runs a call on a handle: catches a panic, and keeps the text of an error.
#[inline]
pub(crate) fn guarded(
    last: &LastError,
    call: impl FnOnce() -> Result<OrdnaStatus, Failure>,
) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => return status as c_int,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(OrdnaStatus::Panic, "a defect of the library: it panicked"),
    };
    last.set(failure.text);
    failure.status as c_int
}

/// Runs a call that makes a handle: writes the handle and an empty text, or null and the text of the
/// error.
///
/// # Safety
/// `out` is null or writable; `error` is null or has room for `capacity` bytes.
pub(crate) unsafe fn making<T>(
    out: *mut *mut T,
    error: *mut c_char,
    capacity: usize,
    make: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    if out.is_null() {
        let text = "the place for the handle is null";
        // SAFETY: the caller guarantees what the called function requires.
        unsafe { copy_text(text, error, capacity) };
        set_last(0, text.to_owned());
        return OrdnaStatus::Invalid as c_int;
    }
    let made = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| {
        Err(Failure::new(OrdnaStatus::Panic, "a defect of the library: it panicked"))
    });
    // SAFETY: the caller guarantees that the pointer is writable.
    unsafe {
        match made {
            Ok(made) => {
                out.write(Box::into_raw(Box::new(made)));
                copy_text("", error, capacity);
                OrdnaStatus::Ok as c_int
            }
            Err(failure) => {
                out.write(std::ptr::null_mut());
                copy_text(&failure.text, error, capacity);
                set_last(0, failure.text);
                failure.status as c_int
            }
        }
    }
}

/// Returns the path of a C string.
///
/// # Safety
/// `path` is null or a C string that stays as it is during `'a`.
pub(crate) unsafe fn path_of<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    if path.is_null() {
        return Err(Failure::invalid("the path is null"));
    }
    // SAFETY: the caller guarantees that this is a C string.
    let path = unsafe { CStr::from_ptr(path) };
    match path.to_str() {
        Ok(path) => Ok(Path::new(path)),
        Err(_) => Err(Failure::invalid("the path is not UTF-8")),
    }
}

/// Returns the version of the library, such as "0.1.0". The string is static and must not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn ordna_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
