//! State of the server that all connections share.

pub mod acl;
pub mod blocked;
pub mod channels;
pub mod clients;
pub mod command_spec;
pub mod config;
pub mod config_file;
pub mod data_directory;
pub mod descriptions;
pub mod durable_file;
pub mod events;
pub mod evictor;
pub mod extension;
pub mod guess_limit;
pub mod inbox;
pub mod open_backups;
pub mod replication;
pub mod reserved_keys;
pub mod scripts;
pub mod session;
pub mod settings;
pub mod tls;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ordna::sync::{Lock, StripedCounter};
use ordna::{Collectors, MemoryBudget, Options, Statistics};
use tokio::sync::{Notify, Semaphore, broadcast};

use crate::indexes::Indexes;
use crate::keyspace::access_table::AccessTable;
use crate::keyspace::edits::removal::ExpiredFields;
use crate::keyspace::lock::{KeyspaceGuard, KeyspaceLock, Turn};
use crate::keyspace::named_snapshots::NamedSnapshots;
use crate::keyspace::replicated::{Following, ReplicatedKeyspace};
use crate::keyspace::scan_cursors::ScanCursors;
use crate::keyspace::watches::Watches;
use crate::keyspace::{Keyspace, KeyspaceStore};
use crate::search::results::PendingResults;
use crate::state::acl::Acl;
use crate::state::acl::user::{Refusal, User};
use crate::state::blocked::BlockedClients;
use crate::state::channels::Channels;
use crate::state::clients::{Client, Clients};
use crate::state::command_spec::{Catalog, CommandFlags, CommandSpec, KeyAccess, KeyAccesses};
use crate::state::config::Config;
use crate::state::data_directory::DataDirectory;
use crate::state::events::{Classes, Events};
use crate::state::evictor::Evictor;
use crate::state::guess_limit::GuessLimit;
use crate::state::inbox::Kind;
use crate::state::open_backups::OpenBackups;
use crate::state::reserved_keys::ReservedKeys;
use crate::state::scripts::Scripts;
use crate::state::settings::{LOG_LEVELS, Preference, Setting, Settings};
use crate::state::tls::Tls;
use crate::statistics::command_stats::CommandStats;
use crate::statistics::error_stats::ErrorStats;
use crate::statistics::event_logs::{Denial, Latencies, SlowLog, shown};
use crate::statistics::long_scans::LongScans;
use crate::statistics::samples::Samples;
use crate::wire::error::CommandError;
use crate::wire::request::{Arguments, OwnedRequest};

/// Number of lines by which a monitor may lag before it loses lines.
const MONITOR_LAG: usize = 4096;

/// Number of commands' tasks that may block their threads at the same time; more wait for their
/// turn. Each takes one of the 512 threads that tokio starts for blocking work. If all were taken,
/// no thread could serve the other connections.
const MOST_TASKS: usize = 128;
/// Number of commands that may build long replies at the same time. Their replies count against the
/// memory of clients only when they are complete, and they compete with other clients for the
/// cores. The same number of writes is prepared at the same time.
const MOST_READS: usize = 2;

/// State of `CLIENT PAUSE`.
#[derive(Debug, Default)]
pub struct Pause {
    /// End of the pause, in milliseconds since the start of the server; 0: no pause.
    until: AtomicU64,
    only_writes: AtomicBool,
    over: Notify,
    /// Held while the two fields above change.
    changing: Lock<()>,
    /// Number of clients that wait for the end of the pause.
    waiting: AtomicUsize,
}

