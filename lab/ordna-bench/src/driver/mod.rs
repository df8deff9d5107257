//! Plans: indexes on one key set under workloads, in interleaved rounds.
//!
//! Every instance of an index lives in a child process ([`crate::isolate`]), which is stopped while
//! others are measured. A full run creates a new instance for every workload, number of threads and
//! round. A quick run loads each index once, keeps as many of them as fit into the memory, and
//! measures in turns: every workload on all of them, one after the other, and all of that again in
//! every round. Neighbours in the table were measured within seconds of each other, so a drift of
//! the machine affects all of them alike. An instance that returned a wrong answer or crashed is
//! created again for what follows. Loads by other numbers of threads have their own instance, once.
//!
//! If the load of an instance counts, another instance is loaded and dropped in its process before,
//! so that the measured one uses memory that the process has already had.

mod needs;
mod plan;
mod rounds;
mod script;

use ordna_base::Key;
use ordna_base::entries::Sequence;

use crate::check::ranks;
use crate::entry::{IndexEntry, Maker};
use crate::figures::Problem;
use crate::host::Host;
use crate::job::Job;
use crate::memory;
use crate::progress::Progress;
use crate::registry::Chosen;
use crate::table::{Cell, Spread};
use crate::workload::Workload;
pub use plan::Plan;
use plan::{Build, Case};
use rounds::Rounds;
use script::Script;

impl Plan {
    /// Returns an error for a plan that cannot succeed, before anything is created.
    ///
    /// # Errors
    /// Returns what is requested too much or too little.
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
        if !(1..=1000).contains(&self.rounds) {
            return Err(format!("--rounds is 1 to 1000, not {}", self.rounds));
        }
        let most = self.workloads.iter().map(|workload| workload.roles().len()).max().unwrap_or(0);
        let least = self.threads.iter().copied().max().unwrap_or(1).max(most);
        if !(least..=u32::MAX as usize).contains(&self.ops) {
            let why = if least > 1 { ", one for every thread" } else { "" };
            return Err(format!("--ops is {least}{why}, to {}, not {}", u32::MAX, self.ops));
        }
        let needs = self.needs();
        if needs.keys > u32::MAX as usize {
            return Err(format!("{} keys with those to insert, at most {}", needs.keys, u32::MAX));
        }
        self.keys.check()?;
        fits(needs.at_the_fullest(), memory::available(), self.n)
    }

    /// Returns the largest `n`, up to `most`, that fits into the available memory.
    pub fn largest_n(&self, most: usize) -> usize {
        let Some(free) = memory::available() else { return most };
        let (mut fits, mut above) = (0, most.min(u32::MAX as usize / 4) + 1);
        while above - fits > 1 {
            let n = fits.midpoint(above);
            let needed = Self { n, ..self.clone() }.needs().at_the_fullest();
            *if needed <= free / 100 * 99 { &mut fits } else { &mut above } = n;
        }
        fits
    }

    /// Returns the number of steps of the progress bar for [`Plan::run`].
    pub fn steps(&self) -> usize {
        let turns = |build: &Build| {
            let load = usize::from(self.quick && !build.loads_only());
            load + script::turns(self, build)
        };
        self.builds().iter().map(turns).sum::<usize>() * self.indexes.len()
    }

    /// Generates the keys and measures. Calls `sink` with the cells so far, whenever there are
    /// more.
    ///
    /// # Errors
    /// Returns an error if the keys cannot be generated.
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
                return Err(format!(
                    "{} has {} keys, but the workloads insert {most} besides those that are loaded; \
                     ask for fewer with --ops",
                    self.keys,
                    made.len()
                ));
            }
            Ok(self.on_keys::<[u8]>(&made, &builds, |entry| &entry.bytes, progress, sink))
        }
    }

    fn on_keys<K: Key + ?Sized>(
        &self,
        keys: &K::Sequence,
        builds: &[Build],
        maker: impl Fn(&IndexEntry) -> &Result<Maker<K>, String>,
        progress: &Progress,
        sink: &mut dyn FnMut(&[Cell]),
    ) -> Vec<Cell> {
        let mut cells = Vec::new();
        let mut order: Option<Vec<u32>> = None;
        for build in builds {
            let loaded = (keys.len() - Script::extra_keys(self, build)).min(self.n);
            let scans = |case: &Case| case.workload.scans() && case.impossible().is_none();
            if build.cases.iter().any(scans)
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
                ordered: self.ordered,
                phases: &script.phases,
                ranks: order.as_deref(),
            };
            // `contend` has two threads whatever was requested.
            let threads = build.cases.iter().map(|case| case.threads);
            let threads = threads.chain([build.threads]).max().unwrap_or(1);
            let makers: Vec<_> = self
                .indexes
                .iter()
                .map(|index| {
                    let make = maker(&index.entry);
                    move || match make {
                        Ok(make) => make(&index.switches, threads),
                        Err(why) => Err(why.clone()),
                    }
                })
                .collect();
            let loads = build.cases.iter().any(|case| case.workload == Workload::Load);
            let warm = loads && !self.fresh_memory;
            let start = |at: usize| Host::start(&job, &makers[at], self.apart, warm);
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
            if self.quick && !build.loads_only() {
                measuring.resident(&start, &mut told);
            } else {
                measuring.fresh(&start);
                told(&measuring);
            }
        }
        cells
    }
}

