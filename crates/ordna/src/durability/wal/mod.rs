//! The log of writes (a store's [`Journal`]).
//!
//! # Contract
//! The order of a key's records in the log is the order of its writes in memory. A batch, and the
//! writes of a group, lie in one block: after a crash they are there whole or not at all.
//!
//! # Protocol
//! Each key belongs to one of 64 stripes by its hash. A write takes its stripe's lock, changes the
//! memory, and appends its records to the queue, all in that critical section; so two writers of
//! one key cannot append in the other order than they wrote. A batch takes its stripes in ascending
//! order, a range, a group and a cut take all, so there is no circle of waiters. Under
//! [`SyncPolicy::Always`] the write waits for the fsync after it has let go of the stripe.
//!
//! While a backup without a snapshot runs, the critical section also spills the old state of each
//! key that the backup has not passed (see `delta`). A write of one key takes that state from its
//! own look at the entry, under the leaf's lock. States gather in the lane; a full lane hands them
//! to the delta.
//!
//! # Progress
//! Blocking per stripe. A slow disk holds up writers once 8 MiB wait for it.

pub mod apply;
pub mod queue;
pub mod replay;

use std::any::Any;
use std::borrow::Borrow;
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use self::queue::{Queue, SyncPolicy};
use ordna_base::sync::{fault, handed_on, notice, point, stripe_of_this_thread};

use super::backup::delta::Delta;
use super::files::codec::{
    encode_clear, encode_expire, encode_put, encode_remove, encode_remove_range, encode_splice,
    encode_was,
};
use crate::store::journal::{Entries, Journal, Notes, Run, Scope};
use crate::{Error, Put};
use ordna_base::{Key, Value};

/// Number of stripes: one bit each in a word.
const STRIPES: usize = 64;
/// Recently spilled keys that a stripe remembers, so that a hot key spills once in a while only.
/// Those of all stripes fit a core's cache beside the writer's own data.
const RECENT: usize = 16;

/// Bytes of spilled states at which a lane hands them to the delta. Those of all stripes fit a
/// core's cache.
const GATHERED: usize = 4 << 10;

/// The state of a stripe, for writes in its critical section.
struct Lane<K: Key + ?Sized> {
    /// The delta of the backup under way. The same in all stripes.
    delta: Option<Arc<Delta<K>>>,
    /// Keys that were spilled lately.
    recent: Vec<Option<K::Owned>>,
    /// Whether the write under way is to spill the state that it finds.
    spills: bool,
    /// Spilled states on their way to the delta.
    states: Vec<u8>,
    states_count: u64,
    /// Records of the write under way.
    records: Vec<u8>,
    count: u64,
    /// Of a group: the store was replaced in it.
    cleared: bool,
}

impl<K: Key + ?Sized> Default for Lane<K> {
    fn default() -> Self {
        Self {
            delta: None,
            recent: Vec::new(),
            spills: false,
            states: Vec::new(),
            states_count: 0,
            records: Vec::new(),
            count: 0,
            cleared: false,
        }
    }
}

/// Padded, so that neighbours do not share a cache line.
#[repr(align(128))]
struct Stripe<K: Key + ?Sized>(Mutex<Lane<K>>);

type Held<'a, K> = MutexGuard<'a, Lane<K>>;

/// The log of a store.
pub(crate) struct Wal<K: Key + ?Sized> {
    stripes: Vec<Stripe<K>>,
    /// The thread whose group holds all stripes, as [`this_thread`] names it; 0: none.
    owner: AtomicUsize,
    /// The lane of the group.
    group: Mutex<Lane<K>>,
    pub queue: Arc<Queue>,
    /// Whether writers wait for their fsync themselves under [`SyncPolicy::Always`].
    waits: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A number that no other living thread has; not 0.
fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of a caller's closure leaves a lane usable: each write starts it over.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hash<K: Key + ?Sized>(key: &K) -> u64 {
    // A stripe is chosen by the first and the last eight bytes and the length: cheap, and keys with
    // a common prefix differ at their end.
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    let tail = key.tail();
    let last = tail.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
    let word = key.head() ^ last.rotate_left(29) ^ tail.len() as u64;
    let mixed = word.wrapping_mul(MIX);
    (mixed ^ (mixed >> 32)).wrapping_mul(MIX)
}

