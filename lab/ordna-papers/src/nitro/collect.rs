//! Collection of dead versions.
//!
//! # Contract
//! A dead version is unlinked as soon as no live snapshot sees it, and not before. Each is unlinked
//! once: its only [`DeadVersion`] is in one list at a time. All methods may be called concurrently.
//!
//! # Protocol
//! The live snapshots in [born, dead) see a dead version, and no later snapshot does. The version
//! is stored in its writer's garbage list until that list is full or some snapshot ends. Then all
//! lists become batches of the queue. A collector takes a batch and examines it. It unlinks each
//! version that no live snapshot sees. It attaches each other version to the youngest snapshot that
//! sees it (its *keeper*), and examines it again when that snapshot ends. So an old snapshot keeps
//! only the versions that it sees.
//!
//! In the paper's order ([`Order::Epochs`](super::Order::Epochs)), a snapshot keeps every version
//! that died after it, whether the snapshot sees the version or not.
//!
//! # No version is lost
//! 1. The queue and the number of busy threads change under one lock. A collector checks the queue
//!    under this lock before it sleeps.
//! 2. A keeper that ends while a batch is examined accepts no versions; the collector examines them
//!    again.
//! 3. A snapshot may end after a writer has read the live set and before the writer's version is in
//!    the garbage list. It does not find the version, so the writer reads the live set again
//!    afterwards (see [`super::write`]).
//!
//! # Threads
//! The index starts the configured number of collectors at the first batch. A writer that finds the
//! queue long takes a batch itself, so garbage cannot outrun collection. Without collectors, the
//! thread that fills the queue empties it. A writer does so only after the end of its announcement,
//! because readers of snapshots and writers of the next epoch wait for announcements.
//!
//! Source: the Nitro paper, §4. The paper queues the lists when a snapshot is taken. Here they are
//! queued when a snapshot ends, because only then can versions become collectable. Collection by
//! the live set is our own.

use std::thread;

use super::engine::Engine;
use super::garbage::{Batch, Taken};
use super::version::{DeadVersion, Rank};
use ordna::store::epochs::Epoch;
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{fault, handed_on, point};
use ordna_base::{Key, Value};

/// Queue length, in versions, above which writers help to collect.
const LONG_QUEUE: usize = 64 << 10;
/// Number of versions after which a collector leaves its reading section, so that memory can be
/// reclaimed.
const SECTION: usize = 256;

impl<K: Key + ?Sized, V: Value + ?Sized> Engine<K, V> {
    /// Queues all garbage lists and the versions that an ended snapshot kept, and starts their
    /// examination.
    pub fn examine_again(&self, kept: Vec<Batch<K, V>>) {
        self.garbage.enqueue(kept);
        self.garbage.queue_lists();
        if !self.start_collectors() {
            self.drain();
        }
    }

    /// Queues all garbage lists, for a writer that is still announced. If the writer has to collect
    /// itself, it does so in [`help`](Self::help).
    pub fn leave_to_collectors(&self) {
        self.garbage.queue_lists();
        self.start_collectors();
    }

    /// Takes part in collection after a write if the queue is long or no collector runs.
    #[inline]
    pub fn help(&self) {
        match self.garbage.queued() {
            0 => {}
            _ if self.garbage.is_unattended() => self.drain(),
            queued if queued > LONG_QUEUE => drop(self.work_off_one()),
            _ => {}
        }
    }

    /// Collects all garbage that no snapshot needs, and waits for the busy collectors.
    pub fn collect(&self) {
        self.garbage.queue_lists();
        self.drain();
        drop(self.garbage.at_rest());
    }

    fn drain(&self) {
        while self.work_off_one() {}
    }

    fn work_off_one(&self) -> bool {
        let Some(mut taken) = self.garbage.take(&mut self.garbage.queue()) else { return false };
        self.examine(&mut taken);
        true
    }

