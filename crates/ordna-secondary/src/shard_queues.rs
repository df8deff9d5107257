//! The queues between a source and the workers. Each worker has one, for its shard of the
//! documents.
//!
//! # Contract
//! Any number of threads can feed changes. All changes of a document go to the same worker, in the
//! order in which they were fed. A feeder waits while the queue is full; control messages are
//! queued even then.
//!
//! # Invariants
//! 1. The shard of a document is the CRC32 of its id, modulo the number of workers.
//! 2. The position of a partition changes under a queue's lock, together with the push of the
//!    change. So a thread that holds all locks reads a consistent version vector: exactly the
//!    changes up to it are, or were, in the queues.
//! 3. The message of a snapshot point is sent under the gate's write lock. So changes that are
//!    pushed under one read lock of the gate fall between the same two snapshot points.
//!
//! # Progress
//! Blocking. A feeder holds the lock of a queue for one push. A snapshot point holds all of the
//! locks, for one push each. A feeder may wait for room while it holds the gate's read lock; this
//! cannot deadlock, as workers empty their queues without the gate.
//!
//! Source: the Nitro paper (VLDB 2016), §9, "Partitioning".

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Condvar, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use ordna::sync::{Lock, fault};

use crate::document::Mutation;
use crate::error::{Error, SourceError};
use crate::index::Index;
use crate::reverse::ReverseMap;
use crate::version_vector::{Position, VersionVector};

/// Documents of an index build are added to a queue only while it holds fewer messages than this.
const FILLS: usize = 16;

/// The maps that the workers had of an index that was dropped.
pub(crate) type Removed = Arc<Lock<Vec<ReverseMap>>>;

/// A message to a worker.
pub(crate) enum Message {
    /// A change of a document, for all indexes.
    Change(Mutation),
    /// Documents of the source's snapshot, for an index that is being built.
    Fill(Arc<Index>, Vec<Mutation>),
    /// The end of the documents of the source's snapshot.
    Filled(Arc<Index>),
    /// A new index, and the worker's map for it.
    Add(Arc<Index>, Box<ReverseMap>),
    /// An index that is dropped, and where the workers put their maps of it.
    Remove(Arc<Index>, Removed),
    /// Remove all documents of a partition.
    Clear(u32),
    /// Remove all documents. All workers wait for each other until the entries are removed.
    ClearAll,
    /// The end of the changes that a snapshot point contains. All workers wait for each other; the
    /// last one to arrive calls the function, which takes the snapshots.
    SnapshotPoint(Arc<dyn Fn() + Send + Sync>),
}

/// A barrier at which all workers of a service wait for each other.
///
/// Unlike at [`std::sync::Barrier`], the wait ends if a worker has panicked and will therefore
/// never arrive.
#[derive(Default)]
struct Meeting {
    state: Lock<MeetingState>,
    changed: Condvar,
}

#[derive(Default)]
struct MeetingState {
    /// Number of workers that wait.
    arrived: usize,
    /// Number of completed meetings.
    number: u64,
    is_broken: bool,
}

impl Meeting {
    /// Waits until all workers have arrived. Returns whether this worker was the last one; `None`
    /// if a worker has panicked.
    fn wait(&self, workers: usize) -> Option<bool> {
        let mut state = self.state.lock();
        state.arrived += 1;
        if state.arrived == workers && !state.is_broken {
            (state.arrived, state.number) = (0, state.number + 1);
            self.changed.notify_all();
            return Some(true);
        }
        let number = state.number;
        while state.number == number && !state.is_broken {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (state.number != number).then_some(false)
    }

    fn end(&self) {
        self.state.lock().is_broken = true;
        self.changed.notify_all();
    }
}

/// The queue of one worker.
#[derive(Default)]
struct ShardQueue {
    state: Lock<QueueState>,
    filled: Condvar,
    room: Condvar,
}

#[derive(Default)]
struct QueueState {
    messages: VecDeque<Message>,
    /// Number of feeders that wait for room.
    waiting: usize,
    /// Whether the worker waits for a message.
    idle: bool,
    /// Number of messages so far whose effect a new snapshot point would show.
    pushed: u64,
    /// Number of changes so far.
    fed: u64,
}

/// The position up to which a partition was fed.
#[derive(Default)]
struct FedPartition {
    identity: AtomicU64,
    seq: AtomicU64,
    repeated: AtomicU64,
}

/// The queues of all workers, and the positions up to which they were fed.
pub(crate) struct ShardQueues {
    queues: Vec<ShardQueue>,
    partitions: Vec<FedPartition>,
    capacity: AtomicUsize,
    stopped: AtomicBool,
    gate: RwLock<()>,
    meeting: Meeting,
    /// The first thread that panicked, and its message.
    failure: OnceLock<(String, String)>,
}

/// A guard that delays snapshot points until it is dropped.
#[derive(Debug)]
pub(crate) struct SnapshotHold<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// The guards of all queues' locks.
pub(crate) struct LockedQueues<'a> {
    all: &'a ShardQueues,
    states: Vec<MutexGuard<'a, QueueState>>,
}