/// An index of a quick run, and its instance if it is usable.
struct Seat<'j, 'a, K: Key + ?Sized> {
    index: usize,
    /// Whether the first instance could be loaded.
    loads: bool,
    host: Option<Host<'j, 'a, K>>,
}

/// One build under measurement.
struct Measuring<'p> {
    plan: &'p Plan,
    build: &'p Build,
    script: &'p Script,
    loaded: usize,
    progress: &'p Progress,
    /// Rounds by index and case.
    rounds: Vec<Vec<Rounds>>,
}

impl<'p> Measuring<'p> {
    /// Uses a new instance of every index for every turn.
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

    /// Measures as many indexes at a time as fit into the memory. Each is loaded once, and again
    /// after a wrong answer.
    fn resident<'j, 'a, K: Key + ?Sized>(
        &mut self,
        start: &dyn Fn(usize) -> Host<'j, 'a, K>,
        told: &mut dyn FnMut(&Self),
    ) {
        let needs = self.plan.needs();
        let mut waiting = 0..self.plan.indexes.len();
        while !waiting.is_empty() {
            let mut seats: Vec<Seat<'j, 'a, K>> = Vec::new();
            while let Some(index) = waiting.clone().next() {
                // The existing instances grow while they run.
                let needed = needs.instance.saturating_add(needs.growth * (seats.len() + 1));
                let room = memory::available().is_none_or(|free| free > needed);
                if !room && !seats.is_empty() {
                    self.progress.say(&format!(
                        "the memory holds {} of the indexes at a time: the others follow",
                        seats.len()
                    ));
                    break;
                }
                waiting.next();
                self.step(index, "load");
                let mut host = start(index);
                let loads = self.load(index, &mut host);
                seats.push(Seat { index, loads, host: Some(host) });
                self.progress.done();
            }
            for turn in &self.script.turns {
                for seat in &mut seats {
                    self.step(seat.index, &self.build.cases[turn.case].to_string());
                    self.seated(seat, turn, start);
                    self.progress.done();
                }
                if turn.last_of_round {
                    told(self);
                }
            }
            for Seat { index, host, .. } in seats {
                let Some(mut host) = host else { continue };
                self.step(index, "drop");
                if self
                    .script
                    .turns
                    .iter()
                    .any(|turn| self.build.cases[turn.case].workload.writes())
                {
                    self.look(index, &"all workloads", &mut host);
                }
                self.finish(index, host);
            }
            told(self);
        }
    }

