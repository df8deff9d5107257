//! Epochs: the announcements of writers, the live snapshots, and settled epochs.
//!
//! # Contract
//! Any number of threads enter as writers, take and release snapshots at once. A snapshot of epoch
//! *t* is a cut: it holds what writers of the epochs up to *t* write, and nothing of later ones. No
//! write of a later epoch begins before all those are done.
//!
//! # Protocol
//! A writer *announces* itself in the current epoch, looks again whether that epoch is still the
//! current one, and withdraws if not. To take a snapshot of the current epoch *t* is to register it
//! and to make *t* + 1 the current epoch. An epoch is *settled* when it is over and none of its
//! announced writers is left. Two waits follow:
//!
//! 1. A writer of epoch *t* + 1 waits until *t* is settled before it writes (the *gate*).
//! 2. A reader of snapshot *t* waits until *t* is settled before it reads.
//!
//! So all writes of an epoch come before all writes of the next, epochs never run backwards along a
//! key, and the snapshot lies between two writes. Taking one waits for no writer.
//!
//! # Invariants
//! 1. *The second look.* Announcement and second look are sequentially consistent. So is a
//!    fence in the settler, between learning that *t* is over and reading the announcements. If
//!    the writer's second look still returns *t*, it precedes the store of *t* + 1, so it precedes
//!    the settler's fence in the single order, and so does the announcement; the settler sees it
//!    and waits. If not, the writer withdraws and has written nothing. So one look at each stripe
//!    is enough: a writer that announces itself after it withdraws.
//! 2. *Two announcement counters per stripe*, by the parity of the epoch, are enough: *t* + 2 begins
//!    only after *t* is settled. A late announcement of *t* that is about to be withdrawn may stand
//!    in the counter of *t* + 2 for a moment; that delays a settling and harms nothing.
//! 3. *A snapshot while the epoch before the current one is not settled* is that of the epoch before
//!    once more. The gate is closed, so nothing was written in the current epoch, and both cuts are
//!    the same. The gate opens under the lock of the live set. So all writers of the current epoch
//!    see a snapshot that was registered under that lock while the gate was closed.
//! 4. `youngest` is the youngest live snapshot whenever the lock is free. A writer of epoch *t* sees
//!    all snapshots below *t* in it: they were registered under the lock, under which later the
//!    gate of *t* opened.
//!
//! # Progress
//! Blocking, briefly: after a snapshot, writers and its readers wait for the writes that were under
//! way, of which a batch is one. Snapshots wait for each other only.
//!
//! Source: the Nitro paper, §3.1, where writers must stand still while a snapshot is taken. The
//! announcement is ours. `tests/loom_epochs.rs` is its model.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::PoisonError;
use std::time::Instant;

use crate::epoch::AtomicEpoch;
pub use crate::epoch::Epoch;
use ordna_base::sync::atomic::{AtomicUsize, Ordering, fence};
use ordna_base::sync::{Backoff, Mutex, MutexGuard, StripedCounter, check, fault, order, point};

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe([AtomicUsize; 2]);

/// A snapshot that a caller holds.
#[derive(Debug)]
pub struct Live {
    /// When the first of its holders took it.
    pub since: Instant,
    /// How many [`Epochs::snapshot`] calls returned it and were not released.
    holders: usize,
    /// Items in it, once the epoch is settled.
    len: Option<usize>,
}

/// The live snapshots by epoch.
pub type Lives = BTreeMap<Epoch, Live>;

/// Epochs of one store.
#[derive(Debug)]
pub struct Epochs {
    current: AtomicEpoch,
    settled: AtomicEpoch,
    youngest: AtomicEpoch,
    announced: Box<[Stripe]>,
    live: Mutex<Lives>,
    /// Items in the current state. Writers count between their announcement and its end.
    pub items: StripedCounter,
    /// Times a writer or a reader waited for an epoch to settle.
    pub waits: AtomicUsize,
}

