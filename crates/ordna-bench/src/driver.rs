//! Plans: indexes on one key set under workloads, in interleaved rounds.

use hdrhistogram::Histogram;
use ordna::Key;
use ordna::entries::Sequence;

use crate::check::ranks;
use crate::dram::Dram;
use crate::keys::KeySet;
use crate::memory;
use crate::progress::Progress;
use crate::registry::{Chosen, Entry, Runner};
use crate::run::{Built, Job, Load, Measured, Phase, Problem};
use crate::table::{Cell, Role, Spread};
use crate::workload::Workload;

/// What to measure on one key set.
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
    /// Rounds.
    pub rounds: usize,
    /// One more round with the clock in every operation.
    pub latency: bool,
    /// Seed of keys and operations.
    pub seed: u64,
    /// One build serves all workloads and numbers of threads, one after the other, and the pass for
    /// latency has a fifth of the operations; scans are a tenth of them.
    pub quick: bool,
    /// The machine's memory latency, to be told with the results.
    pub dram: Option<Dram>,
}

/// What the binary allocates with; `memory::allocated` asks it.
pub const ALLOCATOR: &str = "jemalloc";

/// The processor and its cores.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores")
}

/// One build of every index, and the workloads that are run on it.
struct Build {
    /// Threads that load.
    threads: usize,
    batch: usize,
    /// The cells that it gives: threads and workload.
    cases: Vec<(usize, Workload)>,
}

/// What a build is run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Throughput,
    Latency,
    /// Both on one instance, the second with a fifth of the operations.
    Both,
}

impl Plan {
    /// Refuses what cannot end well, before anything is made.
    ///
    /// # Errors
    /// Tells what is asked too much or too little.
    pub fn check(&self) -> Result<(), String> {
        if self.n == 0 || self.n > u32::MAX as usize / 4 {
            return Err(format!("--n is 1 to {}, not {}", u32::MAX / 4, self.n));
        }
        if let Some(threads) = self.threads.iter().find(|threads| !(1..=256).contains(*threads)) {
            return Err(format!("--threads are 1 to 256, not {threads}"));
        }
        if let Some(batch) = self.batches.iter().find(|batch| !(1..=65_536).contains(*batch)) {
            return Err(format!("--batch is 1 to 65536, not {batch}"));
        }
        if self.rounds == 0 {
            return Err("--rounds is at least 1".to_owned());
        }
        fits(self.bytes_needed(), memory::available(), self.n)
    }

    /// Bytes that the run needs at its fullest, roughly: the keys while they are made, or the keys
    /// and the widest index seen so far.
    fn bytes_needed(&self) -> usize {
        let mean = self.keys.mean_bytes();
        let making = if self.keys.is_int() { 16 } else { 2 * mean + 80 };
        let running = mean + 8 + 2 * mean + 130 + 12;
        self.n.saturating_mul(making.max(running)) + self.ops * 8 * self.workloads.len()
    }

    /// The largest `n` up to this one that fits into the memory there is.
    pub fn largest_n(&self, most: usize) -> usize {
        let per_key = self.bytes_needed() / self.n.max(1);
        memory::available().map_or(most, |free| most.min(free / per_key.max(1) / 100 * 99))
    }

    fn builds(&self) -> Vec<Build> {
        // Workloads with roles have as many threads as roles.
        let roles = |workload: &Workload| workload.roles().len();
        let loaders = self.threads.iter().copied().max().unwrap_or(1);
        let mut builds = Vec::new();
        for (at, &batch) in self.batches.iter().enumerate() {
            let mut cases: Vec<(usize, Workload)> = Vec::new();
            for &threads in &self.threads {
                for workload in self.workloads.iter().filter(|workload| roles(workload) == 0) {
                    // One load, by all threads, if one build serves all.
                    if !(self.quick && *workload == Workload::Load && threads != loaders) {
                        cases.push((threads, workload.clone()));
                    }
                }
            }
            let with_roles =
                self.workloads.iter().filter(|workload| at == 0 && roles(workload) > 0);
            cases.extend(with_roles.map(|workload| (roles(workload), workload.clone())));
            if self.quick {
                builds.push(Build { threads: loaders, batch, cases });
            } else {
                let alone =
                    |case: (usize, Workload)| Build { threads: case.0, batch, cases: vec![case] };
                builds.extend(cases.into_iter().map(alone));
            }
        }
        builds.retain(|build| !build.cases.is_empty());
        builds
    }

