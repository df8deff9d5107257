//! The state that all connections share.

pub mod acl;
pub mod clients;
pub mod command_spec;
pub mod config;
pub mod data_directory;
pub mod extension;
pub mod session;
pub mod settings;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use ordna::sync::StripedCounter;
use ordna::{Collectors, MemoryBudget, Options, Statistics};
use tokio::sync::{Notify, broadcast};

use crate::indexes::Indexes;
use crate::keyspace::named_snapshots::NamedSnapshots;
use crate::keyspace::scan_cursors::ScanCursors;
use crate::keyspace::watches::Watches;
use crate::keyspace::{Keyspace, KeyspaceStore};
use crate::search::results::PendingResults;
use crate::state::acl::Acl;
use crate::state::clients::Clients;
use crate::state::command_spec::Catalog;
use crate::state::config::Config;
use crate::state::data_directory::DataDirectory;
use crate::state::settings::Settings;
use crate::statistics::command_stats::CommandStats;
use crate::statistics::event_logs::{Latencies, SlowLog};
use crate::statistics::long_scans::LongScans;
use crate::statistics::samples::Samples;

/// Lines that a monitor may lag behind before it loses some.
const MONITOR_LAG: usize = 4096;

/// Until when clients pause.
#[derive(Debug, Default)]
pub struct Pause {
    /// Milliseconds since the start; 0: no pause.
    until: AtomicU64,
    only_writes: AtomicBool,
    over: Notify,
}

/// The server's state, shared by its connections.
#[derive(Debug)]
pub struct ServerState {
    /// Commands take this lock as readers, however they change the keyspace: it synchronizes
    /// itself. Commands that are one step for every other client (`EXEC`, `MSET`, …) take it as the
    /// one writer. Sharded, so that readers on different threads do not write to the same cache
    /// line.
    keyspace: Arc<ShardedLock<Keyspace>>,
    /// Keyspaces that a flush replaced, as long as snapshots keep them.
    flushed: Mutex<Vec<Weak<KeyspaceStore>>>,
    /// The memory limit, for all of them together.
    memory: Option<MemoryBudget>,
    /// The threads that collect for all of them.
    collectors: Collectors,
    pub data_directory: Option<Arc<DataDirectory>>,
    pub config: Config,
    pub settings: Settings,
    pub catalog: &'static Catalog,
    pub address: SocketAddr,
    pub acl: Acl,
    pub clients: Clients,
    pub cursors: Arc<ScanCursors>,
    pub indexes: Arc<Indexes>,
    /// Rows of aggregations that wait for their clients.
    pub results: PendingResults,
    pub snapshots: Arc<NamedSnapshots>,
    pub watches: Arc<Watches>,
    pub scans: LongScans,
    pub stats: CommandStats,
    pub slow_log: SlowLog,
    pub latencies: Latencies,
    pub started: Instant,
    /// Another one after each start.
    pub run_id: String,
    pub pause: Pause,
    /// Receives a line for each command while somebody monitors.
    pub monitors: broadcast::Sender<Arc<str>>,
    /// Somebody has monitored since the start. The channel's own count is behind a lock.
    pub was_monitored: AtomicBool,
    /// `SHUTDOWN` was said.
    pub shutdown: Notify,
    /// The listener is gone, and connections drain.
    pub stopping: AtomicBool,
    pub hits: StripedCounter,
    pub misses: StripedCounter,
    pub peak_memory: AtomicUsize,
    /// The scripts that were loaded: hash and the number of the known script.
    pub scripts: Mutex<BTreeMap<String, usize>>,
    pub samples: Samples,
}

impl ServerState {
    pub fn new(config: Config, address: SocketAddr, catalog: &'static Catalog) -> Self {
        let memory = config.max_memory.filter(|limit| *limit > 0).map(MemoryBudget::new);
        let settings = Settings::new();
        let sized = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        settings.max_clients.set(sized(config.max_clients));
        settings.output_limit.set(sized(config.max_reply));
        settings.clients_memory.set(sized(config.max_clients_memory()));
        let collectors = Collectors::new(config.collectors.get());
        let keyspace = Keyspace::with_options(options(&collectors, memory.as_ref()));
        let dir = config.data.as_ref().map(|data| data.dir.as_path());
        let commands = Arc::new(ShardedLock::new(keyspace.clone()));
        let indexes = Arc::new(Indexes::new(dir, memory.clone(), Arc::clone(&commands)));
        indexes.replaced(&keyspace);
        Self {
            keyspace: commands,
            collectors,
            indexes,
            results: PendingResults::default(),
            data_directory: config.data.clone().map(|data| Arc::new(DataDirectory::new(data))),
            flushed: Mutex::default(),
            memory,
            acl: Acl::new(config.password.as_deref(), catalog, config.acl_file.clone()),
            cursors: Arc::new(ScanCursors::new(config.scan_lease)),
            stats: CommandStats::new(catalog.all().len()),
            config,
            settings,
            catalog,
            address,
            clients: Clients::default(),
            snapshots: Arc::default(),
            watches: Arc::default(),
            scans: LongScans::default(),
            slow_log: SlowLog::default(),
            latencies: Latencies::default(),
            started: Instant::now(),
            run_id: run_id(),
            pause: Pause::default(),
            monitors: broadcast::channel(MONITOR_LAG).0,
            was_monitored: AtomicBool::new(false),
            shutdown: Notify::new(),
            stopping: AtomicBool::new(false),
            hits: StripedCounter::new(),
            misses: StripedCounter::new(),
            peak_memory: AtomicUsize::new(0),
            scripts: Mutex::default(),
            samples: Samples::default(),
        }
    }

