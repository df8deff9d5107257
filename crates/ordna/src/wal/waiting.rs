//! Waits for what a log has written or synced: by threads and by tasks.

use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};

use ordna_base::sync::notice;

use super::queue::{Queue, QueueState, failed, lock};
use super::sync_policy::{STALLED, SyncPolicy};
use crate::Error;

impl Queue {
    /// Returns whether a sync takes so long that writes must wait for it.
    fn is_stalled(&self) -> bool {
        // Acquire: pairs with the release in `sync`, so that a waiter that is told of its end finds
        // it ended.
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
                // The other thread looks for records once more: it unlocks the writer only when it
                // finds none, under the state's lock.
                return self.register(position, context, is_written, |state| &mut state.writing);
            }
        };
        let drained = self.drain_with(writer).map(|_| ());
        // The end of the log may have written it just before.
        Poll::Ready(if is_written() { Ok(()) } else { drained })
    }
}
