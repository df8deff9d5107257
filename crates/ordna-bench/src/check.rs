//! The values that are stored, and the checks of every answer.
//!
//! A value tells its key: position in the key set below, then a version, then a fingerprint of the
//! key's bytes on top. A point read knows the position and compares that. A scan holds the key that
//! the index returned, and compares the fingerprint: no look into the key set, which would cost a
//! cache miss per entry and be measured.

use std::borrow::Borrow;

use ordna::Key;
use ordna::entries::Sequence;

use crate::run::Job;
use crate::target::Session;
use crate::workload::{Action, Operation};
use crate::zipf::Random;

/// 24 bits of the first and the last eight bytes of a key and its length, in place.
fn fingerprint<K: Key + ?Sized>(key: &K) -> u64 {
    let bytes = key.tail();
    let mut last = [0; 8];
    let end = &bytes[bytes.len().saturating_sub(8)..];
    last[..end.len()].copy_from_slice(end);
    let word = key.head() ^ u64::from_le_bytes(last).rotate_left(32) ^ bytes.len() as u64;
    Random::mix(word) >> 40 << 40
}

/// The value of the key at a position, in one of 256 versions.
pub fn value<K: Key + ?Sized>(key: &K, position: usize, version: u64) -> u64 {
    fingerprint(key) | (version & 0xFF) << 32 | position as u64
}

fn position_of(value: u64) -> usize {
    (value & 0xFFFF_FFFF) as usize
}

fn belongs(value: u64, position: usize) -> bool {
    position_of(value) == position
}

/// The key at a position of the key set.
pub fn key_at<'a, K: Key + ?Sized>(job: &Job<'a, K>, position: usize) -> Result<&'a K, String> {
    job.keys.get(position).ok_or_else(|| format!("the workload has no key {position}"))
}

fn wrong<K: Key + ?Sized>(what: &str, key: &K, found: impl std::fmt::Debug) -> String {
    let key = if K::HEAD_IS_KEY {
        key.head().to_string()
    } else {
        format!("\"{}\"", key.tail().escape_ascii())
    };
    // Escaped: every character is one byte.
    let shown = key.get(..200).unwrap_or(&key);
    format!("{what} of {shown}: {found:?}")
}

/// The positions of the first `loaded` keys in key order: `ranks[position]` is the rank.
pub fn ranks<K: Key + ?Sized>(keys: &K::Sequence, loaded: usize) -> Vec<u32> {
    // Heads decide almost every comparison without a jump into the key set.
    let mut order: Vec<(u64, u32)> =
        (0..loaded).filter_map(|at| Some((keys.get(at)?.head(), at as u32))).collect();
    order.sort_unstable_by(|a, b| {
        a.0.cmp(&b.0).then_with(|| keys.get(a.1 as usize).cmp(&keys.get(b.1 as usize)))
    });
    let mut ranks = vec![0; loaded];
    for (rank, (_, at)) in order.into_iter().enumerate() {
        ranks[at as usize] = rank as u32;
    }
    ranks
}

/// What one thread keeps between its operations.
pub struct Checker<'j, 'a, K: Key + ?Sized> {
    job: &'j Job<'a, K>,
    ranks: Option<&'a [u32]>,
    /// The key that the scan returned last.
    last: Option<K::Owned>,
    keys: Vec<&'a K>,
    pairs: Vec<(&'a K, u64)>,
}

impl<'j, 'a, K: Key + ?Sized> Checker<'j, 'a, K> {
    /// `ranks` must be there if operations scan.
    pub fn new(job: &'j Job<'a, K>, ranks: Option<&'a [u32]>) -> Self {
        Self { job, ranks, last: None, keys: Vec::new(), pairs: Vec::new() }
    }

    /// Does one operation and checks its answer.
    #[inline]
    pub fn perform(
        &mut self,
        session: &mut dyn Session<K>,
        operation: Operation,
        version: u64,
    ) -> Result<(), String> {
        let position = operation.key as usize;
        let key = key_at(self.job, position)?;
        match operation.action {
            Action::Read => {
                let found = session.get(key);
                if !found.is_some_and(|value| belongs(value, position)) {
                    return Err(wrong("a read", key, found));
                }
            }
            Action::Miss => {
                let found = session.get(key);
                if found.is_some() {
                    return Err(wrong("a read of an absent key", key, found));
                }
            }
            Action::Look => {
                let found = session.get(key);
                if found.is_some_and(|value| !belongs(value, position)) {
                    return Err(wrong("a read", key, found));
                }
            }
            Action::Update => {
                if session.put(key, value(key, position, version)) == Some(true) {
                    return Err(wrong("an update", key, "the key was absent"));
                }
            }
            Action::ReadUpdate => {
                let found = session.get(key);
                if !found.is_some_and(|value| belongs(value, position)) {
                    return Err(wrong("a read", key, found));
                }
                if session.put(key, value(key, position, version)) == Some(true) {
                    return Err(wrong("an update", key, "the key was absent"));
                }
            }
            Action::Insert => {
                if session.put(key, value(key, position, version)) == Some(false) {
                    return Err(wrong("an insert", key, "the key was there"));
                }
            }
            Action::Delete => {
                if !session.remove(key) {
                    return Err(wrong("a delete", key, "the key was absent"));
                }
            }
            Action::Scan(limit) => {
                return self.scan(session, key, position, usize::from(limit));
            }
        }
        Ok(())
    }

