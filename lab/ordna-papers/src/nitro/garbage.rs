//! Dead versions that wait for collection: the garbage lists of writers, the queue of batches, and
//! the state of the collectors. [`super::collect`] describes the protocol.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::version::DeadVersion;
use ordna_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use ordna_base::sync::{StripedCounter, notice, stripe_of_this_thread};
use ordna_base::{Key, Value};

/// The condition under which a dead version is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// A live snapshot sees it.
    #[default]
    LiveSet,
    /// A live snapshot is older than its death, as in the paper (§4).
    Epochs,
}

const STRIPES: usize = 64;
/// Number of versions at which a writer passes its garbage list to the queue.
const LIST: usize = 512;
/// Number of versions up to which a collector takes small batches together.
const BATCH: usize = 2048;

pub type Batch<K, V> = Vec<DeadVersion<K, V>>;

#[repr(align(128))]
struct GarbageList<K: Key + ?Sized, V: Value + ?Sized>(Mutex<Batch<K, V>>);

pub struct GarbageQueue<K: Key + ?Sized, V: Value + ?Sized> {
    pub batches: VecDeque<Batch<K, V>>,
    /// Number of threads that have taken batches and have not finished them.
    at_work: usize,
    pub threads: Vec<JoinHandle<()>>,
    /// Whether threads are running, or the system was unable to start any.
    pub started: bool,
    pub stop: bool,
}

/// Dead versions that wait for collection.
pub struct Garbage<K: Key + ?Sized, V: Value + ?Sized> {
    lists: Box<[GarbageList<K, V>]>,
    queue: Mutex<GarbageQueue<K, V>>,
    /// Number of versions in the queue.
    queued: AtomicUsize,
    /// Versions that wait for the end of a snapshot, by its epoch.
    kept: Mutex<BTreeMap<u64, Vec<Batch<K, V>>>>,
    /// Notified when a batch was queued, or the collectors must stop.
    pub wake: Condvar,
    /// Notified when no thread is at work.
    calm: Condvar,
    pub collectors: usize,
    /// Whether callers collect, because no threads are configured or the system was unable to start
    /// any.
    pub unattended: AtomicBool,
    order: Order,
    collected: StripedCounter,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Garbage<K, V> {
    pub fn new(collectors: usize, order: Order) -> Self {
        Self {
            lists: (0..STRIPES).map(|_| GarbageList(Mutex::new(Vec::new()))).collect(),
            queue: Mutex::new(GarbageQueue {
                batches: VecDeque::new(),
                at_work: 0,
                threads: Vec::new(),
                started: false,
                stop: false,
            }),
            queued: AtomicUsize::new(0),
            kept: Mutex::default(),
            wake: Condvar::new(),
            calm: Condvar::new(),
            collectors,
            unattended: AtomicBool::new(collectors == 0),
            order,
            collected: StripedCounter::new(),
        }
    }

    pub fn queue(&self) -> MutexGuard<'_, GarbageQueue<K, V>> {
        lock(&self.queue)
    }

    /// Returns the oldest snapshot that would keep the version.
    pub fn first_that_keeps(&self, dead: &DeadVersion<K, V>) -> u64 {
        match self.order {
            Order::LiveSet => dead.born,
            Order::Epochs => 1,
        }
    }

    /// Adds a dead version to the calling thread's list. Returns whether the list is full.
    pub fn list(&self, dead: DeadVersion<K, V>) -> bool {
        let mut list = lock(&self.lists[stripe_of_this_thread() % STRIPES].0);
        list.push(dead);
        list.len() >= LIST
    }

    /// Moves all lists into the queue.
    pub fn queue_lists(&self) {
        for list in &self.lists {
            let batch = std::mem::take(&mut *lock(&list.0));
            if !batch.is_empty() {
                self.enqueue(vec![batch]);
            }
        }
    }

    /// Adds batches to the queue unchanged, so that the end of a snapshot is cheap.
    pub fn enqueue(&self, batches: Vec<Batch<K, V>>) {
        if !batches.is_empty() {
            let versions = batches.iter().map(Vec::len).sum();
            self.queued.fetch_add(versions, Ordering::Relaxed);
            self.queue().batches.extend(batches);
            self.wake.notify_all();
        }
    }

    /// Takes a batch from the queue, or several small ones.
    pub fn take(&self, queue: &mut GarbageQueue<K, V>) -> Option<Taken<'_, K, V>> {
        let first = queue.batches.pop_front()?;
        let mut versions = first.len();
        let mut batches = vec![first];
        while let Some(next) = queue.batches.front().map(Vec::len)
            && versions + next <= BATCH
        {
            versions += next;
            batches.extend(queue.batches.pop_front());
        }
        self.queued.fetch_sub(versions, Ordering::Relaxed);
        queue.at_work += 1;
        Some(Taken { garbage: self, batches })
    }

    /// Returns the locked queue when no thread is at work. No batch is taken while it is locked.
    pub fn at_rest(&self) -> MutexGuard<'_, GarbageQueue<K, V>> {
        let mut queue = self.queue();
        while is_busy(&queue) {
            queue = self.calm.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue
    }

    pub fn count_collected(&self) {
        self.collected.add(1);
    }

    /// Returns the number of versions that were unlinked because no snapshot saw them.
    pub fn collected(&self) -> usize {
        self.collected.sum()
    }

    /// Returns the number of versions in the queue, which is the lag of collection.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    pub fn is_unattended(&self) -> bool {
        self.unattended.load(Ordering::Relaxed)
    }

    /// Keeps versions until the end of a live snapshot.
    pub fn keep(&self, epoch: u64, versions: Batch<K, V>) {
        lock(&self.kept).entry(epoch).or_default().push(versions);
    }

    /// Returns the versions that an ended snapshot kept.
    pub fn release(&self, epoch: u64) -> Vec<Batch<K, V>> {
        lock(&self.kept).remove(&epoch).unwrap_or_default()
    }

    /// Returns the number of versions in lists, in the queue and at snapshots.
    pub fn waiting(&self) -> usize {
        let listed: usize = self.lists.iter().map(|list| lock(&list.0).len()).sum();
        let kept: usize = lock(&self.kept).values().flatten().map(Vec::len).sum();
        listed + kept + self.queued()
    }
}

fn is_busy<K: Key + ?Sized, V: Value + ?Sized>(queue: &GarbageQueue<K, V>) -> bool {
    notice!("nitro.collect.at_rest", queue.at_work > 0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Batches on which a thread works. It must be dropped even after a panic, because other threads
/// wait for this.
pub struct Taken<'a, K: Key + ?Sized, V: Value + ?Sized> {
    garbage: &'a Garbage<K, V>,
    pub batches: Vec<Batch<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Taken<'_, K, V> {
    fn drop(&mut self) {
        let mut queue = self.garbage.queue();
        queue.at_work -= 1;
        if queue.at_work == 0 {
            self.garbage.calm.notify_all();
        }
    }
}
