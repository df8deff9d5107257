//! Counters of the index.

use ordna_base::sync::StripedCounter;

/// Upper ends of the jump-distance histogram's buckets, in nodes; one more bucket is above the
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
    /// Notes how many nodes a writer scanned from its jump node to the node of its key.
    #[inline]
    pub fn jumped(&self, distance: usize) {
        let bucket = DISTANCES.iter().take_while(|end| distance > **end).count();
        self.jumps[bucket].add(1);
    }

    pub fn jumps(&self) -> [usize; DISTANCES.len() + 1] {
        std::array::from_fn(|bucket| self.jumps[bucket].sum())
    }
}

/// The counts of an index since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HydraStatistics {
    /// Writes by the distance from the node where the search layer sent them to the node of their
    /// key: 0, 1, 2 to 3, 4 to 7, more.
    pub jumps: [usize; DISTANCES.len() + 1],
    /// Nodes made by splits.
    pub splits: usize,
    /// Nodes merged into their predecessors.
    pub merges: usize,
    /// Reads of a node that had to be repeated because of a writer.
    pub retries: usize,
    /// Splits and merges that the slowest search layer has yet to follow, now.
    pub lag: usize,
    /// How often a writer waited because the lag was above its limit.
    pub stalls: usize,
    /// Steps that a search layer lost because it panicked.
    pub skipped: usize,
    /// How often threads in the background looked for work. They do when they are woken, not by the
    /// clock: while no thread writes the number stays.
    pub looks: usize,
    /// Operations that began at each replica of the search layer; counted if there are several.
    pub reads: Vec<usize>,
}
