//! Time: the store's clock, and when keys expire.
//!
//! # Contract
//! Deadlines are milliseconds on the store's clock, the system's Unix time unless another was
//! given. The store's time never runs backwards: it is the latest that the clock has ever told. So
//! an expired key stays expired when the clock is set back. A version is expired at and after its
//! deadline. The time can be held: it then stands still for all threads, and what is due by the
//! clock expires when it is released.
//!
//! # The background
//! Every version with a deadline stands in an ordered list, by shard of its key. It enters the list
//! before a reader can find it in the store, and leaves it when it is replaced, removed or expired.
//! Collectors sleep until the earliest of them, but look at the clock once a minute: a change of
//! the clock wakes no thread.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordna_base::Key;
use ordna_base::sync::{Lock, MutexGuard, StripedCounter, fault, notice, point};

/// Tells the time in milliseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

const SHARDS: usize = 16;
/// A clock that was set, perhaps back and now forward again, is noticed after so long.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Milliseconds since 1970.
pub fn system_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What [`Timekeeper`] holds while its time runs.
const RUNS: u64 = u64::MAX;
/// How often a collector looks again while the time is held.
const HELD_SLEEP: Duration = Duration::from_millis(20);

/// The latest time that a clock has told.
pub struct Timekeeper {
    clock: Clock,
    latest: AtomicU64,
    /// The time while it stands still, otherwise [`RUNS`].
    held: AtomicU64,
    /// Number of [`HeldTime`].
    holders: Lock<usize>,
}

/// Holds the time of a store until it is dropped. See
/// [`Store::hold_time`](crate::Store::hold_time).
#[must_use]
pub struct HeldTime(Arc<Timekeeper>);

impl std::fmt::Debug for HeldTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("HeldTime").field(&self.0.now()).finish()
    }
}

impl HeldTime {
    pub(super) fn new(time: &Arc<Timekeeper>) -> Self {
        let mut holders = time.holders.lock();
        if *holders == 0 {
            let now = time.now();
            time.held.store(now, Ordering::Release);
        }
        *holders += 1;
        Self(Arc::clone(time))
    }
}

impl Drop for HeldTime {
    fn drop(&mut self) {
        let mut holders = self.0.holders.lock();
        *holders -= 1;
        if *holders == 0 {
            self.0.held.store(RUNS, Ordering::Release);
        }
    }
}

impl Timekeeper {
    pub fn new(clock: Clock) -> Self {
        let (latest, held) = (AtomicU64::new(0), AtomicU64::new(RUNS));
        Self { clock, latest, held, holders: Lock::default() }
    }

    pub fn now(&self) -> u64 {
        let held = self.held.load(Ordering::Acquire);
        if notice!("store.ttl.stands_still", held != RUNS) {
            return held;
        }
        let told = (self.clock)();
        if fault!("store.ttl.never_backwards") {
            return told;
        }
        self.come_to(told)
    }

    /// The latest time, with what the clock has just told. Writes it only if it is later, once a
    /// millisecond: all threads look at entries with deadlines.
    fn come_to(&self, told: u64) -> u64 {
        let latest = self.latest.load(Ordering::Acquire);
        if told <= latest {
            return latest;
        }
        self.latest.fetch_max(told, Ordering::AcqRel).max(told)
    }

    /// How long to sleep until the store's time comes to `deadline`, if the clock runs on as it
    /// does. While it is behind the store's time, because it was set back, that stands still. At
    /// most [`LONGEST_SLEEP`].
    pub fn until(&self, deadline: u64) -> Duration {
        let told = (self.clock)();
        let now = self.come_to(told);
        let told = if fault!("store.ttl.waits_for_the_clock") { now } else { told };
        let left = if deadline <= now { 0 } else { deadline - told };
        // Nothing expires while the time is held.
        let is_held = self.held.load(Ordering::Acquire) != RUNS;
        let least = if is_held { HELD_SLEEP } else { Duration::ZERO };
        Duration::from_millis(left).clamp(least, LONGEST_SLEEP)
    }
}

/// How many versions of a key have a deadline, one for each (two only while one replaces another).
type Shard<K> = BTreeMap<(u64, <K as ToOwned>::Owned), u32>;

/// The keys that will expire, by deadline.
pub struct Deadlines<K: Key + ?Sized> {
    shards: [Lock<Shard<K>>; SHARDS],
    /// No deadline is earlier. May be too early; too late only while a thread looks for expired
    /// keys.
    earliest: AtomicU64,
    used: AtomicBool,
    /// Locked by the thread that removes expired keys.
    removal: Lock<()>,
    /// Number of due versions that were removed.
    pub expired: AtomicU64,
    noted: StripedCounter,
    bytes: StripedCounter,
    /// Called with each key that is removed because it has expired.
    pub report: OnceLock<Report<K>>,
}

