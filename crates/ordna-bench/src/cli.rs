//! The command line of `ordna bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use ordna::Key;
use ordna::entries::Sequence;

use crate::keys::KeySet;
use crate::registry::{self, Entry, Runner, Switches};
use crate::run::{Job, Outcome};
use crate::table::{Cell, Spread, render};
use crate::workload::{Operation, Workload};

/// `ordna bench …`
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure indexes on key sets under workloads, in interleaved rounds.
    Run(Box<Run>),
    /// List the indexes, key sets and workloads.
    List,
    /// Rewrite the benchmark page from the JSON of a run.
    Docs(Docs),
}

/// What the page is made of.
#[derive(Debug, Args)]
pub struct Docs {
    /// What `run --json` wrote.
    #[arg(long)]
    json: PathBuf,
    /// The page to write.
    #[arg(long, default_value = "docs/benchmarks.md")]
    out: PathBuf,
    /// Ratios are against this index.
    #[arg(long, default_value = "locked")]
    baseline: String,
    /// The command that made the results, for the page.
    #[arg(long)]
    command: String,
}

impl Docs {
    fn run(&self) -> Result<(), BenchError> {
        let unreadable = |why: String| {
            BenchError::Request(format!("cannot read results from {}: {why}", self.json.display()))
        };
        let text = std::fs::read_to_string(&self.json).map_err(|e| unreadable(e.to_string()))?;
        let cells: Vec<Cell> =
            serde_json::from_str(&text).map_err(|e| unreadable(e.to_string()))?;
        std::fs::write(&self.out, crate::page::render_page(&cells, &self.baseline, &self.command))
            .map_err(|source| BenchError::Write { path: self.out.clone(), source })
    }
}