    fn examine(&self, taken: &mut Taken<'_, K, V>) {
        let mut batch: Batch<K, V> = taken.batches.drain(..).flatten().collect();
        while !batch.is_empty() {
            let live: Vec<u64> = self.epochs.live().keys().map(|epoch| epoch.get()).collect();
            let mut kept: Vec<(u64, DeadVersion<K, V>)> = Vec::new();
            let mut unseen = Vec::new();
            for dead in batch {
                match self.keeper(&dead, &live) {
                    Some(epoch) => kept.push((epoch, dead)),
                    None => unseen.push(dead),
                }
            }
            point("nitro.collect.examined");
            // Sorted, so that neighbours are unlinked one after the other; see `unlink_all`.
            unseen.sort_unstable_by_key(|dead: &DeadVersion<K, V>| dead.head);
            let mut unseen = unseen.into_iter();
            while unseen.len() > 0 {
                self.unlink_all(unseen.by_ref().take(SECTION).collect());
            }
            batch = self.keep(kept);
        }
    }

    /// Returns the youngest live snapshot that sees the version or, in the paper's order, keeps it.
    fn keeper(&self, dead: &DeadVersion<K, V>, live: &[u64]) -> Option<u64> {
        if fault!("nitro.collect.keeps") {
            return None;
        }
        let older = &live[..live.partition_point(|epoch| *epoch < dead.dead)];
        older.last().copied().filter(|keeper| *keeper >= self.garbage.first_that_keeps(dead))
    }

    /// Unlinks versions that no snapshot sees. The cache misses of their searches overlap.
    fn unlink_all(&self, section: Batch<K, V>) {
        let guard = self.collector.pin();
        let ranks: Vec<Rank<'_, K>> = section.iter().map(|dead| dead.rank(&guard)).collect();
        let mut section = section.into_iter();
        self.versions.find_many(ranks.into_iter(), &guard, |place| {
            if let Some(dead) = section.next() {
                self.unlink(dead, place, &guard);
            }
        });
    }

    /// Attaches each version to its keeper. Returns the versions whose keeper has ended in the
    /// meantime.
    fn keep(&self, mut kept: Vec<(u64, DeadVersion<K, V>)>) -> Batch<K, V> {
        kept.sort_by_key(|(epoch, _)| *epoch);
        let mut ended = Vec::new();
        let mut kept = kept.into_iter().peekable();
        while let Some((epoch, dead)) = kept.next() {
            let mut group = vec![dead];
            while let Some((_, dead)) = kept.next_if(|(next, _)| *next == epoch) {
                group.push(dead);
            }
            // The keeper's release takes the same lock, and takes the kept versions after it.
            let live = self.epochs.live();
            if live.contains_key(&Epoch::new(epoch)) {
                self.garbage.keep(epoch, group);
            } else {
                ended.extend(again(group));
            }
        }
        ended
    }

    /// Starts the collectors if they do not run. Returns whether any is running.
    fn start_collectors(&self) -> bool {
        if self.garbage.is_unattended() {
            return false;
        }
        let mut queue = self.garbage.queue();
        if !queue.started && !queue.stop {
            queue.started = true;
            for _ in 0..self.garbage.collectors {
                let Some(engine) = self.me.upgrade() else { break };
                let run = handed_on(move || engine.run_collector());
                let thread = thread::Builder::new().name("nitro collector".to_owned()).spawn(run);
                queue.threads.extend(thread.ok());
            }
            if queue.threads.is_empty() {
                self.garbage.unattended.store(true, Ordering::Relaxed);
            }
        }
        !queue.threads.is_empty()
    }

    fn run_collector(&self) {
        let mut queue = self.garbage.queue();
        while !queue.stop {
            if let Some(mut taken) = self.garbage.take(&mut queue) {
                drop(queue);
                self.examine(&mut taken);
                drop(taken);
                queue = self.garbage.queue();
            } else {
                let woken = self.garbage.wake.wait(queue);
                queue = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }

    /// Ends the collectors and waits for them. Batches stay in the queue.
    pub fn stop(&self) {
        let threads = {
            let mut queue = self.garbage.queue();
            queue.stop = true;
            std::mem::take(&mut queue.threads)
        };
        self.garbage.wake.notify_all();
        for thread in threads {
            // The panic hook has reported a collector's panic already.
            let _ = thread.join();
        }
    }
}

/// Returns the versions whose keeper has ended, to be examined again.
fn again<K: Key + ?Sized, V: Value + ?Sized>(group: Batch<K, V>) -> Batch<K, V> {
    if fault!("nitro.collect.keeper_ended") { Vec::new() } else { group }
}