    /// The rounds: what each is for.
    fn passes(&self) -> Vec<Pass> {
        if self.quick && self.latency {
            return vec![Pass::Both; self.rounds];
        }
        let mut passes = vec![Pass::Throughput; self.rounds];
        passes.extend(self.latency.then_some(Pass::Latency));
        passes
    }

    /// The phases of a pass in order, each with the place of its case, and how many keys beyond the
    /// loaded ones they insert.
    fn phases(&self, build: &Build, loaded: usize, pass: Pass) -> (Vec<usize>, Vec<Phase>, usize) {
        let (mut at, mut phases, mut fresh) = (Vec::new(), Vec::new(), loaded);
        for (place, total, latency, extra) in self.steps_of(build, pass) {
            let (threads, workload) = &build.cases[place];
            // Another seed: the second pass must not find what the first brought to the caches.
            let seed = self.seed ^ u64::from(latency) << 40;
            let written = workload.operations(loaded, fresh, extra, total, *threads, seed);
            fresh += extra;
            at.push(place);
            phases.push(Phase { workload: workload.clone(), written, latency });
        }
        (at, phases, fresh - loaded)
    }

    /// Place of the case, operations, whether timed one by one, and keys to insert.
    fn steps_of(&self, build: &Build, pass: Pass) -> Vec<(usize, usize, bool, usize)> {
        let mut steps = Vec::new();
        for (place, (_, workload)) in build.cases.iter().enumerate() {
            let total = self.operations(workload);
            if pass != Pass::Latency {
                steps.push((place, total, false, workload.extra_keys(total)));
            }
            // A load has no operations of its own to time.
            if pass != Pass::Throughput && (total > 0 || pass == Pass::Latency) {
                let total = if pass == Pass::Both { total.div_ceil(5) } else { total };
                steps.push((place, total, true, workload.extra_keys(total)));
            }
        }
        steps
    }

    /// Keys beyond the loaded ones that a build inserts at most.
    fn extra(&self, build: &Build) -> usize {
        let of = |pass: &Pass| self.steps_of(build, *pass).iter().map(|step| step.3).sum::<usize>();
        self.passes().iter().map(of).max().unwrap_or(0)
    }

    fn operations(&self, workload: &Workload) -> usize {
        match workload {
            Workload::Load => 0,
            Workload::Remove => self.ops.min(self.n),
            _ if self.quick && workload.scans() => (self.ops / 10).max(1),
            _ => self.ops,
        }
    }

    /// Steps of the progress bar that [`Plan::run`] takes.
    pub fn steps(&self) -> usize {
        self.passes().len() * self.builds().len() * self.indexes.len()
    }

    /// Makes the keys and measures.
    ///
    /// # Errors
    /// The keys cannot be made.
    pub fn run(&self, progress: &Progress) -> Result<Vec<Cell>, String> {
        let builds = self.builds();
        let most = builds.iter().map(|build| self.extra(build)).max().unwrap_or(0);
        let wanted = self.n + most;
        progress.say(&format!("making {wanted} keys of {} (seed {})", self.keys, self.seed));
        if self.keys.is_int() {
            let made = self.keys.integers(wanted, self.seed);
            Ok(self.on_keys::<u64>(&made, &builds, |entry| &entry.integers, progress))
        } else {
            let made = self.keys.byte_strings(wanted, self.seed)?;
            if made.len() <= most {
                return Err(format!("{} has only {} keys", self.keys, made.len()));
            }
            Ok(self.on_keys::<[u8]>(&made, &builds, |entry| &entry.bytes, progress))
        }
    }

