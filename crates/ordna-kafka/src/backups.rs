//! The backups of partitions in a directory that all nodes share.
//!
//! # Layout
//! `GROUP/TOPIC/PARTITION/WRITER/backup-N` is a backup made by `ordna-secondary`, with an
//! additional file `PARTITION.json`. A writer is a process. Two processes never write to the same
//! directory, even if one of them hangs and continues later.
//!
//! # Invariants
//! A backup is valid once it contains `PARTITION.json`, which is written last. It is used only if
//! the history and the definitions that it names are the present ones. The history is given by its
//! identity, and by the leader epoch at its position, which the caller compares with that of the
//! brokers. In a compacted topic a backup is used only as long as Kafka keeps tombstones: after
//! that, deletions that follow the backup may be gone from the topic.
//!
//! A process that ends during a backup leaves a directory without `PARTITION.json`. When the next
//! backup of the partition is complete, in whichever process, such directories are removed if
//! nothing was written to them for [`ABANDONED`].

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordna::sync::Lock;
use ordna_secondary::{IndexDefinition, Position};
use serde::{Deserialize, Serialize};

const FILE: &str = "PARTITION.json";

/// Time without a write after which an incomplete backup counts as abandoned: an hour. A running
/// backup writes at least every second. If a process hangs longer than this, its directory is
/// removed, and its backup fails.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The contents of `PARTITION.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    identity: String,
    seq: u64,
    /// The leader epoch of the last record in the backup. Backups of older versions do not have it.
    epoch: Option<i32>,
    /// When the backup was taken: milliseconds since 1970, by the clock of the writer.
    taken: u64,
    indexes: Vec<IndexDefinition>,
}

/// A backup that can be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundBackup {
    /// Its directory.
    pub path: PathBuf,
    /// The position up to which the backup contains changes.
    pub position: Position,
    /// The leader epoch of the last record in the backup; -1 if the brokers know no epochs.
    pub epoch: i32,
}

/// The directory of the backups, and which of them can be used.
#[derive(Debug, Clone)]
pub struct Backups {
    root: PathBuf,
    writer: String,
    indexes: Vec<IndexDefinition>,
    /// For each partition, the lock that a thread holds while it writes a backup.
    writing: Arc<Lock<BTreeMap<u32, Arc<Lock<()>>>>>,
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Escapes a name for use in a path: bytes that may have a special meaning are replaced.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let part = |byte: u8| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") }
    };
    name.bytes().map(part).collect()
}

/// Returns the entries of a directory; none if it cannot be read.
fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Returns when a directory, one of its files, or a file one level below was last written.
fn last_write(path: &Path) -> Option<SystemTime> {
    let own = fs::metadata(path).ok()?.modified().ok()?;
    let inner = folders(path).into_iter().flat_map(|path| {
        let below = folders(&path);
        std::iter::once(path).chain(below)
    });
    let times = inner.filter_map(|path| fs::metadata(path).ok()?.modified().ok());
    Some(times.fold(own, SystemTime::max))
}

