//! What all connections share.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use ordna::sync::StripedCounter;
use ordna::{MemoryBudget, Options, Statistics, Store};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::Config;
use crate::clients::Clients;
use crate::cursors::Cursors;
use crate::snapshots::Snapshots;
use crate::walk::LongWalks;
use crate::watches::Watches;

type Entries = Store<[u8], [u8]>;

/// Resolves, to whatever, once a keyspace is freed.
pub(crate) type Freeing = oneshot::Receiver<()>;

/// The keys and values, as somebody holds them: the server, a snapshot, or who counts.
///
/// Once it was flushed, the last of them frees millions of keys, perhaps, and may be anybody: so that
/// is left to a thread that serves nobody.
#[derive(Debug)]
pub(crate) struct Keyspace(Option<Arc<Entries>>);

impl Keyspace {
    pub(crate) fn with_options(options: Options) -> Self {
        Self(Some(Arc::new(Store::with_options(options))))
    }

    /// A stable state.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let snapshot = self.deref().snapshot();
        Snapshot { snapshot, keyspace: Self(self.0.clone()) }
    }

    /// Lets go; tells when it is freed if nobody else holds it.
    pub(crate) fn release(mut self) -> Option<Freeing> {
        self.let_go()
    }

    fn let_go(&mut self) -> Option<Freeing> {
        let last = self.0.take().and_then(Arc::into_inner)?;
        // Without a runtime nobody is served.
        Handle::try_current().ok()?;
        let (tell, freeing) = oneshot::channel();
        let free = move || {
            drop(last);
            // Most do not wait for it.
            let _ = tell.send(());
        };
        // Not on the runtime's threads, which panics if the system gives none: here it is freed at once
        // then, with the closure.
        let _ = thread::Builder::new().name("ordna flush".to_owned()).spawn(free);
        Some(freeing)
    }
}

impl Drop for Keyspace {
    fn drop(&mut self) {
        // It goes on by itself.
        drop(self.let_go());
    }
}

impl Deref for Keyspace {
    type Target = Entries;

    fn deref(&self) -> &Entries {
        self.0.as_deref().expect("it is let go by its end only")
    }
}

/// A stable state of the keys and values.
#[derive(Debug)]
pub(crate) struct Snapshot {
    // First: the keyspace outlives it.
    snapshot: ordna::Snapshot<[u8], [u8]>,
    keyspace: Keyspace,
}

impl Clone for Snapshot {
    fn clone(&self) -> Self {
        Self { snapshot: self.snapshot.clone(), keyspace: Keyspace(self.keyspace.0.clone()) }
    }
}

impl Snapshot {
    /// Lets go; tells when the keyspace is freed if nobody else holds that.
    pub(crate) fn release(self) -> Option<Freeing> {
        let Self { snapshot, keyspace } = self;
        drop(snapshot);
        keyspace.release()
    }
}

impl Deref for Snapshot {
    type Target = ordna::Snapshot<[u8], [u8]>;

    fn deref(&self) -> &Self::Target {
        &self.snapshot
    }
}

/// The server's state, shared by its connections.
#[derive(Debug)]
pub(crate) struct State {
    /// Commands take this lock as readers, however they change the keyspace: it synchronizes itself.
    /// Those that must be one step for every other client (`EXEC`, `MSET`, …) take it as the one
    /// writer. Sharded, so that readers on different threads do not write to the same cache line.
    keyspace: ShardedLock<Keyspace>,
    /// How often the keyspace was replaced by an empty one.
    flushes: AtomicU64,
    /// Those that were replaced, as long as snapshots keep them.
    flushed: Mutex<Vec<Weak<Entries>>>,
    /// The memory limit, for all of them together.
    memory: Option<MemoryBudget>,
    password: Mutex<Option<String>>,
    pub config: Config,
    pub address: SocketAddr,
    pub clients: Clients,
    pub cursors: Arc<Cursors>,
    pub snapshots: Arc<Snapshots>,
    pub watches: Arc<Watches>,
    pub walks: LongWalks,
    pub started: Instant,
    pub commands: StripedCounter,
    pub connections: AtomicU64,
    pub refused: AtomicU64,
}

impl State {
    pub(crate) fn new(config: Config, address: SocketAddr) -> Self {
        let password = config.password.clone().filter(|password| !password.is_empty());
        let memory = config.max_memory.map(MemoryBudget::new);
        Self {
            keyspace: ShardedLock::new(empty(&config, memory.as_ref())),
            flushes: AtomicU64::new(0),
            flushed: Mutex::default(),
            memory,
            password: Mutex::new(password),
            cursors: Arc::new(Cursors::new(config.scan_lease)),
            config,
            address,
            clients: Clients::default(),
            snapshots: Arc::default(),
            watches: Arc::default(),
            walks: LongWalks::default(),
            started: Instant::now(),
            commands: StripedCounter::new(),
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    // A panic under the lock leaves the keyspace whole: it is changed by single steps of the store.
    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys::Shared(self.keyspace.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The keyspace, with nobody else inside.
    pub(crate) fn keys_alone(&self) -> Keys<'_> {
        Keys::Alone(self.keyspace.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts an empty keyspace in the place of this one, and returns this one. Cursors go on in the
    /// new one; snapshots stay.
    ///
    /// # Errors
    /// Others are inside.
    pub(crate) fn flush(&self, keys: &mut Keys<'_>) -> Result<Keyspace, String> {
        let Keys::Alone(keyspace) = keys else {
            return Err("ERR the keyspace is in use".to_owned());
        };
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.cursors.end_leases();
        let mut flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        flushed.retain(|flushed| flushed.strong_count() > 0);
        flushed.extend(keyspace.0.as_ref().map(Arc::downgrade));
        drop(flushed);
        Ok(std::mem::replace(&mut **keyspace, empty(&self.config, self.memory.as_ref())))
    }

    /// Counts of the flushed keyspaces that are not freed.
    pub(crate) fn flushed(&self) -> Vec<Statistics> {
        let flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        let held = flushed.iter().filter_map(Weak::upgrade).map(|entries| Keyspace(Some(entries)));
        held.map(|keyspace| keyspace.statistics()).collect()
    }

    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    pub(crate) fn password(&self) -> Option<String> {
        self.password.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_password(&self, password: &str) {
        let password = Some(password.to_owned()).filter(|password| !password.is_empty());
        *self.password.lock().unwrap_or_else(PoisonError::into_inner) = password;
    }

    pub(crate) fn next_client_id(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn empty(config: &Config, memory: Option<&MemoryBudget>) -> Keyspace {
    let options = Options::new().collectors(config.collectors.get());
    Keyspace::with_options(match memory {
        Some(budget) => options.memory_budget(budget),
        None => options,
    })
}

/// The keyspace, as a command holds it.
pub(crate) enum Keys<'a> {
    /// Beside others.
    Shared(ShardedLockReadGuard<'a, Keyspace>),
    /// With nobody else inside.
    Alone(ShardedLockWriteGuard<'a, Keyspace>),
}

impl Deref for Keys<'_> {
    type Target = Keyspace;

    fn deref(&self) -> &Keyspace {
        match self {
            Self::Shared(keys) => keys,
            Self::Alone(keys) => keys,
        }
    }
}
