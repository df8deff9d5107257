//! State that evictions keep from one to the next.

use std::collections::VecDeque;
use std::time::Instant;

use crate::state::settings::EvictionPolicy;

/// A key that may be evicted.
#[derive(Debug)]
pub struct Candidate {
    /// How well the key is suited for eviction; higher is better.
    pub score: u64,
    pub key: Vec<u8>,
}

/// State of the evictions. Its lock is held by the thread that evicts.
#[derive(Debug, Default)]
pub struct Evictor {
    /// The policy to which the other fields belong.
    pub policy: EvictionPolicy,
    /// The best candidates so far, best last.
    pub pool: Vec<Candidate>,
    /// The keys that expire first.
    pub soonest: VecDeque<Vec<u8>>,
    /// Keys that divide the keyspace into parts of about the same size.
    pub points: Vec<Vec<u8>>,
    /// Number of evictions after which the points are computed again.
    pub left: usize,
    /// Number of evictions since the clock of recency advanced.
    pub since_tick: usize,
    /// The time until which snapshots are assumed to keep evicted values in memory.
    pub held_until: Option<Instant>,
}

impl Evictor {
    /// Adds a candidate to the pool, which keeps the best `most`.
    pub fn offer(&mut self, candidate: Candidate, most: usize) {
        if self.pool.iter().any(|known| known.key == candidate.key) {
            return;
        }
        let at = self.pool.partition_point(|known| known.score <= candidate.score);
        self.pool.insert(at, candidate);
        if self.pool.len() > most {
            self.pool.remove(0);
        }
    }

    /// Counts an eviction. Discards the points when many keys were removed since they were
    /// computed.
    pub fn forget_points_after_evictions(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.points.clear();
        }
    }
}
