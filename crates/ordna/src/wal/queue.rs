//! The log's buffer and the files behind it: group commit.
//!
//! # Contract
//! All methods may be called by many threads at once. Positions count bytes of records since the
//! log began; they grow by what is appended and never repeat.
//!
//! # Protocol
//! `append` copies records into the youngest frame under a short lock and returns their end
//! position. `drain` writes the waiting frames as blocks, one drainer at a time; `sync` makes
//! durable what was written. So one fsync serves all records appended before it. Locks are taken in
//! the order writer, state; no lock is held while a file is synced, except the syncer's own.
//!
//! # Failure
//! The first failure of a write or sync is kept: later appends and waits answer it. A file is not
//! written or synced again after a failure, because the system may have dropped its dirty pages.
//! [`Queue::restart`] goes on in a new segment, once a backup holds everything that is in memory.
//!
//! # Invariants
//! 1. `synced` ≤ `written` ≤ `appended`, all monotonic while the queue has not failed.
//! 2. The records of one `append` lie in one frame, so in one block: a crash leaves all or none.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ordna_base::sync::{fault, notice, point};

use super::segments::Segments;
use crate::Error;
use crate::files::blocks::{BlockKind, BlockWriter, Frame};
use crate::files::error::BackupError;
use crate::files::storage::OutFile;

/// While the frames hold more than this many bytes, those that append write them: the log's thread
/// is too slow, or syncs. So memory is bounded, and a disk that is too slow holds up the writers.
const MOST_WAITING: usize = 8 << 20;
/// A frame is closed at this many bytes, so that a reader of the log needs little memory.
const FRAME: usize = 1 << 20;
/// Frames that are kept for reuse.
const SPARE: usize = 2;
/// Without `SyncPolicy::Always`, the log's thread collects records for so long before it writes.
const GATHER: Duration = Duration::from_millis(1);
/// Longest time that records wait for an fsync under [`SyncPolicy::EverySecond`].
const SECOND: Duration = Duration::from_secs(1);

/// When the log is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SyncPolicy {
    /// Before a write is acknowledged; one fsync serves all writes that wait.
    Always,
    /// Once a second. A crash of the machine may lose the last second, a crash of the process the
    /// last few milliseconds.
    #[default]
    EverySecond,
    /// When the system likes.
    Never,
}

enum Chunk {
    Data(Frame),
    /// The next segment.
    Rotate(BlockWriter),
}

#[derive(Default)]
struct QueueState {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    spare: Vec<Frame>,
    /// Tasks that wait for a position to be durable.
    wakers: Vec<(u64, Waker)>,
    /// Tasks that wait for a position to be written.
    writing: Vec<(u64, Waker)>,
    failed: Option<Arc<str>>,
    stopping: bool,
    /// The log's thread waits for `work`.
    asleep: bool,
}

struct Writer {
    blocks: BlockWriter,
    /// Former segments that are not known to be durable.
    former: Vec<Arc<dyn OutFile>>,
}

/// The log's buffer.
pub(crate) struct Queue {
    pub sync: SyncPolicy,
    /// Size at which a segment is full, and what creates the next one.
    rotation: Option<(u64, Arc<Segments>)>,
    state: Mutex<QueueState>,
    work: Condvar,
    /// `written` or `synced` has moved, or the queue has failed.
    moved: Condvar,
    writer: Mutex<Writer>,
    syncer: Mutex<()>,
    appended: AtomicU64,
    written: AtomicU64,
    synced: AtomicU64,
    has_failed: AtomicBool,
    /// fsyncs so far.
    pub syncs: AtomicU64,
    /// Records appended so far.
    pub records: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the wakers of positions up to this one.
fn reached(wakers: &mut Vec<(u64, Waker)>, position: u64) -> Vec<Waker> {
    wakers.extract_if(.., |(at, _)| *at <= position).map(|(_, waker)| waker).collect()
}

fn failed(reason: &Arc<str>) -> Error {
    Error::LogFailed { reason: Arc::clone(reason) }
}

impl Queue {
    /// Creates a queue that continues in a new segment, which has a position.
    pub fn new(blocks: BlockWriter, sync: SyncPolicy) -> Self {
        let position = blocks.position();
        Self {
            sync,
            rotation: None,
            state: Mutex::default(),
            work: Condvar::new(),
            moved: Condvar::new(),
            writer: Mutex::new(Writer { blocks, former: Vec::new() }),
            syncer: Mutex::new(()),
            appended: AtomicU64::new(position),
            written: AtomicU64::new(position),
            synced: AtomicU64::new(position),
            has_failed: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            records: AtomicU64::new(0),
        }
    }

