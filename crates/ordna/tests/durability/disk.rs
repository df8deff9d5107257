//! A model of a disk, on which data that is not synced may be lost and any operation can be made to
//! fail.
//!
//! The content of a file is durable up to its last sync, and a name is durable when its directory
//! is synced. A power failure keeps everything durable and a random part of the rest: of the bytes
//! of a file, a prefix in which ranges may be zeros; of the changes of a directory, all, a prefix,
//! or any subset. Bytes of a failed sync may be lost even if a later sync succeeds, because
//! operating systems drop such pages.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ordna::durability::{OutFile, SharedFile, Storage};
use ordna_testkit::random::Random;

#[derive(Debug, Clone)]
enum Node {
    File {
        data: Vec<u8>,
        synced: usize,
        /// Ranges that a sync failed to write.
        lost: Vec<(usize, usize)>,
    },
    Dir {
        names: Names,
        durable: Names,
        changes: Vec<Change>,
    },
}

type Names = BTreeMap<String, usize>;

/// A change of a directory that is not synced yet.
#[derive(Debug, Clone)]
enum Change {
    Add(String, usize),
    Remove(String),
    Rename(String, String, usize),
}

impl Change {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Add(name, at) => drop(names.insert(name.clone(), *at)),
            Self::Remove(name) => drop(names.remove(name)),
            Self::Rename(from, to, at) => {
                names.remove(from);
                names.insert(to.clone(), *at);
            }
        }
    }
}

/// Maximum time that a paused thread waits, because the thread that would resume it may be waiting
/// for it.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// Name of a thread that calls `Store::backup` and may be paused.
pub const BACKUP_THREAD: &str = "history backup";
/// Names of threads that take backups, including those of the server.
const BACKUP_THREADS: [&str; 3] = [BACKUP_THREAD, "ordna backup", "ordna bgsave"];
/// Name of the thread that writes the log.
const LOG_THREAD: &str = "ordna log";
/// Bytes of a shared file that a power cut keeps or loses together.
const PIECE: usize = 64;

/// A pause of the threads with certain names.
#[derive(Debug, Default)]
struct Pause {
    /// Number of operations of these threads before the one that waits.
    left: Option<u64>,
    waits: bool,
}

fn begin_pause(stop: &Stop, number: u64) {
    *stop.0.lock().unwrap() = Pause { left: Some(number), waits: false };
}

fn end_pause(stop: &Stop) {
    *stop.0.lock().unwrap() = Pause::default();
    stop.1.notify_all();
}

/// The effect of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails and does nothing. A write may write half of its bytes.
    Fails,
    /// A sync reports success, but does nothing.
    Lies,
    /// This operation and all later ones fail.
    PowerCut,
}