/// What to measure.
#[derive(Debug, Args)]
pub struct Run {
    /// Indexes, as `ordna bench list` names them; name+switch=value sets a switch.
    #[arg(long, value_delimiter = ',', default_value = "locked,skiplist")]
    index: Vec<String>,
    /// Key sets.
    #[arg(long, value_delimiter = ',', default_value = "int")]
    keys: Vec<KeySet>,
    /// Workloads; `load` is always measured.
    #[arg(long, value_delimiter = ',', default_value = "load,c-uniform")]
    workload: Vec<Workload>,
    /// Keys to load.
    #[arg(long, default_value_t = 1_000_000)]
    n: usize,
    /// Operations to measure per workload and round.
    #[arg(long, default_value_t = 1_000_000)]
    ops: usize,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    /// Keys per call.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Rounds: each measures every index once.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Ratios are against this index.
    #[arg(long, default_value = "locked")]
    baseline: String,
    /// Time every operation by itself in one more round.
    #[arg(long)]
    latency: bool,
    /// Seed of keys and operations.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Write the results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Why a benchmark gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A request that cannot be carried out; the text says why.
    #[error("{0}")]
    Request(String),
    /// An index of the workspace answered wrongly.
    #[error("wrong answers: {0}")]
    Wrong(String),
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Runs the subcommand.
///
/// # Errors
/// [`BenchError`].
pub fn main(bench: &Bench) -> Result<(), BenchError> {
    match &bench.command {
        Command::List => {
            println!("indexes of this build:");
            for entry in registry::all() {
                println!("  {}{}", entry.name, if entry.ours { "" } else { " (peer)" });
            }
            println!("key sets:  {}", crate::keys::KNOWN);
            println!("workloads: {}", crate::workload::KNOWN);
            Ok(())
        }
        Command::Run(run) => run.run(),
        Command::Docs(docs) => docs.run(),
    }
}

impl Run {
    fn run(&self) -> Result<(), BenchError> {
        let entries: Vec<(String, Entry, Switches)> = self
            .index
            .iter()
            .map(|text| registry::find(text).map(|(entry, s)| (text.clone(), entry, s)))
            .collect::<Result<_, _>>()
            .map_err(BenchError::Request)?;
        self.check()?;
        let mut cells = Vec::new();
        let mut broken = Vec::new();
        for keys in &self.keys {
            let most = self.workload.iter().map(|workload| workload.extra_keys(self.ops)).max();
            let wanted = self.n + most.unwrap_or(0);
            eprintln!("making {wanted} keys of {keys} (seed {})", self.seed);
            let cells = &mut cells;
            if keys.is_int() {
                let made = keys.integers(wanted, self.seed);
                self.on_keys::<u64>(keys, &made, &entries, |e| e.integers, cells, &mut broken);
            } else {
                let made = keys.byte_strings(wanted, self.seed).map_err(BenchError::Request)?;
                if made.len() <= most.unwrap_or(0) {
                    let have = made.len();
                    return Err(BenchError::Request(format!("{keys} has only {have} keys")));
                }
                self.on_keys::<[u8]>(keys, &made, &entries, |e| e.bytes, cells, &mut broken);
            }
        }
        println!("{}", self.circumstances());
        println!("{}", render(&cells, &self.baseline));
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&cells).unwrap_or_default();
            std::fs::write(path, text + "\n")
                .map_err(|source| BenchError::Write { path: path.clone(), source })?;
        }
        if broken.is_empty() { Ok(()) } else { Err(BenchError::Wrong(broken.join("; "))) }
    }

    /// Refuses what cannot end well, before anything is made.
    fn check(&self) -> Result<(), BenchError> {
        let request = |text: String| Err(BenchError::Request(text));
        if self.n == 0 || self.n > u32::MAX as usize / 4 {
            return request(format!("--n is 1 to {}, not {}", u32::MAX / 4, self.n));
        }
        if let Some(threads) = self.threads.iter().find(|threads| !(1..=256).contains(*threads)) {
            return request(format!("--threads are 1 to 256, not {threads}"));
        }
        if let Some(batch) = self.batch.iter().find(|batch| !(1..=65_536).contains(*batch)) {
            return request(format!("--batch is 1 to 65536, not {batch}"));
        }
        if self.rounds == 0 {
            return request("--rounds is at least 1".to_owned());
        }
        let mean = self.keys.iter().map(KeySet::mean_bytes).max().unwrap_or(8);
        // Twice the keys while they are made, and the widest index seen so far.
        let needed = self.n * (2 * mean + 16 + mean + 160) + self.ops * 8;
        if let Some(free) = available_bytes().filter(|free| *free < needed) {
            let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
            return request(format!(
                "about {:.1} GiB are needed for {} keys, and {:.1} GiB are free; ask for fewer with --n",
                gib(needed),
                self.n,
                gib(free)
            ));
        }
        Ok(())
    }

    fn on_keys<K: Key + ?Sized>(
        &self,
        set: &KeySet,
        keys: &K::Sequence,
        entries: &[(String, Entry, Switches)],
        runner: impl Fn(&Entry) -> Result<Runner<K>, &'static str>,
        cells: &mut Vec<Cell>,
        broken: &mut Vec<String>,
    ) {
        for workload in &self.workload {
            let extra = workload.extra_keys(self.ops);
            let loaded = (keys.len() - extra).min(self.n);
            for &threads in &self.threads {
                let total = if *workload == Workload::Load { 0 } else { self.ops };
                let operations = workload.operations(loaded, extra, total, threads, self.seed);
                for &batch in &self.batch {
                    let mut rounds: Vec<Rounds> =
                        entries.iter().map(|_| Rounds::default()).collect();
                    let all = self.rounds + usize::from(self.latency && total > 0);
                    let bar = progress((all * entries.len()) as u64, set, workload, threads);
                    for round in 0..all {
                        let latency = round == self.rounds;
                        for ((name, entry, switches), rounds) in entries.iter().zip(&mut rounds) {
                            bar.set_message(name.clone());
                            let operations: &[Vec<Operation>] = &operations;
                            let job = Job { keys, loaded, operations, batch, latency };
                            rounds.take(match runner(entry) {
                                Ok(runner) => runner(&job, switches),
                                Err(why) => Outcome::NotApplicable(why.to_owned()),
                            });
                            bar.inc(1);
                        }
                    }
                    bar.finish_and_clear();
                    for ((name, entry, _), rounds) in entries.iter().zip(rounds) {
                        if let Some(wrong) = &rounds.wrong {
                            let wrong = format!("{name}, {set}, {workload}: {wrong}");
                            if entry.ours {
                                broken.push(wrong);
                            } else {
                                eprintln!("wrong answers of a peer: {wrong}");
                            }
                        }
                        let mut cell =
                            rounds.cell(name, set, workload, threads, batch, loaded, total);
                        (cell.ours, cell.rounds, cell.seed) = (entry.ours, self.rounds, self.seed);
                        cells.push(cell);
                    }
                }
            }
        }
    }

    fn circumstances(&self) -> String {
        format!(
            "{}; {ALLOCATOR}; seed {}; {} rounds, interleaved; medians, ratios against {}",
            machine(),
            self.seed,
            self.rounds,
            self.baseline
        )
    }
}

