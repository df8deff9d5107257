//! The command line of `ordna bench`.

mod batches;
mod growth;
mod paper;
mod reclaim;

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
use crate::suggest::unknown;
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
    /// Measure the ways to free removed memory: what reading sections and retiring cost, and what stays
    /// unfreed beside a reader that stalls.
    Reclaim(reclaim::Reclaim),
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
    /// What `--json` wrote, of one run or several: each run has a table of its own on the page.
    #[arg(long, required = true)]
    json: Vec<PathBuf>,
    /// The page to write.
    #[arg(long, default_value = "docs/benchmarks.md")]
    out: PathBuf,
    /// Write the plots too, to index.html in this folder.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Ratios are against this index of the results.
    #[arg(long, value_name = "INDEX", default_value = "locked")]
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
        let indexes = || cells.iter().map(|cell| cell.index.as_str());
        if !cells.is_empty() && self.baseline != BASELINE && !indexes().any(|i| i == self.baseline)
        {
            let known: BTreeSet<&str> = indexes().collect();
            return Err(BenchError::Request(unknown("--baseline", &self.baseline, known)));
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
    /// Keys per call: 1 is single operations. In groups of more a thread puts off gets, puts and
    /// removes, each sort by itself, until a group is full or a key in it is needed, and calls
    /// get_many, insert_many or remove_many; peers without such calls get the group's operations one by
    /// one. "groups" of the JSON tells how many keys the calls had. Workloads that scan have no groups.
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
    /// and `all` stand for many. Without it: ours. In `paper` names only, beside those of the figure.
    #[arg(long, value_delimiter = ',')]
    index: Option<Vec<String>>,
    /// Shared libraries that hold an index behind include/ordna_peer.h; measured by their names.
    #[arg(long, value_name = "LIBRARY")]
    peer_lib: Vec<PathBuf>,
    /// Rounds: each measures every index once.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Ratios are against this index, one of those that are measured; locked by default.
    #[arg(long, value_name = "INDEX")]
    baseline: Option<String>,
    /// Load every index once and run all workloads and rounds on it; the rounds share the operations,
    /// each has others; a tenth of the scans. The load is measured once for every number of threads,
    /// with the first size of groups. More than a million keys: the whole index is scanned for faults
    /// after the load and at the end, not after every workload.
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
    /// A file could not be written; why is in the source.
    #[error("cannot write {path}")]
    Write {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Ratios are against it if nothing else is said.
const BASELINE: &str = "locked";

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
        Command::Reclaim(reclaim) => reclaim.run(),
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
        let mut plans: Vec<Plan> = Vec::new();
        for keys in &self.keys {
            if plans.iter().all(|plan| plan.keys != *keys) {
                plans.push(plan(keys).distinct());
            }
        }
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

    /// What ratios are against.
    fn baseline(&self) -> &str {
        self.baseline.as_deref().unwrap_or(BASELINE)
    }

    /// Refuses a baseline that is not measured.
    fn check_baseline(&self, plans: &[Plan]) -> Result<(), BenchError> {
        let Some(baseline) = &self.baseline else { return Ok(()) };
        let measured = || plans.iter().flat_map(|plan| &plan.indexes).map(|index| &*index.name);
        if plans.is_empty() || measured().any(|index| index == baseline) {
            return Ok(());
        }
        let measured: BTreeSet<&str> = measured().collect();
        Err(BenchError::Request(unknown("--baseline of this run", baseline, measured)))
    }

    fn write_json(&self, cells: &[Cell]) -> Result<(), BenchError> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(cells).unwrap_or_default();
        write(path, &(text + "\n"))
    }

    /// Runs the plans, shows and writes the results; fails if one of ours was wrong.
    fn measure(&self, plans: &[Plan]) -> Result<(), BenchError> {
        self.check_baseline(plans)?;
        // All of them before the first begins.
        plans.iter().try_for_each(Plan::check).map_err(BenchError::Request)?;
        if let Some(path) = &self.json {
            check_writable(path)?;
        }
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
                self.baseline()
            );
        }
        told(&cells, self.baseline()).iter().for_each(|text| println!("{text}"));
        println!("{}", render(&cells, self.baseline()));
        for cell in &cells {
            let Some(counts) = cell.counts.as_ref().filter(|_| cell.experiment.is_some()) else {
                continue;
            };
            let Cell { index, keys, workload, threads, .. } = cell;
            println!("{index}, {keys}, {workload} x{threads}: {counts}");
        }
        if let Some(folder) = &self.report {
            report(folder, &cells, self.baseline())?;
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

/// Tells now, not after a long run; what is there stays until there are results.
fn check_writable(path: &Path) -> Result<(), BenchError> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let written = |source| BenchError::Write { path: path.to_owned(), source };
    opened.map(drop).map_err(written)
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

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        bench: Bench,
    }

    fn refused(arguments: &[&str]) -> BenchError {
        use clap::Parser;
        let arguments = ["ordna"].iter().chain(arguments);
        main(&Cli::try_parse_from(arguments).unwrap().bench).unwrap_err()
    }

    #[test]
    fn a_baseline_that_is_not_measured_is_refused_with_those_that_are() {
        let run = ["run", "--n", "9", "--in-process", "--index", "locked,skiplist", "--baseline"];
        let text = refused(&[&run[..], &["pi"]].concat()).to_string();
        assert!(text.contains("unknown --baseline of this run \"pi\""), "{text}");
        assert!(text.contains("known are locked, skiplist"), "{text}");
        let folder = std::env::temp_dir().join(format!("ordna-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [json, page] = ["a.json", "a.md"].map(|name| folder.join(name));
        std::fs::write(&json, serde_json::to_string(&[sample("skiplist")]).unwrap()).unwrap();
        let [json, page] = [&json, &page].map(|path| path.to_str().unwrap());
        let text = refused(&["docs", "--json", json, "--out", page, "--baseline", "skiplits"]);
        assert!(text.to_string().contains("did you mean \"skiplist\"?"), "{text}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The cause is in the source: who prints both would print it twice otherwise.
    #[test]
    fn a_file_that_cannot_be_written_is_told_once() {
        let error = write(Path::new("/nowhere/a.json"), "").unwrap_err();
        assert_eq!(error.to_string(), "cannot write /nowhere/a.json");
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("No such file"));
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let max = "18446744073709551615";
        for arguments in [
            ["run", "--ops", "0"],
            ["run", "--ops", max],
            ["run", "--n", "0"],
            ["run", "--n", max],
            ["run", "--threads", max],
            ["run", "--batch", max],
            ["run", "--rounds", max],
            ["growth", "--ops", max],
            ["growth", "--to", "0"],
            ["growth", "--rounds", "0"],
            ["growth", "--from", max],
            ["pi", "--n", max],
            ["pi", "--ops", max],
            ["pi", "--rounds", max],
            ["pi", "--batch", "0"],
        ] {
            let error = refused(&arguments);
            assert!(matches!(error, BenchError::Request(_)), "{arguments:?}: {error:?}");
        }
        for arguments in [["--n", "0"], ["--ops", "0"], ["--ops", max], ["--rounds", max]] {
            let error = refused(&[&["paper", "art", "--figure", "5"][..], &arguments].concat());
            assert!(matches!(error, BenchError::Request(_)), "{arguments:?}: {error:?}");
        }
        let one = ["run", "--ops", "1", "--threads", "2", "--index", "locked"];
        assert!(refused(&one).to_string().contains("--ops is 2, one for every thread"));
    }
}
