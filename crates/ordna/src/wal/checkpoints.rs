//! Scheduling of checkpoints: when an opened store backs itself up, and how it gives way to
//! callers' backups.
//!
//! # Contract
//! All methods may be called concurrently by many threads. One thread takes checkpoints: it calls
//! [`Checkpoints::next`]. Writers of the log call [`Checkpoints::logged`], which costs one load and
//! one branch while no checkpoint is due.
//!
//! # Protocol
//! A caller's backup cancels the checkpoint in progress, waits for its end, and prevents others
//! until it is finished. So it never fails because of a checkpoint. The end of the store does the
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

/// Marks this thread as working for a checkpoint, which waits for it.
pub(crate) fn mark_worker() {
    IS_WORKER.set(true);
}

/// Value of `due_at` with which no checkpoint is ever due.
pub(crate) const NEVER: u64 = u64::MAX;
/// Delay before a failed checkpoint is retried. It doubles with each failure.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Upper bound of that delay.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The next task of the checkpoint thread.
#[derive(Debug)]
pub(crate) enum Checkpoint {
    /// Take a checkpoint, which ends early if the progress is cancelled.
    Take(Progress),
    /// The store is being dropped.
    End,
}

/// The schedule of checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// Number of logged bytes, counted as `Queue::logged`, at which a checkpoint is due.
    due_at: AtomicU64,
    state: Mutex<CheckpointState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CheckpointState {
    is_due: bool,
    /// The checkpoint in progress.
    running: Option<Progress>,
    /// Number of callers' backups that run or wait.
    callers: usize,
    ends: bool,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { due_at: AtomicU64::new(NEVER), state: Mutex::default(), changed: Condvar::new() }
    }
}

/// A checkpoint in progress. It ends on drop.
struct Running<'a>(&'a Checkpoints);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().running = None;
        self.0.changed.notify_all();
    }
}

/// The turn of a caller's backup. No checkpoint runs until this is dropped.
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

    /// Makes a checkpoint due when this many bytes are logged, and none before.
    pub fn set_due_at(&self, due_at: u64, logged: u64) {
        {
            // Under the lock: a writer that has just reached the former limit must not make a
            // checkpoint due after this call, because it would replace a backup with metadata.
            let mut state = self.lock();
            state.is_due = false;
            self.due_at.store(due_at, Ordering::Relaxed);
        }
        self.logged(logged);
    }

    /// Starts a checkpoint if it is due, given the number of logged bytes.
    #[inline]
    pub fn logged(&self, bytes: u64) {
        // Relaxed: a writer may read an older limit, but later writers will not.
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

    /// Cancels the checkpoint in progress, because the log needs the disk space.
    pub fn cancel(&self) {
        if let Some(running) = &self.lock().running {
            running.cancel();
        }
    }

    /// Waits until no checkpoint runs, and prevents others until the returned value is dropped.
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

    /// Calls `take` for each checkpoint that is due, until the store is dropped. `take` returns
    /// whether the checkpoint succeeded. After a failure it is retried with increasing delays.
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

    /// Waits for at least `delay`, and until a checkpoint is due and no caller's backup runs.
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

    /// Ends the thread and waits for it.
    pub fn end(&self) {
        self.checkpoints.end();
        let thread = self.thread.lock().take();
        // The caller's clock may drop the last store on a thread of the checkpoint itself.
        let is_own = |it: &JoinHandle<()>| {
            IS_WORKER.get() || it.thread().id() == std::thread::current().id()
        };
        if let Some(thread) = thread.filter(|it| !is_own(it)) {
            // The checkpoint has reported a panic of the caller's clock.
            let _ = thread.join();
        }
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        self.end();
    }
}