    fn on_keys<K: Key + ?Sized>(
        &self,
        keys: &K::Sequence,
        builds: &[Build],
        runner: impl Fn(&Entry) -> &Result<Runner<K>, String>,
        progress: &Progress,
    ) -> Vec<Cell> {
        let mut cells = Vec::new();
        let mut order: Option<Vec<u32>> = None;
        for build in builds {
            let loaded = (keys.len() - self.extra(build)).min(self.n);
            if build.cases.iter().any(|(_, workload)| workload.scans())
                && order.as_ref().is_none_or(|order| order.len() != loaded)
            {
                order = Some(ranks::<K>(keys, loaded));
            }
            let what = match build.cases.as_slice() {
                [(threads, workload)] => format!("{} {workload} x{threads}", self.keys),
                cases => format!("{} {} workloads", self.keys, cases.len()),
            };
            let mut all: Vec<Vec<Rounds>> = self
                .indexes
                .iter()
                .map(|_| build.cases.iter().map(|_| Rounds::default()).collect())
                .collect();
            let mut made: Option<(Pass, Vec<usize>, Vec<Phase>)> = None;
            for pass in self.passes() {
                // Every round has the same operations; the pass for latency has others.
                if made.as_ref().is_none_or(|(of, _, _)| *of != pass) {
                    let (places, phases, _) = self.phases(build, loaded, pass);
                    made = Some((pass, places, phases));
                }
                let Some((_, places, phases)) = &made else { continue };
                let job = Job {
                    keys,
                    loaded,
                    threads: build.threads,
                    batch: build.batch,
                    phases,
                    ranks: order.as_deref(),
                };
                for (index, rounds) in self.indexes.iter().zip(&mut all) {
                    progress.step(&what, &index.name);
                    let built = match runner(&index.entry) {
                        Ok(run) => run(&job, &index.switches),
                        Err(why) => {
                            Built::nothing(phases.len(), &Problem::NotApplicable(why.clone()))
                        }
                    };
                    for ((place, phase), result) in places.iter().zip(phases).zip(built.phases) {
                        rounds[*place].take(phase.latency, &built.load, result);
                    }
                    progress.done();
                }
            }
            for (place, case) in build.cases.iter().enumerate() {
                for (index, rounds) in self.indexes.iter().zip(&mut all) {
                    let rounds = std::mem::take(&mut rounds[place]);
                    cells.push(self.cell(index, case, build.batch, loaded, rounds));
                }
            }
        }
        cells
    }

    fn cell(
        &self,
        index: &Chosen,
        (threads, workload): &(usize, Workload),
        batch: usize,
        n: usize,
        rounds: Rounds,
    ) -> Cell {
        let (note, detail) = match rounds.problem {
            None => (None, rounds.wrong_scan.map(|wrong| format!("its scans are wrong: {wrong}"))),
            Some(Problem::Wrong(what)) => (Some("wrong".to_owned()), Some(what)),
            Some(Problem::Failed(what)) => (Some("failed".to_owned()), Some(what)),
            Some(Problem::NotApplicable(why)) => (Some(format!("n/a: {why}")), None),
        };
        let figures = if *workload == Workload::Load { &rounds.load } else { &rounds.mops };
        let median = |figures: &[f64]| Spread::of(figures).map(|spread| spread.median);
        let percentile =
            |share: f64| rounds.latency.as_ref().map(|all| all.value_at_quantile(share));
        let curve = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];
        let roles = workload.roles().iter().enumerate().filter_map(|(at, role)| {
            let figures: Vec<f64> =
                rounds.roles.iter().filter_map(|round| round.get(at).copied()).collect();
            Some(Role { name: (*role).to_owned(), mops: Spread::of(&figures)? })
        });
        Cell {
            experiment: self.experiment.clone(),
            index: index.name.clone(),
            keys: self.keys.to_string(),
            workload: workload.to_string(),
            threads: *threads,
            batch,
            n,
            ops: if *workload == Workload::Load { n } else { self.operations(workload) },
            mops: Spread::of(figures).filter(|_| note.is_none()),
            roles: roles.filter(|_| note.is_none()).collect(),
            p50_ns: percentile(0.5),
            p99_ns: percentile(0.99),
            p999_ns: percentile(0.999),
            max_ns: rounds.latency.as_ref().map(Histogram::max),
            latency: curve.iter().filter_map(|share| Some((*share, percentile(*share)?))).collect(),
            bytes_per_key: median(&rounds.bytes_per_key),
            rss_per_key: median(&rounds.rss_per_key),
            checked: note.is_none(),
            note,
            detail,
            ours: index.entry.ours,
            rounds: self.rounds,
            seed: self.seed,
            dram: self.dram,
            machine: machine(),
            allocator: ALLOCATOR.to_owned(),
        }
    }
}

fn fits(needed: usize, available: Option<usize>, n: usize) -> Result<(), String> {
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    match available.filter(|free| *free < needed) {
        None => Ok(()),
        Some(free) => Err(format!(
            "about {:.1} GiB are needed for {n} keys, and {:.1} GiB are free; ask for fewer with --n",
            gib(needed),
            gib(free)
        )),
    }
}

