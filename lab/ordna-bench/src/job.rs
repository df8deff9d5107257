//! A job: the measurements on one instance of an index.

use ordna_base::Key;

use crate::workload::{Workload, Written};

/// The measurements on a fresh instance.
pub struct Job<'a, K: Key + ?Sized> {
    /// The keys: the first `loaded` are loaded, the others are the workloads' to insert.
    pub keys: &'a K::Sequence,
    /// How many keys are loaded.
    pub loaded: usize,
    /// Threads that load.
    pub threads: usize,
    /// Keys per call of the load; 1: single operations.
    pub batch: usize,
    /// Whether a call takes operations of all sorts, in their order.
    pub ordered: bool,
    /// The workloads that can be asked for, in any order, on the same instance.
    pub phases: &'a [Phase],
    /// The loaded keys' places in key order; there if a workload scans.
    pub ranks: Option<&'a [u32]>,
}

/// A workload, written down.
pub struct Phase {
    /// The workload.
    pub workload: Workload,
    /// Keys per call.
    pub batch: usize,
    /// The operations of each thread; none for [`Workload::Load`].
    pub written: Written,
    /// Times every operation by itself instead of all together.
    pub latency: bool,
}
