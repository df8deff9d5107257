//! The command line of `ordna bench`.

mod batches;
mod growth;
mod paper;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::driver::Plan;
use crate::info::{RunInfo, Ticks};
use crate::keys::KeySet;
use crate::noise::told;
use crate::progress::Progress;
use crate::registry::{Chosen, Entry, Registry};
use crate::report::render_report;
use crate::table::{Cell, render};
use crate::workload::{STANDARD, Series, Workload};

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
    /// Measure ns per lookup and bytes per key from 10^4 keys to as many as fit.
    Growth(Box<growth::Growth>),
    /// Measure PI's batches beside single operations of other indexes.
    Pi(Box<batches::Batches>),
    /// Run the experiments of a paper, scaled to this machine.
    Paper(Box<paper::Papers>),
    /// List the indexes, key sets and workloads.
    List,
    /// Rewrite the benchmark page from the JSON of a run.
    Docs(Docs),
}

/// What the pages are made of.
#[derive(Debug, Args)]
pub struct Docs {
    /// What `--json` wrote; several files are one set of results.
    #[arg(long, required = true)]
    json: Vec<PathBuf>,
    /// The page to write.
    #[arg(long, default_value = "docs/benchmarks.md")]
    out: PathBuf,
    /// Write the plots too, to index.html in this folder.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Ratios are against this index.
    #[arg(long, default_value = "locked")]
    baseline: String,
}

impl Docs {
    fn run(&self) -> Result<(), BenchError> {
        let mut cells: Vec<Cell> = Vec::new();
        for path in &self.json {
            let unreadable = |why: String| {
                BenchError::Request(format!("cannot read results from {}: {why}", path.display()))
            };
            let text = std::fs::read_to_string(path).map_err(|e| unreadable(e.to_string()))?;
            let read: Vec<Cell> =
                serde_json::from_str(&text).map_err(|e| unreadable(e.to_string()))?;
            cells.extend(read);
        }
        write(&self.out, &crate::page::render_page(&cells, &self.baseline))?;
        self.report.as_ref().map_or(Ok(()), |folder| report(folder, &cells, &self.baseline))
    }
}

/// What to measure.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    common: Common,
    /// Key sets.
    #[arg(long, value_delimiter = ',', default_value = "int")]
    keys: Vec<KeySet>,
    /// Workloads; `contend` is a series, `all` the standard ones.
    #[arg(long, value_delimiter = ',', default_value = "load,c-uniform")]
    workload: Vec<Series>,
    /// Keys to load.
    #[arg(long, default_value_t = 1_000_000)]
    n: usize,
    /// Operations to measure per workload and round; with --quick, in all rounds together.
    #[arg(long, default_value_t = 1_000_000)]
    ops: usize,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    /// Keys per call.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Time every operation by itself in one more round.
    #[arg(long)]
    latency: bool,
}

/// What every measuring command takes.
#[derive(Debug, Args)]
pub struct Common {
    /// Indexes, as `ordna bench list` names them; name+switch=value sets a switch; `ours`, `peers`
    /// and `all` stand for many. Without it: ours, or those of the paper's figure.
    #[arg(long, value_delimiter = ',')]
    index: Option<Vec<String>>,
    /// Shared libraries that hold an index behind include/ordna_peer.h; measured by their names.
    #[arg(long, value_name = "LIBRARY")]
    peer_lib: Vec<PathBuf>,
    /// Rounds: each measures every index once.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Ratios are against this index.
    #[arg(long, default_value = "locked")]
    baseline: String,
    /// Load every index once and run all workloads, threads and rounds on it; the rounds share the
    /// operations; a tenth of the scans.
    #[arg(long)]
    quick: bool,
    /// Measure in this process, for a debugger or a profiler. An index that crashes ends the run.
    #[arg(long)]
    in_process: bool,
    /// Seed of keys and operations.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Write the results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the results as plots to index.html in this folder.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// Why a benchmark gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A request that cannot be carried out; the text says why.
    #[error("{0}")]
    Request(String),
    /// An index of the workspace answered wrongly or panicked.
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
            list();
            for paper in &crate::paper::PAPERS {
                let figures: Vec<&str> = paper.figures.iter().map(|figure| figure.name).collect();
                println!("paper {}: {}, figures {}", paper.name, paper.title, figures.join(", "));
            }
            Ok(())
        }
        Command::Run(run) => run.run(),
        Command::Growth(growth) => growth.run(),
        Command::Pi(batches) => batches.run(),
        Command::Paper(papers) => papers.run(),
        Command::Docs(docs) => docs.run(),
    }
}

fn list() {
    println!("indexes of this build:");
    for entry in Registry::new().entries() {
        println!("  {}{}", entry.name, if entry.ours { "" } else { " (peer)" });
        for switch in entry.switches {
            println!("    +{}={}: {}", switch.name, switch.values.join("|"), switch.what);
        }
    }
    for name in crate::registry::PEERS.iter().filter(|_| !cfg!(feature = "peers")) {
        println!("  {name} (peer): needs a build with --features peers");
    }
    println!("key sets:  {}", crate::keys::KNOWN.join(", "));
    println!("workloads: {}", crate::workload::KNOWN.join(", "));
    println!("all workloads: {}", STANDARD.join(", "));
}

