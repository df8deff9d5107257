//! Collection: what becomes of dead versions.
//!
//! # Contract
//! A dead version is unlinked once no live snapshot sees it, and not before. Each is unlinked once:
//! it has one [`Corpse`], which one list holds at a time. Everything here may run at once.
//!
//! # Protocol
//! A dead version is seen by the live snapshots in [born, dead), and by none to come. It stands in
//! its writer's list until that is long or some snapshot ends; then all lists are *stitched* into
//! the queue of batches. Who takes a batch from the queue examines it: a version that no live
//! snapshot sees is unlinked, any other is attached to the youngest snapshot that sees it (its
//! *keeper*), to be examined again when that ends. So each look at a version follows from the end of
//! a snapshot, and one old snapshot keeps what it sees and nothing else.
//!
//! In the paper's order ([`Order::Terms`]) a version is kept by every snapshot older than its death,
//! whether it sees the version or not: an old snapshot keeps all that died since.
//!
//! # Nothing is lost
//! 1. A batch in the queue is somebody's: the queue and the count of those at work change under one
//!    lock, and a collector looks at the queue under it before it sleeps.
//! 2. A keeper that ends while a batch is examined cannot be attached to; the rest of the batch is
//!    then examined once more.
//! 3. A snapshot that ends between a writer's look at the live set and its entry in the writer's
//!    list does not find the entry; the writer looks again after it (see [`super::write`]).
//!
//! # Who collects
//! Threads of the store's own, started when there is something to do, as many as asked for. A
//! writer that finds the queue long takes a batch itself, so garbage cannot outrun collection. With
//! no threads, whoever fills the queue empties it, a writer after the end of its announcement: snapshot
//! readers and writers of the next term wait for that.
//!
//! A thread with nothing to do is *idle*, until something is queued, or, if there is a deadline, the one
//! that *watches* it: it sleeps until then. Whoever queues something wakes an idle one, or else the one that
//! watches; an idle one takes its place when it finds nobody there.
//!
//! Source: the Nitro paper, §4. There lists are stitched when a snapshot is made; here when one ends,
//! which is when there is something to decide. Collection by the live set is ours.

use std::thread::{self};

use super::engine::Engine;
use super::graves::*;
use super::payment::Payment;
use super::raw::{Corpse, Rank};
use super::structure::Structure;
use ordna::store::ttl::Deadlines;
use ordna_base::index::Change;
use ordna_base::reclaim::Guard;
use ordna_base::sync::atomic::{AtomicBool, Ordering};
use ordna_base::sync::{fault, point, stripe_of_this_thread};
use ordna_base::{Key, Value};

/// So many versions in the queue make writers help.
const LONG_QUEUE: usize = 64 << 10;
/// A collector leaves its reading section after so many versions.
const SECTION: usize = 256;
/// So many expired keys are looked at in one go.
const DUE: usize = 256;

impl<K: Key + ?Sized, V: Value + ?Sized> Engine<K, V> {
    /// Has all dead versions examined that no snapshot is known to keep.
    pub fn hand_over(&self) {
        self.graves.stitch();
        if !self.start_collectors() {
            self.drain();
        }
    }

    /// Has what a snapshot kept that has ended examined again, and all else.
    pub fn examine_again(&self, kept: Vec<Batch<K, V>>) {
        self.graves.enqueue_all(kept);
        self.hand_over();
    }

    /// The same for a writer, whose announcement others wait for: what is left to callers is done in
    /// [`help`](Self::help).
    pub fn leave_to_collectors(&self) {
        self.graves.stitch();
        self.start_collectors();
    }

    /// After a write: takes part if the queue is long, or nobody else would.
    #[inline]
    pub fn help(&self) {
        match self.graves.queued() {
            0 => {}
            _ if self.graves.is_unattended() => self.drain(),
            queued if queued > LONG_QUEUE => drop(self.work_off_one()),
            _ => {}
        }
    }

    /// Collects all that can be, expired keys too, and waits for the collectors at work.
    pub fn collect(&self) {
        while self.expire() > 0 {}
        self.graves.stitch();
        self.drain();
        drop(self.graves.at_rest());
    }