impl ShardQueues {
    pub fn new(workers: usize, positions: &[Position], capacity: usize) -> Self {
        let partition = |position: &Position| FedPartition {
            identity: AtomicU64::new(position.identity),
            seq: AtomicU64::new(position.seq),
            repeated: AtomicU64::new(0),
        };
        Self {
            queues: (0..workers).map(|_| ShardQueue::default()).collect(),
            partitions: positions.iter().map(partition).collect(),
            capacity: AtomicUsize::new(capacity.max(1)),
            stopped: AtomicBool::new(false),
            gate: RwLock::new(()),
            meeting: Meeting::default(),
            failure: OnceLock::new(),
        }
    }

    /// Delays snapshot points: all changes that are pushed while the returned guard exists become
    /// visible in the same snapshot point. A thread must not hold two of these guards.
    pub fn hold_snapshots(&self) -> SnapshotHold<'_> {
        SnapshotHold(self.gate.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until no [`SnapshotHold`] exists. This lock must be taken before the registry's lock,
    /// because holders of a [`SnapshotHold`] may wait for that one.
    pub fn gate(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn workers(&self) -> usize {
        self.queues.len()
    }

    pub fn partitions(&self) -> u32 {
        self.partitions.len() as u32
    }

    pub fn set_capacity(&self, messages: usize) {
        self.capacity.store(messages.max(1), Ordering::Relaxed);
    }

    /// Returns the shard of a document, which is the number of its worker.
    pub fn shard_of(&self, id: &[u8]) -> usize {
        if fault!("pipeline.order.by_id") {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            return NEXT.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        }
        ordna::checksum::crc32(id) as usize % self.queues.len()
    }

    /// Feeds a change, and waits for room if necessary. Returns `false` if the change was ignored
    /// because its sequence number is not above the position of its partition.
    pub fn feed(&self, mutation: Mutation) -> Result<bool, SourceError> {
        let partitions = self.partitions.len() as u32;
        let Some(partition) = self.partitions.get(mutation.partition as usize) else {
            let partition = mutation.partition;
            return Err(SourceError::UnknownPartition { partition, partitions });
        };
        let (seq, shard) = (mutation.seq, self.shard_of(&mutation.id));
        let mut state = self.lock_with_room(shard, self.capacity.load(Ordering::Relaxed))?;
        if seq != 0 {
            if seq <= partition.seq.load(Ordering::Relaxed) {
                partition.repeated.fetch_add(1, Ordering::Relaxed);
                return Ok(false);
            }
            partition.seq.store(seq, Ordering::Release);
        }
        state.messages.push_back(Message::Change(mutation));
        state.pushed += 1;
        state.fed += 1;
        self.wake(shard, state);
        Ok(true)
    }

    /// Sends documents of an index build. Only a few such messages are queued at once, as a
    /// snapshot point must wait for all messages before it.
    pub fn send(&self, shard: usize, message: Message) -> Result<(), SourceError> {
        let mut state = self.lock_with_room(shard, FILLS)?;
        state.messages.push_back(message);
        state.pushed += 1;
        self.wake(shard, state);
        Ok(())
    }

    fn lock_with_room(
        &self,
        shard: usize,
        most: usize,
    ) -> Result<MutexGuard<'_, QueueState>, SourceError> {
        let queue = &self.queues[shard];
        let mut state = queue.state.lock();
        while state.messages.len() >= most && !self.is_stopped() {
            state.waiting += 1;
            state = queue.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        if self.is_stopped() { Err(SourceError::Stopped) } else { Ok(state) }
    }

    fn wake(&self, shard: usize, mut state: MutexGuard<'_, QueueState>) {
        if std::mem::take(&mut state.idle) {
            drop(state);
            self.queues[shard].filled.notify_one();
        }
    }

    /// Moves all messages of a shard into `messages`, which must be empty; waits until there is at
    /// least one. Returns `false` if the service has stopped.
    pub fn take(&self, shard: usize, messages: &mut VecDeque<Message>) -> bool {
        let queue = &self.queues[shard];
        let mut state = queue.state.lock();
        while state.messages.is_empty() {
            if self.is_stopped() {
                return false;
            }
            state.idle = true;
            state = queue.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut state.messages, messages);
        let waiting = state.waiting > 0;
        drop(state);
        if waiting {
            queue.room.notify_all();
        }
        true
    }

    /// Locks all queues, so that no thread feeds.
    pub fn lock_all(&self) -> LockedQueues<'_> {
        let states = self.queues.iter().map(|queue| queue.state.lock()).collect();
        LockedQueues { all: self, states }
    }

    /// Returns the position up to which a partition was fed.
    pub fn position(&self, partition: u32) -> Option<Position> {
        let partition = self.partitions.get(partition as usize)?;
        let identity = partition.identity.load(Ordering::Acquire);
        Some(Position { identity, seq: partition.seq.load(Ordering::Acquire) })
    }

    /// Returns the positions of all partitions. They are read one after the other, not as of one
    /// moment.
    pub fn vector(&self) -> VersionVector {
        VersionVector::new(
            (0..self.partitions.len() as u32)
                .filter_map(|partition| self.position(partition))
                .collect(),
        )
    }

    /// Returns the number of changes so far. The queues are read one after the other, not as of one
    /// moment.
    pub fn fed(&self) -> u64 {
        self.queues.iter().map(|queue| queue.state.lock().fed).sum()
    }

    /// Returns the number of changes that were ignored because they had been fed already.
    pub fn repeated(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.repeated.load(Ordering::Relaxed)).sum()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits until all workers have arrived. The last one calls `take` before all of them continue.
    /// Returns `false` if a worker has panicked; the caller must then end, too.
    pub fn meet(&self, take: impl FnOnce()) -> bool {
        let Some(is_last) = self.meeting.wait(self.workers()) else { return false };
        if is_last {
            take();
        }
        self.meeting.wait(self.workers()).is_some()
    }

    /// Ends all waits permanently, because a thread of the service has panicked.
    pub fn fail(&self, thread: String, message: String) {
        // Only the first panic is kept.
        let _ = self.failure.set((thread, message));
        self.close();
        self.meeting.end();
    }

    /// Returns the first panic of a thread of the service.
    pub fn failure(&self) -> Option<Error> {
        let (thread, message) = self.failure.get()?.clone();
        Some(Error::Panicked { thread, message })
    }

    /// Ends all waits permanently. Workers still process what is queued.
    pub fn close(&self) {
        let locked = self.lock_all();
        self.stopped.store(true, Ordering::Release);
        drop(locked);
        for queue in &self.queues {
            queue.filled.notify_all();
            queue.room.notify_all();
        }
    }
}

impl LockedQueues<'_> {
    /// Returns the version vector of all changes fed so far.
    pub fn vector(&self) -> VersionVector {
        self.all.vector()
    }