/// The server's state, shared by its connections.
#[derive(Debug)]
pub struct ServerState {
    /// Commands lock this for reading even if they change the keyspace, which synchronizes itself.
    /// Commands that must be atomic for all other clients (`EXEC`, `MSET`, …) lock it for writing.
    /// The lock is sharded, so that readers on different threads do not write to the same cache
    /// line.
    keyspace: Arc<KeyspaceLock>,
    /// Flushed keyspaces that snapshots still keep alive.
    flushed: Lock<Vec<Weak<KeyspaceStore>>>,
    /// The memory limit, shared by the keyspace and all flushed ones.
    memory: MemoryBudget,
    /// Whether the keyspace is that of a follower; `None` without replication.
    following: Option<Arc<Following>>,
    /// The collector threads of the keyspace and of all flushed ones.
    collectors: Collectors,
    pub data_directory: Option<Arc<DataDirectory>>,
    pub config: Config,
    /// Certificates; `None` without a listener for TLS.
    pub tls: Option<Tls>,
    pub settings: Settings,
    /// The settings that differ from the command line's, with the values that `CONFIG REWRITE`
    /// writes.
    pub changed_settings: Lock<BTreeMap<String, String>>,
    pub catalog: &'static Catalog,
    pub address: SocketAddr,
    pub acl: Acl,
    pub guesses: GuessLimit,
    pub clients: Clients,
    /// Clients that wait for elements of lists and sorted sets.
    pub blocked: Arc<BlockedClients>,
    pub channels: Channels,
    /// The kinds of keyspace notifications that are enabled.
    pub events: Events,
    /// A reference to the state itself, for threads of the store that report expired keys.
    me: Weak<ServerState>,
    pub cursors: Arc<ScanCursors>,
    pub indexes: Arc<Indexes>,
    /// Rows of `FT.AGGREGATE … WITHCURSOR` that no client has read yet.
    pub results: PendingResults,
    pub snapshots: Arc<NamedSnapshots>,
    /// Backups that clients are reading.
    pub open_backups: OpenBackups,
    pub watches: Arc<Watches>,
    pub scans: LongScans,
    /// Permits for tasks that block their threads.
    pub tasks: Semaphore,
    /// Permits for commands that read much.
    pub reads: Semaphore,
    /// Permits for writes that are prepared on a snapshot. Separate from `reads`: a pause of
    /// clients delays these writes, but no reads.
    pub prepared_writes: Semaphore,
    pub stats: CommandStats,
    pub errors: ErrorStats,
    pub slow_log: SlowLog,
    pub latencies: Latencies,
    pub started: Instant,
    /// Random text that identifies this run of the server.
    pub run_id: String,
    pub pause: Pause,
    pub reserved: ReservedKeys,
    /// Receives a line for each command while a client monitors.
    pub monitors: broadcast::Sender<Arc<str>>,
    /// Whether any client has monitored since the start. Unlike the channel's count, it is read
    /// without a lock.
    pub was_monitored: AtomicBool,
    /// Notified by `SHUTDOWN`.
    pub shutdown: Notify,
    /// Whether the listener is closed and connections are being drained.
    pub stopping: AtomicBool,
    /// When and how often keys were used, if the eviction policy needs it.
    pub access: AccessTable,
    pub evictor: Lock<Evictor>,
    /// Number of keys that were evicted.
    pub evictions: StripedCounter,
    /// Number of keys that expired in flushed keyspaces, minus the number at the last reset.
    expired_before: AtomicI64,
    /// Number of fields of hashes that expired and were removed, since the last reset.
    pub expired_fields: AtomicU64,
    pub hits: StripedCounter,
    pub misses: StripedCounter,
    pub peak_memory: AtomicUsize,
    pub scripts: Scripts,
    pub samples: Samples,
}

