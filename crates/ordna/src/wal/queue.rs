//! The log's buffer and its files: group commit.
//!
//! # Contract
//! All methods may be called concurrently by many threads. Positions count bytes of records since
//! the log began; they grow by what is appended and are never reused.
//!
//! # Protocol
//! `append` copies records into the youngest frame under a short lock and returns their end
//! position. It also copies them into the tail (module `tail`), so that a killed process loses none
//! of them. `drain` writes the waiting frames as blocks, one drainer at a time; `sync` makes the
//! written blocks durable. So one fsync serves all records appended before it. The log's thread
//! does both, or one of the threads that wait for their records (module `waiting`). The lock order
//! is writer, state. No lock is held while a file is synced, except the syncer's own.
//!
//! # Failure
//! The first failure of a write or sync is kept: later appends and waits return it. A file is not
//! written or synced again after a failure, because the system may have dropped its dirty pages.
//! There are two ways to recover:
//!
//! - *Retry.* A write has failed, usually because the disk is full. All records are in files that
//!   can be synced, or still in the frames. The log's thread gives up reserved disk space and
//!   writes the frames to a new segment, which it retries with increasing delays. Afterwards writes
//!   succeed again.
//! - *Backup.* A sync has failed, so records may be lost that are no longer in a frame.
//!   [`Queue::restart`] continues in a new segment when a backup holds everything in memory. This
//!   is also necessary if the frames do not lead to the state in memory: a `clear` failed, a write
//!   panicked, or a backup has already named the next segment.
//!
//! # Invariants
//! 1. `synced` ≤ `written` ≤ `appended`, all monotonic while the queue has not failed.
//! 2. The records of one `append` are in one frame, and so in one block: after a crash, all or none
//!    are present.

use std::collections::VecDeque;
use std::fmt::Display;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use ordna_base::sync::{check, fault, notice, point};

use super::checkpoints::Checkpoints;
use super::segments::{FRAME, Segments};
use super::sink::{LogGroup, LogSink};
use super::sync_policy::SyncPolicy;
use super::sync_times::SyncTimes;
use super::tail::Tail;
use super::waiting_threads::Waiting;
use crate::Error;
use crate::files::blocks::{BlockKind, BlockWriter, Frame};
use crate::files::error::BackupError;
use crate::files::storage::OutFile;

/// Number of bytes in the frames above which appending threads write them, because the log's thread
/// is too slow or is syncing. So memory is bounded, and a slow disk slows the writers down.
const MOST_WAITING: usize = 8 << 20;
/// Number of frames that are kept for reuse.
const SPARE: usize = 2;
/// Delay before a failed write is retried. It doubles with each failure.
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(100);

/// Error text of a closed log.
const CLOSED: &str = "the log is closed";

pub(super) enum Chunk {
    Data(Frame),
    /// The next segment, until it is taken.
    Rotate(Option<BlockWriter>),
}

#[derive(Default)]
pub(super) struct QueueState {
    pub(super) chunks: VecDeque<Chunk>,
    pub(super) bytes: usize,
    pub(super) spare: Vec<Frame>,
    /// A copy of the waiting records that outlives a killed process.
    pub(super) tail: Option<Tail>,
    /// Tasks that wait for a position to be durable.
    pub(super) wakers: Vec<(u64, Waker)>,
    /// Threads that wait for a position to be durable, see `waiting`.
    pub(super) waiting: Waiting,
    /// Tasks that wait for a position to be written.
    pub(super) writing: Vec<(u64, Waker)>,
    /// Tasks that wait for the end of a sync that takes too long.
    pub(super) stalled: Vec<(u64, Waker)>,
    pub(super) failed: Option<Arc<str>>,
    /// Whether a write has failed (not a sync), so that the chunks can be written to a new segment.
    pub(super) can_retry: bool,
    /// Position after the last record that removes all entries for a successor.
    pub(super) cleared: u64,
    pub(super) stopping: bool,
    /// Whether the log is being closed, so that nothing more is appended. Stays set.
    pub(super) closing: bool,
    /// Whether the log's thread waits for `work`.
    pub(super) asleep: bool,
}

