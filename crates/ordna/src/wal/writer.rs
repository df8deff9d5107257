//! The stripes of the log, and the writes that pass through them. The module `wal` describes the
//! protocol.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use ordna_base::sync::{Lock, MutexGuard, fault, handed_on, notice, point, stripe_of_this_thread};
use ordna_base::{Key, Value};

use super::buffer::{StripeBuffer, WrittenKeys, hash};
use super::queue::Queue;
use super::sink::block_on;
use super::sync_policy::SyncPolicy;
use crate::Error;
use crate::entry::EntrySource;
use crate::files::codec::encode_clear;
use crate::wal::copy_before_write::CopyBeforeWrite;

/// Number of stripes; each is one bit of a word.
const STRIPES: usize = 64;

/// A write in memory that adds its records to a buffer.
type LoggedWrite<'a, K> = dyn FnMut(&mut StripeBuffer<K>) -> Result<(), Error> + 'a;

/// A stripe, padded so that neighbours do not share a cache line.
#[repr(align(128))]
struct WalStripe<K: Key + ?Sized>(Lock<StripeBuffer<K>>);

type LockedStripe<'a, K> = MutexGuard<'a, StripeBuffer<K>>;

/// The write-ahead log of a store.
pub(crate) struct Wal<K: Key + ?Sized> {
    stripes: Vec<WalStripe<K>>,
    /// The thread whose group holds all stripes, as [`this_thread`] identifies it; 0 if there is
    /// none.
    owner: AtomicUsize,
    /// The buffer of the group.
    group: Lock<StripeBuffer<K>>,
    pub queue: Arc<Queue>,
    /// Number of the store to which the log belongs. Each successor has the next number. Changed
    /// while all stripes are locked.
    owner_number: AtomicU64,
    /// Whether writers themselves wait for their fsync under [`SyncPolicy::Always`].
    waits: bool,
    thread: Lock<Option<JoinHandle<()>>>,
}

/// Returns a number that identifies this thread among all living ones. It is never 0.
fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

fn stripe_of<K: Key + ?Sized>(key: &K) -> usize {
    if fault!("order.stripe.is_the_keys") {
        return stripe_of_this_thread() % STRIPES;
    }
    (hash(key) >> (u64::BITS - STRIPES.trailing_zeros())) as usize
}

impl<K: Key + ?Sized> Wal<K> {
    /// Starts a log with a queue and a thread that writes and syncs.
    pub fn start(queue: Queue, waits: bool) -> std::io::Result<Self> {
        let queue = Arc::new(queue.waiters_sync(waits));
        let running = Arc::clone(&queue);
        let run = handed_on(move || running.run());
        let thread = thread::Builder::new().name("ordna log".to_owned()).spawn(run)?;
        Ok(Self {
            stripes: (0..STRIPES).map(|_| WalStripe(Lock::default())).collect(),
            owner: AtomicUsize::new(0),
            group: Lock::default(),
            queue,
            owner_number: AtomicU64::new(0),
            waits,
            thread: Lock::new(Some(thread)),
        })
    }

