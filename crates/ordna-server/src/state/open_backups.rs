//! Backups that clients read with `ORDNA.BACKUP`.
//!
//! The files stay open, so that they can be read completely even after a newer backup has removed
//! them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ordna::sync::Lock;

/// Maximum number of open backups. Each keeps a few hundred files open, and their disk space
/// occupied.
const MOST_OPEN: usize = 4;
/// Maximum number of files of a backup that can be opened.
const MOST_FILES: usize = 2048;
/// Time without a read after which an open backup may be closed to make room for another.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum number of bytes of one read: enough to use a fast network, and little compared with a
/// client's other buffers.
pub const MOST_PART: usize = 1 << 20;

/// A file of a backup.
#[derive(Debug)]
pub struct BackupFile {
    pub name: String,
    pub len: u64,
    open: File,
}

/// A backup whose files are open.
#[derive(Debug)]
pub struct OpenBackup {
    pub files: Vec<BackupFile>,
}

impl OpenBackup {
    /// Opens all files of a backup.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if !entry.file_type()?.is_file() || files.len() == MOST_FILES {
                let what = format!("{} is not a file of a backup", entry.path().display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            let open = File::open(entry.path())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            files.push(BackupFile { name, len: open.metadata()?.len(), open });
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self { files })
    }
}

#[derive(Debug)]
struct Entry {
    id: u64,
    backup: Arc<OpenBackup>,
    used: Instant,
}

/// All open backups.
#[derive(Debug, Default)]
pub struct OpenBackups {
    /// The open backups, and the last id.
    entries: Lock<(Vec<Entry>, u64)>,
}

/// Returns the error for an id that is not open.
fn unknown(id: u64) -> String {
    format!("ERR backup {id} is not open")
}

impl OpenBackups {
    /// Adds a backup and returns its id.
    ///
    /// # Errors
    /// Too many backups are open and in use.
    pub fn add(&self, backup: OpenBackup) -> Result<u64, String> {
        let mut entries = self.entries.lock();
        let (open, last) = &mut *entries;
        if open.len() >= MOST_OPEN {
            open.retain(|entry| entry.used.elapsed() < IDLE);
        }
        if open.len() >= MOST_OPEN {
            return Err(format!(
                "ERR {MOST_OPEN} backups are open; CLOSE one, or wait until one is not read for \
                 {} seconds",
                IDLE.as_secs()
            ));
        }
        *last += 1;
        open.push(Entry { id: *last, backup: Arc::new(backup), used: Instant::now() });
        Ok(*last)
    }

    /// Reads at most `count` bytes of a file, and fewer only at its end.
    ///
    /// # Errors
    /// The backup is not open, has no such file, or cannot be read.
    pub fn read(&self, id: u64, file: u64, offset: u64, count: usize) -> Result<Vec<u8>, String> {
        let backup = {
            let mut entries = self.entries.lock();
            let entry = entries.0.iter_mut().find(|entry| entry.id == id);
            let entry = entry.ok_or_else(|| unknown(id))?;
            entry.used = Instant::now();
            Arc::clone(&entry.backup)
        };
        let found = usize::try_from(file).ok().and_then(|file| backup.files.get(file));
        let found = found.ok_or_else(|| format!("ERR backup {id} has no file {file}"))?;
        let left = found.len.saturating_sub(offset);
        let mut part = vec![0; usize::try_from(left).map_or(count, |left| left.min(count))];
        let done = found.open.read_exact_at(&mut part, offset);
        done.map_err(|error| format!("ERR cannot read {}: {error}", found.name))?;
        Ok(part)
    }

    /// Closes a backup.
    ///
    /// # Errors
    /// It is not open.
    pub fn close(&self, id: u64) -> Result<(), String> {
        let mut entries = self.entries.lock();
        let before = entries.0.len();
        entries.0.retain(|entry| entry.id != id);
        if entries.0.len() < before { Ok(()) } else { Err(unknown(id)) }
    }
}
