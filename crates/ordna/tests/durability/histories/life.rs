//! Runs a history, and keeps what may be found after it.
//!
//! One thread writes, so the states of a history are a list. A crash leaves one of the list's end:
//! nothing that was acknowledged is lost when the process is killed, and nothing that was durable
//! when the power fails.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ordna::durability::{BackupError, BackupOptions, OpenOptions, SyncPolicy};
use ordna::{Change, Error, Options, OrderedIndex, Put, Write};
use ordna_testkit::random::Random;

use super::super::disk::{BACKUP_THREAD, Model};
use super::super::steps::{Bytes, DIR, State, state_of};
use super::plan::{End, FILL, Op, Session};

/// Time in which a log that failed has retried.
const HEAL: Duration = Duration::from_millis(250);

/// A value that no other write has.
fn value(number: u64) -> Vec<u8> {
    let mut value = format!("<{number}>").into_bytes();
    value.extend(std::iter::repeat_n(b'.', (number % 90) as usize));
    value
}

/// The entries that have not expired.
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
        Op::Batch(writes) | Op::Group(writes) => {
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
        Op::Group(writes) => {
            let work = || {
                for (key, number) in writes {
                    match number {
                        Some(number) => drop(store.insert(key.as_bytes(), &value(*number))),
                        None => drop(store.remove(key.as_bytes())),
                    }
                }
            };
            store.log_group(work)
        }
        Op::RemoveRange(from, to) => {
            store.check_log()?;
            let bounds = (Bound::Included(from.as_bytes()), Bound::Excluded(to.as_bytes()));
            store.remove_range(bounds.0, bounds.1);
            // It cannot report a failure itself.
            store.check_log()
        }
        _ => Ok(()),
    }
}