    /// Locks the stripes whose bits are set, in ascending order.
    fn lock_stripes(&self, mut bits: u64) -> Vec<LockedStripe<'_, K>> {
        let mut held = Vec::with_capacity(bits.count_ones() as usize);
        while bits != 0 {
            let first = bits.trailing_zeros() as usize;
            held.extend(self.stripes.get(first).map(|stripe| stripe.0.lock()));
            bits &= bits - 1;
        }
        held
    }

    /// Returns whether this thread is in a group.
    pub fn in_group(&self) -> bool {
        // Relaxed: only this thread can have stored its own number.
        let owner = self.owner.load(Ordering::Relaxed);
        owner != 0 && owner == this_thread()
    }

    /// Runs `work` while no other thread writes. Its argument sets or clears the copy-before-write
    /// set of all stripes.
    pub fn stop_writers<R>(
        &self,
        work: impl FnOnce(&mut dyn FnMut(Option<Arc<CopyBeforeWrite<K>>>)) -> R,
    ) -> R {
        let mut held = self.lock_stripes(u64::MAX);
        work(&mut |copies| {
            held.iter_mut().for_each(|buffer| buffer.attach(copies.clone()));
        })
    }

    /// Appends the records of a buffer. Returns the position after them, or 0 if there are none.
    fn append(&self, buffer: &mut StripeBuffer<K>) -> Result<u64, Error> {
        let count = std::mem::take(&mut buffer.count);
        let done = match buffer.cleared {
            _ if count == 0 => Ok(0),
            true => self.queue.append_clear(&buffer.records, count),
            false => self.queue.append(&buffer.records, count),
        };
        buffer.records.clear();
        const KEPT: usize = 1 << 20;
        buffer.records.shrink_to(KEPT);
        done
    }

    /// Waits for the fsync if writers have to, or for a sync that takes too long.
    fn wait(&self, position: u64) -> Result<(), Error> {
        let waits = notice!("faults.commit.waits", self.waits);
        if position == 0 || !waits {
            return Ok(());
        }
        let policy = self.queue.policy();
        match policy {
            SyncPolicy::Always => self.queue.wait(position)?,
            SyncPolicy::EverySecond => {
                self.queue.wait_while_stalled()?;
                self.queue.keep(position)?;
            }
            SyncPolicy::Never => self.queue.keep(position)?,
        }
        let Some(sink) = self.queue.sink.get() else { return Ok(()) };
        match policy == SyncPolicy::Always && !fault!("sinks.acknowledgement.is_awaited") {
            true => block_on(|context| sink.poll_acknowledged(position, context)),
            false => block_on(|context| sink.poll_room(context)),
        }
    }

    /// Returns whether the log belongs to the store with this number. The result stays valid while
    /// the caller excludes writers, see [`stop_writers`](Self::stop_writers).
    pub fn belongs_to(&self, number: u64) -> bool {
        // Relaxed: ordered by the locks of the stripes.
        self.owner_number.load(Ordering::Relaxed) == number
    }

    /// Logs the removal of all keys, for a store that replaces the former one, and returns the
    /// number of the new store. A backup in progress reads the former store, so no more states are
    /// saved for it. A backup that has not reached its snapshot point fails.
    pub fn clear(&self) -> Result<u64, Error> {
        let next = || self.owner_number.fetch_add(1, Ordering::Relaxed) + 1;
        if self.in_group() {
            let mut group = self.group.lock();
            encode_clear(&mut group.records);
            group.count += 1;
            if !fault!("live.group.flush_detaches") {
                group.attach(None);
            }
            group.cleared = true;
            return Ok(next());
        }
        let (position, number) = {
            let mut held = self.lock_stripes(u64::MAX);
            self.queue.check()?;
            held.iter_mut().for_each(|buffer| buffer.attach(None));
            let mut record = Vec::new();
            encode_clear(&mut record);
            (self.queue.append_clear(&record, 1)?, next())
        };
        self.wait(position).inspect_err(|_| {
            // There is no successor: the former store keeps the directory, and its next backup
            // makes the log work again.
            self.owner_number.fetch_sub(1, Ordering::Relaxed);
        })?;
        Ok(number)
    }

    /// Writes and syncs everything, and ends the log's thread and segment. A second call waits for
    /// that and returns the same result.
    pub fn close(&self) -> Result<(), Error> {
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            self.queue.stop();
            // If the thread panicked, closing the segment reports the consequences.
            let _ = thread.join();
        }
        self.queue.close()
    }

    /// Runs `write` while no other write of the same keys runs, and appends its records as one
    /// group.
    ///
    /// # Errors
    /// Errors of `write`, or [`Error::LogFailed`].
    pub fn write<V: Value + ?Sized>(
        &self,
        scope: &WrittenKeys<'_, K>,
        store: &dyn EntrySource<K, V>,
        write: &mut LoggedWrite<'_, K>,
    ) -> Result<(), Error> {
        if self.in_group() {
            let mut group = self.group.lock();
            if !fault!("live.group.spills") {
                group.save_scope(scope, store);
            }
            // Uses a separate buffer, so that a write that fails or restarts keeps the earlier
            // records.
            let mut buffer = StripeBuffer::default();
            Running { queue: &self.queue, scope, buffer: &mut buffer, has_ended: false }
                .run(write)?;
            if fault!("order.group.is_one_append") {
                return self.append(&mut buffer).map(|_| ());
            }
            group.records.extend_from_slice(&buffer.records);
            group.count += buffer.count;
            return Ok(());
        }
        point("log.write.begins");
        let position = match *scope {
            WrittenKeys::Key(key) => {
                let Some(stripe) = self.stripes.get(stripe_of(key)) else { return Ok(()) };
                self.write_locked(&mut stripe.0.lock(), scope, store, write)?
            }
            WrittenKeys::Keys(keys) => {
                let bits = keys.iter().fold(0, |bits, key| bits | 1 << stripe_of(*key));
                let mut held = self.lock_stripes(bits);
                let Some(buffer) = held.first_mut() else { return Ok(()) };
                self.write_locked(buffer, scope, store, write)?
            }
            WrittenKeys::Transaction { written, read, reads_any } => {
                let keys = written.iter().chain(read);
                let some = keys.fold(0, |bits, key| bits | 1 << stripe_of(*key));
                let mut held = self.lock_stripes(if reads_any { u64::MAX } else { some });
                let Some(buffer) = held.first_mut() else { return Ok(()) };
                self.write_locked(buffer, scope, store, write)?
            }
            WrittenKeys::Range(..) => {
                let mut held = self.lock_stripes(u64::MAX);
                let Some(buffer) = held.first_mut() else { return Ok(()) };
                self.write_locked(buffer, scope, store, write)?
            }
        };
        self.wait(position)
    }

    /// Runs `work` while no other thread writes, and appends all records of this thread's writes as
    /// one group.
    ///
    /// # Errors
    /// [`Error::LogFailed`], before `work` ran or after.
    pub fn group<R>(&self, work: impl FnOnce() -> R) -> Result<R, Error> {
        if self.in_group() {
            return Ok(work());
        }
        let held = self.lock_stripes(u64::MAX);
        self.queue.check()?;
        {
            let mut buffer = self.group.lock();
            buffer.start_over();
            buffer.attach(held.first().and_then(|buffer| buffer.copies.clone()));
        }
        self.owner.store(this_thread(), Ordering::Relaxed);
        let mut group = OpenGroup { log: self, held, appended: Ok(0) };
        let done = work();
        group.end();
        let appended = std::mem::replace(&mut group.appended, Ok(0));
        self.wait(appended?)?;
        Ok(done)
    }

    /// Saves old states, writes, and appends, while the stripes of the keys are locked.
    fn write_locked<V: Value + ?Sized>(
        &self,
        buffer: &mut StripeBuffer<K>,
        scope: &WrittenKeys<'_, K>,
        store: &dyn EntrySource<K, V>,
        write: &mut LoggedWrite<'_, K>,
    ) -> Result<u64, Error> {
        self.queue.check()?;
        match scope {
            // Before the write, because after it a worker may read the new state and pass the key.
            WrittenKeys::Key(key) => buffer.saves_old_state = buffer.needs_state(key),
            _ => {
                buffer.saves_old_state = false;
                buffer.save_scope(scope, store);
            }
        }
        buffer.start_over();
        let running = Running { queue: &self.queue, scope, buffer, has_ended: false };
        let done = running.run(write);
        point("log.write.done");
        buffer.saves_old_state = false;
        buffer.flush_full_states();
        if let Err(error) = done {
            buffer.start_over();
            return Err(error);
        }
        self.append(buffer)
    }
}

