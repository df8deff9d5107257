//! Files of former versions remain readable. With `ORDNA_WRITE_GOLDEN=1`, missing files are
//! written: one set per format version, and one with Zstandard.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ordna::durability::{
    BackupOptions, Compression, Disk, OpenOptions, OutFile, Progress, Storage, SyncPolicy, verify,
};
use ordna::{Options, OrderedIndex, Put, Write};

use super::disk::Model;
use super::steps::{Bytes, DIR, State, options, state_of};

/// A callback that is called once, before a file with this name is created.
type Hook = (&'static str, Box<dyn FnOnce() + Send>);

/// A storage that calls a callback when a certain file of a backup is created.
pub struct Hooked {
    storage: Arc<dyn Storage>,
    hook: Mutex<Option<Hook>>,
}

impl Hooked {
    pub fn new(storage: Arc<dyn Storage>) -> Arc<Self> {
        Arc::new(Self { storage, hook: Mutex::new(None) })
    }

    /// Calls `hook` after the snapshot point, before a worker has read anything.
    pub fn before_the_first_shard(&self, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap() = Some(("shard-0000", Box::new(hook)));
    }

    /// Calls `hook` after the first backup has begun, before its snapshot point.
    pub fn before_the_second_segment(&self, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap() = Some(("log-0000000002", Box::new(hook)));
    }
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.storage.fmt(f)
    }
}

impl Storage for Hooked {
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        let hook = self.hook.lock().unwrap().take_if(|(name, _)| path.ends_with(name));
        if let Some((_, hook)) = hook {
            hook();
        }
        self.storage.create(path)
    }
    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)> {
        self.storage.open(path)
    }
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.storage.truncate(path, len)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.storage.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.storage.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.storage.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.storage.list(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.storage.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        self.storage.lock(path)
    }
}

/// The latest version of the format.
const LATEST: u32 = 2;

/// Returns the directories of golden files, each with its format version and the compression of its
/// backup.
fn golden_files() -> Vec<(&'static str, u32, Compression)> {
    let mut all = vec![("v1", 1, Compression::Lz4), ("v2", LATEST, Compression::Lz4)];
    all.extend(cfg!(feature = "zstd").then_some(("v2-zstd", LATEST, Compression::Zstd)));
    all
}

/// A time in the year 2100, in milliseconds.
const LATE: u64 = 4_102_444_800_000;

/// Writes files with every kind of record of a format version. Returns the state after them.
fn life(dir: &Path, storage: Arc<dyn Storage>, version: u32, compression: Compression) -> State {
    let hooked = Hooked::new(storage);
    let open = OpenOptions::new()
        .storage(hooked.clone())
        .sync(SyncPolicy::Always)
        .store(Options::new().clock(|| 1000).background_collector(false));
    let store = Arc::new(Bytes::open(dir, open).unwrap());
    let until = |expires_at| Put { value: b"until".as_slice(), expires_at };
    let put = |key: &[u8], expires_at| {
        store.modify_entry(key, |_| ordna::Change::Put(until(expires_at))).unwrap();
    };
    for key in [b"a", b"b", b"c", b"d", b"r", b"s"] {
        store.insert(key, [key[0]; 40].as_slice()).unwrap();
    }
    put(b"e", Some(LATE));
    put(b"", None);
    // Writes after the snapshot point, during the backup: the delta file gets a value, a value with
    // a deadline, and an absent key.
    let late = Arc::clone(&store);
    hooked.before_the_first_shard(move || {
        late.insert(b"a", b"after the cut").unwrap();
        late.insert(b"e", b"after the cut").unwrap();
        late.insert(b"f", b"after the cut").unwrap();
    });
    let backup =
        BackupOptions::new().workers(1).compression(compression).metadata(|| b"stream 7".to_vec());
    let summary = store.backup(&backup).unwrap();
    assert_eq!(summary.spilled, 3);
    store.write_batch(&[Write::put(b"g", b"1"), Write::Remove(b"b")]).unwrap();
    put(b"h", Some(LATE));
    put(b"i", Some(LATE));
    store.set_expiry(b"h", None).unwrap();
    store.set_expiry(b"c", Some(LATE + 1)).unwrap();
    let range =
        (std::ops::Bound::Excluded(b"q".as_slice()), std::ops::Bound::Included(b"s".as_slice()));
    store.remove_range(range).unwrap();
    if version >= 2 {
        store.append(b"d", b", appended").unwrap();
        store.splice(b"i", |_| Some((2, b"TIL, and far"))).unwrap();
        store.splice(b"i", |_| Some((20, b"behind"))).unwrap();
    }
    state_of(&store)
}

fn expected(version: u32) -> State {
    life(Path::new(DIR), Arc::new(Model::new()), version, Compression::None)
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/durability/golden").join(name)
}

/// Copies a directory into a model of a disk.
fn load(disk: &Model, from: &Path, to: &Path) {
    disk.create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            load(disk, &entry.path(), &to);
        } else {
            let file = disk.create(&to).unwrap();
            file.write(&std::fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

#[test]
fn files_of_each_format_version_are_readable() {
    for (name, version, compression) in golden_files() {
        let dir = golden(name);
        if std::env::var_os("ORDNA_WRITE_GOLDEN").is_some() && !dir.exists() {
            std::fs::create_dir(&dir).unwrap();
            life(&dir, Arc::new(Disk), version, compression);
            std::fs::remove_file(dir.join("LOCK")).unwrap();
        }
        let disk = Model::new();
        load(&disk, &dir, Path::new(DIR));
        let report = verify(&disk, DIR, &Progress::default()).unwrap();
        assert_eq!((report.backups.len(), report.backups[0].entries), (1, 8));
        let store = Bytes::open(DIR, options(&disk, SyncPolicy::Never)).unwrap();
        assert_eq!(state_of(&store), expected(version), "{name}");
        let recovery = store.durability().unwrap().recovery;
        assert_eq!(recovery.metadata, b"stream 7");
        assert!(recovery.log.closed && recovery.log.cuts.is_empty());
    }
}

#[test]
fn a_backup_holds_the_state_of_its_cut_though_writes_come_before_its_workers() {
    let disk = Model::new();
    life(Path::new(DIR), Arc::new(disk.clone()), LATEST, Compression::Lz4);
    // The states of all ranges share one file, because there are few.
    let deltas = disk.files().into_iter().filter(|path| path.to_str().unwrap().contains("/delta-"));
    assert!(deltas.map(|path| path.ends_with("delta-0000")).eq([true]));
    let backup = disk.files().into_iter().find(|path| path.ends_with("MANIFEST")).unwrap();
    let store =
        Bytes::restore(backup.parent().unwrap(), options(&disk, SyncPolicy::Never)).unwrap();
    assert_eq!(store.get(b"a".as_slice()), Some(vec![b'a'; 40]));
    assert_eq!(store.expiry(b"e"), Some(Some(LATE)));
    assert_eq!(store.get(b"f".as_slice()), None);
    assert_eq!(store.approximate_len(), 8);
}
