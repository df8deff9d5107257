//! Waits of threads and tasks until records of the log are written or synced.
//!
//! # Protocol
//! Under `SyncPolicy::Always`, one of the waiting threads is the *leader*: it writes and syncs what
//! all of them have appended. A flag says whether there is a leader; the flag and the list of the
//! other threads are protected by the lock of the queue's state. A thread becomes the leader if
//! there is none; otherwise it adds itself to the list and parks. At the end of its turn, the
//! leader clears the flag and then wakes one thread of the list, which leads next. A sync of
//! another thread does the same while there is no leader, because it may have served the thread
//! that was to lead. A woken thread finds that its records are durable, or becomes the leader, or
//! adds itself to the list again because there is another leader. So no thread stays in the list
//! unless there is a leader or a thread was woken to lead.
//!
//! Positions in the list are above `synced`, so its threads have to wait. A thread that wakes
//! spuriously is in the list twice until it is served.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::Instant;

use ordna_base::sync::{fault, notice, point};

use super::queue::{Queue, QueueState, failed, lock};
use super::sync_policy::{STALLED, SyncPolicy};
use crate::Error;

/// The turn of a leader. It ends on drop.
struct Turn<'a>(&'a Queue);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.waiting.has_leader = false;
        let next = state.waiting.threads.pop();
        drop(state);
        if let Some((_, thread)) = next
            && !fault!("faults.wait.wakes_the_next")
        {
            thread.unpark();
        }
    }
}

impl Queue {
    /// Returns whether threads that wait for their records write and sync.
    pub(super) fn waiters_lead(&self) -> bool {
        self.waiters_sync && self.policy() == SyncPolicy::Always
    }

    /// Wakes the log's thread, because no thread waits for the appended records.
    pub fn wake_thread(&self) {
        if mem::take(&mut lock(&self.state).asleep) {
            self.work.notify_one();
        }
    }

    /// Waits up to a quarter of the duration of a sync for the threads that the last sync served,
    /// because one sync for all of them is cheapest.
    fn gather<'a>(&'a self, mut state: MutexGuard<'a, QueueState>) {
        let (began, limit) = (Instant::now(), state.waiting.took / 4);
        while state.waiting.is_small() && began.elapsed() < limit {
            drop(state);
            thread::yield_now();
            state = lock(&self.state);
        }
    }

    /// Writes and syncs for all waiting threads. A failure is stored in the queue.
    fn lead(&self) {
        let _turn = Turn(self);
        point("log.lead.begun");
        if self.drain().is_ok() {
            self.rotate_full_segment();
        }
        let _ = self.sync();
    }

    /// Returns whether a sync takes so long that writes must wait for it.
    fn is_stalled(&self) -> bool {
        // Acquire: pairs with the release in `sync`, so that a waiter that was notified of its end
        // sees it ended.
        let began = self.syncing.load(Ordering::Acquire);
        began > 0
            && self.policy() == SyncPolicy::EverySecond
            && notice!(
                "faults.sync.stalls",
                self.now() - began.min(self.now()) >= STALLED.as_millis() as u64
            )
    }

    /// Waits for the end of a sync that takes too long.
    pub fn wait_while_stalled(&self) -> Result<(), Error> {
        if !self.is_stalled() {
            return Ok(());
        }
        let mut state = lock(&self.state);
        while state.failed.is_none() && self.is_stalled() {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        self.check_failure()
    }

    /// Returns whether everything up to a position outlives the process.
    fn is_kept(&self, position: u64) -> bool {
        // Acquire: pairs with the releases in `append` and `write`.
        self.has_tail && self.kept.load(Ordering::Acquire) >= position
            || self.written.load(Ordering::Acquire) >= position
    }

    /// Makes everything up to a position outlive the process, by writing the records for which the
    /// tail had no space. Does nothing without a tail.
    pub fn keep(&self, position: u64) -> Result<(), Error> {
        if !self.has_tail || self.is_kept(position) || fault!("kill.tail.writes_what_is_left_out") {
            return Ok(());
        }
        let drained = self.drain();
        // The thread that closes the log may have written the records just before.
        if self.is_kept(position) { Ok(()) } else { drained.map(drop) }
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
            if self.waiters_lead() && !mem::replace(&mut state.waiting.has_leader, true) {
                self.gather(state);
                self.lead();
            } else {
                state.waiting.threads.push((position, thread::current()));
                drop(state);
                thread::park();
            }
            state = lock(&self.state);
        }
    }

    /// Works like [`poll_synced`](Self::poll_synced), and also waits until the sink has
    /// acknowledged the position.
    pub fn poll(&self, position: u64, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_synced(position, context))?;
        let sink = self.sink.get().filter(|_| !fault!("sinks.acknowledgement.is_awaited"));
        sink.map_or(Poll::Ready(Ok(())), |sink| sink.poll_acknowledged(position, context))
    }

    /// Works like [`wait`](Self::wait), for a task.
    fn poll_synced(&self, position: u64, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.synced() >= position {
            return Poll::Ready(Ok(()));
        }
        self.register(position, context, || self.synced() >= position, |state| &mut state.wakers)
    }

    /// Adds the task to a list of wakers, unless its condition already holds.
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
        // The thread that has appended the records may not be waiting for them.
        if self.waiters_lead() && mem::take(&mut state.asleep) {
            self.work.notify_one();
        }
        Poll::Pending
    }

    /// Works like [`poll_in_file`](Self::poll_in_file), and also waits until the sink has room.
    pub fn poll_written(
        &self,
        position: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        ready!(self.poll_in_file(position, context))?;
        self.sink.get().map_or(Poll::Ready(Ok(())), |sink| sink.poll_room(context))
    }

    /// Returns `Ready` when the position is written. The task itself writes, unless another thread
    /// does.
    fn poll_in_file(&self, position: u64, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.is_stalled() {
            let has_ended = || !self.is_stalled();
            let told = self.register(position, context, has_ended, |state| &mut state.stalled);
            if told.is_pending() {
                return told;
            }
        }
        let is_written = || self.written.load(Ordering::Acquire) >= position;
        if is_written() {
            return Poll::Ready(Ok(()));
        }
        let writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // The other thread looks for records once more: it releases the writer only when it
                // finds none, under the lock of the state.
                return self.register(position, context, is_written, |state| &mut state.writing);
            }
        };
        let drained = self.drain_with(writer).map(|_| ());
        // The thread that closes the log may have written the records just before.
        Poll::Ready(if is_written() { Ok(()) } else { drained })
    }
}
