//! Backups of a service, and recovery.
//!
//! # Format
//! A backup is a directory `backup-N`. It contains a backup of each index's store
//! (`docs/FORMAT.md`) in `index-<uid>`, and the file `SERVICE.json`, which holds the version vector
//! and, in its last line, a checksum. The metadata of an index's backup is the definition of the
//! index as JSON. The directory gets its final name after everything in it is durable.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use ordna::checksum::{seal, unseal};
use ordna::durability::{BackupOptions, Disk, Manifest, OpenOptions};
use ordna::store::{OwnedStore, Wanted};
use ordna::{Direction, Store};
use serde::{Deserialize, Serialize};

use crate::define::{IndexDefinition, Keys, entry_value, id_of, partition_of};
use crate::error::Error;
use crate::index::Index;
use crate::reverse::{Hasher, IndexStore, Reverse, ReverseMap};
use crate::version_vector::VersionVector;
use crate::view::SnapshotPoint;

const FILE: &str = "SERVICE.json";

/// The contents of `SERVICE.json`.
#[derive(Serialize, Deserialize)]
struct Saved {
    vector: String,
    next_uid: u64,
    indexes: Vec<u64>,
}

/// The result of a backup.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Backup {
    /// The directory of the backup.
    pub path: PathBuf,
    /// The positions up to which the backup contains changes.
    pub vector: VersionVector,
    /// Number of entries of all indexes.
    pub entries: u64,
}

/// The result of a restore.
pub(crate) struct Recovered {
    pub indexes: Vec<(Arc<Index>, Vec<ReverseMap>)>,
    pub vector: VersionVector,
    pub next_uid: u64,
}

/// Returns the backups in a directory, oldest first.
fn backups(dir: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(Error::io(dir))?,
    };
    for entry in entries {
        let path = entry.map_err(Error::io(dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix("backup-")?.parse().ok());
        found.extend(number.map(|number| (number, path)));
    }
    found.sort();
    Ok(found)
}

fn sync(path: &Path) -> Result<(), Error> {
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    file.sync_all().map_err(Error::io(path))
}

/// Writes a backup of a snapshot point.
pub(crate) fn back_up(
    dir: &Path,
    point: &SnapshotPoint,
    next_uid: u64,
    keep: usize,
    options: &BackupOptions,
) -> Result<Backup, Error> {
    std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let existing = backups(dir)?;
    let number = existing.last().map_or(1, |(number, _)| number + 1);
    let unfinished = dir.join("unfinished");
    match std::fs::remove_dir_all(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io(&unfinished)(error));
        }
        _ => std::fs::create_dir(&unfinished).map_err(Error::io(&unfinished))?,
    }
    let mut saved = Saved { vector: point.vector.to_string(), next_uid, indexes: Vec::new() };
    let mut entries = 0;
    for found in point.indexes.values() {
        let Some(snapshot) = &found.snapshot else { continue };
        if found.index.failure.get().is_some() {
            continue;
        }
        let uid = found.index.uid;
        let definition = serde_json::to_vec(&found.index.definition);
        let definition = definition.map_err(|error| Error::io(&unfinished)(error.into()))?;
        let options = options.clone().metadata(move || definition.clone());
        let target = unfinished.join(format!("index-{uid}"));
        let summary = match &found.index.entries {
            IndexStore::Pointers(store) => store.backup_snapshot_to(snapshot, target, &options)?,
            IndexStore::Copies(store) => store.backup_snapshot_to(snapshot, target, &options)?,
        };
        entries += summary.entries;
        saved.indexes.push(uid);
    }
    let file = unfinished.join(FILE);
    let json = serde_json::to_vec_pretty(&saved).map_err(|e| Error::io(&file)(e.into()))?;
    std::fs::write(&file, seal(json)).map_err(Error::io(&file))?;
    sync(&file)?;
    sync(&unfinished)?;
    let path = dir.join(format!("backup-{number}"));
    std::fs::rename(&unfinished, &path).map_err(Error::io(&path))?;
    sync(dir)?;
    for (_, old) in existing.iter().rev().skip(keep.max(1) - 1) {
        std::fs::remove_dir_all(old).map_err(Error::io(old))?;
    }
    Ok(Backup { path, vector: point.vector.clone(), entries })
}