/// A writer's announcement. Ends it when dropped.
#[derive(Debug)]
pub struct Writing<'a> {
    announced: &'a AtomicUsize,
    /// The epoch to write in.
    pub epoch: Epoch,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.announced.fetch_sub(1, order_of_leaving());
    }
}

impl Epochs {
    /// Epoch 1, no snapshots, announcements on `stripes` cache lines.
    pub fn new(stripes: usize) -> Self {
        Self {
            current: AtomicEpoch::new(Epoch::FIRST),
            settled: AtomicEpoch::new(Epoch::ZERO),
            youngest: AtomicEpoch::new(Epoch::ZERO),
            announced: (0..stripes.max(1)).map(|_| Stripe::default()).collect(),
            live: Mutex::new(BTreeMap::new()),
            items: StripedCounter::new(),
            waits: AtomicUsize::new(0),
        }
    }

    /// The live snapshots. Held for moments only: taking a snapshot needs it.
    pub fn live(&self) -> MutexGuard<'_, Lives> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the current epoch as a writer, on one of the stripes.
    #[inline]
    pub fn enter(&self, stripe: usize) -> Writing<'_> {
        let stripe = &self.announced[stripe % self.announced.len()];
        loop {
            // Acquire: pairs with the store in `open`. The snapshots below the epoch are in
            // `youngest`.
            let epoch = self.current.load(Ordering::Acquire);
            point("store.enter.before_announcement");
            let announced = &stripe.0[epoch.parity()];
            let writing = Writing { announced, epoch };
            announce(announced);
            point("store.enter.before_second_look");
            let is_current = self.current.load(ORDER_OF_LOOK) == epoch;
            if check!("epochs.enter.second_look", is_current) {
                if !fault!("epochs.enter.gate") {
                    self.settle(epoch.previous());
                }
                return writing;
            }
        }
    }

    /// Registers a snapshot of all that was written up to now, and opens the next epoch. Returns its
    /// epoch. O(log s) with s live snapshots.
    pub fn snapshot(&self) -> Epoch {
        let mut live = self.live();
        let current = self.current.load(Ordering::Relaxed);
        let settled = self.settled.load(Ordering::Relaxed).next() == current
            || (self.is_quiet(current.previous())
                && self.finish_settling(&mut live, current.previous()));
        let gate_open = check!("epochs.snapshot.shares_the_unsettled", settled);
        let epoch = if gate_open { current } else { current.previous() };
        live.entry(epoch)
            .or_insert_with(|| Live { since: Instant::now(), holders: 0, len: None })
            .holders += 1;
        // Under the lock: the gate of the next epoch opens under it too, so later, and no writer of
        // that epoch overlooks us.
        self.youngest.store(epoch, Ordering::Release);
        if gate_open {
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
                "epochs.snapshot.shares_the_unsettled",
                self.settled.load(Ordering::Relaxed).next().next() == epoch
            ),
            "an epoch begins once all but the one before it are settled"
        );
        // Release: pairs with the load in `enter`.
        self.current.store(epoch, Ordering::Release);
    }

    /// Waits until no writer of `epoch`, which is over, is left.
    #[inline]
    pub fn settle(&self, epoch: Epoch) {
        // Acquire: pairs with the release that settled the epoch; its writes are visible.
        if self.settled.load(order!("epochs.settle.acquire", Acquire)) < epoch {
            self.settle_slowly(epoch);
        }
    }

    #[cold]
    fn settle_slowly(&self, epoch: Epoch) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let mut backoff = Backoff::new();
        while self.settled.load(Ordering::Acquire) < epoch && !self.is_quiet(epoch) {
            backoff.wait();
        }
        let mut live = self.live();
        if self.settled.load(Ordering::Relaxed) < epoch {
            self.finish_settling(&mut live, epoch);
        }
    }

    /// Whether no writer of `epoch`, which the caller knows to be over, is left.
    fn is_quiet(&self, epoch: Epoch) -> bool {
        if !fault!("epochs.settle.fence") {
            // Invariant 1.
            fence(Ordering::SeqCst);
        }
        let stripes = self.announced.iter();
        // Acquire: pairs with the end of each announcement.
        let order = order!("epochs.quiet.acquire", Acquire);
        let mut counts = stripes.map(|stripe| stripe.0[epoch.parity()].load(order));
        check!("epochs.settle.waits", counts.all(|count| count == 0))
    }

    fn finish_settling(&self, live: &mut Lives, epoch: Epoch) -> bool {
        debug_assert!(
            epoch < self.current.load(Ordering::Relaxed),
            "an epoch ends before it settles"
        );
        debug_assert!(self.settled.load(Ordering::Relaxed) < epoch, "an epoch settles once");
        if let Some(live) = live.get_mut(&epoch) {
            // Exact: the writers of the epoch are gone, and those of the next await the store below.
            live.len = Some(self.items.sum());
        }
        // Release: publishes the writes of the epoch, which `is_quiet` acquired.
        self.settled.store(epoch, order!("epochs.settle.release", Release));
        true
    }

    /// Items in a live snapshot.
    pub fn len_at(&self, epoch: Epoch) -> usize {
        self.settle(epoch);
        self.live().get(&epoch).and_then(|live| live.len).unwrap_or(0)
    }

    /// The epoch of the youngest live snapshot, or [`Epoch::ZERO`]. For a writer behind its gate: it sees all
    /// snapshots below its epoch.
    #[inline]
    pub fn youngest(&self) -> Epoch {
        self.youngest.load(Ordering::Acquire)
    }

    /// The live snapshots, oldest first, and the settled epoch of the same moment.
    pub fn live_epochs(&self) -> (Vec<Epoch>, Epoch) {
        let live = self.live();
        (live.keys().copied().collect(), self.settled.load(Ordering::Acquire))
    }

    /// The largest epoch *t* such that no snapshot below *t* lives or will live, and no writer is in
    /// an epoch up to *t*.
    pub fn horizon(&self) -> Epoch {
        let live = self.live();
        let settled = self.settled.load(Ordering::Acquire);
        live.first_key_value().map_or(settled, |(oldest, _)| settled.min(*oldest))
    }

    /// Ends the current epoch if no snapshot lives, so that what was written in it can be settled.
    /// Returns the epoch that ended last, unless a snapshot lives.
    pub fn close_if_unseen(&self) -> Option<Epoch> {
        let live = self.live();
        if !live.is_empty() {
            return None;
        }
        let current = self.current.load(Ordering::Relaxed);
        if self.settled.load(Ordering::Relaxed).next() == current {
            self.open(current.next());
            return Some(current);
        }
        // The epoch before is not settled yet: the current one holds no writes.
        Some(current.previous())
    }

    /// Undoes one [`snapshot`](Self::snapshot). Returns whether it was the last of its epoch.
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

/// The order of announcement and second look. loom takes `SeqCst` for `AcqRel`: there a fence
/// stands between them.
const ORDER_OF_LOOK: Ordering = if FENCED { Ordering::Relaxed } else { Ordering::SeqCst };
const FENCED: bool = cfg!(any(loom, shuttle));
const _: () = assert!(FENCED || matches!(ORDER_OF_LOOK, Ordering::SeqCst));

/// Counts a writer.
#[inline]
fn announce(announced: &AtomicUsize) {
    announced.fetch_add(1, ORDER_OF_LOOK);
    if FENCED && !fault!("epochs.enter.fence") {
        fence(Ordering::SeqCst);
    }
}

/// Release: pairs with the loads in `is_quiet`. A thread that sees the epoch settled sees its
/// writes.
fn order_of_leaving() -> Ordering {
    if fault!("epochs.leave.release") { Ordering::Relaxed } else { Ordering::Release }
}
