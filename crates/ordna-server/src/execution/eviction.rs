//! Eviction: removal of keys when the memory limit is reached, by `maxmemory-policy`.
//!
//! # Contract
//! A write that the memory limit refuses evicts keys until there is room for it, and is executed
//! again. An eviction is a removal like that of `DEL`: it is logged, and watchers and indexes are
//! notified. One thread evicts at a time. Evictions do not free memory that snapshots keep; in that
//! case they stop, so that a snapshot costs at most [`BATCH`] keys in each [`HELD_DELAY`].
//!
//! # Selection
//! As in Redis, some random keys (`maxmemory-samples`) are examined. Those that were used least
//! recently, or least often, join a pool of the best candidates so far, and the best of the pool is
//! evicted. With `volatile-ttl`, the key that expires first is known. A random key is found at a
//! random distance after one of the store's partition points.

use std::collections::VecDeque;
use std::ops::{Bound, ControlFlow};
use std::time::{Duration, Instant};

use ordna::sync::notice;
use ordna::{Change, Direction, Put};

use crate::keyspace::Keyspace;
use crate::keyspace::access_table::random_below;
use crate::state::ServerState;
use crate::state::events::Classes;
use crate::state::evictor::{Candidate, Evictor};
use crate::state::settings::{EvictionPolicy, Preference};

/// Number of candidates that are kept from one eviction to the next, as in Redis.
const POOL: usize = 16;
/// Number of evictions after which the used memory is computed again.
const BATCH: usize = 16;
/// Delay before the next attempt if snapshots keep the evicted values.
const HELD_DELAY: Duration = Duration::from_millis(100);
/// Bytes that an eviction frees beyond those needed, so that not every write evicts. With a small
/// limit, 1/64 of it.
const SLACK: usize = 16 << 10;
/// The same bytes while there are indexes, whose entries need memory after the write: 1/16 of the
/// limit, but at most this.
const INDEX_SLACK: usize = 8 << 20;
/// Longest duration of one call. After the limit was lowered much, several calls are needed.
const LONGEST: Duration = Duration::from_millis(10);
/// Longest total duration of the calls for one write. A value as large as hundreds of thousands of
/// keys needs seconds.
pub const LONGEST_WRITE: Duration = Duration::from_secs(10);
/// Number of evictions after which the duration is checked. On a busy machine, a thread may be
/// stopped for longer than [`LONGEST`] before it has evicted anything. This many evictions take a
/// few milliseconds.
const LEAST: usize = 1024;
/// Number of ticks by which the clock of recency advances while as many keys are evicted as there
/// are.
const TICKS: usize = 1024;
/// Approximate number of entries between two partition points.
const PART: usize = 32;
/// Maximum number of partition points.
const MOST_POINTS: usize = 1 << 14;
/// Number of random positions that are tried for a candidate.
const ATTEMPTS: usize = 8;

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// The bytes fit.
    Enough,
    /// The bytes do not fit yet, because the time was over, and there is more to evict.
    Unfinished,
    /// The bytes do not fit, and evictions do not help.
    None,
}

impl Room {
    fn of(fits: bool, otherwise: Self) -> Self {
        if fits { Self::Enough } else { otherwise }
    }
}

