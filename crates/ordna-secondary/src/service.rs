//! The service: keeps indexes up to date with a source, and publishes snapshot points.
//!
//! # Contract
//! All methods can be called by any thread. Dropping a [`Service`] stops it, after its workers have
//! applied all queued changes.
//!
//! # Protocol of a snapshot point
//! The timer's thread first waits until no group of writes is in progress. Then it locks all
//! queues, reads the version vector and sends a message to each worker. When a worker reaches this
//! message, it waits for the others, so no change after the vector is applied. The last worker to
//! arrive takes a snapshot of each index, in O(1), and publishes them. Then all workers continue.
//! The timer's thread frees the previous snapshot point.
//!
//! # Threads that panic
//! A panic in a thread of the service closes the queues. Feeders, workers and waiting queries end,
//! and every later query fails with [`Error::Panicked`].
//!
//! Source: the Nitro paper (VLDB 2016), §8.1, §9.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ordna::durability::BackupOptions;
use ordna::sync::{Lock, fault, notice};
use ordna::tuple::Value;

use crate::define::{IndexDefinition, Keys, OnWrongType};
use crate::document::{Document, Mutation};
use crate::error::{Error, SourceError};
use crate::index::{Index, IndexInfo};
use crate::query::{Cursor, Page, Query, Range};
use crate::recover::{Backup, Recovered, back_up, newest, recover};
use crate::reverse::{Hasher, IndexStore};
use crate::service_options::{Consistency, Read, ServiceOptions};
use crate::shard_queues::{Message, Removed, ShardQueues};
use crate::source::{ChangeSource, Feed};
use crate::version_vector::{Position, VersionVector};
use crate::view::{IndexSnapshot, SnapshotPoint, View, info};
use crate::worker::{Local, work};

#[derive(Default)]
struct Registry {
    indexes: BTreeMap<String, Arc<Index>>,
    next_uid: u64,
    /// Number of snapshot points so far, including one that has begun and is not published yet.
    points: u64,
}

/// Returns the number of the first snapshot point that has not begun yet.
fn next_point(points: u64) -> u64 {
    if fault!("pipeline.drop.point_in_progress") { points } else { points + 1 }
}

/// What the timer's thread waits for.
#[derive(Default)]
struct Timer {
    asked: bool,
    stopped: bool,
}

struct Shared {
    queues: Arc<ShardQueues>,
    source: Arc<dyn ChangeSource>,
    registry: Lock<Registry>,
    published: Lock<Arc<SnapshotPoint>>,
    changed: Condvar,
    timer: Lock<Timer>,
    tick: Condvar,
    hasher: Hasher,
    options: ServiceOptions,
    source_error: Lock<Option<SourceError>>,
    threads: Lock<Vec<JoinHandle<()>>>,
    /// Locked during a backup, as all backups are prepared in the same directory.
    backing_up: Lock<()>,
    /// Previous snapshot points, which may hold the last reference to a dropped index. Freeing them
    /// would delay the workers, so [`free_retired`](Self::free_retired) does it later.
    retired: Lock<Vec<Arc<SnapshotPoint>>>,
    /// Locked while previous snapshot points are freed.
    freeing: Lock<()>,
}

/// A snapshot point that is being taken.
struct PendingSnapshot {
    vector: VersionVector,
    fed: u64,
    taken: Instant,
    indexes: Vec<Arc<Index>>,
}

impl Shared {
    /// Takes and publishes a snapshot point. All workers wait during the call.
    fn publish(&self, pending: &PendingSnapshot) {
        let of = |index: &Arc<Index>| {
            let snapshot = index.is_filled().then(|| index.entries.snapshot());
            (index.definition.name.clone(), IndexSnapshot { index: Arc::clone(index), snapshot })
        };
        let indexes = pending.indexes.iter().map(of).collect();
        let is_late = fault!("pipeline.vector.is_the_snapshots");
        let vector = if is_late { self.queues.vector() } else { pending.vector.clone() };
        let mut published = self.published.lock();
        let number = published.number + 1;
        let (fed, taken) = (pending.fed, pending.taken);
        let point = SnapshotPoint { number, vector, fed, taken, indexes };
        let old = std::mem::replace(&mut *published, Arc::new(point));
        // Before the new one is visible: a call that drops an index then finds the old one here.
        self.retired.lock().push(old);
        drop(published);
        self.changed.notify_all();
        if fault!("pipeline_end.freed_by_a_worker") {
            self.free_retired();
        }
    }

