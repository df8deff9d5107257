//! Plans: indexes on one key set under workloads, in interleaved rounds.
//!
//! Every instance of an index lives in a child process ([`crate::isolate`]). A full run makes a
//! fresh one for every workload, number of threads and round. A quick run loads each index once,
//! keeps as many of them as the memory holds, and takes turns: every workload on all of them, one
//! after the other, and all of that again in every round. Neighbours in the table were measured
//! within seconds of each other, so a drifting machine hurts all alike.

mod rounds;
mod script;

use ordna::Key;
use ordna::entries::Sequence;

use crate::check::ranks;
use crate::host::Host;
use crate::info::RunInfo;
use crate::keys::KeySet;
use crate::memory;
use crate::progress::Progress;
use crate::registry::{Chosen, Entry, Maker};
use crate::run::{Job, Problem};
use crate::table::{Cell, Spread};
use crate::workload::Workload;
use rounds::Rounds;
use script::{Case, Script};

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
    /// One build serves everything, see [`crate::driver`]; the rounds share the operations, and
    /// scans are a tenth of them.
    pub quick: bool,
    /// Instances live in child processes. Only where no other thread runs: not in unit tests.
    pub apart: bool,
    /// What is told about the run with its results.
    pub info: RunInfo,
}

/// One build of every index, and what is run on it.
struct Build {
    /// Threads that load.
    threads: usize,
    /// Keys per call of the load.
    batch: usize,
    /// The cells that it gives.
    cases: Vec<Case>,
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
        let loaders = self.threads.iter().copied().max().unwrap_or(1);
        let mut cases = Vec::new();
        for (at, &batch) in self.batches.iter().enumerate() {
            for &threads in &self.threads {
                for workload in &self.workloads {
                    // Groups are for point operations; a workload with roles has as many threads as
                    // roles; a quick run loads once, by all threads.
                    let again = workload.scans() && at > 0
                        || !workload.roles().is_empty()
                        || self.quick
                            && *workload == Workload::Load
                            && (at > 0 || threads != loaders);
                    if !again {
                        cases.push(Case { threads, batch, workload: workload.clone() });
                    }
                }
            }
            let with_roles = self.workloads.iter().filter(|w| at == 0 && !w.roles().is_empty());
            cases.extend(with_roles.map(|workload| Case {
                threads: workload.roles().len(),
                batch,
                workload: workload.clone(),
            }));
        }
        let first = self.batches.first().copied().unwrap_or(1);
        if cases.is_empty() {
            return Vec::new();
        }
        if self.quick {
            return vec![Build { threads: loaders, batch: first, cases }];
        }
        let alone =
            |case: Case| Build { threads: case.threads, batch: case.batch, cases: vec![case] };
        cases.into_iter().map(alone).collect()
    }

    /// Operations of a workload in one round.
    fn operations(&self, workload: &Workload) -> usize {
        let ops = if self.quick { self.ops.div_ceil(self.rounds) } else { self.ops };
        match workload {
            Workload::Load => 0,
            Workload::Remove => ops.min(self.n),
            _ if self.quick && workload.scans() => ops.div_ceil(10),
            _ => ops,
        }
    }

    /// Operations of the pass for latency.
    fn timed_operations(&self, workload: &Workload) -> usize {
        match workload {
            _ if !self.quick => self.operations(workload),
            Workload::Remove => (self.ops / 5).clamp(1, self.n),
            _ if workload.scans() => self.ops.div_ceil(50),
            _ => self.ops.div_ceil(5),
        }
    }

    /// Steps of the progress bar that [`Plan::run`] takes.
    pub fn steps(&self) -> usize {
        let turns = |build: &Build| {
            let load = usize::from(self.quick);
            load + script::turns(build, self.rounds, self.latency)
        };
        self.builds().iter().map(turns).sum::<usize>() * self.indexes.len()
    }

    /// Makes the keys and measures. Calls `sink` with the cells so far, whenever there are more.
    ///
    /// # Errors
    /// The keys cannot be made.
    pub fn run(
        &self,
        progress: &Progress,
        sink: &mut dyn FnMut(&[Cell]),
    ) -> Result<Vec<Cell>, String> {
        let builds = self.builds();
        let most = builds.iter().map(|build| Script::extra_keys(self, build)).max().unwrap_or(0);
        let wanted = self.n + most;
        progress.say(&format!("making {wanted} keys of {} (seed {})", self.keys, self.seed));
        if self.keys.is_int() {
            let made = self.keys.integers(wanted, self.seed);
            Ok(self.on_keys::<u64>(&made, &builds, |entry| &entry.integers, progress, sink))
        } else {
            let made = self.keys.byte_strings(wanted, self.seed)?;
            if made.len() <= most {
                return Err(format!("{} has only {} keys", self.keys, made.len()));
            }
            Ok(self.on_keys::<[u8]>(&made, &builds, |entry| &entry.bytes, progress, sink))
        }
    }

    fn on_keys<K: Key + ?Sized>(
        &self,
        keys: &K::Sequence,
        builds: &[Build],
        maker: impl Fn(&Entry) -> &Result<Maker<K>, String>,
        progress: &Progress,
        sink: &mut dyn FnMut(&[Cell]),
    ) -> Vec<Cell> {
        let mut cells = Vec::new();
        let mut order: Option<Vec<u32>> = None;
        for build in builds {
            let loaded = (keys.len() - Script::extra_keys(self, build)).min(self.n);
            if build.cases.iter().any(|case| case.workload.scans())
                && order.as_ref().is_none_or(|order| order.len() != loaded)
            {
                order = Some(ranks::<K>(keys, loaded));
            }
            let script = Script::write(self, build, loaded);
            let job = Job {
                keys,
                loaded,
                threads: build.threads,
                batch: build.batch,
                phases: &script.phases,
                ranks: order.as_deref(),
            };
            let makers: Vec<_> = self
                .indexes
                .iter()
                .map(|index| {
                    let make = maker(&index.entry);
                    move || match make {
                        Ok(make) => make(&index.switches, build.threads),
                        Err(why) => Err(why.clone()),
                    }
                })
                .collect();
            let start = |at: usize| Host::start(&job, &makers[at], self.apart);
            let mut measuring = Measuring {
                plan: self,
                build,
                script: &script,
                loaded,
                progress,
                rounds: self
                    .indexes
                    .iter()
                    .map(|_| build.cases.iter().map(|_| Rounds::default()).collect())
                    .collect(),
            };
            let before = cells.len();
            let mut told = |measuring: &Measuring<'_>| {
                cells.truncate(before);
                cells.extend(measuring.cells());
                sink(&cells);
            };
            if self.quick {
                measuring.resident(&start, &mut told);
            } else {
                measuring.fresh(&start);
                told(&measuring);
            }
        }
        cells
    }
}