/// Evicts keys until `needed` bytes fit within the memory limit.
pub fn evict(state: &ServerState, keys: &Keyspace, needed: usize) -> Room {
    let (policy, limit) = (state.settings.policy(), state.settings.max_memory.size());
    if limit == 0 || needed > limit || policy == EvictionPolicy::NoEviction {
        return Room::None;
    }
    if notice!("concurrent.pause.evicts_nothing", state.are_writes_paused()) {
        return Room::of(state.used_memory() <= limit - needed, Room::None);
    }
    let slack = match state.indexes.are_active() {
        true => index_slack(limit),
        false => (limit / 64).min(SLACK),
    };
    let (fits, wanted) = (limit - needed, (limit - needed).saturating_sub(slack));
    let mut evictor = state.evictor.lock();
    let (begin, mut evicted) = (Instant::now(), 0);
    loop {
        let before = state.used_memory();
        if before <= wanted || before <= fits && begin.elapsed() > LONGEST / 10 {
            return Room::Enough;
        }
        if evictor.held_until.is_some_and(|until| until > begin) {
            return Room::of(before <= fits, Room::None);
        }
        if evicted >= LEAST && begin.elapsed() > LONGEST {
            return Room::of(before <= fits, Room::Unfinished);
        }
        evicted += BATCH;
        // Elements of removed collections are freed first, before other keys are evicted.
        if notice!("eviction.elements.first", keys.remove_elements().is_ok_and(|some| some > 0)) {
            continue;
        }
        let mut bytes = 0;
        for _ in 0..BATCH {
            let Some(key) = choose(state, keys, policy, &mut evictor) else { break };
            bytes += remove(state, keys, policy, &key).unwrap_or(0);
            evictor.forget_points_after_evictions();
            evictor.since_tick += 1;
            if evictor.since_tick > keys.approximate_len() / TICKS {
                evictor.since_tick = 0;
                state.access.advance();
            }
            if keys.has_removals() {
                break;
            }
        }
        if bytes == 0 {
            return Room::of(state.used_memory() <= fits, Room::None);
        }
        if before.saturating_sub(state.used_memory()) < bytes / 2 {
            // Bounded work, because a write waits for this.
            keys.collect_some();
            let is_held = before.saturating_sub(state.used_memory()) < bytes / 2;
            // Otherwise other writers or the indexes have taken the freed memory.
            if is_held && !keys.statistics().snapshots.is_empty() {
                // Scans that began with SCAN continue without their snapshots.
                state.cursors.end_leases();
                evictor.held_until = Some(Instant::now() + HELD_DELAY);
            }
        }
    }
}

/// Returns the number of bytes that are kept free for the entries of indexes.
fn index_slack(limit: usize) -> usize {
    (limit / 16).min(INDEX_SLACK)
}

/// Evicts keys until there is room for the entries of indexes, which need it after the write; an
/// index that finds no room fails. Returns whether half of their share is free. If not, snapshots
/// keep the evicted values, and writes must wait.
pub fn keep_index_room(state: &ServerState, keys: &Keyspace) -> bool {
    let limit = state.settings.max_memory.size();
    limit == 0 || evict(state, keys, index_slack(limit) / 2) == Room::Enough
}

/// Makes room for `bytes` more by the evictions of one call, if the policy allows evictions.
///
/// # Errors
/// The memory limit has no room for `bytes` more.
pub fn make_room(state: &ServerState, keys: &Keyspace, bytes: usize) -> Result<(), ordna::Error> {
    let room = keys.check_room(bytes);
    if room.is_ok() || !state.settings.evicts() {
        return room;
    }
    evict(state, keys, bytes);
    keys.check_room(bytes)
}

/// Calls [`make_room`] until there is room. Releases the lock between two calls, so that other
/// commands can run.
///
/// # Errors
/// The memory limit has no room for `bytes` more.
pub fn make_room_by_calls(state: &ServerState, bytes: usize) -> Result<(), ordna::Error> {
    let begin = Instant::now();
    loop {
        let keys = state.keys();
        let room = keys.check_room(bytes);
        if room.is_ok() || !state.settings.evicts() {
            return room;
        }
        if state.are_writes_paused() {
            // The command is executed after the pause, and makes room then.
            return Ok(());
        }
        let made = evict(state, &keys, bytes);
        if made != Room::Unfinished || begin.elapsed() > LONGEST_WRITE {
            return keys.check_room(bytes);
        }
    }
}

/// Removes a key. Returns its size in bytes, or `None` if it no longer exists, or has no deadline
/// although the policy requires one.
fn remove(
    state: &ServerState,
    keys: &Keyspace,
    policy: EvictionPolicy,
    key: &[u8],
) -> Option<usize> {
    let mut bytes = None;
    let done = keys.modify_entry::<&[u8]>(key, |found| {
        let is_chosen = |deadline: Option<u64>| !policy.is_volatile() || deadline.is_some();
        bytes = found.filter(|it| is_chosen(it.expires_at)).map(|it| key.len() + it.value.len());
        match bytes {
            Some(_) => Change::<Put<&[u8]>>::Remove,
            None => Change::Keep,
        }
    });
    if bytes.is_some() {
        state.watches.written([key]);
        state.indexes.written(keys, [key]);
    }
    // If the log has failed, perhaps after the removal, the write then fails, too.
    done.ok()?;
    if bytes.is_some() {
        state.notify(Classes::EVICTED, "evicted", key);
        state.evictions.add(1);
    }
    bytes
}

