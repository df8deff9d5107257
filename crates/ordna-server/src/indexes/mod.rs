//! Secondary indexes over the hashes of the keyspace.
//!
//! # Contract
//! A command reports the keys that it has written while it holds the keyspace. For a key that an
//! index covers, the report reads its present hash under the lock of the key's bucket and queues
//! it. So the last change queued of a key is its last state, in whatever order writers report.
//! Without an index a report costs one load. Definitions change while no command is inside: the
//! caller holds the keyspace alone.
//!
//! # Order of locks
//! Keyspace, [`Indexes::expiring`], definitions, bucket, [`Shared::keyspace`]. A snapshot of the
//! documents is taken under all buckets; so it must not wait for the keyspace's lock and reads
//! [`Shared::keyspace`] instead.
//!
//! # Expiry
//! An expired key reports nothing. The feed notes the deadlines of covered keys; a task reads those
//! keys again when they are due.
//!
//! # Restart
//! Definitions are in a file of the data directory. Entries come from the indexes' backup if it
//! fits the keyspace's (see `resume`). If not, they are built again from the keyspace.

pub mod resume;
pub mod schema;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::io::Write;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::ShardedLock;
use ordna::durability::BackupOptions;
use ordna::{Direction, MemoryBudget};
use ordna_secondary::{
    Changed, Document, DocumentStore, Embedded, Error, IndexDefinition, Named, Options, Read,
    Service, Transaction, View,
};
use serde::{Deserialize, Serialize};

use self::resume::{Replay, Resume, Token};
use crate::indexes::schema::Schema;
use crate::keyspace::Keyspace;
use crate::keyspace::snapshot::Snapshot;
use crate::keyspace::stored_value;

/// Buckets of the stream: locks that writers of different keys share.
const BUCKETS: u32 = 16;
/// Hashes that a snapshot's iterator reads at once.
const CHUNK: usize = 256;
/// Indexes of both kinds together at most: each has a tree and a reverse map of its own.
const MOST_INDEXES: usize = 1024;
/// The file of definitions in the data directory.
const FILE: &str = "indexes.json";
/// How long a query waits for its state or for a build.
pub const PATIENCE: Duration = Duration::from_secs(30);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An index of `ORDNA.INDEX`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Composite {
    /// Its cursors name it.
    number: u64,
    definition: IndexDefinition,
}

/// The numbers of indexes begin here; the library has those below.
const FIRST_NUMBER: u64 = 1 << 32;

/// The indexes that were defined.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Definitions {
    /// Of `ORDNA.INDEX`.
    composites: BTreeMap<String, Composite>,
    /// Of `FT.CREATE`.
    schemas: BTreeMap<String, Schema>,
    /// Indexes of `ORDNA.INDEX` that were ever created.
    created: u64,
}

impl Definitions {
    fn prefixes(&self) -> Vec<Vec<u8>> {
        let composites = self.composites.values();
        let composites = composites.flat_map(|composite| &composite.definition.prefixes);
        let schemas = self.schemas.values().flat_map(|schema| &schema.prefixes);
        let mut prefixes: Vec<Vec<u8>> = composites.chain(schemas).cloned().collect();
        prefixes.sort();
        prefixes.dedup();
        prefixes
    }
}

/// Deadlines of covered keys, one for each.
#[derive(Debug, Default)]
struct Deadlines {
    due: BinaryHeap<Reverse<(u64, Box<[u8]>)>>,
    /// When a key is to be read again; no later than its deadline.
    of: HashMap<Box<[u8]>, u64>,
    /// While a backup is taken: keys that were due since it began.
    taken: Option<Vec<Box<[u8]>>>,
}

impl Deadlines {
    /// A later deadline is found out when the earlier one is due.
    fn note(&mut self, key: &[u8], deadline: u64) {
        if self.of.get(key).is_none_or(|noted| *noted > deadline) {
            self.of.insert(key.into(), deadline);
            self.due.push(Reverse((deadline, key.into())));
        }
    }

