//! Verification: reads a backup, or the directory of an opened store, and checks everything in it.

use std::borrow::Borrow;
use std::path::{Path, PathBuf};

use super::backup::restore::each_entry;
use super::replay::Reading;
use crate::files::directory::{Listing, unmark};
use crate::files::error::BackupError;
use crate::files::manifest::{FILE, Manifest};
use crate::files::progress::Progress;
use crate::files::storage::Storage;
use crate::wal::reports::WalReplay;
use crate::wal::tail::{self, TailContents};
use ordna_base::encoding::Encoding;
use ordna_base::{Key, Value};

/// The contents of a verified backup.
///
/// ```
/// use ordna::durability::{Disk, Progress, verify};
/// use ordna::{BackupOptions, Store};
///
/// # let dir = std::env::temp_dir().join(format!("ordna-doc-report-{}", std::process::id()));
/// let towns: Store<[u8], u64> = Store::new();
/// towns.put("Lund", 94_393)?;
/// towns.backup_to(&dir, &BackupOptions::new())?;
/// let report = verify(&Disk, &dir, &Progress::default())?;
/// assert_eq!(report.backups[0].entries, 1);
/// # drop(towns);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Directory of the backup.
    pub path: PathBuf,
    /// Manifest of the backup.
    pub manifest: Manifest,
    /// Number of entries that a restore creates: those of the shards, changed by the deltas.
    pub entries: u64,
    /// The first and the last key of these entries, in readable form.
    pub keys: Option<(String, String)>,
    /// Total size of all files in bytes.
    pub bytes: u64,
}

/// The contents of a verified directory.
///
/// ```
/// use ordna::durability::{Disk, Progress, verify};
///
/// # let dir = std::env::temp_dir().join(format!("ordna-doc-x11-{}", std::process::id()));
/// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
/// let report = verify(&Disk, &dir, &Progress::default())?;
/// assert!(report.backups.is_empty());
/// # drop(towns);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// All backups, oldest first.
    pub backups: Vec<BackupReport>,
    /// The log after the newest backup.
    pub log: Option<WalReplay>,
}

impl Report {
    /// Returns whether everything is as it was written, so that an opening would not truncate the
    /// log.
    ///
    /// ```
    /// use ordna::durability::{Disk, Progress, verify};
    ///
    /// # let dir = std::env::temp_dir().join(format!("ordna-doc-x12-{}", std::process::id()));
    /// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
    /// towns.close_log()?;
    /// assert!(verify(&Disk, &dir, &Progress::default())?.is_whole());
    /// # drop(towns);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_whole(&self) -> bool {
        self.log.as_ref().is_none_or(|log| log.cuts.is_empty())
    }
}

/// Reads and checks a backup, or the directory of an opened store with all its backups and its log.
/// A store may use the directory concurrently; then the log ends where it is being written.
/// O(bytes).
///
/// # Errors
/// Returns the first damage found, with file and offset.
///
/// ```
/// use ordna::durability::{Disk, Progress, verify};
///
/// # let dir = std::env::temp_dir().join(format!("ordna-doc-x13-{}", std::process::id()));
/// let towns: ordna::Store<[u8], u64> = ordna::Store::open(&dir, ordna::OpenOptions::new())?;
/// towns.put("Lund", 94_393)?;
/// towns.sync_log()?;
/// assert!(verify(&Disk, &dir, &Progress::default())?.log.is_some());
/// # drop(towns);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verify(
    storage: &dyn Storage,
    dir: impl AsRef<Path>,
    progress: &Progress,
) -> Result<Report, BackupError> {
    /// Number of attempts, because a store may remove files during the verification.
    const ATTEMPTS: usize = 5;
    let dir = dir.as_ref();
    let names = |dir| {
        let listing = Listing::read(storage, dir).ok()?;
        Some((listing.backups, listing.segments))
    };
    for _ in 1..ATTEMPTS {
        let before = names(dir);
        let verified = verify_once(storage, dir, progress);
        if verified.is_ok() || names(dir) == before {
            return verified;
        }
    }
    verify_once(storage, dir, progress)
}