fn stripe_of<K: Key + ?Sized>(key: &K) -> usize {
    if fault!("order.stripe.is_the_keys") {
        return stripe_of_this_thread() % STRIPES;
    }
    (hash(key) >> (u64::BITS - STRIPES.trailing_zeros())) as usize
}

impl<K: Key + ?Sized, V: Value + ?Sized> Notes<K, V> for Lane<K> {
    fn start_over(&mut self) {
        self.records.clear();
        self.count = 0;
    }

    fn was(&mut self, key: &K, old: Option<Put<&V>>) {
        let absent_is_lost = old.is_none() && fault!("live.absent.spills");
        if self.spills && !absent_is_lost {
            self.state(key, old);
        }
    }

    fn put(&mut self, key: &K, put: Put<&V>) {
        encode_put(key, put, &mut self.records);
        self.count += 1;
    }

    fn splice(&mut self, key: &K, at: usize, bytes: &[u8]) {
        encode_splice(key, at, bytes, &mut self.records);
        self.count += 1;
    }

    fn expire(&mut self, key: &K, expires_at: Option<u64>) {
        encode_expire(key, expires_at, &mut self.records);
        self.count += 1;
    }

    fn remove(&mut self, key: &K) {
        encode_remove(key, &mut self.records);
        self.count += 1;
    }

    fn remove_range(&mut self, lower: Bound<&K>, upper: Bound<&K>) {
        encode_remove_range(lower, upper, &mut self.records);
        self.count += 1;
    }
}

impl<K: Key + ?Sized> Lane<K> {
    /// Has the lane serve another backup, or none. What it gathered goes to the delta that it had.
    fn serve(&mut self, delta: Option<Arc<Delta<K>>>) {
        self.hand_over();
        self.delta = delta;
        if !fault!("live.recent.is_of_one_backup") {
            self.recent = Vec::new();
        }
        self.states = Vec::new();
    }

    /// Hands the gathered states to the delta.
    fn hand_over(&mut self) {
        if let Some(delta) = &self.delta
            && self.states_count > 0
        {
            delta.spilled(&self.states, self.states_count);
        }
        self.states.clear();
        self.states_count = 0;
    }

    /// Spills the state of the keys that a write of several keys may change.
    fn spill<V: Value + ?Sized>(&mut self, scope: &Scope<'_, K>, store: &dyn Entries<K, V>) {
        if self.delta.is_none() {
            return;
        }
        match *scope {
            Scope::Key(key) => self.spill_key(key, store),
            Scope::Keys(_) if fault!("live.batch.spills") => {}
            Scope::Keys(keys) => keys.iter().for_each(|key| self.spill_key(*key, store)),
            Scope::Range(..) if fault!("live.range.spills") => {}
            Scope::Range(lower, upper) => store.scan_with(lower, upper, &mut |key, put| {
                if self.needs(key) {
                    self.state(key, Some(put));
                }
                ControlFlow::Continue(())
            }),
        }
    }

    fn spill_key<V: Value + ?Sized>(&mut self, key: &K, store: &dyn Entries<K, V>) {
        if self.needs(key) {
            store.read(key, &mut |old| self.state(key, old));
        }
    }

    /// Whether a write of `key` must spill.
    fn needs(&self, key: &K) -> bool {
        let Some(delta) = &self.delta else { return false };
        if !delta.needs(key) {
            return false;
        }
        let recent = self.recent.get(hash(key) as usize % RECENT);
        recent.and_then(Option::as_ref).is_none_or(|recent| recent.borrow() != key)
    }

