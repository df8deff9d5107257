//! The set of all indexes: the library's service, which starts with the first index.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use ordna::MemoryBudget;
use ordna::sync::Lock;
use ordna_secondary::{Changed, Embedded, IndexInfo, Service, ServiceOptions};

use crate::indexes::definitions::{Definitions, FILE, error_text};
use crate::indexes::documents::{CoveredKeys, Documents};
use crate::indexes::resume_file::{self, Resume};
use crate::keyspace::lock::KeyspaceLock;

/// Buckets of the change stream: locks that writers of different keys share.
const BUCKETS: u32 = 16;

/// The library's service and the source of its changes.
#[derive(Debug)]
pub(super) struct RunningService {
    pub service: Service,
    pub source: Arc<Embedded>,
}

/// All indexes of the server.
#[derive(Debug)]
pub struct Indexes {
    is_active: AtomicBool,
    pub(super) covered: Arc<CoveredKeys>,
    /// Set when the first index is created or restored.
    pub(super) running: OnceLock<RunningService>,
    pub(super) definitions: Lock<Definitions>,
    /// Grows before each change of the definitions takes effect.
    pub(super) version: AtomicU64,
    /// The file of definitions; `None` without a data directory.
    pub(super) file: Option<PathBuf>,
    /// The lock of the keyspace that commands hold.
    pub(super) commands: Arc<KeyspaceLock>,
    /// Number of transactions so far.
    pub(super) transactions: AtomicU64,
    /// Held by the backup in progress: there is one at a time.
    pub(super) backup: Lock<()>,
    /// Held while due keys are read again.
    pub(super) expiring: Lock<()>,
    /// Why the file of definitions could not be read. The file is then never written.
    pub(super) broken: OnceLock<String>,
    memory: MemoryBudget,
}

impl Indexes {
    /// Creates an empty set. Definitions are kept in `dir` if it is given; the memory of entries
    /// counts against `memory`.
    pub fn new(dir: Option<&Path>, memory: MemoryBudget, commands: Arc<KeyspaceLock>) -> Self {
        Self {
            is_active: AtomicBool::new(false),
            covered: Arc::default(),
            running: OnceLock::new(),
            definitions: Lock::default(),
            version: AtomicU64::new(0),
            file: dir.map(|dir| dir.join(FILE)),
            commands,
            transactions: AtomicU64::new(0),
            backup: Lock::default(),
            expiring: Lock::default(),
            broken: OnceLock::new(),
            memory,
        }
    }

    /// Returns whether there is any index.
    #[inline]
    pub fn are_active(&self) -> bool {
        // Ordered by the lock of the keyspace: definitions change while no command holds it.
        self.is_active.load(Ordering::Relaxed)
    }

    /// Returns the version of the definitions. If two calls return the same, everything that was
    /// read between them, by the names of indexes, was of the same indexes.
    pub fn version(&self) -> u64 {
        // What is read of a new index was published after the version, by locks.
        self.version.load(Ordering::Acquire)
    }

    /// Returns the service.
    ///
    /// # Errors
    /// No index was ever created.
    pub fn service(&self) -> Result<&Service, String> {
        let running = self.running.get().ok_or("ERR there is no index")?;
        Ok(&running.service)
    }

    /// Returns the state and counts of all indexes of the service, and the number of changes that are
    /// not yet in them. Empty if no index was ever created.
    pub fn report(&self) -> (Vec<IndexInfo>, u64) {
        let running = self.running.get();
        running.map_or_else(Default::default, |it| (it.service.list(), it.service.lag()))
    }

    /// Returns the reason why no index answers: a thread of the service panicked. `/readyz` fails
    /// with it.
    pub fn failure(&self) -> Option<String> {
        self.running.get()?.service.failure().map(|error| error.to_string())
    }

    /// Returns the service, and starts it if it does not run. The caller holds the lock of the
    /// definitions, so nobody else starts it.
    pub(super) fn start(&self) -> Result<&Service, String> {
        if self.running.get().is_none() {
            self.start_from(None)?;
        }
        self.service()
    }

    /// Starts the service, from the indexes' backup if there is a point to resume from.
    pub(super) fn start_from(&self, resume: Option<Resume>) -> Result<(), String> {
        let documents = Arc::new(Documents(Arc::clone(&self.covered)));
        let store = ordna::Options::new().memory_budget(&self.memory);
        let mut options = ServiceOptions::new().store(store);
        let mut backups = self.backup_directory();
        if resume.is_none()
            && let Some(dir) = &backups
            && let Err(error) = resume_file::remove_backups(dir)
        {
            // They are only a way to start faster.
            tracing::warn!(error, "the indexes are not backed up by this run");
            backups = None;
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
        let source = Embedded::new(BUCKETS, identity, documents).sequence(resume_file::sequence());
        let source = Arc::new(match resume {
            Some(Resume { ids, .. }) => source.resume(Changed { behind: 0, ids }),
            None => source,
        });
        let service = Service::start(options, source.clone()).map_err(error_text)?;
        // Only this thread sets it.
        let _ = self.running.set(RunningService { service, source });
        Ok(())
    }

    /// Returns the directory of the indexes' backups.
    pub(super) fn backup_directory(&self) -> Option<PathBuf> {
        self.file.as_deref().map(|file| file.with_file_name(resume_file::DIRECTORY))
    }

    /// Makes writers report the keys that these definitions cover, and no others.
    pub(super) fn announce(&self, definitions: &Definitions) {
        let prefixes = definitions.prefixes();
        let is_active = !prefixes.is_empty();
        *self.covered.prefixes.write().unwrap_or_else(PoisonError::into_inner) = prefixes;
        self.is_active.store(is_active, Ordering::Relaxed);
    }
}
