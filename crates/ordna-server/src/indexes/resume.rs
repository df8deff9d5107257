//! The file by which a restart goes on from a backup of the indexes.
//!
//! # Protocol
//! 1. The keyspace is backed up; a random token is the backup's metadata, and a new log begins.
//! 2. The commands under way at that moment end. Everything from before the token's log is reported
//!    to the indexes then.
//! 3. The indexes are backed up, and the log is synced, so that it has what their backup holds.
//! 4. A file names the token, the indexes' backup, and the keys with a deadline.
//!
//! A restart uses the indexes' backup only if its token is that of the keyspace's backup. Then
//! every change that it lacks is of a key in the log, or of a key whose deadline has come: the
//! indexes read those keys again. An expired key is in no log.
//!
//! # Failure
//! The indexes are built from the keyspace if the file, its token or their backup does not fit.

use std::collections::HashSet;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The directory of the indexes' backups, in the data directory.
pub const DIRECTORY: &str = "indexes";
/// The file of step 4.
const FILE: &str = "RESUME.json";
/// Keys that are read again at most. For more of them a build from a snapshot is as fast.
const MOST_KEYS: usize = 1 << 20;

/// The point that a backup of the keyspace and one of the indexes share.
pub type Token = [u8; 16];

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct Saved {
    /// In hex.
    token: String,
    identity: u64,
    /// Name of the indexes' backup.
    backup: String,
    /// Keys with a deadline, in hex.
    expiring: Vec<String>,
}

/// From what the indexes go on.
#[derive(Debug)]
pub struct Resume {
    /// The identity of their history.
    pub identity: u64,
    /// The keys to read again.
    pub ids: Vec<Box<[u8]>>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Box<[u8]>> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// Removes all backups of the indexes.
///
/// # Errors
/// A text for the client.
pub fn forget(dir: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("ERR cannot remove {}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Sequence numbers that grow across restarts: they begin with the time, in units of 16 ns.
pub fn sequence() -> impl Fn() -> u64 + Send + Sync {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let next = AtomicU64::new((since.as_nanos() / 16) as u64);
    move || next.fetch_add(1, Ordering::Relaxed)
}

/// Step 4.
///
/// # Errors
/// A text for the log.
pub fn save(
    dir: &Path,
    token: &Token,
    identity: u64,
    backup: &Path,
    expiring: &[Box<[u8]>],
) -> Result<(), String> {
    let backup = backup.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let expiring = expiring.iter().map(|key| hex(key)).collect();
    let saved = Saved { token: hex(token), identity, backup, expiring };
    let write = || -> std::io::Result<()> {
        let (file, new) = (dir.join(FILE), dir.join("RESUME.new"));
        let mut out = std::fs::File::create(&new)?;
        out.write_all(&serde_json::to_vec(&saved)?)?;
        out.sync_all()?;
        std::fs::rename(&new, file)?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|error| format!("cannot write {}: {error}", dir.join(FILE).display()))
}

/// The keys that the log changes, as it is read.
#[derive(Default)]
struct Found {
    ids: HashSet<Box<[u8]>>,
    /// The keys are not all.
    is_partial: bool,
}

/// Collects the keys that the log changes.
pub struct Replay {
    saved: Saved,
    prefixes: Vec<Vec<u8>>,
    found: Mutex<Found>,
}

impl Replay {
    /// For the indexes' backup of a directory, and keys that begin so.
    pub fn read(dir: &Path, prefixes: Vec<Vec<u8>>) -> Option<Self> {
        let saved: Saved = serde_json::from_slice(&std::fs::read(dir.join(FILE)).ok()?).ok()?;
        let number = |name: &str| name.strip_prefix("backup-")?.parse::<u64>().ok();
        let names = std::fs::read_dir(dir)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        // A later backup has no file yet: nobody knows its token.
        let newest = names.filter_map(|name| number(&name)).max();
        (newest == number(&saved.backup)).then(|| Self { saved, prefixes, found: Mutex::default() })
    }

    /// Takes a key of the log; `None`: any key.
    pub fn take(&self, key: Option<&[u8]>) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match key {
            Some(key) => {
                let is_covered = self.prefixes.iter().any(|prefix| key.starts_with(prefix));
                if is_covered && !found.ids.contains(key) {
                    found.is_partial |= found.ids.len() == MOST_KEYS;
                    if !found.is_partial {
                        found.ids.insert(key.into());
                    }
                }
            }
            None => found.is_partial = true,
        }
    }

    /// From what to go on, now that the keyspace is read from a backup with this metadata.
    pub fn finish(&self, metadata: &[u8]) -> Option<Resume> {
        let found = std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
        if found.is_partial || self.saved.token != hex(metadata) {
            return None;
        }
        let mut ids = found.ids;
        for key in &self.saved.expiring {
            ids.insert(bytes(key)?);
        }
        Some(Resume { identity: self.saved.identity, ids: ids.into_iter().collect() })
    }
}
