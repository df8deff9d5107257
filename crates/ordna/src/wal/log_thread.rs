//! The thread of a log, which writes, syncs, rotates to new segments, and retries failed writes.
//! The module `queue` describes the protocol.

use std::mem;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::thread::Thread;
use std::time::{Duration, Instant};

use ordna_base::sync::{check, fault, notice, point};

use super::queue::{Chunk, Queue, lock, reached};
use super::sync_policy::{SECOND, SyncPolicy};
use crate::files::directory::Reserve;

/// Time for which the thread collects records before it writes, unless the policy is
/// `SyncPolicy::Always`.
const GATHER: Duration = Duration::from_millis(1);
/// Longest delay between two retries, as a multiple of the first one. With [`FIRST_RETRY`] it is 5
/// s: freed space is used soon, and a disk that stays full costs little.
const LONGEST_RETRY: u32 = 50;

/// The next task of the thread.
#[derive(PartialEq)]
enum Wake {
    Work,
    Retry,
    Stop,
}

impl Queue {
    /// Writes the records that could not be written to a new segment. Returns whether the queue
    /// works again.
    fn retry(&self) -> bool {
        let Some((_, segments)) = &self.rotation else { return false };
        // A backup that began after the failure holds the number, and will restart the queue
        // itself.
        let Some(mut next) = segments.next.try_lock() else { return false };
        let _syncing = lock(&self.syncer);
        let mut writer = lock(&self.writer);
        let (mut chunks, target) = {
            let mut state = lock(&self.state);
            if state.failed.is_none() || !state.can_retry {
                return state.failed.is_none();
            }
            (mem::take(&mut state.chunks), self.appended())
        };
        segments.free_reserve(Reserve::Log);
        let (written, synced) = (self.written.load(Ordering::Acquire), self.synced());
        let begun = segments.create_with(*next, |segment| {
            segment.start_at(written, synced)?;
            // A start would take a segment with records but without a header for a damaged one.
            if !fault!("faults.retry.header_is_first") {
                segment.sync()?;
            }
            for chunk in &mut chunks {
                if let Chunk::Data(frame) = chunk {
                    segment.data(frame, synced)?;
                }
            }
            Ok(())
        });
        // Data that was written before the failure. If this sync fails, it may be lost.
        let current = writer.blocks.file();
        let are_synced = begun.is_ok() && {
            let mut files = writer.former.iter().chain([&current]);
            files.try_for_each(|file| file.sync()).is_ok()
        };
        let mut state = lock(&self.state);
        let Ok(segment) = begun else {
            chunks.append(&mut state.chunks);
            state.chunks = chunks;
            return false;
        };
        // The chunks lack the end of a group if the group has removed everything since then.
        let is_whole = check!("faults.retry.is_whole_at_its_end", state.can_retry);
        if !are_synced || !is_whole {
            state.can_retry = false;
            state.chunks.clear();
            drop(state);
            segments.discard(*next);
            return false;
        }
        self.add_logged(segment.written());
        *next += 1;
        // Cuts off the incomplete block at the end of the former segment.
        let (path, len) = (writer.blocks.path().to_owned(), writer.blocks.written());
        if let Some(tail) = &mut state.tail {
            tail.continue_in(&segment);
        }
        writer.blocks = segment;
        writer.former.clear();
        self.accept(&mut state, target);
        let ready = reached(&mut state.wakers, target);
        let threads = state.waiting.take_all();
        drop(state);
        self.moved.notify_all();
        threads.iter().for_each(Thread::unpark);
        ready.into_iter().for_each(Waker::wake);
        segments.complete(*next - 1, &path, len);
        true
    }

    /// Runs the loop of the thread, which writes and syncs until [`stop`](Self::stop).
    pub fn run(&self) {
        let mut last_sync = Instant::now();
        let mut delay = self.first_retry;
        loop {
            let woken = self.sleep(last_sync, delay);
            let stopping = woken == Wake::Stop;
            if woken != Wake::Work {
                let works = self.retry();
                let longest = self.first_retry * LONGEST_RETRY;
                delay = if works { self.first_retry } else { (delay * 2).min(longest) };
            }
            if !stopping && self.policy() != SyncPolicy::Always {
                std::thread::sleep(GATHER);
            }
            let due = match self.policy() {
                SyncPolicy::Always => true,
                SyncPolicy::EverySecond => last_sync.elapsed() >= SECOND,
                SyncPolicy::Never => false,
            };
            point("log.run.before_drain");
            // Errors are stored for the writers.
            let drained = self.drain();
            if drained.is_ok() && !stopping {
                point("log.run.before_rotation");
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

    /// Begins a new segment if the current one is full.
    pub(super) fn rotate_full_segment(&self) {
        let Some((most, segments)) = &self.rotation else { return };
        if lock(&self.writer).blocks.written() >= *most {
            segments.next(|segment| drop(self.rotate(segment)));
        }
    }

    /// Waits for work, or until the next sync or retry is due.
    fn sleep(&self, last_sync: Instant, delay: Duration) -> Wake {
        let mut state = lock(&self.state);
        let begin = Instant::now();
        loop {
            if state.stopping {
                return Wake::Stop;
            }
            // Other threads may have written these records, or are running a sync that does not
            // cover them.
            let unsynced = self.appended() > self.synced() && state.failed.is_none();
            let waited_for =
                notice!("faults.sleep.unsynced", unsynced) && self.policy() == SyncPolicy::Always;
            if waited_for || !state.chunks.is_empty() && state.failed.is_none() {
                return Wake::Work;
            }
            state.asleep = true;
            if state.failed.is_some() && state.can_retry {
                let left = delay.saturating_sub(begin.elapsed());
                if left.is_zero() {
                    state.asleep = false;
                    return Wake::Retry;
                }
                let woken = self.work.wait_timeout(state, left);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            } else if self.policy() == SyncPolicy::EverySecond && unsynced {
                let left = SECOND.saturating_sub(last_sync.elapsed());
                if left.is_zero() {
                    state.asleep = false;
                    return Wake::Work;
                }
                let woken = self.work.wait_timeout(state, left);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.asleep = false;
        }
    }

    /// Makes the thread write and sync the waiting records and then end.
    pub fn stop(&self) {
        lock(&self.state).stopping = true;
        self.work.notify_all();
    }
}
