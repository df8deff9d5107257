//! Counters of the index.

use ordna_base::sync::StripedCounter;

/// Upper bounds of the buckets of the jump distances, in nodes. There is one more bucket above the
/// last.
pub const DISTANCES: [usize; 4] = [0, 1, 3, 7];

/// Counters on separate cache lines per thread.
#[derive(Debug, Default)]
pub struct Counters {
    jumps: [StripedCounter; DISTANCES.len() + 1],
    pub splits: StripedCounter,
    pub merges: StripedCounter,
    pub retries: StripedCounter,
}

impl Counters {
    /// Counts the number of nodes that a writer scanned from its jump node to the node of its key.
    #[inline]
    pub fn jumped(&self, distance: usize) {
        let bucket = DISTANCES.iter().take_while(|end| distance > **end).count();
        self.jumps[bucket].add(1);
    }

    pub fn jumps(&self) -> [usize; DISTANCES.len() + 1] {
        std::array::from_fn(|bucket| self.jumps[bucket].sum())
    }
}

/// The counts of an index since its creation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HydraStatistics {
    /// Number of writes by the distance from the node that the search layer returned to the node of
    /// their key: 0, 1, 2 to 3, 4 to 7, more.
    pub jumps: [usize; DISTANCES.len() + 1],
    /// Number of nodes created by splits.
    pub splits: usize,
    /// Number of nodes merged into their predecessors.
    pub merges: usize,
    /// Number of reads of a node that were repeated because of a writer.
    pub retries: usize,
    /// Number of splits and merges that the slowest search layer has not followed yet.
    pub lag: usize,
    /// Number of times that a writer waited because the lag was above its limit.
    pub stalls: usize,
    /// Number of updates that a search layer lost because it panicked.
    pub skipped: usize,
    /// Number of times that background threads looked for work. They look when they are woken, not
    /// periodically, so the number does not change while no thread writes.
    pub looks: usize,
    /// Number of operations that began at each replica of the search layer, if there are several.
    pub reads: Vec<usize>,
}