/// Returns the next key to evict.
fn choose(
    state: &ServerState,
    keys: &Keyspace,
    policy: EvictionPolicy,
    evictor: &mut Evictor,
) -> Option<Vec<u8>> {
    if evictor.policy != policy {
        *evictor = Evictor { policy, held_until: evictor.held_until, ..Evictor::default() };
    }
    match policy.preference() {
        Preference::Deadline => {
            if evictor.soonest.is_empty() {
                evictor.soonest = VecDeque::from(keys.next_to_expire(POOL));
            }
            return evictor.soonest.pop_front();
        }
        Preference::Random => return candidate(state, keys, policy, evictor).map(|it| it.key),
        Preference::Recency | Preference::Frequency => {}
    }
    let samples = usize::try_from(state.settings.samples.get()).unwrap_or(1).clamp(1, 64);
    for _ in 0..samples {
        let Some(candidate) = candidate(state, keys, policy, evictor) else { break };
        evictor.offer(candidate, POOL);
    }
    while let Some(best) = evictor.pool.pop() {
        // The key may have been used in the meantime.
        if score(state, policy, &best.key) >= best.score {
            return Some(best.key);
        }
    }
    None
}

/// Returns how well a key is suited for eviction; higher is better.
fn score(state: &ServerState, policy: EvictionPolicy, key: &[u8]) -> u64 {
    match policy.preference() {
        Preference::Recency => state.access.idle(key),
        Preference::Frequency => {
            let decay = state.settings.lfu_decay_time.size() as u64;
            u64::from(u8::MAX - state.access.frequency(key, decay))
        }
        Preference::Deadline | Preference::Random => 0,
    }
}

/// Returns a random key that the policy may evict.
fn candidate(
    state: &ServerState,
    keys: &Keyspace,
    policy: EvictionPolicy,
    evictor: &mut Evictor,
) -> Option<Candidate> {
    // There may be no key after the random position, so even policies for all keys need several
    // attempts.
    let found = (0..ATTEMPTS).find_map(|_| {
        let key = random_key(keys, evictor)?;
        let fits = !policy.is_volatile() || keys.expiry(&key).flatten().is_some();
        fits.then_some(key)
    });
    // If few keys have a deadline, take one of the next keys to expire, which are known.
    let found = found.or_else(|| {
        let few = if policy.is_volatile() { keys.next_to_expire(POOL) } else { Vec::new() };
        let at = random_below(few.len().max(1) as u64) as usize;
        few.into_iter().nth(at)
    });
    let key = found.or_else(|| {
        let first = || keys.first().map(|(key, _)| key);
        if policy.is_volatile() { None } else { first() }
    })?;
    Some(Candidate { score: score(state, policy, &key), key })
}

/// Returns a random key, or `None` if there is none after the random position.
fn random_key(keys: &Keyspace, evictor: &mut Evictor) -> Option<Vec<u8>> {
    let count = keys.approximate_len();
    if evictor.points.is_empty() {
        evictor.points = keys.partition_points((count / PART).clamp(1, MOST_POINTS));
        evictor.left = (count / 8).max(PART);
    }
    let parts = evictor.points.len() + 1;
    let part = random_below(parts as u64) as usize;
    let lower = part.checked_sub(1).and_then(|at| evictor.points.get(at));
    let lower = lower.map_or(Bound::Unbounded, |key| Bound::Included(key.as_slice()));
    // Parts differ in size. Most distances are up to twice the average, few are much longer, so
    // that each key can be reached.
    let reach = if random_below(16) == 0 { 16 } else { 2 };
    let mut skip = random_below((count / parts * reach).max(2) as u64);
    let mut found = None;
    keys.visit(lower, Bound::Unbounded, Direction::Ascending, |key, _| {
        if skip == 0 {
            found = Some(key.to_vec());
            return ControlFlow::Break(());
        }
        skip -= 1;
        ControlFlow::Continue(())
    });
    found
}
