//! `ordna-bench paper NAME`: runs the experiments of a paper.

use std::collections::BTreeSet;

use clap::Args;

use super::common::{BenchError, Common};
use crate::driver::Plan;
use crate::paper::{Figure, PAPERS, Paper, Runs};
use crate::registry::{Chosen, Registry};
use crate::suggest::unknown;
use crate::workload::Series;

/// `ordna-bench paper`
#[derive(Debug, Args)]
pub struct Papers {
    /// hydralist, wormhole, pi, art, nitro, or all.
    name: String,
    /// Names of figures; all by default.
    #[arg(long, value_delimiter = ',')]
    figure: Vec<String>,
    /// Maximum number of keys: 1,000,000 by default, 100,000 with --quick. Figures with an axis of
    /// sizes scale the whole axis; with --quick, they have only its ends.
    #[arg(long)]
    n: Option<usize>,
    /// Number of operations to measure per workload and round; with --quick, the rounds share them.
    /// The default is the number of keys, but at least four calls of each thread.
    #[arg(long)]
    ops: Option<usize>,
    #[command(flatten)]
    common: Common,
}

impl Papers {
    pub fn run(&self) -> Result<(), BenchError> {
        if self.keys() == 0 {
            return Err(BenchError::Request("--n is at least 1, not 0".to_owned()));
        }
        let registry = self.common.registry()?;
        let (plans, text) = self.plans(&registry).map_err(BenchError::Request)?;
        crate::info::limits().iter().for_each(|limit| println!("this machine: {limit}"));
        print!("{text}");
        if plans.is_empty() { Ok(()) } else { self.common.measure(&plans) }
    }

    fn keys(&self) -> usize {
        self.n.unwrap_or(if self.common.quick { 100_000 } else { 1_000_000 })
    }

    /// Returns the default number of operations of a figure's workloads: the number of keys, but at
    /// least four calls of each thread in each round.
    fn operations(&self, runs: &Runs, n: usize, cores: usize) -> usize {
        let rounds = if self.common.quick { self.common.rounds } else { 1 };
        let most = runs.batches.iter().copied().max().unwrap_or(1);
        let calls = most.saturating_mul(4 * cores).saturating_mul(rounds);
        n.max(2).max(if most > 1 { calls } else { cores }).min(u32::MAX as usize)
    }

    /// Returns the plans, and the text to print before them.
    fn plans(&self, registry: &Registry) -> Result<(Vec<Plan>, String), String> {
        let names = || PAPERS.iter().map(|paper| &*paper.name).chain(["all"]);
        let papers = PAPERS.iter().filter(|paper| self.name == "all" || paper.name == self.name);
        let papers: Vec<&Paper> = papers.collect();
        if papers.is_empty() {
            return Err(unknown("paper", &self.name, names()));
        }
        let figures = || {
            let all = papers.iter().flat_map(|paper| &paper.figures);
            all.map(|figure| &*figure.name).collect::<BTreeSet<_>>()
        };
        if let Some(figure) = self.figure.iter().find(|wanted| !figures().contains(wanted.as_str()))
        {
            return Err(unknown(&format!("figure of {}", self.name), figure, figures()));
        }
        let wanted =
            |figure: &&Figure| self.figure.is_empty() || self.figure.contains(&figure.name);
        let mut plans = Vec::new();
        let mut text = String::new();
        for paper in papers {
            for figure in paper.figures.iter().filter(wanted) {
                let (more, said) = self.figure(registry, paper, figure)?;
                plans.extend(more);
                text += &said;
            }
        }
        Ok((plans, text))
    }

