//! Runs a history, and keeps the states that may be found after it.
//!
//! A single thread writes, so the states of a history form a list. After a crash, the state is one
//! near the end of the list: a killed process loses nothing that was acknowledged, and a power
//! failure loses nothing that was durable.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ordna::durability::{BackupError, BackupOptions, OpenOptions, SyncPolicy};
use ordna::{Change, Error, Options, Put, Write};
#[cfg(debug_assertions)]
use ordna_base::sync::schedule::Schedule;
use ordna_testkit::random::Random;

use super::super::disk::{BACKUP_THREAD, Fault, Model};
use super::super::steps::{Bytes, DIR, State, state_of};
#[cfg(debug_assertions)]
use super::plan::POINTS;
use super::plan::{End, FILL, Op, Session};

/// Delay before the first retry of a failed log, and the time that [`Op::Heal`] waits.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const HEAL: Duration = Duration::from_millis(20);
/// Time after which a write that has not returned counts as blocked.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum time that the log's thread is held at a point of the code.
#[cfg(debug_assertions)]
const LONGEST_HOLD: Duration = Duration::from_millis(20);
/// Role of the log's thread.
#[cfg(debug_assertions)]
const LOG: &str = "log";
/// Number of attempts of a backup on a working disk, because the first one may find a file that
/// could not be removed before.
const ATTEMPTS: u32 = 2;

/// Returns a value that no other write has.
fn value(number: u64) -> Vec<u8> {
    let mut value = format!("<{number}>").into_bytes();
    value.extend(std::iter::repeat_n(b'.', (number % 90) as usize));
    value
}

/// Returns the entries that have not expired.
fn visible(state: &State, now: u64) -> State {
    let lives = |deadline: &Option<u64>| deadline.is_none_or(|deadline| deadline > now);
    let entries = state.iter().filter(|(_, (_, deadline))| lives(deadline));
    entries.map(|(key, entry)| (key.clone(), entry.clone())).collect()
}

