//! Arguments of all measuring commands, and the output of their results.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::driver::Plan;
use crate::entry::IndexEntry;
use crate::info::{FRESH, HAD, RunInfo, SHARED, Ticks};
use crate::keys::KeySet;
use crate::noise::told;
use crate::progress::Progress;
use crate::registry::{Chosen, Registry};
use crate::report::render_report;
use crate::suggest::unknown;
use crate::table::{Cell, render};

/// Arguments of all measuring commands.
#[derive(Debug, Args)]
pub struct Common {
    /// Indexes, as `ordna-bench list` names them; name+switch=value sets a switch, and `ours`,
    /// `peers` and `all` select several. The default is `ours`. In `paper` only names are allowed,
    /// in addition to the indexes of the figure.
    #[arg(long, value_delimiter = ',')]
    pub index: Option<Vec<String>>,
    /// Shared libraries that implement an index with include/ordna_peer.h; they are measured under
    /// their own names.
    #[arg(long, value_name = "LIBRARY")]
    pub peer_lib: Vec<PathBuf>,
    /// Number of rounds; each round measures every index once.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Index with which ratios are computed, one of those that are measured; `locked` by default.
    #[arg(long, value_name = "INDEX")]
    pub baseline: Option<String>,
    /// Keep every index and run all workloads and rounds on it. The rounds share the operations, of
    /// which each has different ones, and scans have a tenth of them. The load is measured once for
    /// every number of threads, with the first size of groups. With more than a million keys, the
    /// whole index is scanned for faults after the load and at the end, not after every workload.
    #[arg(long)]
    pub quick: bool,
    /// Measure in this process, for a debugger or a profiler. An index that crashes ends the run.
    #[arg(long)]
    pub in_process: bool,
    /// Load into memory that the system has just provided. By default, an index is loaded twice in
    /// its process if `load` is one of the workloads, and the second load counts, because a virtual
    /// machine may provide new memory slowly, and the effect differs between indexes.
    #[arg(long)]
    pub fresh_memory: bool,
    /// Seed of keys and operations.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Write the results as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Write the results as plots to index.html in this folder.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// The reason why a benchmark has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A request that cannot be executed, with the reason.
    #[error("{0}")]
    Request(String),
    /// An index of the workspace returned a wrong answer or panicked.
    #[error("wrong answers: {0}")]
    Wrong(String),
    /// A file could not be written; `source` has the reason.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Default index with which ratios are computed.
pub const BASELINE: &str = "locked";

impl Common {
    /// Returns the indexes that this run can measure.
    pub fn registry(&self) -> Result<Registry, BenchError> {
        let plugins = self.peer_lib.iter().map(|path| crate::plugin::load(path));
        let plugins = plugins.collect::<Result<_, _>>().and_then(Registry::with);
        plugins.map_err(BenchError::Request)
    }

    /// Returns the selected indexes.
    pub fn indexes(&self) -> Result<Vec<Chosen>, BenchError> {
        let registry = self.registry()?;
        let several = |wanted: &dyn Fn(&IndexEntry) -> bool| {
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

    /// Creates a plan of single operations on one thread, with the options of the command line that
    /// apply to all plans.
    pub fn plan(&self, indexes: &[Chosen], keys: &KeySet, sizes: (usize, usize)) -> Plan {
        Plan {
            experiment: None,
            indexes: indexes.to_vec(),
            keys: keys.clone(),
            workloads: Vec::new(),
            n: sizes.0,
            ops: sizes.1,
            threads: vec![1],
            batches: vec![1],
            ordered: false,
            rounds: self.rounds,
            latency: false,
            seed: self.seed,
            quick: self.quick,
            apart: !self.in_process,
            fresh_memory: self.fresh_memory,
            info: RunInfo::default(),
        }
    }

    /// Collects the facts of a run that begins now.
    pub fn info(&self) -> RunInfo {
        let loads = match (self.in_process, self.fresh_memory) {
            (true, _) => SHARED,
            (false, true) => FRESH,
            (false, false) => HAD,
        };
        RunInfo { loads: loads.to_owned(), ..RunInfo::now() }
    }

    /// Returns the index with which ratios are computed.
    pub fn baseline(&self) -> &str {
        self.baseline.as_deref().unwrap_or(BASELINE)
    }

    /// Returns an error if the baseline is not measured.
    pub fn check_baseline(&self, plans: &[Plan]) -> Result<(), BenchError> {
        let Some(baseline) = &self.baseline else { return Ok(()) };
        let measured = || plans.iter().flat_map(|plan| &plan.indexes).map(|index| &*index.name);
        if plans.is_empty() || measured().any(|index| index == baseline) {
            return Ok(());
        }
        let measured: BTreeSet<&str> = measured().collect();
        Err(BenchError::Request(unknown("--baseline of this run", baseline, measured)))
    }

    pub fn write_json(&self, cells: &[Cell]) -> Result<(), BenchError> {
        let Some(path) = &self.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(cells).unwrap_or_default();
        write(path, &(text + "\n"))
    }

    /// Runs the plans, and prints and writes the results. Returns an error if one of our indexes
    /// was wrong.
    pub fn measure(&self, plans: &[Plan]) -> Result<(), BenchError> {
        self.check_baseline(plans)?;
        // All plans are checked before the first one begins.
        plans.iter().try_for_each(Plan::check).map_err(BenchError::Request)?;
        if let Some(path) = &self.json {
            check_writable(path)?;
        }
        let then = Ticks::now();
        let progress = Progress::new(plans.iter().map(Plan::steps).sum());
        let mut cells = Vec::new();
        for plan in plans {
            let before = cells.len();
            // Results are written early, so that they exist if the run is interrupted.
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

/// Prints what was wrong. Returns an error if one of our indexes was.
pub fn verdict(cells: &[Cell]) -> Result<(), BenchError> {
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
pub fn report(folder: &Path, cells: &[Cell], baseline: &str) -> Result<(), BenchError> {
    let page = folder.join("index.html");
    std::fs::create_dir_all(folder)
        .map_err(|source| BenchError::Write { path: folder.to_owned(), source })?;
    write(&page, &render_report(cells, baseline))?;
    println!("plots: {}", page.display());
    Ok(())
}

/// Checks early, and not after a long run, whether a file can be written. An existing file is kept
/// until there are results.
fn check_writable(path: &Path) -> Result<(), BenchError> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let written = |source| BenchError::Write { path: path.to_owned(), source };
    opened.map(drop).map_err(written)
}

pub fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|source| BenchError::Write { path: path.to_owned(), source })
}