/// One build under measurement.
struct Measuring<'p> {
    plan: &'p Plan,
    build: &'p Build,
    script: &'p Script,
    loaded: usize,
    progress: &'p Progress,
    /// By index and case.
    rounds: Vec<Vec<Rounds>>,
}

impl<'p> Measuring<'p> {
    /// A new instance of every index for every turn.
    fn fresh<'j, 'a, K: Key + ?Sized>(&mut self, start: &dyn Fn(usize) -> Host<'j, 'a, K>) {
        for turn in &self.script.turns {
            for index in 0..self.plan.indexes.len() {
                self.step(index, &self.build.cases[turn.case].to_string());
                let mut host = start(index);
                self.load(index, &mut host);
                self.turn(index, &mut host, turn);
                self.finish(index, host);
                self.progress.done();
            }
        }
    }

    /// As many indexes at a time as the memory holds, each loaded once.
    fn resident<'j, 'a, K: Key + ?Sized>(
        &mut self,
        start: &dyn Fn(usize) -> Host<'j, 'a, K>,
        told: &mut dyn FnMut(&Self),
    ) {
        let mut waiting = 0..self.plan.indexes.len();
        while !waiting.is_empty() {
            let mut hosts: Vec<(usize, Host<'j, 'a, K>)> = Vec::new();
            while let Some(index) = waiting.clone().next() {
                let room = memory::available().is_none_or(|free| free > self.plan.bytes_needed());
                if !room && !hosts.is_empty() {
                    self.progress.say(&format!(
                        "the memory holds {} of the indexes at a time: the others follow",
                        hosts.len()
                    ));
                    break;
                }
                waiting.next();
                self.step(index, "load");
                let mut host = start(index);
                self.load(index, &mut host);
                hosts.push((index, host));
                self.progress.done();
            }
            for turn in &self.script.turns {
                for (index, host) in &mut hosts {
                    self.step(*index, &self.build.cases[turn.case].to_string());
                    self.turn(*index, host, turn);
                    self.progress.done();
                }
                if turn.last_of_round {
                    told(self);
                }
            }
            for (index, host) in hosts {
                self.step(index, "drop");
                self.finish(index, host);
            }
            told(self);
        }
    }

