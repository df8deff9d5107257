//! Commands that walk over many keys, in stretches, so that others get their turn.

use std::ops::Bound;

use ordna::{Direction, OrderedIndex};

use crate::glob;
use crate::reply::Replies;
use crate::state::{Pairs, State};

/// Entries looked at before other connections get their turn.
const STRETCH: usize = 1024;

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

    /// Goes on for a stretch; `Ok(true)` at the end.
    ///
    /// # Errors
    /// The reply would grow beyond the server's limit; the text says so.
    pub fn step(&mut self, state: &State) -> Result<bool, String> {
        let mut pairs = Pairs::new();
        let wanted = self.limit.min(STRETCH);
        let keys = state.keys();
        let (lower, upper) = (borrow(&self.lower), borrow(&self.upper));
        let met = keys.collect(lower, upper, self.direction, wanted, &mut pairs);
        for (key, value) in pairs.iter() {
            match &self.purpose {
                Purpose::Return { values } => {
                    self.found.bulk(key);
                    self.count += 1;
                    if *values {
                        self.found.bulk(value);
                        self.count += 1;
                    }
                }
                Purpose::Matching(pattern) if glob::matches(pattern, key) => {
                    self.found.bulk(key);
                    self.count += 1;
                }
                Purpose::Matching(_) => {}
                Purpose::Count => self.count += 1,
                Purpose::Delete => self.count += usize::from(keys.remove(key).is_some()),
            }
        }
        drop(keys);
        let limit = state.config.max_reply;
        if self.found.bytes.len() > limit {
            return Err(format!(
                "ERR the reply would exceed {limit} bytes; ask for less with LIMIT"
            ));
        }
        self.limit -= met;
        if let Some((key, _)) = pairs.last() {
            let beyond = Bound::Excluded(key.to_vec());
            match self.direction {
                Direction::Ascending => self.lower = beyond,
                Direction::Descending => self.upper = beyond,
            }
        }
        Ok(met < wanted || self.limit == 0)
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