/// The time at which a fault happens.
#[derive(Debug, Clone, Copy)]
enum When {
    /// The operation with this number.
    At(u64),
    /// The nth operation of a kind from now on.
    Kind(&'static str, u64),
    /// The nth operation after the next operation of a kind.
    After(&'static str, u64),
}

#[derive(Debug)]
struct Inner {
    nodes: Vec<Node>,
    operations: u64,
    faults: Vec<(When, Fault)>,
    /// Descriptions of the operations that faults have hit.
    hits: Vec<String>,
    /// Whether an operation has failed since [`Model::calm`].
    has_failed: bool,
    off: bool,
    /// Maximum number of bytes that a write accepts.
    most: usize,
    /// Duration of a sync.
    sync_takes: Duration,
    /// Maximum total size of all files in bytes.
    space: usize,
    /// Number of the operation after which the space is unlimited.
    space_ends: u64,
    locked: bool,
    /// Whether files can be shared, and which ones are. A power failure keeps any of their pieces.
    shares: bool,
    shared: BTreeSet<usize>,
}

/// The pause of the threads with a certain name, and its notification.
type Stop = (Mutex<Pause>, Condvar);

#[derive(Debug, Default)]
struct Stops {
    backup: Stop,
    log: Stop,
}

#[derive(Debug, Clone)]
pub struct Model(Arc<Mutex<Inner>>, Arc<Stops>);

impl Model {
    pub fn new() -> Self {
        Self::of(vec![Node::new_dir()])
    }

    fn of(nodes: Vec<Node>) -> Self {
        let inner = Inner {
            nodes,
            operations: 0,
            faults: Vec::new(),
            hits: Vec::new(),
            has_failed: false,
            off: false,
            most: usize::MAX,
            sync_takes: Duration::ZERO,
            space: usize::MAX,
            space_ends: u64::MAX,
            locked: false,
            shares: false,
            shared: BTreeSet::new(),
        };
        Self(Arc::new(Mutex::new(inner)), Arc::default())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Makes the `number`th operation from now on fail with a fault.
    pub fn fault(self, number: u64, fault: Fault) -> Self {
        let mut inner = self.inner();
        let at = inner.operations + number;
        inner.faults.push((When::At(at), fault));
        drop(inner);
        self
    }

    /// Makes the `number`th operation of a kind from now on fail.
    pub fn fail(&self, kind: &'static str, number: u64) {
        self.inner().faults.push((When::Kind(kind, number), Fault::Fails));
    }

    /// Makes the `number`th operation after the next operation of a kind fail.
    pub fn fail_after(&self, kind: &'static str, number: u64) {
        self.inner().faults.push((When::After(kind, number), Fault::Fails));
    }

    /// Ends all faults, and makes the space unlimited.
    pub fn calm(&self) {
        let mut inner = self.inner();
        inner.faults.clear();
        inner.has_failed = false;
        (inner.space, inner.space_ends) = (usize::MAX, u64::MAX);
    }

    /// Limits the number of bytes that each write accepts.
    pub fn short_writes(self, most: usize) -> Self {
        self.inner().most = most;
        self
    }

    /// Enables files that are changed without a system call.
    pub fn shares(self) -> Self {
        self.inner().shares = true;
        self
    }

    /// Makes each sync of a file take this long.
    pub fn slow_syncs(self, took: Duration) -> Self {
        self.inner().sync_takes = took;
        self
    }

    /// Sets the number of free bytes; with `usize::MAX`, the space is unlimited.
    pub fn set_free(&self, bytes: usize) {
        let mut inner = self.inner();
        (inner.space, inner.space_ends) = (inner.used().saturating_add(bytes), u64::MAX);
    }

    /// Works like [`set_free`](Self::set_free), but only for a number of operations.
    pub fn set_free_for(&self, bytes: usize, operations: u64) {
        self.set_free(bytes);
        let mut inner = self.inner();
        inner.space_ends = inner.operations + operations;
    }

    /// Returns whether an operation has failed, or a write did not fit, since [`calm`](Self::calm).
    pub fn has_failed(&self) -> bool {
        self.inner().has_failed
    }

    /// Returns whether a store holds the lock.
    #[allow(dead_code, reason = "the server's tests ask")]
    pub fn is_locked(&self) -> bool {
        self.inner().locked
    }

    /// Returns whether the power has failed.
    pub fn is_off(&self) -> bool {
        self.inner().off
    }

    /// Pauses the next backup at its `number`th operation, until [`resume`](Self::resume).
    pub fn pause_backup(&self, number: u64) {
        begin_pause(&self.1.backup, number);
    }

    /// Waits until the backup is paused or `is_done` returns `true`.
    pub fn wait_paused(&self, is_done: impl Fn() -> bool) {
        let began = Instant::now();
        let waits = || self.1.backup.0.lock().unwrap().waits;
        while !is_done() && !waits() && began.elapsed() < LONGEST_PAUSE {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Ends the pause of a backup.
    pub fn resume(&self) {
        end_pause(&self.1.backup);
    }

    /// Pauses the log's thread at its `number`th operation from now on.
    pub fn pause_log(&self, number: u64) {
        begin_pause(&self.1.log, number);
    }

    /// Ends the pause of the log's thread.
    pub fn resume_log(&self) {
        end_pause(&self.1.log);
    }

    /// Makes a thread wait here if there is a pause for its name.
    fn pause_here(&self) {
        let thread = std::thread::current();
        let (pause, resumed) = match thread.name() {
            Some(LOG_THREAD) => &self.1.log,
            Some(name) if BACKUP_THREADS.contains(&name) => &self.1.backup,
            _ => return,
        };
        let mut pause = pause.lock().unwrap();
        match &mut pause.left {
            None => return,
            Some(0) => {}
            Some(left) => {
                *left -= 1;
                return;
            }
        }
        pause.waits = true;
        let waits = |pause: &mut Pause| pause.left == Some(0);
        let (mut pause, timeout) = resumed.wait_timeout_while(pause, LONGEST_PAUSE, waits).unwrap();
        if timeout.timed_out() {
            *pause = Pause::default();
        }
    }

    pub fn operations(&self) -> u64 {
        self.inner().operations
    }

    /// Returns a description of the operation that the last fault has hit.
    pub fn hit(&self) -> Option<String> {
        self.inner().hits.last().cloned()
    }

    /// Returns descriptions of all operations that faults have hit.
    pub fn hits(&self) -> Vec<String> {
        self.inner().hits.clone()
    }

    /// Returns the disk after a restart of the process, which loses nothing. An opening syncs what
    /// it has read, and the model accepts such a sync even for bytes that a sync of the former
    /// process failed to write.
    pub fn after_exit(&self) -> Self {
        let inner = self.inner();
        let after = Self::of(inner.nodes.clone());
        for node in &mut after.inner().nodes {
            if let Node::File { lost, .. } = node {
                lost.clear();
            }
        }
        after.inner().space = inner.space;
        after.inner().shares = inner.shares;
        after
    }

    /// Returns the disk after a power failure.
    pub fn after_power_cut(&self, random: &mut Random) -> Self {
        let inner = self.inner();
        let (mut nodes, shared) = (inner.nodes.clone(), inner.shared.clone());
        drop(inner);
        for (at, node) in nodes.iter_mut().enumerate() {
            match node {
                Node::File { data, synced, .. } if shared.contains(&at) => {
                    for piece in data.chunks_mut(PIECE) {
                        if random.below(2) == 0 {
                            piece.fill(0);
                        }
                    }
                    *synced = data.len();
                }
                Node::File { data, synced, lost } => {
                    let unsynced = (data.len() - *synced) as u64;
                    let kept = match random.below(4) {
                        0 => data.len(),
                        1 => *synced,
                        _ => *synced + random.below(unsynced + 1) as usize,
                    };
                    data.truncate(kept);
                    // The length of the file was written, but some of its pages were not.
                    if kept > *synced && random.below(3) == 0 {
                        let from = *synced + random.below((kept - *synced) as u64) as usize;
                        let to = from + random.below((kept - from) as u64 + 1) as usize;
                        let all = random.below(2) == 0;
                        data[if all { *synced..kept } else { from..to }].fill(0);
                    }
                    for (from, to) in lost.drain(..) {
                        if random.below(2) == 0 {
                            let to = to.min(data.len());
                            data[from.min(to)..to].fill(0);
                        }
                    }
                    *synced = data.len();
                }
                Node::Dir { names, durable, changes } => {
                    match random.below(5) {
                        0 | 1 => {}
                        2 => names.clone_from(durable),
                        3 => {
                            names.clone_from(durable);
                            let kept = random.below(changes.len() as u64 + 1) as usize;
                            changes[..kept].iter().for_each(|change| change.apply(names));
                        }
                        _ => {
                            names.clone_from(durable);
                            for change in changes.iter() {
                                if random.below(2) == 0 {
                                    change.apply(names);
                                }
                            }
                        }
                    }
                    durable.clone_from(names);
                    changes.clear();
                }
            }
        }
        let after = Self::of(nodes);
        after.inner().shares = self.inner().shares;
        after
    }

    /// Returns the paths of all files.
    pub fn files(&self) -> Vec<PathBuf> {
        let inner = self.inner();
        let (mut open, mut files) = (vec![(PathBuf::from("/"), 0)], Vec::new());
        while let Some((path, at)) = open.pop() {
            match &inner.nodes[at] {
                Node::File { .. } => files.push(path),
                Node::Dir { names, .. } => {
                    open.extend(names.iter().map(|(name, at)| (path.join(name), *at)));
                }
            }
        }
        files.sort();
        files
    }

    pub fn read(&self, path: &Path) -> Vec<u8> {
        let mut inner = self.inner();
        let at = inner.find(path).unwrap();
        match &mut inner.nodes[at] {
            Node::File { data, .. } => data.clone(),
            Node::Dir { .. } => panic!("{} is a directory", path.display()),
        }
    }

    pub fn replace(&self, path: &Path, content: Vec<u8>) {
        let mut inner = self.inner();
        let at = inner.find(path).unwrap();
        inner.nodes[at] = Node::new_file(content);
    }

    /// Adds a file, durably.
    pub fn add(&self, path: &Path, content: Vec<u8>) {
        self.inner().add(path, Node::new_file(content)).unwrap();
        self.sync_dir(path.parent().unwrap()).unwrap();
    }
}

impl Node {
    /// Creates a file with durable content.
    fn new_file(data: Vec<u8>) -> Self {
        Self::File { synced: data.len(), data, lost: Vec::new() }
    }

    fn new_dir() -> Self {
        Self::Dir { names: Names::new(), durable: Names::new(), changes: Vec::new() }
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Inner {
    /// Counts an operation. Returns `Some(Lies)` for a sync that only claims to succeed.
    fn operate(&mut self, what: &str, path: &Path) -> io::Result<Option<Fault>> {
        if self.off {
            return Err(io::Error::other("the power is off"));
        }
        self.operations += 1;
        if self.operations >= self.space_ends {
            (self.space, self.space_ends) = (usize::MAX, u64::MAX);
        }
        let (number, mut due) = (self.operations, None);
        self.faults.retain_mut(|(when, fault)| {
            let is_due = match when {
                When::At(at) => *at == number,
                When::Kind(kind, left) if *kind == what => {
                    *left = left.saturating_sub(1);
                    *left == 0
                }
                When::Kind(..) => false,
                When::After(kind, after) => {
                    if *kind == what {
                        *when = When::At(number + *after);
                    }
                    false
                }
            };
            if is_due {
                due = Some(*fault);
            }
            !is_due
        });
        let Some(fault) = due else { return Ok(None) };
        let is_sync = what == "sync" || what == "sync_dir";
        if fault == Fault::Lies && !is_sync {
            return Ok(None);
        }
        self.has_failed = true;
        self.hits.push(format!("{fault:?} at {number}: {what} {}", path.display()));
        match fault {
            Fault::Lies => Ok(Some(fault)),
            Fault::Fails => Err(io::Error::other("injected failure")),
            Fault::PowerCut => {
                self.off = true;
                Err(io::Error::other("the power is off"))
            }
        }
    }

    /// Returns the total size of all files that have a name.
    fn used(&self) -> usize {
        let (mut open, mut used) = (vec![0], 0);
        while let Some(at) = open.pop() {
            match &self.nodes[at] {
                Node::File { data, .. } => used += data.len(),
                Node::Dir { names, .. } => open.extend(names.values().copied()),
            }
        }
        used
    }

    fn find(&mut self, path: &Path) -> io::Result<usize> {
        let mut at = 0;
        for part in path.strip_prefix("/").unwrap_or(path) {
            let Node::Dir { names, .. } = &self.nodes[at] else { return Err(missing()) };
            at = *names.get(part.to_str().unwrap()).ok_or_else(missing)?;
        }
        Ok(at)
    }

    fn names(&mut self, dir: &Path) -> io::Result<&mut Names> {
        let at = self.find(dir)?;
        match &mut self.nodes[at] {
            Node::Dir { names, .. } => Ok(names),
            Node::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn change(&mut self, dir: &Path, change: Change) -> io::Result<()> {
        let at = self.find(dir)?;
        self.change_at(at, change)
    }

    fn change_at(&mut self, at: usize, change: Change) -> io::Result<()> {
        match &mut self.nodes[at] {
            Node::Dir { names, changes, .. } => {
                change.apply(names);
                changes.push(change);
                Ok(())
            }
            Node::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn sync_dir_at(&mut self, at: usize) {
        if let Node::Dir { names, durable, changes } = &mut self.nodes[at] {
            durable.clone_from(names);
            changes.clear();
        }
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<usize> {
        let at = self.nodes.len();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let names = self.names(path.parent().unwrap())?;
        if names.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.change(path.parent().unwrap(), Change::Add(name, at))?;
        self.nodes.push(node);
        Ok(at)
    }
}

#[derive(Debug)]
struct ModelFile {
    model: Model,
    at: usize,
    path: PathBuf,
}

impl OutFile for ModelFile {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.model.pause_here();
        let takes = self.model.inner().sync_takes;
        if !takes.is_zero() {
            std::thread::sleep(takes);
        }
        let mut inner = self.model.inner();
        let was_off = inner.off;
        let done = inner.operate("write", &self.path);
        let free = match inner.space {
            usize::MAX => usize::MAX,
            space => space.saturating_sub(inner.used()),
        };
        let most = inner.most.min(free);
        let failed = done.is_err();
        let Node::File { data, .. } = &mut inner.nodes[self.at] else { unreachable!() };
        if failed {
            if !was_off {
                data.extend_from_slice(&bytes[..bytes.len() / 2]);
            }
            done?;
        }
        let taken = bytes.len().min(most);
        data.extend_from_slice(&bytes[..taken]);
        if taken == 0 && !bytes.is_empty() {
            inner.has_failed = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(taken)
    }

    fn sync(&self) -> io::Result<()> {
        self.model.pause_here();
        let takes = self.model.inner().sync_takes;
        if !takes.is_zero() {
            std::thread::sleep(takes);
        }
        let mut inner = self.model.inner();
        let was_off = inner.off;
        let done = inner.operate("sync", &self.path);
        if let Node::File { data, synced, lost } = &mut inner.nodes[self.at] {
            match &done {
                Ok(None) => *synced = data.len(),
                Ok(Some(_)) => {}
                Err(_) if was_off => {}
                Err(_) => {
                    // A later sync does not write these bytes again.
                    lost.push((*synced, data.len()));
                }
            }
        }
        done.map(drop)
    }
}

impl SharedFile for ModelFile {
    fn write_at(&mut self, at: usize, bytes: &[u8]) {
        let mut inner = self.model.inner();
        if inner.off {
            return;
        }
        let Node::File { data, .. } = &mut inner.nodes[self.at] else { unreachable!() };
        data[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

struct ModelLock(Model);

impl Drop for ModelLock {
    fn drop(&mut self) {
        self.0.inner().locked = false;
    }
}

impl Storage for Model {
    fn create(&self, path: &Path) -> io::Result<Box<dyn OutFile>> {
        self.pause_here();
        let mut inner = self.inner();
        inner.operate("create", path)?;
        let at = inner.add(path, Node::new_file(Vec::new()))?;
        Ok(Box::new(ModelFile { model: self.clone(), at, path: path.to_owned() }))
    }

    fn create_shared(&self, path: &Path, len: usize) -> io::Result<Option<Box<dyn SharedFile>>> {
        let mut inner = self.inner();
        if !inner.shares {
            return Ok(None);
        }
        inner.operate("create", path)?;
        if inner.space != usize::MAX && inner.space.saturating_sub(inner.used()) < len {
            inner.has_failed = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        let at = inner.add(path, Node::new_file(vec![0; len]))?;
        inner.shared.insert(at);
        Ok(Some(Box::new(ModelFile { model: self.clone(), at, path: path.to_owned() })))
    }

    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read + Send>, u64)> {
        self.inner().operate("open", path)?;
        let mut inner = self.inner();
        let at = inner.find(path)?;
        match &inner.nodes[at] {
            Node::File { data, .. } => {
                Ok((Box::new(io::Cursor::new(data.clone())), data.len() as u64))
            }
            Node::Dir { .. } => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.pause_here();
        let mut inner = self.inner();
        inner.operate("truncate", path)?;
        let at = inner.find(path)?;
        if let Node::File { data, synced, .. } = &mut inner.nodes[at] {
            data.truncate(len as usize);
            *synced = data.len();
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.pause_here();
        let mut inner = self.inner();
        inner.operate("rename", from)?;
        let at = inner.find(from)?;
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let dir = from.parent().unwrap();
        assert_eq!(to.parent(), Some(dir), "a rename within its directory is atomic");
        inner.change(dir, Change::Rename(name(from), name(to), at))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.pause_here();
        let mut inner = self.inner();
        let was_off = inner.off;
        let done = inner.operate("remove", path);
        if was_off {
            return done.map(drop);
        }
        let at = inner.find(path)?;
        // The files of a directory are removed first. After a failure, some of them remain.
        if let Node::Dir { names, .. } = &inner.nodes[at] {
            let count = if done.is_err() { names.len() / 2 } else { names.len() };
            let gone: Vec<String> = names.keys().take(count).cloned().collect();
            for name in gone {
                inner.change_at(at, Change::Remove(name))?;
            }
        }
        done?;
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        inner.change(path.parent().unwrap(), Change::Remove(name))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.pause_here();
        let mut inner = self.inner();
        inner.operate("create_dir", path)?;
        let mut dir = PathBuf::from("/");
        for part in path.strip_prefix("/").unwrap() {
            dir.push(part);
            if inner.find(&dir).is_err() {
                inner.add(&dir, Node::new_dir())?;
                let above = inner.find(dir.parent().unwrap())?;
                inner.sync_dir_at(above);
            }
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.pause_here();
        let mut inner = self.inner();
        inner.operate("list", dir)?;
        Ok(inner.names(dir)?.keys().cloned().collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.pause_here();
        let mut inner = self.inner();
        let lies = inner.operate("sync_dir", dir)?.is_some();
        let at = inner.find(dir)?;
        if !lies {
            inner.sync_dir_at(at);
        }
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let mut inner = self.inner();
        inner.operate("lock", path)?;
        if std::mem::replace(&mut inner.locked, true) {
            return Ok(None);
        }
        Ok(Some(Box::new(ModelLock(self.clone()))))
    }
}
