//! Commands that walk over many keys, in stretches, so that others get their turn.

use std::ops::{Bound, ControlFlow};

use ordna::entries::{FlatBytes, Sequence};
use ordna::{Direction, OrderedIndex};

use crate::glob;
use crate::reply::Replies;
use crate::state::State;

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

/// A walk under way.
#[derive(Debug)]
pub struct Walk {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
    pub direction: Direction,
    /// Entries still wanted.
    pub limit: usize,
    pub purpose: Purpose,
    pub found: Replies,
    pub count: usize,
}

impl Walk {
    pub fn new(lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>, purpose: Purpose) -> Self {
        Self {
            lower,
            upper,
            direction: Direction::Ascending,
            limit: usize::MAX,
            purpose,
            found: Replies::default(),
            count: 0,
        }
    }

    /// Goes on for a stretch; `Ok(true)` at the end. Copies what the reply shows, and no value else.
    ///
    /// # Errors
    /// The reply would grow beyond the server's limit; the text says so.
    pub fn step(&mut self, state: &State) -> Result<bool, String> {
        let Self { lower, upper, direction, limit, purpose, found, count } = self;
        let wanted = (*limit).min(STRETCH);
        if wanted == 0 {
            return Ok(true);
        }
        let (mut met, before) = (0, found.bytes.len());
        // The last key met, if there may be more behind it.
        let mut last = None;
        let mut removed = FlatBytes::default();
        let keys = state.keys();
        keys.visit(borrow(lower), borrow(upper), *direction, |key, value| {
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
        });
        for at in 0..removed.len() {
            *count += usize::from(removed.get(at).is_some_and(|key| keys.remove(key).is_some()));
        }
        drop(keys);
        let most = state.config.max_reply;
        if found.bytes.len() > most {
            return Err(format!(
                "ERR the reply would exceed {most} bytes; ask for less with LIMIT"
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

fn borrow(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