    /// Runs a turn on an instance that stays, or on a new one if the last was wrong.
    fn seated<'j, 'a, K: Key + ?Sized>(
        &mut self,
        seat: &mut Seat<'j, 'a, K>,
        turn: &script::Turn,
        start: &dyn Fn(usize) -> Host<'j, 'a, K>,
    ) {
        let index = seat.index;
        // It has no figure any more, so another attempt would only end another instance.
        if self.rounds[index][turn.case].problem.is_some() {
            return;
        }
        let host = seat.host.get_or_insert_with(|| {
            let mut host = start(index);
            // The phase reports a wrong load.
            drop(host.load());
            host
        });
        let fine = self.turn(index, host, turn);
        if !fine && seat.loads {
            // The contents of the instance are unknown now.
            if let Some(host) = seat.host.take() {
                host.discard();
            }
        }
    }

    fn step(&self, index: usize, what: &str) {
        let what = format!("{} {what}", self.plan.keys);
        self.progress.step(&what, &self.plan.indexes[index].name);
    }

    /// Loads an instance. Returns whether this succeeded.
    fn load<K: Key + ?Sized>(&mut self, index: usize, host: &mut Host<'_, '_, K>) -> bool {
        let load = host.load();
        let cases = &self.build.cases;
        let rounds = self.rounds[index].iter_mut().zip(cases);
        rounds.for_each(|(rounds, case)| rounds.take_load(&case.workload, &load));
        load.is_ok()
    }

    /// Runs a turn. Returns whether the instance can still be used.
    fn turn<K: Key + ?Sized>(
        &mut self,
        index: usize,
        host: &mut Host<'_, '_, K>,
        turn: &script::Turn,
    ) -> bool {
        let latency = self.script.phases[turn.phase].latency;
        let measured = host.phase(turn.phase);
        let fine = matches!(measured, Ok(_) | Err(Problem::NotApplicable(_)));
        let look = turn.look && measured.is_ok();
        self.rounds[index][turn.case].take(latency, measured);
        if look {
            self.look(index, &self.build.cases[turn.case], host);
        }
        fine
    }

    /// Scans the whole index. A fault is reported for all cases; those of scans and of the load
    /// then have no figures.
    fn look<K: Key + ?Sized>(
        &mut self,
        index: usize,
        when: &dyn std::fmt::Display,
        host: &mut Host<'_, '_, K>,
    ) {
        let looked = host.look();
        let rounds = self.rounds[index].iter_mut().zip(&self.build.cases);
        match looked {
            Ok(None) => {}
            Ok(Some(wrong)) => {
                let wrong = format!("after {when}: {wrong}");
                rounds.for_each(|(rounds, case)| rounds.take_wrong_scan(&case.workload, &wrong));
            }
            Err(problem) => rounds.for_each(|(rounds, _)| rounds.fail(&problem)),
        }
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
        let impossible = case.impossible().map(|why| Problem::NotApplicable(why.to_owned()));
        let (note, detail) = match impossible.as_ref().or(rounds.problem.as_ref()) {
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
        let latency = rounds.latency.as_ref().filter(|_| note.is_none());
        Cell {
            experiment: plan.experiment.clone(),
            index: index.name.clone(),
            keys: plan.keys.to_string(),
            workload: case.workload.to_string(),
            threads: case.threads,
            batch: case.batch,
            ordered: case.ordered,
            n: *n,
            ops: if is_load { *n } else { plan.operations(&case.workload, case.threads) },
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
            huge_per_key: Rounds::median(&rounds.huge_per_key),
            checked: note.is_none(),
            note,
            detail,
            groups: rounds.groups,
            counts: rounds.counts.clone(),
            ours: index.entry.ours,
            seed: plan.seed,
            info: plan.info.clone(),
        }
    }
}

/// Returns an error if more memory is needed than available, where the latter is known.
///
/// # Errors
/// Returns a text with both sizes.
pub fn fits(needed: usize, available: Option<usize>, n: usize) -> Result<(), String> {
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
