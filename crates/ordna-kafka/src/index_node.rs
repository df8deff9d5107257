//! An index node: holds the partitions that the group assigned to it, and warm copies of others.
//!
//! # Contract
//! Any thread may call any method.
//!
//! # Protocol
//! The membership determines which partitions the node owns, and the owner table which warm copies
//! it keeps. Both only record which partitions are *wanted*. The keeper's thread opens wanted
//! partitions that are missing, each on a thread of its own, and closes warm copies that are no
//! longer wanted. A revocation closes its partitions itself, before the group continues. A thread
//! that has opened a partition checks whether it is still wanted before it installs it.
//!
//! # Locks
//! [`Shared::state`] is locked only briefly: no broker, service or reader is called while it is
//! held.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ordna::sync::Lock;
use ordna_secondary::{Error, IndexDefinition, Position};

use crate::backups::Backups;
use crate::broker::{Broker, BrokerError, settings};
use crate::fetch::{Fetcher, join_soon};
use crate::membership::{AssignmentListener, Membership, RebalanceCounts};
use crate::node::{
    HeldPartition, LocalNode, NodeError, OwnerTable, PartitionView, RequestedState, Role,
};
use crate::open_partition::OpenPartition;
use crate::options::NodeOptions;
use crate::owner_table::standbys;
use crate::poison_records::{PoisonRecord, PoisonRecords};

/// Interval at which the node asks the brokers for the ends, the owner table and the topic.
const LOOK: Duration = Duration::from_millis(500);
/// The same interval while no broker answers.
const LOOK_WHILE_AWAY: Duration = Duration::from_secs(2);
/// Timeout of these requests.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time for which the node keeps a copy that is no longer wanted, or was lost with the session: the
/// new owner may still be restoring it. The time only passes while the brokers answer.
const LINGER: Duration = Duration::from_secs(30);
/// Maximum number of partitions that are opened at the same time.
const OPENING: usize = 2;

enum PartitionSlot {
    Opening,
    Open(Arc<OpenPartition>),
}

#[derive(Default)]
struct NodeState {
    wanted: BTreeMap<u32, Role>,
    slots: BTreeMap<u32, PartitionSlot>,
    /// Since when a copy has not been wanted.
    spare_since: BTreeMap<u32, Instant>,
    /// The ends of the partitions that the brokers last returned.
    newest: Vec<Position>,
    /// Why the last request to the brokers failed, and since when requests have failed.
    trouble: Option<(Instant, BrokerError)>,
    /// Why the last attempt to open a partition failed.
    failures: BTreeMap<u32, String>,
    /// Number of times that each partition was opened again because the brokers' history had
    /// changed.
    rebuilds: BTreeMap<u32, u64>,
}

/// Information about a partition, for display.
#[derive(Debug, Clone)]
pub struct PartitionInfo {
    /// The part that other nodes receive, too.
    pub held: HeldPartition,
    /// Upper bound of the age of the newest state, which contains everything written before.
    pub age: Duration,
    /// Number of records read since the partition was opened, and the number of records to read at
    /// that time.
    pub restored: (u64, u64),
    /// Number of entries, and bytes, of all indexes.
    pub size: (usize, usize),
    /// Number of poison records.
    pub poison: u64,
    /// Number of documents that an index left out.
    pub left_out: u64,
    /// Number of times that the partition was opened again, from a backup or from its first record,
    /// because the brokers' history had changed.
    pub rebuilds: u64,
}

struct Shared {
    options: NodeOptions,
    broker: Arc<Broker>,
    backups: Option<Backups>,
    fetcher: Fetcher,
    poisons: Arc<PoisonRecords>,
    state: Lock<NodeState>,
    changed: Condvar,
    counts: Arc<RebalanceCounts>,
    /// Time for which the topic keeps deletions, if it is compacted.
    tombstones: Option<Duration>,
    stopped: AtomicBool,
}