fn verify_once(
    storage: &dyn Storage,
    dir: &Path,
    progress: &Progress,
) -> Result<Report, BackupError> {
    let names = storage.list(dir).map_err(BackupError::io(dir, "list"))?;
    let mut report = Report::default();
    if names.iter().any(|name| name == FILE) {
        report.backups.push(verify_backup(storage, dir, progress)?);
        return Ok(report);
    }
    let listing = Listing::read(storage, dir)?;
    let is_empty = listing.backups.is_empty() && listing.segments.is_empty();
    if is_empty && listing.newest_marked().is_none() {
        return Err(BackupError::Missing { path: dir.join(FILE), needed_by: dir.to_owned() });
    }
    for path in listing.backups.values() {
        report.backups.push(verify_backup(storage, path, progress)?);
    }
    let newest = report.backups.last().map(|backup| &backup.manifest);
    let (first, position, named_by) = match (listing.backups.last_key_value(), newest) {
        (Some((number, path)), Some(manifest)) => {
            let named_by = manifest.log_segment.map(|_| path.as_path());
            (*number, manifest.log_position, named_by)
        }
        _ => (1, 0, None),
    };
    let segments = listing.segments.range(first..);
    let segments = segments.map(|(number, path)| (*number, path.clone())).collect();
    let tail = match listing.has_tail {
        true => tail::read(storage, dir, &listing.segments)?,
        false => TailContents::default(),
    };
    let reading = Reading {
        storage,
        dir,
        segments: &segments,
        first,
        position,
        named_by,
        marked: listing.newest_marked(),
        tail: &tail,
        repair: false,
        mend: false,
        progress,
    };
    report.log = Some(match reading.kinds() {
        (u64::KIND_NUMBER, u64::KIND_NUMBER) => reading.run::<u64, u64>(|_, _| Ok(()))?,
        (u64::KIND_NUMBER, _) => reading.run::<u64, [u8]>(|_, _| Ok(()))?,
        (_, u64::KIND_NUMBER) => reading.run::<[u8], u64>(|_, _| Ok(()))?,
        _ => reading.run::<[u8], [u8]>(|_, _| Ok(()))?,
    });
    Ok(report)
}

fn verify_backup(
    storage: &dyn Storage,
    dir: &Path,
    progress: &Progress,
) -> Result<BackupReport, BackupError> {
    let manifest = Manifest::read(storage, dir)?;
    let words = manifest.keys == u64::KIND_NAME;
    let word_values = manifest.values == u64::KIND_NAME;
    match (words, word_values) {
        (true, true) => read::<u64, u64>(storage, dir, progress),
        (true, false) => read::<u64, [u8]>(storage, dir, progress),
        (false, true) => read::<[u8], u64>(storage, dir, progress),
        (false, false) => read::<[u8], [u8]>(storage, dir, progress),
    }
}

fn read<K: Key + ?Sized, V: Value + ?Sized>(
    storage: &dyn Storage,
    dir: &Path,
    progress: &Progress,
) -> Result<BackupReport, BackupError> {
    let mut entries = 0;
    let mut keys: Option<(K::Owned, K::Owned)> = None;
    let manifest = each_entry::<K, V>(storage, dir, progress, |key| {
        entries += 1;
        match &mut keys {
            None => keys = Some((key.to_owned(), key.to_owned())),
            Some((_, last)) if (*last).borrow() < key => *last = key.to_owned(),
            Some(_) => return false,
        }
        true
    })?;
    let files = manifest.shards.iter().chain(&manifest.deltas);
    let bytes = files.map(|file| file.bytes).sum();
    let keys = keys.map(|(first, last)| (show::<K>(first.borrow()), show::<K>(last.borrow())));
    Ok(BackupReport { path: dir.to_owned(), manifest, entries, keys, bytes })
}

/// Returns a key in readable form.
fn show<K: Key + ?Sized>(key: &K) -> String {
    if K::HEAD_IS_KEY {
        return format!("{key:?}");
    }
    const SHOWN: usize = 64;
    let tail = key.tail();
    let shown = tail.get(..SHOWN.min(tail.len())).unwrap_or_default();
    format!("\"{}\"", shown.escape_ascii())
}

