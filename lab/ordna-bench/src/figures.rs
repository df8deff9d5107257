//! The outcome of a measurement: figures, or the reason why there are none.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Why there is no figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// An answer was wrong.
    Wrong(String),
    /// It panicked.
    Failed(String),
    /// It ended its process, or hung.
    Crashed(String),
    /// The index cannot do this.
    NotApplicable(String),
}

/// Figures of a load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    /// Million inserts per second.
    pub mops: f64,
    /// Bytes that the allocator handed out for the loaded index, per key; `None` if the index
    /// allocates elsewhere.
    pub bytes_per_key: Option<f64>,
    /// By how much the resident set grew, per key.
    pub rss_per_key: Option<f64>,
    /// Bytes of slabs that the system backed with huge pages, per key.
    pub huge_per_key: Option<f64>,
    /// The fault of the scan after it, if any. Point operations may be right all the same.
    pub wrong_scan: Option<String>,
}

/// Figures of a workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Million operations per second, of all threads together.
    pub mops: f64,
    /// The same of each role, where threads do different things.
    pub roles: Vec<f64>,
    /// The index's own counts since it was made, if it counts.
    pub counts: Option<String>,
    /// Of the operations, if they were timed one by one. An operation in a group takes as long as
    /// the group.
    pub latency: Option<Latency>,
    /// Keys of a call for groups, on average, where there were such calls.
    pub groups: Groups,
}

/// Keys of a call for groups, on average.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Of gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gets: Option<f64>,
    /// Of puts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub puts: Option<f64>,
    /// Of removes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removes: Option<f64>,
}

/// How long operations took.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Latency {
    /// Share of the operations and the nanoseconds within which they were done.
    pub curve: Vec<(f64, u64)>,
    /// The slowest, in nanoseconds.
    pub max_ns: u64,
}

/// The shares of the curve.
const SHARES: [f64; 10] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];

impl Latency {
    /// Of these times, in nanoseconds.
    pub fn of(all: &Histogram<u64>) -> Self {
        let curve = SHARES.map(|share| (share, all.value_at_quantile(share))).to_vec();
        Self { curve, max_ns: all.max() }
    }

    /// The nanoseconds within which this share of the operations was done.
    pub fn at(&self, share: f64) -> Option<u64> {
        let found = self.curve.iter().find(|(known, _)| (known - share).abs() < 1e-9);
        found.map(|(_, nanoseconds)| *nanoseconds)
    }
}

/// Runs `f`; a panic in it becomes an error that tells its message.
/// # Errors
/// [`Problem::Failed`].
pub fn guarded<R>(f: impl FnOnce() -> R) -> Result<R, Problem> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Problem::Failed(format!("it panicked: {}", text.unwrap_or_default()))
    })
}
