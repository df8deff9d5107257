//! Dead versions on their way to collection: the lists of writers, the queue of batches, the state
//! of the collectors. `collect` has the protocol.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::options::Order;
use super::raw::Corpse;
use ordna_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use ordna_base::sync::{StripedCounter, fault, stripe_of_this_thread};
use ordna_base::{Key, Value};

const STRIPES: usize = 64;
/// A writer hands its list over when it is so long.
const LIST: usize = 512;
/// Small batches are examined together, up to so many versions.
const BATCH: usize = 2048;

pub(super) type Batch<K, V> = Vec<Corpse<K, V>>;

#[repr(align(128))]
pub(super) struct List<K: Key + ?Sized, V: Value + ?Sized>(Mutex<Batch<K, V>>);

pub(super) struct Queue<K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) batches: VecDeque<Batch<K, V>>,
    /// Threads with batches that they have taken and are not done with.
    pub(super) at_work: usize,
    /// Collectors that sleep until they are woken.
    pub(super) idle: usize,
    /// One sleeps until the next deadline.
    pub(super) watched: bool,
    pub(super) threads: Vec<JoinHandle<()>>,
    /// Threads are running, or it was tried.
    pub(super) started: bool,
    pub(super) stop: bool,
}

/// Dead versions on their way.
pub(super) struct Graves<K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) lists: Box<[List<K, V>]>,
    pub(super) queue: Mutex<Queue<K, V>>,
    /// Versions in the queue.
    pub(super) queued: AtomicUsize,
    /// For the idle ones: something was queued, a deadline is not watched, or it is time to stop.
    pub(super) wake: Condvar,
    /// For the one that watches: a deadline came nearer, or what the idle ones would be woken for.
    pub(super) hurry: Condvar,
    /// Nobody is at work.
    pub(super) calm: Condvar,
    pub(super) collectors: usize,
    /// Callers collect: no threads are wanted, the system gave none, or one has panicked.
    pub(super) unattended: AtomicBool,
    pub(super) order: Order,
    pub(super) collected: StripedCounter,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Graves<K, V> {
    pub fn new(collectors: usize, order: Order) -> Self {
        Self {
            lists: (0..STRIPES).map(|_| List(Mutex::new(Vec::new()))).collect(),
            queue: Mutex::new(Queue {
                batches: VecDeque::new(),
                at_work: 0,
                idle: 0,
                watched: false,
                threads: Vec::new(),
                started: false,
                stop: false,
            }),
            queued: AtomicUsize::new(0),
            wake: Condvar::new(),
            hurry: Condvar::new(),
            calm: Condvar::new(),
            collectors,
            unattended: AtomicBool::new(collectors == 0),
            order,
            collected: StripedCounter::new(),
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue<K, V>> {
        lock(&self.queue)
    }

    /// The oldest snapshot that would keep the version.
    pub fn first_that_keeps(&self, corpse: &Corpse<K, V>) -> u64 {
        match self.order {
            Order::LiveSet => corpse.born,
            Order::Terms => 1,
        }
    }

    /// Puts a dead version into the calling thread's list. Returns whether that is long.
    pub fn enlist(&self, corpse: Corpse<K, V>) -> bool {
        let mut list = lock(&self.lists[stripe_of_this_thread() % STRIPES].0);
        list.push(corpse);
        list.len() >= LIST
    }

    /// Moves all lists into the queue.
    pub(super) fn stitch(&self) {
        for list in &self.lists {
            let batch = std::mem::take(&mut *lock(&list.0));
            self.enqueue(batch);
        }
    }

    pub(super) fn enqueue(&self, batch: Batch<K, V>) {
        if !batch.is_empty() {
            self.queued.fetch_add(batch.len(), Ordering::Relaxed);
            let mut queue = self.queue();
            queue.batches.push_back(batch);
            let watched_only = queue.idle == 0 && !fault!("mvcc.collect.wakes_the_watch");
            drop(queue);
            if watched_only { self.hurry.notify_one() } else { self.wake.notify_one() }
        }
    }

    /// Puts what a snapshot kept into the queue as it is: who ends one does no more than that.
    pub(super) fn enqueue_all(&self, kept: Vec<Batch<K, V>>) {
        if !kept.is_empty() {
            let versions = kept.iter().map(Vec::len).sum();
            self.queued.fetch_add(versions, Ordering::Relaxed);
            self.queue().batches.extend(kept);
            self.wake_all();
        }
    }

    pub(super) fn wake_all(&self) {
        self.wake.notify_all();
        self.hurry.notify_all();
    }

    /// Sleeps until there is something to do.
    pub(super) fn idle<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue<K, V>>,
    ) -> MutexGuard<'a, Queue<K, V>> {
        queue.idle += 1;
        let mut queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
        queue
    }

    /// The same, but at most for so long.
    pub(super) fn watch<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue<K, V>>,
        most: Duration,
    ) -> MutexGuard<'a, Queue<K, V>> {
        queue.watched = true;
        let waited = self.hurry.wait_timeout(queue, most);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        queue.watched = false;
        queue
    }

    /// Takes a batch from the queue, or several small ones.
    pub(super) fn take(&self, queue: &mut Queue<K, V>) -> Option<Taken<'_, K, V>> {
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
        Some(Taken { graves: self, batches })
    }

    /// The queue, once nobody is at work. No batch is taken while it is held.
    pub(super) fn at_rest(&self) -> MutexGuard<'_, Queue<K, V>> {
        let mut queue = self.queue();
        while queue.at_work > 0 && !fault!("mvcc.collect.at_rest") {
            queue = self.calm.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue
    }

    pub fn count_collected(&self) {
        self.collected.add(1);
    }

    /// Versions unlinked so far because no snapshot saw them.
    pub fn collected(&self) -> usize {
        self.collected.sum()
    }

    /// Versions in the queue: how far collection lags.
    pub fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    pub(super) fn is_unattended(&self) -> bool {
        self.unattended.load(Ordering::Relaxed)
    }

    /// Versions in lists and queue.
    pub fn waiting(&self) -> usize {
        let listed: usize = self.lists.iter().map(|list| lock(&list.0).len()).sum();
        listed + self.queued()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Batches that a thread works on; until it is dropped, come what may: others wait for that.
pub(super) struct Taken<'a, K: Key + ?Sized, V: Value + ?Sized> {
    pub(super) graves: &'a Graves<K, V>,
    pub(super) batches: Vec<Batch<K, V>>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Taken<'_, K, V> {
    fn drop(&mut self) {
        let mut queue = self.graves.queue();
        queue.at_work -= 1;
        if queue.at_work == 0 {
            self.graves.calm.notify_all();
        }
    }
}