    /// Gathers the state that `key` has until the write under way.
    fn state<V: Value + ?Sized>(&mut self, key: &K, old: Option<Put<&V>>) {
        let Some(delta) = &self.delta else { return };
        encode_was(key, delta.next_death(), old, &mut self.states);
        self.states_count += 1;
        self.recent.resize(RECENT, None);
        if let Some(place) = self.recent.get_mut(hash(key) as usize % RECENT) {
            match place {
                Some(recent) => key.clone_into(recent),
                None => *place = Some(key.to_owned()),
            }
        }
    }
}

impl<K: Key + ?Sized> Wal<K> {
    /// A log on a queue, with a thread that writes and syncs.
    pub fn start(queue: Queue, waits: bool) -> std::io::Result<Self> {
        let queue = Arc::new(queue);
        let running = Arc::clone(&queue);
        let run = handed_on(move || running.run());
        let thread = thread::Builder::new().name("ordna log".to_owned()).spawn(run)?;
        Ok(Self {
            stripes: (0..STRIPES).map(|_| Stripe(Mutex::default())).collect(),
            owner: AtomicUsize::new(0),
            group: Mutex::default(),
            queue,
            waits,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Takes the stripes whose bits are set, in ascending order.
    fn hold(&self, mut bits: u64) -> Vec<Held<'_, K>> {
        let mut held = Vec::with_capacity(bits.count_ones() as usize);
        while bits != 0 {
            let first = bits.trailing_zeros() as usize;
            held.extend(self.stripes.get(first).map(|stripe| lock(&stripe.0)));
            bits &= bits - 1;
        }
        held
    }

    /// Whether this thread is in a group of its own.
    pub fn in_group(&self) -> bool {
        // Relaxed: only this thread can have stored its own number.
        let owner = self.owner.load(Ordering::Relaxed);
        owner != 0 && owner == this_thread()
    }

    /// Runs `work` while no thread writes; gives it the delta of each stripe to set or clear.
    pub fn stop_writers<R>(
        &self,
        work: impl FnOnce(&mut dyn FnMut(Option<Arc<Delta<K>>>)) -> R,
    ) -> R {
        let mut held = self.hold(u64::MAX);
        work(&mut |delta| {
            held.iter_mut().for_each(|lane| lane.serve(delta.clone()));
        })
    }

    /// Appends what a lane has noted; returns the position behind it, or 0 if that is nothing.
    fn append(&self, lane: &mut Lane<K>) -> Result<u64, Error> {
        let count = std::mem::take(&mut lane.count);
        let done = if count == 0 { Ok(0) } else { self.queue.append(&lane.records, count) };
        lane.records.clear();
        const KEPT: usize = 1 << 20;
        lane.records.shrink_to(KEPT);
        done
    }

    /// Waits for the fsync if writers do.
    fn wait(&self, position: u64) -> Result<(), Error> {
        let waits = notice!("faults.commit.waits", self.waits);
        if position > 0 && waits && self.queue.sync == SyncPolicy::Always {
            return self.queue.wait(position);
        }
        Ok(())
    }

    /// Records that all keys are gone, for a store that takes the place of the journal's former
    /// one. A backup under way keeps to the former store: nothing is spilled for it any more.
    pub fn clear(&self) -> Result<(), Error> {
        if self.in_group() {
            let mut group = lock(&self.group);
            encode_clear(&mut group.records);
            group.count += 1;
            group.serve(None);
            group.cleared = true;
            return Ok(());
        }
        let position = {
            let mut held = self.hold(u64::MAX);
            self.queue.check()?;
            held.iter_mut().for_each(|lane| lane.serve(None));
            let mut record = Vec::new();
            encode_clear(&mut record);
            self.queue.append(&record, 1)?
        };
        self.wait(position)
    }

    /// Writes and syncs everything, and ends the log's thread and segment.
    pub fn close(&self) -> Result<(), Error> {
        let Some(thread) = lock(&self.thread).take() else { return Ok(()) };
        self.queue.stop();
        // A panic there is none of ours; what it left shows when the segment is closed.
        let _ = thread.join();
        self.queue.close()
    }
}

impl<K: Key + ?Sized> Drop for Wal<K> {
    fn drop(&mut self) {
        // Nobody is left to tell; recovery tells of a log that was not closed.
        let _ = self.close();
    }
}

/// Releases a group's ownership even if its work panics: what it wrote is in memory, so it is
/// logged.
struct Group<'a, K: Key + ?Sized> {
    log: &'a Wal<K>,
    held: Vec<Held<'a, K>>,
    appended: Result<u64, Error>,
}

impl<K: Key + ?Sized> Group<'_, K> {
    fn end(&mut self) {
        if self.held.is_empty() {
            return;
        }
        self.log.owner.store(0, Ordering::Relaxed);
        let mut lane = lock(&self.log.group);
        self.appended = self.log.append(&mut lane);
        lane.serve(None);
        if std::mem::take(&mut lane.cleared) {
            self.held.iter_mut().for_each(|stripe| stripe.serve(None));
        }
        drop(lane);
        self.held.clear();
    }
}