    /// Sends a message to every worker.
    pub fn send(mut self, mut message: impl FnMut(usize) -> Message) {
        for (shard, state) in self.states.iter_mut().enumerate() {
            let message = message(shard);
            state.pushed += u64::from(!matches!(message, Message::SnapshotPoint(_)));
            state.messages.push_back(message);
            if std::mem::take(&mut state.idle) {
                self.all.queues[shard].filled.notify_one();
            }
        }
    }

    /// Returns the number of messages so far whose effect a new snapshot point would show.
    pub fn changes(&self) -> u64 {
        self.states.iter().map(|state| state.pushed).sum()
    }

    /// Returns the number of changes so far.
    pub fn fed(&self) -> u64 {
        self.states.iter().map(|state| state.fed).sum()
    }

    /// Sets the position of a partition.
    pub fn set_position(&mut self, partition: u32, position: Position) {
        if let Some(partition) = self.all.partitions.get(partition as usize) {
            partition.identity.store(position.identity, Ordering::Release);
            partition.seq.store(position.seq, Ordering::Release);
        }
        self.states[0].pushed += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_meeting_ends_when_a_worker_will_never_come() {
        let queues = ShardQueues::new(3, &[], 8);
        let met = std::thread::scope(|scope| {
            let waiting = [(); 2].map(|()| scope.spawn(|| queues.meet(|| ())));
            std::thread::sleep(Duration::from_millis(20));
            queues.fail("index-2".to_owned(), "gone".to_owned());
            waiting.map(|thread| thread.join().unwrap())
        });
        assert_eq!(met, [false, false]);
        assert!(!queues.meet(|| ()), "nor does a later one wait");
        let told = queues.failure().unwrap().to_string();
        assert!(told.contains("index-2") && told.contains("gone"), "{told}");
    }
}