    /// A scan from a loaded key. It must begin there and go strictly upwards, with values that
    /// belong to their keys; of the loaded keys in that stretch none may be missing, and it may be
    /// short of its limit only at the end of the keys. Keys that threads insert meanwhile may or
    /// may not appear.
    fn scan(
        &mut self,
        session: &mut dyn Session<K>,
        from: &K,
        start: usize,
        limit: usize,
    ) -> Result<(), String> {
        let Self { job, ranks, last, .. } = self;
        let (loaded, all) = (job.loaded, job.keys.len());
        let (mut count, mut of_loaded, mut furthest) = (0, 0, start);
        let mut broken = None;
        session.scan(from, limit, &mut |key, value| {
            let position = position_of(value);
            let follows = match last {
                Some(last) if count > 0 => (*last).borrow() < key,
                _ => key == from,
            };
            if !follows || value >> 40 << 40 != fingerprint(key) || position >= all {
                broken.get_or_insert_with(|| wrong("a scan", key, value));
            }
            if position < loaded {
                (of_loaded, furthest) = (of_loaded + 1, position);
            }
            match last {
                // Keeps the buffer of the key before.
                Some(last) => key.clone_into(last),
                None => *last = Some(key.to_owned()),
            }
            count += 1;
        });
        broken.map_or(Ok(()), Err)?;
        if count == 0 || count > limit {
            return Err(wrong("a scan", from, format!("{count} entries for {limit}")));
        }
        let rank = |position: usize| ranks.and_then(|ranks| ranks.get(position)).copied();
        let (Some(first), Some(end)) = (rank(start), rank(furthest)) else {
            return Err("the order of the keys is not known".to_owned());
        };
        let (first, end) = (first as usize, end as usize);
        // In order from rank `first` to rank `end`: as many as there are, so none was skipped.
        let expected = (end + 1).saturating_sub(first);
        if of_loaded != expected {
            return Err(wrong("a scan", from, format!("{of_loaded} of {expected} keys")));
        }
        if count < limit && end + 1 != loaded {
            return Err(wrong("a scan", from, format!("ended after {count} of {limit}")));
        }
        Ok(())
    }

    /// Runs of reads and of inserts go through the group calls; everything else singly.
    pub fn in_groups(
        &mut self,
        session: &mut dyn Session<K>,
        operations: &[Operation],
        batch: usize,
    ) -> Result<(), String> {
        let mut at = 0;
        while at < operations.len() {
            let action = operations[at].action;
            let run = operations[at..].iter().take(batch);
            let run = run.take_while(|operation| operation.action == action).count();
            self.group(session, &operations[at..at + run])?;
            at += run;
        }
        Ok(())
    }

    /// One group of operations of the same action.
    pub fn group(
        &mut self,
        session: &mut dyn Session<K>,
        group: &[Operation],
    ) -> Result<(), String> {
        match group.first().map(|operation| operation.action) {
            Some(Action::Read) => {
                self.keys.clear();
                for operation in group {
                    self.keys.push(key_at(self.job, operation.key as usize)?);
                }
                let keys = &self.keys;
                let (mut broken, mut answers) = (None, 0);
                session.get_group(keys, &mut |at, found| {
                    answers += 1;
                    let position = group[at].key as usize;
                    if !found.is_some_and(|value| belongs(value, position)) {
                        broken.get_or_insert_with(|| wrong("a read in a group", keys[at], found));
                    }
                });
                if answers != group.len() {
                    return Err(format!("{answers} answers to a group of {}", group.len()));
                }
                broken.map_or(Ok(()), Err)
            }
            Some(Action::Insert) => {
                self.pairs.clear();
                for operation in group {
                    let position = operation.key as usize;
                    let key = key_at(self.job, position)?;
                    self.pairs.push((key, value(key, position, 0)));
                }
                let new = session.put_group(&self.pairs);
                if new != group.len() {
                    return Err(format!("{new} of {} inserted keys were new", group.len()));
                }
                Ok(())
            }
            _ => group.iter().try_for_each(|operation| self.perform(session, *operation, 0)),
        }
    }
}

/// Entries of the stretch that is scanned after each load.
const STRETCH: usize = 100_000;

/// After the load, off the clock: a sample of keys.
pub fn check_points<K: Key + ?Sized>(
    job: &Job<'_, K>,
    session: &mut dyn Session<K>,
) -> Result<(), String> {
    let step = (job.loaded / 100_000).max(1);
    for position in (0..job.loaded).step_by(step) {
        let key = key_at(job, position)?;
        let found = session.get(key);
        let version = found.map_or(0, |value| value >> 32);
        if found != Some(value(key, position, version)) {
            return Err(wrong("a read", key, found));
        }
    }
    Ok(())
}

/// After the load, off the clock: scans from a key in the middle of the load order. Every entry must be a loaded key with its own
/// value, above the one before; and there must be as many as the key set has in that stretch.
pub fn check_stretch<K: Key + ?Sized>(
    job: &Job<'_, K>,
    session: &mut dyn Session<K>,
) -> Result<(), String> {
    if job.loaded == 0 {
        return Ok(());
    }
    let from = key_at(job, job.loaded / 2)?;
    let (mut last, mut count, mut broken) = (None::<&K>, 0, None);
    session.scan(from, STRETCH, &mut |key, found| {
        let position = position_of(found);
        let own = job.keys.get(position).filter(|own| position < job.loaded && *own == key);
        let follows = last.map_or(key == from, |last| last < key);
        if own.is_none() || !follows {
            broken.get_or_insert_with(|| wrong("the scan after loading", key, found));
        }
        last = own.or(last);
        count += 1;
    });
    broken.map_or(Ok(()), Err)?;
    // A scan that was not cut short by its limit reaches the end of the keys.
    let end = last.filter(|_| count >= STRETCH);
    let within = |key: &K| key >= from && end.is_none_or(|end| key <= end);
    let expected = (0..job.loaded).filter(|at| job.keys.get(*at).is_some_and(within)).count();
    if count == expected {
        Ok(())
    } else {
        Err(wrong("the scan after loading", from, format!("{count} entries of {expected}")))
    }
}