    // A panic under the lock leaves the keyspace whole: it is changed by single steps of the store.
    pub fn keys(&self) -> KeyspaceGuard<'_> {
        KeyspaceGuard::Shared(self.keyspace.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The keyspace, with no other command inside.
    pub fn keys_exclusive(&self) -> KeyspaceGuard<'_> {
        KeyspaceGuard::Exclusive(self.keyspace.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// How the keyspace works.
    pub fn options(&self) -> Options {
        options(&self.collectors, self.memory.as_ref())
    }

    /// Puts the keyspace that was read at the start in the place of the empty one.
    pub fn install(&self, keyspace: Keyspace) {
        let mut held = self.keyspace.write().unwrap_or_else(PoisonError::into_inner);
        self.indexes.replaced(&keyspace);
        *held = keyspace;
    }

    /// Removes all keys, and ends scans; snapshots stay. Puts an empty keyspace in the place of
    /// this one and returns this one.
    ///
    /// # Errors
    /// Other commands are inside, or the log refuses a new keyspace.
    pub fn flush(&self, keys: &mut KeyspaceGuard<'_>) -> Result<Keyspace, String> {
        let KeyspaceGuard::Exclusive(keyspace) = keys else {
            return Err("ERR the keyspace is in use".to_owned());
        };
        let mut flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        flushed.retain(|flushed| flushed.strong_count() > 0);
        let empty =
            keyspace.successor(self.options()).map_err(|error| format!("MISCONF {error}"))?;
        self.cursors.end_all();
        flushed.push(keyspace.downgrade());
        drop(flushed);
        self.indexes.replaced(&empty);
        Ok(std::mem::replace(&mut **keyspace, empty))
    }

    /// Counts of the flushed keyspaces that are not freed.
    pub fn flushed(&self) -> Vec<Statistics> {
        let flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        let held = flushed.iter().filter_map(Keyspace::upgrade);
        held.map(|keyspace| keyspace.statistics()).collect()
    }

    /// Counts of the keyspace.
    pub fn statistics(&self) -> Statistics {
        self.with_flushed(self.keys().statistics())
    }

    /// Counts of the keyspace with the bytes and snapshots of flushed ones added.
    pub fn with_flushed(&self, mut counts: Statistics) -> Statistics {
        for flushed in self.flushed() {
            counts.bytes += flushed.bytes;
            counts.versions += flushed.versions;
            counts.dead += flushed.dead;
            counts.scans += flushed.scans;
            counts.snapshots.extend(flushed.snapshots);
        }
        counts
    }

    /// Milliseconds since the start.
    fn uptime_millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Pauses clients from now on: all commands or those that write.
    pub fn pause(&self, time: Duration, only_writes: bool) {
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.pause.only_writes.store(only_writes, Ordering::Relaxed);
        self.pause.until.store(self.uptime_millis().saturating_add(time).max(1), Ordering::Relaxed);
    }

    pub fn unpause(&self) {
        self.pause.until.store(0, Ordering::Relaxed);
        self.pause.over.notify_waiters();
    }

    /// Waits while clients pause.
    pub async fn paused(&self, writes: bool) {
        loop {
            let over = self.pause.over.notified();
            let until = self.pause.until.load(Ordering::Relaxed);
            let left = until.saturating_sub(self.uptime_millis());
            if left == 0 || self.pause.only_writes.load(Ordering::Relaxed) && !writes {
                return;
            }
            // An end of the pause that comes before the wait is noticed a second later.
            let left = Duration::from_millis(left.min(1000));
            let _ = tokio::time::timeout(left, over).await;
        }
    }

    /// Whether clients may have to wait; cheap.
    #[inline]
    pub fn may_be_paused(&self) -> bool {
        self.pause.until.load(Ordering::Relaxed) != 0
    }
}

fn run_id() -> String {
    let mut bytes = [0; 20];
    // Without a source of random numbers it is no worse than a number.
    let _ = getrandom::fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How the keyspace works.
fn options(collectors: &Collectors, memory: Option<&MemoryBudget>) -> Options {
    let options = Options::new().shared_collectors(collectors);
    match memory {
        Some(budget) => options.memory_budget(budget),
        None => options,
    }
}

/// The keyspace, as a command holds it.
pub enum KeyspaceGuard<'a> {
    /// Beside others.
    Shared(ShardedLockReadGuard<'a, Keyspace>),
    /// With no other command inside.
    Exclusive(ShardedLockWriteGuard<'a, Keyspace>),
}

impl Deref for KeyspaceGuard<'_> {
    type Target = Keyspace;

    fn deref(&self) -> &Keyspace {
        match self {
            Self::Shared(keys) => keys,
            Self::Exclusive(keys) => keys,
        }
    }
}