    /// Makes the log's thread rotate to a new segment once one has this many bytes.
    pub fn rotate_at(self, bytes: u64, segments: Arc<Segments>) -> Self {
        Self { rotation: Some((bytes, segments)), ..self }
    }

    pub fn appended(&self) -> u64 {
        // Acquire: pairs with the release in `append`, so a caller that learns of a position from
        // another thread finds it here.
        self.appended.load(Ordering::Acquire)
    }

    pub fn synced(&self) -> u64 {
        // Acquire: pairs with the release in `sync`.
        self.synced.load(Ordering::Acquire)
    }

    /// The first failure.
    pub fn failure(&self) -> Option<Arc<str>> {
        lock(&self.state).failed.clone()
    }

    /// Refuses if the queue has failed.
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        // Acquire: pairs with the release in `fail`.
        if self.has_failed.load(Ordering::Acquire)
            && let Some(reason) = &lock(&self.state).failed
        {
            return Err(failed(reason));
        }
        Ok(())
    }

    /// Appends records as one group; returns the position behind them.
    pub fn append(&self, records: &[u8], count: u64) -> Result<u64, Error> {
        let mut state = lock(&self.state);
        while state.bytes > MOST_WAITING && state.failed.is_none() {
            drop(state);
            self.drain()?;
            state = lock(&self.state);
        }
        if let Some(reason) = &state.failed {
            return Err(failed(reason));
        }
        if !matches!(state.chunks.back(), Some(Chunk::Data(frame)) if frame.len() < FRAME) {
            let frame = state.spare.pop().unwrap_or_default();
            state.chunks.push_back(Chunk::Data(frame));
        }
        if let Some(Chunk::Data(frame)) = state.chunks.back_mut() {
            frame.extend(records, count);
        }
        state.bytes += records.len();
        self.records.fetch_add(count, Ordering::Relaxed);
        let position = self.appended.load(Ordering::Relaxed) + records.len() as u64;
        debug_assert!(self.written.load(Ordering::Relaxed) <= position, "written before appended");
        // Under the lock, so positions are in the order of the records.
        self.appended.store(position, Ordering::Release);
        if mem::take(&mut state.asleep) {
            self.work.notify_one();
        }
        Ok(position)
    }

    /// Has everything appended from now on written to another segment. If the queue has failed, the
    /// segment is returned.
    pub fn rotate(&self, mut segment: BlockWriter) -> Option<BlockWriter> {
        let mut state = lock(&self.state);
        if state.failed.is_some() {
            return Some(segment);
        }
        segment.begin_at(self.appended.load(Ordering::Relaxed));
        state.chunks.push_back(Chunk::Rotate(segment));
        if mem::take(&mut state.asleep) {
            self.work.notify_one();
        }
        None
    }

    /// Writes all frames that wait; returns the position up to which is written.
    pub fn drain(&self) -> Result<u64, Error> {
        self.drain_with(lock(&self.writer))
    }

    fn drain_with(&self, mut writer: MutexGuard<'_, Writer>) -> Result<u64, Error> {
        loop {
            let written = self.written.load(Ordering::Acquire);
            let (chunks, ready) = {
                let mut state = lock(&self.state);
                if let Some(reason) = &state.failed {
                    return Err(failed(reason));
                }
                state.bytes = 0;
                if state.chunks.is_empty() {
                    // Before the state: records that come from now on find no writer at work.
                    drop(writer);
                    let ready = reached(&mut state.writing, written);
                    drop(state);
                    ready.into_iter().for_each(Waker::wake);
                    return Ok(written);
                }
                (mem::take(&mut state.chunks), reached(&mut state.writing, written))
            };
            ready.into_iter().for_each(Waker::wake);
            for chunk in chunks {
                let done = self.write(&mut writer, chunk);
                done.map_err(|error| self.fail(&error))?;
            }
            self.moved.notify_all();
        }
    }