    fn take_due(&mut self, now: u64) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        while self.due.peek().is_some_and(|Reverse((deadline, _))| *deadline <= now) {
            let Some(Reverse((deadline, key))) = self.due.pop() else { break };
            if self.of.get(&key) == Some(&deadline) {
                self.of.remove(&key);
                if let Some(taken) = &mut self.taken {
                    taken.push(key.clone());
                }
                keys.push(key);
            }
        }
        keys
    }
}

/// State that the feed and snapshots of documents share.
#[derive(Debug, Default)]
struct Shared {
    keyspace: Mutex<Option<Keyspace>>,
    prefixes: RwLock<Vec<Vec<u8>>>,
    deadlines: Mutex<Deadlines>,
}

impl Shared {
    fn covers(&self, key: &[u8]) -> bool {
        let prefixes = self.prefixes.read().unwrap_or_else(PoisonError::into_inner);
        prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    /// The document of an entry of the store.
    fn document(&self, key: &[u8], stored: &[u8], expires_at: Option<u64>) -> Option<Document> {
        let document = stored_value::document(stored_value::hash(stored)?);
        if let Some(deadline) = expires_at {
            lock(&self.deadlines).note(key, deadline);
        }
        Some(document)
    }

    fn present(&self, keyspace: &Keyspace, key: &[u8]) -> Option<Document> {
        let read = |put: ordna::Put<&[u8]>| self.document(key, put.value, put.expires_at);
        keyspace.get_entry_with(key, read).flatten()
    }
}

struct Documents(Arc<Shared>);

impl DocumentStore for Documents {
    fn get(&self, id: &[u8]) -> Option<Document> {
        let keyspace = lock(&self.0.keyspace).clone();
        self.0.present(&keyspace?, id)
    }

    fn snapshot(&self, parts: usize) -> Vec<Box<dyn Iterator<Item = Named> + Send>> {
        let Some(keyspace) = lock(&self.0.keyspace).clone() else { return Vec::new() };
        let snapshot = Snapshot::of(&keyspace);
        let mut ends: Vec<Bound<Vec<u8>>> =
            keyspace.partition_points(parts).into_iter().map(Bound::Excluded).collect();
        ends.push(Bound::Unbounded);
        let mut lower = Bound::Unbounded;
        let part = |upper: Bound<Vec<u8>>| {
            let next = match &upper {
                Bound::Excluded(key) => Bound::Included(key.clone()),
                _ => Bound::Unbounded,
            };
            let lower = std::mem::replace(&mut lower, next);
            let (snapshot, shared) = (snapshot.clone(), Arc::clone(&self.0));
            let (read, is_over) = (VecDeque::new(), false);
            Box::new(Part { shared, snapshot, lower, upper, read, is_over })
                as Box<dyn Iterator<Item = Named> + Send>
        };
        ends.into_iter().map(part).collect()
    }
}

/// The documents of a range of keys.
struct Part {
    shared: Arc<Shared>,
    snapshot: Snapshot,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    read: VecDeque<Named>,
    is_over: bool,
}

impl Iterator for Part {
    type Item = Named;