impl ServerState {
    pub fn new(config: Config, address: SocketAddr, catalog: &'static Catalog, acl: Acl) -> Self {
        let settings = Settings::new();
        let sized = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        if let Some(switch) = &config.log_level {
            let level = LOG_LEVELS.iter().position(|(_, level)| *level == switch.level);
            settings.log_level.store(level.unwrap_or(LOG_LEVELS.len() - 1), Ordering::Relaxed);
        }
        settings.max_memory.set(sized(config.max_memory.unwrap_or(0)));
        let memory = MemoryBudget::new(memory_limit(settings.max_memory.size()));
        settings.max_clients.set(sized(config.max_clients));
        settings.set_output_limit(config.max_reply);
        settings.clients_memory.set(sized(config.max_clients_memory()));
        let access = AccessTable::default();
        access.fit(settings.max_memory.size());
        let collectors = Collectors::new(config.collectors.get());
        let following =
            config.replication.as_ref().map(|it| Arc::new(Following::new(it.follows())));
        let keyspace = Keyspace::with_options(options(&collectors, &memory, following.as_ref()));
        let dir = config.data.as_ref().map(|data| data.dir.as_path());
        let commands = Arc::new(KeyspaceLock::new(keyspace.clone()));
        let indexes = Arc::new(Indexes::new(dir, memory.clone(), Arc::clone(&commands)));
        indexes.replaced(&keyspace);
        Self {
            keyspace: commands,
            following,
            collectors,
            indexes,
            results: PendingResults::default(),
            data_directory: config.data.clone().map(|data| Arc::new(DataDirectory::new(data))),
            flushed: Lock::default(),
            memory,
            acl,
            guesses: GuessLimit::default(),
            cursors: Arc::new(ScanCursors::new(config.scan_lease)),
            stats: CommandStats::new(catalog.with_subcommands().count()),
            errors: ErrorStats::default(),
            config,
            tls: None,
            settings,
            changed_settings: Lock::default(),
            catalog,
            address,
            clients: Clients::default(),
            blocked: Arc::default(),
            channels: Channels::default(),
            events: Events::default(),
            me: Weak::new(),
            snapshots: Arc::default(),
            open_backups: OpenBackups::default(),
            watches: Arc::default(),
            scans: LongScans::default(),
            tasks: Semaphore::new(MOST_TASKS),
            reads: Semaphore::new(MOST_READS),
            prepared_writes: Semaphore::new(MOST_READS),
            slow_log: SlowLog::default(),
            latencies: Latencies::default(),
            started: Instant::now(),
            run_id: run_id(),
            pause: Pause::default(),
            reserved: ReservedKeys::default(),
            monitors: broadcast::channel(MONITOR_LAG).0,
            was_monitored: AtomicBool::new(false),
            shutdown: Notify::new(),
            stopping: AtomicBool::new(false),
            access,
            evictor: Lock::default(),
            evictions: StripedCounter::new(),
            expired_before: AtomicI64::new(0),
            expired_fields: AtomicU64::new(0),
            hits: StripedCounter::new(),
            misses: StripedCounter::new(),
            peak_memory: AtomicUsize::new(0),
            scripts: Scripts::default(),
            samples: Samples::default(),
        }
    }

    /// Shares the state, so that threads of the store can report expired keys.
    pub fn share(self) -> Arc<Self> {
        let state = Arc::new_cyclic(|me| Self { me: Weak::clone(me), ..self });
        state.report_expired(&state.keys());
        state
    }

