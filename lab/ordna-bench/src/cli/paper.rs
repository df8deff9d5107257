//! `ordna-bench paper NAME`: runs the experiments of a paper.

use clap::Args;

use super::common::{BenchError, Common};
use crate::driver::Plan;
use crate::paper::{Figure, PAPERS, Paper};
use crate::registry::{Chosen, Registry};
use crate::suggest::unknown;
use crate::workload::Series;

/// `ordna-bench paper`
#[derive(Debug, Args)]
pub struct Papers {
    /// hydralist, wormhole, pi, art or nitro.
    name: String,
    /// Figures; all by default.
    #[arg(long, value_delimiter = ',')]
    figure: Vec<String>,
    /// At most so many keys.
    #[arg(long, default_value_t = 1_000_000)]
    n: usize,
    /// Operations to measure per workload and round; with --quick the rounds share them.
    #[arg(long, default_value_t = 1_000_000)]
    ops: usize,
    #[command(flatten)]
    common: Common,
}

impl Papers {
    pub fn run(&self) -> Result<(), BenchError> {
        if self.n == 0 {
            return Err(BenchError::Request("--n is at least 1, not 0".to_owned()));
        }
        let registry = self.common.registry()?;
        let (plans, text) = self.plans(&registry).map_err(BenchError::Request)?;
        print!("{text}");
        if plans.is_empty() { Ok(()) } else { self.common.measure(&plans) }
    }

    /// The plans, and the text printed before them.
    fn plans(&self, registry: &Registry) -> Result<(Vec<Plan>, String), String> {
        let names = || PAPERS.iter().map(|paper| &*paper.name);
        let paper = PAPERS.iter().find(|paper| paper.name == self.name);
        let paper = paper.ok_or_else(|| unknown("paper", &self.name, names()))?;
        let figures = || paper.figures.iter().map(|figure| &*figure.name);
        if let Some(figure) =
            self.figure.iter().find(|wanted| !figures().any(|name| name == **wanted))
        {
            return Err(unknown(&format!("figure of {}", paper.name), figure, figures()));
        }
        let wanted =
            |figure: &&Figure| self.figure.is_empty() || self.figure.contains(&figure.name);
        let mut plans = Vec::new();
        let mut text = String::new();
        for figure in paper.figures.iter().filter(wanted) {
            let (more, said) = self.figure(registry, paper, figure)?;
            plans.extend(more);
            text += &said;
        }
        Ok((plans, text))
    }

    fn figure(
        &self,
        registry: &Registry,
        paper: &Paper,
        figure: &Figure,
    ) -> Result<(Vec<Plan>, String), String> {
        let name = format!("{}, Fig. {}", paper.title, figure.name).replace("Fig. c", "c");
        let mut text = format!("{name}: {}\n", figure.title);
        let mut say = |line: String| text += &format!("  {line}\n");
        // Those that were asked for by name join those of the figure.
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
        let mut sizes: Vec<usize> = Vec::new();
        for thousands in &runs.thousands {
            let theirs = thousands * 1000;
            let ours = theirs.min(self.n);
            if !sizes.contains(&ours) {
                say(format!(
                    "{theirs} keys in the paper, {ours} here (1 : {:.1})",
                    theirs as f64 / ours as f64
                ));
                sizes.push(ours);
            }
        }
        let mut workloads = Vec::new();
        for workload in &runs.workloads {
            workloads.extend(workload.parse::<Series>()?.0);
        }
        let info = self.common.info();
        let mut plans = Vec::new();
        for keys in &runs.keys {
            for n in &sizes {
                let plan = Plan {
                    experiment: Some(name.clone()),
                    workloads: workloads.clone(),
                    threads: runs.threads.on(cores),
                    batches: runs.batches.clone(),
                    info: info.clone(),
                    ..self.common.plan(&indexes, &keys.parse()?, (*n, self.ops))
                };
                plans.push(plan.distinct());
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
        assert!(text.contains("10000000 keys in the paper, 1000 here (1 : 10000.0)"), "{text}");
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
        assert!(plans(&["hydra"]).err().unwrap().contains("hydralist, wormhole, pi, art, nitro"));
        assert!(
            plans(&["art", "--figure", "9"]).err().unwrap().contains("known are 5, counters, 6")
        );
        assert!(plans(&["art", "--index", "artt"]).err().unwrap().contains("unknown index"));
    }
}
