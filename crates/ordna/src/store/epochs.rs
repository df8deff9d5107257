//! Epochs: the registration of active writers, live snapshots, and quiesced epochs.
//!
//! # Contract
//! Threads enter as writers, take snapshots and release them concurrently. The snapshot of epoch
//! *t* is a consistent cut: it holds everything that writers of the epochs up to *t* write, and
//! nothing of later ones. No write of a later epoch begins before all those writes are done.
//!
//! # Protocol
//! A writer *registers* in the current epoch, rechecks that this epoch is still the current one, and
//! withdraws if it is not. A thread that takes a snapshot of the current epoch *t* registers the
//! snapshot and makes *t* + 1 the current epoch. An epoch is *quiesced* when it is over and none of
//! its registered writers is left. Two waits follow:
//!
//! 1. A writer of epoch *t* + 1 waits until *t* is quiesced before it writes (the *barrier*).
//! 2. A reader of snapshot *t* waits until *t* is quiesced before it reads.
//!
//! So all writes of an epoch precede all writes of the next one, the epochs of a key's writes never
//! decrease, and the snapshot lies between two writes. Taking a snapshot waits for no writer.
//!
//! # Invariants
//! 1. *Recheck.* Registration and recheck are sequentially consistent. So is the fence of a thread
//!    that waits for *t* to quiesce: it comes after that thread has learned that *t* is over, and
//!    before it reads the counters of writers. If the writer's recheck still returns *t*, the
//!    recheck precedes the store of *t* + 1, and thereby the fence, in the single total order. So
//!    does the registration, and the waiting thread sees the writer. Otherwise the writer withdraws
//!    and has written nothing. So one pass over the stripes is enough: a writer that registers
//!    after the pass withdraws.
//! 2. *Two counters per stripe*, selected by the parity of the epoch, are enough, because *t* + 2
//!    begins only after *t* is quiesced. A late registration in *t* that is about to be withdrawn
//!    may briefly count for *t* + 2. This only delays the wait.
//! 3. *A snapshot that is taken before the previous epoch is quiesced* shares the snapshot of that
//!    epoch. The barrier is closed, so nothing was written in the current epoch, and both cuts are
//!    equal. The barrier opens under the lock of the live snapshots, so all writers of the current
//!    epoch see a snapshot that was registered under that lock while the barrier was closed.
//! 4. `youngest` is the youngest live snapshot whenever the lock is free. A writer of epoch *t* sees
//!    all snapshots below *t* in it: they were registered under the lock before the barrier of *t*
//!    opened under the same lock.
//!
//! # Progress
//! Blocking for a short time: after a snapshot, writers and the snapshot's readers wait for the
//! writes in progress; a batch counts as one write. Snapshots wait only for each other.
//!
//! Source: the Nitro paper, §3.1, which stops writers while a snapshot is taken. The registration
//! is our own. `tests/loom_epochs.rs` is its model.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use crate::epoch::AtomicEpoch;
pub use crate::epoch::Epoch;
use ordna_base::sync::atomic::{AtomicUsize, Ordering, fence};
use ordna_base::sync::{
    Backoff, Lock, MutexGuard, StripedCounter, check, fault, notice, order, point,
};

#[derive(Debug, Default)]
#[repr(align(128))]
struct WriterStripe([AtomicUsize; 2]);

/// A snapshot that a caller holds.
#[derive(Debug)]
pub struct Live {
    /// The time when its first holder took it.
    pub since: Instant,
    /// Number of [`Epochs::snapshot`] calls that returned it and were not released.
    holders: usize,
    /// Number of items in the snapshot, once its epoch is quiesced.
    len: Option<usize>,
}

/// The live snapshots by epoch.
pub type Lives = BTreeMap<Epoch, Live>;

/// Epochs of one store.
#[derive(Debug)]
pub struct Epochs {
    current: AtomicEpoch,
    quiesced: AtomicEpoch,
    youngest: AtomicEpoch,
    writers: Box<[WriterStripe]>,
    live: Lock<Lives>,
    /// Number of items in the current state. Writers count while they are registered.
    pub items: StripedCounter,
    /// Number of times that a writer or a reader waited for an epoch to quiesce.
    pub waits: AtomicUsize,
}

/// The registration of a writer, which ends when it is dropped.
#[derive(Debug)]
pub struct ActiveWriter<'a> {
    /// The counter that includes this writer.
    counter: &'a AtomicUsize,
    /// The epoch to write in.
    pub epoch: Epoch,
}

impl Drop for ActiveWriter<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, order_of_leaving());
    }
}

impl Epochs {
    /// Creates the state of epoch 1, without snapshots. Writers register on `stripes` cache lines.
    pub fn new(stripes: usize) -> Self {
        Self {
            current: AtomicEpoch::new(Epoch::FIRST),
            quiesced: AtomicEpoch::new(Epoch::ZERO),
            youngest: AtomicEpoch::new(Epoch::ZERO),
            writers: (0..stripes.max(1)).map(|_| WriterStripe::default()).collect(),
            live: Lock::new(BTreeMap::new()),
            items: StripedCounter::new(),
            waits: AtomicUsize::new(0),
        }
    }

