//! A model of a disk: what is not synced may be lost, and any operation can be made to fail.
//!
//! A file's content is durable up to its last sync; a name is durable once its directory is synced.
//! A power cut keeps what is durable, and a random part of the rest.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use ordna::durability::{OutFile, Storage};
use ordna_testkit::random::Random;

#[derive(Debug, Clone)]
enum Node {
    File { data: Vec<u8>, synced: usize },
    Dir { names: BTreeMap<String, usize>, durable: BTreeMap<String, usize> },
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails and does nothing, or, a write, half of it.
    Fails,
    /// A sync reports success without doing anything.
    Lies,
    /// This operation and all that follow fail.
    PowerCut,
}

#[derive(Debug)]
struct Inner {
    nodes: Vec<Node>,
    operations: u64,
    fault: Option<(u64, Fault)>,
    /// What the fault hit.
    hit: Option<String>,
    off: bool,
    /// Writes take at most so many bytes.
    most: usize,
    /// Bytes that all files together may have.
    space: usize,
    locked: bool,
}

#[derive(Debug, Clone)]
pub struct Model(Arc<Mutex<Inner>>);

impl Model {
    pub fn new() -> Self {
        let root = Node::Dir { names: BTreeMap::new(), durable: BTreeMap::new() };
        Self::of(vec![root])
    }

    fn of(nodes: Vec<Node>) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            nodes,
            operations: 0,
            fault: None,
            hit: None,
            off: false,
            most: usize::MAX,
            space: usize::MAX,
            locked: false,
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Has the `number`th operation from now on go wrong.
    pub fn fault(self, number: u64, fault: Fault) -> Self {
        let mut inner = self.inner();
        inner.fault = Some((inner.operations + number, fault));
        drop(inner);
        self
    }

    /// Has each write take at most so many bytes.
    pub fn short_writes(self, most: usize) -> Self {
        self.inner().most = most;
        self
    }

    /// Leaves the disk with so many free bytes.
    pub fn set_free(&self, bytes: usize) {
        let mut inner = self.inner();
        inner.space = inner.used() + bytes;
    }

    pub fn operations(&self) -> u64 {
        self.inner().operations
    }

    /// What the fault hit, if it has.
    pub fn hit(&self) -> Option<String> {
        self.inner().hit.clone()
    }

    /// The disk after a restart of the process: nothing is lost.
    pub fn after_exit(&self) -> Self {
        Self::of(self.inner().nodes.clone())
    }

    /// The disk after a power cut.
    pub fn after_power_cut(&self, random: &mut Random) -> Self {
        let mut nodes = self.inner().nodes.clone();
        for node in &mut nodes {
            match node {
                Node::File { data, synced } => {
                    let kept = *synced + random.below((data.len() - *synced) as u64 + 1) as usize;
                    data.truncate(kept);
                    // A page in the middle that was never written.
                    if kept > *synced && random.below(4) == 0 {
                        let from = *synced + random.below((kept - *synced) as u64) as usize;
                        let to = from + random.below((kept - from) as u64 + 1) as usize;
                        data[from..to].fill(0);
                    }
                    *synced = data.len();
                }
                Node::Dir { names, durable } => {
                    if random.below(2) == 0 {
                        names.clone_from(durable);
                    }
                    durable.clone_from(names);
                }
            }
        }
        Self::of(nodes)
    }

    /// Paths of all files.
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
        inner.nodes[at] = Node::File { synced: content.len(), data: content };
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Inner {
    /// Counts an operation; `Some(Lies)` for a sync that lies.
    fn operate(&mut self, what: &str, path: &Path) -> io::Result<Option<Fault>> {
        if self.off {
            return Err(io::Error::other("the power is off"));
        }
        self.operations += 1;
        let Some((number, fault)) = self.fault.filter(|(at, _)| *at == self.operations) else {
            return Ok(None);
        };
        let is_sync = what == "sync" || what == "sync_dir";
        if fault == Fault::Lies && !is_sync {
            return Ok(None);
        }
        self.hit = Some(format!("{fault:?} at {number}: {what} {}", path.display()));
        match fault {
            Fault::Lies => Ok(Some(fault)),
            Fault::Fails => Err(io::Error::other("injected failure")),
            Fault::PowerCut => {
                self.off = true;
                Err(io::Error::other("the power is off"))
            }
        }
    }

    /// Bytes of all files that have a name.
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

    fn names(&mut self, dir: &Path) -> io::Result<&mut BTreeMap<String, usize>> {
        let at = self.find(dir)?;
        match &mut self.nodes[at] {
            Node::Dir { names, .. } => Ok(names),
            Node::File { .. } => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn add(&mut self, path: &Path, node: Node) -> io::Result<usize> {
        let at = self.nodes.len();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let names = self.names(path.parent().unwrap())?;
        if names.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        names.insert(name, at);
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
        let mut inner = self.model.inner();
        let done = inner.operate("write", &self.path);
        let most = inner.most;
        let free = match inner.space {
            usize::MAX => usize::MAX,
            space => space.saturating_sub(inner.used()),
        };
        let failed = done.is_err();
        let was_off = inner.off;
        let Node::File { data, .. } = &mut inner.nodes[self.at] else { unreachable!() };
        if failed {
            if !was_off {
                data.extend_from_slice(&bytes[..bytes.len() / 2]);
            }
            done?;
        }
        if free == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = bytes.len().min(most).min(free);
        data.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.model.inner();
        let lies = inner.operate("sync", &self.path)?.is_some();
        if let Node::File { data, synced } = &mut inner.nodes[self.at]
            && !lies
        {
            *synced = data.len();
        }
        Ok(())
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
        let mut inner = self.inner();
        inner.operate("create", path)?;
        let at = inner.add(path, Node::File { data: Vec::new(), synced: 0 })?;
        Ok(Box::new(ModelFile { model: self.clone(), at, path: path.to_owned() }))
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
        let mut inner = self.inner();
        inner.operate("truncate", path)?;
        let at = inner.find(path)?;
        if let Node::File { data, synced } = &mut inner.nodes[at] {
            data.truncate(len as usize);
            *synced = data.len();
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.operate("rename", from)?;
        let at = inner.find(from)?;
        let names = inner.names(from.parent().unwrap())?;
        names.remove(from.file_name().unwrap().to_str().unwrap());
        let names = inner.names(to.parent().unwrap())?;
        names.insert(to.file_name().unwrap().to_str().unwrap().to_owned(), at);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.operate("remove", path)?;
        inner.find(path)?;
        let names = inner.names(path.parent().unwrap())?;
        names.remove(path.file_name().unwrap().to_str().unwrap());
        Ok(())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.operate("create_dir", path)?;
        let mut dir = PathBuf::from("/");
        for part in path.strip_prefix("/").unwrap() {
            dir.push(part);
            if inner.find(&dir).is_err() {
                let (names, durable) = (BTreeMap::new(), BTreeMap::new());
                let at = inner.add(&dir, Node::Dir { names, durable })?;
                let above = inner.find(dir.parent().unwrap())?;
                let Node::Dir { durable, .. } = &mut inner.nodes[above] else { unreachable!() };
                durable.insert(part.to_str().unwrap().to_owned(), at);
            }
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut inner = self.inner();
        inner.operate("list", dir)?;
        Ok(inner.names(dir)?.keys().cloned().collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        let lies = inner.operate("sync_dir", dir)?.is_some();
        let at = inner.find(dir)?;
        if let Node::Dir { names, durable } = &mut inner.nodes[at]
            && !lies
        {
            durable.clone_from(names);
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