/// Copies a backup into a directory that [`Store::open`](crate::Store::open) can then open, and
/// verifies the copy. The directory must contain neither backups nor a log.
///
/// # Errors
/// Returns a [`BackupError`] if the copy fails; the directory then contains no backup.
///
/// ```
/// use ordna::durability::{Disk, Progress, install};
/// use ordna::{BackupOptions, OpenOptions, Store};
///
/// # let dir = std::env::temp_dir().join(format!("ordna-doc-install-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// let (backup, data) = (dir.join("backup"), dir.join("data"));
/// let towns: Store<[u8], u64> = Store::new();
/// towns.put("Lund", 94_393)?;
/// towns.backup_to(&backup, &BackupOptions::new())?;
/// install(&Disk, &backup, &data, &Progress::default())?;
/// let towns: Store<[u8], u64> = Store::open(&data, OpenOptions::new())?;
/// assert_eq!(towns.len(), 1);
/// # drop(towns);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn install(
    storage: &dyn Storage,
    backup: impl AsRef<Path>,
    dir: impl AsRef<Path>,
    progress: &Progress,
) -> Result<BackupReport, BackupError> {
    let (backup, dir) = (backup.as_ref(), dir.as_ref());
    // Before anything is created, so that a rejected backup leaves nothing behind.
    let manifest = Manifest::read(storage, backup)?;
    storage.create_dir(dir).map_err(BackupError::io(dir, "create"))?;
    Listing::read(storage, dir)?.check_ours(storage, dir)?;
    let _lock = crate::files::directory::lock(storage, dir)?;
    let listing = Listing::read(storage, dir)?;
    if let Some(path) = listing.backups.values().chain(listing.segments.values()).next() {
        return Err(BackupError::Exists { path: path.clone() });
    }
    let target = crate::files::directory::backup_path(dir, manifest.log_segment.unwrap_or(1));
    let partial = super::backup::write::unfinished(&target);
    if listing.unfinished.contains(&partial) {
        storage.remove(&partial).map_err(BackupError::io(&partial, "remove"))?;
    }
    // Marks may remain of a log that was removed by hand.
    unmark(storage, dir, 0)?;
    storage.create_dir(&partial).map_err(BackupError::io(&partial, "create"))?;
    for file in manifest.shards.iter().chain(&manifest.deltas) {
        copy(storage, &backup.join(&file.file), &partial.join(&file.file), progress)?;
    }
    // The copy has no log, so its manifest names no segment.
    Manifest { log_segment: None, ..manifest }.write(storage, &partial)?;
    // Verifies the copy rather than the original, so that errors of the disk are detected.
    let mut report = verify_backup(storage, &partial, progress)?;
    storage.sync_dir(&partial).map_err(BackupError::io(&partial, "sync"))?;
    storage.rename(&partial, &target).map_err(BackupError::io(&target, "rename"))?;
    storage.sync_dir(dir).map_err(BackupError::io(dir, "sync"))?;
    report.path = target;
    Ok(report)
}

fn copy(
    storage: &dyn Storage,
    from: &Path,
    to: &Path,
    progress: &Progress,
) -> Result<(), BackupError> {
    const PIECE: usize = 1 << 20;
    let (mut input, _) = storage.open(from).map_err(BackupError::io(from, "open"))?;
    let output = storage.create(to).map_err(BackupError::io(to, "create"))?;
    let mut piece = Vec::new();
    loop {
        progress.check()?;
        piece.clear();
        let mut part = std::io::Read::take(&mut input, PIECE as u64);
        let read = std::io::Read::read_to_end(&mut part, &mut piece);
        if read.map_err(BackupError::io(from, "read"))? == 0 {
            break;
        }
        crate::files::storage::write_all(&*output, &piece).map_err(BackupError::io(to, "write"))?;
    }
    output.sync().map_err(BackupError::io(to, "sync"))
}