/// An index node. Dropping it leaves the group.
pub struct IndexNode {
    shared: Arc<Shared>,
    membership: Lock<Option<Membership>>,
    threads: Lock<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for IndexNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexNode").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl IndexNode {
    /// Starts the node: asks a broker for the topic, and joins the group.
    ///
    /// # Errors
    /// No broker answers within [`NodeOptions::start_timeout`], the topic does not exist, or the
    /// definition of an index cannot be used.
    pub fn start(options: NodeOptions) -> Result<Self, NodeError> {
        for (at, definition) in options.indexes.iter().enumerate() {
            definition.check()?;
            if options.indexes[..at].iter().any(|other| other.name == definition.name) {
                return Err(Error::DuplicateIndex(definition.name.clone()).into());
            }
        }
        let told = |error: BrokerError| NodeError::Broker(error.to_string());
        let NodeOptions { brokers, topic, settings: extra, .. } = &options;
        let broker = Broker::connect(brokers, topic, extra, options.start_timeout).map_err(told)?;
        let broker = Arc::new(broker);
        let tombstones = broker.tombstones(options.start_timeout).map_err(told)?;
        let poisons = Arc::new(PoisonRecords::default());
        let wrong = |error: rdkafka::error::KafkaError| NodeError::Broker(error.to_string());
        let clients = settings(brokers, extra);
        let fetcher = Fetcher::start(Arc::clone(&broker), clients.clone(), Arc::clone(&poisons));
        let backups = options.backups.as_deref();
        let backups = backups.map(|dir| Backups::new(dir, &options.group, topic, &options.indexes));
        let shared = Arc::new(Shared {
            broker,
            backups,
            fetcher: fetcher.map_err(wrong)?,
            poisons,
            state: Lock::default(),
            changed: Condvar::new(),
            counts: Arc::default(),
            tombstones,
            stopped: AtomicBool::new(false),
            options,
        });
        let node: Weak<dyn AssignmentListener> =
            Arc::downgrade(&(Arc::clone(&shared) as Arc<dyn AssignmentListener>));
        let NodeOptions { group, topic, address, session_timeout, .. } = &shared.options;
        let counts = Arc::clone(&shared.counts);
        let names = (group.as_str(), topic.as_str(), address.as_str());
        let membership = Membership::join(clients, names, *session_timeout, node, counts);
        let membership = Lock::new(Some(membership.map_err(wrong)?));
        let node = Self { shared, membership, threads: Lock::default() };
        let run: [fn(&Arc<Shared>); 3] = [Shared::keep, Shared::look, Shared::back_up];
        let makes_backups =
            node.shared.backups.is_some() && node.shared.options.backup_every.is_some();
        for (name, run) in ["keeper", "looks", "backups"].into_iter().zip(run) {
            if name == "backups" && !makes_backups {
                continue;
            }
            let shared = Arc::clone(&node.shared);
            let thread = thread::Builder::new().name(format!("kafka-{name}"));
            let thread = thread.spawn(move || run(&shared));
            let thread = thread.map_err(|error| NodeError::Broker(error.to_string()))?;
            node.threads.lock().push(thread);
        }
        Ok(node)
    }