/// What the binary allocates with; `run::allocated` asks it.
const ALLOCATOR: &str = "jemalloc";

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores")
}

/// Memory that the system can give, where it says so.
fn available_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

fn progress(steps: u64, keys: &KeySet, workload: &Workload, threads: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let template = "{prefix} [{bar:30}] {pos}/{len} {msg} ({elapsed}, {eta} left)";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(format!("{keys} {workload} x{threads}"));
    bar
}

/// The rounds of one index.
#[derive(Default)]
struct Rounds {
    load: Vec<f64>,
    mops: Vec<f64>,
    bytes_per_key: Vec<f64>,
    latency: Option<Histogram<u64>>,
    wrong: Option<String>,
    not_applicable: Option<String>,
}

impl Rounds {
    fn take(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Measured(measured) => {
                if let Some(histogram) = measured.latency {
                    // The pass with the clock in every operation counts for latency only.
                    self.latency = Some(histogram);
                    return;
                }
                self.load.push(measured.load_mops);
                self.mops.extend(measured.mops);
                self.bytes_per_key.push(measured.bytes_per_key);
            }
            Outcome::Wrong(what) => self.wrong = Some(what),
            Outcome::NotApplicable(why) => self.not_applicable = Some(why),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the coordinates of a cell")]
    fn cell(
        self,
        name: &str,
        keys: &KeySet,
        workload: &Workload,
        threads: usize,
        batch: usize,
        n: usize,
        ops: usize,
    ) -> Cell {
        let note = self.wrong.as_ref().map(|_| "wrong".to_owned());
        let note = note.or_else(|| self.not_applicable.as_ref().map(|why| format!("n/a: {why}")));
        let figures = if *workload == Workload::Load { &self.load } else { &self.mops };
        let mops = Spread::of(figures).filter(|_| note.is_none());
        let percentile = |share: f64| self.latency.as_ref().map(|all| all.value_at_quantile(share));
        Cell {
            index: name.to_owned(),
            keys: keys.to_string(),
            workload: workload.to_string(),
            threads,
            batch,
            n,
            ops: if ops == 0 { n } else { ops },
            mops,
            p50_ns: percentile(0.5),
            p99_ns: percentile(0.99),
            p999_ns: percentile(0.999),
            max_ns: self.latency.as_ref().map(Histogram::max),
            bytes_per_key: Spread::of(&self.bytes_per_key).map(|spread| spread.median),
            checked: note.is_none(),
            note,
            ours: false,
            rounds: 0,
            seed: 0,
            machine: machine(),
            allocator: ALLOCATOR.to_owned(),
        }
    }
}
