//! Approximate times and numbers of the uses of keys, for eviction.
//!
//! # Contract
//! Each key has one of many slots, by its hash. Keys with the same slot share its contents. So
//! records need no space for this, and a read writes no record. Nothing is allocated before an
//! eviction policy needs it, and then at most two bytes for each 64 bytes of `maxmemory`, as slots
//! come into use. All methods may be called concurrently. Two simultaneous uses may count as one.
//!
//! # Slots
//! 0 means unused. With a policy of recency, a slot holds the tick of the last use. With a policy
//! of frequency, the lower byte is Redis' logarithmic counter, and the upper byte the minute of its
//! last decay.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};

use ordna::sync::Lock;

/// Number of slots that are allocated together.
const SEGMENT: usize = 1 << 12;
/// Maximum number of segments: 128 MiB of slots.
const MOST_SEGMENTS: usize = 1 << 14;
/// Number of bytes of `maxmemory` for each slot. Most entries are larger, so most keys have their
/// own slot.
const BYTES_PER_SLOT: usize = 64;
/// Number of minutes whose first tick is stored: some days.
const MOST_MINUTES: usize = 1 << 12;
/// Counter of a new key, as in Redis, so that it is not evicted immediately.
const NEW: u8 = 5;

type Segment = Box<[AtomicU16]>;

/// The table of all slots.
#[derive(Debug, Default)]
pub struct AccessTable {
    segments: OnceLock<Box<[OnceLock<Segment>]>>,
    /// Number of slots in use minus one, which is a power of two minus one.
    mask: AtomicUsize,
    /// The clock of recency: advances with evictions, and once a minute.
    tick: AtomicU32,
    /// Minutes since the start.
    minute: AtomicU32,
    /// The ticks with which the latest minutes began, the newest last.
    first_ticks: Lock<VecDeque<u16>>,
}

fn hash(key: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut words = key.chunks_exact(8);
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(FACTOR);
        product as u64 ^ (product >> 64) as u64
    };
    let whole = words.by_ref().filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes));
    let hash = whole.fold(key.len() as u64 ^ FACTOR, mix);
    let mut rest = [0; 8];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(mix(hash, u64::from_ne_bytes(rest)), FACTOR)
}