    /// Leaves the group. The partitions are backed up before that if the options say so. Later
    /// queries fail.
    pub fn stop(&self) {
        if let Some(mut membership) = self.membership.lock().take() {
            membership.leave();
        }
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            join_soon(thread);
        }
        let mut state = self.shared.state.lock();
        state.wanted.clear();
        let slots = std::mem::take(&mut state.slots);
        drop(state);
        self.shared.fetcher.stop();
        slots.keys().for_each(|partition| self.shared.fetcher.remove(*partition));
    }

    /// Returns the options of the node.
    pub fn options(&self) -> &NodeOptions {
        &self.shared.options
    }

    /// Returns the number of partitions of the topic at the last count.
    pub fn partitions(&self) -> u32 {
        self.shared.broker.partitions()
    }

    /// Returns the number of assignments and revocations, and the number of revocations that came
    /// after the end of the session.
    pub fn rebalances(&self) -> (u64, u64) {
        let counts = &self.shared.counts;
        (counts.rebalances.load(Ordering::Relaxed), counts.lost.load(Ordering::Relaxed))
    }

    /// Returns for how long the brokers have not answered, and the last error. Returns `None` if
    /// they answer.
    pub fn trouble(&self) -> Option<(Duration, BrokerError)> {
        let state = self.shared.state.lock();
        state.trouble.as_ref().map(|(since, error)| (since.elapsed(), error.clone()))
    }

    /// Returns the bytes of all indexes, and whether no further records are read because they have
    /// reached [`NodeOptions::memory_limit`].
    pub fn memory(&self) -> (usize, bool) {
        (self.shared.memory(), self.shared.fetcher.is_paused())
    }

    /// Returns why partitions that the node should hold could not be opened.
    pub fn failures(&self) -> Vec<(u32, String)> {
        let state = self.shared.state.lock();
        state.failures.iter().map(|(partition, why)| (*partition, why.clone())).collect()
    }

    /// Returns why the node no longer works and needs a restart, if this is so: one of its threads,
    /// or a thread of a partition's indexes, panicked.
    pub fn failure(&self) -> Option<String> {
        let open: Vec<_> = {
            let state = self.shared.state.lock();
            state.slots.iter().filter_map(|(at, slot)| Some((*at, slot.open()?))).collect()
        };
        let failure = |(at, open): (u32, Arc<OpenPartition>)| {
            open.failure().map(|error| format!("partition {at}: {error}"))
        };
        if let Some(failure) = open.into_iter().find_map(failure) {
            return Some(failure);
        }
        let threads = self.threads.lock();
        let ended = threads.iter().find(|thread| thread.is_finished() && !self.shared.is_stopped());
        let name = ended.map(|thread| thread.thread().name().unwrap_or_default().to_owned());
        let reader = self.shared.fetcher.has_died().then(|| "kafka-reader".to_owned());
        name.or(reader).map(|name| format!("the thread {name:?} panicked"))
    }

    /// Returns the number of poison records, and the newest ones.
    pub fn poison(&self, most: usize) -> (u64, Vec<PoisonRecord>) {
        (self.shared.poisons.count(), self.shared.poisons.list(most))
    }

    /// Returns the partitions that the node holds or is opening. O(partitions).
    pub fn info(&self) -> Vec<PartitionInfo> {
        let parts: Vec<(HeldPartition, Option<Arc<OpenPartition>>, u64)> = {
            let state = self.shared.state.lock();
            let rebuilds = |at: &u32| state.rebuilds.get(at).copied().unwrap_or(0);
            let part =
                |(at, slot): (&u32, &PartitionSlot)| (state.held(*at), slot.open(), rebuilds(at));
            state.slots.iter().map(part).collect()
        };
        let info = |(held, open, rebuilds): (_, Option<Arc<OpenPartition>>, _)| match open {
            None => PartitionInfo {
                held,
                age: Duration::MAX,
                restored: (0, 0),
                size: (0, 0),
                poison: 0,
                left_out: 0,
                rebuilds,
            },
            Some(open) => {
                let position = open.position();
                PartitionInfo {
                    held: HeldPartition { position, ..held },
                    age: open.fetch.age_of(position),
                    restored: (
                        open.fetch.next().saturating_sub(open.from),
                        open.until.saturating_sub(open.from),
                    ),
                    size: open.size(),
                    poison: open.fetch.poison.load(Ordering::Relaxed),
                    left_out: open.left_out(),
                    rebuilds,
                }
            }
        };
        parts.into_iter().map(info).collect()
    }
}

impl Drop for IndexNode {
    fn drop(&mut self) {
        self.stop();
    }
}

