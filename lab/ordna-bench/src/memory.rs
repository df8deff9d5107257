//! Memory of the process, as the allocator and the system count it.

#![expect(unsafe_code, reason = "the allocators' purges have no safe wrapper")]

/// Returns the number of bytes that the allocator has handed out and not taken back.
pub fn allocated() -> usize {
    // The statistics are a snapshot, which must be refreshed.
    let fresh = tikv_jemalloc_ctl::epoch::advance();
    fresh.and_then(|_| tikv_jemalloc_ctl::stats::allocated::read()).unwrap_or(0)
}

/// Returns all unused pages of the allocators to the system. The difference between the resident
/// sets before and after a load is then what the load keeps.
fn purge() {
    // 4096 is MALLCTL_ARENAS_ALL.
    let name = c"arena.4096.purge";
    // SAFETY: the name ends with a zero byte. This control neither reads nor writes a value, as the
    // null pointers and the zero length say.
    unsafe {
        tikv_jemalloc_sys::mallctl(
            name.as_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
        );
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: allowed at any time. Plug-ins allocate from the C library.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets the allocators keep the pages that the program frees from now on; glibc keeps most of them.
/// Returns whether jemalloc does.
pub fn keep_pages() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: allowed at any time. Plug-ins allocate from the C library.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
        // glibc accepts no larger threshold. Larger blocks are returned to the system when they are
        // freed.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
    }
    let Ok(arenas) = tikv_jemalloc_ctl::arenas::narenas::read() else { return false };
    let kinds = ["dirty", "muzzy"];
    // Future arenas use the defaults. One of the existing arenas may have no memory yet.
    let defaults = kinds.map(|kind| keep_forever(&format!("arenas.{kind}_decay_ms\0")));
    let own = (0..arenas).flat_map(|arena| kinds.map(|kind| (arena, kind)));
    let own = own.filter(|(arena, kind)| keep_forever(&format!("arena.{arena}.{kind}_decay_ms\0")));
    defaults == [true; 2] && own.count() > 0
}

/// Sets a decay time of jemalloc, whose name ends with a zero byte, to forever.
fn keep_forever(name: &str) -> bool {
    const FOREVER: isize = -1;
    // SAFETY: decay times are of this type.
    unsafe { tikv_jemalloc_ctl::raw::write(name.as_bytes(), FOREVER) }.is_ok()
}

/// Returns the resident bytes of the process, after unused pages were returned, or `None` if the
/// system does not report them. The program's own pages do not count, because a forked child maps
/// them again as it accesses them.
pub fn resident() -> Option<usize> {
    purge();
    field("/proc/self/status", "RssAnon:")
}

/// Returns the memory that the system can provide, if it reports this.
pub fn available() -> Option<usize> {
    field("/proc/meminfo", "MemAvailable:")
}

/// Returns all memory of the machine, if the system reports it.
pub fn total() -> Option<usize> {
    field("/proc/meminfo", "MemTotal:")
}

/// Returns a field in kB of a file below `/proc`, in bytes.
fn field(path: &str, name: &str) -> Option<usize> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_pages_have_no_end() {
        assert!(keep_pages());
        let decay = |name: &[u8]| {
            // SAFETY: decay times are of this type.
            unsafe { tikv_jemalloc_ctl::raw::read::<isize>(name) }
        };
        assert_eq!(decay(b"arena.0.dirty_decay_ms\0"), Ok(-1));
        assert_eq!(decay(b"arenas.muzzy_decay_ms\0"), Ok(-1));
    }
}