impl Run {
    fn run(&self) -> Result<(), BenchError> {
        let indexes = self.common.indexes()?;
        let workloads: Vec<Workload> =
            self.workload.iter().flat_map(|series| series.0.clone()).collect();
        let info = RunInfo::now();
        let plan = |keys: &KeySet| Plan {
            experiment: None,
            indexes: indexes.clone(),
            keys: keys.clone(),
            workloads: workloads.clone(),
            n: self.n,
            ops: self.ops,
            threads: self.threads.clone(),
            batches: self.batch.clone(),
            rounds: self.common.rounds,
            latency: self.latency,
            seed: self.common.seed,
            quick: self.common.quick,
            apart: !self.common.in_process,
            info: info.clone(),
        };
        let plans: Vec<Plan> = self.keys.iter().map(plan).collect();
        self.common.measure(&plans)
    }
}

impl Common {
    /// What this run can measure.
    fn registry(&self) -> Result<Registry, BenchError> {
        let plugins = self.peer_lib.iter().map(|path| crate::plugin::load(path));
        let plugins = plugins.collect::<Result<_, _>>().and_then(Registry::with);
        plugins.map_err(BenchError::Request)
    }

    /// The chosen indexes.
    fn indexes(&self) -> Result<Vec<Chosen>, BenchError> {
        let registry = self.registry()?;
        let several = |wanted: &dyn Fn(&Entry) -> bool| {
            registry.entries().filter(|entry| wanted(entry)).map(|e| e.name.clone()).collect()
        };
        let ours = || several(&|entry| entry.ours);
        let named = |text: &String| -> Vec<String> {
            match text.as_str() {
                "ours" => ours(),
                "peers" => several(&|entry| !entry.ours),
                "all" => several(&|_| true),
                _ => vec![text.clone()],
            }
        };
        let names = self.index.as_ref().map(|all| all.iter().flat_map(named).collect());
        let mut names: Vec<String> = names.unwrap_or_else(ours);
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        let chosen = names.iter().map(|text| registry.find(text)).collect::<Result<_, _>>();
        chosen.map_err(BenchError::Request)
    }

    fn write_json(&self, cells: &[Cell]) -> Result<(), BenchError> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(cells).unwrap_or_default();
        write(path, &(text + "\n"))
    }

    /// Runs the plans, shows and writes the results; fails if one of ours was wrong.
    fn measure(&self, plans: &[Plan]) -> Result<(), BenchError> {
        // All of them before the first begins.
        plans.iter().try_for_each(Plan::check).map_err(BenchError::Request)?;
        let then = Ticks::now();
        let progress = Progress::new(plans.iter().map(Plan::steps).sum());
        let mut cells = Vec::new();
        for plan in plans {
            let before = cells.len();
            // A run that is cut short leaves what it has.
            let mut written = Ok(());
            let mut keep = |more: &[Cell]| {
                cells.truncate(before);
                cells.extend_from_slice(more);
                if written.is_ok() {
                    written = self.write_json(&cells);
                }
            };
            plan.run(&progress, &mut keep).map_err(BenchError::Request)?;
            written?;
        }
        progress.finish();
        let shares = Ticks::now().zip(then).and_then(|(now, then)| now.since(&then));
        cells.iter_mut().for_each(|cell| cell.info.shares = shares);
        self.write_json(&cells)?;
        if let Some(Cell { info, seed, .. }) = cells.first() {
            println!(
                "{}; {}; {}; {}; seed {seed}; {} rounds, interleaved; medians, ratios against {}",
                info.started,
                info.version,
                info.machine,
                info.allocator,
                self.rounds,
                self.baseline
            );
        }
        told(&cells, &self.baseline).iter().for_each(|text| println!("{text}"));
        println!("{}", render(&cells, &self.baseline));
        for cell in &cells {
            let Some(counts) = cell.counts.as_ref().filter(|_| cell.experiment.is_some()) else {
                continue;
            };
            let Cell { index, keys, workload, threads, .. } = cell;
            println!("{index}, {keys}, {workload} x{threads}: {counts}");
        }
        if let Some(folder) = &self.report {
            report(folder, &cells, &self.baseline)?;
        }
        verdict(&cells)
    }
}

/// Tells what was wrong; an error if one of ours was.
fn verdict(cells: &[Cell]) -> Result<(), BenchError> {
    let mut broken = Vec::new();
    for cell in cells {
        let Some(detail) = &cell.detail else { continue };
        let text = format!("{}, {}, {}: {detail}", cell.index, cell.keys, cell.workload);
        if cell.ours {
            broken.push(text);
        } else {
            eprintln!("a peer is {}: {text}", cell.note.as_deref().unwrap_or("wrong elsewhere"));
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(BenchError::Wrong(broken.join("; "))) }
}

/// Writes the page of plots.
fn report(folder: &Path, cells: &[Cell], baseline: &str) -> Result<(), BenchError> {
    let page = folder.join("index.html");
    std::fs::create_dir_all(folder)
        .map_err(|source| BenchError::Write { path: folder.to_owned(), source })?;
    write(&page, &render_report(cells, baseline))?;
    println!("plots: {}", page.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|source| BenchError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::sample;

    #[test]
    fn one_of_ours_that_is_wrong_fails_the_run_and_a_peer_does_not() {
        let mut cell = sample("skiplist");
        (cell.note, cell.detail) = (Some("wrong".to_owned()), Some("a read".to_owned()));
        let text = verdict(&[cell.clone()]).unwrap_err().to_string();
        assert!(text.contains("skiplist, int, load: a read"), "{text}");
        cell.ours = false;
        verdict(&[cell]).unwrap();
    }
}
