//! A plan: the measurements on one key set, and the index builds that they need.

use crate::info::RunInfo;
use crate::keys::KeySet;
use crate::registry::Chosen;
use crate::workload::Workload;

/// The measurements on one key set.
#[derive(Clone)]
pub struct Plan {
    /// The experiment of a paper to which this plan belongs.
    pub experiment: Option<String>,
    /// The indexes. Each round measures all of them once.
    pub indexes: Vec<Chosen>,
    /// The key set.
    pub keys: KeySet,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// Number of keys to load.
    pub n: usize,
    /// Number of operations of each workload.
    pub ops: usize,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Numbers of keys per call.
    pub batches: Vec<usize>,
    /// Whether a call mixes operations of all kinds, in their order.
    pub ordered: bool,
    /// Number of rounds.
    pub rounds: usize,
    /// Whether one more round measures the time of each operation.
    pub latency: bool,
    /// Seed of keys and operations.
    pub seed: u64,
    /// Whether one build serves all measurements, see [`crate::driver`]. `ops` is then the total of
    /// all rounds, and scans have a tenth of it.
    pub quick: bool,
    /// Whether instances live in child processes. Not in unit tests, where other threads run.
    pub apart: bool,
    /// Whether indexes are loaded into memory that is new to the process.
    pub fresh_memory: bool,
    /// The facts about the run that its results repeat.
    pub info: RunInfo,
}

/// One build of each index, and the measurements that use it.
pub struct Build {
    /// Number of threads that load.
    pub threads: usize,
    /// Number of keys per call during the load.
    pub batch: usize,
    /// The measurements.
    pub cases: Vec<Case>,
}

impl Build {
    /// Returns whether the build is measured by its load alone.
    pub fn loads_only(&self) -> bool {
        self.cases.iter().all(|case| case.workload == Workload::Load)
    }
}

/// One measurement of each index: a workload, a number of threads and a batch size.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub threads: usize,
    /// Number of keys per call.
    pub batch: usize,
    /// Whether a call mixes operations of all kinds, in their order.
    pub ordered: bool,
    pub workload: Workload,
}

impl Case {
    /// Returns the reason if no index can run this case.
    pub fn impossible(&self) -> Option<&'static str> {
        self.workload.ungroupable().filter(|_| self.batch > 1 && !self.ordered)
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x{}", self.workload, self.threads)?;
        match (self.ordered, self.batch) {
            (true, batch) => write!(f, " in ordered batches of {batch}"),
            (false, 1) => Ok(()),
            (false, batch) => write!(f, " in groups of {batch}"),
        }
    }
}

impl Plan {
    /// Removes duplicate numbers of threads and of keys per call.
    pub fn distinct(mut self) -> Self {
        fn once<T: PartialEq>(all: &mut Vec<T>) {
            let mut seen = Vec::new();
            for item in std::mem::take(all) {
                if !seen.contains(&item) {
                    seen.push(item);
                }
            }
            *all = seen;
        }
        once(&mut self.threads);
        once(&mut self.batches);
        once(&mut self.workloads);
        self
    }

    /// Returns the builds that the plan needs.
    pub fn builds(&self) -> Vec<Build> {
        let loaders = self.threads.iter().copied().max().unwrap_or(1);
        let first = self.batches.first().copied().unwrap_or(1);
        let mut cases = Vec::new();
        let ordered = self.ordered;
        for &batch in &self.batches {
            for &threads in &self.threads {
                for workload in &self.workloads {
                    // A workload with roles has one thread for each role. In a quick run, one group
                    // size loads all keys.
                    let again = !workload.roles().is_empty()
                        || self.quick && *workload == Workload::Load && batch != first;
                    if !again {
                        cases.push(Case { threads, batch, ordered, workload: workload.clone() });
                    }
                }
            }
            let with_roles = self.workloads.iter().filter(|w| !w.roles().is_empty());
            cases.extend(with_roles.map(|workload| Case {
                threads: workload.roles().len(),
                batch,
                ordered,
                workload: workload.clone(),
            }));
        }
        let alone =
            |case: Case| Build { threads: case.threads, batch: case.batch, cases: vec![case] };
        if !self.quick {
            return cases.into_iter().map(alone).collect();
        }
        let (loads, cases): (Vec<Case>, Vec<Case>) = cases
            .into_iter()
            .partition(|case| case.workload == Workload::Load && case.threads != loaders);
        let mut builds: Vec<Build> = loads.into_iter().map(alone).collect();
        if !cases.is_empty() {
            builds.push(Build { threads: loaders, batch: first, cases });
        }
        builds
    }

    /// Returns the number of operations of a workload in one round, at least one for each thread.
    pub fn operations(&self, workload: &Workload, threads: usize) -> usize {
        let ops = if self.quick { self.ops.div_ceil(self.rounds) } else { self.ops };
        match workload {
            Workload::Load => 0,
            Workload::Remove => ops.min(self.n),
            _ if self.quick && workload.scans() => ops.div_ceil(10).max(threads),
            _ => ops.max(threads),
        }
    }

    /// Returns the number of operations of the latency round.
    pub fn timed_operations(&self, workload: &Workload, threads: usize) -> usize {
        match workload {
            _ if !self.quick => self.operations(workload, threads),
            Workload::Remove => (self.ops / 5).clamp(1, self.n),
            _ if workload.scans() => self.ops.div_ceil(50).max(threads),
            _ => self.ops.div_ceil(5).max(threads),
        }
    }
}
