//! The queues between a source and the workers, and the cut through them.
//!
//! # Contract
//! Any number of threads feed. The changes of one document reach one worker, in the order in which
//! they were fed. A queue that is full makes its feeder wait; control messages never wait.
//!
//! # Invariants
//! 1. A lane is chosen by the CRC32 of the document's id.
//! 2. The position of a bucket changes under a lane's lock, together with the push of the change.
//!    So a thread that holds all locks reads a vector such that exactly the changes up to it are in
//!    the queues, or were.
//! 3. A cut is sent under the gate's write lock. Changes pushed under one read lock of it are
//!    before the same cuts.
//!
//! # Progress
//! Blocking. A feeder holds a lane's lock for one push. A cut holds all of them for a push on each.
//! A feeder may wait for room under the gate's read lock: workers empty their queues without it.
//!
//! Source: the Nitro paper (VLDB 2016), §9, "Partitioning".

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use ordna::sync::fault;

use crate::document::Mutation;
use crate::error::SourceError;
use crate::index::Index;
use crate::reverse::ReverseMap;
use crate::vector::{Position, Vector};

/// Messages that wait when one with documents of a snapshot may join them.
const FILLS: usize = 16;

/// A message to a worker.
pub(crate) enum Message {
    /// A change of a document, for all indexes.
    Change(Mutation),
    /// Documents of a snapshot, for one index that is being built.
    Fill(Arc<Index>, Vec<Mutation>),
    /// All documents of the snapshot were sent.
    Filled(Arc<Index>),
    /// A new index, and the worker's map of it.
    Add(Arc<Index>, Box<ReverseMap>),
    /// An index that goes.
    Remove(Arc<Index>),
    /// All documents of a bucket go.
    Clear(u32),
    /// The end of a cut.
    Cut(Arc<dyn Meeting>),
}

/// The work of a worker at a cut.
pub(crate) trait Meeting: Send + Sync {
    /// Waits until all workers are there; one of them takes the snapshots.
    fn attend(&self);
}

#[derive(Default)]
struct Lane {
    queue: Mutex<Queue>,
    filled: Condvar,
    room: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    waiting: usize,
    idle: bool,
    /// Messages so far that a new cut would show.
    pushed: u64,
}

fn lock(lane: &Lane) -> MutexGuard<'_, Queue> {
    lane.queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Bucket {
    identity: AtomicU64,
    seq: AtomicU64,
    repeated: AtomicU64,
}

/// The queues of all workers, and the positions up to which they were fed.
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    buckets: Vec<Bucket>,
    capacity: AtomicUsize,
    stopped: AtomicBool,
    gate: RwLock<()>,
}

/// No cut is sent while it lives.
#[derive(Debug)]
pub(crate) struct Together<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// All queues, locked.
pub(crate) struct Stopped<'a> {
    lanes: &'a Lanes,
    queues: Vec<MutexGuard<'a, Queue>>,
}

impl Lanes {
    pub fn new(workers: usize, positions: &[Position], capacity: usize) -> Self {
        let bucket = |position: &Position| Bucket {
            identity: AtomicU64::new(position.identity),
            seq: AtomicU64::new(position.seq),
            repeated: AtomicU64::new(0),
        };
        Self {
            lanes: (0..workers).map(|_| Lane::default()).collect(),
            buckets: positions.iter().map(bucket).collect(),
            capacity: AtomicUsize::new(capacity.max(1)),
            stopped: AtomicBool::new(false),
            gate: RwLock::new(()),
        }
    }