    /// Locks the live snapshots. Hold the lock briefly, because taking a snapshot needs it.
    pub fn live(&self) -> MutexGuard<'_, Lives> {
        self.live.lock()
    }

    /// Registers a writer in the current epoch, on one of the stripes.
    #[inline]
    pub fn enter(&self, stripe: usize) -> ActiveWriter<'_> {
        let stripe = &self.writers[stripe % self.writers.len()];
        loop {
            // Acquire: pairs with the store in `open`, so that `youngest` includes the snapshots
            // below the epoch.
            let epoch = self.current.load(Ordering::Acquire);
            point("store.enter.before_registration");
            let counter = &stripe.0[epoch.parity()];
            let writer = ActiveWriter { counter, epoch };
            register(counter);
            point("store.enter.before_recheck");
            let is_current = self.current.load(ORDER_OF_RECHECK) == epoch;
            if check!("epochs.enter.recheck", is_current) {
                if !fault!("epochs.enter.barrier") {
                    self.wait_quiesced(epoch.previous());
                }
                return writer;
            }
        }
    }

    /// Registers a writer that is the only one until it leaves. Ends its epoch, so that later
    /// writers wait at the barrier of the next one, and waits until the other writers of its epoch
    /// have left. One caller runs at a time, and it must not be registered already: two would wait
    /// for each other.
    ///
    /// By invariant 1, one pass over the stripes that sees no other writer is enough, because the
    /// fence comes after the end of the epoch.
    pub fn enter_alone(&self, stripe: usize) -> ActiveWriter<'_> {
        let writer = self.enter(stripe);
        {
            // A snapshot may have ended the epoch.
            let _live = self.live();
            let is_current = self.current.load(Ordering::Relaxed) == writer.epoch;
            if notice!("transaction.commit.ends_the_epoch", is_current) {
                self.open(writer.epoch.next());
            }
        }
        let mut backoff = Backoff::new();
        while notice!("transaction.commit.alone", !self.is_alone(&writer)) {
            backoff.wait();
        }
        writer
    }

    /// Returns whether no other writer is left in the epoch of `writer`, which is over.
    fn is_alone(&self, writer: &ActiveWriter<'_>) -> bool {
        if !fault!("epochs.alone.fence") {
            // The fence of invariant 1.
            fence(Ordering::SeqCst);
        }
        // Acquire: pairs with the end of each registration.
        let order = order!("epochs.alone.acquire", Acquire);
        self.writers.iter().all(|stripe| {
            let counter = &stripe.0[writer.epoch.parity()];
            counter.load(order) == usize::from(std::ptr::eq(counter, writer.counter))
        })
    }

    /// Registers a snapshot of everything written so far, and opens the next epoch. Returns the
    /// snapshot's epoch. O(log s) with s live snapshots.
    pub fn snapshot(&self) -> Epoch {
        let mut live = self.live();
        let current = self.current.load(Ordering::Relaxed);
        let quiesced = self.quiesced.load(Ordering::Relaxed).next() == current
            || (self.has_no_writers(current.previous())
                && self.mark_quiesced(&mut live, current.previous()));
        let is_open = check!("epochs.snapshot.shares_the_unquiesced", quiesced);
        let epoch = if is_open { current } else { current.previous() };
        live.entry(epoch)
            .or_insert_with(|| Live { since: Instant::now(), holders: 0, len: None })
            .holders += 1;
        // Under the lock: the barrier of the next epoch opens later under the same lock, so all
        // writers of that epoch see this snapshot.
        self.youngest.store(epoch, Ordering::Release);
        if is_open {
            self.open(current.next());
        }
        epoch
    }

    fn open(&self, epoch: Epoch) {
        debug_assert_eq!(
            self.current.load(Ordering::Relaxed).next(),
            epoch,
            "epochs follow each other"
        );
        debug_assert!(
            check!(
                "epochs.snapshot.shares_the_unquiesced",
                self.quiesced.load(Ordering::Relaxed).next().next() == epoch
            ),
            "an epoch begins once all but the one before it are quiesced"
        );
        // Release: pairs with the load in `enter`.
        self.current.store(epoch, Ordering::Release);
    }

    /// Waits until no writer of `epoch`, which is over, is left.
    #[inline]
    pub fn wait_quiesced(&self, epoch: Epoch) {
        // Acquire: pairs with the release that quiesced the epoch, so that its writes are visible.
        if self.quiesced.load(order!("epochs.quiesce.acquire", Acquire)) < epoch {
            self.wait_quiesced_slowly(epoch);
        }
    }

    #[cold]
    fn wait_quiesced_slowly(&self, epoch: Epoch) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let mut backoff = Backoff::new();
        while self.quiesced.load(Ordering::Acquire) < epoch && !self.has_no_writers(epoch) {
            backoff.wait();
        }
        let mut live = self.live();
        if self.quiesced.load(Ordering::Relaxed) < epoch {
            self.mark_quiesced(&mut live, epoch);
        }
    }

    /// Returns whether no writer is left in `epoch`, which the caller knows to be over.
    fn has_no_writers(&self, epoch: Epoch) -> bool {
        if !fault!("epochs.quiesce.fence") {
            // The fence of invariant 1.
            fence(Ordering::SeqCst);
        }
        let stripes = self.writers.iter();
        // Acquire: pairs with the end of each registration.
        let order = order!("epochs.writers.acquire", Acquire);
        let mut counts = stripes.map(|stripe| stripe.0[epoch.parity()].load(order));
        check!("epochs.quiesce.waits", counts.all(|count| count == 0))
    }

    fn mark_quiesced(&self, live: &mut Lives, epoch: Epoch) -> bool {
        debug_assert!(
            epoch < self.current.load(Ordering::Relaxed),
            "an epoch ends before it quiesces"
        );
        debug_assert!(self.quiesced.load(Ordering::Relaxed) < epoch, "an epoch quiesces once");
        if let Some(live) = live.get_mut(&epoch) {
            // Exact: the writers of the epoch have left, and those of the next epoch wait for the
            // store below.
            live.len = Some(self.items.sum());
        }
        // Release: publishes the writes of the epoch, which `has_no_writers` acquired.
        self.quiesced.store(epoch, order!("epochs.quiesce.release", Release));
        true
    }

    /// Returns the number of items in a live snapshot.
    pub fn len_at(&self, epoch: Epoch) -> usize {
        self.wait_quiesced(epoch);
        self.live().get(&epoch).and_then(|live| live.len).unwrap_or(0)
    }

    /// Returns the epoch of the youngest live snapshot, or [`Epoch::ZERO`]. A writer past the
    /// barrier sees all snapshots below its epoch in it.
    #[inline]
    pub fn youngest(&self) -> Epoch {
        self.youngest.load(Ordering::Acquire)
    }

    /// Returns the live snapshots, oldest first, and the quiesced epoch of the same moment.
    pub fn live_epochs(&self) -> (Vec<Epoch>, Epoch) {
        let live = self.live();
        (live.keys().copied().collect(), self.quiesced.load(Ordering::Acquire))
    }

    /// Returns the largest epoch *t* such that no snapshot below *t* exists or can be created, and
    /// no writer is in an epoch up to *t*.
    pub fn horizon(&self) -> Epoch {
        let live = self.live();
        let quiesced = self.quiesced.load(Ordering::Acquire);
        live.first_key_value().map_or(quiesced, |(oldest, _)| quiesced.min(*oldest))
    }

    /// Ends the current epoch if there is no live snapshot, so that it can quiesce. Returns the
    /// epoch that ended last, or `None` if there is a live snapshot.
    pub fn close_if_unseen(&self) -> Option<Epoch> {
        let live = self.live();
        if !live.is_empty() {
            return None;
        }
        let current = self.current.load(Ordering::Relaxed);
        if self.quiesced.load(Ordering::Relaxed).next() == current {
            self.open(current.next());
            return Some(current);
        }
        // The previous epoch is not quiesced yet, so the current one has no writes.
        Some(current.previous())
    }

    /// Undoes one call of [`snapshot`](Self::snapshot). Returns whether it was the last one of its
    /// epoch.
    pub fn release(&self, epoch: Epoch) -> bool {
        let mut live = self.live();
        let Entry::Occupied(mut entry) = live.entry(epoch) else { return false };
        debug_assert!(entry.get().holders > 0, "a snapshot without holders is gone");
        entry.get_mut().holders -= 1;
        if entry.get().holders > 0 {
            return false;
        }
        entry.remove();
        let youngest = live.last_key_value().map_or(Epoch::ZERO, |(epoch, _)| *epoch);
        self.youngest.store(youngest, Ordering::Release);
        true
    }
}

/// Memory order of registration and recheck. loom treats `SeqCst` as `AcqRel`, so under loom there
/// is a fence between them.
const ORDER_OF_RECHECK: Ordering = if FENCED { Ordering::Relaxed } else { Ordering::SeqCst };
const FENCED: bool = cfg!(any(loom, shuttle));
const _: () = assert!(FENCED || matches!(ORDER_OF_RECHECK, Ordering::SeqCst));

/// Counts a writer.
#[inline]
fn register(counter: &AtomicUsize) {
    counter.fetch_add(1, ORDER_OF_RECHECK);
    if FENCED && !fault!("epochs.enter.fence") {
        fence(Ordering::SeqCst);
    }
}

/// Release: pairs with the loads in `has_no_writers`. A thread that sees the epoch quiesced also
/// sees its writes.
fn order_of_leaving() -> Ordering {
    if fault!("epochs.leave.release") { Ordering::Relaxed } else { Ordering::Release }
}