impl<K: Key + ?Sized> Drop for Wal<K> {
    fn drop(&mut self) {
        // The error cannot be returned here; the next opening reports a log that was not closed.
        let _ = self.close();
    }
}

/// A write in memory whose records are not in the log yet. If it panics in the caller's clock, the
/// memory may have changed without a record. The log then accepts no more records until a backup
/// has the contents of the memory, because later records could depend on the missing one.
struct Running<'a, 'k, K: Key + ?Sized> {
    queue: &'a Queue,
    scope: &'a WrittenKeys<'k, K>,
    buffer: &'a mut StripeBuffer<K>,
    has_ended: bool,
}

impl<K: Key + ?Sized> Running<'_, '_, K> {
    fn run(mut self, write: &mut LoggedWrite<'_, K>) -> Result<(), Error> {
        let done = write(self.buffer);
        self.has_ended = true;
        done
    }
}

impl<K: Key + ?Sized> Drop for Running<'_, '_, K> {
    fn drop(&mut self) {
        // The change of a single key is recorded before the key changes.
        let may_differ = self.buffer.count > 0 || !matches!(self.scope, WrittenKeys::Key(_));
        if notice!("faults.panics.stop_the_log", !self.has_ended && may_differ) {
            self.queue.require_backup("a write panicked: the log lacks it until the next backup");
        }
    }
}

/// Releases a group's ownership even if its work panics. The writes are in memory, so they are
/// logged.
struct OpenGroup<'a, K: Key + ?Sized> {
    log: &'a Wal<K>,
    held: Vec<LockedStripe<'a, K>>,
    appended: Result<u64, Error>,
}

impl<K: Key + ?Sized> OpenGroup<'_, K> {
    fn end(&mut self) {
        if self.held.is_empty() {
            return;
        }
        self.log.owner.store(0, Ordering::Relaxed);
        let mut buffer = self.log.group.lock();
        self.appended = self.log.append(&mut buffer);
        buffer.attach(None);
        let cleared = std::mem::take(&mut buffer.cleared);
        if notice!("live.group.flush_detaches_all", cleared) {
            self.held.iter_mut().for_each(|stripe| stripe.attach(None));
        }
        drop(buffer);
        self.held.clear();
    }
}

impl<K: Key + ?Sized> Drop for OpenGroup<'_, K> {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            // The work has panicked, so no thread waits for its records.
            self.end();
            self.log.queue.wake_thread();
        }
    }
}
