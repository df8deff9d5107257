//! Functions of the operating system: free space of a file system, and memory-mapped files.

#![expect(unsafe_code, reason = "the C library's functions have no safe wrapper")]

use std::io;
use std::path::Path;

#[cfg(target_os = "linux")]
pub use mapped::MappedFile;

/// Returns the number of bytes that are free for files of a directory, or `None` if it is not
/// known.
pub fn free_space(dir: &Path) -> io::Result<Option<u64>> {
    #[cfg(target_os = "linux")]
    {
        use std::ffi::CString;
        use std::mem::MaybeUninit;
        use std::os::unix::ffi::OsStrExt;

        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let dir = CString::new(dir.as_os_str().as_bytes())?;
        let mut found = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the path is a string that ends with a zero, and the pointer is to a local
        // `statvfs`. Both live until the call returns.
        if unsafe { libc::statvfs(dir.as_ptr(), found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has succeeded, so it has written the whole struct.
        let found = unsafe { found.assume_init() };
        Ok(Some(found.f_bavail.saturating_mul(found.f_frsize)))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = dir;
        Ok(None)
    }
}

/// Creates a file of zeros that is mapped into memory. Returns `None` if the file system is not
/// known to keep the space of a written file.
pub fn create_mapped(path: &Path, len: usize) -> io::Result<Option<MappedFile>> {
    #[cfg(target_os = "linux")]
    {
        MappedFile::create(path, len)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (path, len);
        Ok(None)
    }
}

/// A file that is mapped into memory. Not available on this platform.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub enum MappedFile {}

#[cfg(not(target_os = "linux"))]
impl MappedFile {
    pub fn write_at(&mut self, _: usize, _: &[u8]) {
        match *self {}
    }
}

#[cfg(target_os = "linux")]
mod mapped {
    use std::fs::{File, OpenOptions, remove_file};
    use std::io::{self, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::ptr::{self, NonNull};
    use std::sync::atomic::{AtomicU8, Ordering};

    /// File systems that write changed bytes in place or in memory: ext2 to ext4, XFS, tmpfs. On
    /// others, a changed page may need new space, and a full disk would kill the process.
    const KNOWN: [u32; 3] = [0xEF53, 0x5846_5342, 0x0102_1994];

    /// A memory mapping, which this value owns.
    #[derive(Debug)]
    struct Mapping {
        start: NonNull<u8>,
        len: usize,
    }

    // SAFETY: any thread may use and unmap the memory, and only the owner of this value does.
    unsafe impl Send for Mapping {}

    impl Mapping {
        /// Maps a file, or private memory if there is none, for reading and writing.
        fn new(file: Option<&File>, len: usize) -> io::Result<Self> {
            let (flags, descriptor) = match file {
                Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
                None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
            };
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: no address is given, so the mapping replaces no memory; the descriptor is
            // open or unused.
            let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, descriptor, 0) };
            match NonNull::new(start.cast::<u8>()) {
                Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, len }),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: this value owns the mapping, and nothing borrows from it.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        }
    }

    /// A file that is mapped into memory.
    #[derive(Debug)]
    pub struct MappedFile {
        bytes: Mapping,
        /// One byte that is 1 in the process that created the file and 0 in its child processes.
        is_own: Mapping,
    }

    impl MappedFile {
        /// Creates and maps a file of zeros, for which the whole space is allocated. If it fails or
        /// returns `None`, there is no file.
        pub fn create(path: &Path, len: usize) -> io::Result<Option<Self>> {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
            let created = match is_known(&file) {
                Ok(true) => Self::map(file, len).map(Some),
                Ok(false) => Ok(None),
                Err(error) => Err(error),
            };
            if !matches!(created, Ok(Some(_))) {
                remove_file(path)?;
            }
            created
        }

        fn map(mut file: File, len: usize) -> io::Result<Self> {
            let zeros = vec![0; 1 << 16];
            let mut left = len;
            while left > 0 {
                let piece = zeros.get(..left).unwrap_or(&zeros);
                file.write_all(piece)?;
                left -= piece.len();
            }
            let is_own = Mapping::new(None, 1)?;
            // SAFETY: the mapping has this start and length.
            let wiped = unsafe {
                libc::madvise(is_own.start.as_ptr().cast(), is_own.len, libc::MADV_WIPEONFORK)
            };
            if wiped != 0 {
                return Err(io::Error::last_os_error());
            }
            let file = Self { bytes: Mapping::new(Some(&file), len)?, is_own };
            file.own().store(1, Ordering::Relaxed);
            Ok(file)
        }

        fn own(&self) -> &AtomicU8 {
            // SAFETY: the mapping has a byte, which lives as long as `self` and is accessed as an
            // atomic only.
            unsafe { AtomicU8::from_ptr(self.is_own.start.as_ptr()) }
        }
    }

    fn is_known(file: &File) -> io::Result<bool> {
        let mut found = MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: the descriptor is open, and the pointer is to a local `statfs`.
        if unsafe { libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has succeeded, so it has written the whole struct.
        let found = unsafe { found.assume_init() };
        Ok(u32::try_from(found.f_type).is_ok_and(|kind| KNOWN.contains(&kind)))
    }

    impl MappedFile {
        /// Replaces the bytes from an offset on. Does nothing beyond the end of the file, and
        /// nothing in a child of the process that created the file.
        pub fn write_at(&mut self, at: usize, bytes: &[u8]) {
            let fits = at <= self.bytes.len && bytes.len() <= self.bytes.len - at;
            // Relaxed: only a fork changes the byte.
            if !fits || self.own().load(Ordering::Relaxed) != 1 {
                return;
            }
            // SAFETY: the target is within the mapping. No reference points into it, and only this
            // function accesses it, with a unique reference to `self`. The source is other memory.
            unsafe {
                let to = self.bytes.start.as_ptr().add(at);
                ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
    }
}
