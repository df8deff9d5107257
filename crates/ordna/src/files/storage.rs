//! The file operations of backups and logs, behind a trait, so that tests can make each of them
//! fail.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::os;

/// A file that is written sequentially.
pub trait OutFile: Send + Sync + Debug {
    /// Appends bytes and returns how many, which may be fewer than given.
    ///
    /// # Errors
    /// I/O errors of the system.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Returns when everything appended so far is on the device.
    ///
    /// # Errors
    /// I/O errors of the system. Everything appended since the last success may be lost.
    fn sync(&self) -> io::Result<()>;
}

/// A file that is changed without system calls. Its contents outlive the process.
pub trait SharedFile: Send + Debug {
    /// Replaces the bytes from an offset on. Does nothing beyond the end of the file, and nothing
    /// in a child of the process that created it.
    fn write_at(&mut self, at: usize, bytes: &[u8]);
}

/// Appends all of the bytes.
///
/// # Errors
/// I/O errors of the file. A part may have been appended.
pub(crate) fn write_all(file: &dyn OutFile, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A place that holds files: the disk, or a test's model of a disk.
///
/// All methods may be called concurrently by many threads.
pub trait Storage: Send + Sync + Debug {
    /// Creates a file for writing. The file must not exist.
    ///
    /// # Errors
    /// I/O errors of the system, here and in all other methods.
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>>;

    /// Creates a file of zeros that is changed without system calls. The file must not exist.
    /// Returns `None`, without creating a file, if later writes could fail for lack of space.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn create_shared(&self, path: &Path, len: usize) -> io::Result<Option<Box<dyn SharedFile>>> {
        let _ = (path, len);
        Ok(None)
    }

    /// Opens a file for reading and returns it with its length.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)>;

    /// Cuts a file to `len` bytes and makes that durable.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;

    /// Makes a file durable that another process may have written.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn sync(&self, path: &Path) -> io::Result<()> {
        let (_, len) = self.open(path)?;
        self.truncate(path, len)
    }

    /// Renames a file or directory.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file, or a directory with all its contents.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory and its parents, durably. It may already exist.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Returns the names in a directory.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes the names in a directory durable.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns the number of bytes that are free for files of a directory, or `None` if it is not
    /// known.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn free_space(&self, dir: &Path) -> io::Result<Option<u64>> {
        let _ = dir;
        Ok(None)
    }

    /// Locks a directory until the returned value is dropped. Returns `None` if it is already
    /// locked.
    #[expect(clippy::missing_errors_doc, reason = "see `create`")]
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>>;
}

/// The file system.
///
/// ```
/// use std::path::Path;
/// use ordna::durability::{Disk, Storage};
///
/// assert!(Disk.open(Path::new("no such file")).is_err());
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl OutFile for File {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self;
        Write::write(&mut file, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The locked file of a directory. The lock belongs to the open file, which a child process shares
/// after a fork. Closing the file would not release the lock while the child lives, and a child
/// that closes its copy must not release it either.
struct LockFile {
    file: File,
    process: u32,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Closing the file also releases the lock, unless a child process shares it.
            let _ = self.file.unlock();
        }
    }
}

impl SharedFile for os::MappedFile {
    fn write_at(&mut self, at: usize, bytes: &[u8]) {
        self.write_at(at, bytes);
    }
}

impl Storage for Disk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        Ok(Box::new(OpenOptions::new().write(true).create_new(true).open(path)?))
    }

    fn create_shared(&self, path: &Path, len: usize) -> io::Result<Option<Box<dyn SharedFile>>> {
        let mapped = os::create_mapped(path, len)?;
        Ok(mapped.map(|file| Box::new(file) as Box<dyn SharedFile>))
    }

    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok((Box::new(file), len))
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        OpenOptions::new().write(true).open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path)?.is_dir() {
            fs::remove_dir_all(path)
        } else {
            fs::remove_file(path)
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        let above = parent(path);
        if !above.as_os_str().is_empty() {
            self.create_dir(&above)?;
        }
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.sync_dir(&above),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        // Our own file names are ASCII.
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        File::open(dir)?.sync_all()
    }

    fn free_space(&self, dir: &Path) -> io::Result<Option<u64>> {
        os::free_space(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(LockFile { file, process: std::process::id() }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Returns the parent of a path, for [`Storage::sync_dir`].
pub(crate) fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}