impl PartitionSlot {
    fn open(&self) -> Option<Arc<OpenPartition>> {
        match self {
            Self::Opening => None,
            Self::Open(open) => Some(Arc::clone(open)),
        }
    }
}

impl NodeState {
    /// Returns what is known of a partition without asking its service.
    fn held(&self, partition: u32) -> HeldPartition {
        let role = self.wanted.get(&partition).copied().unwrap_or(Role::Standby);
        let open = self.slots.get(&partition).and_then(PartitionSlot::open);
        let position = open.as_ref().and_then(|open| open.fetch.feed.position(0));
        let newest = self.newest.get(partition as usize);
        let lag = position.zip(newest).map(|(at, newest)| newest.seq.saturating_sub(at.seq));
        HeldPartition {
            partition,
            role,
            position: position.unwrap_or_default(),
            ready: open.is_some_and(|open| open.is_ready()),
            lag: lag.filter(|_| self.trouble.is_none()),
        }
    }
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Opens wanted partitions and closes unwanted copies until the node stops.
    fn keep(self: &Arc<Self>) {
        while !self.is_stopped() {
            let mut state = self.state.lock();
            let opening = state.slots.values().filter(|slot| slot.open().is_none()).count();
            let missing = |state: &NodeState| -> Vec<u32> {
                let wanted = state.wanted.keys().copied();
                wanted.filter(|partition| !state.slots.contains_key(partition)).collect()
            };
            for partition in missing(&state).into_iter().take(OPENING.saturating_sub(opening)) {
                state.slots.insert(partition, PartitionSlot::Opening);
                let shared = Arc::clone(self);
                let thread = thread::Builder::new().name(format!("kafka-open-{partition}"));
                if thread.spawn(move || shared.open(partition)).is_err() {
                    state.slots.remove(&partition);
                }
            }
            let NodeState { wanted, slots, spare_since, trouble, .. } = &mut *state;
            // While the brokers do not answer, it is not known whether another node has the
            // partition.
            spare_since.retain(|at, _| !wanted.contains_key(at) && trouble.is_none());
            let mut spare = Vec::new();
            for (partition, slot) in slots.iter() {
                if !wanted.contains_key(partition)
                    && trouble.is_none()
                    && slot.open().is_some()
                    && spare_since.entry(*partition).or_insert_with(Instant::now).elapsed() > LINGER
                {
                    spare.push(*partition);
                }
            }
            spare_since.retain(|partition, _| !spare.contains(partition));
            drop(state);
            self.check_memory();
            for partition in spare {
                self.close(partition);
            }
            let state = self.state.lock();
            // After this time, partitions that could not be opened are tried again.
            let waited = self.changed.wait_timeout(state, Duration::from_millis(300));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Returns the bytes of all indexes. O(partitions × indexes).
    fn memory(&self) -> usize {
        let open: Vec<Arc<OpenPartition>> = {
            let state = self.state.lock();
            state.slots.values().filter_map(PartitionSlot::open).collect()
        };
        open.iter().map(|open| open.size().1).sum()
    }

    /// Pauses the reader at the memory limit, and lets it continue below it.
    fn check_memory(&self) {
        let Some(limit) = self.options.memory_limit else { return };
        let memory = self.memory();
        if memory >= limit {
            if self.fetcher.pause(true) {
                tracing::warn!(memory, limit, "memory limit: the node reads no further records");
            }
        } else if memory < limit - limit / 16 && self.fetcher.pause(false) {
            tracing::info!(memory, limit, "below the memory limit: the node reads on");
        }
    }

    fn open(&self, partition: u32) {
        let NodeOptions { indexes, .. } = &self.options;
        let opened = OpenPartition::new(&self.broker, partition, indexes, self.backups.as_ref());
        let is_wanted =
            |state: &NodeState| state.wanted.contains_key(&partition) && !self.is_stopped();
        let mut state = self.state.lock();
        match opened {
            Ok(open) if is_wanted(&state) => {
                drop(state);
                self.fetcher.add(partition, &open.fetch);
                let mut state = self.state.lock();
                if is_wanted(&state) {
                    state.failures.remove(&partition);
                    state.slots.insert(partition, PartitionSlot::Open(Arc::new(open)));
                } else {
                    state.slots.remove(&partition);
                    drop(state);
                    self.fetcher.remove(partition);
                }
            }
            Ok(_) => drop(state.slots.remove(&partition)),
            Err(error) => {
                tracing::warn!(partition, %error, "the partition cannot be opened yet");
                state.slots.remove(&partition);
                state.failures.insert(partition, error.to_string());
                drop(state);
                // A pause before the next attempt, as the brokers may be unreachable.
                thread::sleep(Duration::from_millis(500));
            }
        }
        self.changed.notify_all();
    }

    /// Closes a partition. Its memory is freed once no query reads it.
    fn close(&self, partition: u32) -> Option<Arc<OpenPartition>> {
        let mut state = self.state.lock();
        let open = match state.slots.get(&partition) {
            Some(PartitionSlot::Open(open)) => Arc::clone(open),
            // The thread that is opening it will find that it is not wanted.
            _ => return None,
        };
        state.slots.remove(&partition);
        drop(state);
        self.fetcher.remove(partition);
        Some(open)
    }

    /// Asks the brokers for the ends, the topic and the owner table until the node stops.
    fn look(self: &Arc<Self>) {
        while !self.is_stopped() {
            let when = Instant::now();
            let looked = self.look_once(when);
            let mut state = self.state.lock();
            match (looked, &mut state.trouble) {
                (Ok(()), trouble) => *trouble = None,
                (Err(error), Some((_, known))) => *known = error,
                (Err(error), trouble) => {
                    tracing::warn!(%error, "the node serves what it has");
                    *trouble = Some((when, error));
                }
            }
            let (is_away, ended) = (state.trouble.is_some(), when.elapsed());
            // A failed request has taken long, so the next one follows after a full pause.
            let left = if is_away { LOOK_WHILE_AWAY } else { LOOK.saturating_sub(ended) };
            let waited = self.changed.wait_timeout_while(state, left, |_| !self.is_stopped());
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn look_once(&self, when: Instant) -> Result<(), BrokerError> {
        // The positions are read before the ends. Otherwise, a record that is read in between would
        // seem to be beyond the end.
        let positions: BTreeMap<u32, Position> = {
            let state = self.state.lock();
            let open = state.slots.iter().filter_map(|(at, slot)| Some((*at, slot.open()?)));
            open.filter_map(|(at, open)| Some((at, open.fetch.feed.position(0)?))).collect()
        };
        self.broker.count(PATIENCE)?;
        let is_another = self.broker.check_topic(PATIENCE)?;
        let newest = self.broker.newest_and_epochs(PATIENCE)?;
        let diverged = self.compare(&positions, &newest)?;
        let owners = self.broker.owners(&self.options.group, PATIENCE)?;
        if self.is_stopped() {
            return Ok(());
        }
        let mut state = self.state.lock();
        let mut lost = Vec::new();
        for (partition, slot) in &state.slots {
            let (PartitionSlot::Open(open), Some((end, epoch)), Some(at)) =
                (slot, newest.get(*partition as usize), positions.get(partition))
            else {
                continue;
            };
            let fetch = &open.fetch;
            // Half of the time, as for backups: deletions in between may be gone from the topic.
            let missed = self.tombstones.is_some_and(|kept| {
                fetch.ready.load(Ordering::Relaxed) && fetch.age_of(*at) > kept / 2
            });
            let is_lost = is_another
                || missed
                || at.identity != end.identity
                || at.seq > end.seq
                || diverged.contains(partition)
                || fetch.lost.load(Ordering::Relaxed);
            if is_lost {
                lost.push(*partition);
            } else if fetch.epochs.lock().to_compare(at.seq, *epoch).is_none() {
                // Only if the brokers have the same history: otherwise the state may lack records
                // below the end.
                fetch.note_end(*end, when);
            }
        }
        state.newest = newest.into_iter().map(|(end, _)| end).collect();
        self.want_standbys(&mut state, &owners);
        drop(state);
        lost.into_iter().for_each(|partition| self.reopen(partition));
        self.changed.notify_all();
        Ok(())
    }

    /// Compares the partitions with the brokers' history where an epoch has changed. Returns the
    /// partitions for which the brokers have other records.
    fn compare(
        &self,
        positions: &BTreeMap<u32, Position>,
        newest: &[(Position, i32)],
    ) -> Result<BTreeSet<u32>, BrokerError> {
        let mut diverged = BTreeSet::new();
        let open: Vec<(u32, Arc<OpenPartition>)> = {
            let state = self.state.lock();
            state.slots.iter().filter_map(|(at, slot)| Some((*at, slot.open()?))).collect()
        };
        // Each round compares one change of the epoch in each partition.
        loop {
            let mut marks = BTreeMap::new();
            for (partition, open) in open.iter().filter(|(at, _)| !diverged.contains(at)) {
                let newest = newest.get(*partition as usize);
                let (Some(at), Some((end, epoch))) = (positions.get(partition), newest) else {
                    continue;
                };
                // Partitions that are opened again for other reasons need no comparison.
                if at.identity == end.identity && at.seq <= end.seq {
                    let mark = open.fetch.epochs.lock().to_compare(at.seq, *epoch);
                    marks.extend(mark.map(|mark| (*partition, mark)));
                }
            }
            if marks.is_empty() || self.is_stopped() {
                return Ok(diverged);
            }
            let compared = self.broker.compare(&marks, PATIENCE)?;
            for (partition, open) in &open {
                let (Some(mark), Some((_, epoch))) =
                    (marks.get(partition), newest.get(*partition as usize))
                else {
                    continue;
                };
                if compared.get(partition) == Some(&true) {
                    open.fetch.epochs.lock().confirm(*mark, *epoch);
                } else {
                    diverged.insert(*partition);
                }
            }
        }
    }

    /// Closes a partition whose history has changed. The keeper opens it again, from the newest
    /// backup that is still part of the brokers' history, or from its first record.
    fn reopen(&self, partition: u32) {
        tracing::warn!(
            partition,
            "the brokers' history has changed: the partition is opened again"
        );
        if self.close(partition).is_some() {
            *self.state.lock().rebuilds.entry(partition).or_default() += 1;
        }
    }

    /// Marks as wanted the warm copies that the owner table assigns to this node.
    fn want_standbys(&self, state: &mut NodeState, owners: &OwnerTable) {
        let me = self.options.address.as_str();
        // A topic that was recreated may have fewer partitions.
        state.wanted.retain(|at, role| *role == Role::Owner || *at < owners.partitions);
        for partition in 0..owners.partitions {
            let copies = standbys(owners, partition, self.options.standby);
            let is_copied = copies.contains(&me);
            match state.wanted.get(&partition) {
                None if is_copied => state.wanted.insert(partition, Role::Standby),
                Some(Role::Standby) if !is_copied => state.wanted.remove(&partition),
                _ => None,
            };
        }
    }

    /// Backs up the owned partitions at regular intervals, one after the other.
    fn back_up(self: &Arc<Self>) {
        let (Some(backups), Some(every)) = (&self.backups, self.options.backup_every) else {
            return;
        };
        let mut last = Instant::now();
        while !self.is_stopped() {
            let state = self.state.lock();
            let left = every.saturating_sub(last.elapsed()).min(Duration::from_millis(200));
            let waited = self.changed.wait_timeout_while(state, left, |_| !self.is_stopped());
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            if last.elapsed() < every {
                continue;
            }
            last = Instant::now();
            for (partition, open) in self.owned() {
                // The partition may have been revoked while others were backed up.
                let is_here = self
                    .owned()
                    .iter()
                    .any(|(at, now)| *at == partition && Arc::ptr_eq(now, &open));
                if is_here && !self.is_stopped() {
                    self.write_backup(partition, &open, backups);
                }
            }
        }
    }

    fn owned(&self) -> Vec<(u32, Arc<OpenPartition>)> {
        let state = self.state.lock();
        let is_owned = |partition: &u32| state.wanted.get(partition) == Some(&Role::Owner);
        let owned = state.slots.iter().filter(|(partition, _)| is_owned(partition));
        owned.filter_map(|(partition, slot)| Some((*partition, slot.open()?))).collect()
    }

    fn write_backup(&self, partition: u32, open: &OpenPartition, backups: &Backups) {
        if let Err(error) = open.back_up(backups, self.options.backup_keep) {
            tracing::error!(partition, %error, "no backup");
        }
    }
}

impl AssignmentListener for Shared {
    fn acquire(&self, partitions: &[u32]) {
        tracing::info!(?partitions, "assigned");
        let mut state = self.state.lock();
        state.wanted.extend(partitions.iter().map(|partition| (*partition, Role::Owner)));
        drop(state);
        self.changed.notify_all();
    }

    fn release(&self, partitions: &[u32], lost: bool) {
        tracing::info!(?partitions, lost, "revoked");
        let mut state = self.state.lock();
        state.wanted.retain(|partition, _| !partitions.contains(partition));
        drop(state);
        if lost {
            // The session has ended, perhaps because no broker answers. Another node may own the
            // partitions already, or none may be able to. They stay as copies, without a backup.
            return;
        }
        for partition in partitions {
            if let Some(open) = self.close(*partition)
                && self.options.backup_on_revoke
                && let Some(backups) = &self.backups
            {
                self.write_backup(*partition, &open, backups);
            }
        }
    }

    fn positions(&self) -> Vec<(u32, u64)> {
        self.owned().into_iter().map(|(partition, open)| (partition, open.fetch.next())).collect()
    }
}

impl LocalNode for IndexNode {
    fn address(&self) -> &str {
        &self.shared.options.address
    }

    fn indexes(&self) -> &[IndexDefinition] {
        &self.shared.options.indexes
    }

    fn owners(&self) -> OwnerTable {
        self.shared.broker.known_owners()
    }

    fn refresh(&self, until: Instant) -> Result<OwnerTable, NodeError> {
        let Shared { broker, options, .. } = &*self.shared;
        let left = until.saturating_duration_since(Instant::now());
        broker.owners(&options.group, left).map_err(|error| NodeError::Broker(error.to_string()))
    }

    fn held(&self) -> Vec<HeldPartition> {
        let state = self.shared.state.lock();
        state.slots.keys().map(|partition| state.held(*partition)).collect()
    }

    fn newest(&self, until: Instant) -> Result<Vec<Position>, NodeError> {
        let left = until.saturating_duration_since(Instant::now());
        let newest = self.shared.broker.newest(left);
        newest.map_err(|error| NodeError::Broker(error.to_string()))
    }

    fn view(
        &self,
        partition: u32,
        asked: RequestedState,
        until: Instant,
    ) -> Result<PartitionView, NodeError> {
        let at = match asked {
            RequestedState::Any => None,
            RequestedState::AtPlus(position) => Some(position),
            RequestedState::RequestPlus => {
                let newest = self.newest(until)?;
                let newest = newest.get(partition as usize).copied();
                Some(newest.ok_or(NodeError::NotHeld { partition })?)
            }
        };
        let mut state = self.shared.state.lock();
        let open = loop {
            match state.slots.get(&partition) {
                Some(PartitionSlot::Open(open)) => break Arc::clone(open),
                None if !state.wanted.contains_key(&partition) => {
                    return Err(NodeError::NotHeld { partition });
                }
                _ => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NodeError::Restoring { partition, done: 0, of: 0 });
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(state);
        open.view(at, until)
    }
}