impl QueueState {
    /// Returns the reason why nothing can be appended now.
    fn refusal(&self) -> Option<Error> {
        match &self.failed {
            Some(reason) => Some(failed(reason)),
            None if check!("faults.close.refuses_appends", !self.closing) => None,
            None => Some(failed(&CLOSED.into())),
        }
    }
}

pub(super) struct Writer {
    pub(super) blocks: BlockWriter,
    /// Former segments that may not be durable yet.
    pub(super) former: Vec<Arc<dyn OutFile>>,
}

/// The log's buffer.
pub(crate) struct Queue {
    /// The [`SyncPolicy`] as a number. Changed under the lock of `state`.
    pub(super) policy: AtomicU8,
    /// The second destination of the records. Set once, under the lock of `state`.
    pub(super) sink: OnceLock<Arc<dyn LogSink>>,
    /// Size at which a segment is full, and what creates the next one.
    pub(super) rotation: Option<(u64, Arc<Segments>)>,
    /// Delay before the first retry of a failed write.
    pub(super) first_retry: Duration,
    pub(super) state: Mutex<QueueState>,
    pub(super) work: Condvar,
    /// Notified when a sync has ended or the queue has failed.
    pub(super) moved: Condvar,
    /// Whether threads that wait for their records write and sync under `SyncPolicy::Always`.
    pub(super) waiters_sync: bool,
    pub(super) writer: Mutex<Writer>,
    pub(super) syncer: Mutex<()>,
    pub(super) appended: AtomicU64,
    pub(super) written: AtomicU64,
    /// Position up to which records are in the tail or were written when they were appended.
    pub(super) kept: AtomicU64,
    /// Whether the queue has a tail.
    pub(super) has_tail: bool,
    pub(super) synced: AtomicU64,
    pub(super) has_failed: AtomicBool,
    /// Number of bytes of segments written so far, including those that the opening has read.
    pub logged: AtomicU64,
    pub checkpoints: Arc<Checkpoints>,
    /// When the queue was created.
    pub(super) created: Instant,
    /// When the sync in progress began, in milliseconds after `created`; 0 if there is none.
    pub(super) syncing: AtomicU64,
    /// Number of failures so far.
    pub failures: AtomicU64,
    /// Number of fsyncs so far.
    pub syncs: AtomicU64,
    /// Durations of the fsyncs.
    pub sync_times: SyncTimes,
    /// Number of records appended so far.
    pub records: AtomicU64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes and returns the wakers of positions up to this one.
pub(super) fn reached(wakers: &mut Vec<(u64, Waker)>, position: u64) -> Vec<Waker> {
    wakers.extract_if(.., |(at, _)| *at <= position).map(|(_, waker)| waker).collect()
}

pub(super) fn failed(reason: &Arc<str>) -> Error {
    Error::LogFailed { reason: Arc::clone(reason) }
}

impl Queue {
    /// Creates a queue that continues in a new segment, which has a position.
    pub fn new(blocks: BlockWriter, sync: SyncPolicy) -> Self {
        let position = blocks.position();
        Self {
            policy: AtomicU8::new(sync as u8),
            sink: OnceLock::new(),
            rotation: None,
            first_retry: FIRST_RETRY,
            state: Mutex::default(),
            work: Condvar::new(),
            moved: Condvar::new(),
            waiters_sync: false,
            writer: Mutex::new(Writer { blocks, former: Vec::new() }),
            syncer: Mutex::new(()),
            appended: AtomicU64::new(position),
            written: AtomicU64::new(position),
            kept: AtomicU64::new(position),
            has_tail: false,
            synced: AtomicU64::new(position),
            has_failed: AtomicBool::new(false),
            logged: AtomicU64::new(0),
            checkpoints: Arc::default(),
            created: Instant::now(),
            syncing: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            sync_times: SyncTimes::default(),
            records: AtomicU64::new(0),
        }
    }

    /// Makes the log's thread rotate to a new segment when one has this many bytes.
    pub fn rotate_at(self, bytes: u64, segments: Arc<Segments>) -> Self {
        Self { rotation: Some((bytes, segments)), ..self }
    }

    /// Sets the file that receives a copy of the waiting records.
    pub fn tail(self, tail: Option<Tail>) -> Self {
        let has_tail = tail.is_some();
        lock(&self.state).tail = tail;
        Self { has_tail, ..self }
    }