    /// Frees previous snapshot points. If another thread is doing so, waits until it is done.
    fn free_retired(&self) {
        let _freeing = self.freeing.lock();
        let retired = std::mem::take(&mut *self.retired.lock());
        drop(retired);
    }

    /// Requests a snapshot point as soon as possible.
    fn ask(&self) {
        self.timer.lock().asked = true;
        self.tick.notify_one();
    }

    /// Takes snapshot points, at every interval and on request, if anything has changed.
    fn run_timer(self: &Arc<Self>) {
        let (mut seen, mut last) = (None, Instant::now());
        loop {
            let timer = self.timer.lock();
            // The interval counts from the start of the last snapshot point, not from its end.
            let wait = self.options.interval.saturating_sub(last.elapsed());
            let (mut timer, _) = self
                .tick
                .wait_timeout_while(timer, wait, |timer| !timer.asked && !timer.stopped)
                .unwrap_or_else(PoisonError::into_inner);
            if timer.stopped {
                return;
            }
            timer.asked = false;
            drop(timer);
            last = Instant::now();
            let before = self.published.lock().number;
            {
                let _gate = (!fault!("pipeline.snapshots.wait")).then(|| self.queues.gate());
                let mut registry = self.registry.lock();
                let locked = self.queues.lock_all();
                if self.queues.is_stopped() {
                    // Workers that have ended would never reach the snapshot point.
                    return;
                }
                let changes = locked.changes();
                if seen.replace(changes) == Some(changes) {
                    continue;
                }
                registry.points += 1;
                let pending = PendingSnapshot {
                    vector: locked.vector(),
                    fed: locked.fed(),
                    taken: Instant::now(),
                    indexes: registry.indexes.values().cloned().collect(),
                };
                let shared = Arc::downgrade(self);
                let take = move || {
                    if let Some(shared) = shared.upgrade() {
                        shared.publish(&pending);
                    }
                };
                let take: Arc<dyn Fn() + Send + Sync> = Arc::new(take);
                locked.send(|_| Message::SnapshotPoint(Arc::clone(&take)));
            }
            let published = self.published.lock();
            drop(self.changed.wait_while(published, |published| {
                published.number == before && !self.queues.is_stopped()
            }));
            self.free_retired();
        }
    }

