//! When an opened store backs itself up, and how it gives way to backups that a caller makes.
//!
//! # Contract
//! All methods may be called by many threads at once. One thread takes checkpoints: it calls
//! [`Checkpoints::next`]. Writers of the log call [`Checkpoints::logged`], which is one load and
//! one branch while nothing is due.
//!
//! # Protocol
//! A caller's backup cancels the checkpoint in progress, waits for its end, and holds off others
//! until it is done itself. So it never fails because of a checkpoint. The end of the store does the
//! same.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ordna_base::sync::{Lock, fault};

use crate::files::progress::Progress;

thread_local! {
    /// Whether this thread works for a checkpoint, which waits for it.
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Notes that this thread works for a checkpoint, which waits for it.
pub(crate) fn mark_worker() {
    IS_WORKER.set(true);
}

/// No checkpoint is due, whatever is logged.
pub(crate) const NEVER: u64 = u64::MAX;
/// Delay after which a checkpoint that failed is tried again; it doubles with each failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Longest such delay.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// What the thread has to do.
#[derive(Debug)]
pub(crate) enum Checkpoint {
    /// Take a checkpoint, which ends early if the progress is cancelled.
    Take(Progress),
    /// The store ends.
    End,
}

/// When checkpoints are taken.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// Bytes of the log, counted as `Queue::logged` does, from which on a checkpoint is due.
    due_at: AtomicU64,
    state: Mutex<CheckpointState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CheckpointState {
    is_due: bool,
    /// The checkpoint in progress.
    running: Option<Progress>,
    /// Backups of callers that run or wait.
    callers: usize,
    ends: bool,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { due_at: AtomicU64::new(NEVER), state: Mutex::default(), changed: Condvar::new() }
    }
}

/// A checkpoint in progress, until it is dropped.
struct Running<'a>(&'a Checkpoints);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().running = None;
        self.0.changed.notify_all();
    }
}

/// A caller's backup, which runs alone until this is dropped.
pub(crate) struct CallersTurn<'a>(&'a Checkpoints);

impl Drop for CallersTurn<'_> {
    fn drop(&mut self) {
        self.0.lock().callers -= 1;
        self.0.changed.notify_all();
    }
}

impl Checkpoints {
    fn lock(&self) -> MutexGuard<'_, CheckpointState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, CheckpointState>) -> MutexGuard<'a, CheckpointState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a checkpoint due once this many bytes are logged, and none before.
    pub fn set_due_at(&self, due_at: u64, logged: u64) {
        {
            // Under the lock: a writer that reaches the former limit now must not make a checkpoint
            // due after this, which would replace a backup with metadata.
            let mut state = self.lock();
            state.is_due = false;
            self.due_at.store(due_at, Ordering::Relaxed);
        }
        self.logged(logged);
    }

    /// Starts a checkpoint if it is due, now that this many bytes are logged.
    #[inline]
    pub fn logged(&self, bytes: u64) {
        // Relaxed: a writer that finds an older limit is followed by others that do not.
        if bytes >= self.due_at.load(Ordering::Relaxed) {
            self.begin();
        }
    }

    #[cold]
    fn begin(&self) {
        let mut state = self.lock();
        if self.due_at.swap(NEVER, Ordering::Relaxed) != NEVER {
            state.is_due = true;
            self.changed.notify_all();
        }
    }

    /// Cancels the checkpoint in progress: the log needs the space.
    pub fn cancel(&self) {
        if let Some(running) = &self.lock().running {
            running.cancel();
        }
    }

    /// Waits until no checkpoint runs, and holds off others while the returned value lives.
    pub fn callers_turn(&self) -> CallersTurn<'_> {
        let mut state = self.lock();
        state.callers += 1;
        while let Some(running) = &state.running
            && !fault!("checkpoints.caller.waits")
        {
            running.cancel();
            state = self.wait(state);
        }
        CallersTurn(self)
    }

    /// Takes checkpoints with `take` as they are due; returns once the store ends. `take` returns
    /// whether the checkpoint succeeded. After a failure it is tried again with growing delays.
    pub fn run(&self, mut take: impl FnMut(Progress) -> bool) {
        let mut delay = Duration::ZERO;
        while let Checkpoint::Take(progress) = self.next(delay) {
            let running = Running(self);
            let is_done = take(progress);
            drop(running);
            delay = match is_done {
                true => Duration::ZERO,
                false => (delay * 2).clamp(FIRST_DELAY, LONGEST_DELAY),
            };
        }
    }

    /// Takes the last checkpoint, before the log is closed.
    pub fn last(&self, take: impl FnOnce(Progress)) {
        let progress = {
            let mut state = self.lock();
            if state.callers > 0 {
                return;
            }
            state.running.insert(Progress::default()).clone()
        };
        let _running = Running(self);
        take(progress);
    }

    /// Waits until a checkpoint is due and no caller's backup runs, for `delay` at least.
    fn next(&self, delay: Duration) -> Checkpoint {
        let began = Instant::now();
        let mut state = self.lock();
        loop {
            if state.ends {
                return Checkpoint::End;
            }
            let left = delay.saturating_sub(began.elapsed());
            if !state.is_due || state.callers > 0 {
                state = self.wait(state);
            } else if !left.is_zero() {
                let woken = self.changed.wait_timeout(state, left);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                let progress = Progress::default();
                state.running = Some(progress.clone());
                return Checkpoint::Take(progress);
            }
        }
    }

    /// Makes [`run`](Self::run) return, and cancels the checkpoint in progress.
    fn end(&self) {
        let mut state = self.lock();
        state.ends = true;
        if let Some(running) = &state.running
            && !fault!("checkpoints.end.cancels")
        {
            running.cancel();
        }
        self.changed.notify_all();
    }
}

/// The thread that takes checkpoints. It ends before the last store of the log is dropped.
pub(crate) struct CheckpointThread {
    checkpoints: std::sync::Arc<Checkpoints>,
    thread: Lock<Option<JoinHandle<()>>>,
}

impl CheckpointThread {
    pub fn new(checkpoints: std::sync::Arc<Checkpoints>, thread: JoinHandle<()>) -> Self {
        Self { checkpoints, thread: Lock::new(Some(thread)) }
    }

    /// Ends the thread and waits for that.
    pub fn end(&self) {
        self.checkpoints.end();
        let thread = self.thread.lock().take();
        // The caller's clock may drop the last store, on a thread of the checkpoint.
        let is_own = |it: &JoinHandle<()>| {
            IS_WORKER.get() || it.thread().id() == std::thread::current().id()
        };
        if let Some(thread) = thread.filter(|it| !is_own(it)) {
            // A panic of the caller's clock was reported by the checkpoint.
            let _ = thread.join();
        }
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        self.end();
    }
}
