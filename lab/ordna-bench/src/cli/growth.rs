//! `ordna-bench growth`: ns per lookup and bytes per key as the index grows.

use clap::Args;

use super::common::{BenchError, Common};
use crate::dram;
use crate::driver::Plan;
use crate::info::RunInfo;
use crate::keys::KeySet;
use crate::memory;
use crate::workload::Workload;

/// `ordna-bench growth`
#[derive(Debug, Args)]
pub struct Growth {
    #[command(flatten)]
    common: Common,
    /// Key sets.
    #[arg(long, value_delimiter = ',', default_value = "int")]
    keys: Vec<KeySet>,
    /// The smallest number of keys.
    #[arg(long, default_value_t = 10_000)]
    from: usize,
    /// The largest number of keys; less if the memory is too small for them.
    #[arg(long, default_value_t = 100_000_000)]
    to: usize,
    /// Lookups to measure per size and round; with --quick, the rounds share them.
    #[arg(long, default_value_t = 1_000_000)]
    ops: usize,
    /// Keys per call, see `run --help`.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
}

impl Growth {
    pub fn run(&self) -> Result<(), BenchError> {
        let indexes = self.common.indexes()?;
        if self.from == 0 || self.from > self.to {
            let text = format!("--from {} is not between 1 and --to {}", self.from, self.to);
            return Err(BenchError::Request(text));
        }
        let of = |keys: &KeySet, n: usize, info: RunInfo| {
            let plan = Plan {
                workloads: vec![Workload::CUniform],
                batches: self.batch.clone(),
                info,
                ..self.common.plan(&indexes, keys, (n, self.ops))
            };
            plan.distinct()
        };
        for keys in &self.keys {
            // Checked before the available memory is measured, which takes a while.
            of(keys, self.from, RunInfo::default()).check().map_err(BenchError::Request)?;
        }
        // Collected before the measurements, so that the load average is that of other programs.
        let info = RunInfo::now();
        let table = memory::available().map_or(1 << 29, |free| (free / 4).min(1 << 30));
        let dram = dram::measure(table);
        println!("DRAM: {dram}");
        let mut plans = Vec::new();
        for keys in &self.keys {
            let plan = |n: usize| of(keys, n, RunInfo { dram: Some(dram), ..info.clone() });
            let most = plan(self.from).largest_n(self.to);
            if most < self.to {
                println!("{keys}: the memory that is free holds about {most} keys");
            }
            plans.extend(sizes(self.from, most.max(self.from)).into_iter().map(plan));
        }
        self.common.measure(&plans)
    }
}

/// Returns `from` times every power of ten up to `to`, followed by 5 or 2 times the last of them if
/// that is not above `to`.
fn sizes(from: usize, to: usize) -> Vec<usize> {
    let grow = |n: &usize| n.checked_mul(10).filter(|n| *n <= to);
    let mut sizes: Vec<usize> = std::iter::successors(Some(from), grow).collect();
    let last = sizes.last().copied().unwrap_or(from);
    let mut next = [5, 2].into_iter().filter_map(|times| last.checked_mul(times));
    sizes.extend(next.find(|n| *n <= to));
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_as_far_as_they_may() {
        assert_eq!(sizes(10_000, 1_000_000), [10_000, 100_000, 1_000_000]);
        assert_eq!(sizes(10_000, 70_000_000), [10_000, 100_000, 1_000_000, 10_000_000, 50_000_000]);
        assert_eq!(sizes(10, 49), [10, 20]);
        assert_eq!(sizes(10, 10), [10]);
        assert_eq!(sizes(usize::MAX / 3, usize::MAX), [usize::MAX / 3, usize::MAX / 3 * 2]);
    }
}