impl Backups {
    /// Creates the handle for the backups of a group and topic under `dir`, with these indexes.
    pub fn new(dir: &Path, group: &str, topic: &str, indexes: &[IndexDefinition]) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Two nodes on one machine have different process ids, and two machines are unlikely to
        // start in the same nanosecond.
        let writer = format!("{:x}-{:x}", now.as_nanos(), std::process::id());
        let root = dir.join(escaped(group)).join(escaped(topic));
        Self { root, writer, indexes: indexes.to_vec(), writing: Arc::default() }
    }

    /// Returns the lock to hold while a backup of a partition is written. All backups of the
    /// partition that this process writes are prepared in the same directory, even if the partition
    /// was closed and opened again.
    pub fn lock_of(&self, partition: u32) -> Arc<Lock<()>> {
        Arc::clone(self.writing.lock().entry(partition).or_default())
    }

    fn partition(&self, partition: u32) -> PathBuf {
        self.root.join(partition.to_string())
    }

    /// Returns the directory to which this process writes the backups of a partition.
    pub fn own(&self, partition: u32) -> PathBuf {
        self.partition(partition).join(&self.writer)
    }

    /// Marks a backup as valid, and removes all other backups of the partition except the newest
    /// `keep - 1`.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn finish(
        &self,
        partition: u32,
        path: &Path,
        (position, epoch): (Position, i32),
        keep: usize,
    ) -> std::io::Result<()> {
        let saved = Saved {
            identity: format!("{:016x}", position.identity),
            seq: position.seq,
            epoch: Some(epoch),
            taken: millis(SystemTime::now()),
            indexes: self.indexes.clone(),
        };
        let (part, file) = (path.join("PARTITION.part"), path.join(FILE));
        let mut out = fs::File::create(&part)?;
        out.write_all(&serde_json::to_vec_pretty(&saved)?)?;
        out.sync_all()?;
        fs::rename(&part, &file)?;
        fs::File::open(path)?.sync_all()?;
        let mut all = self.all(partition);
        // The new backup comes first, even if the clocks of other writers are ahead.
        all.sort_by_key(|(other, saved)| (other != path, std::cmp::Reverse(saved.taken)));
        for (old, _) in all.iter().skip(keep.max(1)) {
            // Another node may remove it at the same time.
            let _ = fs::remove_dir_all(old);
            // Also removes the directory of a writer that no longer exists, if it is empty.
            let _ = old.parent().map(fs::remove_dir);
        }
        // The time of the file that was just written comes from the same clock as the times of the
        // other files.
        self.remove_abandoned(partition, fs::metadata(&file)?.modified()?);
        Ok(())
    }

    /// Removes incomplete backups of the partition that other processes left behind. If this fails,
    /// the next backup tries again.
    fn remove_abandoned(&self, partition: u32, now: SystemTime) {
        let finished = self.all(partition);
        let is_abandoned = |path: &Path| {
            let last = last_write(path).and_then(|last| now.duration_since(last).ok());
            last.is_some_and(|since| since > ABANDONED)
        };
        for writer in folders(&self.partition(partition)) {
            for folder in folders(&writer) {
                let is_finished = finished.iter().any(|(path, _)| *path == folder);
                if !is_finished && is_abandoned(&folder) {
                    tracing::warn!(path = %folder.display(), "an abandoned backup is removed");
                    let _ = fs::remove_dir_all(&folder);
                }
            }
            if writer != self.own(partition) && is_abandoned(&writer) {
                // This fails, as it should, if the directory contains a backup.
                let _ = fs::remove_dir(&writer);
            }
        }
    }

    /// Returns every complete backup of a partition. Files that cannot be read are ignored.
    fn all(&self, partition: u32) -> Vec<(PathBuf, Saved)> {
        let writers = folders(&self.partition(partition));
        let backups = writers.iter().flat_map(|writer| folders(writer));
        let read = |path: PathBuf| {
            let json = fs::read(path.join(FILE)).ok()?;
            Some((path, serde_json::from_slice(&json).ok()?))
        };
        backups.filter_map(read).collect()
    }

    /// Returns the backups that can be restored for this history, newest first. `until` is the end
    /// of the partition: a backup beyond it belongs to a topic that was truncated. `tombstones` is
    /// the time for which the topic keeps deletions.
    pub fn usable(
        &self,
        partition: u32,
        until: Position,
        tombstones: Option<Duration>,
    ) -> Vec<FoundBackup> {
        let now = millis(SystemTime::now());
        // Only half of the time counts, because the clocks of two machines may differ, and the
        // restore takes time.
        let oldest = tombstones.map(|time| u64::try_from(time.as_millis() / 2).unwrap_or(u64::MAX));
        let refused = |saved: &Saved| {
            if saved.indexes != self.indexes {
                Some("it is of other indexes")
            } else if saved.identity != format!("{:016x}", until.identity) {
                Some("it is of another topic of this name")
            } else if saved.seq > until.seq {
                Some("it is ahead of the topic, which was truncated")
            } else if saved.epoch.is_none() {
                Some("it is of a version that kept no leader epochs")
            } else if oldest.is_some_and(|oldest| now.abs_diff(saved.taken) > oldest) {
                Some("deletions behind it may be gone, or a clock is wrong")
            } else {
                None
            }
        };
        let mut found = Vec::new();
        for (path, saved) in self.all(partition) {
            match refused(&saved) {
                Some(why) => tracing::warn!(path = %path.display(), why, "backup not used"),
                None => {
                    let position = Position { identity: until.identity, seq: saved.seq };
                    let epoch = saved.epoch.unwrap_or(-1);
                    found.push(FoundBackup { path, position, epoch });
                }
            }
        }
        found.sort_by_key(|found| std::cmp::Reverse(found.position.seq));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordna_secondary::Part;

    fn at(seq: u64) -> Position {
        Position { identity: 7, seq }
    }

    fn write(backups: &Backups, number: u64, seq: u64) -> PathBuf {
        let path = backups.own(3).join(format!("backup-{number}"));
        fs::create_dir_all(&path).unwrap();
        backups.finish(3, &path, (at(seq), 4), 2).unwrap();
        path
    }

    /// Creates a directory with a file that was written this long ago.
    fn left(path: &Path, ago: Duration) -> PathBuf {
        fs::create_dir_all(path.join("index-1")).unwrap();
        let file = path.join("index-1/shard-0000");
        fs::write(&file, [0; 100]).unwrap();
        for path in [&file, &path.join("index-1"), path, path.parent().unwrap()] {
            let time = SystemTime::now() - ago;
            fs::File::open(path).unwrap().set_modified(time).unwrap();
        }
        path.to_owned()
    }

    #[test]
    fn backups_that_were_not_finished_go_once_they_are_abandoned() {
        let dir = std::env::temp_dir().join(format!("ordna-abandoned-{}", std::process::id()));
        let indexes = [IndexDefinition::new("i", "").part(Part::new("a"))];
        let [killed, slow, one] = [0; 3].map(|_| Backups::new(&dir, "g", "t", &indexes));
        let two_hours = ABANDONED * 2;
        let finished = write(&slow, 1, 5);
        let gone = left(&killed.own(3).join("unfinished"), two_hours);
        let unnamed = left(&killed.own(3).join("backup-1"), two_hours);
        let own = left(&one.own(3).join("backup-7"), two_hours);
        // Another process is writing this one.
        let under_way = left(&slow.own(3).join("unfinished"), Duration::from_secs(60));
        left(&killed.own(3).join("unfinished"), two_hours);
        let new = write(&one, 8, 9);
        assert!(!gone.exists() && !unnamed.exists() && !own.exists());
        assert!(under_way.exists() && finished.exists() && new.exists());
        assert!(!killed.own(3).exists() || folders(&killed.own(3)).is_empty());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn only_backups_that_fit_are_used_newest_first() {
        let dir = std::env::temp_dir().join(format!("ordna-backups-{}", std::process::id()));
        let indexes = [IndexDefinition::new("i", "").part(Part::new("a"))];
        let one = Backups::new(&dir, "g", "../t", &indexes);
        let other = Backups::new(&dir, "g", "../t", &indexes);
        assert!(one.own(3).starts_with(&dir) && one.own(3) != other.own(3));
        write(&one, 1, 10);
        let second = write(&other, 1, 30);
        let third = write(&one, 2, 20);
        // The oldest one was removed: two are kept, whoever wrote them.
        let paths =
            |found: Vec<FoundBackup>| found.into_iter().map(|one| one.path).collect::<Vec<_>>();
        assert_eq!(paths(one.usable(3, at(30), None)), [second.clone(), third.clone()]);
        // A truncated topic, a recreated topic, another partition, group, topic and definition.
        assert_eq!(paths(one.usable(3, at(29), None)), [third]);
        assert_eq!(one.usable(3, Position { identity: 8, seq: 99 }, None), []);
        assert_eq!(one.usable(4, at(99), None), []);
        let changed = [IndexDefinition::new("i", "").part(Part::new("a").descending())];
        for (group, topic, indexes) in
            [("h", "../t", &indexes), ("g", "t", &indexes), ("g", "../t", &changed)]
        {
            assert_eq!(Backups::new(&dir, group, topic, indexes).usable(3, at(99), None), []);
        }
        // The topic may have dropped deletions since; and a clock that is a day ahead.
        let day = Duration::from_secs(86_400);
        assert_eq!(one.usable(3, at(99), Some(day)).len(), 2);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(one.usable(3, at(99), Some(Duration::ZERO)).len(), 0);
        let file = second.join(FILE);
        let mut saved: Saved = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        saved.taken += 86_400_000;
        fs::write(&file, serde_json::to_vec(&saved).unwrap()).unwrap();
        assert_eq!(one.usable(3, at(99), Some(day)).len(), 1);
        // The clock of the next writer is behind. Its backup stays, and the third one is removed.
        let fourth = write(&one, 3, 40);
        assert_eq!(paths(one.usable(3, at(99), None)), [fourth, second]);
        // A backup of an older version, without an epoch.
        assert_eq!(one.usable(3, at(99), None)[0].epoch, 4);
        saved.epoch = None;
        saved.taken -= 86_400_000;
        fs::write(&file, serde_json::to_vec(&saved).unwrap()).unwrap();
        assert_eq!(one.usable(3, at(99), None).len(), 1);
        // An incomplete backup.
        fs::remove_file(file).unwrap();
        assert_eq!(one.usable(3, at(99), None).len(), 1);
        fs::remove_dir_all(dir).unwrap();
    }
}
