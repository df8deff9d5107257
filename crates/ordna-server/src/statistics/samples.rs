//! Figures of the last few minutes, second by second, for `INFO` and the console.

use std::collections::VecDeque;

use ordna::sync::Lock;

/// Number of seconds kept.
pub const KEPT: usize = 300;

/// Figures of one second.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Seconds since 1970.
    pub at: u64,
    pub commands: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
    /// Microseconds that half of the commands did not exceed.
    pub median: u64,
    /// Microseconds that 99 of 100 commands did not exceed.
    pub high: u64,
    pub memory: usize,
    pub clients: usize,
}

/// The samples of the last [`KEPT`] seconds.
#[derive(Debug, Default)]
pub struct Samples(Lock<VecDeque<Sample>>);

impl Samples {
    pub fn push(&self, sample: Sample) {
        let mut samples = self.0.lock();
        samples.push_back(sample);
        if samples.len() > KEPT {
            samples.pop_front();
        }
    }

    pub fn last(&self) -> Sample {
        let samples = self.0.lock();
        samples.back().copied().unwrap_or_default()
    }

    /// Returns all samples, oldest first.
    pub fn all(&self) -> Vec<Sample> {
        self.0.lock().iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_samples_are_kept() {
        let samples = Samples::default();
        for pushed in 1..=KEPT as u64 + 5 {
            samples.push(Sample { at: pushed, ..Sample::default() });
            let all: Vec<u64> = samples.all().iter().map(|sample| sample.at).collect();
            let first = (pushed + 1).saturating_sub(KEPT as u64).max(1);
            assert_eq!(all, (first..=pushed).collect::<Vec<_>>());
            assert_eq!(samples.last().at, pushed);
        }
    }
}