impl<K: Key + ?Sized> Drop for Group<'_, K> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Journal<K, V> for Wal<K> {
    fn write(
        &self,
        scope: Scope<'_, K>,
        store: &dyn Entries<K, V>,
        write: &mut Run<'_, K, V>,
    ) -> Result<(), Error> {
        if self.in_group() {
            let mut group = lock(&self.group);
            if !fault!("live.group.spills") {
                group.spill(&scope, store);
            }
            // Its own notes, so that a write that fails or starts over leaves those before it
            // alone.
            let mut lane = Lane::default();
            write(&mut lane)?;
            if fault!("order.group.is_one_append") {
                return self.append(&mut lane).map(|_| ());
            }
            group.records.extend_from_slice(&lane.records);
            group.count += lane.count;
            return Ok(());
        }
        point("log.write.begins");
        let position = match scope {
            Scope::Key(key) => {
                let Some(stripe) = self.stripes.get(stripe_of(key)) else { return Ok(()) };
                self.write_held(&mut lock(&stripe.0), &scope, store, write)?
            }
            Scope::Keys(keys) => {
                let bits = keys.iter().fold(0, |bits, key| bits | 1 << stripe_of(*key));
                let mut held = self.hold(bits);
                let Some(lane) = held.first_mut() else { return Ok(()) };
                self.write_held(lane, &scope, store, write)?
            }
            Scope::Range(..) => {
                let mut held = self.hold(u64::MAX);
                let Some(lane) = held.first_mut() else { return Ok(()) };
                self.write_held(lane, &scope, store, write)?
            }
        };
        self.wait(position)
    }

    fn group(&self, work: &mut dyn FnMut()) -> Result<(), Error> {
        if self.in_group() {
            work();
            return Ok(());
        }
        let held = self.hold(u64::MAX);
        self.queue.check()?;
        {
            let mut lane = lock(&self.group);
            Notes::<K, V>::start_over(&mut *lane);
            lane.serve(held.first().and_then(|lane| lane.delta.clone()));
        }
        self.owner.store(this_thread(), Ordering::Relaxed);
        let mut group = Group { log: self, held, appended: Ok(0) };
        work();
        group.end();
        let appended = std::mem::replace(&mut group.appended, Ok(0));
        self.wait(appended?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<K: Key + ?Sized> Wal<K> {
    /// Spills, writes and appends, while the scope's stripes are held.
    fn write_held<V: Value + ?Sized>(
        &self,
        lane: &mut Lane<K>,
        scope: &Scope<'_, K>,
        store: &dyn Entries<K, V>,
        write: &mut Run<'_, K, V>,
    ) -> Result<u64, Error> {
        self.queue.check()?;
        match scope {
            // Before the write: once the key has changed, a worker may read the new state and pass
            // it.
            Scope::Key(key) => lane.spills = lane.needs(key),
            _ => {
                lane.spills = false;
                lane.spill(scope, store);
            }
        }
        Notes::<K, V>::start_over(lane);
        let done = write(lane);
        point("log.write.done");
        lane.spills = false;
        if lane.states.len() >= GATHERED {
            lane.hand_over();
        }
        if let Err(error) = done {
            Notes::<K, V>::start_over(lane);
            return Err(error);
        }
        self.append(lane)
    }
}
