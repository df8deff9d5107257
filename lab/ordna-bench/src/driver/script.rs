//! The phases of a build, which are generated before the first measurement.

use super::plan::{Build, Case, Plan};
use crate::job::Phase;
use crate::workload::{Operation, Workload};
use crate::zipf::Random;

/// A phase and its case.
pub struct Turn {
    pub case: usize,
    pub phase: usize,
    pub last_of_round: bool,
    /// Whether the whole index is scanned after it.
    pub look: bool,
}

/// The phases of a build, and their order.
pub struct Script {
    pub phases: Vec<Phase>,
    pub turns: Vec<Turn>,
}

/// Number of keys up to which a quick run scans the whole index after every phase that writes. With
/// more keys, it scans once at the end.
pub const LOOK: usize = 1_000_000;

/// Number of operations, and of keys that they insert.
struct Size {
    operations: usize,
    extra: usize,
}

fn size(plan: &Plan, case: &Case, latency: bool) -> Size {
    let Case { threads, workload, .. } = case;
    let operations = if latency {
        plan.timed_operations(workload, *threads)
    } else {
        plan.operations(workload, *threads)
    };
    Size { operations, extra: workload.extra_keys(operations, *threads) }
}

/// Returns pairs of a case and a round, and whether each is the pass for latency.
fn order(plan: &Plan, build: &Build) -> Vec<(usize, usize, bool)> {
    let cases = || (0..build.cases.len()).filter(|at| build.cases[*at].impossible().is_none());
    // A load has no separate operations to measure.
    let timed = || cases().filter(|at| plan.latency && build.cases[*at].workload != Workload::Load);
    let rounds = if plan.quick && build.loads_only() { 1 } else { plan.rounds };
    let all = (0..rounds).flat_map(|round| cases().map(move |case| (case, round, false)));
    all.chain(timed().map(|case| (case, 0, true))).collect()
}

/// Returns the number of turns of a build.
pub fn turns(plan: &Plan, build: &Build) -> usize {
    order(plan, build).len()
}

impl Script {
    /// Returns the total number of inserted keys in addition to the loaded ones.
    pub fn extra_keys(plan: &Plan, build: &Build) -> usize {
        let all = order(plan, build).into_iter();
        let sizes = all.map(|(case, _, latency)| size(plan, &build.cases[case], latency).extra);
        // An instance of a quick run gets all of them.
        sizes.fold(0, if plan.quick { usize::saturating_add } else { usize::max })
    }

    /// Returns the sizes in bytes of all operations, and of those of the largest phase.
    pub fn bytes(plan: &Plan, build: &Build) -> (usize, usize) {
        let all = order(plan, build).into_iter().map(|(case, _, latency)| {
            let operations = size(plan, &build.cases[case], latency).operations;
            operations.saturating_mul(size_of::<Operation>())
        });
        all.fold((0, 0), |(sum, most), bytes| (sum.saturating_add(bytes), most.max(bytes)))
    }

    /// Generates all operations, on `loaded` keys and those after them. Every round has different
    /// operations, which are the same for every index, so a round does not benefit from what the
    /// previous one brought into the caches. If one instance runs all rounds, each round inserts
    /// different keys.
    pub fn write(plan: &Plan, build: &Build, loaded: usize) -> Self {
        let (mut phases, mut turns, mut fresh) = (Vec::new(), Vec::new(), loaded);
        let order = order(plan, build);
        for (at, &(case, round, latency)) in order.iter().enumerate() {
            let Case { threads, batch, workload, ordered } = &build.cases[case];
            let Size { operations, extra } = size(plan, &build.cases[case], latency);
            let pass = (case as u64) << 32 | (round as u64) << 1 | u64::from(latency);
            let seed = plan.seed ^ Random::mix(pass);
            let written = workload.operations(loaded, fresh, extra, operations, *threads, seed);
            fresh += if plan.quick { extra } else { 0 };
            let written = if *ordered { written } else { written.grouped(*batch) };
            phases.push(Phase { workload: workload.clone(), batch: *batch, written, latency });
            let next = order.get(at + 1);
            let last_of_round = next.is_none_or(|next| (next.1, next.2) != (round, latency));
            let after_load = *workload == Workload::Load;
            let look = workload.writes() && !after_load && (!plan.quick || loaded <= LOOK);
            turns.push(Turn { case, phase: at, last_of_round, look });
        }
        Self { phases, turns }
    }
}