/// Returns a number below `end`, which is not 0.
pub fn random_below(end: u64) -> u64 {
    thread_local!(static STATE: Cell<u64> = const { Cell::new(0) });
    STATE.with(|state| {
        // SplitMix64. It does not matter if several threads begin with the same state.
        let next = state.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        state.set(next);
        let mixed = (next ^ next >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let mixed = mixed ^ mixed >> 31;
        ((u128::from(mixed) * u128::from(end)) >> 64) as u64
    })
}

impl AccessTable {
    /// Adapts the number of slots to a memory limit; 0 means no limit.
    pub fn fit(&self, max_memory: usize) {
        let slots = (max_memory / BYTES_PER_SLOT).checked_next_power_of_two();
        let most = SEGMENT * MOST_SEGMENTS;
        let slots = slots.filter(|_| max_memory > 0).unwrap_or(most).clamp(SEGMENT, most);
        self.mask.store(slots - 1, Ordering::Relaxed);
    }

    fn slot(&self, key: &[u8]) -> Option<&AtomicU16> {
        let segments =
            self.segments.get_or_init(|| (0..MOST_SEGMENTS).map(|_| OnceLock::new()).collect());
        let at = hash(key) as usize & self.mask.load(Ordering::Relaxed);
        let segment = segments.get(at / SEGMENT)?;
        let segment = segment.get_or_init(|| (0..SEGMENT).map(|_| AtomicU16::new(0)).collect());
        segment.get(at % SEGMENT)
    }

    fn tick(&self) -> u16 {
        // 0 means unused.
        (self.tick.load(Ordering::Relaxed) as u16).wrapping_add(1).max(1)
    }

    /// Advances the clock of recency.
    pub fn advance(&self) {
        self.tick.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the time, in minutes since the start.
    pub fn set_minute(&self, minute: u32) {
        let former = self.minute.swap(minute, Ordering::Relaxed);
        if former == minute {
            return;
        }
        self.advance();
        let mut ticks = self.first_ticks.lock();
        // The time is not set while nothing is evicted.
        let passed = (minute.saturating_sub(former) as usize).min(MOST_MINUTES);
        ticks.extend(std::iter::repeat_n(self.tick(), passed));
        let beyond = ticks.len().saturating_sub(MOST_MINUTES);
        ticks.drain(..beyond);
    }

    /// Records a use of a key under a policy of recency.
    pub fn used_now(&self, key: &[u8]) {
        let tick = self.tick();
        // Most uses of a frequently used key need no write.
        if let Some(slot) = self.slot(key)
            && slot.load(Ordering::Relaxed) != tick
        {
            slot.store(tick, Ordering::Relaxed);
        }
    }

    /// Returns the number of ticks since the last use of a key.
    pub fn idle(&self, key: &[u8]) -> u64 {
        match self.slot(key).map_or(0, |slot| slot.load(Ordering::Relaxed)) {
            0 => u64::from(u16::MAX) + 1,
            last => u64::from(self.tick().wrapping_sub(last)),
        }
    }

    /// Returns the time since the last use of a key, with a policy of recency, in whole minutes and
    /// at most a few days. For a key that was never used, returns the time since the start.
    pub fn idle_minutes(&self, key: &[u8]) -> usize {
        let (idle, now) = (self.idle(key), self.tick());
        let ticks = self.first_ticks.lock();
        let age = |first: &&u16| u64::from(now.wrapping_sub(**first));
        ticks.iter().rev().take_while(|first| age(first) < idle).count()
    }

    /// Returns the decayed counter of a slot. It decreases by one every `decay_time` minutes, or
    /// never if that is 0.
    fn decayed(&self, slot: u16, decay_time: u64) -> u8 {
        let [minute, counter] = slot.to_be_bytes();
        let now = self.minute.load(Ordering::Relaxed) as u8;
        let passed = u64::from(now.wrapping_sub(minute));
        let less = passed.checked_div(decay_time).unwrap_or(0);
        counter.saturating_sub(u8::try_from(less).unwrap_or(u8::MAX))
    }

    /// Records a use of a key, with a policy of frequency. The parameters are Redis'
    /// `lfu-log-factor` and `lfu-decay-time`.
    pub fn used_again(&self, key: &[u8], log_factor: u64, decay_time: u64) {
        let Some(slot) = self.slot(key) else { return };
        let old = slot.load(Ordering::Relaxed);
        let counter = match old {
            0 => NEW,
            old => {
                let counter = self.decayed(old, decay_time);
                let above = u64::from(counter.saturating_sub(NEW));
                let chance = above.saturating_mul(log_factor).saturating_add(1);
                counter.saturating_add(u8::from(random_below(chance) == 0))
            }
        };
        let new = u16::from_be_bytes([self.minute.load(Ordering::Relaxed) as u8, counter.max(1)]);
        if new != old {
            slot.store(new, Ordering::Relaxed);
        }
    }

    /// Returns how often a key was used, on a logarithmic scale from 0 to 255.
    pub fn frequency(&self, key: &[u8], decay_time: u64) -> u8 {
        let slot = self.slot(key).map_or(0, |slot| slot.load(Ordering::Relaxed));
        if slot == 0 { 0 } else { self.decayed(slot, decay_time) }
    }

    /// Records the creation of a key, with a policy of frequency. A higher counter is kept, because
    /// it may belong to another key with the same slot.
    pub fn created(&self, key: &[u8], decay_time: u64) {
        let Some(slot) = self.slot(key) else { return };
        let old = slot.load(Ordering::Relaxed);
        if old == 0 || self.decayed(old, decay_time) < NEW {
            let minute = self.minute.load(Ordering::Relaxed) as u8;
            slot.store(u16::from_be_bytes([minute, NEW]), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recency_and_frequency_are_those_of_the_uses() {
        let table = AccessTable::default();
        table.fit(1 << 20);
        assert_eq!(table.idle(b"never"), 65_536);
        table.used_now(b"a");
        (0..3).for_each(|_| table.advance());
        table.used_now(b"b");
        assert!(table.idle(b"a") >= 2 && table.idle(b"b") == 0);
        assert_eq!(table.frequency(b"x", 1), 0);
        table.used_again(b"x", 10, 1);
        assert_eq!(table.frequency(b"x", 1), NEW);
        table.used_again(b"x", 10, 1);
        assert_eq!(table.frequency(b"x", 1), NEW + 1, "the first use always counts");
        table.created(b"x", 1);
        assert_eq!(table.frequency(b"x", 1), NEW + 1);
        table.created(b"new", 1);
        assert_eq!(table.frequency(b"new", 1), NEW);
        (0..10_000).for_each(|_| table.used_again(b"y", 10, 1));
        let often = table.frequency(b"y", 1);
        assert!((20..120).contains(&often), "logarithmic: {often}");
        table.set_minute(3);
        assert_eq!(table.frequency(b"y", 1), often - 3);
        assert_eq!(table.frequency(b"y", 3), often - 1);
        assert_eq!(table.frequency(b"y", 0), often);
        table.set_minute(200);
        assert_eq!(table.frequency(b"y", 1), 0);
        table.created(b"y", 1);
        assert_eq!(table.frequency(b"y", 1), NEW);
        (0..1_000_000).for_each(|_| table.used_again(b"z", 0, 0));
        assert_eq!(table.frequency(b"z", 0), 255);
    }

    #[test]
    fn idle_minutes_are_those_since_the_last_use_whatever_is_evicted() {
        let table = AccessTable::default();
        table.fit(1 << 20);
        table.used_now(b"a");
        assert_eq!(table.idle_minutes(b"a"), 0);
        for minute in 1..=5 {
            table.set_minute(minute);
            (0..100).for_each(|_| table.advance());
            if minute == 3 {
                table.used_now(b"b");
            }
        }
        table.used_now(b"c");
        let minutes = [b"a", b"b", b"c", b"n"].map(|key| table.idle_minutes(key));
        assert_eq!(minutes, [5, 2, 0, 5]);
        table.set_minute(9);
        assert_eq!(table.idle_minutes(b"c"), 4, "nothing was evicted for a while");
        table.set_minute(1_000_000);
        assert_eq!(table.idle_minutes(b"c"), MOST_MINUTES);
    }

    #[test]
    fn keys_are_spread_over_all_slots() {
        let table = AccessTable::default();
        table.fit(SEGMENT * BYTES_PER_SLOT);
        let keys: Vec<_> = (0..SEGMENT).map(|key| format!("key:{key:010}")).collect();
        keys.iter().for_each(|key| table.used_now(key.as_bytes()));
        let segments = table.segments.get().unwrap();
        let used = segments[0].get().unwrap();
        let used = used.iter().filter(|slot| slot.load(Ordering::Relaxed) > 0).count();
        // A random function would use 1 - 1/e of them.
        assert!((2400..2780).contains(&used), "{used} of {SEGMENT}");
        assert!(segments[1].get().is_none());
        let numbers = (0..10_000).map(|_| random_below(10)).collect::<Vec<_>>();
        assert!(
            (0..10).all(|n| (800..1200).contains(&numbers.iter().filter(|m| **m == n).count()))
        );
    }
}