    /// Runs `audit` while the store's own threads change nothing.
    pub fn while_at_rest<R>(&self, audit: impl FnOnce() -> R) -> R {
        let _turn = self.deadlines.turn();
        let _queue = self.graves.at_rest();
        audit()
    }

    fn drain(&self) {
        while self.work_off_one() {}
    }

    fn work_off_one(&self) -> bool {
        let Some(mut taken) = self.graves.take(&mut self.graves.queue()) else { return false };
        self.examine(&mut taken);
        true
    }

    fn examine(&self, taken: &mut Taken<'_, K, V>) {
        let mut batch: Batch<K, V> = taken.batches.drain(..).flatten().collect();
        while !batch.is_empty() {
            let live: Vec<u64> = self.terms.live().keys().copied().collect();
            let keeper = |corpse: &Corpse<K, V>| {
                let older = &live[..live.partition_point(|term| *term < corpse.dead)];
                let keeper = older.last().copied()?;
                (keeper >= self.graves.first_that_keeps(corpse)).then_some(keeper)
            };
            let mut kept: Vec<(u64, Corpse<K, V>)> = Vec::new();
            let mut unseen = Vec::new();
            for corpse in batch {
                match keeper(&corpse) {
                    Some(term) if !fault!("mvcc.collect.keeps") => kept.push((term, corpse)),
                    _ => unseen.push(corpse),
                }
            }
            point("mvcc.collect.examined");
            // Neighbours are unlinked one after the other; see `unlink_all`.
            unseen.sort_unstable_by_key(|corpse: &Corpse<K, V>| corpse.head);
            let mut unseen = unseen.into_iter();
            while unseen.len() > 0 {
                let guard = self.collector.pin();
                self.unlink_all(unseen.by_ref().take(SECTION).collect(), &guard);
            }
            batch = self.keep(kept);
        }
    }

    /// Unlinks versions that no snapshot sees. Their places are looked up with overlapping misses.
    fn unlink_all(&self, section: Batch<K, V>, guard: &Guard<'_>) {
        let ranks: Vec<Rank<'_, K>> = section.iter().map(|corpse| corpse.rank(guard)).collect();
        let mut corpses = section.into_iter();
        self.versions.places(ranks.into_iter(), guard, |place| {
            if let Some(corpse) = corpses.next() {
                self.unlink(corpse, place, guard);
            }
        });
    }

    /// Attaches each version to its keeper. Returns those whose keeper has ended meanwhile.
    fn keep(&self, mut kept: Vec<(u64, Corpse<K, V>)>) -> Batch<K, V> {
        kept.sort_by_key(|(term, _)| *term);
        let mut ended = Vec::new();
        let mut kept = kept.into_iter().peekable();
        while let Some((term, corpse)) = kept.next() {
            let mut group = vec![corpse];
            while let Some((_, corpse)) = kept.next_if(|(next, _)| *next == term) {
                group.push(corpse);
            }
            if let Err(group) = self.terms.attach(term, group)
                && !fault!("mvcc.collect.keeper_ended")
            {
                ended.extend(group);
            }
        }
        ended
    }

    /// Removes expired keys, up to a number. Returns how many were looked at. One caller at a time: who
    /// is told of none finds that those of another are gone.
    fn expire(&self) -> usize {
        let now = self.time.now();
        let _turn = (!fault!("mvcc.expire.turn")).then(|| self.deadlines.turn());
        let due = self.deadlines.due(now, DUE);
        if self.deadlines.earliest() < u64::MAX && !fault!("mvcc.expire.wakes") {
            // A collector that looked meanwhile has found no deadline, and sleeps.
            self.wake_for_deadline();
        }
        point("mvcc.expire.due");
        let mut unfinished = Unfinished { deadlines: &self.deadlines, now: Some(now) };
        for key in &due {
            let key: &K = std::borrow::Borrow::borrow(key);
            let writing = self.terms.enter(stripe_of_this_thread());
            let guard = self.collector.pin();
            // Shown as absent means expired, or really absent. Removals need no memory.
            let done = self.apply::<&V, _>(key, writing.term, &guard, Payment::Due, |found| {
                if found.is_none() { Change::Remove } else { Change::Keep }
            });
            debug_assert_eq!(done, Ok(()));
        }
        unfinished.now = None;
        due.len()
    }