    /// Starts a thread. If it panics, the service ends.
    fn spawn(
        self: &Arc<Self>,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>, Error> {
        let (queues, shared) = (Arc::clone(&self.queues), Arc::downgrade(self));
        let thread = name.to_owned();
        let run = move || {
            // Nobody reads the state that the thread left behind: no query is answered from now on.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                queues.fail(thread, text.unwrap_or_else(|| "no message".to_owned()));
                if let Some(shared) = shared.upgrade() {
                    let _published = shared.published.lock();
                    shared.changed.notify_all();
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
        thread.map_err(Error::io(Path::new("a thread")))
    }

    /// Returns why the service has ended: one of its threads panicked, or it was stopped.
    fn ended(&self) -> Error {
        self.queues.failure().unwrap_or(Error::Stopped)
    }

    /// Waits until `ready` returns a result for a published snapshot point.
    fn wait<R>(
        &self,
        timeout: Duration,
        mut ready: impl FnMut(&Arc<SnapshotPoint>) -> Result<Option<R>, Error>,
    ) -> Result<R, Error> {
        let began = Instant::now();
        let mut published = self.published.lock();
        loop {
            if let Some(found) = ready(&published)? {
                return Ok(found);
            }
            if self.queues.is_stopped() {
                return Err(self.ended());
            }
            let Some(left) = timeout.checked_sub(began.elapsed()) else {
                return Err(Error::Timeout { waited: timeout });
            };
            let waited = self.changed.wait_timeout(published, left);
            published = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn view(&self, read: &Read) -> Result<View, Error> {
        if notice!("pipeline_end.panic_is_told", self.queues.is_stopped()) {
            self.queues.failure().map_or(Ok(()), Err)?;
        }
        let target = match &read.consistency {
            Consistency::Any => return Ok(View(Arc::clone(&self.published.lock()))),
            Consistency::AtPlus(vector) => vector.clone(),
            Consistency::RequestPlus => {
                let partitions = 0..self.source.partitions();
                let newest = partitions.map(|partition| self.source.newest(partition));
                VersionVector::new(newest.collect::<Result<_, _>>()?)
            }
        };
        self.wait(read.timeout, |point| {
            if point.vector.reaches(&target)? {
                return Ok(Some(View(Arc::clone(point))));
            }
            // If all requested changes were fed, a snapshot point can show them at once. Otherwise
            // the query waits for the next one.
            if self.queues.vector().reaches(&target)? {
                self.ask();
            } else if let Some(error) = &*self.source_error.lock() {
                return Err(error.clone().into());
            }
            Ok(None)
        })
    }

    /// Adapts the capacity of the queues to the number of indexes.
    fn set_capacity(&self, registry: &Registry) {
        // With fewer than 16 changes at once their cache misses would not overlap.
        let (queue, indexes) = (self.options.queue, registry.indexes.len().max(1));
        self.queues.set_capacity((queue / indexes).max(queue.min(16)));
    }

    /// Sends the documents of a snapshot to an index that is being built.
    fn fill(self: &Arc<Self>, index: &Arc<Index>, at: &VersionVector) -> Result<(), SourceError> {
        const BATCH: usize = 64;
        let parts = self.source.documents(at, self.queues.workers())?;
        let fill = |part: crate::source::Documents| -> Result<(), SourceError> {
            let queues = &self.queues;
            let mut batches: Vec<Vec<Mutation>> = vec![Vec::new(); queues.workers()];
            let send = |shard: usize, batch: &mut Vec<Mutation>| {
                queues.send(shard, Message::Fill(Arc::clone(index), std::mem::take(batch)))
            };
            for mutation in part {
                let mutation = mutation?;
                if index.dropped.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let shard = queues.shard_of(&mutation.id);
                batches[shard].push(mutation);
                if batches[shard].len() == BATCH {
                    send(shard, &mut batches[shard])?;
                }
            }
            batches.iter_mut().enumerate().try_for_each(|(shard, batch)| send(shard, batch))
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                parts.into_iter().map(|part| scope.spawn(|| fill(part))).collect();
            threads.into_iter().try_for_each(|thread| {
                let broke = |_| SourceError::Failed {
                    place: "a snapshot of the documents".to_owned(),
                    reason: "its iterator panicked".to_owned(),
                };
                thread.join().map_err(broke).and_then(|done| done)
            })
        })
    }
}

/// A set of indexes that are kept up to date with a source.
pub struct Service {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("vector", &self.shared.queues.vector())
            .finish_non_exhaustive()
    }
}

impl Service {
    /// Starts the service. If [`ServiceOptions::backups`] names a directory with a backup, the
    /// newest one is restored. The service then follows the source from there.
    ///
    /// # Errors
    /// The backup cannot be read, or the source cannot determine its positions.
    pub fn start(options: ServiceOptions, source: Arc<dyn ChangeSource>) -> Result<Self, Error> {
        let hasher = Hasher::default();
        let workers = options.workers;
        let backup = match (&options.restore, &options.backups) {
            (Some(chosen), _) => chosen.clone(),
            (None, Some(dir)) => newest(dir)?,
            (None, None) => None,
        };
        let recover = |path| recover(path, &options.store, options.reverse, workers, &hasher);
        let recovered = backup.map(recover).transpose()?;
        let mut locals: Vec<Vec<Local>> = (0..workers).map(|_| Vec::new()).collect();
        let mut registry = Registry { indexes: BTreeMap::new(), next_uid: 1, points: 0 };
        let partitions = source.partitions();
        let mut positions = vec![Position::default(); partitions as usize];
        if let Some(Recovered { indexes, vector, next_uid }) = recovered {
            registry.next_uid = next_uid;
            if vector.positions().len() != positions.len() {
                let (found, expected) = (vector.positions().len(), positions.len());
                return Err(Error::PartitionCount { found, expected });
            }
            positions = vector.positions().to_vec();
            for (index, maps) in indexes {
                registry.indexes.insert(index.definition.name.clone(), Arc::clone(&index));
                for (worker, map) in locals.iter_mut().zip(maps) {
                    worker.push(Local { index: Arc::clone(&index), map, writes: 0, newer: None });
                }
            }
        }
        for (partition, position) in (0..partitions).zip(&mut positions) {
            let goes_on = position.seq > 0 && source.continues(partition, *position)?;
            if !goes_on {
                let identity = source.newest(partition)?.identity;
                let had_some = std::mem::replace(position, Position { identity, seq: 0 }).seq > 0;
                if had_some {
                    for local in locals.iter_mut().flatten() {
                        local.map.clear_partition(partition);
                    }
                }
            }
        }
        let queues = Arc::new(ShardQueues::new(workers, &positions, options.queue));
        let vector = queues.vector();
        let empty = SnapshotPoint {
            number: 0,
            vector: VersionVector::new(vec![Position::default(); partitions as usize]),
            fed: 0,
            taken: Instant::now(),
            indexes: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            queues: Arc::clone(&queues),
            source,
            registry: Lock::new(registry),
            published: Lock::new(Arc::new(empty)),
            changed: Condvar::new(),
            timer: Lock::default(),
            tick: Condvar::new(),
            hasher: hasher.clone(),
            options,
            source_error: Lock::default(),
            threads: Lock::default(),
            backing_up: Lock::default(),
            retired: Lock::default(),
            freeing: Lock::default(),
        });
        shared.set_capacity(&shared.registry.lock());
        let service = Self { shared: Arc::clone(&shared) };
        for (number, indexes) in locals.into_iter().enumerate() {
            let (queues, hasher) = (Arc::clone(&queues), hasher.clone());
            service.spawn(&format!("index-{number}"), move || {
                work(number, &queues, &hasher, indexes)
            })?;
        }
        let timer = Arc::clone(&shared);
        service.spawn("index-snapshots", move || timer.run_timer())?;
        // Publishes the restored state before the source adds to it.
        shared.ask();
        shared.wait(Duration::MAX, |point| Ok((point.number > 0).then_some(())))?;
        let feed = service.feed();
        service.spawn("index-source", move || {
            if let Err(error) = shared.source.run(&feed, &vector)
                && error != SourceError::Stopped
            {
                *shared.source_error.lock() = Some(error);
                let _published = shared.published.lock();
                shared.changed.notify_all();
            }
        })?;
        Ok(service)
    }

    fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = self.shared.spawn(name, run)?;
        self.shared.threads.lock().push(thread);
        Ok(())
    }

    fn feed(&self) -> Feed {
        let shared = Arc::downgrade(&self.shared);
        let has_indexes = move || {
            shared.upgrade().is_some_and(|shared| !shared.registry.lock().indexes.is_empty())
        };
        Feed { queues: Arc::clone(&self.shared.queues), has_indexes: Arc::new(has_indexes) }
    }

    /// Creates an index and starts to build it, concurrently with changes. To wait for the end,
    /// call [`wait_until_built`](Self::wait_until_built).
    ///
    /// # Errors
    /// The definition cannot be used, or an index with this name exists.
    pub fn create(&self, definition: IndexDefinition) -> Result<(), Error> {
        self.create_numbered(definition, None)
    }

    /// Works like [`create`](Self::create), but with a number that the caller chooses. It must be
    /// at least 2^32, and no other index of the service may have or have had it. Cursors contain
    /// the number: a caller that stores definitions across restarts should give each index the same
    /// number again, so that cursors stay valid.
    ///
    /// # Errors
    /// The same as [`create`](Self::create).
    pub fn create_numbered(
        &self,
        definition: IndexDefinition,
        number: Option<u64>,
    ) -> Result<(), Error> {
        definition.check()?;
        let shared = &self.shared;
        let (index, at);
        let mut builder_slot;
        {
            let mut registry = shared.registry.lock();
            if registry.indexes.contains_key(&definition.name) {
                return Err(Error::DuplicateIndex(definition.name));
            }
            let name = definition.name.clone();
            let entries = IndexStore::new(shared.options.reverse, shared.options.store.clone());
            let workers = shared.queues.workers();
            let uid = number.unwrap_or(registry.next_uid);
            index = Arc::new(Index::new(uid, definition, entries, workers));
            // A call that drops the index waits until its builder is known.
            builder_slot = index.builder.lock();
            registry.next_uid += u64::from(number.is_none());
            registry.indexes.insert(name, Arc::clone(&index));
            shared.set_capacity(&registry);
            let locked = shared.queues.lock_all();
            at = locked.vector();
            let map = || Box::new(index.entries.map(&shared.hasher));
            locked.send(|_| Message::Add(Arc::clone(&index), map()));
        }
        let (builder, built) = (Arc::clone(shared), Arc::clone(&index));
        let build = move || match builder.fill(&built, &at) {
            Ok(()) => {
                builder.queues.lock_all().send(|_| Message::Filled(Arc::clone(&built)));
                builder.ask();
            }
            Err(error) => {
                built.fail(error);
                let _published = builder.published.lock();
                builder.changed.notify_all();
            }
        };
        match shared.spawn("index-build", build) {
            Ok(thread) => *builder_slot = Some(thread),
            Err(error) => {
                drop(builder_slot);
                // No thread builds the index. Another thread may have dropped it by now.
                let _ = self.drop_index(&index.definition.name);
                return Err(error);
            }
        }
        drop(builder_slot);
        self.join_builders(|builder| builder.is_finished());
        Ok(())
    }

    /// Joins the threads that build indexes, if `is_chosen` returns `true` for them.
    fn join_builders(&self, is_chosen: impl Fn(&JoinHandle<()>) -> bool) {
        let take = |index: &Arc<Index>| index.builder.lock().take_if(|builder| is_chosen(builder));
        let indexes: Vec<_> = self.shared.registry.lock().indexes.values().cloned().collect();
        let builders: Vec<_> = indexes.iter().filter_map(take).collect();
        // A thread that panicked has ended, too.
        builders.into_iter().for_each(|builder| drop(builder.join()));
    }

    /// Waits until an index is built and answers queries.
    ///
    /// # Errors
    /// There is no such index, its build failed, or the timeout has passed.
    pub fn wait_until_built(&self, index: &str, timeout: Duration) -> Result<(), Error> {
        let read = Read::any().timeout(timeout).wait_for_build();
        self.on(index, &read, |_| Ok(()))
    }

    /// Drops an index. When this returns and no view of it exists, its memory is free and the
    /// thread that built it has ended. O(entries) on the calling thread; other indexes are not
    /// delayed.
    ///
    /// # Errors
    /// There is no such index, or the service has ended.
    pub fn drop_index(&self, name: &str) -> Result<(), Error> {
        let shared = &self.shared;
        let index = shared.registry.lock().indexes.get(name).cloned();
        let index = index.ok_or_else(|| Error::UnknownIndex(name.to_owned()))?;
        index.dropped.store(true, Ordering::Relaxed);
        // The builder must end before the workers drop their maps of the index.
        if let Some(builder) = index.builder.lock().take() {
            // A thread that panicked has ended, too.
            let _ = builder.join();
        }
        let removed = Removed::default();
        let mut registry = shared.registry.lock();
        if registry.indexes.get(name).is_none_or(|found| found.uid != index.uid) {
            return Err(Error::UnknownIndex(name.to_owned()));
        }
        registry.indexes.remove(name);
        let without_it = next_point(registry.points);
        shared.set_capacity(&registry);
        let message = |_| Message::Remove(Arc::clone(&index), Arc::clone(&removed));
        shared.queues.lock_all().send(message);
        drop(registry);
        // Either this thread or that of the timer frees the index.
        let index = (!fault!("pipeline_end.freed_by_a_worker")).then_some(index);
        shared.ask();
        // A snapshot point in progress may contain the index; a new index may get its name.
        let done =
            shared.wait(Duration::MAX, |point| Ok((point.number >= without_it).then_some(())));
        // Frees the maps of the workers, and the snapshot point that contained the index.
        drop(std::mem::take(&mut *removed.lock()));
        shared.free_retired();
        drop(index);
        done
    }

    /// Returns definition, state and counts of each index, sorted by name.
    pub fn list(&self) -> Vec<IndexInfo> {
        let indexes: Vec<_> = self.shared.registry.lock().indexes.values().cloned().collect();
        let point = Arc::clone(&self.shared.published.lock());
        indexes.iter().map(|index| info(index, &point)).collect()
    }

    /// Returns definition, state and counts of an index.
    ///
    /// # Errors
    /// There is no such index.
    pub fn info(&self, name: &str) -> Result<IndexInfo, Error> {
        let index = self.shared.registry.lock().indexes.get(name).cloned();
        let index = index.ok_or_else(|| Error::UnknownIndex(name.to_owned()))?;
        let point = Arc::clone(&self.shared.published.lock());
        Ok(info(&index, &point))
    }

    /// Returns whether any index covers documents with this id. O(indexes).
    pub fn covers(&self, id: &[u8]) -> bool {
        self.shared.registry.lock().indexes.values().any(|index| index.definition.covers(id))
    }

    /// Checks a document before it is written: fails if an index would refuse it.
    ///
    /// # Errors
    /// [`Error::WrongType`] under [`OnWrongType::Refuse`], or [`Error::DocumentTooLarge`].
    pub fn check(&self, id: &[u8], document: &Document) -> Result<(), Error> {
        let mut keys = Keys::default();
        for index in self.shared.registry.lock().indexes.values() {
            match index.definition.keys(id, document, &mut keys) {
                Err(Error::WrongType { .. })
                    if index.definition.on_wrong_type != OnWrongType::Refuse => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Returns a view of all indexes, for several queries that must read the same state.
    ///
    /// # Errors
    /// The requested state is not reached in time, or can never be reached.
    pub fn view(&self, read: &Read) -> Result<View, Error> {
        self.shared.view(read)
    }

    /// Runs a query.
    ///
    /// # Errors
    /// The same as [`view`](Self::view) and [`View::query`].
    pub fn query(&self, index: &str, query: &Query, read: &Read) -> Result<Page, Error> {
        if let Some(cursor) = &query.cursor {
            self.check_cursor(cursor)?;
        }
        self.on(index, read, |view| view.query(index, query))
    }

    /// Returns the number of entries in a range; see [`View::count`].
    ///
    /// # Errors
    /// The same as [`query`](Self::query).
    pub fn count(
        &self,
        index: &str,
        prefix: &[Value],
        range: &Range,
        read: &Read,
    ) -> Result<usize, Error> {
        self.on(index, read, |view| view.count(index, prefix, range))
    }

    /// Runs a query on the state that `read` requests.
    fn on<R>(
        &self,
        index: &str,
        read: &Read,
        run: impl Fn(&View) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.info_exists(index)?;
        let began = Instant::now();
        let view = self.view(read)?;
        if !read.wait_for_build {
            return run(&view).map_err(|error| self.not_yet(index, error));
        }
        // A snapshot point may contain an index that is not built yet.
        let is_here = |view: &View| match view.query(index, &Query::new().limit(0)) {
            Err(Error::UnknownIndex(_) | Error::Building { .. }) => false,
            Ok(_) | Err(_) => true,
        };
        if is_here(&view) {
            return run(&view);
        }
        let left = read.timeout.saturating_sub(began.elapsed());
        let built = self.shared.wait(left, |point| {
            let view = View(Arc::clone(point));
            self.info_exists(index)?;
            if is_here(&view) { Ok(Some(view)) } else { Ok(None) }
        })?;
        run(&built)
    }

    /// Replaces the error if the index exists, but is in no snapshot point yet: it is being built.
    fn not_yet(&self, index: &str, error: Error) -> Error {
        match (error, self.info(index)) {
            (Error::UnknownIndex(index), Ok(info)) => Error::Building { index, done: info.built },
            (error, _) => error,
        }
    }

    /// Fails if there is no such index, or if its build failed.
    fn info_exists(&self, name: &str) -> Result<(), Error> {
        let registry = self.shared.registry.lock();
        let index = registry.indexes.get(name);
        let index = index.ok_or_else(|| Error::UnknownIndex(name.to_owned()))?;
        match index.failure.get() {
            Some(reason) => Err(Error::Failed { index: name.to_owned(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn check_cursor(&self, cursor: &Cursor) -> Result<(), Error> {
        let registry = self.shared.registry.lock();
        let exists = registry.indexes.values().any(|index| index.uid == cursor.index());
        if exists { Ok(()) } else { Err(Error::CursorOfDroppedIndex) }
    }

    /// Writes a backup of the newest snapshot point to the directory of
    /// [`ServiceOptions::backups`], and deletes the oldest backups if there are more than `keep`.
    /// Changes continue. O(entries). If another thread is writing a backup, the call waits for it.
    ///
    /// # Errors
    /// No directory is set, or it cannot be written.
    pub fn back_up(&self, keep: usize, options: &BackupOptions) -> Result<Backup, Error> {
        let dir = self.shared.options.backups.as_deref();
        let dir = dir.ok_or(ordna::durability::BackupError::NoDirectory)?;
        let _one = (!fault!("recovery.one_backup")).then(|| self.shared.backing_up.lock());
        let next_uid = self.shared.registry.lock().next_uid;
        let point = Arc::clone(&self.shared.published.lock());
        back_up(dir, &point, next_uid, keep, options)
    }

    /// Returns the positions up to which changes were fed.
    pub fn fed(&self) -> VersionVector {
        self.shared.queues.vector()
    }

    /// Returns the number of changes that were fed and are not in the newest snapshot point.
    pub fn lag(&self) -> u64 {
        let published = self.shared.published.lock().fed;
        self.shared.queues.fed().saturating_sub(published)
    }

    /// Returns the number of changes that were ignored, as they were fed already.
    pub fn repeated(&self) -> u64 {
        self.shared.queues.repeated()
    }

    /// Returns [`Error::Panicked`] if the service has ended because one of its threads panicked.
    /// Every query then fails with this error. O(1).
    pub fn failure(&self) -> Option<Error> {
        self.shared.queues.failure()
    }

    /// Returns the error with which the source ended, if it failed.
    pub fn source_error(&self) -> Option<SourceError> {
        self.shared.source_error.lock().clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.queues.close();
        self.shared.timer.lock().stopped = true;
        self.shared.tick.notify_all();
        {
            let _published = self.shared.published.lock();
            self.shared.changed.notify_all();
        }
        self.join_builders(|_| true);
        let threads = std::mem::take(&mut *self.shared.threads.lock());
        for thread in threads {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Embedded, Named, Part};

    struct Nothing;

    impl crate::DocumentStore for Nothing {
        fn get(&self, _: &[u8]) -> Option<Document> {
            None
        }

        fn snapshot(&self, _: usize) -> Vec<Box<dyn Iterator<Item = Named> + Send>> {
            Vec::new()
        }
    }

    /// A worker panics while the other workers wait for it.
    #[test]
    fn a_worker_that_panics_is_reported_and_nobody_waits_for_it() {
        let source = Arc::new(Embedded::new(8, 7, Arc::new(Nothing)));
        let options = ServiceOptions::new().workers(3);
        let service = Service::start(options, Arc::clone(&source) as Arc<_>).unwrap();
        let index = IndexDefinition::new("n", "").part(Part::new("n"));
        service.create(index).unwrap();
        service.wait_until_built("n", Duration::from_secs(10)).unwrap();
        assert!(service.failure().is_none());
        let dies = Arc::new(|| panic!("the test's own panic"));
        service.shared.queues.lock_all().send(|_| Message::SnapshotPoint(dies.clone()));
        let waited = Read::at_plus(VersionVector::new(vec![Position { identity: 7, seq: 9 }; 8]));
        for read in [Read::request_plus(), waited.timeout(Duration::MAX)] {
            let refused = service.query("n", &Query::new(), &read);
            // A snapshot point from before the panic may still be published.
            if let Err(error) = refused {
                assert!(matches!(error, Error::Panicked { .. }), "{error}");
            }
        }
        let refused = service.query("n", &Query::new(), &Read::any());
        let Err(Error::Panicked { thread, message }) = refused else { panic!("{refused:?}") };
        assert!(thread.starts_with("index-") && message == "the test's own panic", "{thread}");
        assert!(service.failure().is_some());
        // Feeding, dropping an index and the end of the service do not hang either.
        let fed = source.write(b"d", || ((), Some(Some(Document::new()))));
        assert_eq!(fed, Err(SourceError::Stopped));
        assert!(matches!(service.drop_index("n"), Err(Error::Panicked { .. })));
        drop(service);
    }
}
