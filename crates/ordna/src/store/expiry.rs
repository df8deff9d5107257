//! The store's clock, and the expiry of keys.
//!
//! # Contract
//! A deadline is a time of the store's clock in milliseconds: Unix time of the system, unless the
//! store has another clock. The store's time never runs backwards: it is the latest time that the
//! clock has returned. So an expired key stays expired when the clock is set back. A version is
//! expired at and after its deadline. The time can be held. It then does not advance for any
//! thread, and keys that become due in the meantime expire when it is released.
//!
//! # Removal of expired keys
//! Each version with a deadline is recorded in a list ordered by deadline, one list for each shard
//! of the keys. It is recorded before a reader can find it in the store, and removed from the list
//! when it is replaced, removed or expired. Collectors sleep until the earliest deadline, but read
//! the clock at least once a minute, because a change of the clock wakes no thread.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordna_base::Key;
use ordna_base::sync::{Lock, MutexGuard, StripedCounter, fault, notice, point};

/// A function that returns the time in milliseconds.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

const SHARDS: usize = 16;
/// Maximum sleep of a collector, and so the time after which it notices that the clock was set.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Returns the system's time in milliseconds since 1970.
pub fn system_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Value of [`Timekeeper::held`] while the time is not held.
const RUNS: u64 = u64::MAX;
/// Interval at which a collector checks whether the time is still held.
const HELD_SLEEP: Duration = Duration::from_millis(20);

/// The latest time that the clock has returned.
pub struct Timekeeper {
    clock: Clock,
    latest: AtomicU64,
    /// The time at which the clock is held, or [`RUNS`].
    held: AtomicU64,
    /// Number of live [`HeldTime`] guards.
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

    /// Advances the store's time to `told`, which the clock has just returned, and returns the
    /// store's time. Writes only if it is later, so at most once a millisecond, because all threads
    /// read it when they look at entries with deadlines.
    fn come_to(&self, told: u64) -> u64 {
        let latest = self.latest.load(Ordering::Acquire);
        if told <= latest {
            return latest;
        }
        self.latest.fetch_max(told, Ordering::AcqRel).max(told)
    }

    /// Returns the real time until the store's time reaches `deadline`, at most [`LONGEST_SLEEP`].
    /// If the clock was set back, the store's time does not advance until the clock has caught up,
    /// and the result includes that.
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

/// Number of versions by deadline and key: one, or two while one replaces the other.
type Shard<K> = BTreeMap<(u64, <K as ToOwned>::Owned), u32>;

/// The keys that will expire, by deadline.
pub struct Deadlines<K: Key + ?Sized> {
    shards: [Lock<Shard<K>>; SHARDS],
    /// Lower bound of all deadlines. It may be too low. It is too high only while a thread removes
    /// expired keys.
    earliest: AtomicU64,
    used: AtomicBool,
    /// Locked by the thread that removes expired keys.
    removal: Lock<()>,
    /// Number of expired versions that were removed.
    pub expired: AtomicU64,
    noted: StripedCounter,
    bytes: StripedCounter,
    /// Called with each key that was removed because it has expired.
    pub report: OnceLock<Report<K>>,
}

/// A function that is called with expired keys.
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
    /// Creates an empty list.
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

    /// Records a version that is about to be inserted.
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

    /// Requests a removal of expired keys at `deadline`. Called after the insertion of a version
    /// that was recorded: an earlier removal would not have found it. Returns whether this deadline
    /// is the earliest one.
    pub fn schedule(&self, deadline: u64) -> bool {
        self.earliest.fetch_min(deadline, Ordering::AcqRel) > deadline
    }

    /// Removes a version from the list.
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

    /// Returns whether a version ever had a deadline.
    pub fn are_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Returns the earliest deadline, or an earlier time.
    pub fn earliest(&self) -> u64 {
        self.earliest.load(Ordering::Acquire)
    }

    /// Excludes other threads that remove expired keys.
    pub fn lock_removal(&self) -> MutexGuard<'_, ()> {
        self.removal.lock()
    }

    /// Returns the keys with a deadline at or before `now`, at most `limit`. They stay in the list
    /// until [`forget`](Self::forget) removes them. During this call, [`earliest`](Self::earliest)
    /// may return too late a time, so the caller must wake the threads that sleep until then.
    pub fn due(&self, now: u64, limit: usize) -> Vec<K::Owned> {
        if self.earliest() > now {
            return Vec::new();
        }
        // Deadlines that are scheduled from now on lower the value again; the loop below adds the
        // others.
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

    /// Returns the keys that expire first, in the order of their deadlines: at most `limit` of each
    /// shard and in total.
    pub fn soonest(&self, limit: usize) -> Vec<K::Owned> {
        let mut soonest = Vec::new();
        for shard in &self.shards {
            soonest.extend(shard.lock().keys().take(limit).cloned());
        }
        soonest.sort_by_key(|(deadline, _)| *deadline);
        soonest.truncate(limit);
        soonest.into_iter().map(|(_, key)| key).collect()
    }

    /// Returns the estimated number of bytes that a key takes in the list.
    fn cost(key: &K) -> i64 {
        (size_of::<(u64, K::Owned, u32)>() + key.tail().len()) as i64
    }

    /// Returns the number of versions in the list and their estimated bytes. Exact while no thread
    /// writes.
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
        // The clock would take hours to catch up, but it may be corrected earlier.
        hands.store(0, Ordering::SeqCst);
        assert_eq!(time.until(10_000_100), LONGEST_SLEEP);
        assert_eq!(time.until(10_000_000), Duration::ZERO);
        hands.store(10_000_050, Ordering::SeqCst);
        assert_eq!(time.until(10_000_100), Duration::from_millis(50));
        assert_eq!(time.until(u64::MAX), LONGEST_SLEEP);
    }
}
