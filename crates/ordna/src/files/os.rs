//! What the system knows of a file system.

#![expect(unsafe_code, reason = "the C library's functions have no safe wrapper")]

use std::io;
use std::path::Path;

/// Returns the bytes that files of a directory can grow by; `None` if that is not known.
pub fn free_space(dir: &Path) -> io::Result<Option<u64>> {
    #[cfg(target_os = "linux")]
    {
        use std::ffi::CString;
        use std::mem::MaybeUninit;
        use std::os::unix::ffi::OsStrExt;

        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let dir = CString::new(dir.as_os_str().as_bytes())?;
        let mut found = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the path is a string that ends with a zero, and the pointer is to a `statvfs` of
        // this function. Both live until the call returns.
        if unsafe { libc::statvfs(dir.as_ptr(), found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has succeeded, so it has written the whole.
        let found = unsafe { found.assume_init() };
        Ok(Some(found.f_bavail.saturating_mul(found.f_frsize)))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = dir;
        Ok(None)
    }
}
