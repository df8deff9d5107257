//! A job: the measurements on one instance of an index.

use ordna_base::Key;

use crate::workload::{Workload, Written};

/// The measurements on a new instance.
pub struct Job<'a, K: Key + ?Sized> {
    /// The keys: the first `loaded` are loaded, and workloads insert the others.
    pub keys: &'a K::Sequence,
    /// Number of keys that are loaded.
    pub loaded: usize,
    /// Number of threads that load.
    pub threads: usize,
    /// Number of keys per call of the load. With 1, operations are single.
    pub batch: usize,
    /// Whether a call has operations of all kinds, in their order.
    pub ordered: bool,
    /// The workloads that can be run, in any order, on the same instance.
    pub phases: &'a [Phase],
    /// The ranks of the loaded keys in key order, if a workload scans.
    pub ranks: Option<&'a [u32]>,
}

/// A workload with its operations.
pub struct Phase {
    /// The workload.
    pub workload: Workload,
    /// Number of keys per call.
    pub batch: usize,
    /// The operations of each thread, or none for [`Workload::Load`].
    pub written: Written,
    /// Whether every operation is measured separately, instead of all together.
    pub latency: bool,
}