    fn next(&mut self) -> Option<Named> {
        while self.read.is_empty() && !self.is_over {
            let Self { shared, snapshot, lower, upper, read, .. } = self;
            let (mut met, mut last) = (0, None);
            let bounds = (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
            snapshot.visit_entries(bounds.0, bounds.1, Direction::Ascending, |key, put| {
                met += 1;
                if shared.covers(key)
                    && let Some(document) = shared.document(key, put.value, put.expires_at)
                {
                    read.push_back((key.into(), document));
                }
                if met < CHUNK {
                    return ControlFlow::Continue(());
                }
                last = Some(key.to_vec());
                ControlFlow::Break(())
            });
            match last {
                Some(key) => self.lower = Bound::Excluded(key),
                None => self.is_over = true,
            }
        }
        self.read.pop_front()
    }
}

/// The library's service, once there is an index.
#[derive(Debug)]
struct Running {
    service: Service,
    source: Arc<Embedded>,
}

/// All indexes of the server.
#[derive(Debug)]
pub struct Indexes {
    is_active: AtomicBool,
    shared: Arc<Shared>,
    running: OnceLock<Running>,
    definitions: Mutex<Definitions>,
    file: Option<PathBuf>,
    /// The lock of the keyspace that commands hold.
    commands: Arc<ShardedLock<Keyspace>>,
    /// Transactions so far.
    transactions: AtomicU64,
    /// Held by the one backup that is under way.
    backup: Mutex<()>,
    /// Held while due keys are read again.
    expiring: Mutex<()>,
    /// Why the file of definitions could not be read; it is not written then.
    broken: OnceLock<String>,
    memory: Option<MemoryBudget>,
}

impl Indexes {
    /// No indexes yet. Definitions are kept in `dir` if it is given; the memory of entries counts
    /// against the limit.
    pub fn new(
        dir: Option<&Path>,
        memory: Option<MemoryBudget>,
        commands: Arc<ShardedLock<Keyspace>>,
    ) -> Self {
        Self {
            is_active: AtomicBool::new(false),
            shared: Arc::default(),
            running: OnceLock::new(),
            definitions: Mutex::default(),
            file: dir.map(|dir| dir.join(FILE)),
            commands,
            transactions: AtomicU64::new(0),
            backup: Mutex::default(),
            expiring: Mutex::default(),
            broken: OnceLock::new(),
            memory,
        }
    }

    /// Whether there is any index.
    #[inline]
    pub fn are_active(&self) -> bool {
        // The lock of the keyspace orders it: definitions change while no command is inside.
        self.is_active.load(Ordering::Relaxed)
    }

    /// Reports keys that were written, set, removed or expired. The caller holds the keyspace.
    #[inline]
    pub fn written<'k>(&self, keyspace: &Keyspace, keys: impl IntoIterator<Item = &'k [u8]>) {
        if self.are_active() {
            self.feed(keyspace, keys.into_iter().filter(|key| self.shared.covers(key)).collect());
        }
    }

    /// Whether an index covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.are_active() && self.shared.covers(key)
    }