    /// Locks the keyspace for a command that may run concurrently with others.
    /// See [`KeyspaceLock`]: a function that may run within a command takes the command's guard.
    pub fn keys(&self) -> KeyspaceGuard<'_> {
        self.keyspace.shared()
    }

    /// Locks the keyspace for a command that excludes all others.
    pub fn keys_exclusive(&self) -> KeyspaceGuard<'_> {
        self.keyspace.exclusive()
    }

    /// Locks the keyspace for a command that excludes all others and may take long.
    pub fn keys_for_long(&self, turn: Turn) -> KeyspaceGuard<'_> {
        self.keyspace.exclusive_for_long(turn)
    }

    /// Returns the lock of the keyspace, for those who wait for a command that holds it for long.
    pub fn keyspace_lock(&self) -> &KeyspaceLock {
        &self.keyspace
    }

    /// Returns whether a script has held the keyspace for longer than `busy-reply-threshold`.
    pub fn is_busy(&self) -> bool {
        let patience = self.settings.busy_time();
        self.keyspace.held_long_for().is_some_and(|time| time >= patience)
    }

    /// Changes the memory limit. 0 means no limit.
    pub fn set_max_memory(&self, bytes: i64) {
        self.settings.max_memory.set(bytes);
        self.access.fit(self.settings.max_memory.size());
        self.memory.set_limit(memory_limit(self.settings.max_memory.size()));
    }

    /// Returns the number of bytes that count against the memory limit.
    pub fn used_memory(&self) -> usize {
        self.memory.used()
    }

    /// Returns whether the keys and indexes use more than `maxmemory`.
    pub fn exceeds_max_memory(&self) -> bool {
        let limit = self.settings.max_memory.size();
        // Memory that threads have reserved in advance does not count as used.
        limit != 0 && self.memory.taken() > limit && self.used_memory() > limit
    }

    /// Records the use of the keys of a call that is about to be executed, if the eviction policy
    /// needs it.
    #[inline(never)]
    pub fn record_use(&self, present: &Keyspace, spec: &CommandSpec, arguments: Arguments<'_>) {
        // As in Redis, a command that only shows that a key exists does not count as a use.
        if matches!(spec.access, KeyAccesses::All(KeyAccess::METADATA)) {
            return;
        }
        let keys = || spec.key_positions(arguments).map(|at| arguments.get(at));
        match self.settings.policy().preference() {
            Preference::Recency => keys().for_each(|key| self.access.used_now(key)),
            Preference::Frequency => {
                let size = |setting: &Setting| setting.size() as u64;
                let factor = size(&self.settings.lfu_log_factor);
                let decay = size(&self.settings.lfu_decay_time);
                // As in Redis, a read of an absent key does not count, and a new key has no uses
                // yet. Otherwise keys that were read once and never again would rank as high as
                // others.
                for key in keys() {
                    if present.get_with(key, |_| ()).is_some() {
                        self.access.used_again(key, factor, decay);
                    } else if spec.has(CommandFlags::DENYOOM) {
                        self.access.created(key, decay);
                    }
                }
            }
            Preference::Deadline | Preference::Random => {}
        }
    }

    /// Makes a keyspace report keys that expire as events.
    fn report_expired(&self, keyspace: &Keyspace) {
        let me = Weak::clone(&self.me);
        keyspace.on_expiry(move |key| {
            if let Some(state) = me.upgrade() {
                state.notify(Classes::EXPIRED, "expired", key);
            }
        });
    }

    /// Reports that fields of a key have expired and were removed.
    pub fn report_expired_fields(&self, keyspace: &Keyspace, key: &[u8], fields: ExpiredFields) {
        self.expired_fields.fetch_add(fields.count as u64, Ordering::Relaxed);
        self.watches.written([key]);
        self.indexes.written(keyspace, [key]);
        self.notify(Classes::HASH, "hexpired", key);
        if fields.is_gone {
            self.notify(Classes::GENERIC, "del", key);
        }
    }

    /// Publishes an event of a key if events of this class are enabled.
    #[inline]
    pub fn notify(&self, class: Classes, event: &str, key: &[u8]) {
        if self.events.are_on() {
            for (channel, payload) in self.events.messages(class, event, key) {
                self.publish(false, &channel, payload);
            }
        }
    }

    /// Publishes a message and returns the number of its receivers.
    pub fn publish(&self, is_shard: bool, channel: &[u8], payload: &[u8]) -> usize {
        let limit = self.settings.buffer_limits.lock().0[2];
        let receivers = self.channels.publish(is_shard, channel, payload, &self.clients, limit);
        if receivers > 0 {
            self.clients.check(self.settings.clients_memory.size());
        }
        receivers
    }

    /// Returns whether clients may not write, as another server does.
    #[inline]
    pub fn refuses_writes(&self) -> bool {
        self.following.as_ref().is_some_and(|following| following.refuses_writes())
    }

    /// Begins the replication, once the keyspace is loaded. Blocks. Without replication, the
    /// directory of a follower becomes a directory of its own, which cannot follow again: this
    /// server may change the keys.
    ///
    /// # Errors
    /// Why the server cannot start.
    pub fn replicate(&self) -> Result<(), String> {
        let (Some(replication), Some(following)) = (&self.config.replication, &self.following)
        else {
            let was_follower = self.keyspace.exclusive().remove_place();
            if was_follower.map_err(|error| error.to_string())? {
                tracing::warn!(
                    "the directory was that of a follower, and no longer is: to follow again, \
                     start with --follow in an empty directory"
                );
            }
            return Ok(());
        };
        replication.start(ReplicatedKeyspace {
            lock: Arc::clone(&self.keyspace),
            watches: Arc::clone(&self.watches),
            following: Arc::clone(following),
            data: self.config.data.as_ref().map(|it| (it.dir.clone(), Arc::clone(&it.storage))),
        })
    }

    /// Returns the number of keys that have expired and were removed.
    pub fn expired(&self, present: &Statistics) -> u64 {
        let present = i64::try_from(present.expired).unwrap_or(i64::MAX);
        let all = present.saturating_add(self.expired_before.load(Ordering::Relaxed));
        u64::try_from(all).unwrap_or(0)
    }

    /// Options for a new keyspace.
    pub fn options(&self) -> Options {
        options(&self.collectors, &self.memory, self.following.as_ref())
    }

    /// Replaces the empty keyspace by the one that was loaded at the start.
    pub fn install(&self, keyspace: Keyspace) {
        let mut held = self.keyspace.exclusive();
        self.indexes.replaced(&keyspace);
        self.report_expired(&keyspace);
        if let KeyspaceGuard::Exclusive(held, _) = &mut held {
            **held = keyspace;
        }
    }

    /// Replaces the keyspace by an empty one, ends all scans, and returns the old keyspace.
    /// Snapshots remain valid.
    ///
    /// # Errors
    /// `keys` does not exclude other commands, or the log cannot begin a new keyspace.
    pub fn flush(&self, keys: &mut KeyspaceGuard<'_>) -> Result<Keyspace, String> {
        let KeyspaceGuard::Exclusive(keyspace, _) = keys else {
            return Err("ERR the keyspace is in use".to_owned());
        };
        let mut flushed = self.flushed.lock();
        flushed.retain(|flushed| flushed.strong_count() > 0);
        let empty =
            keyspace.successor(self.options()).map_err(|error| format!("MISCONF {error}"))?;
        self.cursors.end_all();
        flushed.push(keyspace.downgrade());
        let expired = i64::try_from(keyspace.statistics().expired).unwrap_or(i64::MAX);
        self.expired_before.fetch_add(expired, Ordering::Relaxed);
        drop(flushed);
        self.indexes.replaced(&empty);
        self.report_expired(&empty);
        Ok(std::mem::replace(&mut **keyspace, empty))
    }

    /// Returns the statistics of flushed keyspaces that are not freed yet.
    pub fn flushed(&self) -> Vec<Statistics> {
        let flushed = self.flushed.lock();
        let held = flushed.iter().filter_map(Keyspace::upgrade);
        held.map(|keyspace| keyspace.statistics()).collect()
    }

    /// Returns the statistics of the keyspace; bytes and snapshots include flushed keyspaces.
    pub fn statistics(&self) -> Statistics {
        self.with_flushed(self.keys().statistics())
    }

    /// Adds the bytes and snapshots of flushed keyspaces to `counts`.
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

    /// Returns the reason why a user may not make a call, if there is one.
    pub fn refusal(&self, user: &User, arguments: Arguments<'_>) -> Option<Refusal> {
        let spec = self.catalog.find(arguments.get(0))?.of_call(arguments);
        user.check(spec, arguments, &self.indexes).err()
    }

    /// Checks whether the user of this name may call this command now.
    ///
    /// # Errors
    /// The user may not.
    pub fn check_rights(
        &self,
        client: &Client,
        user: &str,
        arguments: Arguments<'_>,
    ) -> Result<(), CommandError> {
        // The connection of a user that no longer exists is being closed.
        let Some(found) = self.acl.user(user) else { return Ok(()) };
        let refusal = self.refusal(&found, arguments);
        refusal.map_or(Ok(()), |refusal| Err(self.deny(client, user, refusal, "toplevel")))
    }

    /// Logs a refusal by ACL and returns its error.
    pub fn deny(
        &self,
        client: &Client,
        user: &str,
        refusal: Refusal,
        context: &'static str,
    ) -> CommandError {
        let (reason, object, error, at) = match refusal {
            Refusal::Command(command) => {
                ("command", command.clone(), CommandError::CommandDenied { command }, 1)
            }
            Refusal::Key(key) => ("key", shown(&key), CommandError::KeyDenied, 2),
            Refusal::Channel(name) => ("channel", shown(&name), CommandError::ChannelDenied, 3),
        };
        self.acl.denied[at].fetch_add(1, Ordering::Relaxed);
        let (user, client) = (user.to_owned(), format!("id={} addr={}", client.id, client.peer));
        let denial = Denial {
            id: 0,
            count: 1,
            reason,
            context,
            object,
            user,
            created: 0,
            updated: 0,
            client,
        };
        self.acl.denials.push(denial, self.settings.acl_log_len.size());
        error
    }

    /// Closes the connections of users that no longer exist, and of clients with a subscription or
    /// a monitor that their user no longer may have. The connection of client `caller` is closed at
    /// its next command instead. Waiting commands that may no longer be called end with an error.
    pub fn end_clients_without_rights(&self, caller: Option<u64>) {
        self.blocked.refuse(|waiter| {
            let name = waiter.client.info().user.clone();
            let user = self.acl.user(&name)?;
            let refusal = self.refusal(&user, waiter.request.arguments())?;
            Some(self.deny(&waiter.client, &name, refusal, "toplevel"))
        });
        for client in self.clients.all() {
            let name = client.info().user.clone();
            let ends = match self.acl.user(&name) {
                None => Some(client.id) != caller,
                Some(user) if client.is_monitor.load(Ordering::Relaxed) => {
                    let request = OwnedRequest::of(&[b"MONITOR"]);
                    self.refusal(&user, request.arguments()).is_some()
                }
                Some(user) => {
                    client.inbox.is_subscribed() && {
                        let may_not = |kind: Kind| {
                            let is_pattern = kind == Kind::Pattern;
                            let names = client.inbox.names(kind);
                            names.iter().any(|name| !user.may_receive(name, is_pattern))
                        };
                        [Kind::Channel, Kind::Pattern, Kind::Shard].into_iter().any(may_not)
                    }
                }
            };
            if ends {
                client.end();
            }
        }
    }

    /// Resets the counters of `INFO` to 0, for `CONFIG RESETSTAT`. The caller has locked the
    /// keyspace, perhaps exclusively.
    pub fn reset_statistics(&self, keys: &Keyspace) {
        self.stats.reset();
        self.errors.reset();
        let expired = i64::try_from(keys.statistics().expired).unwrap_or(i64::MAX);
        self.expired_before.store(-expired, Ordering::Relaxed);
        self.expired_fields.store(0, Ordering::Relaxed);
        for counter in [&self.hits, &self.misses, &self.evictions] {
            counter.add(-i64::try_from(counter.sum()).unwrap_or(i64::MAX));
        }
        let clients = &self.clients;
        let counters = [
            &clients.refused,
            &clients.evicted,
            &clients.closed_for_input,
            &clients.closed_for_output,
        ];
        let denied = self.acl.denied.iter();
        counters.into_iter().chain(denied).for_each(|counter| counter.store(0, Ordering::Relaxed));
        self.peak_memory.store(0, Ordering::Relaxed);
    }

    /// Returns whether the data directory is still being read.
    pub fn is_loading(&self) -> bool {
        self.data_directory.as_ref().is_some_and(|it| it.is_loading())
    }

    /// Returns the milliseconds since the start.
    fn uptime_millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Pauses clients: all commands, or only those that write. A pause in progress becomes neither
    /// shorter nor less strict.
    pub fn pause(&self, time: Duration, only_writes: bool) {
        let _changing = self.pause.changing.lock();
        let (now, time) = (self.uptime_millis(), u64::try_from(time.as_millis()));
        let end = now.saturating_add(time.unwrap_or(u64::MAX)).max(1);
        let former = self.pause.until.load(Ordering::Relaxed);
        let keeps_all = former > now && !self.pause.only_writes.load(Ordering::Relaxed);
        self.pause.only_writes.store(only_writes && !keeps_all, Ordering::Relaxed);
        self.pause.until.store(if former > now { former.max(end) } else { end }, Ordering::Relaxed);
    }

    pub fn unpause(&self) {
        let _changing = self.pause.changing.lock();
        self.pause.until.store(0, Ordering::Relaxed);
        self.pause.over.notify_waiters();
    }

    /// Waits for the end of the pause. `writes` says whether the command writes.
    pub async fn paused(&self, writes: bool) {
        /// Counts a waiting client, and stops counting it even if the wait is cancelled.
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let mut counted = None;
        loop {
            let over = self.pause.over.notified();
            let left = self.pause_left(writes);
            if left == 0 {
                return;
            }
            counted.get_or_insert_with(|| {
                self.pause.waiting.fetch_add(1, Ordering::Relaxed);
                Waiting(&self.pause.waiting)
            });
            // If the pause ends before the wait begins, this thread notices it at most a second
            // later.
            let left = Duration::from_millis(left.min(1000));
            let _ = tokio::time::timeout(left, over).await;
        }
    }

    /// Returns the milliseconds for which commands, or those that write if `writes`, stay paused.
    fn pause_left(&self, writes: bool) -> u64 {
        if self.pause.only_writes.load(Ordering::Relaxed) && !writes {
            return 0;
        }
        self.pause.until.load(Ordering::Relaxed).saturating_sub(self.uptime_millis())
    }

    /// Returns whether commands, or those that write if `writes`, are paused.
    pub fn is_paused(&self, writes: bool) -> bool {
        self.pause_left(writes) > 0
    }

    /// Returns whether commands that write are paused.
    pub fn are_writes_paused(&self) -> bool {
        self.pause.until.load(Ordering::Relaxed) > self.uptime_millis()
    }

    /// Returns the number of clients that wait for the end of a pause.
    pub fn paused_clients(&self) -> usize {
        self.pause.waiting.load(Ordering::Relaxed)
    }

    /// Returns whether clients may have to wait. One relaxed load.
    #[inline]
    pub fn may_be_paused(&self) -> bool {
        self.pause.until.load(Ordering::Relaxed) != 0
    }
}

fn run_id() -> String {
    let mut bytes = [0; 20];
    // Without random numbers all runs have the same identifier, which only tools notice.
    let _ = getrandom::fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Options for a new keyspace.
fn options(
    collectors: &Collectors,
    memory: &MemoryBudget,
    following: Option<&Arc<Following>>,
) -> Options {
    let options = Options::new().shared_collectors(collectors).memory_budget(memory);
    match following.cloned() {
        Some(following) => options.clock(move || following.now()),
        None => options,
    }
}

/// Converts a value of `maxmemory`, where 0 means none, to the limit of a memory budget.
fn memory_limit(max_memory: usize) -> usize {
    if max_memory == 0 { usize::MAX } else { max_memory }
}
