//! The result of a measurement: figures, or the reason why there are none.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The reason why there is no figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// An answer was wrong.
    Wrong(String),
    /// The index panicked.
    Failed(String),
    /// The index ended its process, or did not respond.
    Crashed(String),
    /// The index does not support this.
    NotApplicable(String),
}

/// Figures of a load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    /// Million inserts per second.
    pub mops: f64,
    /// Number of bytes per key that the allocator handed out for the loaded index, or `None` if the
    /// index allocates elsewhere.
    pub bytes_per_key: Option<f64>,
    /// Growth of the resident set per key.
    pub rss_per_key: Option<f64>,
    /// Number of bytes of slabs per key for which the system uses huge pages.
    pub huge_per_key: Option<f64>,
    /// The fault of the scan after the load, if there is one. Point operations may be correct
    /// nevertheless.
    pub wrong_scan: Option<String>,
}

/// Figures of a workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Million operations per second of all threads together.
    pub mops: f64,
    /// Million operations per second of each role, if threads have different roles.
    pub roles: Vec<f64>,
    /// The index's own counts since its creation, if it counts.
    pub counts: Option<String>,
    /// Latency of the operations, if they were measured individually. An operation in a group takes
    /// as long as the group.
    pub latency: Option<Latency>,
    /// Average numbers of keys per group call, if there were such calls.
    pub groups: Groups,
}

/// Average numbers of keys per group call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Average number for gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gets: Option<f64>,
    /// Average number for puts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub puts: Option<f64>,
    /// Average number for removes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<f64>,
}

/// Durations of operations.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Latency {
    /// Pairs of a share of the operations and the number of nanoseconds within which they
    /// completed.
    pub curve: Vec<(f64, u64)>,
    /// Duration of the slowest operation in nanoseconds.
    pub max_ns: u64,
}

/// The shares of the curve.
const SHARES: [f64; 10] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];

impl Latency {
    /// Computes the latency from these durations in nanoseconds.
    pub fn of(all: &Histogram<u64>) -> Self {
        let curve = SHARES.map(|share| (share, all.value_at_quantile(share))).to_vec();
        Self { curve, max_ns: all.max() }
    }

    /// Returns the number of nanoseconds within which this share of the operations completed.
    pub fn at(&self, share: f64) -> Option<u64> {
        let found = self.curve.iter().find(|(known, _)| (known - share).abs() < 1e-9);
        found.map(|(_, nanoseconds)| *nanoseconds)
    }
}

/// Runs `f`. A panic becomes an error with its message.
/// # Errors
/// [`Problem::Failed`] if `f` panics.
pub fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Problem> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Problem::Failed(format!("it panicked: {}", text.unwrap_or_default()))
    })
}
