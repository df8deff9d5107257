//! Options that enable or disable parts of the index.

use super::node::{Compare, NodeSearch};
use crate::topology::Topology;
use ordna_base::simd::InstructionSet;

/// The time at which search layers follow splits and merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Threads of the index update them soon.
    Background,
    /// The writer that has split or merged updates them, after it has unlocked the nodes and before
    /// its write returns.
    Synchronous,
    /// The writer updates them while it holds the nodes' locks. This is the paper's index before
    /// its layers are separated (§6.3.1).
    Inside,
    /// [`HydraList::follow`](super::HydraList::follow) updates them. Writers wait while the lag is
    /// above its limit.
    OnDemand,
}

/// Options for the parts of the index. All are enabled except in the paper's factor analysis
/// (figure 9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HydraOptions {
    /// Whether entries are in sorted order and searched by bisection, instead of by fingerprint.
    pub sorted: bool,
    /// Whether fingerprints are compared with vector instructions; otherwise byte by byte.
    pub simd: bool,
    /// The time at which search layers follow.
    pub update: Update,
    /// The NUMA topology. Each of its nodes has its own search layer.
    pub topology: Topology,
    /// Whether a reader that meets a writer waits before it restarts.
    pub backoff: bool,
    /// Maximum number of splits and merges that wait for a search layer, before writers wait, too.
    pub lag_limit: usize,
}

impl Default for HydraOptions {
    fn default() -> Self {
        Self {
            sorted: false,
            simd: true,
            update: Update::Background,
            topology: Topology::system(),
            backoff: true,
            lag_limit: 4096,
        }
    }
}

impl HydraOptions {
    /// Returns the way in which a node is searched.
    pub(super) fn leaf(&self) -> NodeSearch {
        match (self.sorted, self.simd) {
            (true, _) => NodeSearch::Sorted,
            (false, true) => NodeSearch::Fingerprints(Compare::Vectors(InstructionSet::widest())),
            (false, false) => NodeSearch::Fingerprints(Compare::Bytes),
        }
    }
}