    /// Returns whether appended records outlive the process after [`keep`](Self::keep) has
    /// returned.
    pub fn has_tail(&self) -> bool {
        self.has_tail
    }

    /// Sets the delay before the first retry of a failed write.
    pub fn retry_after(self, delay: Duration) -> Self {
        Self { first_retry: delay, ..self }
    }

    /// Lets threads that wait for their records write and sync under `SyncPolicy::Always`, which
    /// saves two switches between threads. Every thread that appends must then wait for its records
    /// or call [`wake_thread`](Self::wake_thread).
    pub fn waiters_sync(self, waiters_sync: bool) -> Self {
        Self { waiters_sync, ..self }
    }

    /// Returns the sync policy.
    pub fn policy(&self) -> SyncPolicy {
        // Relaxed: a thread that has appended after a change reads the new policy, because `append`
        // took the lock under which it was changed.
        SyncPolicy::from_number(self.policy.load(Ordering::Relaxed))
    }

    /// Changes the policy and makes everything durable that was appended under the former one,
    /// because threads may be waiting for that.
    pub fn set_policy(&self, policy: SyncPolicy) -> Result<(), Error> {
        let state = lock(&self.state);
        self.policy.store(policy as u8, Ordering::Relaxed);
        drop(state);
        // Otherwise the log's thread would sleep as long as the former policy allows.
        self.work.notify_all();
        self.drain()?;
        self.sync()
    }

    pub fn appended(&self) -> u64 {
        // Acquire: pairs with the release in `append`, so that a caller that learned of a position
        // from another thread finds it here.
        self.appended.load(Ordering::Acquire)
    }

    pub fn synced(&self) -> u64 {
        // Acquire: pairs with the release in `sync`.
        self.synced.load(Ordering::Acquire)
    }

    /// Returns the first failure.
    pub fn failure(&self) -> Option<Arc<str>> {
        lock(&self.state).failed.clone()
    }

    /// Returns an error if the queue has failed or is closing.
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        // Acquire: pairs with the release in `fail` and `close`.
        if self.has_failed.load(Ordering::Acquire)
            && let Some(refusal) = lock(&self.state).refusal()
        {
            return Err(refusal);
        }
        self.sink.get().map_or(Ok(()), |sink| sink.check())
    }

    /// Sets the destination of all later groups. Returns the position where the first of them
    /// begins, or `None` if there already is a destination.
    pub fn attach_sink(&self, sink: Arc<dyn LogSink>) -> Option<u64> {
        let _state = lock(&self.state);
        // Under the lock, so that no group is appended between the two.
        let position = self.appended.load(Ordering::Relaxed);
        self.sink.set(sink).ok()?;
        self.sink.get()?.begin(position);
        Some(position)
    }

    /// Waits until the sink has acknowledged everything before a position. Returns whether it has
    /// within the time. Without a sink there is nothing to wait for.
    pub fn wait_acknowledged(&self, position: u64, patience: Duration) -> bool {
        /// Interval at which the sink is asked.
        const INTERVAL: Duration = Duration::from_millis(10);
        let Some(sink) = self.sink.get() else { return true };
        let until = Instant::now() + patience;
        loop {
            match sink.poll_acknowledged(position, &mut Context::from_waker(Waker::noop())) {
                Poll::Ready(acknowledged) => return acknowledged.is_ok(),
                Poll::Pending if Instant::now() >= until => return false,
                Poll::Pending => std::thread::sleep(INTERVAL),
            }
        }
    }

    /// Reports to the sink that the memory holds a write that the sink will not receive.
    fn report_loss(&self, reason: &str) {
        if let Some(sink) = self.sink.get()
            && !fault!("sinks.loss.is_reported")
        {
            sink.lose(reason);
        }
    }

    /// Returns an error if the queue has failed. Records that were appended before it was closed
    /// are still written.
    pub(super) fn check_failure(&self) -> Result<(), Error> {
        lock(&self.state).failed.as_ref().map_or(Ok(()), |reason| Err(failed(reason)))
    }

    /// Appends the record of a `clear`, see [`append`](Self::append). If the queue fails before the
    /// record is durable, the caller keeps the entries, so the log must not continue after the
    /// record.
    pub fn append_clear(&self, records: &[u8], count: u64) -> Result<u64, Error> {
        self.append_records(records, count, true)
    }

