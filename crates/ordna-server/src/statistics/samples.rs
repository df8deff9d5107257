//! Samples that the server takes of itself once a second, for `INFO` and the console.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Seconds kept.
pub const KEPT: usize = 300;

/// A second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Seconds since 1970.
    pub at: u64,
    pub commands: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    /// Microseconds that half of the commands, and 99 of 100, did not exceed.
    pub median: u64,
    pub high: u64,
    pub memory: usize,
    pub clients: usize,
}

/// The totals at the last sample, and the differences of each second.
#[derive(Debug, Default)]
pub struct Samples(Mutex<VecDeque<Sample>>);

impl Samples {
    pub fn push(&self, sample: Sample) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push_back(sample);
        if samples.len() > KEPT {
            samples.pop_front();
        }
    }

    pub fn last(&self) -> Sample {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        samples.back().copied().unwrap_or_default()
    }

    /// The oldest first.
    pub fn all(&self) -> Vec<Sample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}