/// Returns the newest backup in a directory, if there is one.
pub(crate) fn newest(dir: &Path) -> Result<Option<PathBuf>, Error> {
    Ok(backups(dir)?.pop().map(|(_, path)| path))
}

/// Restores a backup. Several indexes are restored at the same time: the reverse maps of one are
/// rebuilt while others are read.
pub(crate) fn recover(
    path: PathBuf,
    options: &ordna::Options,
    reverse: Reverse,
    workers: usize,
    hasher: &Hasher,
) -> Result<Recovered, Error> {
    let file = path.join(FILE);
    let json = std::fs::read(&file).map_err(Error::io(&file))?;
    let (json, _) = unseal(&json).ok_or_else(|| {
        let text = "the checksum of its last line is not that of the rest";
        Error::io(&file)(std::io::Error::new(ErrorKind::InvalidData, text))
    })?;
    let saved: Saved =
        serde_json::from_slice(json).map_err(|error| Error::io(&file)(error.into()))?;
    let restore = |uid: u64| -> Result<_, Error> {
        let from = path.join(format!("index-{uid}"));
        let definition = Manifest::read(&Disk, &from)?.metadata(&from)?;
        let definition: IndexDefinition =
            serde_json::from_slice(&definition).map_err(|error| Error::io(&from)(error.into()))?;
        let open = OpenOptions::new().store(options.clone());
        let worker_of =
            |key: &[u8], value| ordna::checksum::crc32(id_of(key, value)) as usize % workers;
        let (entries, maps): (_, Vec<ReverseMap>) = match reverse {
            Reverse::Pointers => {
                let hash = hasher.of_entries();
                let (store, owners) = OwnedStore::restore(from, open, workers, worker_of, &hash)?;
                (
                    IndexStore::Pointers(store),
                    owners.into_iter().map(ReverseMap::Pointers).collect(),
                )
            }
            Reverse::Copies => copies(Arc::new(Store::restore(from, open)?), hasher, workers),
        };
        let index = Arc::new(Index::new(uid, definition, entries, workers));
        index.filled.store(workers, Ordering::Release);
        Ok((index, maps))
    };
    let indexes = thread::scope(|scope| {
        let threads = saved.indexes.iter().map(|uid| scope.spawn(|| restore(*uid)));
        let threads: Vec<_> = threads.collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().map(join).collect::<Result<Vec<_>, Error>>()
    })?;
    let vector = saved.vector.parse()?;
    Ok(Recovered { indexes, vector, next_uid: saved.next_uid })
}

/// Builds reverse maps that hold copies of the keys of a store.
fn copies(
    store: Arc<Store<[u8], u64>>,
    hasher: &Hasher,
    workers: usize,
) -> (IndexStore, Vec<ReverseMap>) {
    let entries = IndexStore::Copies(Arc::clone(&store));
    let mut maps: Vec<_> = (0..workers).map(|_| entries.map(hasher)).collect();
    let mut of_id: std::collections::HashMap<Vec<u8>, (u32, Keys)> = Default::default();
    use std::ops::{Bound, ControlFlow};
    store.visit(Bound::Unbounded, Bound::Unbounded, Direction::Ascending, |key, value| {
        let found = of_id.entry(id_of(key, *value).to_vec());
        found.or_insert_with(|| (partition_of(*value), Keys::default())).1.push(key);
        ControlFlow::Continue(())
    });
    for (id, (partition, keys)) in &of_id {
        let map = &mut maps[ordna::checksum::crc32(id) as usize % workers];
        let (hash, value) = (hasher.of(id), entry_value(*partition, id));
        // The entries exist already, so nothing is written, and the memory limit cannot be
        // exceeded.
        let _ = map.set(&[Wanted { id, hash, value, keys: 0..keys.len() }], keys);
    }
    (entries, maps)
}