    /// Appends records as one group and returns the position after them.
    pub fn append(&self, records: &[u8], count: u64) -> Result<u64, Error> {
        self.append_records(records, count, false)
    }

    fn append_records(&self, records: &[u8], count: u64, clears: bool) -> Result<u64, Error> {
        let mut state = lock(&self.state);
        while state.bytes > MOST_WAITING && state.failed.is_none() {
            drop(state);
            // A failure ends the loop.
            let _ = self.drain();
            state = lock(&self.state);
        }
        let refused = state.refusal();
        if let Some(error) = &refused {
            state.can_retry &= !clears;
            // The caller has already changed the memory, so a retry writes these records, too.
            if !notice!("faults.retry.has_late_records", state.can_retry) {
                self.report_loss(&error.to_string());
                return Err(error.clone());
            }
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
        let start = self.appended.load(Ordering::Relaxed);
        let position = start + records.len() as u64;
        if let Some(tail) = &mut state.tail {
            // Acquire: pairs with the release in `write`.
            let written = self.written.load(Ordering::Acquire);
            // No thread acknowledges a write that is not durable.
            let is_synced = self.policy() == SyncPolicy::Always;
            if !is_synced && tail.append(start, records, count, self.synced()) {
                if tail.has_no_gap(written) {
                    // Release: pairs with the acquire in `is_kept`.
                    self.kept.store(position, Ordering::Release);
                }
            } else {
                tail.leave_out(position);
            }
        }
        debug_assert!(self.written.load(Ordering::Relaxed) <= position, "written before appended");
        if let Some(sink) = self.sink.get() {
            sink.take(LogGroup { start, records, count });
        }
        if clears {
            state.cleared = position;
        }
        // Stored under the lock, so that positions are in the order of the records.
        self.appended.store(position, Ordering::Release);
        if !self.waiters_lead() && mem::take(&mut state.asleep) {
            self.work.notify_one();
        }
        refused.map_or(Ok(position), Err)
    }

    /// Makes the log continue in another segment: everything appended from now on is written there.
    /// If the queue has failed or is closing, the segment is returned.
    pub fn rotate(&self, mut segment: BlockWriter) -> Option<BlockWriter> {
        let mut state = lock(&self.state);
        if state.refusal().is_some() {
            state.can_retry &= !fault!("faults.retry.outlives_a_rotation");
            return Some(segment);
        }
        segment.begin_at(self.appended.load(Ordering::Relaxed));
        if let Some(tail) = &mut state.tail {
            tail.continue_in(&segment);
        }
        state.chunks.push_back(Chunk::Rotate(Some(segment)));
        if mem::take(&mut state.asleep) {
            self.work.notify_one();
        }
        None
    }

    /// Writes all waiting frames and returns the position up to which records are written.
    pub fn drain(&self) -> Result<u64, Error> {
        self.drain_with(lock(&self.writer))
    }

    pub(super) fn drain_with(&self, mut writer: MutexGuard<'_, Writer>) -> Result<u64, Error> {
        loop {
            let written = self.written.load(Ordering::Acquire);
            let (chunks, ready) = {
                let mut state = lock(&self.state);
                if let Some(reason) = &state.failed {
                    return Err(failed(reason));
                }
                state.bytes = 0;
                if state.chunks.is_empty() {
                    // Released before the state, so that the threads that append next find no
                    // writer at work.
                    drop(writer);
                    let ready = reached(&mut state.writing, written);
                    drop(state);
                    ready.into_iter().for_each(Waker::wake);
                    return Ok(written);
                }
                if let Some(tail) = &mut state.tail {
                    // The chunks taken earlier are written, because this thread holds the writer.
                    tail.change_area(self.appended.load(Ordering::Relaxed));
                }
                (mem::take(&mut state.chunks), reached(&mut state.writing, written))
            };
            ready.into_iter().for_each(Waker::wake);
            let mut chunks = chunks.into_iter();
            while let Some(mut chunk) = chunks.next() {
                if let Err(error) = self.write(&mut writer, &mut chunk) {
                    let rest = [chunk].into_iter().chain(chunks).collect();
                    return Err(self.fail(&error, Some(rest)));
                }
            }
        }
    }

    /// Writes a chunk. After an error, the chunk is unchanged.
    pub(super) fn write(&self, writer: &mut Writer, chunk: &mut Chunk) -> Result<(), BackupError> {
        let synced = self.synced();
        match chunk {
            Chunk::Data(frame) => {
                let end = self.written.load(Ordering::Relaxed) + frame.len() as u64;
                let before = writer.blocks.written();
                writer.blocks.data(frame, synced)?;
                self.add_logged(writer.blocks.written() - before);
                // Release: pairs with the acquire in `drain` and `sync`.
                self.written.store(end, Ordering::Release);
                let mut frame = mem::take(frame);
                frame.clear();
                if frame.records().capacity() <= 2 * FRAME {
                    let mut state = lock(&self.state);
                    if state.spare.len() < SPARE {
                        state.spare.push(frame);
                    }
                }
            }
            Chunk::Rotate(next) => {
                writer.blocks.finish(BlockKind::Continued, synced)?;
                if let Some(mut next) = next.take() {
                    writer.former.push(writer.blocks.file());
                    next.start_at(next.position(), synced)?;
                    writer.blocks = next;
                }
            }
        }
        Ok(())
    }

    /// Counts bytes of the log that were written.
    pub fn add_logged(&self, bytes: u64) {
        let logged = self.logged.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.checkpoints.logged(logged);
    }

    /// Returns the size in bytes that the segments will have when everything appended so far is
    /// written. The caller excludes appends.
    pub fn logged_after_drain(&self) -> u64 {
        // Loaded before `logged`, so that a chunk that is being written is counted in one of the
        // two.
        let written = self.written.load(Ordering::Acquire);
        let waiting = match fault!("checkpoints.end.counts_waiting") {
            true => 0,
            false => self.appended().saturating_sub(written),
        };
        self.logged.load(Ordering::Relaxed) + waiting
    }

    /// Makes everything written so far durable.
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
                return self.check_failure();
            }
            let path = writer.blocks.path().to_owned();
            // The files stay in the list: if this sync ends early, a retry makes them durable.
            let former = match fault!("faults.sync.keeps_former_segments") {
                true => mem::take(&mut writer.former),
                false => writer.former.clone(),
            };
            (former, writer.blocks.file(), path, target)
        };
        point("log.sync.targeted");
        // For tasks that just found the writer taken. A failure is stored in the queue.
        let _ = self.drain();
        self.check_failure()?;
        let synced = if fault!("faults.commit.syncs_former") { &[] } else { former.as_slice() };
        let mut files = synced.iter().chain([&current]);
        let begin = Instant::now();
        self.syncing.store(self.now(), Ordering::Release);
        let done = match fault!("faults.commit.syncs") {
            true => Ok(()),
            false => files.try_for_each(|file| file.sync()),
        };
        self.syncing.store(0, Ordering::Release);
        self.sync_times.add(begin.elapsed());
        done.map_err(|error| self.fail(&BackupError::io(&path, "sync")(error), None))?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        if !former.is_empty() {
            // Only a holder of the syncer removes files, so they are still the first ones.
            let mut writer = lock(&self.writer);
            let synced = former.len().min(writer.former.len());
            writer.former.drain(..synced);
        }
        let (ready, threads) = {
            let mut state = lock(&self.state);
            debug_assert!(self.synced() <= target && target <= self.appended());
            // Under the lock, so that a waiter that has just checked the position is in the list.
            self.synced.store(target, Ordering::Release);
            let mut ready = reached(&mut state.wakers, target);
            ready.append(&mut reached(&mut state.stalled, u64::MAX));
            (ready, state.waiting.synced(target, begin.elapsed()))
        };
        self.moved.notify_all();
        threads.iter().for_each(Thread::unpark);
        ready.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Stores the first failure and wakes all waiting threads and tasks. `unwritten` has the chunks
    /// that could not be written. If it is `None`, records that were written may be lost.
    pub(super) fn fail(&self, error: &dyn Display, unwritten: Option<VecDeque<Chunk>>) -> Error {
        let mut state = lock(&self.state);
        let is_first = state.failed.is_none();
        self.failures.fetch_add(u64::from(is_first), Ordering::Relaxed);
        let reason = Arc::clone(state.failed.get_or_insert_with(|| error.to_string().into()));
        state.can_retry = false;
        if let Some(tail) = &mut state.tail {
            // A retry may need both areas.
            tail.pause();
        }
        if let Some(mut unwritten) = unwritten.filter(|_| is_first) {
            unwritten.append(&mut state.chunks);
            let is_data = |chunk: &Chunk| matches!(chunk, Chunk::Data(_));
            // A segment that was to follow has a number, which a backup may already name.
            let has_segment = !unwritten.iter().all(is_data);
            let is_whole = check!("faults.retry.clears", state.cleared <= self.synced());
            state.can_retry = !has_segment && is_whole;
            state.chunks = unwritten;
        }
        if !state.can_retry {
            state.chunks.clear();
        }
        state.bytes = 0;
        self.work.notify_one();
        if fault!("faults.failure.is_kept") {
            state.failed = None;
        }
        // The checkpoint may have filled the disk.
        self.checkpoints.cancel();
        self.has_failed.store(true, Ordering::Release);
        self.wake_all(state);
        failed(&reason)
    }

    /// Continues after a failure in a new segment, unless the log was closed. The caller excludes
    /// appends, and a backup holds everything appended so far.
    pub fn restart(&self, mut segment: BlockWriter) {
        let _syncing = lock(&self.syncer);
        let mut writer = lock(&self.writer);
        if notice!("faults.close.stays_closed", lock(&self.state).closing) {
            // The log's thread has ended, so nobody would write the segment.
            return;
        }
        let position = self.appended();
        segment.begin_at(position);
        let mut state = lock(&self.state);
        if let Some(tail) = &mut state.tail {
            tail.continue_in(&segment);
        }
        *writer = Writer { blocks: segment, former: Vec::new() };
        state.chunks.clear();
        self.accept(&mut state, position);
    }

    /// Writes everything appended so far, and rejects records until a backup holds everything in
    /// memory.
    pub fn require_backup(&self, reason: &str) {
        let _ = self.drain().and_then(|_| self.sync());
        self.report_loss(reason);
        self.fail(&reason, None);
    }

    /// Gives up retries until a backup holds everything in memory.
    pub fn give_up_retries(&self) {
        lock(&self.state).can_retry = false;
    }

    /// Ends a failure: everything up to `position` is durable.
    pub(super) fn accept(&self, state: &mut QueueState, position: u64) {
        state.failed = None;
        state.can_retry = false;
        self.written.store(position, Ordering::Release);
        self.synced.store(position, Ordering::Release);
        self.has_failed.store(false, Ordering::Release);
    }

    /// Returns the milliseconds since the queue was created, but never 0.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Ends the segment durably. Everything appended earlier is written, and later appends fail. A
    /// second call returns the same result.
    pub fn close(&self) -> Result<(), Error> {
        {
            let mut state = lock(&self.state);
            if state.failed.as_deref() == Some(CLOSED) {
                return Ok(());
            }
            // Set before the last drain and under the lock, so that the drain finds every record.
            state.closing = true;
            self.has_failed.store(true, Ordering::Release);
        }
        self.drain()?;
        self.sync()?;
        let mut writer = lock(&self.writer);
        let synced = self.synced();
        let ended = writer.blocks.finish(BlockKind::End, synced);
        ended.and_then(|()| writer.blocks.sync()).map_err(|error| self.fail(&error, None))?;
        if self.has_tail
            && let Some((_, segments)) = &self.rotation
        {
            segments.remove_tail();
        }
        let mut state = lock(&self.state);
        state.failed.get_or_insert_with(|| CLOSED.into());
        self.wake_all(state);
        Ok(())
    }

    /// Wakes all waiting threads and tasks, because nothing more is written.
    pub(super) fn wake_all(&self, mut state: MutexGuard<'_, QueueState>) {
        let mut wakers = mem::take(&mut state.wakers);
        wakers.append(&mut state.writing);
        wakers.append(&mut state.stalled);
        let threads = state.waiting.take_all();
        drop(state);
        self.moved.notify_all();
        threads.iter().for_each(Thread::unpark);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}