fn apply(op: &Op, state: &mut State) {
    match op {
        Op::Put(key, number, deadline) => {
            state.insert(key.clone().into_bytes(), (value(*number), *deadline));
        }
        Op::Remove(key) => drop(state.remove(key.as_bytes())),
        Op::Expire(key, deadline) => {
            if let Some(entry) = state.get_mut(key.as_bytes()) {
                entry.1 = *deadline;
            }
        }
        Op::Append(key, number) => {
            let entry = state.entry(key.clone().into_bytes()).or_default();
            entry.0.extend(value(*number));
        }
        Op::Splice(key, at, number) => {
            let (bytes, entry) = (value(*number), state.entry(key.clone().into_bytes()));
            let old = &mut entry.or_default().0;
            old.resize(old.len().max(at + bytes.len()), 0);
            old[*at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Op::Group(ops) => ops.iter().for_each(|op| apply(op, state)),
        Op::Later(op) | Op::Written(op) => apply(op, state),
        Op::Batch(writes) => {
            for (key, number) in writes {
                let key = key.clone().into_bytes();
                match number {
                    Some(number) => drop(state.insert(key, (value(*number), None))),
                    None => drop(state.remove(&key)),
                }
            }
        }
        Op::Fill(number) => {
            for key in 0..FILL {
                let key = format!("f{key:04}").into_bytes();
                state.insert(key, (number.to_string().into_bytes(), None));
            }
        }
        Op::RemoveRange(from, to) => {
            state.retain(|key, _| {
                key.as_slice() < from.as_bytes() || key.as_slice() >= to.as_bytes()
            });
        }
        Op::Flush => state.clear(),
        _ => {}
    }
}

/// Runs a write.
fn write(op: &Op, store: &Bytes) -> Result<(), Error> {
    match op {
        Op::Put(key, number, expires_at) => {
            let value = value(*number);
            let put = Put { value: value.as_slice(), expires_at: *expires_at };
            store.modify_entry(key.as_bytes(), |_| Change::Put(put))
        }
        Op::Remove(key) => store.modify_entry(key.as_bytes(), |_| Change::<Put<&[u8]>>::Remove),
        Op::Expire(key, deadline) => store.set_expiry(key.as_bytes(), *deadline).map(drop),
        Op::Append(key, number) => store.append(key.as_bytes(), &value(*number)).map(drop),
        Op::Splice(key, at, number) => {
            store.splice(key.as_bytes(), |_| Some((*at, value(*number)))).map(drop)
        }
        Op::Batch(writes) => {
            let values: Vec<_> =
                writes.iter().map(|(key, number)| (key, number.map(value))).collect();
            let write =
                |(key, value): &'_ (&String, Option<Vec<u8>>)| (key.to_string(), value.clone());
            let owned: Vec<_> = values.iter().map(write).collect();
            let writes: Vec<_> = owned
                .iter()
                .map(|(key, value)| match value {
                    Some(value) => Write::put(key.as_bytes(), value.as_slice()),
                    None => Write::Remove(key.as_bytes()),
                })
                .collect();
            store.write_batch(&writes)
        }
        Op::Fill(number) => {
            let keys: Vec<_> = (0..FILL).map(|key| format!("f{key:04}")).collect();
            let value = number.to_string();
            let put = |key: &'_ String| (key.clone(), value.clone());
            let owned: Vec<_> = keys.iter().map(put).collect();
            let puts =
                owned.iter().map(|(key, value)| Write::put(key.as_bytes(), value.as_bytes()));
            store.write_batch(&puts.collect::<Vec<_>>())
        }
        Op::RemoveRange(from, to) => {
            let bounds = (Bound::Included(from.as_bytes()), Bound::Excluded(to.as_bytes()));
            store.remove_range(bounds).map(|_| ())
        }
        _ => Ok(()),
    }
}

/// Waits until everything logged so far is written or, if `durable` is set, durable.
fn wait(store: &Bytes, durable: bool) -> Result<(), Error> {
    let began = Instant::now();
    let (position, mut context) = (store.log_position(), Context::from_waker(Waker::noop()));
    loop {
        let polled = if durable {
            store.poll_durable(position, &mut context)
        } else {
            store.poll_flushed(position, &mut context)
        };
        match polled {
            Poll::Ready(done) => return done,
            Poll::Pending if began.elapsed() > PATIENCE => {
                panic!("a write is not answered within {PATIENCE:?}")
            }
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// Gives the log time to recover.
fn heal(store: &Bytes) {
    let began = Instant::now();
    while store.check_log().is_err() && began.elapsed() < HEAL {
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Returns the number of failures of the log so far.
fn failures(store: &Bytes) -> u64 {
    store.durability().map_or(0, |told| told.failures)
}

/// Returns whether the newest segment of the log has no mark.
fn is_newest_unmarked(disk: &Model) -> bool {
    let newest = |prefix: &str| -> Option<u64> {
        let number =
            |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix(prefix)?.parse().ok();
        disk.files().iter().filter_map(number).max()
    };
    newest("log-") > newest("newest-")
}

/// The threads and the disk of a session.
struct World {
    disk: Model,
    #[cfg(debug_assertions)]
    schedule: Schedule,
}

impl World {
    fn new(disk: Model) -> Self {
        Self {
            disk,
            #[cfg(debug_assertions)]
            schedule: Schedule::new(),
        }
    }

    /// Opens a store whose log's thread stops where [`Op::HoldLog`] says.
    fn open(&self, options: OpenOptions) -> Result<Bytes, BackupError> {
        #[cfg(debug_assertions)]
        return self.schedule.enroll(LOG, || Bytes::open(DIR, options));
        #[cfg(not(debug_assertions))]
        Bytes::open(DIR, options)
    }

    /// Lets the log's thread continue.
    fn release_log(&self) {
        self.disk.resume_log();
        #[cfg(debug_assertions)]
        for point in POINTS {
            self.schedule.release(LOG, point);
        }
    }

    /// Runs an operation that concerns the disk or the log's thread. Returns `false` for other
    /// operations.
    fn run(&self, op: &Op) -> bool {
        match op {
            Op::Full(bytes) => self.disk.set_free(*bytes),
            Op::FullFor(bytes, operations) => self.disk.set_free_for(*bytes, *operations),
            Op::Room => self.disk.set_free(usize::MAX),
            Op::Fail(kind, number) => self.disk.fail(kind, *number),
            Op::FailAfter(kind, number) => self.disk.fail_after(kind, *number),
            Op::PowerCut(number) => drop(self.disk.clone().fault(*number, Fault::PowerCut)),
            Op::PauseLog(number) => self.disk.pause_log(*number),
            #[cfg(debug_assertions)]
            Op::HoldLog(point) => {
                self.schedule.hold_at_most(LOG, point, LONGEST_HOLD);
                for other in POINTS.iter().filter(|other| *other != point) {
                    self.schedule.release(LOG, other);
                }
            }
            #[cfg(not(debug_assertions))]
            Op::HoldLog(_) => {}
            Op::ReleaseLog => self.release_log(),
            Op::Wait(micros) => std::thread::sleep(Duration::from_micros(*micros)),
            _ => return false,
        }
        true
    }
}

/// A backup that runs in the background.
struct Running {
    thread: JoinHandle<Result<(), BackupError>>,
    /// Number of the state when the backup began.
    from: usize,
    /// Whether the backup may fail, because the store was replaced or another backup was faster.
    may_fail: bool,
}

/// The history up to now.
pub struct Life {
    pub disk: Model,
    pub now: Arc<AtomicU64>,
    /// All states so far, in order. The last one is in memory.
    pub states: Vec<State>,
    /// Number, for each state, of the state that a block of the log proves durable if it contains
    /// the former.
    pub proofs: Vec<usize>,
    /// Numbers of the oldest states that may be found after an exit, and after a power failure.
    acknowledged: usize,
    durable: usize,
    /// Number of the oldest state that may be found now.
    pub lower: usize,
    /// Number of failures of the log seen in this session.
    failures: u64,
    /// Positions of the log in this session, with the numbers of the states there.
    positions: Vec<(u64, usize)>,
    /// Whether a segment may have no mark, because the operation that creates it failed.
    pub lacks_a_mark: bool,
}

impl Life {
    pub fn new() -> Self {
        Self {
            disk: Model::new().shares(),
            now: Arc::new(AtomicU64::new(1000)),
            states: vec![State::new()],
            proofs: vec![0],
            acknowledged: 0,
            durable: 0,
            lower: 0,
            failures: 0,
            positions: Vec::new(),
            lacks_a_mark: false,
        }
    }

    /// Creates a history that begins with this state.
    pub fn with(&self, disk: Model, state: State) -> Self {
        let now = Arc::new(AtomicU64::new(self.now()));
        Self { disk, now, states: vec![state], ..Self::new() }
    }

    fn store_options(&self) -> Options {
        let now = Arc::clone(&self.now);
        Options::new().clock(move || now.load(Ordering::SeqCst)).background_collector(false)
    }

    pub fn options(&self, disk: &Model, sync: SyncPolicy) -> OpenOptions {
        let storage = Arc::new(disk.clone());
        // In some sessions, one checkpoint follows the other.
        let after = [0, 1 << 8, 1 << 12, 64 << 20][self.states.len() % 4];
        let opened = OpenOptions::new().storage(storage).sync(sync).checkpoint_after(after);
        // In some sessions, the tail is full most of the time.
        let opened = opened.tail_bytes([100, 400, 1 << 12][self.states.len() % 3]);
        opened.store(self.store_options())
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    fn last(&self) -> usize {
        self.states.len() - 1
    }

    /// Returns the number of the newest state, from `lower` on, that equals `found`.
    pub fn find(&self, found: &State, lower: usize) -> Option<usize> {
        let now = self.now();
        (lower..self.states.len()).rev().find(|at| visible(&self.states[*at], now) == *found)
    }

    /// Returns the number of the oldest state, from `lower` on, that equals the state `at`.
    pub fn first_like(&self, at: usize, lower: usize) -> usize {
        let (now, state) = (self.now(), visible(&self.states[at], self.now()));
        let mut all = lower..=at;
        all.find(|other| visible(&self.states[*other], now) == state).unwrap_or(at)
    }

    /// Describes a state that was not expected.
    pub fn describe(&self, found: &State, lower: usize) -> String {
        let last = self.last();
        match self.find(found, 0) {
            Some(at) => {
                format!("state {at} was found, not one of {lower}..={last}: writes are lost")
            }
            None => {
                let shown = |state: &State| {
                    let entry = |(key, (value, deadline)): (&Vec<u8>, &(Vec<u8>, Option<u64>))| {
                        let value = &value[..value.len().min(24)];
                        format!("{}={} {deadline:?}", key.escape_ascii(), value.escape_ascii())
                    };
                    state.iter().map(entry).collect::<Vec<_>>().join(", ")
                };
                let newest = visible(&self.states[last], self.now());
                format!(
                    "a state was found that never was: {{{}}}; the newest of {lower}..={last} is {{{}}}",
                    shown(found),
                    shown(&newest)
                )
            }
        }
    }

    /// Adds the state after a write, which may not be acknowledged.
    fn push(&mut self, state: State, proof: usize) {
        self.states.push(state);
        self.proofs.push(proof);
    }

    /// Reads from the store how much is durable.
    fn look(&mut self, store: &Bytes) {
        let told = store.durability();
        let (synced, failures) = told.map_or((0, 0), |told| (told.synced, told.failures));
        if failures > self.failures {
            // The records of these writes may never reach a block.
            self.proofs[self.acknowledged + 1..].fill(0);
            self.failures = failures;
        }
        let known = self.positions.iter().rev().find(|(position, _)| *position <= synced);
        self.durable = self.durable.max(known.map_or(0, |(_, state)| *state));
    }

    /// Opens the directory, runs the operations, and ends the session.
    pub fn session(&mut self, session: &Session) -> Result<(), String> {
        let world = World::new(self.disk.clone());
        let disk = world.disk.clone();
        for (number, fault) in &session.faults {
            let _ = disk.clone().fault(*number, *fault);
        }
        let options = self.options(&disk, session.sync).retry_after(FIRST_RETRY);
        let options = options.segment_bytes(session.segment_bytes).reserve(session.reserve);
        let options = if session.waits { options } else { options.acknowledge_later() };
        let store = match world.open(options) {
            Ok(store) => store,
            Err(_) if disk.has_failed() => {
                self.after(&disk, session.end);
                return Ok(());
            }
            Err(error) => return Err(format!("the start is refused: {error}")),
        };
        let found = state_of(&store);
        let Some(at) = self.find(&found, self.lower) else {
            return Err(format!("after a start: {}", self.describe(&found, self.lower)));
        };
        self.states.truncate(at + 1);
        self.proofs.truncate(at + 1);
        // Writes that changed nothing may be lost.
        let first = self.first_like(at, self.lower);
        self.proofs[first + 1..].fill(0);
        (self.acknowledged, self.lower) = (at, at);
        self.durable = self.durable.min(at);
        self.failures = 0;
        self.positions = vec![(store.log_position(), at)];
        self.look(&store);
        let mut store = Arc::new(store);
        let mut running = None;
        for (number, op) in session.ops.iter().enumerate() {
            if disk.is_off() {
                break;
            }
            let done = self.run(op, &mut store, &world, session, &mut running);
            done.map_err(|error| format!("operation {number} ({op:?}): {error}"))?;
        }
        self.look(&store);
        match session.end {
            End::Kill | End::PowerFailure(_) => {
                self.after(&disk, session.end);
                world.release_log();
                disk.resume();
                if let Some(running) = running {
                    let _ = running.thread.join();
                }
            }
            End::Close | End::CloseAndPowerFailure(_) => {
                world.release_log();
                self.join(&disk, running)?;
                if store.close_log().is_ok() {
                    (self.durable, self.acknowledged) = (self.last(), self.last());
                }
                drop(store);
                self.after(&disk, session.end);
            }
        }
        Ok(())
    }

    /// Returns the disk after the end of the session.
    fn after(&mut self, disk: &Model, end: End) {
        let hits_a_mark = |hit: String| {
            hit.contains("newest-") || hit.contains("list") || hit.contains("sync_dir")
        };
        self.lacks_a_mark |= disk.hits().into_iter().any(hits_a_mark);
        // A retry acknowledges the records in its segment before it creates the segment's mark.
        self.lacks_a_mark |= self.failures > 0 && is_newest_unmarked(disk);
        match end {
            End::Kill | End::Close => {
                self.lower = self.lower.max(self.acknowledged);
                self.disk = disk.after_exit();
            }
            End::PowerFailure(seed) | End::CloseAndPowerFailure(seed) => {
                self.lower = self.durable;
                self.acknowledged = self.durable;
                self.disk = disk.after_power_cut(&mut Random::new(seed));
            }
        }
    }

    /// Waits for the backup in the background.
    fn join(&mut self, disk: &Model, running: Option<Running>) -> Result<(), String> {
        let Some(Running { thread, from, may_fail }) = running else { return Ok(()) };
        disk.resume();
        let done = thread.join().map_err(|_| "the backup's thread panicked".to_owned())?;
        match done {
            Ok(()) => {
                self.durable = self.durable.max(from);
                self.acknowledged = self.acknowledged.max(from);
                Ok(())
            }
            Err(_) if may_fail || disk.has_failed() => Ok(()),
            Err(error) => Err(format!("the backup failed: {error}")),
        }
    }

    fn run(
        &mut self,
        op: &Op,
        store: &mut Arc<Bytes>,
        world: &World,
        session: &Session,
        running: &mut Option<Running>,
    ) -> Result<(), String> {
        let disk = &world.disk;
        if world.run(op) {
            return Ok(());
        }
        if matches!(op, Op::Sync | Op::Backup(..) | Op::BeginBackup(..) | Op::Heal | Op::Recover) {
            world.release_log();
        }
        match op {
            Op::Tick(by) => drop(self.now.fetch_add(*by, Ordering::SeqCst)),
            Op::Heal => heal(store),
            Op::Recover => self.recover(store, world, running)?,
            Op::Sync => match store.sync_log() {
                Ok(()) => self.look(store),
                Err(_) if disk.has_failed() => {}
                Err(error) => return Err(error.to_string()),
            },
            Op::Backup(mode, keep) => {
                let options = BackupOptions::new().workers(2).mode(*mode).keep(*keep);
                match store.backup(&options) {
                    Ok(_) => {
                        if let Some(running) = running {
                            running.may_fail = true;
                        }
                        (self.durable, self.acknowledged) = (self.last(), self.last());
                    }
                    Err(BackupError::Busy) if running.is_some() => {}
                    Err(_) if disk.has_failed() => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            Op::BeginBackup(mode, keep, stop) => {
                if running.is_some() {
                    return Ok(());
                }
                disk.pause_backup(*stop);
                let handle = Arc::clone(store);
                let options = BackupOptions::new().workers(1).mode(*mode).keep(*keep);
                let thread = std::thread::Builder::new()
                    .name(BACKUP_THREAD.to_owned())
                    .spawn(move || handle.backup(&options).map(drop))
                    .unwrap();
                disk.wait_paused(|| thread.is_finished());
                *running = Some(Running { thread, from: self.last(), may_fail: false });
            }
            Op::EndBackup => self.join(disk, running.take())?,
            Op::Flush => self.flush(store, world, session, running)?,
            _ => self.write(op, store, world, session, running)?,
        }
        Ok(())
    }

    /// Ends all faults. Afterwards the log must work and contain everything that is in memory.
    fn recover(
        &mut self,
        store: &Bytes,
        world: &World,
        running: &mut Option<Running>,
    ) -> Result<(), String> {
        self.join(&world.disk, running.take())?;
        world.disk.calm();
        if world.disk.is_off() {
            return Ok(());
        }
        let mut attempts = 0;
        loop {
            heal(store);
            // Also waits for the work of the log's thread.
            let Err(error) = store.sync_log() else { break };
            if attempts == ATTEMPTS {
                return Err(format!("the log does not work again: {error}"));
            }
            attempts += 1;
            if let Err(error) = store.backup(&BackupOptions::new())
                && attempts == ATTEMPTS
            {
                return Err(format!("no backup on a disk that works: {error}"));
            }
        }
        (self.durable, self.acknowledged) = (self.last(), self.last());
        Ok(())
    }

    /// Returns the last state, without expired entries.
    fn current(&self) -> State {
        visible(&self.states[self.last()], self.now())
    }

    /// Runs operations as one group. Returns the successor as well, if they created one.
    fn group(
        &self,
        ops: &[Op],
        store: &Bytes,
        world: &World,
    ) -> (Result<(), Error>, Option<Bytes>) {
        let mut next: Option<Bytes> = None;
        let done = store.log_group(|| {
            for op in ops {
                let current = next.as_ref().unwrap_or(store);
                match op {
                    Op::Put(key, number, _) => {
                        drop(current.insert(key.as_bytes(), &value(*number)));
                    }
                    Op::Remove(key) => drop(current.remove(key.as_bytes())),
                    Op::Flush => next = current.successor(self.store_options()).ok(),
                    disk => drop(world.run(disk)),
                }
            }
        });
        (done, next)
    }

    fn write(
        &mut self,
        op: &Op,
        store: &mut Arc<Bytes>,
        world: &World,
        session: &Session,
        running: &mut Option<Running>,
    ) -> Result<(), String> {
        self.look(store);
        let disk = &world.disk;
        let (before, begin, proof) = (self.current(), store.log_position(), self.durable);
        let mut expected = before.clone();
        apply(op, &mut expected);
        let is_always = session.sync == SyncPolicy::Always;
        // Whether the write is waited for, and whether until it is durable.
        let (op, is_waited_for, is_durable) = match op {
            Op::Later(op) => (&**op, false, false),
            Op::Written(op) => (&**op, true, false),
            op => (op, true, is_always),
        };
        let (refused, failed_before) = (store.check_log().is_err(), failures(store));
        let mut done = match op {
            Op::Group(ops) => {
                let (done, next) = self.group(ops, store, world);
                if let Some(next) = next {
                    *store = Arc::new(next);
                    running.iter_mut().for_each(|running| running.may_fail = true);
                }
                done
            }
            op => write(op, store),
        };
        let memory = state_of(store);
        if done.is_ok() && memory != visible(&expected, self.now()) {
            if matches!(op, Op::RemoveRange(..)) && memory == before && disk.has_failed() {
                // The operation was refused, but cannot report this.
                return Ok(());
            }
            return Err("the write was acknowledged, and memory has another state".to_owned());
        }
        let has_waited = is_always && session.waits;
        if done.is_ok() && is_waited_for && !has_waited {
            if is_durable {
                world.release_log();
            }
            done = wait(store, is_durable);
        }
        let position = store.log_position();
        let proof = if position > begin { proof } else { 0 };
        match done {
            Ok(()) => {
                self.push(expected, proof);
                if is_waited_for || has_waited {
                    self.acknowledged = self.last();
                }
                self.positions.push((position, self.last()));
                self.look(store);
            }
            Err(_) if !disk.has_failed() => {
                return Err("the write is refused without a reason".to_owned());
            }
            Err(_) if memory == before => {}
            // The log may have worked again for a short time.
            Err(_) if refused && failures(store) == failed_before => {
                return Err("the write was refused, and changed the memory".to_owned());
            }
            Err(_) if memory == visible(&expected, self.now()) => self.push(expected, 0),
            Err(error) => return Err(format!("a part of the write is in memory: {error}")),
        }
        Ok(())
    }

    /// Replaces the store as the server does: the log gets a record, and a successor takes over.
    fn flush(
        &mut self,
        store: &mut Arc<Bytes>,
        world: &World,
        session: &Session,
        running: &mut Option<Running>,
    ) -> Result<(), String> {
        self.look(store);
        let (disk, proof) = (&world.disk, self.durable);
        match store.successor(self.store_options()) {
            Ok(successor) => {
                *store = Arc::new(successor);
                running.iter_mut().for_each(|running| running.may_fail = true);
                self.push(State::new(), proof);
                world.release_log();
                match wait(store, session.sync == SyncPolicy::Always) {
                    Ok(()) => {
                        self.acknowledged = self.last();
                        self.positions.push((store.log_position(), self.last()));
                        self.look(store);
                    }
                    Err(_) if disk.has_failed() => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            Err(_) if disk.has_failed() => {
                // The record may be in the log, but memory has the old state.
                let old = self.states[self.last()].clone();
                self.push(State::new(), 0);
                self.push(old, 0);
            }
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }
}
