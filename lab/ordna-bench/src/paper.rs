//! `ordna-bench paper NAME`: the papers' experiments, scaled to the machine.
//!
//! `papers/NAME.json` defines the runs for each figure. If a figure needs something else (counters
//! of an index, several NUMA nodes, a network), it says so instead of showing something different.

use std::sync::LazyLock;

use serde::Deserialize;

/// The parameters of the runs of a figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    /// Key sets that represent the paper's.
    pub keys: Vec<String>,
    /// The paper's numbers of keys, in thousands.
    pub thousands: Vec<usize>,
    /// Workloads.
    pub workloads: Vec<String>,
    /// Numbers of keys per call.
    #[serde(default = "single")]
    pub batches: Vec<usize>,
    /// Whether a call has a batch of operations of all kinds, in their order.
    #[serde(default)]
    pub ordered: bool,
    /// Numbers of threads: from one to all cores, all cores, or one.
    pub threads: Threads,
}

impl Runs {
    /// Returns the numbers of keys to load if the largest is at most `n`. All are scaled by the
    /// same factor, so that the axis keeps its form, and none is below 1,000. With `few`, returns
    /// only the smallest and the largest.
    pub fn sizes(&self, n: usize, few: bool) -> Vec<usize> {
        let largest = self.thousands.iter().copied().max().unwrap_or(1).max(1) * 1000;
        let factor = (n as f64 / largest as f64).min(1.0);
        let scaled = |thousands: &usize| {
            (((thousands * 1000) as f64 * factor).round() as usize).max(1000.min(n)).max(1)
        };
        let mut sizes: Vec<usize> = self.thousands.iter().map(scaled).collect();
        sizes.sort_unstable();
        sizes.dedup();
        if few && sizes.len() > 2 {
            sizes.drain(1..sizes.len() - 1);
        }
        sizes
    }
}

/// A shape that a paper shows, as a ratio of our figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Short description of what the paper shows.
    pub says: String,
    /// The cells that are compared.
    pub of: Side,
    /// The differences of the cells with which they are compared.
    pub over: Side,
    /// Whether bytes per key are compared, instead of operations per second.
    #[serde(default)]
    pub bytes: bool,
    /// Minimum ratio with the paper's shape.
    #[serde(default)]
    pub least: Option<f64>,
    /// Maximum ratio with the paper's shape.
    #[serde(default)]
    pub most: Option<f64>,
}

/// A claim of the abstract or the conclusion, judged by a figure or with our own verdict.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promise {
    /// The claim.
    pub says: String,
    /// The figure whose cells judge it.
    pub figure: Option<String>,
    /// The claim about the cells.
    pub claim: Option<Claim>,
    /// The verdict, if no figure provides one.
    pub verdict: Option<String>,
}

/// A selection of cells. Properties that are not named are not restricted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// Name and switches of the index.
    pub index: Option<String>,
    /// Workload.
    pub workload: Option<String>,
    /// Key set.
    pub keys: Option<String>,
    /// Number of keys per call.
    pub batch: Option<usize>,
    /// Number of threads: one, or all.
    pub threads: Option<Threads>,
    /// The smallest or the largest number of keys.
    pub size: Option<Size>,
}

/// An end of the axis of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// The smallest.
    Least,
    /// The largest.
    Most,
}

fn single() -> Vec<usize> {
    vec![1]
}

/// Numbers of threads of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Threads {
    /// One.
    One,
    /// The number of cores.
    All,
    /// Powers of two from one to the number of cores.
    Growing,
}

impl Threads {
    /// Returns the numbers for a machine with this number of cores.
    pub fn on(self, cores: usize) -> Vec<usize> {
        match self {
            Self::One => vec![1],
            Self::All => vec![cores],
            Self::Growing => {
                let doubling = std::iter::successors(Some(1), |threads| Some(threads * 2));
                let mut all: Vec<usize> = doubling.take_while(|threads| *threads < cores).collect();
                all.push(cores);
                all
            }
        }
    }
}

/// A figure of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Number of the figure, as for `--figure`.
    pub name: String,
    /// Title of the figure.
    pub title: String,
    /// Short description of what the paper shows.
    pub shows: String,
    /// Shapes of the figure, if our runs can show them.
    #[serde(default)]
    pub claims: Vec<Claim>,
    /// The indexes that it compares, with their names in this benchmark.
    #[serde(default)]
    pub indexes: Vec<String>,
    /// Runs of the figure, or `None` if it cannot be run.
    pub runs: Option<Runs>,
    /// The differences from the paper, or the reason why there is no run.
    #[serde(default)]
    pub note: String,
}

/// A paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Name on the command line.
    pub name: String,
    /// Title in citations.
    pub title: String,
    /// The index of the paper, for "where we lose".
    pub index: String,
    /// The claims of abstract and conclusion.
    pub promises: Vec<Promise>,
    /// Figures of the paper.
    pub figures: Vec<Figure>,
}

