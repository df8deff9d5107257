//! Functions of the operating system for the calling thread.

#![expect(unsafe_code, reason = "the C library's functions have no safe wrapper")]

use std::time::Duration;

/// Returns the processor time of the calling thread or, if the system does not provide it, the time
/// since the first call.
pub fn thread_time() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a local `timespec`, which is valid for writes.
        if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } == 0 {
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            return Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0));
        }
    }
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// Raises the nice value of the calling thread by `by`, so that other threads run first. Does
/// nothing if threads have no such value or the system refuses.
pub fn lower_priority(by: i32) {
    #[cfg(target_os = "linux")]
    // SAFETY: these calls take no pointers and are allowed at any time.
    unsafe {
        libc::nice(by);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = by;
}
