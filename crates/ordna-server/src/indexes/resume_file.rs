//! The file with which a restart can load a backup of the indexes and catch up from the log.
//!
//! # Protocol
//! 1. The keyspace is backed up. A random token is the backup's metadata, and a new log begins.
//! 2. The server waits for the commands in progress. Then all writes before the new log have been
//!    reported to the indexes.
//! 3. The indexes are backed up, and the log is synced, so that the log contains every change that
//!    their backup contains.
//! 4. The file is written: the token, the name of the indexes' backup, and the keys with a deadline.
//!
//! A restart uses the indexes' backup only if its token is that of the keyspace's backup. Every
//! change that the indexes' backup lacks is then either a change of a key in the log or the expiry
//! of a key with a deadline, which is not logged. The indexes read those keys again.
//!
//! # Failure
//! The indexes are rebuilt from the keyspace if the file, its token or their backup is not usable.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use ordna::durability::LoggedKeys;
use ordna::sync::Lock;
use serde::{Deserialize, Serialize};

use crate::indexes::sealed_file;
use crate::keyspace::stored_key;

/// Name of the directory of the indexes' backups, in the data directory.
pub const DIRECTORY: &str = "indexes";
/// Name of the file of step 4.
const FILE: &str = "RESUME.json";
/// Maximum number of keys that are read again. With more keys, rebuilding from a snapshot is as
/// fast.
const MOST_KEYS: usize = 1 << 20;

/// Identifies a pair of backups, one of the keyspace and one of the indexes.
pub type Token = [u8; 16];

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct Saved {
    /// In hexadecimal.
    token: String,
    identity: u64,
    /// File name of the indexes' backup.
    backup: String,
    /// Keys with a deadline, in hexadecimal.
    expiring: Vec<String>,
}

/// Checks the file, if there is one in the directory of the indexes' backups.
///
/// # Errors
/// The reason why it is not valid.
pub(super) fn check(dir: &Path) -> Result<(), String> {
    sealed_file::read::<Saved>(&dir.join(FILE)).map(drop)
}

/// The point from which the indexes resume.
#[derive(Debug)]
pub struct Resume {
    /// Identity of the change stream that the backup belongs to.
    pub identity: u64,
    /// Keys to read again.
    pub ids: Vec<Box<[u8]>>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Box<[u8]>> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// Removes the directory of the indexes' backups.
///
/// # Errors
/// The text of the error reply.
pub fn remove_backups(dir: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("ERR cannot remove {}: {error}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Returns a generator of sequence numbers that increase across restarts: the first is the time in
/// units of 16 ns.
pub fn sequence() -> impl Fn() -> u64 + Send + Sync {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let next = AtomicU64::new((since.as_nanos() / 16) as u64);
    move || next.fetch_add(1, Ordering::Relaxed)
}

/// Writes the file.
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
    let file = dir.join(FILE);
    let replaced = serde_json::to_vec(&saved)
        .map_err(Into::into)
        .and_then(|json| sealed_file::replace(&file, json));
    replaced.map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// Covered keys that the log changes.
#[derive(Default)]
struct ChangedKeys {
    ids: HashSet<Box<[u8]>>,
    /// The set is incomplete: too many keys changed, or a record may change any key.
    is_partial: bool,
}

/// Collects the keys that the log changes while a restart reads it.
pub struct Replay {
    saved: Saved,
    /// Whether the file has a checksum. If so, it and the log were written by a server with a
    /// reserved key space.
    is_sealed: bool,
    prefixes: Vec<Vec<u8>>,
    logged: Lock<ChangedKeys>,
}

impl Replay {
    /// Reads the file in `dir`. `prefixes` are those of the indexed keys. Returns `None` if the
    /// newest backup of the indexes has no file.
    pub fn read(dir: &Path, prefixes: Vec<Vec<u8>>) -> Option<Self> {
        let (saved, is_sealed) = sealed_file::read::<Saved>(&dir.join(FILE)).ok()??;
        let number = |name: &str| name.strip_prefix("backup-")?.parse::<u64>().ok();
        let names = std::fs::read_dir(dir)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        // A later backup has no file yet, so its token is unknown.
        let newest = names.filter_map(|name| number(&name)).max();
        let is_newest = newest == number(&saved.backup);
        is_newest.then(|| Self { saved, is_sealed, prefixes, logged: Lock::default() })
    }

    /// Adds the keys that a record of the log changes.
    pub fn add(&self, keys: LoggedKeys<'_>) {
        match keys {
            LoggedKeys::One(key) => {
                let user = stored_key::user(key);
                self.add_key(Some(&user));
                if *user != *key {
                    // In a log of an older server, keys are stored unchanged.
                    self.add_key(Some(key));
                }
            }
            // The elements of a removed collection.
            LoggedKeys::Range(Bound::Included(lower), _)
                if self.is_sealed && lower >= stored_key::USER_END => {}
            LoggedKeys::Range(..) | LoggedKeys::All => self.add_key(None),
        }
    }

    /// Adds a key of the log. `None` means that the record may change any key.
    fn add_key(&self, key: Option<&[u8]>) {
        let mut logged = self.logged.lock();
        match key {
            Some(key) => {
                let is_covered = self.prefixes.iter().any(|prefix| key.starts_with(prefix));
                if is_covered && !logged.ids.contains(key) {
                    logged.is_partial |= logged.ids.len() == MOST_KEYS;
                    if !logged.is_partial {
                        logged.ids.insert(key.into());
                    }
                }
            }
            None => logged.is_partial = true,
        }
    }

    /// Returns the resume point if `metadata`, that of the keyspace's backup, is the token of this
    /// backup of the indexes.
    pub fn finish(&self, metadata: &[u8]) -> Option<Resume> {
        let logged = std::mem::take(&mut *self.logged.lock());
        if logged.is_partial || self.saved.token != hex(metadata) {
            return None;
        }
        let mut ids = logged.ids;
        for key in &self.saved.expiring {
            ids.insert(bytes(key)?);
        }
        Some(Resume { identity: self.saved.identity, ids: ids.into_iter().collect() })
    }
}
