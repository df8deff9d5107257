//! Switches for the parts of the index.

use super::node::{Compare, NodeSearch};
use crate::topology::Topology;
use ordna_base::simd::InstructionSet;

/// When search layers follow splits and merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Soon, by threads of the index.
    Background,
    /// Before the write that split or merged returns, by the writer, after it has unlocked the
    /// nodes.
    Synchronous,
    /// By the writer, while it holds the nodes' locks: the paper's index before its layers are
    /// separated (§6.3.1).
    Inside,
    /// When [`HydraList::follow`](super::HydraList::follow) is called. Writers wait when the lag is
    /// above its limit.
    OnDemand,
}

/// Switches for the parts of the index: all are on but in the paper's factor analysis (figure 9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HydraOptions {
    /// Entries stand in order and are searched by bisection, not by fingerprint.
    pub sorted: bool,
    /// Fingerprints are compared by vector instructions; otherwise byte by byte.
    pub simd: bool,
    /// When search layers follow.
    pub update: Update,
    /// One search layer for each of its nodes.
    pub topology: Topology,
    /// A reader that meets a writer waits before it restarts.
    pub backoff: bool,
    /// Splits and merges that may be waiting for a search layer before writers wait too.
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
    /// How a node is searched.
    pub(super) fn leaf(&self) -> NodeSearch {
        match (self.sorted, self.simd) {
            (true, _) => NodeSearch::Sorted,
            (false, true) => NodeSearch::Fingerprints(Compare::Vectors(InstructionSet::widest())),
            (false, false) => NodeSearch::Fingerprints(Compare::Bytes),
        }
    }
}