    /// A deadline came nearer.
    pub fn wake_for_deadline(&self) {
        self.start_collectors();
        // Under the lock: a collector that has just looked at the deadlines is asleep by then.
        let queue = self.graves.queue();
        let sleeping = if queue.watched { &self.graves.hurry } else { &self.graves.wake };
        sleeping.notify_one();
    }

    /// Starts the collectors if that was not done. Returns whether they can be relied on.
    fn start_collectors(&self) -> bool {
        if self.graves.is_unattended() {
            return false;
        }
        let mut queue = self.graves.queue();
        if !queue.started && !queue.stop {
            queue.started = true;
            for _ in 0..self.graves.collectors {
                let Some(engine) = self.me.upgrade() else { break };
                let run = move || engine.run_collector();
                let thread = thread::Builder::new().name("ordna collector".to_owned()).spawn(run);
                queue.threads.extend(thread.ok());
            }
            if queue.threads.is_empty() {
                self.graves.unattended.store(true, Ordering::Relaxed);
            }
        }
        !queue.threads.is_empty()
    }

    fn run_collector(&self) {
        let graves = &self.graves;
        let _attendance = Attendance(&graves.unattended);
        let mut queue = graves.queue();
        while !queue.stop {
            if let Some(mut taken) = graves.take(&mut queue) {
                drop(queue);
                self.examine(&mut taken);
                point("mvcc.collector.finishing");
                drop(taken);
                queue = graves.queue();
                continue;
            }
            let earliest = self.deadlines.earliest();
            if earliest == u64::MAX || (queue.watched && !fault!("mvcc.collect.one_watches")) {
                queue = graves.idle(queue);
                continue;
            }
            let left = self.time.until(earliest);
            if !left.is_zero() {
                queue = graves.watch(queue, left);
                continue;
            }
            drop(queue);
            self.expire();
            queue = graves.queue();
        }
    }

    /// Ends the collectors and waits for them. What is queued stays so.
    pub fn stop(&self) {
        let threads = {
            let mut queue = self.graves.queue();
            queue.stop = true;
            self.graves.wake_all();
            std::mem::take(&mut queue.threads)
        };
        for thread in threads {
            // The last handle may be dropped by a collector itself, in a hook.
            if thread.thread().id() != thread::current().id() {
                // A collector that panicked in the caller's clock has said so.
                let _ = thread.join();
            }
        }
    }
}

/// Of who removes expired keys: those of `now` and before. If it panics, in the caller's clock, the next one
/// is to look again.
struct Unfinished<'a, K: Key + ?Sized> {
    deadlines: &'a Deadlines<K>,
    now: Option<u64>,
}

impl<K: Key + ?Sized> Drop for Unfinished<'_, K> {
    fn drop(&mut self) {
        if let Some(now) = self.now
            && !fault!("mvcc.expire.panics")
        {
            self.deadlines.schedule(now);
        }
    }
}

/// Of a collector. Its panic, in the caller's clock, leaves the work to others.
struct Attendance<'a>(&'a AtomicBool);

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::options::Order;
    use super::*;

    /// Nobody waits for a thread that has panicked at work.
    #[test]
    fn who_panics_at_work_is_at_work_no_more() {
        let graves: Graves<u64, u64> = Graves::new(0, Order::LiveSet);
        graves.queue().batches.extend([Vec::new(), Vec::new()]);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _taken = graves.take(&mut graves.queue()).unwrap();
            assert_eq!(graves.queue().at_work, 1);
            std::panic::resume_unwind(Box::new("at work"));
        }));
        assert!(panicked.is_err());
        assert_eq!(graves.queue().at_work, 0);
    }
}