/// Waits until what is logged is written, or durable.
fn wait(store: &Bytes, durable: bool) -> Result<(), Error> {
    let (position, mut context) = (store.log_position(), Context::from_waker(Waker::noop()));
    loop {
        let polled = if durable {
            store.poll_durable(position, &mut context)
        } else {
            store.poll_flushed(position, &mut context)
        };
        match polled {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

/// Gives the log time to work again.
fn heal(store: &Bytes) {
    let began = Instant::now();
    while store.check_log().is_err() && began.elapsed() < HEAL {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A backup in the background.
struct Running {
    thread: JoinHandle<Result<(), BackupError>>,
    /// The state when it began.
    from: usize,
    /// Whether it may fail: the store was replaced, or another backup was faster.
    may_fail: bool,
}

/// A history so far.
pub struct Life {
    pub disk: Model,
    pub now: Arc<AtomicU64>,
    /// All states so far, in order; the last one is in memory.
    pub states: Vec<State>,
    /// For each state, the one that a block of the log proves durable if it has the state.
    pub proofs: Vec<usize>,
    /// The states that survive an exit begin here, and those that survive a power failure.
    acknowledged: usize,
    durable: usize,
    /// The states that may be found now begin here.
    pub lower: usize,
    /// Positions of the log in this session, and the states there.
    positions: Vec<(u64, usize)>,
    /// Whether a segment may have no mark, because the operation that makes one failed.
    pub lacks_a_mark: bool,
}

impl Life {
    pub fn new() -> Self {
        Self {
            disk: Model::new(),
            now: Arc::new(AtomicU64::new(1000)),
            states: vec![State::new()],
            proofs: vec![0],
            acknowledged: 0,
            durable: 0,
            lower: 0,
            positions: Vec::new(),
            lacks_a_mark: false,
        }
    }

    /// A history that begins with this state.
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
        OpenOptions::new().storage(storage).sync(sync).store(self.store_options())
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    fn last(&self) -> usize {
        self.states.len() - 1
    }

    /// The newest state like this one from `lower` on.
    pub fn find(&self, found: &State, lower: usize) -> Option<usize> {
        let now = self.now();
        (lower..self.states.len()).rev().find(|at| visible(&self.states[*at], now) == *found)
    }

    /// The oldest state from `lower` on that is like the one with this number.
    pub fn first_like(&self, at: usize, lower: usize) -> usize {
        let (now, state) = (self.now(), visible(&self.states[at], self.now()));
        let mut all = lower..=at;
        all.find(|other| visible(&self.states[*other], now) == state).unwrap_or(at)
    }

    /// What a state is that was not expected.
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

    /// Adds a state that a write made, acknowledged or not.
    fn push(&mut self, state: State, proof: usize) {
        self.states.push(state);
        self.proofs.push(proof);
    }

    /// What the store says is durable.
    fn look(&mut self, store: &Bytes) {
        let synced = store.durability().map_or(0, |told| told.synced);
        let known = self.positions.iter().rev().find(|(position, _)| *position <= synced);
        self.durable = self.durable.max(known.map_or(0, |(_, state)| *state));
    }

    /// Opens the directory, runs the operations, and ends.
    pub fn session(&mut self, session: &Session) -> Result<(), String> {
        let disk = self.disk.clone();
        if let Some((number, fault)) = session.fault {
            let _ = disk.clone().fault(number, fault);
        }
        let options = self.options(&disk, session.sync);
        let options = options.segment_bytes(session.segment_bytes).reserve(session.reserve);
        let store = match Bytes::open(DIR, options) {
            Ok(store) => store,
            Err(_) if disk.hit().is_some() || disk.was_full() => {
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
        self.positions = vec![(store.log_position(), at)];
        self.look(&store);
        let mut store = Arc::new(store);
        let mut running = None;
        for (number, op) in session.ops.iter().enumerate() {
            if disk.is_off() {
                break;
            }
            let done = self.run(op, &mut store, &disk, session.sync, &mut running);
            done.map_err(|error| format!("operation {number} ({op:?}): {error}"))?;
        }
        self.look(&store);
        match session.end {
            End::Kill | End::PowerFailure(_) => {
                self.after(&disk, session.end);
                disk.resume();
                if let Some(running) = running {
                    let _ = running.thread.join();
                }
            }
            End::Close | End::CloseAndPowerFailure(_) => {
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

    /// The disk after the end.
    fn after(&mut self, disk: &Model, end: End) {
        let hits_a_mark = |hit: String| {
            hit.contains("newest-") || hit.contains("list") || hit.contains("sync_dir")
        };
        self.lacks_a_mark |= disk.hit().is_some_and(hits_a_mark);
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
            Err(_) if may_fail || disk.hit().is_some() || disk.was_full() => Ok(()),
            Err(error) => Err(format!("the backup failed: {error}")),
        }
    }

    fn run(
        &mut self,
        op: &Op,
        store: &mut Arc<Bytes>,
        disk: &Model,
        sync: SyncPolicy,
        running: &mut Option<Running>,
    ) -> Result<(), String> {
        let excused = |disk: &Model| disk.hit().is_some() || disk.was_full();
        match op {
            Op::Tick(by) => drop(self.now.fetch_add(*by, Ordering::SeqCst)),
            Op::Full(bytes) => disk.set_free(*bytes),
            Op::Heal => heal(store),
            Op::Room => disk.set_free(usize::MAX),
            Op::Sync => match store.sync_log() {
                Ok(()) => self.look(store),
                Err(_) if excused(disk) => {}
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
                    Err(_) if excused(disk) => {}
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
            Op::Flush => self.flush(store, disk, sync, running)?,
            _ => self.write(op, store, disk, sync)?,
        }
        Ok(())
    }

    /// The last state, without what has expired.
    fn current(&self) -> State {
        visible(&self.states[self.last()], self.now())
    }

    fn write(
        &mut self,
        op: &Op,
        store: &Arc<Bytes>,
        disk: &Model,
        sync: SyncPolicy,
    ) -> Result<(), String> {
        self.look(store);
        let (before, begin, proof) = (self.current(), store.log_position(), self.durable);
        let mut expected = before.clone();
        apply(op, &mut expected);
        let refused = store.check_log().is_err();
        let mut done = write(op, store);
        let memory = state_of(store);
        if done.is_ok() && memory != visible(&expected, self.now()) {
            return Err("the write was acknowledged, and memory has another state".to_owned());
        }
        if done.is_ok() && sync != SyncPolicy::Always {
            done = wait(store, false);
        }
        let position = store.log_position();
        let proof = if position > begin { proof } else { 0 };
        match done {
            Ok(()) => {
                self.push(expected, proof);
                self.acknowledged = self.last();
                self.positions.push((position, self.last()));
                self.look(store);
            }
            Err(_) if !(disk.hit().is_some() || disk.was_full()) => {
                return Err("the write is refused without a reason".to_owned());
            }
            Err(_) if memory == before => {}
            Err(_) if refused => {
                return Err("the write was refused, and changed the memory".to_owned());
            }
            Err(_) if memory == visible(&expected, self.now()) => self.push(expected, 0),
            Err(error) => return Err(format!("a part of the write is in memory: {error}")),
        }
        Ok(())
    }

    /// As the server does it: the log has a record, and another store takes the place.
    fn flush(
        &mut self,
        store: &mut Arc<Bytes>,
        disk: &Model,
        sync: SyncPolicy,
        running: &mut Option<Running>,
    ) -> Result<(), String> {
        self.look(store);
        let proof = self.durable;
        match store.successor(self.store_options()) {
            Ok(successor) => {
                *store = Arc::new(successor);
                if let Some(running) = running {
                    running.may_fail = true;
                }
                self.push(State::new(), proof);
                match wait(store, sync == SyncPolicy::Always) {
                    Ok(()) => {
                        self.acknowledged = self.last();
                        self.positions.push((store.log_position(), self.last()));
                        self.look(store);
                    }
                    Err(_) if disk.hit().is_some() || disk.was_full() => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            Err(_) if disk.hit().is_some() || disk.was_full() => {
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