/// The rounds of one index under one workload.
#[derive(Default)]
struct Rounds {
    load: Vec<f64>,
    mops: Vec<f64>,
    roles: Vec<Vec<f64>>,
    bytes_per_key: Vec<f64>,
    rss_per_key: Vec<f64>,
    latency: Option<Histogram<u64>>,
    problem: Option<Problem>,
    /// Scans were wrong, and this is not about scans.
    wrong_scan: Option<String>,
}

impl Rounds {
    /// The pass with the clock in every operation counts for latency only.
    fn take(
        &mut self,
        latency: bool,
        load: &Result<Load, Problem>,
        phase: Result<Measured, Problem>,
    ) {
        match (load, phase) {
            (Ok(_), Ok(measured)) if latency => {
                self.latency = measured.latency.filter(|all| !all.is_empty());
            }
            (Ok(load), Ok(measured)) => {
                if self.wrong_scan.is_none() {
                    self.wrong_scan.clone_from(&load.wrong_scan);
                }
                self.load.push(load.mops);
                self.bytes_per_key.extend(load.bytes_per_key);
                self.rss_per_key.extend(load.rss_per_key);
                self.mops.push(measured.mops);
                self.roles.push(measured.roles);
            }
            (Err(problem), _) => {
                self.problem.get_or_insert_with(|| problem.clone());
            }
            (_, Err(problem)) => {
                self.problem.get_or_insert(problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    fn plan() -> Plan {
        let registry = Registry::new();
        Plan {
            experiment: None,
            indexes: ["locked", "btree"].map(|name| registry.find(name).unwrap()).to_vec(),
            keys: KeySet::Email,
            workloads: ["load", "delmix", "a", "contend:1", "scan:9"]
                .map(|name| name.parse().unwrap())
                .to_vec(),
            n: 3000,
            ops: 1000,
            threads: vec![1],
            batches: vec![1, 8],
            rounds: 2,
            latency: true,
            seed: 1,
            quick: true,
            dram: None,
        }
    }

    #[test]
    fn a_quick_run_builds_once_for_each_number_of_keys_per_call() {
        let builds = |plan: &Plan| -> Vec<(usize, usize, usize)> {
            plan.builds().iter().map(|b| (b.threads, b.batch, b.cases.len())).collect()
        };
        let mut plan = plan();
        assert_eq!(builds(&plan), [(1, 1, 5), (1, 8, 4)]);
        // Loaded once, by two threads.
        plan.threads = vec![1, 2];
        assert_eq!(builds(&plan), [(2, 1, 8), (2, 8, 7)]);
        plan.quick = false;
        assert_eq!(builds(&plan).len(), 2 * 2 * 4 + 1);
    }

    #[test]
    fn one_thread_indexes_are_measured_where_one_thread_runs() {
        let mut plan = plan();
        plan.threads = vec![1, 2];
        let cells = plan.run(&Progress::hidden()).unwrap();
        for cell in cells.iter().filter(|cell| cell.index == "btree") {
            assert_eq!(cell.checked, cell.threads == 1, "{cell:?}");
        }
        assert!(cells.iter().all(|cell| cell.index == "btree" || cell.checked));
    }

    #[test]
    fn every_cell_has_a_figure_or_a_reason() {
        let plan = plan();
        let cells = plan.run(&Progress::hidden()).unwrap();
        assert_eq!(cells.len(), 2 * 9);
        for cell in &cells {
            if cell.workload.starts_with("contend") && cell.index == "btree" {
                assert!(cell.note.as_ref().unwrap().contains("one thread only"));
                continue;
            }
            assert!(cell.checked && cell.mops.is_some(), "{cell:?}");
            assert!(cell.bytes_per_key.unwrap() >= 0.0 && cell.rss_per_key.is_some());
            assert_eq!(cell.roles.len(), if cell.workload.starts_with("contend") { 2 } else { 0 });
            assert_eq!(cell.p50_ns.is_some(), cell.workload != "load", "{cell:?}");
        }
    }

    #[test]
    fn too_little_memory_is_said_before_the_run() {
        let mut plan = plan();
        plan.check().unwrap();
        plan.n = u32::MAX as usize / 4;
        plan.keys = KeySet::Fixed(60_000);
        let text = plan.check().unwrap_err();
        assert!(text.contains("GiB are needed") && text.contains("--n"), "{text}");
        assert!(plan.largest_n(plan.n) < plan.n);
        plan.n = 0;
        assert!(plan.check().unwrap_err().contains("--n is 1"));
    }
}
