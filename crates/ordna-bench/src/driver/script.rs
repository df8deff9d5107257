//! What is run on a build, written down before the first clock starts.

use super::{Build, Plan};
use crate::run::Phase;
use crate::workload::Workload;

/// A cell of every index.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub threads: usize,
    /// Keys per call.
    pub batch: usize,
    pub workload: Workload,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x{}", self.workload, self.threads)?;
        if self.batch > 1 { write!(f, " in groups of {}", self.batch) } else { Ok(()) }
    }
}

/// A phase, and the case that it is for.
pub struct Turn {
    pub case: usize,
    pub phase: usize,
    pub last_of_round: bool,
}

/// The phases of a build, and in which order they come.
pub struct Script {
    pub phases: Vec<Phase>,
    pub turns: Vec<Turn>,
}

/// Operations, and keys that they insert.
struct Size {
    operations: usize,
    extra: usize,
}

fn size(plan: &Plan, workload: &Workload, latency: bool) -> Size {
    let operations =
        if latency { plan.timed_operations(workload) } else { plan.operations(workload) };
    Size { operations, extra: workload.extra_keys(operations) }
}

/// A load has no operations of its own to time.
fn is_timed(workload: &Workload) -> bool {
    *workload != Workload::Load
}

/// Turns of a build.
pub fn turns(build: &Build, rounds: usize, latency: bool) -> usize {
    let timed = build.cases.iter().filter(|case| latency && is_timed(&case.workload));
    build.cases.len() * rounds + timed.count()
}

impl Script {
    /// Keys beyond the loaded ones that are inserted in all.
    pub fn extra_keys(plan: &Plan, build: &Build) -> usize {
        let of = |workload: &Workload| {
            let rounds = if plan.quick { plan.rounds } else { 1 };
            let timed = if plan.latency { size(plan, workload, true).extra } else { 0 };
            size(plan, workload, false).extra * rounds + timed
        };
        build.cases.iter().map(|case| of(&case.workload)).sum()
    }

    /// Writes all operations, on `loaded` keys and those behind them. Rounds have the same
    /// operations. Only where they insert, and one instance has all rounds, each has keys of its
    /// own to insert.
    pub fn write(plan: &Plan, build: &Build, loaded: usize) -> Self {
        let (mut phases, mut turns, mut fresh) = (Vec::new(), Vec::new(), loaded);
        let mut phase = |case: usize, round: u64, latency: bool| {
            let Case { threads, batch, workload } = &build.cases[case];
            let Size { operations, extra } = size(plan, workload, latency);
            // Another seed: a pass must not find what the one before brought to the caches.
            let seed = plan.seed ^ u64::from(latency) << 40 ^ round << 44;
            let written = workload.operations(loaded, fresh, extra, operations, *threads, seed);
            fresh += extra;
            phases.push(Phase { workload: workload.clone(), batch: *batch, written, latency });
            phases.len() - 1
        };
        let cases = build.cases.len();
        let mut first: Vec<usize> = Vec::new();
        for round in 0..plan.rounds {
            for case in 0..cases {
                let own = plan.quick && build.cases[case].workload.extra_keys(1) > 0;
                let phase = match first.get(case) {
                    Some(shared) if !own => *shared,
                    _ => phase(case, round as u64, false),
                };
                if round == 0 {
                    first.push(phase);
                }
                turns.push(Turn { case, phase, last_of_round: case + 1 == cases });
            }
        }
        for case in (0..cases).filter(|case| plan.latency && is_timed(&build.cases[*case].workload))
        {
            let phase = phase(case, 0, true);
            turns.push(Turn { case, phase, last_of_round: case + 1 == cases });
        }
        Self { phases, turns }
    }
}
