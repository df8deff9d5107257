//! The command line of `ordna-bench`.

mod backup;
mod common;
mod growth;
mod paper;
mod secondary;
mod snapshots;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub use self::common::BenchError;
use self::common::{BASELINE, Common, report, write};
use crate::driver::Plan;
use crate::keys::KeySet;
use crate::registry::Registry;
use crate::suggest::unknown;
use crate::table::Cell;
use crate::workload::{STANDARD, Series, Workload};

/// Measures ordered indexes and public peers side by side, and checks every answer.
///
/// Peers need a build with `--features peers`.
#[derive(Debug, Parser)]
#[command(name = "ordna-bench", version, after_help = EXAMPLES)]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ordna-bench list
  ordna-bench run --index store,locked --workload load,c-uniform,e --n 1000000
  ordna-bench paper art --quick";

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure indexes on key sets under workloads, in interleaved rounds.
    Run(Box<Run>),
    /// Measure ns per lookup and bytes per key from 10^4 keys to as many as fit.
    Growth(Box<growth::Growth>),
    /// Measure backup, restore and the log, each together with its limit.
    Backup(backup::Backup),
    /// Measure secondary indexes together with the raw store.
    Secondary(secondary::Secondary),
    /// Measure the cost of snapshots for concurrent writers and readers.
    Snapshots(snapshots::Snapshots),
    /// Run the experiments of a paper, scaled to this machine.
    Paper(Box<paper::Papers>),
    /// List the indexes, key sets and workloads.
    List,
    /// Rewrite the benchmark page from the JSON of a run.
    Docs(Docs),
}

/// `ordna-bench docs`
#[derive(Debug, Args)]
pub struct Docs {
    /// Files that `--json` has written, from one run or several; each run has its own table on the
    /// page.
    #[arg(long, required = true)]
    json: Vec<PathBuf>,
    /// Update the generated part of the page of this paper, docs/papers/NAME.md, instead; `all`
    /// updates that of every paper.
    #[arg(long, value_name = "NAME", conflicts_with = "report")]
    paper: Option<String>,
    /// The page to write; docs/benchmarks.md, or that of the paper, by default.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Also write the plots, to index.html in this folder.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Index of the results with which ratios are computed.
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
        if let Some(name) = &self.paper {
            return self.papers(name, &cells);
        }
        let indexes = || cells.iter().map(|cell| cell.index.as_str());
        if !cells.is_empty() && self.baseline != BASELINE && !indexes().any(|i| i == self.baseline)
        {
            let known: BTreeSet<&str> = indexes().collect();
            return Err(BenchError::Request(unknown("--baseline", &self.baseline, known)));
        }
        let out = self.out.clone().unwrap_or_else(|| PathBuf::from("docs/benchmarks.md"));
        write(&out, &crate::page::render_page(&cells, &self.baseline))?;
        self.report.as_ref().map_or(Ok(()), |folder| report(folder, &cells, &self.baseline))
    }
}

impl Docs {
    /// Updates the pages of papers.
    fn papers(&self, name: &str, cells: &[Cell]) -> Result<(), BenchError> {
        let papers = crate::paper::PAPERS.iter();
        let papers: Vec<_> = papers.filter(|paper| name == "all" || paper.name == name).collect();
        if papers.is_empty() {
            let known = crate::paper::PAPERS.iter().map(|paper| &*paper.name).chain(["all"]);
            return Err(BenchError::Request(unknown("paper", name, known)));
        }
        for paper in papers {
            let out = self.out.clone().filter(|_| name != "all");
            let out = out.unwrap_or_else(|| format!("docs/papers/{}.md", paper.name).into());
            let unreadable =
                |why: String| BenchError::Request(format!("cannot renew {}: {why}", out.display()));
            let page = std::fs::read_to_string(&out).map_err(|e| unreadable(e.to_string()))?;
            write(&out, &crate::paper_page::renew(&page, paper, cells).map_err(unreadable)?)?;
        }
        Ok(())
    }
}

/// `ordna-bench run`
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    common: Common,
    /// Key sets.
    #[arg(long, value_delimiter = ',', default_value = "int")]
    keys: Vec<KeySet>,
    /// Workloads; `contend` is a series, and `all` selects the standard ones.
    #[arg(long, value_delimiter = ',', default_value = "load,c-uniform")]
    workload: Vec<Series>,
    /// Keys to load.
    #[arg(long, default_value_t = 1_000_000)]
    n: usize,
    /// Operations to measure per workload and round; with --quick, for all rounds together.
    #[arg(long, default_value_t = 1_000_000)]
    ops: usize,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    threads: Vec<usize>,
    /// Keys per call: 1 means single operations. With more, a thread delays gets, puts and removes,
    /// each kind separately, until a group is full or one of its keys is needed. Then it calls
    /// get_many, insert_many or remove_many; for peers without such calls, it executes the
    /// operations of the group one by one. "groups" in the JSON has the average number of keys per
    /// call. Workloads that scan have no groups.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Calls have `--batch` operations of all kinds, in their order, each with its own answer: PI's
    /// interface. For indexes without such a call, the operations are executed one by one, except
    /// for consecutive searches.
    #[arg(long)]
    ordered: bool,
    /// Measure the time of every operation separately in one more round.
    #[arg(long)]
    latency: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// Returns a [`BenchError`] if the subcommand fails.
pub fn run(bench: &Bench) -> Result<(), BenchError> {
    match &bench.command {
        Command::List => {
            list();
            for paper in &*crate::paper::PAPERS {
                let figures: Vec<&str> = paper.figures.iter().map(|figure| &*figure.name).collect();
                println!("paper {}: {}, figures {}", paper.name, paper.title, figures.join(", "));
            }
            Ok(())
        }
        Command::Run(run) => run.run(),
        Command::Growth(growth) => growth.run(),
        Command::Backup(backup) => backup.run(),
        Command::Secondary(secondary) => secondary.run(),
        Command::Snapshots(snapshots) => snapshots.run(),
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
        let info = self.common.info();
        let plan = |keys: &KeySet| Plan {
            workloads: workloads.clone(),
            threads: self.threads.clone(),
            batches: self.batch.clone(),
            ordered: self.ordered,
            latency: self.latency,
            info: info.clone(),
            ..self.common.plan(&indexes, keys, (self.n, self.ops))
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::common::verdict;
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

    fn refused(arguments: &[&str]) -> BenchError {
        let arguments = ["ordna-bench"].iter().chain(arguments);
        super::run(&Bench::try_parse_from(arguments).unwrap()).unwrap_err()
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

    /// The cause is only in the source: otherwise a caller that prints both would print it twice.
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