impl Paper {
    /// Returns the name of a figure in results.
    pub fn experiment(&self, figure: &Figure) -> String {
        let kind = if figure.name.starts_with(|first: char| first.is_ascii_digit()) {
            "Fig. "
        } else {
            ""
        };
        format!("{}, {kind}{}", self.title, figure.name)
    }
}

/// All papers.
pub static PAPERS: LazyLock<Vec<Paper>> = LazyLock::new(|| {
    let texts = [
        include_str!("../papers/hydralist.json"),
        include_str!("../papers/wormhole.json"),
        include_str!("../papers/pi.json"),
        include_str!("../papers/art.json"),
        include_str!("../papers/nitro.json"),
    ];
    let read = |text: &str| serde_json::from_str(text).expect("a test reads the same file");
    texts.into_iter().map(read).collect()
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeySet;
    use crate::registry::{Registry, missing};
    use crate::workload::Series;

    #[test]
    fn every_name_in_the_tables_is_known() {
        let registry = Registry::new();
        for paper in &*PAPERS {
            let mut indexes = vec![paper.index.clone()];
            for figure in &paper.figures {
                assert!(figure.runs.is_some() || !figure.note.is_empty(), "{}", figure.title);
                indexes.extend(figure.indexes.clone());
                let Some(runs) = &figure.runs else {
                    assert!(figure.claims.is_empty(), "{}", figure.title);
                    continue;
                };
                for keys in &runs.keys {
                    keys.parse::<KeySet>().unwrap();
                }
                for workload in &runs.workloads {
                    workload.parse::<Series>().unwrap();
                }
                figure.claims.iter().for_each(|claim| check(claim, figure));
            }
            for index in &indexes {
                assert!(registry.find(index).is_ok() || missing(index).is_some(), "{index}");
            }
            for promise in &paper.promises {
                let judged = promise.figure.as_ref().zip(promise.claim.as_ref());
                assert!(judged.is_some() != promise.verdict.is_some(), "{}", promise.says);
                let Some((name, claim)) = judged else { continue };
                let figure = paper.figures.iter().find(|figure| figure.name == *name);
                check(claim, figure.unwrap());
            }
        }
    }

    /// Checks that the runs of a figure contain what its claim names; otherwise it would never be
    /// judged.
    fn check(claim: &Claim, figure: &Figure) {
        let runs = figure.runs.as_ref().unwrap();
        let workloads = runs.workloads.iter().flat_map(|name| name.parse::<Series>().unwrap().0);
        let workloads: Vec<String> = workloads.map(|workload| workload.to_string()).collect();
        assert!(claim.least.is_some() || claim.most.is_some(), "{}", claim.says);
        for side in [&claim.of, &claim.over] {
            let is_in = |name: &Option<String>, all: &[String]| {
                name.as_ref().is_none_or(|name| all.contains(name))
            };
            assert!(is_in(&side.index, &figure.indexes), "{}: {side:?}", figure.title);
            assert!(is_in(&side.workload, &workloads), "{}: {side:?}", figure.title);
            assert!(is_in(&side.keys, &runs.keys), "{}: {side:?}", figure.title);
            assert!(side.batch.is_none_or(|batch| runs.batches.contains(&batch)), "{side:?}");
        }
    }

    /// Every figure and table of the papers' evaluations has a row.
    #[test]
    fn no_figure_or_table_is_left_out() {
        let names = |at: usize| PAPERS[at].figures.iter().map(|f| &*f.name).collect::<Vec<_>>();
        assert_eq!(names(0), ["1", "table 1", "6", "7", "8", "9", "10", "11", "12", "13"]);
        let wormhole = ["table 1", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18"];
        assert_eq!(names(1), wormhole);
        let pi =
            ["5", "table 1", "table 2", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];
        assert_eq!(names(2), pi);
        assert_eq!(names(3), ["5", "table of 5.1", "6", "7", "table of 5.4"]);
        assert_eq!(names(4), ["6", "7", "8", "9", "memory", "10", "11", "table 1", "12"]);
    }

    #[test]
    fn sizes_are_scaled_by_one_factor() {
        let runs = |thousands: &str| -> Runs {
            let text = format!(
                r#"{{"keys": [], "thousands": {thousands}, "workloads": [], "threads": "one"}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(
            runs("[2000, 16000, 128000]").sizes(1_280_000, false),
            [20_000, 160_000, 1_280_000]
        );
        assert_eq!(runs("[2000, 16000, 128000]").sizes(1_280_000, true), [20_000, 1_280_000]);
        assert_eq!(runs("[100, 89000]").sizes(50_000, false), [1000, 50_000]);
        assert_eq!(runs("[2]").sizes(50_000, false), [2000]);
        assert_eq!(runs("[2]").sizes(7, false), [7]);
    }

    #[test]
    fn threads_grow_to_the_cores() {
        assert_eq!(Threads::Growing.on(1), [1]);
        assert_eq!(Threads::Growing.on(2), [1, 2]);
        assert_eq!(Threads::Growing.on(12), [1, 2, 4, 8, 12]);
    }
}