    /// Has the indexes show all that is written until the result is dropped, or nothing. The caller
    /// holds the keyspace alone.
    pub fn transaction(&self) -> Option<Transaction<'_>> {
        // The lock of the keyspace orders it.
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.running.get().map(|running| running.source.transaction())
    }

    /// A cut of the indexes that holds all writes so far, and a later snapshot of the documents. No
    /// transaction comes between. `held`: the caller holds the keyspace.
    ///
    /// # Errors
    /// The cut does not come in time.
    pub fn states(&self, until: Instant, held: bool) -> Result<(View, Snapshot), String> {
        // Tries without the lock of the keyspace during the wait for a cut.
        const TRIES: u32 = 8;
        let service = self.service()?;
        let lock = || self.commands.read().unwrap_or_else(PoisonError::into_inner);
        let view = || {
            let left = until.saturating_duration_since(Instant::now());
            service.view(&latest(left)).map_err(told)
        };
        let mut tries = 0;
        let (view, documents) = loop {
            let mut inside = (!held).then(lock);
            let before = self.transactions.load(Ordering::Relaxed);
            if tries < TRIES {
                inside = None;
            }
            let view = view()?;
            if !held && inside.is_none() {
                inside = Some(lock());
            }
            let documents = self.snapshot();
            if held || self.transactions.load(Ordering::Relaxed) == before {
                break (view, documents);
            }
            drop(inside);
            tries += 1;
        };
        Ok((view, documents.ok_or("ERR the keyspace is being loaded")?))
    }

    #[inline(never)]
    fn feed(&self, keyspace: &Keyspace, keys: Vec<&[u8]>) {
        let Some(running) = self.running.get().filter(|_| !keys.is_empty()) else { return };
        let present = || keys.iter().map(|key| Some(self.shared.present(keyspace, key))).collect();
        // It fails only when the service has stopped, with the server.
        let _ = running.source.write_many(&keys, || ((), present()));
    }

    /// [`expire`](Self::expire) for a query. `held`: the caller holds the keyspace.
    pub fn expire_now(&self, held: Option<&Keyspace>) {
        match held {
            Some(keyspace) => self.expire(keyspace),
            None => self.expire(&self.commands.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Reads keys again whose deadline has come. The caller holds the keyspace.
    pub fn expire(&self, keyspace: &Keyspace) {
        if self.are_active() {
            // Changes that another thread has taken are fed when this one goes on.
            let _one = lock(&self.expiring);
            let due = lock(&self.shared.deadlines).take_due(keyspace.now());
            self.feed(keyspace, due.iter().map(|key| &**key).collect());
        }
    }

    /// Notes that another keyspace has taken the place of the former one, or that it was emptied.
    /// The caller holds the keyspace alone.
    pub fn replaced(&self, keyspace: &Keyspace) {
        let replace = || *lock(&self.shared.keyspace) = Some(keyspace.clone());
        match self.running.get() {
            Some(running) => running.source.clear(replace),
            None => replace(),
        }
    }

    /// The service, which is there once an index is.
    ///
    /// # Errors
    /// There was no index yet.
    pub fn service(&self) -> Result<&Service, String> {
        let running = self.running.get().ok_or("ERR there is no index")?;
        Ok(&running.service)
    }

    fn start(&self) -> Result<&Service, String> {
        // The lock of the definitions is held: nobody else starts it.
        if self.running.get().is_none() {
            self.start_from(None)?;
        }
        self.service()
    }

    /// Starts the service, from the indexes' backup if there is one to go on from.
    fn start_from(&self, resume: Option<Resume>) -> Result<(), String> {
        let documents = Arc::new(Documents(Arc::clone(&self.shared)));
        let store = match &self.memory {
            Some(budget) => ordna::Options::new().memory_budget(budget),
            None => ordna::Options::new(),
        };
        let mut options = Options::new().store(store);
        let backups = self.backups();
        if resume.is_none()
            && let Some(dir) = &backups
        {
            resume::forget(dir)?;
        }
        if let Some(dir) = backups {
            options = options.backups(dir);
        }
        let identity = match &resume {
            Some(resume) => resume.identity,
            None => {
                let mut identity = [0; 8];
                // Without random numbers all runs have one identity, which no position outlives.
                let _ = getrandom::fill(&mut identity);
                u64::from_ne_bytes(identity)
            }
        };
        let source = Embedded::new(BUCKETS, identity, documents).sequence(resume::sequence());
        let source = Arc::new(match resume {
            Some(Resume { ids, .. }) => source.resume(Changed { behind: 0, ids }),
            None => source,
        });
        let service = Service::start(options, source.clone()).map_err(told)?;
        // Only this thread sets it.
        let _ = self.running.set(Running { service, source });
        Ok(())
    }

    /// The directory of the indexes' backups.
    fn backups(&self) -> Option<PathBuf> {
        self.file.as_deref().map(|file| file.with_file_name(resume::DIRECTORY))
    }

    /// Backs up the indexes behind a backup of the keyspace, whose metadata is the token. Waits for
    /// the commands under way: the caller holds no keyspace.
    ///
    /// # Errors
    /// A text for the log. The next start builds the indexes again.
    pub fn back_up(&self, keys: &Keyspace, token: &Token) -> Result<(), String> {
        let _one = lock(&self.backup);
        let running = self.running.get().filter(|_| self.are_active());
        let (Some(dir), Some(running)) = (self.backups(), running) else { return Ok(()) };
        {
            // Once this lock is held, all writes of before the keyspace's backup are reported.
            let _alone = self.commands.write().unwrap_or_else(PoisonError::into_inner);
            lock(&self.shared.deadlines).taken = Some(Vec::new());
        }
        let service = &running.service;
        let options = BackupOptions::new().background(true).workers(1);
        let done = (service.view(&Read::request_plus().timeout(PATIENCE)))
            .and_then(|_| service.back_up(1, &options))
            .map_err(told);
        let expiring: Vec<Box<[u8]>> = {
            let mut deadlines = lock(&self.shared.deadlines);
            let taken = deadlines.taken.take().unwrap_or_default();
            deadlines.of.keys().cloned().chain(taken).collect()
        };
        let backup = done?;
        // A change that the indexes' backup holds must not be lost from the log.
        keys.sync_log().map_err(|error| error.to_string())?;
        resume::save(&dir, token, running.source.identity(), &backup.path, &expiring)
    }

    /// Has writers report from now on what these definitions cover.
    fn announce(&self, definitions: &Definitions) {
        let prefixes = definitions.prefixes();
        let is_active = !prefixes.is_empty();
        *self.shared.prefixes.write().unwrap_or_else(PoisonError::into_inner) = prefixes;
        self.is_active.store(is_active, Ordering::Relaxed);
    }

    /// Changes the definitions and the service's indexes; undoes the former if the latter or the
    /// file refuse.
    fn change(
        &self,
        change: impl FnOnce(&mut Definitions) -> Result<(), String>,
        apply: impl FnOnce(&Service) -> Result<(), Error>,
    ) -> Result<(), String> {
        if let Some(reason) = self.broken.get() {
            return Err(format!("ERR the indexes of this directory were not read: {reason}"));
        }
        let mut definitions = lock(&self.definitions);
        let mut changed = definitions.clone();
        change(&mut changed)?;
        if changed.composites.len() + changed.schemas.len() > MOST_INDEXES {
            return Err(format!("ERR there are {MOST_INDEXES} indexes already"));
        }
        let service = self.start()?;
        self.save(&changed)?;
        self.announce(&changed);
        if let Err(error) = apply(service) {
            self.announce(&definitions);
            self.save(&definitions)?;
            return Err(told(error));
        }
        *definitions = changed;
        Ok(())
    }

    /// Creates an index of `ORDNA.INDEX`.
    ///
    /// # Errors
    /// A text for the client.
    pub fn create(&self, name: &str, mut definition: IndexDefinition) -> Result<(), String> {
        definition.name = composite(name);
        let kept = definition.clone();
        let number = Cell::new(FIRST_NUMBER);
        self.change(
            |definitions| {
                number.set(FIRST_NUMBER + definitions.created);
                definitions.created += 1;
                let kept = Composite { number: number.get(), definition: kept };
                match definitions.composites.insert(name.to_owned(), kept) {
                    Some(_) => Err(format!("ERR an index named '{name}' exists")),
                    None => Ok(()),
                }
            },
            |service| service.create_numbered(definition, Some(number.get())),
        )
    }

    /// Drops an index of `ORDNA.INDEX`.
    ///
    /// # Errors
    /// A text for the client.
    pub fn drop_index(&self, name: &str) -> Result<(), String> {
        self.change(
            |definitions| match definitions.composites.remove(name) {
                Some(_) => Ok(()),
                None => Err(unknown(name)),
            },
            |service| service.drop_index(&composite(name)),
        )
    }

    /// Names of the indexes of `ORDNA.INDEX`.
    pub fn names(&self) -> Vec<String> {
        lock(&self.definitions).composites.keys().cloned().collect()
    }

    /// The definition of an index of `ORDNA.INDEX`.
    ///
    /// # Errors
    /// There is none.
    pub fn definition(&self, name: &str) -> Result<IndexDefinition, String> {
        let definitions = lock(&self.definitions);
        let found = definitions.composites.get(name);
        found.map(|composite| composite.definition.clone()).ok_or_else(|| unknown(name))
    }

    /// Creates an index of `FT.CREATE`.
    ///
    /// # Errors
    /// A text for the client.
    pub fn create_schema(&self, schema: &Schema) -> Result<(), String> {
        self.change(
            |definitions| {
                let old = definitions.schemas.insert(schema.name.clone(), schema.clone());
                old.map_or(Ok(()), |_| Err("ERR Index already exists".to_owned()))
            },
            |service| create_all(service, schema),
        )
    }

    /// Adds fields to an index of `FT.CREATE`.
    ///
    /// # Errors
    /// A text for the client.
    pub fn alter_schema(&self, altered: &Schema, added: usize) -> Result<(), String> {
        self.change(
            |definitions| {
                let schema = definitions.schemas.get_mut(&altered.name);
                let schema = schema.ok_or_else(|| no_such(&altered.name))?;
                if schema.fields.len() + added != altered.fields.len() {
                    return Err("ERR another client altered the index".to_owned());
                }
                schema.clone_from(altered);
                Ok(())
            },
            |service| {
                let new = &altered.fields[altered.fields.len() - added..];
                for (at, field) in new.iter().enumerate() {
                    if let Err(error) = service.create(altered.definition_of(field)) {
                        for field in &new[..at] {
                            service.drop_index(&altered.index_of(field))?;
                        }
                        return Err(error);
                    }
                }
                Ok(())
            },
        )
    }

    /// Drops an index of `FT.CREATE`; returns what it was of.
    ///
    /// # Errors
    /// A text for the client.
    pub fn drop_schema(&self, name: &str) -> Result<Schema, String> {
        let schema = self.schema(name)?;
        self.change(
            |definitions| match definitions.schemas.remove(name) {
                Some(_) => Ok(()),
                None => Err(no_such(name)),
            },
            |service| drop_all(service, &schema),
        )?;
        Ok(schema)
    }

    /// Names of the indexes of `FT.CREATE`.
    pub fn schemas(&self) -> Vec<String> {
        lock(&self.definitions).schemas.keys().cloned().collect()
    }

    /// The schema of an index of `FT.CREATE`.
    ///
    /// # Errors
    /// There is none.
    pub fn schema(&self, name: &str) -> Result<Schema, String> {
        let found = lock(&self.definitions).schemas.get(name).cloned();
        found.ok_or_else(|| no_such(name))
    }

    /// A stable state of the documents. Waits for no command.
    fn snapshot(&self) -> Option<Snapshot> {
        lock(&self.shared.keyspace).as_ref().map(Snapshot::of)
    }

    /// The collector of keys that the log changes, if there is a backup of the indexes to go on
    /// from.
    pub fn replay(&self) -> Option<Arc<Replay>> {
        let text = std::fs::read(self.file.as_deref()?).ok()?;
        let definitions: Definitions = serde_json::from_slice(&text).ok()?;
        Replay::read(&self.backups()?, definitions.prefixes()).map(Arc::new)
    }

    /// Restores the indexes that the file names, or builds them anew; to be called once the
    /// keyspace is read.
    ///
    /// # Errors
    /// The file cannot be read, or the service refuses one of its indexes. Definitions then cannot
    /// be changed, so that the file stays as it is.
    pub fn restore(&self, resume: Option<Resume>) -> Result<(), String> {
        self.read_file(resume).inspect_err(|reason| {
            // Nobody else restores.
            let _ = self.broken.set(reason.clone());
        })
    }

    fn read_file(&self, resume: Option<Resume>) -> Result<(), String> {
        let Some(file) = self.file.as_deref().filter(|file| file.exists()) else { return Ok(()) };
        let shown = file.display();
        let text = std::fs::read(file).map_err(|error| format!("{shown}: {error}"))?;
        let read: Definitions =
            serde_json::from_slice(&text).map_err(|error| format!("{shown}: {error}"))?;
        let mut definitions = lock(&self.definitions);
        if read.composites.is_empty() && read.schemas.is_empty() {
            *definitions = read;
            return Ok(());
        }
        // Before the service reads documents.
        self.announce(&read);
        let resumes = resume.is_some();
        if let Err(error) = self.start_from(resume) {
            if !resumes {
                return Err(error);
            }
            tracing::warn!(error, "the backup of the indexes is not used");
            self.start_from(None)?;
        }
        let service = self.service()?;
        let composites = read.composites.values();
        let composites = composites.map(|found| (found.definition.clone(), Some(found.number)));
        let schemas = read.schemas.values().flat_map(definitions_of);
        let mut wanted: BTreeMap<String, (IndexDefinition, Option<u64>)> = composites
            .chain(schemas.map(|definition| (definition, None)))
            .map(|wanted| (wanted.0.name.clone(), wanted))
            .collect();
        let mut restored = 0;
        for info in service.list() {
            let name = &info.definition.name;
            let is_wanted = wanted.get(name).is_some_and(|(definition, number)| {
                *definition == info.definition && number.is_none_or(|number| number == info.uid)
            });
            if is_wanted {
                wanted.remove(name);
                restored += 1;
            } else {
                service.drop_index(name).map_err(told)?;
            }
        }
        tracing::info!(restored, built = wanted.len(), "indexes");
        for (definition, number) in wanted.into_values() {
            service.create_numbered(definition, number).map_err(told)?;
        }
        *definitions = read;
        Ok(())
    }

    /// Writes the definitions. A reader of the file never sees half of it.
    fn save(&self, definitions: &Definitions) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        let write = || -> std::io::Result<()> {
            let new = file.with_extension("new");
            let mut out = std::fs::File::create(&new)?;
            out.write_all(&serde_json::to_vec_pretty(definitions)?)?;
            out.sync_all()?;
            std::fs::rename(&new, file)?;
            match file.parent() {
                Some(dir) => std::fs::File::open(dir)?.sync_all(),
                None => Ok(()),
            }
        };
        write().map_err(|error| format!("ERR cannot write {}: {error}", file.display()))
    }
}

/// The library's indexes of a schema.
fn definitions_of(schema: &Schema) -> Vec<IndexDefinition> {
    let fields = schema.fields.iter().map(|field| schema.definition_of(field));
    std::iter::once(schema.documents_definition()).chain(fields).collect()
}

fn create_all(service: &Service, schema: &Schema) -> Result<(), Error> {
    let definitions = definitions_of(schema);
    for (at, definition) in definitions.iter().enumerate() {
        if let Err(error) = service.create(definition.clone()) {
            for definition in &definitions[..at] {
                service.drop_index(&definition.name)?;
            }
            return Err(error);
        }
    }
    Ok(())
}

fn drop_all(service: &Service, schema: &Schema) -> Result<(), Error> {
    service.drop_index(&schema.documents())?;
    schema.fields.iter().try_for_each(|field| service.drop_index(&schema.index_of(field)))
}

/// The library's name of an index of `ORDNA.INDEX`.
pub fn composite(name: &str) -> String {
    format!("i\0{name}")
}

fn unknown(name: &str) -> String {
    format!("ERR no index is named '{name}'")
}

fn no_such(name: &str) -> String {
    format!("ERR {name}: no such index")
}

/// A read of everything that was written before.
pub fn latest(timeout: Duration) -> Read {
    Read::request_plus().timeout(timeout).wait_for_build()
}

/// An error of the library as a reply, with the names that clients know.
pub fn told(error: Error) -> String {
    let text = error.to_string();
    let plain = ["i\\0", "d\\0", "f\\0"]
        .iter()
        .fold(text, |text, part| text.replace(&format!("\"{part}"), "\""));
    format!("ERR {}", plain.replace("\\0", "."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_takes_no_more_memory() {
        let mut deadlines = Deadlines::default();
        for deadline in 10..1000 {
            deadlines.note(b"key", deadline);
        }
        assert_eq!((deadlines.due.len(), deadlines.of.len()), (1, 1));
        deadlines.note(b"key", 5);
        assert!(deadlines.take_due(4).is_empty());
        assert_eq!(deadlines.take_due(5), [Box::from(&b"key"[..])]);
        assert!(deadlines.take_due(1000).is_empty());
        assert!(deadlines.due.is_empty() && deadlines.of.is_empty());
    }
}
