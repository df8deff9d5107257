//! The backups of partitions in a directory that all nodes share.
//!
//! # Layout
//! `GROUP/TOPIC/PARTITION/WRITER/backup-N` is a backup of `ordna-secondary`, with the file
//! `PARTITION.json` beside its own. A writer is a process; two processes never write to one folder,
//! also when one of them hangs and comes back.
//!
//! # Invariants
//! A backup counts once its `PARTITION.json` is there, which is written last. It is used only for
//! the history (identity, and the leader epoch at its position, which the caller compares with the
//! brokers') and the definitions that it names. In a compacted topic it is used only
//! while Kafka keeps tombstones: the deletions behind an older one may be gone.
//!
//! A process that ends during a backup leaves a folder without `PARTITION.json`. The next backup of the
//! partition, by any process, removes those in which nothing was written for [`ABANDONED`].

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

/// Time without a write after which an unfinished backup is taken for abandoned: an hour. A backup that
/// runs writes each second; a process that hangs longer finds its folder gone, and its backup fails.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The file of a backup.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    identity: String,
    seq: u64,
    /// The leader epoch of the last record in it. Backups of older versions have none.
    epoch: Option<i32>,
    /// Milliseconds since 1970, by the clock of the writer.
    taken: u64,
    indexes: Vec<IndexDefinition>,
}

/// A backup that can be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundBackup {
    /// Its directory.
    pub path: PathBuf,
    /// The changes up to here are in it.
    pub position: Position,
    /// The leader epoch of the last record in it; -1 if the brokers know no epochs.
    pub epoch: i32,
}

/// Where backups are, and which of them are used.
#[derive(Debug, Clone)]
pub struct Backups {
    root: PathBuf,
    writer: String,
    indexes: Vec<IndexDefinition>,
    /// Held by the thread that backs a partition up.
    writing: Arc<Lock<BTreeMap<u32, Arc<Lock<()>>>>>,
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A name as part of a path: bytes that may mean something else are escaped.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let part = |byte: u8| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") }
    };
    name.bytes().map(part).collect()
}

/// What is in a directory; nothing if it cannot be read.
fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The last time when something was written in a directory: to it, its files, or those one level below.
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
    /// The backups of a group and a topic under `dir`, of these indexes.
    pub fn new(dir: &Path, group: &str, topic: &str, indexes: &[IndexDefinition]) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Two nodes on one machine have other processes, two machines hardly the same nanosecond.
        let writer = format!("{:x}-{:x}", now.as_nanos(), std::process::id());
        let root = dir.join(escaped(group)).join(escaped(topic));
        Self { root, writer, indexes: indexes.to_vec(), writing: Arc::default() }
    }

    /// The lock that is held while a backup of a partition is written: all backups of it that this
    /// process writes are prepared in one folder, also when the partition was closed and opened again.
    pub fn lock_of(&self, partition: u32) -> Arc<Lock<()>> {
        Arc::clone(self.writing.lock().entry(partition).or_default())
    }

    fn partition(&self, partition: u32) -> PathBuf {
        self.root.join(partition.to_string())
    }

    /// Where this process writes the backups of a partition.
    pub fn own(&self, partition: u32) -> PathBuf {
        self.partition(partition).join(&self.writer)
    }

    /// Marks a backup as usable, and removes all others of the partition but the `keep - 1` newest.
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
        // This one first, whatever its writer's clock says.
        all.sort_by_key(|(other, saved)| (other != path, std::cmp::Reverse(saved.taken)));
        for (old, _) in all.iter().skip(keep.max(1)) {
            // Another node may remove it at the same time.
            let _ = fs::remove_dir_all(old);
            // A writer that is gone leaves an empty folder behind.
            let _ = old.parent().map(fs::remove_dir);
        }
        // By the clock that the times of the files are of.
        self.remove_abandoned(partition, fs::metadata(&file)?.modified()?);
        Ok(())
    }

    /// Removes what processes have left that ended during a backup of the partition. A failure leaves it
    /// to the next backup.
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
                // It stays if a backup is in it.
                let _ = fs::remove_dir(&writer);
            }
        }
    }

    /// Every finished backup of a partition. What cannot be read is none.
    fn all(&self, partition: u32) -> Vec<(PathBuf, Saved)> {
        let writers = folders(&self.partition(partition));
        let backups = writers.iter().flat_map(|writer| folders(writer));
        let read = |path: PathBuf| {
            let json = fs::read(path.join(FILE)).ok()?;
            Some((path, serde_json::from_slice(&json).ok()?))
        };
        backups.filter_map(read).collect()
    }

    /// The backups that can be restored for this history, newest first. `until`: the end of the
    /// partition; a backup beyond it is of a topic that was truncated. `tombstones`: for how long
    /// the topic keeps deletions.
    pub fn usable(
        &self,
        partition: u32,
        until: Position,
        tombstones: Option<Duration>,
    ) -> Vec<FoundBackup> {
        let now = millis(SystemTime::now());
        // Half of the time: the clocks of two machines may differ, and the restore takes time.
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

    /// Makes a folder with a file in it, which was written so long ago.
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
        // Another process writes this one right now.
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
        // The oldest one went: two are kept, whoever wrote them.
        let paths =
            |found: Vec<FoundBackup>| found.into_iter().map(|one| one.path).collect::<Vec<_>>();
        assert_eq!(paths(one.usable(3, at(30), None)), [second.clone(), third.clone()]);
        // Truncated topic, recreated topic, another partition, group, topic, definition.
        assert_eq!(paths(one.usable(3, at(29), None)), [third]);
        assert_eq!(one.usable(3, Position { identity: 8, seq: 99 }, None), []);
        assert_eq!(one.usable(4, at(99), None), []);
        let changed = [IndexDefinition::new("i", "").part(Part::new("a").descending())];
        for (group, topic, indexes) in
            [("h", "../t", &indexes), ("g", "t", &indexes), ("g", "../t", &changed)]
        {
            assert_eq!(Backups::new(&dir, group, topic, indexes).usable(3, at(99), None), []);
        }
        // Deletions that the topic has forgotten, and a clock that is a day ahead.
        let day = Duration::from_secs(86_400);
        assert_eq!(one.usable(3, at(99), Some(day)).len(), 2);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(one.usable(3, at(99), Some(Duration::ZERO)).len(), 0);
        let file = second.join(FILE);
        let mut saved: Saved = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        saved.taken += 86_400_000;
        fs::write(&file, serde_json::to_vec(&saved).unwrap()).unwrap();
        assert_eq!(one.usable(3, at(99), Some(day)).len(), 1);
        // The writer of the next one has a clock behind that: its backup stays, the third goes.
        let fourth = write(&one, 3, 40);
        assert_eq!(paths(one.usable(3, at(99), None)), [fourth, second]);
        // One of an older version, which says nothing of epochs.
        assert_eq!(one.usable(3, at(99), None)[0].epoch, 4);
        saved.epoch = None;
        saved.taken -= 86_400_000;
        fs::write(&file, serde_json::to_vec(&saved).unwrap()).unwrap();
        assert_eq!(one.usable(3, at(99), None).len(), 1);
        // A backup that is not finished.
        fs::remove_file(file).unwrap();
        assert_eq!(one.usable(3, at(99), None).len(), 1);
        fs::remove_dir_all(dir).unwrap();
    }
}