    /// Holds back cuts: all changes that are pushed meanwhile come into one cut. A thread must
    /// not hold two of them.
    pub fn together(&self) -> Together<'_> {
        Together(self.gate.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for those that hold back cuts. Before the registry's lock: they may wait for that.
    pub fn gate(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn workers(&self) -> usize {
        self.lanes.len()
    }

    pub fn set_capacity(&self, messages: usize) {
        self.capacity.store(messages.max(1), Ordering::Relaxed);
    }

    /// The worker of a document.
    pub fn lane_of(&self, id: &[u8]) -> usize {
        if fault!("pipeline.order.by_id") {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            return NEXT.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        }
        ordna::checksum::crc32(id) as usize % self.lanes.len()
    }

    /// Feeds a change; `false`: it is at or below the bucket's position and was ignored. Waits for
    /// room.
    pub fn feed(&self, mutation: Mutation) -> Result<bool, SourceError> {
        let buckets = self.buckets.len() as u32;
        let Some(bucket) = self.buckets.get(mutation.bucket as usize) else {
            return Err(SourceError::NoSuchBucket { bucket: mutation.bucket, buckets });
        };
        let (seq, lane) = (mutation.seq, self.lane_of(&mutation.id));
        let mut queue = self.lock_with_room(lane, self.capacity.load(Ordering::Relaxed))?;
        if seq != 0 {
            if seq <= bucket.seq.load(Ordering::Relaxed) {
                bucket.repeated.fetch_add(1, Ordering::Relaxed);
                return Ok(false);
            }
            bucket.seq.store(seq, Ordering::Release);
        }
        queue.messages.push_back(Message::Change(mutation));
        queue.pushed += 1;
        self.wake(lane, queue);
        Ok(true)
    }

    /// Sends documents of a snapshot. Few of them wait at once: a cut waits for all before it.
    pub fn send(&self, lane: usize, message: Message) -> Result<(), SourceError> {
        let mut queue = self.lock_with_room(lane, FILLS)?;
        queue.messages.push_back(message);
        queue.pushed += 1;
        self.wake(lane, queue);
        Ok(())
    }

    fn lock_with_room(
        &self,
        lane: usize,
        most: usize,
    ) -> Result<MutexGuard<'_, Queue>, SourceError> {
        let lane = &self.lanes[lane];
        let mut queue = lock(lane);
        while queue.messages.len() >= most && !self.is_stopped() {
            queue.waiting += 1;
            queue = lane.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.waiting -= 1;
        }
        if self.is_stopped() { Err(SourceError::Stopped) } else { Ok(queue) }
    }

    fn wake(&self, lane: usize, mut queue: MutexGuard<'_, Queue>) {
        if std::mem::take(&mut queue.idle) {
            drop(queue);
            self.lanes[lane].filled.notify_one();
        }
    }

    /// Takes all messages of a lane into `messages`, which is empty; `false`: the service has
    /// stopped.
    pub fn take(&self, lane: usize, messages: &mut VecDeque<Message>) -> bool {
        let lane = &self.lanes[lane];
        let mut queue = lock(lane);
        while queue.messages.is_empty() {
            if self.is_stopped() {
                return false;
            }
            queue.idle = true;
            queue = lane.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut queue.messages, messages);
        let waiting = queue.waiting > 0;
        drop(queue);
        if waiting {
            lane.room.notify_all();
        }
        true
    }

    /// Holds all feeders.
    pub fn stop(&self) -> Stopped<'_> {
        Stopped { lanes: self, queues: self.lanes.iter().map(lock).collect() }
    }

    /// The position up to which a bucket was fed.
    pub fn position(&self, bucket: u32) -> Option<Position> {
        let bucket = self.buckets.get(bucket as usize)?;
        let identity = bucket.identity.load(Ordering::Acquire);
        Some(Position { identity, seq: bucket.seq.load(Ordering::Acquire) })
    }

    /// The positions of all buckets, of no one moment.
    pub fn vector(&self) -> Vector {
        Vector::new((0..self.buckets.len() as u32).filter_map(|b| self.position(b)).collect())
    }

    /// Changes that were ignored because they were fed already.
    pub fn repeated(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.repeated.load(Ordering::Relaxed)).sum()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ends all waits, for good. Workers finish what is queued.
    pub fn close(&self) {
        let stopped = self.stop();
        self.stopped.store(true, Ordering::Release);
        drop(stopped);
        for lane in &self.lanes {
            lane.filled.notify_all();
            lane.room.notify_all();
        }
    }
}

impl Stopped<'_> {
    /// The vector of everything fed so far.
    pub fn vector(&self) -> Vector {
        self.lanes.vector()
    }

    /// Sends a message to every worker.
    pub fn send(mut self, mut message: impl FnMut(usize) -> Message) {
        for (lane, queue) in self.queues.iter_mut().enumerate() {
            let message = message(lane);
            queue.pushed += u64::from(!matches!(message, Message::Cut(_)));
            queue.messages.push_back(message);
            if std::mem::take(&mut queue.idle) {
                self.lanes.lanes[lane].filled.notify_one();
            }
        }
    }

    /// Grows with everything that a new cut would show.
    pub fn changes(&self) -> u64 {
        self.queues.iter().map(|queue| queue.pushed).sum()
    }

    /// Sets the position of a bucket.
    pub fn set_position(&mut self, bucket: u32, position: Position) {
        if let Some(bucket) = self.lanes.buckets.get(bucket as usize) {
            bucket.identity.store(position.identity, Ordering::Release);
            bucket.seq.store(position.seq, Ordering::Release);
        }
        self.queues[0].pushed += 1;
    }
}
