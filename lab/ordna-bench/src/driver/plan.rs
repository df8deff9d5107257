//! A plan: the measurements on one key set, and the builds of the indexes that they take.

use crate::info::RunInfo;
use crate::keys::KeySet;
use crate::registry::Chosen;
use crate::workload::Workload;

/// The measurements on one key set.
#[derive(Clone)]
pub struct Plan {
    /// The experiment of a paper that this is a part of.
    pub experiment: Option<String>,
    /// The indexes; each round measures all of them once.
    pub indexes: Vec<Chosen>,
    /// The key set.
    pub keys: KeySet,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// Keys to load.
    pub n: usize,
    /// Operations of each workload.
    pub ops: usize,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Keys per call.
    pub batches: Vec<usize>,
    /// Whether a call takes operations of all sorts, in their order.
    pub ordered: bool,
    /// Rounds.
    pub rounds: usize,
    /// One more round with the clock in every operation.
    pub latency: bool,
    /// Seed of keys and operations.
    pub seed: u64,
    /// One build serves everything, see [`crate::driver`]; `ops` is of all rounds together, and
    /// scans are a tenth of that.
    pub quick: bool,
    /// Instances live in child processes. Only where no other thread runs: not in unit tests.
    pub apart: bool,
    /// Loads go into memory that the system has just given, not into what the process has had.
    pub fresh_memory: bool,
    /// The facts of the run that its results repeat.
    pub info: RunInfo,
}

/// One build of every index, and what is run on it.
pub struct Build {
    /// Threads that load.
    pub threads: usize,
    /// Keys per call of the load.
    pub batch: usize,
    /// The cells that it gives.
    pub cases: Vec<Case>,
}

impl Build {
    /// Whether nothing is asked of it after the load.
    pub fn loads_only(&self) -> bool {
        self.cases.iter().all(|case| case.workload == Workload::Load)
    }
}

/// A cell of every index.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub threads: usize,
    /// Keys per call.
    pub batch: usize,
    /// Whether a call takes operations of all sorts, in their order.
    pub ordered: bool,
    pub workload: Workload,
}

impl Case {
    /// Why no index can run it.
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
    /// Each number of threads and of keys per call once.
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

    /// The builds that give its cells.
    pub fn builds(&self) -> Vec<Build> {
        let loaders = self.threads.iter().copied().max().unwrap_or(1);
        let first = self.batches.first().copied().unwrap_or(1);
        let mut cases = Vec::new();
        let ordered = self.ordered;
        for &batch in &self.batches {
            for &threads in &self.threads {
                for workload in &self.workloads {
                    // A workload with roles has as many threads as roles; a quick run loads all
                    // keys with groups of one size only.
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

    /// Operations of a workload in one round: one for every thread at least.
    pub fn operations(&self, workload: &Workload, threads: usize) -> usize {
        let ops = if self.quick { self.ops.div_ceil(self.rounds) } else { self.ops };
        match workload {
            Workload::Load => 0,
            Workload::Remove => ops.min(self.n),
            _ if self.quick && workload.scans() => ops.div_ceil(10).max(threads),
            _ => ops.max(threads),
        }
    }

    /// Operations of the pass for latency.
    pub fn timed_operations(&self, workload: &Workload, threads: usize) -> usize {
        match workload {
            _ if !self.quick => self.operations(workload, threads),
            Workload::Remove => (self.ops / 5).clamp(1, self.n),
            _ if workload.scans() => self.ops.div_ceil(50).max(threads),
            _ => self.ops.div_ceil(5).max(threads),
        }
    }
}