    fn write(&self, writer: &mut Writer, chunk: Chunk) -> Result<(), BackupError> {
        let synced = self.synced();
        match chunk {
            Chunk::Data(mut frame) => {
                let end = self.written.load(Ordering::Relaxed) + frame.len() as u64;
                writer.blocks.data(&mut frame, synced)?;
                // Release: pairs with the acquire in `drain` and `sync`.
                self.written.store(end, Ordering::Release);
                frame.clear();
                if frame.records().capacity() <= 2 * FRAME {
                    let mut state = lock(&self.state);
                    if state.spare.len() < SPARE {
                        state.spare.push(frame);
                    }
                }
            }
            Chunk::Rotate(mut next) => {
                writer.blocks.finish(BlockKind::Continued, synced)?;
                writer.former.push(writer.blocks.file());
                next.start_at(next.position(), synced)?;
                writer.blocks = next;
            }
        }
        Ok(())
    }

    /// Makes durable what is written.
    pub fn sync(&self) -> Result<(), Error> {
        let _syncing = lock(&self.syncer);
        point("log.sync.begun");
        let (former, current, path, target) = {
            let mut writer = lock(&self.writer);
            let target = match fault!("faults.commit.counts_what_is_written") {
                true => self.appended(),
                false => self.written.load(Ordering::Acquire),
            };
            if target == self.synced() && writer.former.is_empty() {
                return self.check();
            }
            let path = writer.blocks.path().to_owned();
            (mem::take(&mut writer.former), writer.blocks.file(), path, target)
        };
        point("log.sync.targeted");
        // For tasks that found the writer taken just now. A failure is kept.
        let _ = self.drain();
        self.check()?;
        let former = if fault!("faults.commit.syncs_former") { Vec::new() } else { former };
        let mut files = former.iter().chain([&current]);
        let done = match fault!("faults.commit.syncs") {
            true => Ok(()),
            false => files.try_for_each(|file| file.sync()),
        };
        done.map_err(|error| self.fail(&BackupError::io(&path, "sync")(error)))?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let ready: Vec<Waker> = {
            let mut state = lock(&self.state);
            debug_assert!(self.synced() <= target && target <= self.appended());
            // Under the lock, so that a waiter that has just looked is in the list.
            self.synced.store(target, Ordering::Release);
            reached(&mut state.wakers, target)
        };
        self.moved.notify_all();
        ready.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Keeps the first failure and wakes all that wait.
    fn fail(&self, error: &BackupError) -> Error {
        let mut state = lock(&self.state);
        let reason = Arc::clone(state.failed.get_or_insert_with(|| error.to_string().into()));
        state.chunks.clear();
        state.bytes = 0;
        if fault!("faults.failure.is_kept") {
            state.failed = None;
        }
        self.has_failed.store(true, Ordering::Release);
        let mut wakers = mem::take(&mut state.wakers);
        wakers.append(&mut state.writing);
        drop(state);
        self.moved.notify_all();
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
        failed(&reason)
    }

    /// Goes on after a failure, in a new segment. The caller holds off appends, and a backup holds
    /// everything appended so far.
    pub fn restart(&self, mut segment: BlockWriter) {
        let _syncing = lock(&self.syncer);
        let mut writer = lock(&self.writer);
        let position = self.appended();
        segment.begin_at(position);
        *writer = Writer { blocks: segment, former: Vec::new() };
        let mut state = lock(&self.state);
        state.failed = None;
        self.written.store(position, Ordering::Release);
        self.synced.store(position, Ordering::Release);
        self.has_failed.store(false, Ordering::Release);
    }

    /// Waits until the position is durable.
    pub fn wait(&self, position: u64) -> Result<(), Error> {
        let mut state = lock(&self.state);
        loop {
            if self.synced() >= position {
                return Ok(());
            }
            if let Some(reason) = &state.failed {
                return Err(failed(reason));
            }
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// As [`wait`](Self::wait), for a task.
    pub fn poll(&self, position: u64, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.synced() >= position {
            return Poll::Ready(Ok(()));
        }
        self.register(position, context, || self.synced() >= position, |state| &mut state.wakers)
    }

    /// Adds the task to a list of wakers, unless its condition holds by now.
    fn register(
        &self,
        position: u64,
        context: &Context<'_>,
        is_reached: impl Fn() -> bool,
        wakers: fn(&mut QueueState) -> &mut Vec<(u64, Waker)>,
    ) -> Poll<Result<(), Error>> {
        let mut state = lock(&self.state);
        if is_reached() {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = &state.failed {
            return Poll::Ready(Err(failed(reason)));
        }
        wakers(&mut state).push((position, context.waker().clone()));
        Poll::Pending
    }

    /// Ready once the position is written. The task writes itself, unless another thread does so.
    pub fn poll_written(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let is_written = || self.written.load(Ordering::Acquire) >= position;
        if is_written() {
            return Poll::Ready(Ok(()));
        }
        let writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // The other thread looks for records once more: it unlocks the writer only when it
                // finds none, under the state's lock.
                return self.register(position, context, is_written, |state| &mut state.writing);
            }
        };
        Poll::Ready(self.drain_with(writer).map(|_| ()))
    }

    /// The log's thread: writes and syncs until [`stop`](Self::stop).
    pub fn run(&self) {
        let mut last_sync = Instant::now();
        loop {
            let stopping = self.sleep(last_sync);
            if !stopping && self.sync != SyncPolicy::Always {
                std::thread::sleep(GATHER);
            }
            let due = match self.sync {
                SyncPolicy::Always => true,
                SyncPolicy::EverySecond => last_sync.elapsed() >= SECOND,
                SyncPolicy::Never => false,
            };
            point("log.run.before_drain");
            // Failures are kept for the writers.
            let drained = self.drain();
            if drained.is_ok() && !stopping {
                self.rotate_full_segment();
            }
            if drained.is_ok() && (due || stopping) {
                let _ = self.sync();
                last_sync = Instant::now();
            }
            if stopping {
                return;
            }
        }
    }

    /// Begins a new segment if the present one is full.
    fn rotate_full_segment(&self) {
        let Some((most, segments)) = &self.rotation else { return };
        if lock(&self.writer).blocks.written() >= *most {
            segments.next(|segment| drop(self.rotate(segment)));
        }
    }

    /// Waits for work, or for the time of the next sync. Returns whether to stop.
    fn sleep(&self, last_sync: Instant) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.stopping {
                return true;
            }
            // Other threads may have written these records, or a sync that does not cover them.
            let unsynced = self.appended() > self.synced() && state.failed.is_none();
            let waited_for =
                notice!("faults.sleep.unsynced", unsynced) && self.sync == SyncPolicy::Always;
            if waited_for || !state.chunks.is_empty() && state.failed.is_none() {
                return false;
            }
            state.asleep = true;
            if self.sync == SyncPolicy::EverySecond && unsynced {
                let left = SECOND.saturating_sub(last_sync.elapsed());
                if left.is_zero() {
                    state.asleep = false;
                    return false;
                }
                let woken = self.work.wait_timeout(state, left);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.asleep = false;
        }
    }

    /// Has the log's thread write and sync what waits, and end.
    pub fn stop(&self) {
        lock(&self.state).stopping = true;
        self.work.notify_all();
    }

    /// Ends the segment, durably. Nothing is appended any more.
    pub fn close(&self) -> Result<(), Error> {
        self.drain()?;
        self.sync()?;
        let mut writer = lock(&self.writer);
        let synced = self.synced();
        let ended = writer.blocks.finish(BlockKind::End, synced);
        ended.and_then(|()| writer.blocks.sync()).map_err(|error| self.fail(&error))?;
        lock(&self.state).failed.get_or_insert_with(|| "the log is closed".into());
        self.has_failed.store(true, Ordering::Release);
        Ok(())
    }
}