/// A function that learns of expired keys.
pub struct Report<K: ?Sized>(pub Box<dyn Fn(&K) + Send + Sync>);

impl<K: ?Sized> std::fmt::Debug for Report<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Report")
    }
}

impl<K: Key + ?Sized> Default for Deadlines<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Key + ?Sized> Deadlines<K> {
    /// No deadlines.
    pub fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Lock::new(BTreeMap::new())),
            earliest: AtomicU64::new(u64::MAX),
            used: AtomicBool::new(false),
            removal: Lock::new(()),
            expired: AtomicU64::new(0),
            noted: StripedCounter::new(),
            bytes: StripedCounter::new(),
            report: OnceLock::new(),
        }
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, Shard<K>> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        self.shards[(hash % SHARDS as u64) as usize].lock()
    }

    /// Notes a version that is about to be inserted.
    pub fn add(&self, key: &K, deadline: u64) {
        self.used.store(true, Ordering::Release);
        let mut shard = self.shard(key);
        let versions = shard.entry((deadline, key.to_owned())).or_insert(0);
        *versions += 1;
        self.noted.add(1);
        if *versions == 1 {
            self.bytes.add(Self::cost(key));
        }
    }

    /// Calls for a look at `deadline`, after the insertion of a version that was noted: a look
    /// before it would have found nothing to expire. Returns whether none was called for earlier.
    pub fn schedule(&self, deadline: u64) -> bool {
        self.earliest.fetch_min(deadline, Ordering::AcqRel) > deadline
    }

    /// Forgets a version.
    pub fn forget(&self, key: &K, deadline: u64) {
        let mut shard = self.shard(key);
        let at = (deadline, key.to_owned());
        if let Some(count) = shard.get_mut(&at) {
            *count -= 1;
            self.noted.add(-1);
            if *count == 0 {
                shard.remove(&at);
                self.bytes.add(-Self::cost(key));
            }
        }
    }

    /// Whether a version ever had a deadline.
    pub fn are_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// When the next one is due; perhaps too early.
    pub fn earliest(&self) -> u64 {
        self.earliest.load(Ordering::Acquire)
    }

    /// Excludes other threads that remove expired keys.
    pub fn lock_removal(&self) -> MutexGuard<'_, ()> {
        self.removal.lock()
    }

    /// Keys with a deadline at or before `now`, at most `limit`. They stay noted until they are
    /// forgotten. Meanwhile [`earliest`](Self::earliest) may tell of none or too late a deadline:
    /// the caller wakes threads that sleep by it.
    pub fn due(&self, now: u64, limit: usize) -> Vec<K::Owned> {
        if self.earliest() > now {
            return Vec::new();
        }
        // Deadlines scheduled from now on count anew; the loop below finds the earlier ones.
        self.earliest.store(u64::MAX, Ordering::Release);
        point("store.due.looks");
        let mut due = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            for (deadline, key) in shard.keys() {
                if *deadline > now || due.len() == limit {
                    self.earliest.fetch_min(*deadline, Ordering::AcqRel);
                    break;
                }
                due.push(key.clone());
            }
        }
        due
    }

    /// Returns the keys that expire first, at most `limit` of each shard and of all, in the order of
    /// their deadlines.
    pub fn soonest(&self, limit: usize) -> Vec<K::Owned> {
        let mut soonest = Vec::new();
        for shard in &self.shards {
            soonest.extend(shard.lock().keys().take(limit).cloned());
        }
        soonest.sort_by_key(|(deadline, _)| *deadline);
        soonest.truncate(limit);
        soonest.into_iter().map(|(_, key)| key).collect()
    }

    /// About the bytes that a key takes in the list.
    fn cost(key: &K) -> i64 {
        (size_of::<(u64, K::Owned, u32)>() + key.tail().len()) as i64
    }

    /// Number of versions noted, and their bytes, estimated. Exact while no thread writes.
    pub fn size(&self) -> (usize, usize) {
        (self.noted.sum(), self.bytes.sum())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_is_looked_at_again() {
        let hands = Arc::new(AtomicU64::new(10_000_000));
        let clock = Arc::clone(&hands);
        let time = Timekeeper::new(Arc::new(move || clock.load(Ordering::SeqCst)));
        assert_eq!(time.until(10_000_000), Duration::ZERO);
        assert_eq!(time.until(10_000_100), Duration::from_millis(100));
        // Hours, if it were to catch up; but it may be put right.
        hands.store(0, Ordering::SeqCst);
        assert_eq!(time.until(10_000_100), LONGEST_SLEEP);
        assert_eq!(time.until(10_000_000), Duration::ZERO);
        hands.store(10_000_050, Ordering::SeqCst);
        assert_eq!(time.until(10_000_100), Duration::from_millis(50));
        assert_eq!(time.until(u64::MAX), LONGEST_SLEEP);
    }
}
