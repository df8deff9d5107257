//! Commands that walk over many keys, in stretches, so that others get their turn.

use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ordna::entries::{FlatBytes, Sequence};
use ordna::{Direction, OrderedIndex};

use crate::glob;
use crate::reply::Replies;
use crate::state::{Keyspace, Snapshot};

/// Entries looked at before other connections get their turn.
const STRETCH: usize = 1024;
/// The same for the bytes of what they hold.
const STRETCH_BYTES: usize = 1 << 20;

/// What a walk does with the entries it meets.
#[derive(Debug)]
pub enum Purpose {
    /// Returns keys, with their values if asked for.
    Return { values: bool },
    /// Returns the keys that match.
    Matching(Vec<u8>),
    /// Counts them.
    Count,
    /// Removes them.
    Delete,
}

/// A walk under way. Reads one snapshot from its first stretch to its last; removals follow the
/// present state.
#[derive(Debug)]
pub struct Walk {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
    pub direction: Direction,
    /// Entries still wanted.
    pub limit: usize,
    pub purpose: Purpose,
    /// What it reads; taken at its first stretch unless it is given.
    pub snapshot: Option<Snapshot>,
    found: Replies,
    count: usize,
}

impl Walk {
    pub fn new(lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>, purpose: Purpose) -> Self {
        Self {
            lower,
            upper,
            direction: Direction::Ascending,
            limit: usize::MAX,
            purpose,
            snapshot: None,
            found: Replies::default(),
            count: 0,
        }
    }

    /// Goes on for a stretch; `Ok(true)` at the end. Copies what the reply shows, and no value else.
    ///
    /// # Errors
    /// The reply would grow beyond so many bytes; the text says so.
    pub fn step(&mut self, keys: &Keyspace, max_reply: usize) -> Result<bool, String> {
        let Self { lower, upper, direction, limit, purpose, snapshot, found, count } = self;
        let wanted = (*limit).min(STRETCH);
        if wanted == 0 {
            return Ok(true);
        }
        let (mut met, before) = (0, found.bytes.len());
        // The last key met, if there may be more behind it.
        let mut last = None;
        let mut removed = FlatBytes::default();
        let is_live = matches!(purpose, Purpose::Delete);
        let meet = |key: &[u8], value: &[u8]| {
            met += 1;
            match purpose {
                Purpose::Return { values } => {
                    found.bulk(key);
                    *count += 1;
                    if *values {
                        found.bulk(value);
                        *count += 1;
                    }
                }
                Purpose::Matching(pattern) => {
                    if glob::matches(pattern, key) {
                        found.bulk(key);
                        *count += 1;
                    }
                }
                Purpose::Count => *count += 1,
                Purpose::Delete => removed.push(key),
            }
            if met < wanted && found.bytes.len() - before < STRETCH_BYTES {
                return ControlFlow::Continue(());
            }
            last = Some(key.to_vec());
            ControlFlow::Break(())
        };
        if is_live {
            keys.visit(borrow(lower), borrow(upper), *direction, meet);
        } else {
            let snapshot = snapshot.get_or_insert_with(|| keys.snapshot());
            snapshot.visit(borrow(lower), borrow(upper), *direction, meet);
        }
        for at in 0..removed.len() {
            *count += usize::from(removed.get(at).is_some_and(|key| keys.remove(key).is_some()));
        }
        if found.bytes.len() > max_reply {
            return Err(format!(
                "ERR the reply would exceed {max_reply} bytes; ask for less with LIMIT"
            ));
        }
        *limit -= met;
        let Some(last) = last else { return Ok(true) };
        match direction {
            Direction::Ascending => *lower = Bound::Excluded(last),
            Direction::Descending => *upper = Bound::Excluded(last),
        }
        Ok(*limit == 0)
    }

    /// Writes the reply of a finished walk.
    pub fn reply(self, out: &mut Replies) {
        match self.purpose {
            Purpose::Return { .. } | Purpose::Matching(_) => {
                out.array(self.count);
                out.bytes.extend_from_slice(&self.found.bytes);
            }
            Purpose::Count | Purpose::Delete => out.count(self.count),
        }
    }
}

/// The walks that take more than one stretch, since their first.
#[derive(Debug, Default)]
pub struct LongWalks(Mutex<Vec<Instant>>);

impl LongWalks {
    fn list(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one until what this returns is dropped.
    pub fn note(&self) -> Noted<'_> {
        let since = Instant::now();
        self.list().push(since);
        Noted { walks: self, since }
    }

    /// How many there are, and the age of the oldest.
    pub fn count(&self) -> (usize, Duration) {
        let list = self.list();
        (list.len(), list.iter().min().map(Instant::elapsed).unwrap_or_default())
    }
}

/// A long walk under way.
#[derive(Debug)]
pub struct Noted<'a> {
    walks: &'a LongWalks,
    since: Instant,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let mut list = self.walks.list();
        // Of two noted at the same time either will do.
        if let Some(at) = list.iter().position(|noted| *noted == self.since) {
            list.swap_remove(at);
        }
    }
}

fn borrow(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