    fn step(&self, index: usize, what: &str) {
        let what = format!("{} {what}", self.plan.keys);
        self.progress.step(&what, &self.plan.indexes[index].name);
    }

    fn load<K: Key + ?Sized>(&mut self, index: usize, host: &mut Host<'_, '_, K>) {
        let load = host.load();
        self.rounds[index].iter_mut().for_each(|rounds| rounds.take_load(&load));
    }

    fn turn<K: Key + ?Sized>(
        &mut self,
        index: usize,
        host: &mut Host<'_, '_, K>,
        turn: &script::Turn,
    ) {
        let latency = self.script.phases[turn.phase].latency;
        self.rounds[index][turn.case].take(latency, host.phase(turn.phase));
    }

    fn finish<K: Key + ?Sized>(&mut self, index: usize, host: Host<'_, '_, K>) {
        if let Err(problem) = host.finish() {
            self.rounds[index].iter_mut().for_each(|rounds| rounds.fail(&problem));
        }
    }

    fn cells(&self) -> impl Iterator<Item = Cell> {
        let cases = self.build.cases.iter().enumerate();
        cases.flat_map(move |(at, case)| {
            let indexes = self.plan.indexes.iter().zip(&self.rounds);
            indexes.map(move |(index, rounds)| self.cell(index, case, &rounds[at]))
        })
    }

    fn cell(&self, index: &Chosen, case: &Case, rounds: &Rounds) -> Cell {
        let Self { plan, loaded: n, .. } = self;
        let (note, detail) = match &rounds.problem {
            None => {
                let wrong = rounds.wrong_scan.as_ref();
                (None, wrong.map(|wrong| format!("its scans are wrong: {wrong}")))
            }
            Some(Problem::Wrong(what)) => (Some("wrong".to_owned()), Some(what.clone())),
            Some(Problem::Failed(what)) => (Some("failed".to_owned()), Some(what.clone())),
            Some(Problem::Crashed(what)) => (Some("crashed".to_owned()), Some(what.clone())),
            Some(Problem::NotApplicable(why)) => (Some(format!("n/a: {why}")), None),
        };
        let is_load = case.workload == Workload::Load;
        let figures = if is_load { &rounds.load } else { &rounds.mops };
        let each = if note.is_none() { figures.clone() } else { Vec::new() };
        let latency = rounds.latency.as_ref();
        Cell {
            experiment: plan.experiment.clone(),
            index: index.name.clone(),
            keys: plan.keys.to_string(),
            workload: case.workload.to_string(),
            threads: case.threads,
            batch: case.batch,
            n: *n,
            ops: if is_load { *n } else { plan.operations(&case.workload) },
            mops: Spread::of(&each),
            rounds: each.len(),
            each,
            roles: if note.is_none() { rounds.of_roles(&case.workload) } else { Vec::new() },
            p50_ns: latency.and_then(|latency| latency.at(0.5)),
            p99_ns: latency.and_then(|latency| latency.at(0.99)),
            p999_ns: latency.and_then(|latency| latency.at(0.999)),
            max_ns: latency.map(|latency| latency.max_ns),
            latency: latency.map(|latency| latency.curve.clone()).unwrap_or_default(),
            bytes_per_key: Rounds::median(&rounds.bytes_per_key),
            rss_per_key: Rounds::median(&rounds.rss_per_key),
            checked: note.is_none(),
            note,
            detail,
            counts: rounds.counts.clone(),
            ours: index.entry.ours,
            seed: plan.seed,
            info: plan.info.clone(),
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

#[cfg(test)]
mod tests;