    fn figure(
        &self,
        registry: &Registry,
        paper: &Paper,
        figure: &Figure,
    ) -> Result<(Vec<Plan>, String), String> {
        let name = paper.experiment(figure);
        let mut text = format!("{name}: {}\n", figure.title);
        let mut say = |line: String| text += &format!("  {line}\n");
        // Indexes that were requested by name are measured in addition to those of the figure.
        let asked = self.common.index.iter().flatten().map(String::as_str);
        let mut indexes: Vec<Chosen> = Vec::new();
        for index in asked.chain(figure.indexes.iter().map(String::as_str)) {
            match registry.find(index) {
                Ok(chosen) if indexes.iter().any(|known| known.name == chosen.name) => {}
                Ok(chosen) => indexes.push(chosen),
                Err(why) if figure.indexes.iter().any(|known| known == index) => {
                    say(why.split(';').next().unwrap_or_default().to_owned());
                }
                Err(why) => return Err(why),
            }
        }
        if !figure.note.is_empty() {
            say(figure.note.clone());
        }
        let Some(runs) = figure.runs.as_ref().filter(|_| !indexes.is_empty()) else {
            return Ok((Vec::new(), text));
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let sizes = runs.sizes(self.keys(), self.common.quick);
        let theirs: Vec<String> = runs.thousands.iter().map(|t| (t * 1000).to_string()).collect();
        let ours: Vec<String> = sizes.iter().map(usize::to_string).collect();
        say(format!("keys in the paper: {}; here: {}", theirs.join(", "), ours.join(", ")));
        let mut workloads = Vec::new();
        for workload in &runs.workloads {
            workloads.extend(workload.parse::<Series>()?.0);
        }
        let info = self.common.info();
        let mut plans = Vec::new();
        let threads = runs.threads.on(cores);
        // With a single caller, all other threads are workers, so each number of threads needs its
        // own index.
        let threads: Vec<Vec<usize>> = if runs.ordered {
            threads.into_iter().map(|count| vec![count]).collect()
        } else {
            vec![threads]
        };
        for keys in &runs.keys {
            for n in &sizes {
                for threads in &threads {
                    let ops = self.ops.unwrap_or_else(|| self.operations(runs, *n, cores));
                    let plan = Plan {
                        experiment: Some(name.clone()),
                        workloads: workloads.clone(),
                        threads: threads.clone(),
                        batches: runs.batches.clone(),
                        ordered: runs.ordered,
                        info: info.clone(),
                        ..self.common.plan(&indexes, &keys.parse()?, (*n, ops))
                    };
                    plans.push(plan.distinct());
                }
            }
        }
        Ok((plans, text))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        papers: Papers,
    }

    fn plans(arguments: &[&str]) -> Result<(Vec<Plan>, String), String> {
        let arguments = ["bench"].iter().chain(arguments);
        Cli::try_parse_from(arguments).unwrap().papers.plans(&Registry::new())
    }

    #[test]
    fn figures_become_plans_and_tell_their_scale() {
        let (found, text) = plans(&["art", "--n", "1000", "--figure", "6"]).unwrap();
        assert_eq!((found.len(), found[0].n, found[0].workloads.len()), (1, 1000, 6));
        assert!(text.contains("keys in the paper: 10000000; here: 1000"), "{text}");
        let (all, _) = plans(&["all", "--quick"]).unwrap();
        let figures: BTreeSet<_> = all.iter().map(|plan| plan.experiment.clone()).collect();
        let runs = PAPERS.iter().flat_map(|paper| &paper.figures).filter(|f| f.runs.is_some());
        assert_eq!(figures.len(), runs.count());
        for paper in &*PAPERS {
            let (found, text) = plans(&[&paper.name]).unwrap();
            assert!(!found.is_empty() && found.iter().all(|plan| plan.check().is_ok()));
            assert!(
                text.lines().filter(|line| !line.starts_with(' ')).count() == paper.figures.len()
            );
        }
    }

    #[test]
    fn what_is_not_there_is_said_and_nothing_is_run_for_it() {
        let papers = Cli::try_parse_from(["bench", "nitro"]).unwrap().papers;
        let (found, text) = papers.plans(&Registry::empty()).unwrap();
        assert!(found.is_empty());
        assert!(text.contains("unknown index \"nitro\""), "{text}");
    }

    #[test]
    fn unknown_papers_and_figures_list_the_known() {
        assert!(
            plans(&["hydra"]).err().unwrap().contains("hydralist, wormhole, pi, art, nitro, all")
        );
        assert!(plans(&["art", "--figure", "9"]).err().unwrap().contains("known are 5, 6, 7"));
        assert!(plans(&["art", "--index", "artt"]).err().unwrap().contains("unknown index"));
    }
}
